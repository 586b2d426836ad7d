/*
 * A problem in doubles, and arrays of doubles as both oracles allocate them.
 */
#ifndef MOK_REF_REAL_H
#define MOK_REF_REAL_H

#include "ref/problem.h"

/* Zeroed and never NULL for a count of 0. *failed becomes 1 when there is no memory, so that one test after many calls is enough. */
double *mok_ref_zeroed(int64_t count, int *failed);

/* gate, up [num, width, H]; down [num, H, width]. */
struct mok_ref_real_weights {
    double *gate, *up, *down;
};

/* A problem in doubles. Sizes, ids and activation come from `of`; its bf16 and fp32 arrays are not looked at. */
struct mok_ref_real {
    const struct mok_ref_problem *of;
    double *x, *dy;   /* [N, H] */
    double *w;        /* [N, K] */
    double *shared_w; /* [N] or NULL = 1 */
    struct mok_ref_real_weights routed, shared;
    struct mok_ref_real_weights start, shared_start; /* MOK_GRAD_ADD, else NULL */
};

/* Errors: MEMORY. */
mok_status mok_ref_real_make(const struct mok_ref_problem *problem, struct mok_ref_real *real_out);
void mok_ref_real_free(struct mok_ref_real *real);

void mok_ref_real_weights_alloc(struct mok_ref_real_weights *weights, int64_t num, int64_t width, int64_t hidden, int *failed);
void mok_ref_real_weights_free(struct mok_ref_real_weights *weights);

#endif
