/*
 * The loader of a CTA: takes tiles from the queue and loads their operands into the stages, step by step.
 */
#ifndef MOK_CUDA_FUSED_LOAD_CUH
#define MOK_CUDA_FUSED_LOAD_CUH

#include "cuda/fused/fused_shared.cuh"
#include "cuda/hw/scope.cuh"

/* Half `half` (128 columns) of the B operand; the CTAs of a cluster share it when the tile says so. */
MOK_DEVICE void mok_fused_load_half(const struct mok_fused_tile *tile, uint32_t half, struct mok_stage *stage, const CUtensorMap *map,
                                    uint64_t *full, int32_t k, int32_t col)
{
    uint8_t *to = stage->b + half * (MOK_GEMM_B_BYTES / 2);
    if (mok_tile_fused::CLUSTER == 1 || !tile->shares_b) {
        mok_hw_tma_load_3d(to, map, full, k, col, tile->expert);
    } else if (mok_hw_cluster_cta() == half) {
        mok_hw_tma_load_3d_cluster(to, map, full, 3, k, col, tile->expert);
    }
}

/* The steps of one tile. An empty place of a unit loads its share of B alone. */
MOK_DEVICE void mok_fused_load_tile(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_stage_cursor *cursor,
                                    const struct mok_fused_tile *tile)
{
    const struct mok_fused_gemm *gemm = &args->gemm[tile->gemm];
    int from_kept = tile->gemm == MOK_FUSED_GATE_UP && tile->keep_row >= 0;
    const CUtensorMap *a = from_kept ? &args->x_kept : &gemm->a;
    int32_t a_row = from_kept ? tile->keep_row : tile->row;
    int32_t num_steps = gemm->num_steps;
    uint32_t bytes = tile->rows > 0 ? MOK_GEMM_STEP_BYTES : MOK_GEMM_B_BYTES;
    for (int32_t step = 0; step < num_steps; step++) {
        struct mok_stage *stage = &shared->stage[cursor->idx];
        uint64_t *full = &shared->full[cursor->idx];
        int32_t k = step * MOK_GEMM_DEPTH;
        if (step == max(0, num_steps - (int32_t)MOK_FUSED_SCOUT_AHEAD)) {
            mok_fused_release_tile(shared);
        }
        mok_cuda_begin_stage<mok_tile_fused>(shared, cursor, bytes, args->wait_limit_ns);
        if (tile->rows > 0) {
            mok_hw_tma_load_2d(stage->a, a, full, k, a_row);
        }
        mok_fused_load_half(tile, 0, stage, &gemm->b[0], full, k, tile->col);
        mok_fused_load_half(tile, 1, stage, &gemm->b[1], full, k, tile->col + gemm->half_cols);
        mok_cuda_advance<mok_tile_fused>(cursor);
    }
}

/* One thread. */
MOK_DEVICE void mok_fused_load(const struct mok_fused_args *args, mok_fused_shared *shared)
{
    struct mok_stage_cursor cursor = {0, 0};
    for (uint32_t parity = 0;; parity ^= 1) {
        uint64_t since = mok_fused_trace_now(&args->trace);
        mok_fused_wait_queue(args, &shared->tile_full, parity);
        struct mok_fused_tile tile = shared->tile;
        if (!tile.valid) {
            break;
        }
        mok_fused_trace_add(&args->trace, &shared->lanes, MOK_LANE_LOAD, MOK_EVENT_WAIT + MOK_SITE_QUEUE, 0, since);
        since = mok_fused_trace_now(&args->trace);
        mok_hw_fence_async(); /* what the scout's wait acquired, for the copy engine */
        mok_fused_load_tile(args, shared, &cursor, &tile);
        mok_fused_trace_add(&args->trace, &shared->lanes, MOK_LANE_LOAD, mok_fused_task_kind(tile.gemm), tile.row_tile, since);
    }
    mok_fused_trace_close(&args->trace, &shared->lanes, MOK_LANE_LOAD);
}

#endif
