/*
 * Oracle 2 made to play a backend: with products of another kind, or with its operands watched or spoilt. For mutants and experiments;
 * checks use mok_ref_rounded_run.
 */
#ifndef MOK_REF_ROUNDED_H
#define MOK_REF_ROUNDED_H

#include "ref/oracle.h"

/* The rows of one expert behind the activation, before anything is made from them but dw. A watcher may change the four values. */
struct mok_ref_rows {
    int32_t expert; /* -1 = the shared expert */
    int64_t num_rows, width;
    const int64_t *place;     /* [num_rows] the route; of the shared expert: the token */
    const float *w;           /* by place; NULL = 1 */
    double *h, *wh, *dg, *du; /* [num_rows, width] */
    const double *wh_allowance, *dg_allowance, *du_allowance; /* [num_rows, width] */
};

struct mok_ref_play {
    void (*product_nt)(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c); /* as those of product.h */
    void (*product_nn)(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c);
    void (*product_tn)(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c);
    /* Called for every expert with rows, in order, then for the shared expert of every rank; NULL = nobody watches. */
    void (*operands)(void *context, const struct mok_ref_rows *rows);
    void *context;
};

/* Oracle 2 itself. */
extern const struct mok_ref_play mok_ref_plain_play;

/* Errors: MEMORY. */
mok_status mok_ref_rounded_play(const struct mok_ref_problem *problem, const struct mok_ref_play *play,
                                struct mok_ref_rounded *rounded_out);

#endif
