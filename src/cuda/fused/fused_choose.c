/*
 * Minibatch, ring and look-ahead of the fused passes, where the caller leaves them open. Pure: in: sizes, workers; tests/unit runs it.
 *
 * Forward, measured on two H200s (docs/performance.md, sweeps): with a look-ahead of one, minibatches of fewer rows than fill all CTAs twice with every
 * product make tiles wait for tiles; more rows gain a little. But every product waits for the first pull, unless a shared expert's products
 * come before: without one the first minibatch has no more rows than it must have.
 * Four places let pulls run ahead of the products; two are too few, and eight take memory away from the products early in the pass.
 */
#include "cuda/fused/fused.h"

enum { MOST_ROWS = 8192, PLACES = 4, LOOK_AHEAD = 1, UNIT_TILES = 2 /* row tiles of a unit, for a cluster of two */ };

void mok_cuda_fused_choose_ring(const mok_group_config *config, const struct mok_pass_setup *setup, struct mok_ring *ring)
{
    int64_t most = mok_plan_max_rows_any(&setup->dims);
    if (config->minibatch_rows == 0) {
        int64_t rows = mok_plan_minibatch_rows(&setup->dims, setup->compute_workers, 0);
        if (setup->dims.shared_inter > 0) { /* two minibatches at least, if all ranks bring T_max tokens to as many experts */
            rows = mok_max64(rows, mok_min64(setup->dims.max_tokens * setup->dims.top_k / 2, MOST_ROWS));
        }
        rows = mok_round_up(rows, UNIT_TILES * MOK_TILE_ROWS);
        ring->minibatch_rows = mok_min64(rows, most);
    }
    int64_t needed = mok_ceil_div(most, ring->minibatch_rows);
    ring->num_places = (int32_t)mok_min64(config->ring_minibatches > 0 ? config->ring_minibatches : PLACES, needed);
    ring->look_ahead = (int32_t)mok_min64(config->look_ahead > 0 ? config->look_ahead : LOOK_AHEAD, ring->num_places - 1);
}

/* Half of what fills all CTAs twice: products wait for the first pull, and with a ring of one lap nothing else asks for large minibatches. */
int64_t mok_cuda_fused_backward_rows(const struct mok_pass_setup *setup)
{
    return mok_round_up(mok_plan_minibatch_rows(&setup->dims, setup->compute_workers, 1) / 2, UNIT_TILES * MOK_TILE_ROWS);
}
