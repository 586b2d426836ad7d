/*
 * Equality of bits. A NaN equals any NaN: which one a sum of NaNs gives is the machine's choice.
 */
#include "case/case_bits.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void mok_case_bits_note(struct mok_case_bits *bits, const char *format, ...)
{
    if (bits->num_differences == 0) {
        va_list args;
        va_start(args, format);
        vsnprintf(bits->difference, sizeof bits->difference, format, args);
        va_end(args);
    }
    bits->num_differences++;
}

static int is_same_float(float a, float b) { return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)); }

static void compare_bf16(const mok_bf16 *a, const mok_bf16 *b, int64_t count, int64_t token, const char *name, const char *what,
                         struct mok_case_bits *bits)
{
    for (int64_t j = 0; j < count; j++) {
        float fa = mok_bf16_to_float(a[j]), fb = mok_bf16_to_float(b[j]);
        if (!is_same_float(fa, fb)) {
            mok_case_bits_note(bits, "%s: %s of token %lld, column %lld: %.9g and %.9g", what, name, (long long)token, (long long)j,
                               (double)fa, (double)fb);
        }
    }
}

static void compare_fp32(const float *a, const float *b, int64_t count, int64_t idx, const char *name, const char *what,
                         struct mok_case_bits *bits)
{
    for (int64_t j = 0; j < count; j++) {
        if (!is_same_float(a[j], b[j])) {
            mok_case_bits_note(bits, "%s: %s %lld, element %lld: %.9g and %.9g", what, name, (long long)idx, (long long)j, (double)a[j],
                               (double)b[j]);
        }
    }
}

void mok_case_bits_tokens(const struct mok_ref_problem *problem, const struct mok_ref_outputs *a, const struct mok_ref_outputs *b,
                          int64_t first, int64_t num, const uint8_t *skip, const char *what, struct mok_case_bits *bits)
{
    int64_t hidden = problem->hidden, top_k = problem->top_k;
    for (int64_t t = first; t < first + num; t++) {
        if (skip != NULL && skip[t]) {
            continue;
        }
        compare_bf16(a->y + t * hidden, b->y + t * hidden, hidden, t, "y", what, bits);
        compare_bf16(a->dx + t * hidden, b->dx + t * hidden, hidden, t, "dx", what, bits);
        compare_fp32(a->dw + t * top_k, b->dw + t * top_k, top_k, t, "dw of token", what, bits);
        if (problem->shared_inter > 0) {
            compare_fp32(a->dshared_w + t, b->dshared_w + t, 1, t, "dshared_w of token", what, bits);
        }
    }
}

static void compare_ffn(const struct mok_ref_grads *a, const struct mok_ref_grads *b, int64_t idx, int64_t matrix, const char *shared,
                        const char *what, struct mok_case_bits *bits)
{
    const float *from[3] = {a->gate, a->up, a->down}, *other[3] = {b->gate, b->up, b->down};
    const char *const names[3] = {"dgate of", "dup of", "ddown of"};
    for (int m = 0; m < 3; m++) {
        char name[64];
        snprintf(name, sizeof name, "%s %s", names[m], shared);
        compare_fp32(from[m] + idx * matrix, other[m] + idx * matrix, matrix, idx, name, what, bits);
    }
}

void mok_case_bits_grads(const struct mok_ref_problem *problem, const struct mok_ref_outputs *a, const struct mok_ref_outputs *b,
                         struct mok_ref_scope scope, const uint8_t *skip, const char *what, struct mok_case_bits *bits)
{
    int32_t last = scope.first_rank + scope.num_ranks;
    for (int32_t e = mok_ref_first_expert(problem, scope.first_rank); e < mok_ref_first_expert(problem, last); e++) {
        if (skip == NULL || !skip[e]) {
            compare_ffn(&a->grads, &b->grads, e, (int64_t)problem->inter * problem->hidden, "expert", what, bits);
        }
    }
    for (int32_t r = scope.first_rank; problem->shared_inter > 0 && skip == NULL && r < last; r++) {
        compare_ffn(&a->shared_grads, &b->shared_grads, r, (int64_t)problem->shared_inter * problem->hidden, "the shared expert on rank",
                    what, bits);
    }
}
