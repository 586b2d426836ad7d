/*
 * Which bits are equal: a few problems, each run in all ways of cli/case/case_equal.c, on the CPU backend; then again with every worker delayed
 * at random, so that they meet in other orders.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case/case_equal.h"
#include "cpu_hooks.h"

/* Several laps of a ring of 128 rows; ranks without experts from 8 ranks on in the last one. */
static const struct mok_ref_case problems[] = {
    {.name = "equal-shared",
     .covers = "P3 J2",
     .num_ranks = 3,
     .tokens = {200, 90, 143},
     .num_experts = 10,
     .top_k = 4,
     .hidden = 104,
     .inter = 56,
     .shared_inter = 88,
     .shared_w = 1,
     .ids = MOK_IDS_SKEWED,
     .grad_dtype = MOK_DTYPE_FP32},
    {.name = "equal-bf16-add",
     .covers = "P3 J2",
     .num_ranks = 2,
     .tokens = {311, 260},
     .num_experts = 7,
     .top_k = 3,
     .hidden = 72,
     .inter = 40,
     .ids = MOK_IDS_HALF,
     .router = MOK_ROUTER_SIGNED,
     .grad_dtype = MOK_DTYPE_BF16,
     .grad_mode = MOK_GRAD_ADD},
    {.name = "equal-trained-like",
     .covers = "P3 J2",
     .num_ranks = 4,
     .tokens = {70, 41, 0, 55},
     .num_experts = 64,
     .top_k = 8,
     .hidden = 256,
     .inter = 128,
     .ids = MOK_IDS_SKEWED,
     .grad_dtype = MOK_DTYPE_FP32},
    {.name = "equal-few-experts",
     .covers = "P3 J2 E8",
     .num_ranks = 2,
     .tokens = {400, 330},
     .num_experts = 2,
     .top_k = 1,
     .hidden = 520,
     .inter = 264,
     .ids = MOK_IDS_DISTINCT,
     .grad_dtype = MOK_DTYPE_BF16},
};

static int num_passed, num_failed, num_skipped;

static void try_problem(const struct mok_ref_case *recipe, const char *how, mok_status (*poison)(mok_group *, int))
{
    struct mok_case_where where = {.backend = MOK_BACKEND_CPU, .ranks = MOK_CASE_THREADS, .poison = poison};
    int num_ways = mok_case_way_count(&where);
    struct mok_case_result *results = calloc((size_t)num_ways, sizeof *results);
    if (results == NULL) {
        num_failed++;
        return;
    }
    mok_status status = mok_case_equal(recipe, &where, results);
    for (int i = 0; i < num_ways; i++) {
        struct mok_case_way way = mok_case_way_get(recipe, &where, i);
        const struct mok_case_result *result = &results[i];
        int is_skipped = status == MOK_OK && mok_case_skipped(result), has_passed = mok_case_passed(result);
        num_passed += has_passed;
        num_skipped += is_skipped;
        num_failed += !has_passed && !is_skipped;
        if (!has_passed) {
            printf("%s %s, %s, %s: %s %s; %lld differences, first: %s\n", is_skipped ? "skip" : "FAILED", recipe->name, how, way.name,
                   mok_status_name(result->status), result->status == MOK_OK ? "ran" : result->message, (long long)result->num_differences, result->difference);
            for (int c = 0; c < MOK_CHECK_COUNT; c++) {
                char text[512];
                mok_ref_report_describe(&result->report, c, text, sizeof text);
                if (result->report.worst[c].num_failed > 0) {
                    printf("    %s\n", text);
                }
            }
        }
    }
    printf("%s, %s: %d ways so far equal\n", recipe->name, how, num_passed);
    fflush(stdout);
    free(results);
}

/* One bit of one value, anywhere: is it seen? */
static int sees_one_bit(void)
{
    struct mok_ref_problem problem;
    struct mok_ref_outputs a, b;
    struct mok_case_bits bits = {0};
    if (mok_ref_generate(&problems[0], 0, &problem) != MOK_OK || mok_ref_outputs_alloc(&problem, &a) != MOK_OK ||
        mok_ref_outputs_alloc(&problem, &b) != MOK_OK) {
        return 0;
    }
    struct mok_ref_scope all = {0, problem.num_ranks};
    mok_case_bits_tokens(&problem, &a, &b, 0, problem.num_tokens, NULL, "equal", &bits);
    mok_case_bits_grads(&problem, &a, &b, all, NULL, "equal", &bits);
    int64_t before = bits.num_differences;
    b.y[(problem.num_tokens - 1) * problem.hidden] ^= 1;
    b.dx[7] ^= 0x8000;
    b.dw[5] = -0.0f;
    b.dshared_w[problem.num_tokens - 1] = 1e-45f;
    b.grads.up[(int64_t)problem.num_experts * problem.inter * problem.hidden - 1] = 1e-45f;
    b.shared_grads.down[3] = 1e-45f;
    mok_case_bits_tokens(&problem, &a, &b, 0, problem.num_tokens, NULL, "changed", &bits);
    mok_case_bits_grads(&problem, &a, &b, all, NULL, "changed", &bits);
    mok_ref_outputs_free(&problem, &a);
    mok_ref_outputs_free(&problem, &b);
    mok_ref_problem_free(&problem);
    return before == 0 && bits.num_differences == 6;
}

int main(int argc, char **argv)
{
    if (!sees_one_bit()) {
        printf("FAILED: the comparison does not see one bit\n");
        return 1;
    }
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        if (argc < 2 || strstr(problems[i].name, argv[1]) != NULL) {
            try_problem(&problems[i], "as it comes", poison_workspace);
            try_problem(&problems[i], "delayed", poison_and_delay);
        }
    }
    printf("%d equal, %d not, %d skipped\n", num_passed, num_failed, num_skipped);
    return num_failed > 0 || num_passed == 0;
}
