/*
 * D, dgrad of down: in dy, Wd, g, u, w; out dg, du, wh = bf16(w h) and one partial sum of dw per row and tile. dh = dy Wd stays in
 * registers.
 *
 * g and u come through the operand stages like four more steps of the contraction, 64 columns each, so that they arrive while the product
 * is still running; dg and du are written over them, wh beside them, and leave by TMA from there. A warp does this for its own 16 rows and
 * releases such a stage when its stores have read it.
 *
 *   step of 64 columns:   stage->a: g -> dg     stage->b: u -> du, then 16 KB on: wh       (panel of warp v at 2048 v in each)
 */
#ifndef MOK_CUDA_GEMM_DGRAD_DOWN_CUH
#define MOK_CUDA_GEMM_DGRAD_DOWN_CUH

#include "cuda/gemm/gemm_multiply.cuh"
#include "cuda/gemm/gemm_walk.cuh"
#include "cuda/hw/counter.cuh"

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
    float w[2];   /* 0 in a padding row */
    float dw[2];  /* sum of dh * h so far */
    int32_t real; /* rows of the warp's 16 that are no padding; 16 or more = all */
};

/* Two neighbouring elements of row `half`: dh0, dh1 and the packed g, u become packed dg, du, wh. */
MOK_DEVICE void mok_cuda_derive_pair(const struct mok_gemm_activation *act, int clamps, struct mok_dgrad_rows *rows, int half, float dh0,
                                     float dh1, uint32_t *g, uint32_t *u, uint32_t *wh_out)
{
    float by_g[2], by_u[2];
    float w = rows->w[half];
    uint32_t h =
        mok_hw_pack_bf16(mok_cuda_activate_derive(act, clamps, mok_cuda_bf16_low(*g), mok_cuda_bf16_low(*u), &by_g[0], &by_u[0]),
                         mok_cuda_activate_derive(act, clamps, mok_cuda_bf16_high(*g), mok_cuda_bf16_high(*u), &by_g[1], &by_u[1]));
    float h0 = mok_cuda_bf16_low(h), h1 = mok_cuda_bf16_high(h);
    float d0 = __fmul_rn(w, dh0), d1 = __fmul_rn(w, dh1);
    rows->dw[half] = __fmaf_rn(dh1, h1, __fmaf_rn(dh0, h0, rows->dw[half]));
    *g = mok_hw_pack_bf16(__fmul_rn(d0, by_g[0]), __fmul_rn(d1, by_g[1]));
    *u = mok_hw_pack_bf16(__fmul_rn(d0, by_u[0]), __fmul_rn(d1, by_u[1]));
    *wh_out = mok_hw_pack_bf16(__fmul_rn(w, h0), __fmul_rn(w, h1));
}

/* 32 of the 64 columns of a chunk: pairs of 8-column blocks 2 * half, 2 * half + 1. dh[16] of the thread; g, u in the stage. */
MOK_DEVICE void mok_cuda_derive_half_chunk(const struct mok_gemm_activation *act, int clamps, uint32_t g_panel, uint32_t u_panel, int half,
                                           const float *dh, struct mok_dgrad_rows *rows)
{
    uint32_t wh_panel = u_panel + MOK_GEMM_A_BYTES;
    uint32_t g[8], u[8], wh[8];
#pragma unroll
    for (int p = 0; p < 2; p++) {
        mok_hw_load_matrix_x4(mok_cuda_panel_address(g_panel, 2 * half + p), &g[4 * p], &g[4 * p + 1], &g[4 * p + 2], &g[4 * p + 3]);
        mok_hw_load_matrix_x4(mok_cuda_panel_address(u_panel, 2 * half + p), &u[4 * p], &u[4 * p + 1], &u[4 * p + 2], &u[4 * p + 3]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        mok_cuda_derive_pair(act, clamps, rows, i % 2, dh[2 * i], dh[2 * i + 1], &g[i], &u[i], &wh[i]);
    }
#pragma unroll
    for (int p = 0; p < 2; p++) {
        mok_hw_store_matrix_x4(mok_cuda_panel_address(g_panel, 2 * half + p), g[4 * p], g[4 * p + 1], g[4 * p + 2], g[4 * p + 3]);
        mok_hw_store_matrix_x4(mok_cuda_panel_address(u_panel, 2 * half + p), u[4 * p], u[4 * p + 1], u[4 * p + 2], u[4 * p + 3]);
        mok_hw_store_matrix_x4(mok_cuda_panel_address(wh_panel, 2 * half + p), wh[4 * p], wh[4 * p + 1], wh[4 * p + 2], wh[4 * p + 3]);
    }
}

/* Padding rows of the three panels become zero, whatever was made of them: they are contracted later. */
MOK_DEVICE void mok_cuda_zero_padding(struct mok_stage *stage, uint32_t panel, int32_t real)
{
    const uint4 zero = {0, 0, 0, 0};
    __syncwarp();
    for (int32_t at = max(real, 0) * 128 + (int32_t)threadIdx.x % 32 * 16; at < MOK_GEMM_PANEL_BYTES; at += 32 * 16) {
        *(uint4 *)(stage->a + panel + at) = zero;
        *(uint4 *)(stage->b + panel + at) = zero;
        *(uint4 *)(stage->b + MOK_GEMM_A_BYTES + panel + at) = zero;
    }
}

/* One chunk of 64 columns, dh[32] of the thread, of which the second half comes to the front; and its three panels on their way to (row, col). The lane
 * that speaks to the copy engine is an elected one: its addresses come from uniform registers (hw/sync.cuh). */
MOK_DEVICE void mok_cuda_derive_chunk(const struct mok_dgrad_down_kernel_args *args, const struct mok_gemm_activation *act,
                                      struct mok_stage *stage, float *dh, struct mok_dgrad_rows *rows, int32_t row, int32_t col)
{
    uint32_t panel = mok_cuda_warp() * MOK_GEMM_PANEL_BYTES;
    uint32_t g_panel = mok_hw_shared_address(stage->a + panel), u_panel = mok_hw_shared_address(stage->b + panel);
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        if (act->clamps) {
            mok_cuda_derive_half_chunk(act, 1, g_panel, u_panel, half, dh, rows);
        } else {
            mok_cuda_derive_half_chunk(act, 0, g_panel, u_panel, half, dh, rows);
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            dh[i] = dh[i + 16];
        }
    }
    if (rows->real < MOK_GEMM_WARP_ROWS) {
        mok_cuda_zero_padding(stage, panel, rows->real);
    }
    mok_hw_fence_async_shared_cta();
    __syncwarp();
    if (mok_hw_elect()) {
        mok_hw_tma_store_2d(&args->dg.map, stage->a + panel, col, row);
        mok_hw_tma_store_2d(&args->du.map, stage->b + panel, col, row);
        mok_hw_tma_store_2d(&args->wh.map, stage->b + MOK_GEMM_A_BYTES + panel, col, row);
        mok_hw_bulk_commit();
    }
}

/* Releases a stage once the stores of its chunk have read it: all chunks but the newest, or all. All lanes ask, and the one that the stores belong to
 * has to wait. */
template <typename TILE> MOK_DEVICE void mok_cuda_release_chunk(struct mok_worker<TILE> *worker, uint32_t idx, int newest_too)
{
    if (newest_too) {
        mok_hw_bulk_wait_read_0();
    } else {
        mok_hw_bulk_wait_read_1();
    }
    __syncwarp();
    mok_cuda_release_stage<TILE>(worker, idx);
}

/* The four threads of a row add up their columns in a fixed order; one of them writes. */
MOK_DEVICE void mok_cuda_store_dw(const struct mok_dgrad_down_kernel_args *args, const struct mok_gemm_tile *tile, const struct mok_dgrad_rows *rows)
{
    int32_t warp_row = (int32_t)mok_cuda_warp() * MOK_GEMM_WARP_ROWS;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int32_t row = threadIdx.x % 32 / 4 + 8 * half;
        float sum = rows->dw[half];
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
        if (threadIdx.x % 4 == 0 && row < rows->real) {
            args->dw_partial[(int64_t)(tile->row + warp_row + row) * args->walk.num_cols + tile->col_tile] = sum;
        }
    }
}

/* What this thread needs of its rows in the tile, whose row 0 has weight w[0]. */
MOK_DEVICE struct mok_dgrad_rows mok_cuda_open_dgrad_rows(const float *w, const struct mok_gemm_tile *tile)
{
    const int32_t warp_row = (int32_t)mok_cuda_warp() * MOK_GEMM_WARP_ROWS, first = warp_row + threadIdx.x % 32 / 4;
    struct mok_dgrad_rows rows = {{0, 0}, {0, 0}, tile->rows - warp_row};
#pragma unroll
    for (int half = 0; half < 2; half++) { /* past L1: the fused kernel writes them while it runs */
        if (first + 8 * half < tile->rows) {
            rows.w[half] = __uint_as_float(mok_hw_load_relaxed_gpu((const uint32_t *)w + first + 8 * half));
        }
    }
    return rows;
}

/* All chunks of the tile and its sums of dw. Returns the stage of the last chunk, which is not released yet. The chunks and their halves are turns of
 * loops, and dh is used from the front, what is behind moves up: four chunks one behind the other have 90 KB of code, and waited for it a sixth of their
 * time; with whole chunks as turns, 12 KB, it was still a third of the time that finishing takes. */
template <typename TILE>
MOK_DEVICE uint32_t mok_cuda_derive_tile(const struct mok_dgrad_down_kernel_args *args, struct mok_worker<TILE> *worker, float *acc,
                                         const struct mok_gemm_tile *tile, struct mok_dgrad_rows *rows)
{
    const struct mok_gemm_activation act = args->activation; /* in registers: args may be one of several */
    int32_t warp_row = (int32_t)mok_cuda_warp() * MOK_GEMM_WARP_ROWS;
    uint32_t behind = worker->stage.idx;
#pragma unroll 1
    for (int chunk = 0; chunk < MOK_DGRAD_DOWN_CHUNKS; chunk++) {
        mok_cuda_await_stage<TILE>(worker);
        mok_cuda_derive_chunk(args, &act, &worker->shared->stage[worker->stage.idx], acc, rows, tile->row + warp_row,
                              tile->col + chunk * MOK_PANEL_COLS);
        if (chunk > 0) {
            mok_cuda_release_chunk<TILE>(worker, behind, 0);
        }
        behind = worker->stage.idx;
        mok_cuda_advance<TILE>(&worker->stage);
#pragma unroll
        for (int i = 0; i + 32 < 128; i++) {
            acc[i] = acc[i + 32];
        }
    }
    mok_cuda_store_dw(args, tile, rows);
    return behind;
}

/* Finishes the tile and takes the next; returns 0 at the end of the tiles. */
template <typename TILE>
MOK_DEVICE int mok_cuda_finish_dgrad_down(const struct mok_dgrad_down_kernel_args *args, struct mok_worker<TILE> *worker, float *acc,
                                          const struct mok_gemm_tile *tile, struct mok_gemm_tile *next_out)
{
    struct mok_dgrad_rows rows = mok_cuda_open_dgrad_rows(args->w + tile->row, tile);
    uint32_t behind = mok_cuda_derive_tile<TILE>(args, worker, acc, tile, &rows);
    int more = mok_cuda_take_tile<TILE>(worker, next_out); /* the loader has loaded all of this tile */
    mok_cuda_release_chunk<TILE>(worker, behind, 1);
    return more;
}

#endif
