/*
 * The mover of a CTA in a backward pass: carries out shares of the steps of mok_walk_step, moves rows as fused/fused_move.cuh does.
 *
 *   pull   source's dy [T, H] -> dy of the padded row in the ring, and its w; x again for rows that are not kept. Zeros in padding rows up to
 *          the expert's next multiple of 64: weight gradients contract them
 *   push   dx of the padded row -> the source's slot, and dw: its partial sums, added in tile order. Row tile after row tile behind e_done
 *
 * Words (w, dw) go in groups of 32 rows, one a lane; those of a share's first group are loaded while the rows are on their way.
 */
#ifndef MOK_CUDA_FUSED_BACKWARD_MOVE_CUH
#define MOK_CUDA_FUSED_BACKWARD_MOVE_CUH

#include "cuda/fused/backward/fused_backward_args.h"
#include "cuda/fused/fused_move.cuh"

/* Rows of a step, for shared->job. skip: rows in front that are not moved. */
MOK_DEVICE void mok_fused_fill_stream(const struct mok_walk *walk, const struct mok_step *step, int32_t skip, char *ring, int64_t remote_off,
                                      struct mok_fused_job *job)
{
    job->zeroes_ring = 1;
    job->first = step->minibatch * walk->mb_tiles * MOK_TILE_ROWS + skip;
    job->ring_first = step->minibatch % walk->ring.num_places * walk->mb_tiles * MOK_TILE_ROWS + skip;
    job->num_rows = mok_walk_minibatch_tiles(walk, step->minibatch) * MOK_TILE_ROWS - skip;
    job->ring = ring;
    job->kept = NULL;
    job->remote_off = remote_off;
}

/* Share `worker` of the rows, with nothing before; all that it has stored has landed behind it. kind: of the step, a constant. */
MOK_DEVICE void mok_fused_do_stream(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pipe *pipe,
                                    const struct mok_step *step, int kind, int32_t skip, char *ring, int64_t remote_off, int32_t worker)
{
    struct mok_fused_landing landing = {-1, 0, 0};
    __syncwarp(); /* nobody reads the job before */
    if (mok_fused_lane() == 0) {
        mok_fused_fill_stream(&shared->walk.tiles, step, skip, ring, remote_off, &shared->job);
    }
    __syncwarp();
    mok_fused_carry_job(args, shared, pipe, kind, worker, &landing);
    mok_fused_land(args, shared, &landing);
}

/* w of a padded row; 0 for padding. */
MOK_DEVICE uint32_t mok_fused_fetch_w(const struct mok_fused_backward_args *args, const struct mok_walk *walk, int32_t row)
{
    struct mok_route route = walk->schedule.routes[row];
    return route.rank < 0 ? 0
                          : mok_hw_load_relaxed_sys((const uint32_t *)(args->pass.watch.base[route.rank] + args->w_off) + route.slot);
}

MOK_DEVICE void mok_fused_pull_step(const struct mok_fused_backward_args *args, mok_fused_shared *shared, struct mok_fused_pipe *pipe,
                                    const struct mok_step *step, int32_t worker)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    int32_t first = step->minibatch * walk->mb_tiles * MOK_TILE_ROWS, num_rows = mok_walk_minibatch_tiles(walk, step->minibatch) * MOK_TILE_ROWS;
    int32_t inside = worker * MOK_FUSED_WARP + mok_fused_lane(), kept = min(max(args->kept_rows - first, 0), num_rows);
    float *to = args->w_ring + step->minibatch % walk->ring.num_places * walk->mb_tiles * MOK_TILE_ROWS;
    uint32_t w = inside < num_rows ? mok_fused_fetch_w(args, walk, first + inside) : 0;
    mok_fused_do_stream(&args->pass, shared, pipe, step, MOK_STEP_PULL, 0, args->dy_ring, args->dy_off, worker);
    if (kept < num_rows && pipe->alive) {
        mok_fused_do_stream(&args->pass, shared, pipe, step, MOK_STEP_PULL, kept, args->pass.x_ring, args->pass.x_off, worker);
    }
    while (inside < num_rows) {
        to[inside] = __uint_as_float(w);
        inside += walk->num_comm * MOK_FUSED_WARP;
        w = inside < num_rows ? mok_fused_fetch_w(args, walk, first + inside) : 0;
    }
    mok_hw_fence_async();
    __syncwarp();
}

/* dw of a padded row: its partial sums in tile order. */
MOK_DEVICE float mok_fused_sum_dw(const struct mok_dgrad_down_kernel_args *dgrad_down, int32_t ring_row)
{
    const int32_t num = dgrad_down->walk.num_cols;
    const uint32_t *partial = (const uint32_t *)dgrad_down->dw_partial + (int64_t)ring_row * num;
    float sum = __uint_as_float(mok_hw_load_relaxed_gpu(partial));
    for (int32_t i = 1; i < num; i++) {
        sum = __fadd_rn(sum, __uint_as_float(mok_hw_load_relaxed_gpu(partial + i)));
    }
    return sum;
}

MOK_DEVICE void mok_fused_push_step(const struct mok_fused_backward_args *args, mok_fused_shared *shared, struct mok_fused_pipe *pipe,
                                    const struct mok_step *step, int32_t worker)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    struct mok_fused_ready ready = {0, 0};
    mok_fused_do_stream(&args->pass, shared, pipe, step, MOK_STEP_PUSH, 0, args->pass.y_ring, args->pass.slots_off, worker);
    int32_t first = shared->job.first, num_rows = shared->job.num_rows;
    for (int32_t inside = worker * MOK_FUSED_WARP; inside < num_rows && pipe->alive; inside += walk->num_comm * MOK_FUSED_WARP) {
        int32_t mine = inside + mok_fused_lane();
        struct mok_route route = walk->schedule.routes[first + mine];
        pipe->alive = mok_fused_wait_tile(&args->pass, walk, (first + inside) / MOK_TILE_ROWS, (first + num_rows) / MOK_TILE_ROWS,
                                          &shared->lanes, &ready);
        if (pipe->alive && route.rank >= 0) {
            float sum = mok_fused_sum_dw(&args->dgrad_down[MOK_FUSED_ROUTED], shared->job.ring_first + mine);
            mok_hw_store_relaxed_sys((uint32_t *)(args->pass.watch.base[route.rank] + args->slot_dw_off) + route.slot, __float_as_uint(sum));
        }
    }
    __syncwarp();
}

/* One warp. Shares of steps are taken as in a forward pass. */
MOK_DEVICE void mok_fused_backward_move(const struct mok_fused_backward_args *args, mok_fused_shared *shared)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    struct mok_fused_share share = mok_fused_take_share(&args->pass, walk);
    int is_wide = mok_fused_is_wide(&args->pass, &share);
    struct mok_fused_pipe pipe = mok_fused_open_pipe(&args->pass, shared, is_wide);
    mok_hw_fence_async(); /* what peers wrote before the ENTRY barrier, for the copy engine */
    while (pipe.alive && share.step.kind != MOK_STEP_NONE) {
        if (is_wide != mok_fused_is_wide(&args->pass, &share)) {
            is_wide = 0;
            pipe = mok_fused_open_pipe(&args->pass, shared, 0);
        }
        pipe.alive = mok_fused_wait_place(&args->pass, walk, &share.step, &shared->lanes);
        uint64_t since = mok_fused_trace_now(&args->pass.trace);
        if (pipe.alive && share.step.kind == MOK_STEP_PULL) {
            mok_fused_pull_step(args, shared, &pipe, &share.step, share.worker);
        } else if (pipe.alive) {
            mok_fused_push_step(args, shared, &pipe, &share.step, share.worker);
        }
        if (pipe.alive && mok_fused_lane() == 0) {
            struct mok_wait signal = mok_walk_step_signal(&share.step);
            mok_fused_announce(&args->pass, mok_fused_counter_word(&args->pass, &signal));
            mok_fused_trace_add(&args->pass.trace, &shared->lanes, MOK_LANE_MOVE,
                                share.step.kind == MOK_STEP_PULL ? MOK_EVENT_PULL : MOK_EVENT_PUSH, share.step.minibatch, since);
        }
        share = mok_fused_take_share(&args->pass, walk);
    }
    if (mok_fused_lane() == 0) {
        mok_fused_trace_close(&args->pass.trace, &shared->lanes, MOK_LANE_MOVE);
    }
    mok_hw_fence_sys(); /* the EXIT barrier announces the pushed rows */
}

#endif
