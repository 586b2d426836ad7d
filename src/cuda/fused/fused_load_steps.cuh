/*
 * Steps of a loader: one after the other the boxes of both operands go into the next stage. One warp, all of whose lanes do the same; an elected one
 * speaks to barriers and copy engine.
 *
 * A step has 1,024 cycles of products to hide behind. That is little for one thread that looks up where a tile stands before each copy: 150
 * instructions a step took 1,600 cycles. So everything that a run of steps needs is looked up before it and is the same in all lanes, that is, it
 * stands in uniform registers: about 45 instructions a step.
 */
#ifndef MOK_CUDA_FUSED_LOAD_STEPS_CUH
#define MOK_CUDA_FUSED_LOAD_STEPS_CUH

#include "cuda/fused/fused_shared.cuh"
#include "cuda/hw/scope.cuh"

struct mok_fused_loader {
    mok_fused_shared *shared;
    struct mok_stage_cursor cursor;
    uint64_t limit_ns;
    int32_t left; /* stages of this tile that are still to be begun */
};

/* What the boxes of a step are: rows of a, then of b.
 *   K_MAJOR   128 rows; twice 128 rows of a weight         contraction innermost
 *   DGRAD     128 rows; 64 rows of a weight, 256 columns   contraction innermost in a, outermost in b
 *   WGRAD     64 rows, 128 columns; 64 rows, 256 columns   contraction outermost in both */
enum mok_fused_boxes { MOK_FUSED_K_MAJOR, MOK_FUSED_DGRAD, MOK_FUSED_WGRAD };

/* Steps along the contraction. */
struct mok_fused_run {
    const CUtensorMap *a, *b[2]; /* b: a map for each half of the columns */
    int32_t num_steps;
    int32_t a_first, b_first; /* where the contraction begins in each operand */
    int32_t a_across;         /* first row of a; WGRAD: column */
    int32_t b_across[2];      /* likewise, for each half */
    int32_t expert;           /* of b; not in WGRAD */
    int32_t loads_a;          /* 0: an empty place of a unit, which loads its share of b alone */
    int32_t shares_b;         /* each CTA of the cluster loads half of b into both */
};

/* The same in all lanes, and known to be. */
MOK_DEVICE int32_t mok_fused_uniform(int32_t value) { return __shfl_sync(0xffffffffu, value, 0); }

/* Waits for the next stage. Gives the place in the queue free a few stages before the tile's last. */
MOK_DEVICE void mok_fused_await_stage(struct mok_fused_loader *loader)
{
    if (loader->left == MOK_FUSED_SCOUT_AHEAD && (MOK_LANES_ARRIVE || mok_hw_elect())) {
        mok_fused_release_tile(loader->shared);
    }
    loader->left--;
    mok_cuda_wait_barrier(&loader->shared->empty[loader->cursor.idx], loader->cursor.parity ^ 1, loader->limit_ns);
}

/* The elected lane: half `half` of b, into this CTA, or into all. */
template <int BOXES, int TO_ALL>
MOK_DEVICE void mok_fused_load_half(const struct mok_fused_run *run, uint32_t half, struct mok_stage *stage, uint64_t *full, int32_t k)
{
    const CUtensorMap *map = half ? run->b[1] : run->b[0]; /* not by index: registers have none */
    uint8_t *to = stage->b + half * (MOK_GEMM_B_BYTES / 2);
    int32_t across = half ? run->b_across[1] : run->b_across[0];
    if (BOXES == MOK_FUSED_K_MAJOR) {
        if (TO_ALL) {
            mok_hw_tma_load_3d_cluster(to, map, full, MOK_GEMM_BOTH_CTAS, k, across, run->expert);
        } else {
            mok_hw_tma_load_3d(to, map, full, k, across, run->expert);
        }
    }
#pragma unroll
    for (int block = 0; BOXES != MOK_FUSED_K_MAJOR && block < MOK_GEMM_COLS / 128; block++) {
        uint8_t *at = to + block * MOK_GEMM_BLOCK_BYTES;
        int32_t col = across + block * 64;
        if (BOXES == MOK_FUSED_DGRAD && TO_ALL) {
            mok_hw_tma_load_3d_cluster(at, map, full, MOK_GEMM_BOTH_CTAS, col, k, run->expert);
        } else if (BOXES == MOK_FUSED_DGRAD) {
            mok_hw_tma_load_3d(at, map, full, col, k, run->expert);
        } else if (TO_ALL) {
            mok_hw_tma_load_2d_cluster(at, map, full, MOK_GEMM_BOTH_CTAS, col, k);
        } else {
            mok_hw_tma_load_2d(at, map, full, col, k);
        }
    }
}

/* The elected lane: the boxes of a. */
template <int BOXES>
MOK_DEVICE void mok_fused_load_a(const struct mok_fused_run *run, struct mok_stage *stage, uint64_t *full, int32_t k)
{
    if (BOXES == MOK_FUSED_WGRAD) {
#pragma unroll
        for (int block = 0; block < MOK_GEMM_ROWS / 64; block++) {
            mok_hw_tma_load_2d(stage->a + block * MOK_GEMM_BLOCK_BYTES, run->a, full, run->a_across + block * 64, k);
        }
    } else {
        mok_hw_tma_load_2d(stage->a, run->a, full, k, run->a_across);
    }
}

template <int BOXES> MOK_DEVICE void mok_fused_load_steps(struct mok_fused_loader *loader, const struct mok_fused_run *run)
{
    const int shares_b = mok_tile_fused::CLUSTER > 1 && run->shares_b;
    const uint32_t bytes = run->loads_a ? MOK_GEMM_STEP_BYTES : MOK_GEMM_B_BYTES, own_half = mok_hw_cluster_cta();
#pragma unroll 1
    for (int32_t step = 0; step < run->num_steps; step++) {
        struct mok_stage *stage = &loader->shared->stage[loader->cursor.idx];
        uint64_t *full = &loader->shared->full[loader->cursor.idx];
        mok_fused_await_stage(loader);
        if (mok_hw_elect()) {
            mok_hw_mbarrier_arrive_expect_cta(full, bytes);
            if (run->loads_a) {
                mok_fused_load_a<BOXES>(run, stage, full, run->a_first + step * MOK_GEMM_DEPTH);
            }
            int32_t k = run->b_first + step * MOK_GEMM_DEPTH;
            if (shares_b) {
                mok_fused_load_half<BOXES, 1>(run, own_half, stage, full, k);
            } else {
                mok_fused_load_half<BOXES, 0>(run, 0, stage, full, k);
                mok_fused_load_half<BOXES, 0>(run, 1, stage, full, k);
            }
        }
        mok_cuda_advance<mok_tile_fused>(&loader->cursor);
    }
}

#endif
