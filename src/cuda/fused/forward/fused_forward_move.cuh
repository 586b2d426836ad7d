/*
 * The mover of a CTA in a forward pass: carries out shares of the steps of mok_walk_step, moves rows as fused/fused_move.cuh does.
 *
 *   pull   source's row [T, H] -> x of the padded row: in the saved object where it is kept, else in the ring; zeros in kept padding rows
 *          up to the expert's next multiple of 64 (they are contracted in backward)
 *
 * There is no other kind of step: down tiles push their rows (fused/forward/fused_forward_push.cuh; walk.pushes_rows).
 * A step is announced when the first loads of the next one are under way.
 */
#ifndef MOK_CUDA_FUSED_FORWARD_MOVE_CUH
#define MOK_CUDA_FUSED_FORWARD_MOVE_CUH

#include "cuda/fused/fused_move.cuh"

/* Rows of a step. */
MOK_DEVICE void mok_fused_fill_job(const struct mok_fused_args *args, const struct mok_walk *walk, const struct mok_step *step,
                                   struct mok_fused_job *job)
{
    job->first = step->minibatch * walk->mb_tiles * MOK_TILE_ROWS;
    job->ring_first = step->minibatch % walk->ring.num_places * walk->mb_tiles * MOK_TILE_ROWS;
    job->num_rows = mok_walk_minibatch_tiles(walk, step->minibatch) * MOK_TILE_ROWS;
    job->ring = args->x_ring;
    job->kept = args->x_saved;
    job->remote_off = args->x_off;
    job->zeroes_ring = 0;
}

/* Whether the next step may begin at once. */
MOK_DEVICE int mok_fused_is_place_free(const struct mok_fused_args *args, const struct mok_walk *walk, const struct mok_step *step)
{
    if (mok_walk_pull_num_waits(walk, step->minibatch) > 0) {
        struct mok_wait wait = mok_walk_pull_wait(walk, step->minibatch);
        return __all_sync(0xffffffffu, (int)(mok_hw_load_acquire_gpu(args->counters + mok_fused_counter_word(args, &wait)) >= wait.target));
    }
    return 1;
}

/* One warp. A share is announced when the first loads of the next are under way, or at once when that one would have to wait. */
MOK_DEVICE void mok_fused_forward_move(const struct mok_fused_args *args, mok_fused_shared *shared)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    struct mok_fused_share share = mok_fused_take_share(args, walk);
    int is_wide = mok_fused_is_wide(args, &share);
    struct mok_fused_pipe pipe = mok_fused_open_pipe(args, shared, is_wide);
    struct mok_fused_landing landing = {-1, 0, 0};
    mok_hw_fence_async(); /* what peers wrote before the ENTRY barrier, for the copy engine */
    while (pipe.alive) {
        int changes = is_wide != mok_fused_is_wide(args, &share);
        if (landing.counter >= 0 &&
            (share.step.kind == MOK_STEP_NONE || changes || !mok_fused_is_place_free(args, walk, &share.step))) {
            mok_fused_land(args, shared, &landing);
        }
        if (share.step.kind == MOK_STEP_NONE) {
            break;
        }
        if (changes) {
            is_wide = 0;
            pipe = mok_fused_open_pipe(args, shared, 0);
        }
        pipe.alive = mok_fused_wait_place(args, walk, &share.step, &shared->lanes);
        __syncwarp(); /* nobody reads the job before: a share without rows meets nowhere else */
        if (mok_fused_lane() == 0) {
            mok_fused_fill_job(args, walk, &share.step, &shared->job);
        }
        __syncwarp();
        uint64_t since = mok_fused_trace_now(&args->trace);
        mok_fused_carry_job(args, shared, &pipe, MOK_STEP_PULL, share.worker, &landing);
        struct mok_wait signal = mok_walk_step_signal(&share.step);
        landing.counter = mok_fused_counter_word(args, &signal);
        landing.minibatch = share.step.minibatch;
        landing.since = since;
        share = mok_fused_take_share(args, walk);
    }
    if (!pipe.alive) { /* what is not whole is not announced */
        landing.counter = -1;
        mok_fused_land(args, shared, &landing);
    }
    if (mok_fused_lane() == 0) {
        mok_fused_trace_close(&args->trace, &shared->lanes, MOK_LANE_MOVE);
    }
}

#endif
