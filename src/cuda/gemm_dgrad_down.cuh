/*
 * D, dgrad of down: in dy, Wd, g, u, w; out dg, du, wh = bf16(w h) and one partial sum of dw per row and tile. dh = dy Wd stays in registers.
 *
 * g and u come through the operand stages like four more steps of the contraction, 64 columns each, so that they arrive while the product
 * is still running; dg and du are written over them, wh beside them, and leave by TMA from there. Such a stage is released when the stores have read it.
 *
 *   step of 64 columns c:   stage->a: g -> dg     stage->b: u -> du, then 16 KB on: wh       (rows 64 * warpgroup at 8192 * warpgroup in each)
 */
#ifndef MOK_CUDA_GEMM_DGRAD_DOWN_CUH
#define MOK_CUDA_GEMM_DGRAD_DOWN_CUH

#include "cuda/activation.cuh"
#include "cuda/gemm_dgrad_gate_up.cuh"

enum { MOK_DGRAD_DOWN_CHUNKS = MOK_GEMM_COLS / 64 };

template <typename TILE>
MOK_DEVICE void mok_cuda_load_dgrad_down(const struct mok_dgrad_down_kernel_args *args, struct mok_gemm_shared<TILE> *shared,
                                         struct mok_stage_cursor *cursor, const struct mok_gemm_tile *tile)
{
    for (int32_t step = 0; step < args->num_steps; step++) {
        struct mok_stage *stage = &shared->stage[cursor->idx];
        uint64_t *full = &shared->full[cursor->idx];
        int32_t k = step * MOK_GEMM_DEPTH;
        mok_cuda_begin_stage<TILE>(shared, cursor, MOK_GEMM_STEP_BYTES, args->wait_limit_ns);
        mok_hw_tma_load_2d(stage->a, &args->dy, full, k, tile->row);
        mok_cuda_load_weight_rows<TILE>(tile, stage, &args->down, full, k);
        mok_cuda_advance<TILE>(cursor);
    }
    for (int32_t chunk = 0; chunk < MOK_DGRAD_DOWN_CHUNKS; chunk++) {
        struct mok_stage *stage = &shared->stage[cursor->idx];
        uint64_t *full = &shared->full[cursor->idx];
        mok_cuda_begin_stage<TILE>(shared, cursor, 2 * MOK_GEMM_A_BYTES, args->wait_limit_ns);
        mok_hw_tma_load_2d(stage->a, &args->g, full, tile->col + chunk * 64, tile->row);
        mok_hw_tma_load_2d(stage->b, &args->u, full, tile->col + chunk * 64, tile->row);
        mok_cuda_advance<TILE>(cursor);
    }
}

/* What a thread needs of its two rows (l/4 and 8 further on). */
struct mok_dgrad_rows {
    float w[2];
    float dw[2];  /* sum of dh * h so far */
    int real[2];  /* 0: a padding row, zeros are written */
};

/* Two neighbouring elements of row `half`: dh0, dh1 and the packed g, u become packed dg, du, wh. */
MOK_DEVICE void mok_cuda_derive_pair(const struct mok_gemm_activation *act, int clamps, struct mok_dgrad_rows *rows, int half, float dh0, float dh1, uint32_t *g,
                                     uint32_t *u, uint32_t *wh_out)
{
    float by_g[2], by_u[2];
    float w = rows->w[half];
    uint32_t h = mok_hw_pack_bf16(mok_cuda_activate_derive(act, clamps, mok_cuda_bf16_low(*g), mok_cuda_bf16_low(*u), &by_g[0], &by_u[0]),
                                  mok_cuda_activate_derive(act, clamps, mok_cuda_bf16_high(*g), mok_cuda_bf16_high(*u), &by_g[1], &by_u[1]));
    float h0 = mok_cuda_bf16_low(h), h1 = mok_cuda_bf16_high(h);
    float d0 = __fmul_rn(w, dh0), d1 = __fmul_rn(w, dh1);
    rows->dw[half] = __fmaf_rn(dh1, h1, __fmaf_rn(dh0, h0, rows->dw[half]));
    *g = rows->real[half] ? mok_hw_pack_bf16(__fmul_rn(d0, by_g[0]), __fmul_rn(d1, by_g[1])) : 0;
    *u = rows->real[half] ? mok_hw_pack_bf16(__fmul_rn(d0, by_u[0]), __fmul_rn(d1, by_u[1])) : 0;
    *wh_out = rows->real[half] ? mok_hw_pack_bf16(__fmul_rn(w, h0), __fmul_rn(w, h1)) : 0;
}

/* One chunk of 64 columns: dh[32] of the thread; g, u in the stage. */
MOK_DEVICE void mok_cuda_derive_chunk(const struct mok_dgrad_down_kernel_args *args, struct mok_stage *stage, uint32_t warpgroup, int clamps,
                                      const float *dh, struct mok_dgrad_rows *rows)
{
    uint32_t thread = threadIdx.x % 128;
    uint32_t g_panel = mok_hw_shared_address(stage->a + warpgroup * MOK_GEMM_BLOCK_BYTES);
    uint32_t u_panel = mok_hw_shared_address(stage->b + warpgroup * MOK_GEMM_BLOCK_BYTES);
    uint32_t wh_panel = u_panel + MOK_GEMM_A_BYTES;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t g[4], u[4], wh[4];
        mok_hw_load_matrix_x4(mok_cuda_panel_address(g_panel, thread, p), &g[0], &g[1], &g[2], &g[3]);
        mok_hw_load_matrix_x4(mok_cuda_panel_address(u_panel, thread, p), &u[0], &u[1], &u[2], &u[3]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            mok_cuda_derive_pair(&args->activation, clamps, rows, i % 2, dh[8 * p + 2 * i], dh[8 * p + 2 * i + 1], &g[i], &u[i], &wh[i]);
        }
        mok_hw_store_matrix_x4(mok_cuda_panel_address(g_panel, thread, p), g[0], g[1], g[2], g[3]);
        mok_hw_store_matrix_x4(mok_cuda_panel_address(u_panel, thread, p), u[0], u[1], u[2], u[3]);
        mok_hw_store_matrix_x4(mok_cuda_panel_address(wh_panel, thread, p), wh[0], wh[1], wh[2], wh[3]);
    }
}

/* The three panels of a chunk leave; called by one thread. */
MOK_DEVICE void mok_cuda_store_chunk(const struct mok_dgrad_down_kernel_args *args, struct mok_stage *stage, uint32_t warpgroup, int32_t col, int32_t row)
{
    mok_hw_tma_store_2d(&args->dg.map, stage->a + warpgroup * MOK_GEMM_BLOCK_BYTES, col, row);
    mok_hw_tma_store_2d(&args->du.map, stage->b + warpgroup * MOK_GEMM_BLOCK_BYTES, col, row);
    mok_hw_tma_store_2d(&args->wh.map, stage->b + MOK_GEMM_A_BYTES + warpgroup * MOK_GEMM_BLOCK_BYTES, col, row);
    mok_hw_bulk_commit();
}

/* Releases the stage of the chunk before this one (or, after the last chunk, of the last) once its stores have read it. Called by warp 0. */
template <typename TILE>
MOK_DEVICE void mok_cuda_release_chunk(struct mok_gemm_shared<TILE> *shared, uint32_t idx, int last)
{
    if (threadIdx.x % 32 == 0) {
        if (last) {
            mok_hw_bulk_wait_read_0();
        } else {
            mok_hw_bulk_wait_read_1();
        }
    }
    __syncwarp();
    mok_cuda_release_stage<TILE>(shared, idx, 4);
}

/* The four threads of a row add up their columns in a fixed order; one of them writes. */
MOK_DEVICE void mok_cuda_store_dw(const struct mok_dgrad_down_kernel_args *args, const struct mok_gemm_tile *tile, int32_t first,
                                  const struct mok_dgrad_rows *rows)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = rows->dw[half];
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
        if (threadIdx.x % 4 == 0 && rows->real[half]) {
            args->dw_partial[(int64_t)(tile->row + first + 8 * half) * args->walk.num_cols + tile->col_tile] = sum;
        }
    }
}

template <typename TILE>
MOK_DEVICE void mok_cuda_finish_dgrad_down(const struct mok_dgrad_down_kernel_args *args, struct mok_gemm_shared<TILE> *shared,
                                           struct mok_stage_cursor *cursor, uint32_t warpgroup, const float *acc, const struct mok_gemm_tile *tile)
{
    uint32_t thread = threadIdx.x % 128;
    int32_t first = (int32_t)(warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4); /* this thread's first row in the tile */
    struct mok_dgrad_rows rows = {{0, 0}, {0, 0}, {first < tile->rows, first + 8 < tile->rows}};
    uint32_t behind = cursor->idx;
    rows.w[0] = rows.real[0] ? args->w[tile->row + first] : 0.0f;
    rows.w[1] = rows.real[1] ? args->w[tile->row + first + 8] : 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < MOK_DGRAD_DOWN_CHUNKS; chunk++) {
        struct mok_stage *stage = &shared->stage[cursor->idx];
        mok_cuda_wait_barrier(&shared->full[cursor->idx], cursor->parity, args->wait_limit_ns);
        if (args->activation.clamps) {
            mok_cuda_derive_chunk(args, stage, warpgroup, 1, acc + 32 * chunk, &rows);
        } else {
            mok_cuda_derive_chunk(args, stage, warpgroup, 0, acc + 32 * chunk, &rows);
        }
        mok_hw_fence_async_shared_cta();
        mok_cuda_warpgroup_barrier(warpgroup);
        if (thread == 0) {
            mok_cuda_store_chunk(args, stage, warpgroup, tile->col + chunk * 64, tile->row + (int32_t)warpgroup * 64);
        }
        if (thread < 32 && chunk > 0) {
            mok_cuda_release_chunk<TILE>(shared, behind, 0);
        }
        behind = cursor->idx;
        mok_cuda_advance<TILE>(cursor);
    }
    mok_cuda_store_dw(args, tile, first, &rows);
    if (thread < 32) {
        mok_cuda_release_chunk<TILE>(shared, behind, 1);
    }
}

#endif
