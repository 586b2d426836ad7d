/*
 * The scout of a cluster: takes units from the rank's list, waits until the inputs of all their tasks are complete, and hands each CTA its
 * tile. It alone decides that there are no more (the list's end, or an abort), so that the CTAs of a cluster always run the same steps.
 *
 * A unit is made ready while the one before stands in the queue: finding out about a tile is a chain of loads from L2, several
 * microseconds, as long as a short product. A lane for each CTA, so that their chains run side by side.
 */
#ifndef MOK_CUDA_FUSED_FORWARD_SCOUT_CUH
#define MOK_CUDA_FUSED_FORWARD_SCOUT_CUH

#include "cuda/fused/forward/fused_forward_walk.h"
#include "cuda/fused/fused_counter.cuh"
#include "cuda/fused/fused_shared.cuh"

/* Row of the ring at which a row tile stands. */
MOK_DEVICE int32_t mok_fused_ring_row(const struct mok_walk *walk, int32_t minibatch, int32_t row_tile)
{
    int32_t tile = row_tile - minibatch * walk->mb_tiles;
    return (minibatch % walk->ring.num_places * walk->mb_tiles + tile) * MOK_TILE_ROWS;
}

MOK_DEVICE void mok_fused_place_shared_tile(const struct mok_fused_args *args, const struct mok_walk *walk, const struct mok_task *task,
                                            struct mok_fused_tile *tile)
{
    int down = task->kind == MOK_TASK_SHARED_DOWN;
    tile->gemm = down ? MOK_FUSED_SHARED_DOWN : MOK_FUSED_SHARED_GATE_UP;
    tile->expert = 0;
    tile->row = task->row_tile * MOK_TILE_ROWS;
    tile->rows = walk->schedule.head->num_tokens - tile->row;
    tile->keep_row = !down && args->keeps_shared ? tile->row : -1;
}

MOK_DEVICE void mok_fused_place_routed_tile(const struct mok_walk *walk, const struct mok_task *task, struct mok_fused_tile *tile)
{
    int down = task->kind == MOK_TASK_DOWN;
    int32_t first = task->row_tile * MOK_TILE_ROWS;
    tile->gemm = down ? MOK_FUSED_DOWN : MOK_FUSED_GATE_UP;
    tile->expert = task->expert;
    tile->row = mok_fused_ring_row(walk, task->minibatch, task->row_tile);
    tile->rows = walk->schedule.expert_first[task->expert] + walk->schedule.expert_rows[task->expert] - first;
    tile->keep_row = !down && mok_walk_is_kept(walk, task->row_tile) ? first : -1;
}

/* Waits for the input of CTA `cta`'s task in the unit, fills its tile but for shares_b. Returns 0 when nothing may start any more. */
MOK_DEVICE int mok_fused_prepare_tile(const struct mok_fused_args *args, const struct mok_fused_walk *walk,
                                      const struct mok_fused_unit *unit, int32_t cta, struct mok_fused_lanes *lanes,
                                      struct mok_fused_tile *tile)
{
    struct mok_task task;
    int exists = mok_fused_unit_task(walk, unit, cta, &task);
    if (task.kind == MOK_TASK_SHARED_GATE_UP || task.kind == MOK_TASK_SHARED_DOWN) {
        mok_fused_place_shared_tile(args, &walk->tiles, &task, tile);
    } else {
        mok_fused_place_routed_tile(&walk->tiles, &task, tile);
    }
    struct mok_wait signal = mok_walk_task_signal(&walk->tiles, &task, 0);
    tile->valid = 1;
    tile->row_tile = task.row_tile;
    tile->col = task.col_tile * args->gemm[tile->gemm].tile_cols;
    tile->rows = exists ? min(tile->rows, (int32_t)MOK_TILE_ROWS) : 0;
    tile->counter = exists ? mok_fused_counter_word(args, &signal) : -1;
    if (exists && mok_walk_task_num_waits(&walk->tiles, &task) > 0) {
        struct mok_wait wait = mok_walk_task_wait(&walk->tiles, &task, 0);
        uint64_t since = mok_fused_trace_now(&args->trace);
        if (!mok_fused_wait_counter(args, &wait)) {
            return 0;
        }
        if (cta == 0) {
            mok_fused_trace_add(&args->trace, lanes, MOK_LANE_SCOUT, mok_fused_wait_kind(&wait), wait.index, since);
        }
    }
    return 1;
}

/* Writes the tile of CTA `cta`. */
MOK_DEVICE void mok_fused_write_tile(mok_fused_shared *shared, uint32_t cta, const struct mok_fused_tile *tile)
{
    const int32_t *words = (const int32_t *)tile;
    uint32_t to = mok_hw_cluster_address(&shared->tile, cta);
#pragma unroll
    for (int i = 0; i < MOK_FUSED_TILE_WORDS; i++) {
        mok_hw_cluster_store(to + 4 * i, (uint32_t)words[i]);
    }
}

/* A unit for all CTAs of the cluster, prepared by lane `cta` for each: all of them, or (returns 0) none. */
MOK_DEVICE int mok_fused_prepare_unit(const struct mok_fused_args *args, mok_fused_shared *shared, int32_t lane, struct mok_fused_tile *tile)
{
    const int span = mok_tile_fused::CLUSTER;
    uint32_t idx = 0;
    if (lane == 0) {
        idx = mok_hw_take_relaxed_gpu(&args->state->next_unit, 1);
    }
    struct mok_fused_unit unit = mok_fused_unit_at(&shared->walk, __shfl_sync(0xffffffffu, idx, 0));
    int valid = unit.task.kind != MOK_TASK_NONE;
    if (valid && lane < span) {
        valid = mok_fused_prepare_tile(args, &shared->walk, &unit, lane, &shared->lanes, tile);
    }
    valid = __all_sync(0xffffffffu, valid);
    int32_t expert = valid ? tile->expert : -1;
    tile->shares_b = valid && span > 1 && __shfl_sync(0xffffffffu, expert, 0) == __shfl_sync(0xffffffffu, expert, span - 1);
    return valid;
}

/* One warp; lane `cta` is for that CTA of the cluster. works: 0 = this cluster has no part in the products. */
MOK_DEVICE void mok_fused_forward_scout(const struct mok_fused_args *args, mok_fused_shared *shared, int works)
{
    const int span = mok_tile_fused::CLUSTER;
    int32_t lane = (int32_t)threadIdx.x % 32;
    struct mok_fused_tile tile;
    tile.expert = 0;
    for (uint32_t parity = 1;; parity ^= 1) {
        tile.valid = works && mok_fused_prepare_unit(args, shared, lane, &tile);
        if (lane < span) {
            uint64_t since = mok_fused_trace_now(&args->trace);
            mok_fused_wait_queue(args, &shared->tile_empty, parity);
            if (lane == 0) {
                mok_fused_trace_add(&args->trace, &shared->lanes, MOK_LANE_SCOUT, MOK_EVENT_WAIT + MOK_SITE_QUEUE, 0, since);
            }
            mok_fused_write_tile(shared, (uint32_t)lane, &tile);
            mok_hw_mbarrier_arrive_release_cluster(mok_hw_cluster_address(&shared->tile_full, (uint32_t)lane));
        }
        __syncwarp();
        if (!tile.valid) {
            break;
        }
    }
    if (lane == 0) {
        mok_fused_trace_close(&args->trace, &shared->lanes, MOK_LANE_SCOUT);
    }
}

#endif
