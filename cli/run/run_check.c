/*
 * Row by row, element by element. In: a problem, stored tensors, results. Out: one line per check, the worst place named.
 *
 * NaN on both sides is equal, on one side an infinite error, in all checks alike: a row of x with NaN has rows of results with NaN.
 */
#include "run/run_check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "message.h"
#include "stage_times.h"

/* Weights of the fp32 router against stored ones, made in double: relative. fp32 sums of H products, then exp; measured 2^-19 at H = 256.
 */
#define WEIGHT_BOUND 0x1p-14

static struct mok_run_check *add(struct mok_run_checks *checks, const char *name)
{
    struct mok_run_check *check = &checks->checks[checks->num++];
    memset(check, 0, sizeof *check);
    snprintf(check->name, sizeof check->name, "%s", name);
    return check;
}

/* Counts one comparison; 1 when it is the worst so far. */
static int note(struct mok_run_check *check, double error, double bound)
{
    double ratio = error == 0.0 ? 0.0 : error / bound;
    ratio = isnan(ratio) ? INFINITY : ratio;
    check->num_checked++;
    check->num_failed += ratio > 1.0;
    if (ratio > check->ratio || check->num_checked == 1) {
        check->ratio = ratio;
        return 1;
    }
    return 0;
}

/* |got - wanted|; NaN on both sides is equal, on one side an infinite error. */
static double error_of(double got, double wanted)
{
    if (isnan(got) || isnan(wanted)) {
        return isnan(got) && isnan(wanted) ? 0.0 : INFINITY;
    }
    return got == wanted ? 0.0 : fabs(got - wanted);
}

/* ---- router ------------------------------------------------------------------------------------------------------------- */

void mok_run_check_router(const struct mok_run_input *input, struct mok_run_checks *checks)
{
    const struct mok_ref_problem *problem = &input->problem;
    int64_t num = problem->num_tokens * problem->top_k;
    if (input->stored.ids != NULL) {
        struct mok_run_check *check = add(checks, "router ids, stored");
        for (int64_t route = 0; route < num; route++) {
            int64_t wanted = input->stored.ids[route];
            int is_first = check->num_failed == 0 && problem->ids[route] != wanted;
            note(check, problem->ids[route] == wanted ? 0.0 : 1.0, 0.5);
            if (is_first) {
                snprintf(check->where, sizeof check->where, "token %" PRId64 " k %" PRId64 ": expert %" PRId32 ", stored %" PRId64,
                         route / problem->top_k, route % problem->top_k, problem->ids[route], wanted);
            }
        }
    }
    if (input->stored.w != NULL) {
        struct mok_run_check *check = add(checks, "router weights, stored");
        for (int64_t route = 0; route < num; route++) {
            double got = (double)problem->w[route];
            double wanted = (double)input->stored.w[route];
            if (note(check, error_of(got, wanted), WEIGHT_BOUND * fabs(wanted))) {
                snprintf(check->where, sizeof check->where, "token %" PRId64 " k %" PRId64 ": %.9g, stored %.9g", route / problem->top_k,
                         route % problem->top_k, got, wanted);
            }
        }
    }
}

/* ---- rows --------------------------------------------------------------------------------------------------------------- */

/* bf16 rows against fp32 or double rows; one of the two pointers is NULL. skip [N], NULL = none. */
struct rows {
    const mok_bf16 *got;
    const float *stored;
    const double *oracle;
    const uint8_t *skip;
};

static double expected_at(const struct rows *rows, int64_t at)
{
    return rows->stored != NULL ? (double)rows->stored[at] : rows->oracle[at];
}

/* Error of one row over its bound; its two parts in *error. */
static double row_ratio(const struct rows *rows, int64_t token, int32_t hidden, struct mok_run_row_error *error)
{
    double square = 0.0;
    double error_square = 0.0;
    double largest = 0.0;
    double largest_error = 0.0;
    for (int64_t at = token * hidden; at < (token + 1) * hidden; at++) {
        double wanted = expected_at(rows, at);
        double difference = error_of((double)mok_bf16_to_float(rows->got[at]), wanted);
        error_square += difference * difference;
        largest_error = fmax(largest_error, difference);
        if (isfinite(wanted)) { /* the rest has no size that an error could be measured by */
            square += wanted * wanted;
            largest = fmax(largest, fabs(wanted));
        }
    }
    error->l2 = error_square == 0.0 ? 0.0 : sqrt(error_square) / sqrt(square);
    error->ulp = largest_error == 0.0 ? 0.0 : largest_error / mok_ref_bf16_ulp(largest);
    return fmax(error->l2 / MOK_RUN_ROW_L2, error->ulp / MOK_RUN_ROW_ULP);
}

static struct mok_run_row_error check_rows(const struct mok_ref_problem *problem, const struct rows *rows, struct mok_run_check *check)
{
    struct mok_run_row_error worst = {.token = -1};
    for (int64_t token = 0; token < problem->num_tokens; token++) {
        struct mok_run_row_error error = {.token = token};
        if (rows->skip != NULL && rows->skip[token]) {
            check->num_left_out++;
            continue;
        }
        if (note(check, row_ratio(rows, token, problem->hidden, &error), 1.0)) {
            worst = error;
        }
    }
    if (worst.token >= 0) {
        worst.rank = mok_ref_rank_of_token(problem, worst.token);
        snprintf(check->where, sizeof check->where,
                 "token %" PRId64 " (rank %" PRId32 "): error norm 2^%.1f of the row's, %.2f ulp at most", worst.token, worst.rank,
                 log2(worst.l2), worst.ulp);
    }
    return worst;
}

/* ---- against stored results --------------------------------------------------------------------------------------------- */

/* Stored gradients of weights were made in double without roundings, so they may lie one bound of oracle 2 from its value, and ours
 * another. */
static void check_elements(const float *got, const float *stored, const double *bound, int64_t num, int32_t per_token,
                           struct mok_run_check *check)
{
    for (int64_t idx = 0; idx < num; idx++) {
        if (note(check, error_of((double)got[idx], (double)stored[idx]), 2.0 * bound[idx])) {
            snprintf(check->where, sizeof check->where, "token %" PRId64 " k %" PRId64 ": %.6g, stored %.6g, bound %.2g", idx / per_token,
                     idx % per_token, (double)got[idx], (double)stored[idx], 2.0 * bound[idx]);
        }
    }
}

static void check_stored_gradients(const struct mok_run_input *input, const struct mok_ref_answer *answer,
                                   const struct mok_ref_outputs *outputs, struct mok_run_checks *checks)
{
    const struct mok_ref_problem *problem = &input->problem;
    const struct mok_run_stored *stored = &input->stored;
    if (stored->dx != NULL) {
        struct rows rows = {.got = outputs->dx, .stored = stored->dx, .skip = answer->oracle.near_clamp};
        check_rows(problem, &rows, add(checks, "dx rows, stored"));
    }
    if (stored->dw != NULL) {
        check_elements(outputs->dw, stored->dw, answer->rounded.dw_bound, problem->num_tokens * problem->top_k, problem->top_k,
                       add(checks, "router weight gradients, stored"));
    }
    if (stored->dshared_w != NULL) {
        check_elements(outputs->dshared_w, stored->dshared_w, answer->rounded.dshared_w_bound, problem->num_tokens, 1,
                       add(checks, "shared weight gradients, stored"));
    }
}

/* ---- against the oracles ------------------------------------------------------------------------------------------------ */

/* Tokens are counted over all ranks here, as in the input file; the report counts them within their rank. */
static void describe(const struct mok_ref_problem *problem, const struct mok_ref_worst *worst, int is_matrix, char *text, size_t size)
{
    int64_t row = is_matrix ? worst->row : mok_ref_first_token(problem, worst->rank) + worst->row;
    char inner[48] = "";
    char column[48] = "";
    if (worst->inner >= 0) {
        snprintf(inner, sizeof inner, ", %s %" PRId64, is_matrix ? "row" : "k", worst->inner);
    }
    if (worst->column >= 0) {
        snprintf(column, sizeof column, ", column %" PRId64, worst->column);
    }
    snprintf(text, size, "%s %" PRId64 " (rank %" PRId32 ")%s%s: %.6g, expected %.6g, bound %.2g", is_matrix ? "expert" : "token", row,
             worst->rank, inner, column, worst->got, worst->expected, worst->bound);
}

static void add_report(const struct mok_ref_problem *problem, const struct mok_ref_report *report, struct mok_run_checks *checks)
{
    for (int idx = 0; idx < MOK_CHECK_COUNT; idx++) {
        const struct mok_ref_worst *worst = &report->worst[idx];
        if (worst->num_checked == 0 && worst->num_left_out == 0) {
            continue;
        }
        struct mok_run_check *check = add(checks, mok_ref_check_name((enum mok_ref_check)idx));
        check->num_checked = worst->num_checked;
        check->num_failed = worst->num_failed;
        check->num_left_out = worst->num_left_out;
        check->ratio = worst->ratio;
        if (worst->num_checked > 0) {
            describe(problem, worst, idx >= MOK_CHECK_DGATE && idx <= MOK_CHECK_SHARED_DDOWN, check->where, sizeof check->where);
        }
    }
}

static mok_status check_oracles(const struct mok_run_input *input, const struct mok_ref_outputs *outputs, struct mok_run_checks *checks)
{
    const struct mok_ref_problem *problem = &input->problem;
    struct mok_ref_scope scope = {.first_rank = 0, .num_ranks = problem->num_ranks};
    struct mok_ref_answer answer;
    struct mok_ref_report report;
    double begin = mok_stage_now_ms();
    mok_cli_progress("computing the oracles");
    if (mok_ref_answer_make(problem, &answer) != MOK_OK) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory for the oracles: --no-oracle compares with stored tensors only");
    }
    if (input->stored.output == NULL) {
        struct rows rows = {.got = outputs->y, .oracle = answer.oracle.y};
        checks->output_error = check_rows(problem, &rows, add(checks, "y rows, oracle 1"));
    }
    check_stored_gradients(input, &answer, outputs, checks);
    mok_ref_report_clear(&report);
    mok_cli_progress("comparing with the oracles");
    mok_ref_compare(problem, &answer, outputs, scope, &report);
    add_report(problem, &report, checks);
    mok_ref_answer_free(&answer);
    checks->oracle_ms = mok_stage_now_ms() - begin;
    return MOK_OK;
}

mok_status mok_run_check_results(const struct mok_run_input *input, const struct mok_ref_outputs *outputs, int with_oracle,
                                 struct mok_run_checks *checks)
{
    checks->output_error.token = -1;
    if (input->stored.output != NULL) {
        struct rows rows = {.got = outputs->y, .stored = input->stored.output};
        checks->output_error = check_rows(&input->problem, &rows, add(checks, "y rows, stored output"));
    }
    return with_oracle ? check_oracles(input, outputs, checks) : MOK_OK;
}

enum mok_run_verdict mok_run_checks_verdict(const struct mok_run_checks *checks)
{
    int64_t num_failed = 0, num_checked = 0;
    for (int idx = 0; idx < checks->num; idx++) {
        num_failed += checks->checks[idx].num_failed;
        num_checked += checks->checks[idx].num_checked;
    }
    return num_failed > 0 ? MOK_RUN_MISMATCH : num_checked > 0 ? MOK_RUN_OK : MOK_RUN_UNCHECKED;
}

const char *mok_run_verdict_word(enum mok_run_verdict verdict)
{
    static const char *const words[] = {"ok", "mismatch", "nothing checked"};
    return words[verdict];
}
