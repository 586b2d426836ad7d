/*
 * Minibatch, ring and look-ahead of the fused passes, where the caller leaves them open. Pure: in: sizes, workers; tests/unit runs it.
 *
 * Forward, measured on two H200s (docs/performance.md, sweeps): with a look-ahead of one, minibatches of fewer rows than fill all CTAs twice with every
 * product make tiles wait for tiles; more rows gain a little. But every product waits for the first pull, unless a shared expert's products
 * come before: without one the first minibatch has no more rows than it must have.
 * Narrow experts are the exception: filling all CTAs would take many rows, but moving them takes longer than multiplying them, so tiles that wait for
 * tiles cost nothing, and the first pull and the last push all the more (one H200, intermediate 320: 4,096 rows 15% faster than 13,568).
 * Few rows an expert: weights come from memory almost as slowly as they are multiplied, so what else goes there counts. In small minibatches x and h stay
 * in L2 from who writes them to who reads them (two H200s, deepseek-v4-pro, 256 rows an expert: 1,024 rows 5 to 10% faster than 8,192 forward, 2.4% faster
 * than 1,536 backward).
 * Four places let pulls run ahead of the products; two are too few, and eight take memory away from the products early in the pass.
 */
#include "cuda/fused/fused.h"

enum {
    MOST_ROWS = 8192,
    NARROW_INTER = 704, /* measured: 320 is narrow, 768 is not */
    NARROW_ROWS = 4096,
    FEW_ROWS = 2 * MOK_TILE_ROWS, /* of an expert, in the mean */
    FEW_BYTES = 20 << 20,         /* x and h of a minibatch then: two minibatches are at work in 60 MB of L2 */
    PLACES = 4,
    LOOK_AHEAD = 1,
    UNIT_TILES = 2 /* row tiles of a unit, for a cluster of two */
};

static int is_narrow(const struct mok_dims *dims) { return dims->inter < NARROW_INTER && 2 * (int64_t)dims->inter <= dims->hidden; }

static int has_few_rows(const struct mok_dims *dims)
{
    return (int64_t)dims->num_ranks * dims->max_tokens * dims->top_k <= (int64_t)FEW_ROWS * dims->num_experts;
}

static int is_restricted(const struct mok_dims *dims) { return is_narrow(dims) || has_few_rows(dims); }

/* Of `rows`, what narrow experts and few rows leave. */
static int64_t restrict_rows(const struct mok_dims *dims, int64_t rows)
{
    if (has_few_rows(dims)) { /* but not less than half of what others take */
        rows = mok_min64(rows, mok_max64(rows / 2, FEW_BYTES / (2 * ((int64_t)dims->hidden + dims->inter))));
    }
    return is_narrow(dims) ? mok_min64(rows, NARROW_ROWS) : rows;
}

void mok_cuda_fused_choose_ring(const mok_group_config *config, const struct mok_pass_setup *setup, struct mok_ring *ring)
{
    int64_t most = mok_plan_max_rows_any(&setup->dims);
    if (config->minibatch_rows == 0) {
        int64_t rows = restrict_rows(&setup->dims, mok_plan_minibatch_rows(&setup->dims, setup->compute_workers, 0));
        if (!is_restricted(&setup->dims) && setup->dims.shared_inter > 0) {
            /* Two minibatches at least, if all ranks bring T_max tokens to as many experts. */
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
    return mok_round_up(restrict_rows(&setup->dims, rows), UNIT_TILES * MOK_TILE_ROWS);
}
