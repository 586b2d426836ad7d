/*
 * A multiplying warpgroup of the fused backward kernel: takes tiles from the queue and runs their steps, in the major orders of their
 * operands; finishes the tile before beside the first of them (fused/backward/fused_backward_finish.cuh). In: the operand stages; out: dg, du, w*h, dx, g and u made
 * again, weight gradients, partial sums of dw.
 */
#ifndef MOK_CUDA_FUSED_BACKWARD_MULTIPLY_CUH
#define MOK_CUDA_FUSED_BACKWARD_MULTIPLY_CUH

#include "cuda/fused/backward/fused_backward_finish.cuh"
#include "cuda/fused/backward/fused_backward_load.cuh"

/* num_steps >= 1 steps of a tile; the one before is announced beside and, if `stores` (a constant), stored: half a panel a step. Returns the stage of
 * the last step, which is still running. */
template <int A_MAJOR, int B_MAJOR>
MOK_DEVICE uint32_t mok_fused_run_majors(const struct mok_fused_backward_args *args, mok_fused_worker *worker, float *acc, int32_t num_steps,
                                     int stores, struct mok_fused_held *held)
{
    uint32_t behind = worker->stage.idx;
    int32_t step = 1;
    mok_cuda_issue_majors<mok_tile_fused, A_MAJOR, B_MAJOR>(worker, acc, 1);
    if (stores) {
#pragma unroll /* as a loop it spills */
        for (int32_t panel = 0; panel < MOK_FUSED_HELD_PANELS; panel++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (step < num_steps) { /* two steps are under way while the panel is written */
                    mok_cuda_issue_majors<mok_tile_fused, A_MAJOR, B_MAJOR>(worker, acc, 0);
                }
                if (panel == 0 && half == 0) {
                    mok_fused_release_held_chunk(worker, held, behind);
                }
                mok_fused_finish_held(args, worker->shared, held, panel, half);
                if (step < num_steps) {
                    mok_cuda_retire_step<mok_tile_fused>(worker, &behind);
                    step++;
                }
            }
            mok_fused_shift_held(held);
        }
    }
    for (; step < num_steps; step++) {
        mok_cuda_issue_majors<mok_tile_fused, A_MAJOR, B_MAJOR>(worker, acc, 0);
        if (step == MOK_FUSED_BACKWARD_LANDED) {
            mok_fused_announce_held(worker->shared, held, worker->limit_ns);
        }
        mok_cuda_retire_step<mok_tile_fused>(worker, &behind);
    }
    return behind;
}

/* The last step is through: the sums are complete. */
MOK_DEVICE void mok_fused_end_steps(mok_fused_worker *worker, float *acc, uint32_t behind, struct mok_fused_held *held)
{
    mok_hw_wgmma_wait_0();
    mok_hw_wgmma_hold(acc);
    mok_cuda_release_stage<mok_tile_fused>(worker, behind);
    mok_fused_announce_held(worker->shared, held, worker->limit_ns);
}

/* The tile in the queue is this warp's; it stands where it is, but the next may come into the queue. */
MOK_DEVICE void mok_fused_leave_queue(mok_fused_worker *worker, const struct mok_fused_held *held)
{
    mok_fused_await_told(worker->shared, held, worker->limit_ns);
    __syncwarp();
    if (MOK_LANES_ARRIVE || threadIdx.x % 32 == 0) {
        mok_fused_release_tile(worker->shared);
    }
    worker->queue.idx = (worker->queue.idx + 1) % MOK_FUSED_TURNS;
}

/* As mok_fused_trace_begin_task. */
MOK_DEVICE void mok_fused_trace_begin_backward(const struct mok_fused_trace *trace, struct mok_fused_lanes *lanes,
                                               const struct mok_fused_backward_tile *tile)
{
    mok_fused_trace_add(trace, lanes, MOK_LANE_MULTIPLY, MOK_EVENT_WAIT + MOK_SITE_QUEUE, 0, lanes->task_begin);
    lanes->task_begin = mok_hw_time_ns();
    lanes->task_kind = tile->gemm.valid ? MOK_EVENT_TASK + tile->kind : -1;
    lanes->task_idx = tile->gemm.expert;
    if (!tile->gemm.valid) {
        mok_fused_trace_close(trace, lanes, MOK_LANE_MULTIPLY);
    }
}

/* The next tile. The held one is finished first when the next is not there yet (it may wait for it), or has no steps for this warpgroup. */
MOK_DEVICE const struct mok_fused_backward_tile *mok_fused_take_backward(const struct mok_fused_backward_args *args, mok_fused_worker *worker,
                                                                         struct mok_fused_held *held)
{
    mok_fused_shared *shared = worker->shared;
    const struct mok_fused_backward_tile *tile = &shared->back[worker->queue.idx];
    int has_steps = mok_hw_mbarrier_try_wait_acquire_cluster(&shared->tile_full, worker->queue.idx & 1) && tile->gemm.valid &&
                    tile->gemm.rows > (int32_t)worker->warpgroup * MOK_GEMM_GROUP_ROWS &&
                    (!mok_fused_is_wgrad(tile->kind) || tile->gemm.num_rows > 0);
    if (args->pass.trace.events != NULL && threadIdx.x == 0) {
        mok_fused_trace_end_task(&args->pass.trace, &shared->lanes);
    }
    if (!__shfl_sync(0xffffffffu, has_steps, 0)) {
        mok_fused_release_held_chunk(worker, held, worker->stage.idx);
        mok_fused_store_held(args, shared, held);
        mok_fused_announce_held(shared, held, worker->limit_ns);
    }
    mok_fused_wait_queue(&args->pass, &shared->tile_full, worker->queue.idx & 1);
    if (args->pass.trace.events != NULL && threadIdx.x == 0) {
        mok_fused_trace_begin_backward(&args->pass.trace, &shared->lanes, tile);
    }
    mok_fused_leave_queue(worker, held);
    return tile;
}

MOK_DEVICE void mok_fused_multiply_again(const struct mok_fused_backward_args *args, mok_fused_worker *worker,
                                         const struct mok_fused_backward_tile *tile, struct mok_fused_held *held)
{
    float acc[128];
    int32_t num_steps = mok_fused_uniform(mok_fused_num_stages(args, tile));
    uint32_t behind = mok_fused_run_majors<MOK_HW_K_MAJOR, MOK_HW_K_MAJOR>(args, worker, acc, num_steps, 1, held);
    mok_fused_end_steps(worker, acc, behind, held);
    mok_fused_hold_tile(held);
    mok_fused_hold_sums(args, worker->shared, held, acc, tile);
}

/* D, E. */
MOK_DEVICE void mok_fused_multiply_dgrad(const struct mok_fused_backward_args *args, mok_fused_worker *worker,
                                         const struct mok_fused_backward_tile *tile, struct mok_fused_held *held)
{
    float acc[128];
    int is_down = mok_fused_uniform(tile->kind == MOK_TASK_DGRAD_DOWN || tile->kind == MOK_TASK_SHARED_DGRAD_DOWN);
    int32_t num_steps = mok_fused_uniform(mok_fused_num_stages(args, tile)) - (is_down ? MOK_DGRAD_DOWN_CHUNKS : 0);
    const struct mok_dgrad_down_kernel_args *down = &args->dgrad_down[mok_fused_is_shared(tile->kind)];
    struct mok_dgrad_rows rows = {{0, 0}, {0, 0}, 0};
    uint32_t behind = mok_fused_run_majors<MOK_HW_K_MAJOR, MOK_HW_MN_MAJOR>(args, worker, acc, num_steps, 1, held);
    if (is_down) { /* beside the last step */
        mok_fused_forget_words(held);
        rows = mok_cuda_open_dgrad_rows(down->w + tile->gemm.row, &tile->gemm);
    }
    mok_fused_end_steps(worker, acc, behind, held);
    mok_fused_hold_tile(held);
    if (is_down) {
        mok_cuda_derive_tile<mok_tile_fused>(down, worker, acc, &tile->gemm, &rows);
        held->is_open = MOK_FUSED_OPEN_CHUNK;
    } else {
        mok_fused_hold_sums(args, worker->shared, held, acc, tile);
    }
}

/* The next tile, if it is there already and is a weight gradient whose sums start from fp32 values; else NULL, and it is not taken. */
MOK_DEVICE const struct mok_fused_backward_tile *mok_fused_take_wgrad(const struct mok_fused_backward_args *args, mok_fused_worker *worker,
                                                                     const struct mok_fused_held *held)
{
    mok_fused_shared *shared = worker->shared;
    const struct mok_fused_backward_tile *tile = &shared->back[worker->queue.idx];
    int fits = mok_hw_mbarrier_try_wait_acquire_cluster(&shared->tile_full, worker->queue.idx & 1) && tile->gemm.valid &&
               mok_fused_is_wgrad(tile->kind) && tile->gemm.rows > (int32_t)worker->warpgroup * MOK_GEMM_GROUP_ROWS &&
               tile->gemm.num_rows > 0 && tile->gemm.starts_from_memory &&
               !mok_cuda_wgrad_reads_bf16(mok_fused_wgrad_of(args, tile), &tile->gemm);
    if (!__shfl_sync(0xffffffffu, fits, 0)) {
        return NULL;
    }
    if (args->pass.trace.events != NULL && threadIdx.x == 0) {
        mok_fused_trace_end_task(&args->pass.trace, &shared->lanes);
        mok_fused_trace_begin_backward(&args->pass.trace, &shared->lanes, tile);
    }
    mok_fused_leave_queue(worker, held);
    return tile;
}

/* The sums leave, panel by panel; the next tile's starting values take their places. */
MOK_DEVICE void mok_fused_exchange_wgrad(const struct mok_fused_gradient *gradient, mok_fused_worker *worker, float *acc)
{
#pragma unroll
    for (int panel = 0; panel < MOK_GEMM_COLS / 32; panel++) {
        mok_fused_store_fp32(gradient, worker->shared, acc + 16 * panel, panel);
        mok_cuda_read_fp32_panel(mok_cuda_begin_start_panel<mok_tile_fused>(worker, panel), acc + 16 * panel);
        mok_cuda_end_start_panel<mok_tile_fused>(worker, panel, MOK_GEMM_COLS / 32);
    }
    mok_hw_wgmma_hold(acc);
}

/* This weight gradient, and those behind it that the next tiles are. */
MOK_DEVICE void mok_fused_multiply_wgrad(const struct mok_fused_backward_args *args, mok_fused_worker *worker,
                                         const struct mok_fused_backward_tile *tile, struct mok_fused_held *held)
{
    float acc[128];
    mok_fused_release_held_chunk(worker, held, worker->stage.idx);
    if (held->rows > 0) { /* no registers are left to hold its sums */
        mok_fused_store_held(args, worker->shared, held);
    }
    mok_cuda_start_wgrad<mok_tile_fused>(mok_fused_wgrad_of(args, tile), worker, acc, &tile->gemm);
    for (;;) {
        int32_t num_steps = mok_fused_uniform(mok_cuda_wgrad_num_steps(&tile->gemm));
        if (num_steps > 0) {
            uint32_t behind = mok_fused_run_majors<MOK_HW_MN_MAJOR, MOK_HW_MN_MAJOR>(args, worker, acc, num_steps, 0, held);
            mok_fused_end_steps(worker, acc, behind, held);
        }
        mok_fused_hold_tile(held);
        struct mok_fused_gradient gradient = mok_fused_open_gradient(mok_fused_wgrad_of(args, tile), &tile->gemm);
        tile = mok_fused_uniform(gradient.bf16) ? NULL : mok_fused_take_wgrad(args, worker, held);
        if (tile == NULL) {
            mok_fused_forget_words(held);
            mok_fused_finish_wgrad(&gradient, worker->shared, acc);
            return;
        }
        mok_fused_exchange_wgrad(&gradient, worker, acc);
    }
}

MOK_DEVICE void mok_fused_backward_multiply(const struct mok_fused_backward_args *args, mok_fused_shared *shared, uint32_t warpgroup)
{
    mok_fused_worker worker;
    struct mok_fused_held held;
    worker.shared = shared;
    worker.stage.idx = worker.stage.parity = worker.queue.idx = 0;
    worker.warp = mok_cuda_warp();
    worker.warpgroup = warpgroup;
    worker.limit_ns = args->pass.wait_limit_ns;
    held.rows = 0;
    held.is_open = 0;
    held.turn = MOK_FUSED_TURNS - 1;
    for (;;) {
        const struct mok_fused_backward_tile *tile = mok_fused_take_backward(args, &worker, &held);
        if (!mok_fused_uniform(tile->gemm.valid)) {
            break;
        }
        if (mok_fused_uniform(tile->gemm.rows) <= (int32_t)warpgroup * MOK_GEMM_GROUP_ROWS) {
            mok_cuda_skip_steps<mok_tile_fused>(&worker, mok_fused_uniform(mok_fused_num_stages(args, tile)));
            mok_fused_hold_tile(&held);
            continue;
        }
        switch (mok_fused_uniform(tile->kind)) {
        case MOK_TASK_RECOMPUTE:
        case MOK_TASK_SHARED_RECOMPUTE: mok_fused_multiply_again(args, &worker, tile, &held); break;
        case MOK_TASK_DGRAD_DOWN:
        case MOK_TASK_SHARED_DGRAD_DOWN:
        case MOK_TASK_DGRAD_GATE_UP:
        case MOK_TASK_SHARED_DGRAD_GATE_UP: mok_fused_multiply_dgrad(args, &worker, tile, &held); break;
        default: mok_fused_multiply_wgrad(args, &worker, tile, &held);
        }
    }
    mok_fused_hold_tile(&held); /* the last, invalid tile ends warp 11's work */
    if (threadIdx.x % 32 == 0) {
        mok_hw_mbarrier_arrive_cta(mok_fused_stored(shared, held.turn));
    }
    mok_cuda_close_panels();
}

#endif
