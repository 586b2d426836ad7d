/*
 * A multiplying warpgroup of the fused forward kernel: takes tiles from the queue, runs their steps, finishes each during the next one. In: the operand
 * stages; out: h, y, kept g and u (fused/forward/fused_forward_finish.cuh).
 */
#ifndef MOK_CUDA_FUSED_FORWARD_MULTIPLY_CUH
#define MOK_CUDA_FUSED_FORWARD_MULTIPLY_CUH

#include "cuda/fused/forward/fused_forward_finish.cuh"

/* The steps of a tile; the pending one is finished beside. num_steps 0: nothing to multiply, it is finished alone. A tile of fewer steps than there are
 * pieces has them evenly among the pieces, so that none is left to be made beside nothing. */
MOK_DEVICE void mok_fused_run_steps(const struct mok_fused_args *args, mok_fused_worker *worker, float *acc, int32_t num_steps,
                                    struct mok_fused_pending *pending)
{
    uint32_t behind = worker->stage.idx;
    const int32_t among = min(num_steps, (int32_t)mok_tile_fused::DEFERRED);
    int32_t due = 0; /* 1/DEFERRED steps */
    if (num_steps > 0) {
        mok_cuda_issue_step<mok_tile_fused>(worker, acc, 1);
    }
#pragma unroll
    for (int piece = 0; piece < mok_tile_fused::DEFERRED; piece++) {
        int is_due = piece > 0 && (due += among) >= (int32_t)mok_tile_fused::DEFERRED;
        if (is_due) {
            due -= mok_tile_fused::DEFERRED;
            mok_cuda_issue_step<mok_tile_fused>(worker, acc, 0);
        }
        mok_fused_finish_piece(args, worker->shared, pending, piece);
        if (is_due) {
            mok_cuda_retire_step<mok_tile_fused>(worker, &behind);
        }
    }
    for (int32_t step = mok_tile_fused::DEFERRED; step < num_steps; step++) {
        mok_cuda_issue_step<mok_tile_fused>(worker, acc, 0);
        if (step == MOK_FUSED_GATE_UP_ANNOUNCED) {
            mok_fused_announce_tile(args, worker->shared, pending);
        }
        mok_cuda_retire_step<mok_tile_fused>(worker, &behind);
    }
    mok_hw_wgmma_wait_0();
    mok_hw_wgmma_hold(acc);
    if (num_steps > 0) {
        mok_cuda_release_stage<mok_tile_fused>(worker, behind);
    }
    pending->rows = 0;
    mok_fused_announce_tile(args, worker->shared, pending);
}

/* One thread for all that multiply: waiting is over; `tile` begins, or there are no more. */
MOK_DEVICE void mok_fused_trace_begin_task(const struct mok_fused_trace *trace, struct mok_fused_lanes *lanes,
                                           const struct mok_fused_tile *tile)
{
    mok_fused_trace_add(trace, lanes, MOK_LANE_MULTIPLY, MOK_EVENT_WAIT + MOK_SITE_QUEUE, 0, lanes->task_begin);
    lanes->task_begin = mok_hw_time_ns();
    lanes->task_kind = tile->valid ? mok_fused_task_kind(tile->gemm) : -1;
    lanes->task_idx = tile->row_tile;
    if (!tile->valid) {
        mok_fused_trace_close(trace, lanes, MOK_LANE_MULTIPLY);
    }
}

/* Takes the tile in the queue, which is there, or is waited for. */
MOK_DEVICE void mok_fused_take_tile(const struct mok_fused_args *args, mok_fused_worker *worker, struct mok_fused_tile *tile_out)
{
    mok_fused_shared *shared = worker->shared;
    mok_fused_wait_queue(args, &shared->tile_full, worker->queue.parity);
    if (args->trace.events != NULL && threadIdx.x == 0) {
        mok_fused_trace_begin_task(&args->trace, &shared->lanes, &shared->tile);
    }
    *tile_out = shared->tile;
    __syncwarp();
    if (MOK_LANES_ARRIVE || threadIdx.x % 32 == 0) {
        mok_fused_release_tile(shared);
    }
    worker->queue.parity ^= 1;
    /* What branches depend on is made known as equal in all lanes. */
    tile_out->valid = __shfl_sync(0xffffffffu, tile_out->valid, 0);
    tile_out->rows = __shfl_sync(0xffffffffu, tile_out->rows, 0);
    tile_out->gemm = __shfl_sync(0xffffffffu, tile_out->gemm, 0);
}

/* Whether the next tile is there and has steps for this warpgroup: then the pending one is finished beside them. */
MOK_DEVICE int mok_fused_has_steps(mok_fused_worker *worker)
{
    const mok_fused_shared *shared = worker->shared;
    int has_steps = mok_hw_mbarrier_try_wait_acquire_cluster(&worker->shared->tile_full, worker->queue.parity) && shared->tile.valid &&
                    shared->tile.rows > (int32_t)worker->warpgroup * MOK_GEMM_GROUP_ROWS;
    return __shfl_sync(0xffffffffu, has_steps, 0);
}

/*
 * The pending tile is finished alone when the next one is not there yet (it may wait for it), or has no steps for this warpgroup: a turn of
 * the loop without steps, so that the code of finishing stands here once. It is most of the kernel's code.
 */
MOK_DEVICE void mok_fused_forward_multiply(const struct mok_fused_args *args, mok_fused_shared *shared, uint32_t warpgroup)
{
    mok_fused_worker worker;
    struct mok_fused_pending pending;
    struct mok_fused_tile tile;
    worker.shared = shared;
    worker.stage.idx = worker.stage.parity = worker.queue.parity = 0;
    worker.warpgroup = warpgroup;
    worker.limit_ns = args->wait_limit_ns;
    pending.gemm = MOK_FUSED_DOWN;
    pending.rows = 0;
    pending.counter = -1;
    pending.turn = 0;
    for (;;) {
        int32_t num_steps = 0;
        if (args->trace.events != NULL && threadIdx.x == 0) {
            mok_fused_trace_end_task(&args->trace, &shared->lanes);
        }
        if (mok_fused_has_steps(&worker)) {
            mok_fused_take_tile(args, &worker, &tile);
            num_steps = args->gemm[tile.gemm].num_steps;
        }
        float acc[128];
        mok_fused_run_steps(args, &worker, acc, num_steps, &pending);
        if (num_steps > 0) {
            mok_fused_set_pending(&pending, acc, &tile);
            continue;
        }
        mok_fused_wait_queue(args, &shared->tile_full, worker.queue.parity);
        if (!mok_fused_has_steps(&worker)) {
            mok_fused_take_tile(args, &worker, &tile);
            if (!tile.valid) {
                break;
            }
            mok_cuda_skip_steps<mok_tile_fused>(&worker, args->gemm[tile.gemm].num_steps);
            mok_fused_set_pending(&pending, NULL, &tile);
        }
    }
    mok_cuda_close_panels();
}

#endif
