/*
 * Check 3 of docs/numerics.md: y and dx, bit for bit, are the sums over the backend's own slots; and rows in the L2 norm against oracle 2,
 * which sees a weight that is off by 1% where 2 ulp do not.
 */
#include <math.h>
#include <stdlib.h>

#include "ref/compare.h"
#include "ref/sum.h"

/* Equal bits, or NaN on both sides (which NaN it is, numerics.md leaves open). */
static int is_same(mok_bf16 a, mok_bf16 b)
{
    float fa = mok_bf16_to_float(a), fb = mok_bf16_to_float(b);
    return a == b || (isnan(fa) && isnan(fb));
}

static void note_bits(struct mok_ref_report *report, enum mok_ref_check check, struct mok_ref_spot spot, const mok_bf16 *got,
                      const mok_bf16 *expected, int64_t hidden)
{
    int64_t at = 0;
    while (at < hidden - 1 && is_same(got[at], expected[at])) {
        at++;
    }
    spot.column = at;
    mok_ref_report_note(report, check, spot, is_same(got[at], expected[at]) ? 0.0 : INFINITY, 0.0, (double)mok_bf16_to_float(got[at]),
                        (double)mok_bf16_to_float(expected[at]));
}

/* L2 norm of the error of a row within 2^-7.6 of the row's norm. */
static void note_norm(struct mok_ref_report *report, enum mok_ref_check check, struct mok_ref_spot spot, const mok_bf16 *got,
                      const mok_bf16 *expected, int64_t hidden)
{
    double error2 = 0.0, norm2 = 0.0, got2 = 0.0;
    for (int64_t j = 0; j < hidden; j++) {
        double a = (double)mok_bf16_to_float(got[j]), b = (double)mok_bf16_to_float(expected[j]);
        if (isnan(a) && isnan(b)) {
            continue;
        }
        error2 += a == b ? 0.0 : (a - b) * (a - b); /* NaN on one side makes the error NaN, which fails */
        norm2 += b * b;
        got2 += a * a;
    }
    mok_ref_report_note(report, check, spot, sqrt(error2), exp2(-7.6) * sqrt(norm2), sqrt(got2), sqrt(norm2));
}

static void compare_slots(const struct mok_ref_problem *problem, const struct mok_ref_rounded *rounded,
                          const struct mok_ref_outputs *outputs, struct mok_ref_spot spot, int64_t token, struct mok_ref_report *report)
{
    if (problem->hidden < 32 || problem->inter < 32) {
        return; /* too few terms for a norm to mean much */
    }
    for (int32_t k = 0; k < problem->top_k; k++) {
        int64_t route = token * problem->top_k + k;
        int64_t at = route * problem->hidden;
        if (mok_ref_is_routed(problem, route)) {
            spot.inner = k;
            note_norm(report, MOK_CHECK_Y_SLOT, spot, outputs->y_slots + at, rounded->row_y + at, problem->hidden);
            note_norm(report, MOK_CHECK_DX_SLOT, spot, outputs->dx_slots + at, rounded->row_dx + at, problem->hidden);
        }
    }
}

void mok_ref_compare_exact(const struct mok_ref_problem *problem, const struct mok_ref_rounded *rounded,
                           const struct mok_ref_outputs *outputs, struct mok_ref_scope scope, struct mok_ref_report *report)
{
    int64_t hidden = problem->hidden;
    mok_bf16 *row = malloc((size_t)hidden * sizeof(mok_bf16));
    int has_shared = problem->shared_inter > 0;
    int has_slots = outputs->y_slots != NULL && outputs->dx_slots != NULL;
    int has_sums = has_slots && (!has_shared || (outputs->shared_y != NULL && outputs->shared_dx != NULL));
    for (int32_t rank = scope.first_rank; rank < scope.first_rank + scope.num_ranks; rank++) {
        int64_t first = mok_ref_first_token(problem, rank);
        for (int64_t t = 0; t < problem->tokens[rank]; t++) {
            struct mok_ref_spot spot = {rank, t, -1, -1};
            int64_t at = (first + t) * hidden;
            if (problem->top_k == 1 && hidden >= 256 && !has_shared) {
                note_norm(report, MOK_CHECK_DX_SINGLE, spot, outputs->dx + at, rounded->dx + at, hidden);
            }
            if (has_slots) {
                compare_slots(problem, rounded, outputs, spot, first + t, report);
            }
            if (has_sums && row == NULL) {
                mok_ref_report_note(report, MOK_CHECK_Y_SUM, spot, INFINITY, 0.0, 0.0, 0.0); /* no memory to look: not a pass */
            } else if (has_sums) {
                mok_ref_sum_y(problem, outputs->y_slots, has_shared ? outputs->shared_y : NULL, first + t, row);
                note_bits(report, MOK_CHECK_Y_SUM, spot, outputs->y + at, row, hidden);
                mok_ref_sum_dx(problem, outputs->dx_slots, has_shared ? outputs->shared_dx : NULL, first + t, row);
                note_bits(report, MOK_CHECK_DX_SUM, spot, outputs->dx + at, row, hidden);
            }
        }
    }
    free(row);
}
