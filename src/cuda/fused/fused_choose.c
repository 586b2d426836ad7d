/*
 * Minibatch, ring and look-ahead of the fused forward pass where the caller leaves them open. Pure: in: sizes, workers; tests/unit runs it.
 *
 * Measured on two H200s (docs/performance.md): with a look-ahead of one, fewer rows than fill all CTAs twice with every product make tiles wait
 * for tiles; more make the first pull longer. Four places let pulls run ahead of the products; more gain nothing.
 */
#include "cuda/fused/fused.h"

enum { PLACES = 4, LOOK_AHEAD = 1, UNIT_TILES = 2 /* row tiles of a unit, for a cluster of two */ };

void mok_cuda_fused_choose_ring(const mok_group_config *config, const struct mok_pass_setup *setup, struct mok_ring *ring)
{
    int64_t most = mok_plan_max_rows_any(&setup->dims);
    if (config->minibatch_rows == 0) {
        int64_t rows = mok_round_up(mok_plan_minibatch_rows(&setup->dims, setup->compute_workers, 0), UNIT_TILES * MOK_TILE_ROWS);
        ring->minibatch_rows = mok_min64(rows, most);
    }
    int64_t needed = mok_ceil_div(most, ring->minibatch_rows);
    ring->num_places = (int32_t)mok_min64(config->ring_minibatches > 0 ? config->ring_minibatches : PLACES, needed);
    ring->look_ahead = (int32_t)mok_min64(config->look_ahead > 0 ? config->look_ahead : LOOK_AHEAD, ring->num_places - 1);
}
