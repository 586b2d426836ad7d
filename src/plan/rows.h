/*
 * Row order (numerics.md): where a route's row stands among the rows of its expert. A pure function of counts.
 *
 * Source side. Each rank sorts its routes by expert, stably in the order (token, k), and publishes
 *     offset[E + 1]  offset[e] = number of its routes with an id below e; offset[E] = all routed
 *     list[T * K]    list[offset[e] + q] = token * K + k of its q-th route to expert e
 * Owner side. Round q of an expert takes the q-th route of each source that still has one, sources in the order rank+1, .., rank
 * (modulo R, `rank` the owner). So the q-th route of source s stands behind min(count[s'], q) routes of every source s' and behind
 * one more of each source that comes before s in the order and has more than q.
 */
#ifndef MOK_PLAN_ROWS_H
#define MOK_PLAN_ROWS_H

#include "plan/shape.h"

/* One row: where it came from. Padding rows have rank -1. */
struct mok_route {
    int32_t rank; /* source rank, -1 = padding */
    int32_t slot; /* token * K + k at the source */
};

/* Place of source s in the owner's order: 0 for rank+1, R-1 for the owner itself. */
MOK_HD int32_t mok_plan_source_turn(int32_t num_ranks, int32_t owner, int32_t source)
{
    return (source - owner - 1 + 2 * num_ranks) % num_ranks;
}

/* The source whose turn it is: inverse of mok_plan_source_turn. */
MOK_HD int32_t mok_plan_source_at(int32_t num_ranks, int32_t owner, int32_t turn)
{
    return (owner + 1 + turn) % num_ranks;
}

/* Row, counted from the expert's first row, of the q-th route of `source`. counts[s * stride] = routes of source s to this expert. */
MOK_HD int64_t mok_plan_row_in_expert(const int32_t *counts, int64_t stride, int32_t num_ranks, int32_t owner, int32_t source, int32_t q)
{
    int32_t turn = mok_plan_source_turn(num_ranks, owner, source);
    int64_t row = 0;
    for (int32_t s = 0; s < num_ranks; s++) {
        int32_t count = counts[s * stride];
        row += count < q ? count : q;
        row += count > q && mok_plan_source_turn(num_ranks, owner, s) < turn;
    }
    return row;
}

/* An id as the schedule takes it: outside [0, E) is not routed. */
MOK_HD int mok_plan_is_routed(int32_t id, int32_t num_experts) { return id >= 0 && id < num_experts; }
/* Outside [-1, E): counted and reported (promise 5). */
MOK_HD int mok_plan_is_bad_id(int32_t id, int32_t num_experts) { return id < -1 || id >= num_experts; }

#endif
