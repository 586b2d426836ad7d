/*
 * Minibatches, the ring and the counters (protocol.md sections 2 to 5).
 *
 * Padded rows 0 .. num_rows-1 are cut into minibatches of minibatch_rows; minibatch g uses place g mod num_places of the ring; so padded row r
 * stands at ring row r mod (minibatch_rows * num_places). Rows below keep_rows have their x, g, u in the saved object at row r instead;
 * h, y (forward) and dy, dg, du, w*h, dx (backward) of every row stand in the ring.
 */
#ifndef MOK_PLAN_RING_H
#define MOK_PLAN_RING_H

#include "plan/shape.h"

/* Fixed at creation. keep_rows is the same on all ranks; the others are a rank's own affair. All rows are multiples of MOK_TILE_ROWS. */
struct mok_ring {
    int64_t minibatch_rows;
    int64_t keep_rows;   /* per saved object */
    int32_t num_places;  /* >= 1 */
    int32_t look_ahead;  /* 0 .. num_places - 1 */
};

MOK_HD int64_t mok_plan_ring_rows(const struct mok_ring *ring) { return ring->minibatch_rows * ring->num_places; }

/* Ring row of a padded row. */
MOK_HD int64_t mok_plan_ring_row(const struct mok_ring *ring, int64_t row) { return row % mok_plan_ring_rows(ring); }

/*
 * Starting value of the minibatch: every GEMM of it fills `compute_workers` workers twice:
 * rows >= 2 * C * 128 * 256 / n, n the fewest output columns of a row: min(2I, H) forward, min(I, H) backward.
 */
MOK_HD int64_t mok_plan_minibatch_rows(const struct mok_dims *dims, int32_t compute_workers, int backward)
{
    int64_t columns = mok_min64(backward ? dims->inter : 2 * (int64_t)dims->inter, dims->hidden);
    int64_t rows = mok_ceil_div(2 * (int64_t)compute_workers * 128 * 256, columns);
    return mok_round_up(rows, MOK_TILE_ROWS);
}

/* Counters of one pass: one flat uint32 array, all zero before the pass. */
enum mok_counter {
    MOK_COUNT_PULLED,        /* [minibatch]  pull of all communication workers -> gate+up, recompute, D */
    MOK_COUNT_PLACE_FREE,    /* [minibatch]  nothing needs the place of this minibatch any more -> pull of minibatch + num_places */
    MOK_COUNT_H_DONE,        /* [row tile]   all gate+up tiles -> down */
    MOK_COUNT_Y_DONE,        /* [row tile]   all down tiles -> push */
    MOK_COUNT_G_DONE,        /* [row tile]   all recompute tiles -> D */
    MOK_COUNT_D_DONE,        /* [row tile]   all D tiles -> E, weight gradients */
    MOK_COUNT_E_DONE,        /* [row tile]   all E tiles -> push of dx */
    MOK_COUNT_CARRY_DONE,    /* [lap]        weight-gradient tiles of the expert that goes on -> its tiles of the next lap */
    MOK_COUNT_SHARED_G_DONE, /* [token tile] shared expert: gate+up (forward: h; backward: recomputed g, u) */
    MOK_COUNT_SHARED_D_DONE, /* [token tile] shared expert: D tiles -> E, weight gradients */
    MOK_COUNT_SHARED_DONE,   /* [1]          shared-expert rows that the final sum needs (down tiles; backward: E tiles and D tiles) */
    MOK_NUM_COUNTERS
};

/* How many of each a group can need. */
struct mok_limits {
    int64_t max_rows;        /* padded */
    int64_t max_tiles;       /* row tiles */
    int64_t max_minibatches;
    int64_t max_laps;
    int64_t max_token_tiles; /* row tiles of the shared expert; 0 without one */
};

MOK_HD struct mok_limits mok_plan_limits(const struct mok_dims *dims, const struct mok_ring *ring)
{
    struct mok_limits limits;
    limits.max_rows = mok_plan_max_rows_any(dims);
    limits.max_tiles = limits.max_rows / MOK_TILE_ROWS;
    limits.max_minibatches = mok_ceil_div(limits.max_rows, ring->minibatch_rows);
    limits.max_laps = mok_ceil_div(limits.max_minibatches, ring->num_places);
    limits.max_token_tiles = dims->shared_inter > 0 ? mok_ceil_div(dims->max_tokens, MOK_TILE_ROWS) : 0;
    return limits;
}

/* Index of the first counter of a kind in the flat array; kind MOK_NUM_COUNTERS gives the length of the array. */
MOK_HD int64_t mok_plan_counter_base(const struct mok_limits *limits, int kind)
{
    int64_t base = 0;
    for (int k = 0; k < kind; k++) {
        int64_t count = limits->max_tiles;
        if (k == MOK_COUNT_PULLED || k == MOK_COUNT_PLACE_FREE) {
            count = limits->max_minibatches;
        } else if (k == MOK_COUNT_CARRY_DONE) {
            count = limits->max_laps;
        } else if (k == MOK_COUNT_SHARED_G_DONE || k == MOK_COUNT_SHARED_D_DONE) {
            count = limits->max_token_tiles;
        } else if (k == MOK_COUNT_SHARED_DONE) {
            count = 1;
        }
        base += count;
    }
    return base;
}

#endif
