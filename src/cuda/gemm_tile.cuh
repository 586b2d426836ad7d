/*
 * One 128 x 256 output tile: how its operands travel from global memory through shared memory into the tensor cores. Independent of where tiles come
 * from and of what is done with the sums.
 *
 * Roles of a CTA (384 threads): warpgroups 0 and 1 multiply, 64 rows each, 128 fp32 accumulators a thread; one thread of warpgroup 2 finds the tiles,
 * hands each to the multiplying warpgroups through a queue of two in shared memory, and loads.
 *
 * Phases. Operands come in steps of 64 along the contraction, each into one of STAGES stages (a ring over all tiles of the CTA, so that the
 * loads of the next tile run while this one is finished):
 *     load:      wait empty[s] -> expect bytes on full[s] -> TMA into stage s
 *     multiply:  wait full[s]  -> 4 wgmma                 -> (one step later) arrive empty[s]
 *
 * Clusters of two CTAs take two row tiles of one column tile. When both belong to one expert they share the B operand: each CTA loads
 * half of it into both. Therefore a stage is refilled only when the consumers of both CTAs have released it, and both CTAs run the same number of steps
 * for each pair of tiles (one may be empty: rows = 0).
 *
 * The second warpgroup starts each tile LAG steps behind the first (a named barrier), so that one of them multiplies while the other writes its
 * results; alone on the tensor cores it takes half the time a step.
 *
 *   barrier         arrivals                                      waits
 *   full[s]         the own loader + 48 KB from either loader     the own multiplying warps
 *   empty[s]        8 multiplying warps of each CTA               the own loader
 *   tile_full[q]    the own loader, tile written                  the own multiplying warps
 *   tile_empty[q]   8 multiplying warps, tile read                the own loader
 */
#ifndef MOK_CUDA_GEMM_TILE_CUH
#define MOK_CUDA_GEMM_TILE_CUH

#include "cuda/gemm_args.h"
#include "cuda/hw/mbarrier.cuh"
#include "cuda/hw/sync.cuh"
#include "cuda/hw/tma.cuh"
#include "cuda/hw/wgmma.cuh"
#include "plan/tile.h"

/* CTAs of a cluster, stages of the operand ring and the lag can be set for measurements (bench/ladder). */
#ifndef MOK_GEMM_CLUSTER
#define MOK_GEMM_CLUSTER 2
#endif
#ifndef MOK_GEMM_STAGES
#define MOK_GEMM_STAGES 4
#endif
#ifndef MOK_GEMM_LAG
#define MOK_GEMM_LAG 2
#endif

enum {
    MOK_GEMM_ROWS = MOK_TILE_ROWS, /* of an output tile */
    MOK_GEMM_COLS = 256,
    MOK_GEMM_DEPTH = 64, /* of a step along the contraction: 128 bytes, the width of the swizzle */
    MOK_GEMM_PANEL = 64, /* rows of a warpgroup; columns that one store moves */
    MOK_GEMM_THREADS = 384,
    MOK_GEMM_LOADER = 256, /* the thread that loads */
    /* Registers a thread: 2 * 128 * 232 + 128 * 40 = 64,512 of 65,536. */
    MOK_GEMM_REGISTERS_MULTIPLY = 232,
    MOK_GEMM_REGISTERS_LOAD = 40,
    MOK_GEMM_BLOCK_BYTES = 64 * 128,
    MOK_GEMM_A_BYTES = MOK_GEMM_ROWS * MOK_GEMM_DEPTH * 2,
    MOK_GEMM_B_BYTES = MOK_GEMM_COLS * MOK_GEMM_DEPTH * 2,
    MOK_GEMM_STEP_BYTES = MOK_GEMM_A_BYTES + MOK_GEMM_B_BYTES,
    MOK_GEMM_QUEUE = 2,        /* tiles between the loader and the multiplying warpgroups */
    /* Named barriers. */
    MOK_GEMM_BARRIER_WARPGROUP = 1, /* + warpgroup: the threads of one multiplying warpgroup */
    MOK_GEMM_BARRIER_LAG = 3        /* warpgroup 0 has issued LAG steps -> warpgroup 1 may start */
};

/* TILE: the constants of a kernel. */
struct mok_tile_forward {
    enum { A_MAJOR = MOK_HW_K_MAJOR, B_MAJOR = MOK_HW_K_MAJOR, STAGES = MOK_GEMM_STAGES, CLUSTER = MOK_GEMM_CLUSTER, LAG = MOK_GEMM_LAG };
};
struct mok_tile_dgrad {
    enum { A_MAJOR = MOK_HW_K_MAJOR, B_MAJOR = MOK_HW_MN_MAJOR, STAGES = MOK_GEMM_STAGES, CLUSTER = MOK_GEMM_CLUSTER, LAG = MOK_GEMM_LAG };
};
struct mok_tile_wgrad {
    enum { A_MAJOR = MOK_HW_MN_MAJOR, B_MAJOR = MOK_HW_MN_MAJOR, STAGES = MOK_GEMM_STAGES, CLUSTER = MOK_GEMM_CLUSTER, LAG = MOK_GEMM_LAG };
};

struct mok_stage {
    uint8_t a[MOK_GEMM_A_BYTES]; /* rows 64 * warpgroup at 8192 * warpgroup, in either major order */
    uint8_t b[MOK_GEMM_B_BYTES]; /* columns 128 * half at 16384 * half */
};

/* One output tile, as its finder (gemm_walk.cuh) describes it. */
struct mok_gemm_tile {
    int32_t valid;    /* 0: there are no more tiles */
    int32_t row;      /* first row in the buffers; weight gradients: first row of the matrix */
    int32_t rows;     /* real rows, 0 .. 128 */
    int32_t col;      /* first column */
    int32_t col_tile; /* col / tile width */
    int32_t expert;
    int32_t shares_b; /* both CTAs of the cluster need the same B operand */
    /* weight gradients */
    int32_t part;
    int32_t first_row; /* rows [first_row, first_row + num_rows) of the buffers are contracted */
    int32_t num_rows;
    int32_t carry_in, carry_out; /* the expert began before, goes on behind this window */
    int32_t starts_from_memory;  /* the accumulators start from the gradient or the carry */
};

template <typename TILE> struct mok_gemm_shared {
    struct mok_stage stage[TILE::STAGES];
    uint8_t panel[2][2][MOK_GEMM_BLOCK_BYTES]; /* [warpgroup][turn]: output on its way to global memory (gemm_store.cuh) */
    uint64_t full[TILE::STAGES];
    uint64_t empty[TILE::STAGES];
    struct mok_gemm_tile tile[MOK_GEMM_QUEUE];
    uint64_t tile_full[MOK_GEMM_QUEUE];
    uint64_t tile_empty[MOK_GEMM_QUEUE];
};

/* Which stage (or place of the queue) comes next; each role counts for itself. */
struct mok_stage_cursor {
    uint32_t idx;
    uint32_t parity; /* of the round: 0, 1, 0, ... */
};

/* The same in all lanes of a warp, and known to the compiler as such, so that operand descriptors stay in uniform registers. */
MOK_DEVICE uint32_t mok_cuda_warpgroup(void) { return __shfl_sync(0xffffffffu, threadIdx.x / 128, 0); }

MOK_DEVICE void mok_cuda_advance_in(struct mok_stage_cursor *cursor, uint32_t num_places)
{
    cursor->idx++;
    if (cursor->idx == num_places) {
        cursor->idx = 0;
        cursor->parity ^= 1;
    }
}

template <typename TILE> MOK_DEVICE void mok_cuda_advance(struct mok_stage_cursor *cursor) { mok_cuda_advance_in(cursor, TILE::STAGES); }

/* Waits of one CTA or cluster never depend on another kernel, so running out of time means a bug: the host sees a device error. */
MOK_DEVICE void mok_cuda_wait_barrier(uint64_t *bar, uint32_t parity, uint64_t limit_ns)
{
    if (mok_hw_mbarrier_try_wait_cta(bar, parity)) {
        return;
    }
    uint64_t start = mok_hw_time_ns();
    while (!mok_hw_mbarrier_try_wait_cta(bar, parity)) {
        if (mok_hw_time_ns() - start > limit_ns) {
            mok_hw_raise_device_error();
        }
    }
}

/* Called by all threads, before the roles part. */
template <typename TILE> MOK_DEVICE void mok_cuda_open_stages(struct mok_gemm_shared<TILE> *shared)
{
    if (threadIdx.x == 0) {
        for (int s = 0; s < TILE::STAGES; s++) {
            mok_hw_mbarrier_init(&shared->full[s], 1);
            mok_hw_mbarrier_init(&shared->empty[s], 8 * TILE::CLUSTER);
        }
        for (int q = 0; q < MOK_GEMM_QUEUE; q++) {
            mok_hw_mbarrier_init(&shared->tile_full[q], 1);
            mok_hw_mbarrier_init(&shared->tile_empty[q], 8);
        }
        mok_hw_fence_mbarrier_init_cluster();
    }
    __syncthreads();
    if (TILE::CLUSTER > 1) {
        mok_hw_cluster_arrive();
        mok_hw_cluster_wait();
    }
}

/* Called by all threads at the end: no CTA may leave while the other still writes into it or arrives at its barriers. */
template <typename TILE> MOK_DEVICE void mok_cuda_close_stages(void)
{
    if (TILE::CLUSTER > 1) {
        __syncwarp();
        mok_hw_cluster_arrive();
        mok_hw_cluster_wait();
    }
}

/* Loader: hands a tile (or, with valid = 0, the end) to the multiplying warpgroups. */
template <typename TILE>
MOK_DEVICE void mok_cuda_post_tile(struct mok_gemm_shared<TILE> *shared, struct mok_stage_cursor *queue, const struct mok_gemm_tile *tile,
                                   uint64_t limit_ns)
{
    mok_cuda_wait_barrier(&shared->tile_empty[queue->idx], queue->parity ^ 1, limit_ns);
    shared->tile[queue->idx] = *tile;
    mok_hw_mbarrier_arrive_cta(&shared->tile_full[queue->idx]);
    mok_cuda_advance_in(queue, MOK_GEMM_QUEUE);
}

/* Multiplying warps: the next tile; 0 at the end. */
template <typename TILE>
MOK_DEVICE int mok_cuda_take_tile(struct mok_gemm_shared<TILE> *shared, struct mok_stage_cursor *queue, struct mok_gemm_tile *tile_out,
                                  uint64_t limit_ns)
{
    mok_cuda_wait_barrier(&shared->tile_full[queue->idx], queue->parity, limit_ns);
    *tile_out = shared->tile[queue->idx];
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        mok_hw_mbarrier_arrive_cta(&shared->tile_empty[queue->idx]);
    }
    mok_cuda_advance_in(queue, MOK_GEMM_QUEUE);
    /* What branches depend on is made known as equal in all lanes. */
    tile_out->rows = __shfl_sync(0xffffffffu, tile_out->rows, 0);
    tile_out->num_rows = __shfl_sync(0xffffffffu, tile_out->num_rows, 0);
    return __shfl_sync(0xffffffffu, tile_out->valid, 0);
}

/* Loader: waits until the next stage is free and announces `bytes`. The caller then loads into stage[cursor->idx] and advances. */
template <typename TILE>
MOK_DEVICE void mok_cuda_begin_stage(struct mok_gemm_shared<TILE> *shared, const struct mok_stage_cursor *cursor, uint32_t bytes, uint64_t limit_ns)
{
    mok_cuda_wait_barrier(&shared->empty[cursor->idx], cursor->parity ^ 1, limit_ns);
    mok_hw_mbarrier_arrive_expect_cta(&shared->full[cursor->idx], bytes);
}

/* Loader: one box of a weight, into half `half` of the B operand; shared by the cluster when the tile says so. */
template <typename TILE>
MOK_DEVICE void mok_cuda_load_weight(const struct mok_gemm_tile *tile, uint32_t half, void *to, const CUtensorMap *map, uint64_t *full, int32_t c0,
                                     int32_t c1)
{
    if (TILE::CLUSTER == 1 || !tile->shares_b) {
        mok_hw_tma_load_3d(to, map, full, c0, c1, tile->expert);
    } else if (mok_hw_cluster_cta() == half) {
        mok_hw_tma_load_3d_cluster(to, map, full, 3, c0, c1, tile->expert);
    }
}

/* Multiplying warpgroup: `arrivals` of its four for a stage that it has read, at its own CTA and the other. Called by whole warps with 1, or
 * by one warp with 4. */
template <typename TILE> MOK_DEVICE void mok_cuda_release_stage(struct mok_gemm_shared<TILE> *shared, uint32_t idx, uint32_t arrivals)
{
    uint32_t lane = threadIdx.x % 32;
    if (TILE::CLUSTER == 1) {
        if (lane == 0) {
            mok_hw_mbarrier_arrive_count_cta(&shared->empty[idx], arrivals);
        }
    } else if (lane < TILE::CLUSTER) {
        mok_hw_mbarrier_arrive_count_cluster(&shared->empty[idx], lane, arrivals);
    }
}

/* Multiplying warpgroup without rows in this tile: lets the steps pass. */
template <typename TILE>
MOK_DEVICE void mok_cuda_skip_steps(struct mok_gemm_shared<TILE> *shared, struct mok_stage_cursor *cursor, int32_t num_steps, uint64_t limit_ns)
{
    for (int32_t step = 0; step < num_steps; step++) {
        mok_cuda_wait_barrier(&shared->full[cursor->idx], cursor->parity, limit_ns);
        mok_cuda_release_stage<TILE>(shared, cursor->idx, 1);
        mok_cuda_advance<TILE>(cursor);
    }
}

/* Issues the four wgmma of the step in stage `idx`, as one group. */
template <typename TILE>
MOK_DEVICE void mok_cuda_multiply_step(float *acc, struct mok_gemm_shared<TILE> *shared, uint32_t idx, uint32_t warpgroup, int first)
{
    const uint64_t a_step = TILE::A_MAJOR == MOK_HW_K_MAJOR ? MOK_HW_K_MAJOR_STEP : MOK_HW_MN_MAJOR_STEP;
    const uint64_t b_step = TILE::B_MAJOR == MOK_HW_K_MAJOR ? MOK_HW_K_MAJOR_STEP : MOK_HW_MN_MAJOR_STEP;
    uint64_t a = mok_hw_wgmma_operand(shared->stage[idx].a + MOK_GEMM_BLOCK_BYTES * warpgroup);
    uint64_t b = mok_hw_wgmma_operand(shared->stage[idx].b);
    mok_hw_wgmma_fence();
#pragma unroll
    for (int k = 0; k < MOK_GEMM_DEPTH / 16; k++) {
        if (TILE::A_MAJOR == MOK_HW_MN_MAJOR) {
            mok_hw_wgmma_mn_mn(acc, a + k * a_step, b + k * b_step);
        } else if (TILE::B_MAJOR == MOK_HW_MN_MAJOR) {
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
}

/*
 * Multiplying warpgroup: acc = A B over num_steps >= 1 steps; with both operands MN-major (weight gradients) acc += A B. One step stays in
 * flight while the next is issued, and its stage is released one step late.
 */
template <typename TILE>
MOK_DEVICE void mok_cuda_multiply(float *acc, struct mok_gemm_shared<TILE> *shared, struct mok_stage_cursor *cursor, uint32_t warpgroup,
                                  int32_t num_steps, const struct mok_gemm_tile *tile, uint64_t limit_ns)
{
    const int lags = TILE::LAG > 0 && tile->rows > MOK_GEMM_PANEL; /* both warpgroups work */
    const int32_t lag_step = min((int32_t)TILE::LAG, num_steps) - 1;
    uint32_t behind = cursor->idx;
    if (lags && warpgroup == 1) {
        mok_hw_barrier_cta(MOK_GEMM_BARRIER_LAG, 256);
    }
    mok_cuda_wait_barrier(&shared->full[cursor->idx], cursor->parity, limit_ns);
    mok_cuda_multiply_step<TILE>(acc, shared, cursor->idx, warpgroup, 1);
    mok_cuda_advance<TILE>(cursor);
    for (int32_t step = 1; step < num_steps; step++) {
        if (lags && warpgroup == 0 && step - 1 == lag_step) {
            mok_hw_barrier_arrive_cta(MOK_GEMM_BARRIER_LAG, 256);
        }
        mok_cuda_wait_barrier(&shared->full[cursor->idx], cursor->parity, limit_ns);
        mok_cuda_multiply_step<TILE>(acc, shared, cursor->idx, warpgroup, 0);
        mok_hw_wgmma_wait_1();
        mok_cuda_release_stage<TILE>(shared, behind, 1);
        behind = cursor->idx;
        mok_cuda_advance<TILE>(cursor);
    }
    if (lags && warpgroup == 0 && num_steps - 1 == lag_step) {
        mok_hw_barrier_arrive_cta(MOK_GEMM_BARRIER_LAG, 256);
    }
    mok_hw_wgmma_wait_0();
    mok_hw_wgmma_hold(acc);
    mok_cuda_release_stage<TILE>(shared, behind, 1);
}

#endif
