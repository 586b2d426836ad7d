/*
 * The two oracles (docs/numerics.md, "How it is checked"): the whole layer, forward and backward, over all ranks' tokens.
 *
 * Oracle 1 (oracle.c) is in double throughout and has no rounding point. It takes doubles, so that finite differences can check it.
 * Oracle 2 (rounded.c) has every rounding point of numerics.md, and sums its products in double. It also keeps the row of each route, and,
 * for dw and the weight gradients, the bound within which a backend must be.
 */
#ifndef MOK_REF_ORACLE_H
#define MOK_REF_ORACLE_H

#include "ref/real.h"

struct mok_ref_oracle {
    double *y, *dx;    /* [N, H] */
    double *dw;        /* [N, K], 0 where not routed */
    double *dshared_w; /* [N]; NULL without a shared expert */
    struct mok_ref_real_weights grads;        /* [E, ...] */
    struct mok_ref_real_weights shared_grads; /* [R, ...] */
    uint8_t *near_clamp; /* [N] 1: a g or u of this token is within one bf16 ulp of a clamp bound, so its dx may jump */
};

/* Errors: MEMORY. */
mok_status mok_ref_oracle_run(const struct mok_ref_real *real, struct mok_ref_oracle *oracle_out);
void mok_ref_oracle_free(struct mok_ref_oracle *oracle);

struct mok_ref_rounded {
    mok_bf16 *row_y;     /* [N * K, H] what the slots must hold after forward; routes that are not routed hold 0 */
    mok_bf16 *row_dx;    /* [N * K, H] the same after backward */
    mok_bf16 *shared_y;  /* [N, H] s_t, 0 without a shared expert */
    mok_bf16 *shared_dx; /* [N, H] */
    mok_bf16 *y, *dx;    /* [N, H] */
    double *dw, *dw_bound;               /* [N, K] */
    double *dshared_w, *dshared_w_bound; /* [N]; NULL without a shared expert */
    struct mok_ref_real_weights grads, shared_grads;
    struct mok_ref_real_weights grads_bound, shared_grads_bound;         /* without the final rounding to the gradient's dtype */
    struct mok_ref_real_weights grads_allowance, shared_grads_allowance; /* to be added: flips of g, u and what follows (operand.h) */
};

/* Errors: MEMORY. */
mok_status mok_ref_rounded_run(const struct mok_ref_problem *problem, struct mok_ref_rounded *rounded_out);
void mok_ref_rounded_free(struct mok_ref_rounded *rounded);

/* Both oracles of one problem. */
struct mok_ref_answer {
    struct mok_ref_oracle oracle;
    struct mok_ref_rounded rounded;
};
mok_status mok_ref_answer_make(const struct mok_ref_problem *problem, struct mok_ref_answer *answer_out);
void mok_ref_answer_free(struct mok_ref_answer *answer);

#endif
