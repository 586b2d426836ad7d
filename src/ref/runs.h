/*
 * The routes of a problem, expert by expert: route = token * K + k over all ranks' tokens, ascending inside an expert.
 */
#ifndef MOK_REF_RUNS_H
#define MOK_REF_RUNS_H

#include "ref/problem.h"

struct mok_ref_runs {
    int64_t *first; /* [E + 1] where the routes of an expert begin in `route` */
    int64_t *route; /* [first[E]] */
    int64_t *token; /* [first[E]] route / K */
    int64_t longest;
};

/* Errors: MEMORY. */
mok_status mok_ref_runs_make(const struct mok_ref_problem *problem, struct mok_ref_runs *runs_out);
void mok_ref_runs_free(struct mok_ref_runs *runs);

#endif
