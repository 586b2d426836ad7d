/*
 * A whole case: data, steps, oracles, checks.
 */
#include "case/case_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "case/case_bits.h"

enum {
    STEP_FIRST,     /* round 0, poison 0xFF */
    STEP_AGAIN,     /* round 0, poison 0x7F */
    STEP_NEXT,      /* round 1 */
    STEP_WITHOUT,   /* round 0, zeros for NaN */
    STEP_SHARED_Y,  /* all ids -1, shared_w 1: y is s_t */
    STEP_SHARED_DX, /* all ids -1: dx is that of the shared expert */
    NUM_STEPS
};

/* Everything of one case. Problems that are not needed have num_ranks 0. */
struct bench {
    struct mok_ref_problem problems[NUM_STEPS];
    struct mok_ref_outputs outputs[NUM_STEPS];
};

static int has_nan(const struct mok_ref_case *recipe) { return recipe->nan_x > 0 || recipe->nan_dy > 0; }

/* Round 0 with zeros in the place of NaN. */
static void remove_nan(struct mok_ref_problem *p)
{
    for (int64_t i = 0; i < p->num_tokens * p->hidden; i++) {
        p->x[i] = isnan(mok_bf16_to_float(p->x[i])) ? 0 : p->x[i];
        p->dy[i] = isnan(mok_bf16_to_float(p->dy[i])) ? 0 : p->dy[i];
    }
}

static void unroute(struct mok_ref_problem *p, int without_shared_w)
{
    for (int64_t i = 0; i < p->num_tokens * p->top_k; i++) {
        p->ids[i] = -1;
    }
    if (without_shared_w) {
        free(p->shared_w);
        p->shared_w = NULL;
    }
}

static mok_status open_step(struct bench *bench, int step, const struct mok_ref_case *recipe, uint32_t round)
{
    MOK_TRY(mok_ref_generate(recipe, round, &bench->problems[step]));
    return mok_ref_outputs_alloc(&bench->problems[step], &bench->outputs[step]);
}

static mok_status open_bench(struct bench *bench, const struct mok_ref_case *recipe, int has_slots)
{
    MOK_TRY(open_step(bench, STEP_FIRST, recipe, 0));
    MOK_TRY(open_step(bench, STEP_AGAIN, recipe, 0));
    MOK_TRY(open_step(bench, STEP_NEXT, recipe, 1));
    if (has_nan(recipe)) {
        MOK_TRY(open_step(bench, STEP_WITHOUT, recipe, 0));
        remove_nan(&bench->problems[STEP_WITHOUT]);
    }
    if (has_slots && recipe->shared_inter > 0) {
        MOK_TRY(open_step(bench, STEP_SHARED_Y, recipe, 0));
        unroute(&bench->problems[STEP_SHARED_Y], 1);
        MOK_TRY(open_step(bench, STEP_SHARED_DX, recipe, 0));
        unroute(&bench->problems[STEP_SHARED_DX], 0);
    }
    return MOK_OK;
}

static void close_bench(struct bench *bench)
{
    for (int s = 0; s < NUM_STEPS; s++) {
        mok_ref_outputs_free(&bench->problems[s], &bench->outputs[s]);
        mok_ref_problem_free(&bench->problems[s]);
    }
}

static void add_bits(const struct mok_case_bits *bits, struct mok_case_result *result)
{
    if (result->num_differences == 0) {
        memcpy(result->difference, bits->difference, sizeof result->difference);
    }
    result->num_differences += bits->num_differences;
}

static void compare_steps(const struct bench *bench, int a, int b, struct mok_ref_scope scope, const uint8_t *skip_tokens,
                          const uint8_t *skip_experts, const char *what, struct mok_case_bits *bits)
{
    const struct mok_ref_problem *p = &bench->problems[a];
    int64_t first = mok_ref_first_token(p, scope.first_rank);
    int64_t num = mok_ref_first_token(p, scope.first_rank + scope.num_ranks) - first;
    mok_case_bits_tokens(p, &bench->outputs[a], &bench->outputs[b], first, num, skip_tokens, what, bits);
    mok_case_bits_grads(p, &bench->outputs[a], &bench->outputs[b], scope, skip_experts, what, bits);
}

/* P6 of docs/cases.md: only NaN tokens, and the weight gradients of experts they went to, may differ from the run without NaN. */
static mok_status compare_without(const struct bench *bench, struct mok_ref_scope scope, struct mok_case_bits *bits)
{
    const struct mok_ref_problem *p = &bench->problems[STEP_FIRST];
    uint8_t *tokens = calloc((size_t)p->num_tokens + 1, 1), *experts = calloc((size_t)p->num_experts, 1);
    mok_status status = tokens == NULL || experts == NULL ? MOK_ERR_MEMORY : MOK_OK;
    int64_t num_nan = 0;
    for (int64_t i = 0; status == MOK_OK && i < p->num_tokens * p->hidden; i++) {
        if (isnan(mok_bf16_to_float(p->x[i])) || isnan(mok_bf16_to_float(p->dy[i]))) {
            int64_t t = i / p->hidden;
            num_nan += !tokens[t];
            tokens[t] = 1;
            for (int64_t route = t * p->top_k; route < (t + 1) * p->top_k; route++) {
                experts[mok_ref_is_routed(p, route) ? p->ids[route] : 0] |= (uint8_t)mok_ref_is_routed(p, route);
            }
        }
    }
    if (status == MOK_OK && num_nan == 0) {
        mok_case_bits_note(bits, "the case has no NaN token: it shows nothing");
    }
    if (status == MOK_OK) {
        compare_steps(bench, STEP_FIRST, STEP_WITHOUT, scope, tokens, experts, "NaN tokens and zero tokens", bits);
    }
    free(tokens);
    free(experts);
    return status;
}

/* Even columns of y are expect_y, odd ones twice that. */
static void check_known(const struct mok_ref_case *recipe, const struct mok_ref_problem *p, const struct mok_ref_outputs *outputs,
                        struct mok_ref_scope scope, struct mok_case_bits *bits)
{
    int64_t first = mok_ref_first_token(p, scope.first_rank), last = mok_ref_first_token(p, scope.first_rank + scope.num_ranks);
    for (int64_t i = first * p->hidden; recipe->expect_y != 0.0f && i < last * p->hidden; i++) {
        mok_bf16 expected = mok_bf16_from_float(i % p->hidden % 2 == 0 ? recipe->expect_y : 2.0f * recipe->expect_y);
        if (outputs->y[i] != expected) {
            mok_case_bits_note(bits, "known answer: y of token %lld is %.9g, not %.9g", (long long)(i / p->hidden),
                               (double)mok_bf16_to_float(outputs->y[i]), (double)mok_bf16_to_float(expected));
        }
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Against both oracles. The slots' sums are checked where the shared expert's part is known. */
static mok_status check_step(struct bench *bench, int step, struct mok_ref_scope scope, struct mok_case_result *result)
{
    struct mok_ref_outputs seen = bench->outputs[step];
    struct mok_ref_answer answer;
    double began = seconds();
    seen.shared_y = step == STEP_FIRST ? bench->outputs[STEP_SHARED_Y].y : NULL;
    seen.shared_dx = step == STEP_FIRST ? bench->outputs[STEP_SHARED_DX].dx : NULL;
    MOK_TRY(mok_ref_answer_make(&bench->problems[step], &answer));
    mok_ref_compare(&bench->problems[step], &answer, &seen, scope, &result->report);
    mok_ref_answer_free(&answer);
    result->oracle_s += seconds() - began;
    return MOK_OK;
}

static mok_status check_bench(const struct mok_ref_case *recipe, struct bench *bench, const struct mok_case_where *where,
                              struct mok_case_result *result)
{
    struct mok_ref_scope scope = mok_case_scope(&bench->problems[STEP_FIRST], where);
    struct mok_case_bits bits = {0};
    MOK_TRY(check_step(bench, STEP_FIRST, scope, result));
    MOK_TRY(check_step(bench, STEP_NEXT, scope, result));
    compare_steps(bench, STEP_FIRST, STEP_AGAIN, scope, NULL, NULL, "poison 0xFF and 0x7F", &bits);
    if (has_nan(recipe)) {
        MOK_TRY(compare_without(bench, scope, &bits));
    }
    check_known(recipe, &bench->problems[STEP_FIRST], &bench->outputs[STEP_FIRST], scope, &bits);
    check_known(recipe, &bench->problems[STEP_NEXT], &bench->outputs[STEP_NEXT], scope, &bits);
    add_bits(&bits, result);
    return MOK_OK;
}

int mok_case_skipped(const struct mok_case_result *result)
{
    return result->status == MOK_ERR_NOT_BUILT || result->status == MOK_ERR_NO_DEVICE;
}

int mok_case_passed(const struct mok_case_result *result)
{
    return result->status == MOK_OK && result->num_steps > 0 && result->num_differences == 0 &&
           mok_ref_report_failures(&result->report) == 0;
}

void mok_case_run(const struct mok_ref_case *recipe, const struct mok_case_where *where, struct mok_case_result *result_out)
{
    static const int poisons[NUM_STEPS] = {0xff, 0x7f, 0xff, 0x7f, 0xff, 0x7f};
    struct bench bench;
    struct mok_case_step steps[NUM_STEPS];
    int num_steps = 0;
    memset(result_out, 0, sizeof *result_out);
    memset(&bench, 0, sizeof bench);
    result_out->status = open_bench(&bench, recipe, where->ranks == MOK_CASE_EXTERNAL || where->ranks == MOK_CASE_PROCESSES);
    for (int s = 0; s < NUM_STEPS; s++) {
        if (bench.problems[s].num_ranks > 0) {
            steps[num_steps++] = (struct mok_case_step){&bench.problems[s], &bench.outputs[s], poisons[s]};
        }
    }
    if (result_out->status == MOK_OK) {
        mok_case_run_steps(steps, num_steps, &recipe->knobs, where, result_out);
    }
    if (result_out->status == MOK_OK) {
        result_out->status = check_bench(recipe, &bench, where, result_out);
    }
    close_bench(&bench);
}
