/*
 * Who owns what, and how large things can get: pure arithmetic on the group's shape (words: design.md section 1).
 */
#ifndef MOK_PLAN_SHAPE_H
#define MOK_PLAN_SHAPE_H

#include "base/hd.h"
#include "base/limits.h"

enum {
    MOK_TILE_ROWS = 128, /* rows of a row tile; every expert's run of rows is padded to it */
    MOK_CHUNK_ROWS = 64  /* where rows are contracted, padding is zero up to a multiple of this */
};

/* The group's shape as plan functions take it. The same on all ranks but for `rank`. */
struct mok_dims {
    int32_t num_ranks;    /* R */
    int32_t rank;         /* this rank */
    int32_t num_experts;  /* E */
    int32_t top_k;        /* K */
    int32_t hidden;       /* H */
    int32_t inter;        /* I */
    int32_t shared_inter; /* Is, 0 = no shared expert */
    int64_t max_tokens;   /* T_max */
};

/* First expert of a rank: floor(rank * E / R). Rank R gives E. */
MOK_HD int32_t mok_plan_first_expert(int32_t num_experts, int32_t num_ranks, int32_t rank)
{
    return (int32_t)((int64_t)rank * num_experts / num_ranks);
}

MOK_HD int32_t mok_plan_num_local(int32_t num_experts, int32_t num_ranks, int32_t rank)
{
    return mok_plan_first_expert(num_experts, num_ranks, rank + 1) - mok_plan_first_expert(num_experts, num_ranks, rank);
}

/* The rank that owns expert e: the largest r with floor(r*E/R) <= e, that is ceil((e+1)*R/E) - 1. */
MOK_HD int32_t mok_plan_owner(int32_t num_experts, int32_t num_ranks, int32_t expert)
{
    return (int32_t)((((int64_t)expert + 1) * num_ranks + num_experts - 1) / num_experts) - 1;
}

/* Most padded rows that a rank can own: every route of every rank may go to its experts. 0 without local experts. */
MOK_HD int64_t mok_plan_max_rows(const struct mok_dims *dims)
{
    int64_t routes = (int64_t)dims->num_ranks * dims->max_tokens * dims->top_k;
    int64_t local = mok_plan_num_local(dims->num_experts, dims->num_ranks, dims->rank);
    int64_t active = mok_min64(local, routes);
    /* Each active expert wastes at most TILE_ROWS - 1 rows. */
    return local == 0 ? 0 : (routes + active * (MOK_TILE_ROWS - 1)) / MOK_TILE_ROWS * MOK_TILE_ROWS;
}

/* The same bound for the rank that can own most: for sizes that must be equal on all ranks. */
MOK_HD int64_t mok_plan_max_rows_any(const struct mok_dims *dims)
{
    int64_t routes = (int64_t)dims->num_ranks * dims->max_tokens * dims->top_k;
    int64_t local = mok_ceil_div(dims->num_experts, dims->num_ranks);
    int64_t active = mok_min64(local, routes);
    return (routes + active * (MOK_TILE_ROWS - 1)) / MOK_TILE_ROWS * MOK_TILE_ROWS;
}

#endif
