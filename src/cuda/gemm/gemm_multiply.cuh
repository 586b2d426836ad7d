/*
 * The multiplying warpgroups' half of a tile: takes tiles from the queue, runs the steps through the tensor cores, releases the stages.
 */
#ifndef MOK_CUDA_GEMM_MULTIPLY_CUH
#define MOK_CUDA_GEMM_MULTIPLY_CUH

#include "cuda/gemm/gemm_finish.cuh"

/* What a multiplying warp carries from tile to tile. */
template <typename TILE> struct mok_worker {
    struct mok_gemm_shared<TILE> *shared;
    struct mok_stage_cursor stage, queue;
    struct mok_panel_writer writer;
    uint32_t warp;      /* 0 .. 7 */
    uint32_t warpgroup; /* 0, 1 */
    uint64_t limit_ns;
};

template <typename TILE>
MOK_DEVICE struct mok_worker<TILE> mok_cuda_open_worker(struct mok_gemm_shared<TILE> *shared, uint32_t warpgroup, uint64_t limit_ns)
{
    uint32_t warp = mok_cuda_warp();
    struct mok_worker<TILE> worker = {shared, {0, 0}, {0, 0}, {&shared->panel[warp][0][0], 0}, warp, warpgroup, limit_ns};
    return worker;
}

/* Whether this warpgroup has rows in the tile: half a tile costs half the time. */
template <typename TILE>
MOK_DEVICE int mok_cuda_has_rows(const struct mok_worker<TILE> *worker, const struct mok_gemm_tile *tile)
{
    return tile->rows > (int32_t)worker->warpgroup * MOK_GEMM_GROUP_ROWS;
}

/* The next tile; 0 at the end. */
template <typename TILE> MOK_DEVICE int mok_cuda_take_tile(struct mok_worker<TILE> *worker, struct mok_gemm_tile *tile_out)
{
    uint32_t idx = worker->queue.idx;
    mok_cuda_wait_barrier(&worker->shared->tile_full[idx], worker->queue.parity, worker->limit_ns);
    *tile_out = worker->shared->tile[idx];
    __syncwarp();
    if (MOK_LANES_ARRIVE || threadIdx.x % 32 == 0) {
        mok_hw_mbarrier_arrive_cta(&worker->shared->tile_empty[idx]);
    }
    mok_cuda_advance_in(&worker->queue, MOK_GEMM_QUEUE);
    /* What branches depend on is made known as equal in all lanes. */
    tile_out->rows = __shfl_sync(0xffffffffu, tile_out->rows, 0);
    tile_out->num_rows = __shfl_sync(0xffffffffu, tile_out->num_rows, 0);
    return __shfl_sync(0xffffffffu, tile_out->valid, 0);
}

/* This warp has read the stage: says so at its own CTA and the other. */
template <typename TILE> MOK_DEVICE void mok_cuda_release_stage(struct mok_worker<TILE> *worker, uint32_t idx)
{
    uint32_t lane = threadIdx.x % 32;
    if (TILE::CLUSTER == 1) {
        if (MOK_LANES_ARRIVE || lane == 0) {
            mok_hw_mbarrier_arrive_cta(&worker->shared->empty[idx]);
        }
    } else if (MOK_LANES_ARRIVE) {
        for (uint32_t cta = 0; cta < TILE::CLUSTER; cta++) {
            mok_hw_mbarrier_arrive_cluster(&worker->shared->empty[idx], cta);
        }
    } else if (lane < TILE::CLUSTER) {
        mok_hw_mbarrier_arrive_cluster(&worker->shared->empty[idx], lane);
    }
}

template <typename TILE> MOK_DEVICE void mok_cuda_await_stage(struct mok_worker<TILE> *worker)
{
    mok_cuda_wait_barrier(&worker->shared->full[worker->stage.idx], worker->stage.parity, worker->limit_ns);
}

/* A warpgroup without rows in this tile lets its steps pass. */
template <typename TILE> MOK_DEVICE void mok_cuda_skip_steps(struct mok_worker<TILE> *worker, int32_t num_steps)
{
    for (int32_t step = 0; step < num_steps; step++) {
        mok_cuda_await_stage<TILE>(worker);
        __syncwarp(); /* a lane that still looks at the barrier could miss the phase */
        mok_cuda_release_stage<TILE>(worker, worker->stage.idx);
        mok_cuda_advance<TILE>(&worker->stage);
    }
}

/* Waits for the next stage and issues its four wgmma, as one group; operands in the major orders A_MAJOR, B_MAJOR. first (a constant): the
 * sums start from zero, unless both operands are MN-major (weight gradients). */
template <typename TILE, int A_MAJOR, int B_MAJOR>
MOK_DEVICE void mok_cuda_issue_majors(struct mok_worker<TILE> *worker, float *acc, int first)
{
    const uint64_t a_step = A_MAJOR == MOK_HW_K_MAJOR ? MOK_HW_K_MAJOR_STEP : MOK_HW_MN_MAJOR_STEP;
    const uint64_t b_step = B_MAJOR == MOK_HW_K_MAJOR ? MOK_HW_K_MAJOR_STEP : MOK_HW_MN_MAJOR_STEP;
    struct mok_stage *stage = &worker->shared->stage[worker->stage.idx];
    uint64_t a = mok_hw_wgmma_operand(stage->a + MOK_GEMM_BLOCK_BYTES * worker->warpgroup);
    uint64_t b = mok_hw_wgmma_operand(stage->b);
    mok_cuda_await_stage<TILE>(worker);
    mok_hw_wgmma_fence();
#pragma unroll
    for (int k = 0; k < MOK_GEMM_DEPTH / 16; k++) {
        if (A_MAJOR == MOK_HW_MN_MAJOR) {
            mok_hw_wgmma_mn_mn(acc, a + k * a_step, b + k * b_step);
        } else if (B_MAJOR == MOK_HW_MN_MAJOR) {
            if (first && k == 0) {
                mok_hw_wgmma_first_k_mn(acc, a, b);
            } else {
                mok_hw_wgmma_k_mn(acc, a + k * a_step, b + k * b_step);
            }
        } else if (first && k == 0) {
            mok_hw_wgmma_first_k_k(acc, a, b);
        } else {
            mok_hw_wgmma_k_k(acc, a + k * a_step, b + k * b_step);
        }
    }
    mok_hw_wgmma_commit();
    mok_cuda_advance<TILE>(&worker->stage);
}

template <typename TILE> MOK_DEVICE void mok_cuda_issue_step(struct mok_worker<TILE> *worker, float *acc, int first)
{
    mok_cuda_issue_majors<TILE, TILE::A_MAJOR, TILE::B_MAJOR>(worker, acc, first);
}

/* Once the step before the last issued one is through, its stage is free. */
template <typename TILE> MOK_DEVICE void mok_cuda_retire_step(struct mok_worker<TILE> *worker, uint32_t *behind)
{
    mok_hw_wgmma_wait_1();
    mok_cuda_release_stage<TILE>(worker, *behind);
    *behind = *behind + 1 == TILE::STAGES ? 0 : *behind + 1;
}

/*
 * The num_steps >= 1 steps of a tile. One step stays in flight while the next is issued. After each of the first steps a piece of the
 * pending tile is finished (finish and pending may be NULL when TILE::DEFERRED is 0).
 *
 * With deferred finishing the next tile is taken while the last step runs; returns 0 at the end of the tiles. Kernels that finish a tile by
 * themselves do so through further stages, which the loader fills before it hands on the next tile: they take it later, and get 0 here.
 */
template <typename TILE>
MOK_DEVICE int mok_cuda_multiply(struct mok_worker<TILE> *worker, float *acc, int32_t num_steps, const struct mok_gemm_finish *finish,
                                 struct mok_pending *pending, struct mok_gemm_tile *next_out)
{
    uint32_t behind = worker->stage.idx;
    int more = 0;
    mok_cuda_issue_step<TILE>(worker, acc, 1);
#pragma unroll
    for (int piece = 0; piece < TILE::DEFERRED; piece++) {
        if (piece > 0 && piece < num_steps) {
            mok_cuda_issue_step<TILE>(worker, acc, 0);
        }
        mok_cuda_finish_piece<TILE>(finish, &worker->writer, pending, piece);
        if (piece > 0 && piece < num_steps) {
            mok_cuda_retire_step<TILE>(worker, &behind);
        }
    }
    for (int32_t step = TILE::DEFERRED > 0 ? TILE::DEFERRED : 1; step < num_steps; step++) {
        mok_cuda_issue_step<TILE>(worker, acc, 0);
        mok_cuda_retire_step<TILE>(worker, &behind);
    }
    if (TILE::FINISH != MOK_FINISH_OWN) {
        more = mok_cuda_take_tile<TILE>(worker, next_out);
    }
    mok_hw_wgmma_wait_0();
    mok_hw_wgmma_hold(acc);
    mok_cuda_release_stage<TILE>(worker, behind);
    return more;
}

/* All tiles of a kernel whose sums are rounded and stored. */
template <typename TILE>
MOK_DEVICE void mok_cuda_multiply_rows(struct mok_gemm_shared<TILE> *shared, const struct mok_gemm_finish *finish, uint32_t warpgroup,
                                       int32_t num_steps, uint64_t limit_ns)
{
    struct mok_worker<TILE> worker = mok_cuda_open_worker<TILE>(shared, warpgroup, limit_ns);
    struct mok_gemm_tile tile, next;
    struct mok_pending pending;
    pending.rows = 0;
    int more = mok_cuda_take_tile<TILE>(&worker, &tile);
    while (more) {
        if (mok_cuda_has_rows<TILE>(&worker, &tile)) {
            float acc[128];
            more = mok_cuda_multiply<TILE>(&worker, acc, num_steps, finish, &pending, &next);
            mok_cuda_set_pending(&pending, acc, &tile);
        } else {
            mok_cuda_flush_pending<TILE>(finish, &worker.writer, &pending);
            mok_cuda_skip_steps<TILE>(&worker, num_steps);
            more = mok_cuda_take_tile<TILE>(&worker, &next);
        }
        tile = next;
    }
    mok_cuda_flush_pending<TILE>(finish, &worker.writer, &pending);
    mok_cuda_close_panels();
}

#endif
