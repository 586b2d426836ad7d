/*
 * One 128 x 256 output tile: the shared memory of a CTA, the barriers in it, and the loader's half of the journey of the operands. The
 * other half is gemm/gemm_multiply.cuh. Independent of where tiles come from and of what is done with the sums.
 *
 * Roles of a CTA (384 threads): warpgroups 0 and 1 multiply, 64 rows each, 128 fp32 accumulators a thread; one thread of warpgroup 2 finds
 * the tiles, hands each to the multiplying warpgroups through a queue of two in shared memory, and loads.
 *
 * Phases. Operands come in steps of 64 along the contraction, each into one of STAGES stages (a ring over all tiles of the CTA, so that the
 * loads of the next tile run while this one is finished):
 *     load:      wait empty[s] -> expect bytes on full[s] -> TMA into stage s
 *     multiply:  wait full[s]  -> 4 wgmma                 -> (one step later) arrive empty[s]
 *
 * Clusters of two CTAs take two row tiles of one column tile. When both belong to one expert they share the B operand: each CTA loads half
 * of it into both. Therefore a stage is refilled only when the consumers of both CTAs have released it, and both CTAs run the same number
 * of steps for each pair of tiles (one may be empty: rows = 0).
 *
 *   barrier         arrivals                                      waits
 *   full[s]         the own loader + 48 KB from either loader     the own multiplying warps
 *   empty[s]        8 multiplying warps of each CTA               the own loader
 *   tile_full[q]    the own loader, tile written                  the own multiplying warps
 *   tile_empty[q]   8 multiplying warps, tile read                the own loader
 */
#ifndef MOK_CUDA_GEMM_TILE_CUH
#define MOK_CUDA_GEMM_TILE_CUH

#include "cuda/gemm/gemm_args.h"
#include "cuda/hw/lanes.cuh"
#include "cuda/hw/mbarrier.cuh"
#include "cuda/hw/sync.cuh"
#include "cuda/hw/tma.cuh"
#include "cuda/hw/wgmma.cuh"

/* CTAs of a cluster and stages of the operand ring can be set for measurements (bench/ladder). */
#ifndef MOK_GEMM_CLUSTER
#define MOK_GEMM_CLUSTER 2
#endif
#ifndef MOK_GEMM_STAGES
#define MOK_GEMM_STAGES 4
#endif

enum {
    MOK_GEMM_GROUP_ROWS = 64, /* of a warpgroup */
    MOK_GEMM_THREADS = 384,
    MOK_GEMM_LOADER = 256, /* the thread that loads */
    MOK_GEMM_QUEUE = 2,    /* tiles between the loader and the multiplying warpgroups */
    MOK_GEMM_BOTH_CTAS = 3, /* of a cluster of two, as a bit mask */
    MOK_GEMM_ARRIVALS = MOK_LANES_ARRIVE ? 32 : 1, /* of a warp at a barrier */
    /* Registers a thread: 2 * 128 * 232 + 128 * 40 = 64,512 of 65,536. */
    MOK_GEMM_REGISTERS_MULTIPLY = 232,
    MOK_GEMM_REGISTERS_LOAD = 40,
    MOK_GEMM_BLOCK_BYTES = 64 * 128, /* 64 rows of 128 bytes */
    MOK_GEMM_PANEL_BYTES = MOK_GEMM_WARP_ROWS * 128,
    MOK_GEMM_A_BYTES = MOK_GEMM_ROWS * MOK_GEMM_DEPTH * 2,
    MOK_GEMM_B_BYTES = MOK_GEMM_COLS * MOK_GEMM_DEPTH * 2,
    MOK_GEMM_STEP_BYTES = MOK_GEMM_A_BYTES + MOK_GEMM_B_BYTES
};

/* What becomes of a tile's sums. */
enum {
    MOK_FINISH_OWN,    /* the kernel's own function, before the next tile */
    MOK_FINISH_STORE,  /* rounded and stored, during the next tile (gemm/gemm_finish.cuh) */
    MOK_FINISH_GATE_UP /* likewise, through the activation */
};

/* TILE: the constants of a kernel. DEFERRED: pieces of work on its sums that are done during the next tile's
 * first steps. */
struct mok_tile_gate_up {
    enum {
        A_MAJOR = MOK_HW_K_MAJOR,
        B_MAJOR = MOK_HW_K_MAJOR,
        FINISH = MOK_FINISH_GATE_UP,
        DEFERRED = 20,
        STAGES = MOK_GEMM_STAGES,
        CLUSTER = MOK_GEMM_CLUSTER
    };
};
struct mok_tile_down {
    enum {
        A_MAJOR = MOK_HW_K_MAJOR,
        B_MAJOR = MOK_HW_K_MAJOR,
        FINISH = MOK_FINISH_STORE,
        DEFERRED = 8,
        STAGES = MOK_GEMM_STAGES,
        CLUSTER = MOK_GEMM_CLUSTER
    };
};
struct mok_tile_dgrad_down {
    enum {
        A_MAJOR = MOK_HW_K_MAJOR,
        B_MAJOR = MOK_HW_MN_MAJOR,
        FINISH = MOK_FINISH_OWN,
        DEFERRED = 0,
        STAGES = MOK_GEMM_STAGES,
        CLUSTER = MOK_GEMM_CLUSTER
    };
};
struct mok_tile_dgrad_gate_up {
    enum {
        A_MAJOR = MOK_HW_K_MAJOR,
        B_MAJOR = MOK_HW_MN_MAJOR,
        FINISH = MOK_FINISH_STORE,
        DEFERRED = 8,
        STAGES = MOK_GEMM_STAGES,
        CLUSTER = MOK_GEMM_CLUSTER
    };
};
struct mok_tile_wgrad {
    enum {
        A_MAJOR = MOK_HW_MN_MAJOR,
        B_MAJOR = MOK_HW_MN_MAJOR,
        FINISH = MOK_FINISH_OWN,
        DEFERRED = 0,
        STAGES = MOK_GEMM_STAGES,
        CLUSTER = MOK_GEMM_CLUSTER
    };
};

struct mok_stage {
    uint8_t a[MOK_GEMM_A_BYTES]; /* rows 64 * warpgroup at 8192 * warpgroup, in either major order */
    uint8_t b[MOK_GEMM_B_BYTES]; /* columns 128 * half at 16384 * half */
};

/* One output tile, as its finder (gemm/gemm_walk.cuh) describes it. */
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
    /* The expert began before, goes on behind this window: 1 + the place of its sums in the map of carries. 0 = it does not. */
    int32_t carry_in, carry_out;
    int32_t starts_from_memory;  /* the accumulators start from the gradient or the carry */
};

template <typename TILE> struct mok_gemm_shared {
    struct mok_stage stage[TILE::STAGES];
    uint8_t panel[8][2][MOK_GEMM_PANEL_BYTES]; /* [warp][turn]: output on its way to global memory (gemm/gemm_store.cuh) */
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
            mok_hw_mbarrier_init(&shared->empty[s], 8 * TILE::CLUSTER * MOK_GEMM_ARRIVALS);
        }
        for (int q = 0; q < MOK_GEMM_QUEUE; q++) {
            mok_hw_mbarrier_init(&shared->tile_full[q], 1);
            mok_hw_mbarrier_init(&shared->tile_empty[q], 8 * MOK_GEMM_ARRIVALS);
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

/* Loader: waits until the next stage is free and announces `bytes`. The caller then loads into stage[cursor->idx] and advances. */
template <typename TILE>
MOK_DEVICE void mok_cuda_begin_stage(struct mok_gemm_shared<TILE> *shared, const struct mok_stage_cursor *cursor, uint32_t bytes,
                                     uint64_t limit_ns)
{
    mok_cuda_wait_barrier(&shared->empty[cursor->idx], cursor->parity ^ 1, limit_ns);
    mok_hw_mbarrier_arrive_expect_cta(&shared->full[cursor->idx], bytes);
}

/* Loader: one box of a weight, into half `half` of the B operand; shared by the cluster when the tile says so. */
template <typename TILE>
MOK_DEVICE void mok_cuda_load_weight(const struct mok_gemm_tile *tile, uint32_t half, void *to, const CUtensorMap *map, uint64_t *full,
                                     int32_t c0, int32_t c1)
{
    if (TILE::CLUSTER == 1 || !tile->shares_b) {
        mok_hw_tma_load_3d(to, map, full, c0, c1, tile->expert);
    } else if (mok_hw_cluster_cta() == half) {
        mok_hw_tma_load_3d_cluster(to, map, full, MOK_GEMM_BOTH_CTAS, c0, c1, tile->expert);
    }
}

/* Loader: the B operand of a step that contracts weight rows: 64 rows from `k`, 256 columns from tile->col. */
template <typename TILE>
MOK_DEVICE void mok_cuda_load_weight_rows(const struct mok_gemm_tile *tile, struct mok_stage *stage, const CUtensorMap *map, uint64_t *full,
                                          int32_t k)
{
#pragma unroll
    for (int block = 0; block < MOK_GEMM_COLS / 64; block++) {
        mok_cuda_load_weight<TILE>(tile, block / 2, stage->b + block * MOK_GEMM_BLOCK_BYTES, map, full, tile->col + block * 64, k);
    }
}

#endif
