/*
 * The loader of a CTA in a forward pass: takes tiles from the queue and loads their operands into the stages, step by step. In: x or h, weights;
 * out: shared->stage, for the multiplying warps.
 */
#ifndef MOK_CUDA_FUSED_FORWARD_LOAD_CUH
#define MOK_CUDA_FUSED_FORWARD_LOAD_CUH

#include "cuda/fused/fused_load_steps.cuh"

MOK_DEVICE void mok_fused_load_tile(const struct mok_fused_args *args, struct mok_fused_loader *loader, const struct mok_fused_tile *tile)
{
    const struct mok_fused_gemm *gemm = &args->gemm[tile->gemm];
    int from_kept = tile->gemm == MOK_FUSED_GATE_UP && tile->keep_row >= 0;
    struct mok_fused_run run = {.a = from_kept ? &args->x_kept : &gemm->a,
                                .b = {&gemm->b[0], &gemm->b[1]},
                                .num_steps = gemm->num_steps,
                                .a_first = 0,
                                .b_first = 0,
                                .a_across = from_kept ? tile->keep_row : tile->row,
                                .b_across = {tile->col, tile->col + gemm->half_cols},
                                .expert = tile->expert,
                                .loads_a = tile->rows > 0,
                                .shares_b = tile->shares_b};
    loader->left = run.num_steps;
    if (loader->left < MOK_FUSED_SCOUT_AHEAD && (MOK_LANES_ARRIVE || mok_hw_elect())) {
        mok_fused_release_tile(loader->shared);
    }
    mok_fused_load_steps<MOK_FUSED_K_MAJOR>(loader, &run);
}

/* One warp. */
MOK_DEVICE void mok_fused_forward_load(const struct mok_fused_args *args, mok_fused_shared *shared)
{
    struct mok_fused_loader loader = {shared, {0, 0}, args->wait_limit_ns, 0};
    for (uint32_t parity = 0;; parity ^= 1) {
        uint64_t since = mok_fused_trace_now(&args->trace);
        mok_fused_wait_queue(args, &shared->tile_full, parity);
        struct mok_fused_tile tile;
#pragma unroll
        for (int i = 0; i < MOK_FUSED_TILE_WORDS; i++) {
            ((int32_t *)&tile)[i] = mok_fused_uniform(((const int32_t *)&shared->tile)[i]);
        }
        if (!tile.valid) {
            break;
        }
        if (threadIdx.x % 32 == 0) {
            mok_fused_trace_add(&args->trace, &shared->lanes, MOK_LANE_LOAD, MOK_EVENT_WAIT + MOK_SITE_QUEUE, 0, since);
        }
        __syncwarp();
        since = mok_fused_trace_now(&args->trace);
        mok_hw_fence_async(); /* what the scout's wait acquired, for the copy engine */
        mok_fused_load_tile(args, &loader, &tile);
        if (threadIdx.x % 32 == 0) {
            mok_fused_trace_add(&args->trace, &shared->lanes, MOK_LANE_LOAD, mok_fused_task_kind(tile.gemm), tile.row_tile, since);
        }
        __syncwarp();
    }
    if (threadIdx.x % 32 == 0) {
        mok_fused_trace_close(&args->trace, &shared->lanes, MOK_LANE_LOAD);
    }
}

#endif
