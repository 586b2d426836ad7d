/*
 * Gate+up: in x, Wg, Wu; out h and, in kept rows, g and u. A tile holds 128 gate and 128 up columns side by side, so that one thread has both
 * values of an element: accumulators 0..63 are gate, 64..127 up.
 */
#ifndef MOK_CUDA_GEMM_GATE_UP_CUH
#define MOK_CUDA_GEMM_GATE_UP_CUH

#include "cuda/activation.cuh"
#include "cuda/gemm_store.cuh"
#include "cuda/gemm_walk.cuh"

enum { MOK_GATE_UP_COLS = MOK_GEMM_COLS / 2 };

template <typename TILE>
MOK_DEVICE void mok_cuda_load_gate_up(const struct mok_gate_up_kernel_args *args, struct mok_gemm_shared<TILE> *shared, struct mok_stage_cursor *cursor,
                                      const struct mok_gemm_tile *tile)
{
    for (int32_t step = 0; step < args->num_steps; step++) {
        struct mok_stage *stage = &shared->stage[cursor->idx];
        uint64_t *full = &shared->full[cursor->idx];
        int32_t k = step * MOK_GEMM_DEPTH;
        mok_cuda_begin_stage<TILE>(shared, cursor, MOK_GEMM_STEP_BYTES, args->wait_limit_ns);
        mok_hw_tma_load_2d(stage->a, &args->x, full, k, tile->row);
        mok_cuda_load_weight<TILE>(tile, 0, stage->b, &args->gate, full, k, tile->col);
        mok_cuda_load_weight<TILE>(tile, 1, stage->b + MOK_GEMM_B_BYTES / 2, &args->up, full, k, tile->col);
        mok_cuda_advance<TILE>(cursor);
    }
}

/* g, u: 32 words each of a thread, two panels. */
MOK_DEVICE void mok_cuda_store_h(const struct mok_gate_up_kernel_args *args, struct mok_panel_writer *writer, int clamps, const uint32_t *g,
                                 const uint32_t *u, int32_t row, int32_t rows, int32_t col)
{
#pragma unroll
    for (int p = 0; p < 2; p++) {
        uint32_t packed[MOK_PANEL_WORDS];
#pragma unroll
        for (int i = 0; i < MOK_PANEL_WORDS; i++) {
            uint32_t g2 = g[MOK_PANEL_WORDS * p + i], u2 = u[MOK_PANEL_WORDS * p + i];
            packed[i] = mok_hw_pack_bf16(mok_cuda_activate(&args->activation, clamps, mok_cuda_bf16_low(g2), mok_cuda_bf16_low(u2)),
                                         mok_cuda_activate(&args->activation, clamps, mok_cuda_bf16_high(g2), mok_cuda_bf16_high(u2)));
        }
        mok_cuda_store_panel(writer, &args->h, packed, row, rows, col + p * MOK_GEMM_PANEL);
    }
}

MOK_DEVICE void mok_cuda_finish_gate_up(const struct mok_gate_up_kernel_args *args, struct mok_panel_writer *writer, const float *acc,
                                        const struct mok_gemm_tile *tile)
{
    int32_t row = tile->row + (int32_t)writer->warpgroup * MOK_GEMM_PANEL;
    int32_t rows = tile->rows - (int32_t)writer->warpgroup * MOK_GEMM_PANEL;
    uint32_t g[2 * MOK_PANEL_WORDS], u[2 * MOK_PANEL_WORDS];
#pragma unroll
    for (int p = 0; p < 2; p++) {
        mok_cuda_pack_panel(acc + 32 * p, g + MOK_PANEL_WORDS * p);
        mok_cuda_pack_panel(acc + 64 + 32 * p, u + MOK_PANEL_WORDS * p);
    }
    if (args->store_h && args->activation.clamps) {
        mok_cuda_store_h(args, writer, 1, g, u, row, rows, tile->col);
    } else if (args->store_h) {
        mok_cuda_store_h(args, writer, 0, g, u, row, rows, tile->col);
    }
    if (tile->row < args->keep_rows) {
#pragma unroll
        for (int p = 0; p < 2; p++) {
            mok_cuda_store_panel(writer, &args->g, g + MOK_PANEL_WORDS * p, row, rows, tile->col + p * MOK_GEMM_PANEL);
            mok_cuda_store_panel(writer, &args->u, u + MOK_PANEL_WORDS * p, row, rows, tile->col + p * MOK_GEMM_PANEL);
        }
    }
}

#endif
