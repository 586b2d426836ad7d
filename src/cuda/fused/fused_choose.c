/*
 * Path, and minibatch, ring and look-ahead of the fused forward pass, where the caller leaves them open. Pure: in: sizes, workers; tests/unit runs it.
 *
 * Measured on two H200s (docs/performance.md): with a look-ahead of one, minibatches of fewer rows than fill all CTAs twice with every product
 * make tiles wait for tiles. More rows gain a little, until the first pull, which nothing hides, weighs: with narrow experts it does early.
 * Four places let pulls run ahead of the products; more gain nothing.
 */
#include "cuda/fused/fused.h"

enum { NARROW = 1024, MOST_ROWS = 8192, PLACES = 4, LOOK_AHEAD = 1, UNIT_TILES = 2 /* row tiles of a unit, for a cluster of two */ };

/* AUTO: forward passes are fused: never slower than the staged path where both were measured. Backward passes are staged: fused ones were
 * slower by 3% (narrow experts) to 12%. */
void mok_cuda_fused_choose_path(const mok_group_config *config, struct mok_pass_setup *setup)
{
    setup->path = config->path == MOK_PATH_STAGED ? MOK_PATH_STAGED : MOK_PATH_FUSED;
    setup->path_backward = config->path == MOK_PATH_FUSED ? MOK_PATH_FUSED : MOK_PATH_STAGED;
}

void mok_cuda_fused_choose_ring(const mok_group_config *config, const struct mok_pass_setup *setup, struct mok_ring *ring)
{
    int64_t most = mok_plan_max_rows_any(&setup->dims);
    if (config->minibatch_rows == 0) {
        int64_t expected = setup->dims.max_tokens * setup->dims.top_k / (setup->dims.inter < NARROW ? 8 : 2);
        int64_t rows = mok_max64(mok_plan_minibatch_rows(&setup->dims, setup->compute_workers, 0), mok_min64(expected, MOST_ROWS));
        rows = mok_round_up(rows, UNIT_TILES * MOK_TILE_ROWS);
        ring->minibatch_rows = mok_min64(rows, most);
    }
    int64_t needed = mok_ceil_div(most, ring->minibatch_rows);
    ring->num_places = (int32_t)mok_min64(config->ring_minibatches > 0 ? config->ring_minibatches : PLACES, needed);
    ring->look_ahead = (int32_t)mok_min64(config->look_ahead > 0 ? config->look_ahead : LOOK_AHEAD, ring->num_places - 1);
}
