/*
 * Are the bits of two runs equal? The first difference is named.
 */
#ifndef MOK_CASE_BITS_H
#define MOK_CASE_BITS_H

#include "ref/compare.h"

struct mok_case_bits {
    int64_t num_differences; /* values */
    char difference[256];    /* the first */
};

/* y, dx, dw and, with a shared expert, dshared_w of the tokens first .. first+num-1. `skip` [N], may be NULL: tokens that are left out. */
void mok_case_bits_tokens(const struct mok_ref_problem *problem, const struct mok_ref_outputs *a, const struct mok_ref_outputs *b,
                          int64_t first,
                          int64_t num, const uint8_t *skip, const char *what, struct mok_case_bits *bits);

/* Weight gradients of the experts of the ranks in scope, and of the shared expert on these ranks. `skip` [E], may be NULL: experts that
 * are left out; with it, the shared expert is, too. */
void mok_case_bits_grads(const struct mok_ref_problem *problem, const struct mok_ref_outputs *a, const struct mok_ref_outputs *b,
                         struct mok_ref_scope scope, const uint8_t *skip, const char *what, struct mok_case_bits *bits);

/* One more difference. */
void mok_case_bits_note(struct mok_case_bits *bits, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
