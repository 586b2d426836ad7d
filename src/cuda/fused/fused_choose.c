/*
 * Minibatch, ring and look-ahead of the fused passes, where the caller leaves them open. Pure: in: sizes, workers; tests/unit runs it.
 *
 * Forward, measured on two H200s (docs/performance.md, sweeps): with a look-ahead of one, minibatches of fewer rows than fill all CTAs twice with every
 * product make tiles wait for tiles; more rows gain a little. But every product waits for the first pull, unless a shared expert's products
 * come before: without one the first minibatch has no more rows than it must have.
 * Narrow experts are the exception: filling all CTAs would take many rows, but moving them takes longer than multiplying them, so tiles that wait for
 * tiles cost nothing, and the first pull and the last push all the more (one H200, intermediate 320: 4,096 rows 15% faster than 13,568).
 * Four places let pulls run ahead of the products; two are too few, and eight take memory away from the products early in the pass.
 */
#include "cuda/fused/fused.h"

enum {
    MOST_ROWS = 8192,
    NARROW_INTER = 704, /* measured: 320 is narrow, 768 is not */
    NARROW_ROWS = 4096,
    PLACES = 4,
    LOOK_AHEAD = 1,
    UNIT_TILES = 2 /* row tiles of a unit, for a cluster of two */
};

static int is_narrow(const struct mok_dims *dims) { return dims->inter < NARROW_INTER && 2 * (int64_t)dims->inter <= dims->hidden; }

void mok_cuda_fused_choose_ring(const mok_group_config *config, const struct mok_pass_setup *setup, struct mok_ring *ring)
{
    int64_t most = mok_plan_max_rows_any(&setup->dims);
    if (config->minibatch_rows == 0) {
        int64_t rows = mok_plan_minibatch_rows(&setup->dims, setup->compute_workers, 0);
        if (is_narrow(&setup->dims)) {
            rows = mok_min64(rows, NARROW_ROWS);
        } else if (setup->dims.shared_inter > 0) { /* two minibatches at least, if all ranks bring T_max tokens to as many experts */
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
    int64_t rows = mok_plan_minibatch_rows(&setup->dims, setup->compute_workers, 1) / 2;
    rows = is_narrow(&setup->dims) ? mok_min64(rows, NARROW_ROWS) : rows;
    return mok_round_up(rows, UNIT_TILES * MOK_TILE_ROWS);
}
