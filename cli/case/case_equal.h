/*
 * "Which bits are equal" (docs/numerics.md): one problem, run in many ways.
 *
 *   y, dx, dw, dshared_w   for every number of ranks, every spread of the tokens, minibatch, ring, look-ahead, role split, kept rows,
 * layout,
 *                          path, kind of peer, and from run to run
 *   weight gradients       the same at one number of ranks and one spread; else within the bounds of check 2
 */
#ifndef MOK_CASE_EQUAL_H
#define MOK_CASE_EQUAL_H

#include "case/case_bits.h"
#include "case/case_run.h"

/* One way to run. */
struct mok_case_way {
    const char *name;
    int32_t num_ranks; /* 0 = as the case */
    enum mok_case_ranks ranks;
    struct mok_ref_knobs knobs;
};

/* Ways that the backend has (case/case_list.h). */
int mok_case_way_count(const struct mok_case_where *where);
/* The idx-th of them for this case; T_max is the case's own unless the way is about it. */
struct mok_case_way mok_case_way_get(const struct mok_ref_case *recipe, const struct mok_case_where *where, int idx);

/* Tokens of each of num_ranks ranks: all different, from four ranks on one has none. Their sum is num_tokens. */
void mok_case_split(int64_t num_tokens, int32_t num_ranks, int64_t *tokens);

/* A case that has fewer ranks than num_ranks (at most MOK_REF_CASE_RANKS) gets so many, its tokens split as above; one that has as many stays as it is. */
void mok_case_spread(struct mok_ref_case *recipe, int32_t num_ranks);

/* Runs the case's first data as the case says, then in every way. Per way (array of mok_case_way_count entries) a result; num_differences
 * counts bits that differ from the first run, report has the checks of ways with other ranks. Returns the status of the first run. */
mok_status mok_case_equal(const struct mok_ref_case *recipe, const struct mok_case_where *where, struct mok_case_result *results_out);

#endif
