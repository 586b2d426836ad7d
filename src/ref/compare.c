/*
 * Checks 1 and 2 of docs/numerics.md. Which tokens and experts are looked at follows from the ranks in scope.
 */
#include "ref/compare.h"

#include <math.h>
#include <string.h>

/* |got - expected|; NaN on both sides is equal, on one side an infinite error. */
static double error_of(double got, double expected)
{
    if (isnan(got) || isnan(expected)) {
        return isnan(got) && isnan(expected) ? 0.0 : INFINITY;
    }
    return got == expected ? 0.0 : fabs(got - expected);
}

static double from_bf16(mok_bf16 bits) { return (double)mok_bf16_to_float(bits); }

/* One row of y or dx against oracle 1: both norms. */
static void note_real_row(struct mok_ref_report *report, enum mok_ref_check l2, enum mok_ref_check largest, struct mok_ref_spot spot,
                          const mok_bf16 *got, const double *expected, int64_t hidden)
{
    double error2 = 0.0, norm2 = 0.0, got2 = 0.0, top = 0.0, worst = -1.0;
    int64_t at = 0;
    for (int64_t j = 0; j < hidden; j++) {
        double error = error_of(from_bf16(got[j]), expected[j]);
        error2 += error * error;
        if (!isnan(expected[j])) {
            norm2 += expected[j] * expected[j];
            got2 += from_bf16(got[j]) * from_bf16(got[j]);
            top = fmax(top, fabs(expected[j]));
        }
        if (error > worst) {
            worst = error;
            at = j;
        }
    }
    mok_ref_report_note(report, l2, spot, sqrt(error2), ldexp(sqrt(norm2), -6), sqrt(got2), sqrt(norm2));
    spot.column = at;
    mok_ref_report_note(report, largest, spot, worst, top == 0.0 ? 0.0 : 4.0 * mok_ref_bf16_ulp(top), from_bf16(got[at]), expected[at]);
}

/* One row of y or dx against oracle 2: 2 bf16 ulp of the row's largest magnitude. */
static void note_rounded_row(struct mok_ref_report *report, enum mok_ref_check check, struct mok_ref_spot spot, const mok_bf16 *got,
                             const mok_bf16 *expected, int64_t hidden)
{
    double top = 0.0, worst = -1.0;
    for (int64_t j = 0; j < hidden; j++) {
        double error = error_of(from_bf16(got[j]), from_bf16(expected[j]));
        top = isnan(from_bf16(expected[j])) ? top : fmax(top, fabs(from_bf16(expected[j])));
        if (error > worst) {
            worst = error;
            spot.column = j;
        }
    }
    mok_ref_report_note(report, check, spot, worst, top == 0.0 ? 0.0 : 2.0 * mok_ref_bf16_ulp(top), from_bf16(got[spot.column]),
                        from_bf16(expected[spot.column]));
}

/* Check 1 speaks of widths from 32 on: below, too few terms average out. */
static int is_wide(const struct mok_ref_problem *p)
{
    return p->hidden >= 32 && p->inter >= 32 && (p->shared_inter == 0 || p->shared_inter >= 32);
}

void mok_ref_compare_oracle(const struct mok_ref_problem *problem, const struct mok_ref_oracle *oracle,
                            const struct mok_ref_outputs *outputs, struct mok_ref_scope scope, struct mok_ref_report *report)
{
    int64_t hidden = problem->hidden;
    if (!is_wide(problem)) {
        return;
    }
    for (int32_t rank = scope.first_rank; rank < scope.first_rank + scope.num_ranks; rank++) {
        int64_t first = mok_ref_first_token(problem, rank);
        for (int64_t t = 0; t < problem->tokens[rank]; t++) {
            struct mok_ref_spot spot = {rank, t, -1, -1};
            int64_t at = (first + t) * hidden;
            note_real_row(report, MOK_CHECK_Y_L2, MOK_CHECK_Y_LARGEST, spot, outputs->y + at, oracle->y + at, hidden);
            if (oracle->near_clamp[first + t]) {
                report->worst[MOK_CHECK_DX_L2].num_left_out++;
                report->worst[MOK_CHECK_DX_LARGEST].num_left_out++;
            } else {
                note_real_row(report, MOK_CHECK_DX_L2, MOK_CHECK_DX_LARGEST, spot, outputs->dx + at, oracle->dx + at, hidden);
            }
        }
    }
}

static int is_positive_zero(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits == 0;
}

static int is_same_bits(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

static void compare_tokens(const struct mok_ref_problem *problem, const struct mok_ref_rounded *rounded,
                           const struct mok_ref_outputs *outputs, int32_t rank, struct mok_ref_report *report)
{
    int64_t first = mok_ref_first_token(problem, rank), hidden = problem->hidden;
    for (int64_t t = 0; t < problem->tokens[rank]; t++) {
        int64_t at = (first + t) * hidden;
        struct mok_ref_spot spot = {rank, t, -1, -1};
        note_rounded_row(report, MOK_CHECK_Y, spot, outputs->y + at, rounded->y + at, hidden);
        note_rounded_row(report, MOK_CHECK_DX, spot, outputs->dx + at, rounded->dx + at, hidden);
        for (int32_t k = 0; k < problem->top_k; k++) {
            int64_t route = (first + t) * problem->top_k + k;
            double got = (double)outputs->dw[route];
            double error = error_of(got, rounded->dw[route]);
            spot.inner = k;
            if (!mok_ref_is_routed(problem, route)) {
                error = is_positive_zero(outputs->dw[route]) ? 0.0 : INFINITY;
            }
            mok_ref_report_note(report, MOK_CHECK_DW, spot, error, rounded->dw_bound[route], got, rounded->dw[route]);
        }
        spot.inner = -1;
        if (problem->shared_inter > 0 && outputs->dshared_w != NULL) {
            double got = (double)outputs->dshared_w[first + t];
            double expected = rounded->dshared_w[first + t];
            mok_ref_report_note(report, MOK_CHECK_DSHARED_W, spot, error_of(got, expected), rounded->dshared_w_bound[first + t], got,
                                expected);
        }
    }
}

/* What compare_matrix needs to know of one gradient matrix [rows, columns]. */
struct matrix {
    enum mok_ref_check check;
    int64_t rows, columns;
    const float *got;
    const float *start; /* NULL in overwrite mode */
    const double *expected, *bound, *allowance;
    int is_empty; /* the expert has no rows: the result is exact */
    int32_t dtype;
};

/* Half a unit in the last place of the gradient's own dtype. */
static double half_ulp(double value, int32_t dtype)
{
    return dtype == MOK_DTYPE_BF16 ? 0.5 * mok_ref_bf16_ulp(value) : ldexp(mok_ref_bf16_ulp(value), -17);
}

static void compare_matrix(const struct matrix *m, struct mok_ref_spot spot, struct mok_ref_report *report)
{
    for (int64_t i = 0; i < m->rows * m->columns; i++) {
        double got = (double)m->got[i];
        double error = error_of(got, m->expected[i]);
        double bound = m->bound[i] + m->allowance[i] + half_ulp(fmax(fabs(got), fabs(m->expected[i])), m->dtype);
        if (m->is_empty) {
            int is_right = m->start == NULL ? is_positive_zero(m->got[i]) : is_same_bits(m->got[i], m->start[i]);
            error = is_right ? 0.0 : INFINITY;
        }
        spot.inner = i / m->columns;
        spot.column = i % m->columns;
        mok_ref_report_note(report, m->check, spot, error, bound, got, m->expected[i]);
    }
}

/* The gradients of all FFNs of one kind: what came back, what it started from, and what oracle 2 says. */
struct ffns {
    enum mok_ref_check first_check; /* of gate; up and down follow */
    int64_t width;
    const struct mok_ref_grads *got, *start;
    const struct mok_ref_real_weights *expected, *bound, *allowance;
};

/* The three gradients of FFN number idx. */
static void compare_ffn(const struct mok_ref_problem *problem, const struct ffns *ffns, int64_t idx, int is_empty, struct mok_ref_spot spot,
                        struct mok_ref_report *report)
{
    int64_t hidden = problem->hidden, width = ffns->width;
    int64_t at = idx * width * hidden;
    const float *got[] = {ffns->got->gate, ffns->got->up, ffns->got->down};
    const float *start[] = {ffns->start->gate, ffns->start->up, ffns->start->down};
    const double *expected[] = {ffns->expected->gate, ffns->expected->up, ffns->expected->down};
    const double *bound[] = {ffns->bound->gate, ffns->bound->up, ffns->bound->down};
    const double *allowance[] = {ffns->allowance->gate, ffns->allowance->up, ffns->allowance->down};
    for (int i = 0; i < 3; i++) {
        struct matrix matrix = {.check = ffns->first_check + (unsigned)i,
                                .rows = i == 2 ? hidden : width,
                                .columns = i == 2 ? width : hidden,
                                .got = got[i] + at,
                                .start = start[i] == NULL ? NULL : start[i] + at,
                                .expected = expected[i] + at,
                                .bound = bound[i] + at,
                                .allowance = allowance[i] + at,
                                .is_empty = is_empty,
                                .dtype = problem->grad_dtype};
        compare_matrix(&matrix, spot, report);
    }
}

static int has_rows(const struct mok_ref_problem *problem, int32_t expert)
{
    int64_t routes = problem->num_tokens * problem->top_k;
    for (int64_t route = 0; route < routes; route++) {
        if (problem->ids[route] == expert) {
            return 1;
        }
    }
    return 0;
}

void mok_ref_compare_rounded(const struct mok_ref_problem *problem, const struct mok_ref_rounded *rounded,
                             const struct mok_ref_outputs *outputs, struct mok_ref_scope scope, struct mok_ref_report *report)
{
    struct ffns routed = {MOK_CHECK_DGATE,
                          problem->inter,
                          &outputs->grads,
                          &problem->start,
                          &rounded->grads,
                          &rounded->grads_bound,
                          &rounded->grads_allowance};
    struct ffns shared = {MOK_CHECK_SHARED_DGATE,
                          problem->shared_inter,
                          &outputs->shared_grads,
                          &problem->shared_start,
                          &rounded->shared_grads,
                          &rounded->shared_grads_bound,
                          &rounded->shared_grads_allowance};
    for (int32_t rank = scope.first_rank; rank < scope.first_rank + scope.num_ranks; rank++) {
        compare_tokens(problem, rounded, outputs, rank, report);
        for (int32_t e = mok_ref_first_expert(problem, rank); e < mok_ref_first_expert(problem, rank + 1); e++) {
            compare_ffn(problem, &routed, e, !has_rows(problem, e), (struct mok_ref_spot){rank, e, -1, -1}, report);
        }
        if (problem->shared_inter > 0) {
            compare_ffn(problem, &shared, rank, problem->tokens[rank] == 0, (struct mok_ref_spot){rank, 0, -1, -1}, report);
        }
    }
}

void mok_ref_compare(const struct mok_ref_problem *problem, const struct mok_ref_answer *answer, const struct mok_ref_outputs *outputs,
                     struct mok_ref_scope scope, struct mok_ref_report *report)
{
    mok_ref_compare_oracle(problem, &answer->oracle, outputs, scope, report);
    mok_ref_compare_rounded(problem, &answer->rounded, outputs, scope, report);
    mok_ref_compare_exact(problem, &answer->rounded, outputs, scope, report);
}
