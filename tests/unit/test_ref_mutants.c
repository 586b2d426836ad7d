/*
 * The checks are checked: each fault of src/ref/mutant.h must be reported, on several shapes, and by the check that is there for it; the
 * same computation without a fault must pass.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ref/cases.h"
#include "ref/compare.h"
#include "ref/mutant.h"

struct bench {
    struct mok_ref_problem problem;
    struct mok_ref_answer answer;
    struct mok_ref_outputs outputs;
};

static void open_bench(const struct mok_ref_case *recipe, struct bench *bench)
{
    assert_non_null(recipe);
    assert_int_equal(mok_ref_generate(recipe, 0, &bench->problem), MOK_OK);
    assert_int_equal(mok_ref_answer_make(&bench->problem, &bench->answer), MOK_OK);
    assert_int_equal(mok_ref_outputs_alloc(&bench->problem, &bench->outputs), MOK_OK);
}

static void close_bench(struct bench *bench)
{
    mok_ref_outputs_free(&bench->problem, &bench->outputs);
    mok_ref_answer_free(&bench->answer);
    mok_ref_problem_free(&bench->problem);
}

static void compare(const struct bench *bench, struct mok_ref_report *report)
{
    mok_ref_report_clear(report);
    mok_ref_compare(&bench->problem, &bench->answer, &bench->outputs, (struct mok_ref_scope){0, bench->problem.num_ranks}, report);
}

/* The checks that may find a fault; at least one of these must. A 1% weight hides from all but the exact ones. */
static int is_found(const struct mok_ref_report *report, enum mok_ref_mutant mutant)
{
    const struct mok_ref_worst *w = report->worst;
    switch (mutant) {
    case MOK_MUTANT_NONE: return 0;
    case MOK_MUTANT_ROWS_SWAPPED:
    case MOK_MUTANT_ROW_LOST: return w[MOK_CHECK_Y].num_failed > 0 && w[MOK_CHECK_Y_L2].num_failed > 0;
    case MOK_MUTANT_DX_ROWS_SWAPPED: return w[MOK_CHECK_DX].num_failed > 0 && w[MOK_CHECK_DX_L2].num_failed > 0;
    case MOK_MUTANT_WEIGHT_OFF: return w[MOK_CHECK_Y_SUM].num_failed == 1;
    case MOK_MUTANT_WEIGHT_OFF_BACKWARD: return w[MOK_CHECK_DX_SLOT].num_failed == 1;
    case MOK_MUTANT_ROUTE_DROPPED: return w[MOK_CHECK_Y].num_failed == 1 && w[MOK_CHECK_Y_SUM].num_failed == 1;
    case MOK_MUTANT_DX_ROUTE_DROPPED: return w[MOK_CHECK_DX].num_failed == 1 && w[MOK_CHECK_DX_SUM].num_failed == 1;
    case MOK_MUTANT_GATE_UP_EXCHANGED:
        return w[MOK_CHECK_Y].num_failed > 0 && w[MOK_CHECK_DGATE].num_failed > 0 && w[MOK_CHECK_DUP].num_failed > 0;
    case MOK_MUTANT_PADDING_COUNTED:
        return w[MOK_CHECK_DGATE].num_failed > 0 && w[MOK_CHECK_DUP].num_failed > 0 && w[MOK_CHECK_DDOWN].num_failed > 0;
    case MOK_MUTANT_ROWS_SHIFTED: return w[MOK_CHECK_Y].num_failed > 1 && w[MOK_CHECK_DX].num_failed > 1;
    case MOK_MUTANT_DW_NEIGHBOUR: return w[MOK_CHECK_DW].num_failed == 1;
    case MOK_MUTANT_DG_OFF: return w[MOK_CHECK_DGATE].num_failed > 0;
    case MOK_MUTANT_WH_NEIGHBOUR: return w[MOK_CHECK_DDOWN].num_failed > 0;
    case MOK_MUTANT_COUNT: break;
    }
    return 0;
}

static void try_all(const struct mok_ref_case *recipe)
{
    struct bench bench;
    struct mok_ref_report report;
    open_bench(recipe, &bench);
    for (int m = 0; m < MOK_MUTANT_COUNT; m++) {
        mok_status status = mok_ref_mutant_run(&bench.problem, m, &bench.outputs);
        if (status == MOK_ERR_ARGUMENT && recipe->top_k == 1 && (m == MOK_MUTANT_DW_NEIGHBOUR || m == MOK_MUTANT_WH_NEIGHBOUR)) {
            continue; /* no neighbour; all weights are 1 */
        }
        assert_int_equal(status, MOK_OK);
        compare(&bench, &report);
        if (m == MOK_MUTANT_NONE ? mok_ref_report_failures(&report) != 0 : !is_found(&report, m)) {
            for (int i = 0; i < MOK_CHECK_COUNT; i++) {
                char text[512];
                mok_ref_report_describe(&report, i, text, sizeof text);
                print_error("%s\n", text);
            }
            fail_msg("%s: fault '%s' was not reported as it must be", recipe->name, mok_ref_mutant_name(m));
        }
    }
    close_bench(&bench);
}

static void test_mutants(void **state)
{
    static const char *const names[] = {"all-different", "top-8-dx",  "trained-like", "half-masked-spare",
                                        "carry-bf16",    "experts-5", "hidden-1536"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        try_all(mok_ref_case_find(names[i]));
    }
}

/* The L2 bound for K = 1 needs no slots. */
static void test_single_without_slots(void **state)
{
    struct bench bench;
    struct mok_ref_report report;
    struct mok_ref_case recipe = *mok_ref_case_find("top-1");
    (void)state;
    recipe.router = MOK_ROUTER_NORMALIZED;
    open_bench(&recipe, &bench);
    assert_int_equal(mok_ref_mutant_run(&bench.problem, MOK_MUTANT_WEIGHT_OFF_BACKWARD, &bench.outputs), MOK_OK);
    bench.outputs.y_slots = NULL;
    bench.outputs.dx_slots = NULL;
    compare(&bench, &report);
    assert_int_equal(report.worst[MOK_CHECK_DX_SLOT].num_checked, 0);
    assert_int_equal(report.worst[MOK_CHECK_Y_SUM].num_checked, 0);
    assert_int_equal(report.worst[MOK_CHECK_DX_SINGLE].num_failed, 1);
    close_bench(&bench);
}

/* 7,168 rows, one of them wrong in one element by 5 ulp of the row's largest: it is found, and named. */
static void test_one_row_in_7168(void **state)
{
    const struct mok_ref_case recipe = {.name = "one-row",
                                        .num_ranks = 4,
                                        .tokens = {2000, 1700, 1800, 1668},
                                        .num_experts = 8,
                                        .top_k = 1,
                                        .hidden = 32,
                                        .inter = 40,
                                        .grad_dtype = MOK_DTYPE_FP32,
                                        .ids = MOK_IDS_DISTINCT};
    struct bench bench;
    struct mok_ref_report report;
    int64_t token = 5000, column = 17;
    double top = 0.0;
    (void)state;
    open_bench(&recipe, &bench);
    assert_int_equal(mok_ref_mutant_run(&bench.problem, MOK_MUTANT_NONE, &bench.outputs), MOK_OK);
    mok_bf16 *row = bench.outputs.y + token * recipe.hidden;
    for (int64_t j = 0; j < recipe.hidden; j++) {
        top = fmax(top, fabs((double)mok_bf16_to_float(row[j])));
    }
    row[column] = mok_bf16_from_float((float)((double)mok_bf16_to_float(row[column]) + 5.0 * mok_ref_bf16_ulp(top)));
    compare(&bench, &report);
    assert_int_equal(report.worst[MOK_CHECK_Y].num_checked, 7168);
    assert_int_equal(report.worst[MOK_CHECK_Y].num_failed, 1);
    assert_int_equal(report.worst[MOK_CHECK_Y_LARGEST].num_failed, 1);
    assert_int_equal(report.worst[MOK_CHECK_Y].rank, 2);
    assert_int_equal(report.worst[MOK_CHECK_Y].row, 5000 - 3700);
    assert_int_equal(report.worst[MOK_CHECK_Y].column, column);
    close_bench(&bench);
}

/* NaN where there must be a number, a number where there must be NaN, -0 where a zero is exact: each is a failure. */
static void test_exact_values(void **state)
{
    struct bench bench;
    struct mok_ref_report report;
    (void)state;
    open_bench(mok_ref_case_find("half-masked-spare"), &bench);
    assert_int_equal(mok_ref_mutant_run(&bench.problem, MOK_MUTANT_NONE, &bench.outputs), MOK_OK);
    int64_t unrouted = 0;
    while (mok_ref_is_routed(&bench.problem, unrouted)) {
        unrouted++;
    }
    bench.outputs.dw[unrouted] = -0.0f;
    bench.outputs.y[5] = 0x7fc0;
    bench.outputs.grads.up[7] = NAN;
    compare(&bench, &report);
    assert_int_equal(report.worst[MOK_CHECK_DW].num_failed, 1);
    assert_int_equal(report.worst[MOK_CHECK_Y].num_failed, 1);
    assert_int_equal(report.worst[MOK_CHECK_DUP].num_failed, 1);
    close_bench(&bench);
    open_bench(mok_ref_case_find("nan-token"), &bench);
    assert_int_equal(mok_ref_mutant_run(&bench.problem, MOK_MUTANT_NONE, &bench.outputs), MOK_OK);
    int64_t at = 0;
    while (!isnan(mok_bf16_to_float(bench.outputs.y[at]))) {
        at++;
    }
    bench.outputs.y[at] = 0;
    compare(&bench, &report);
    assert_int_equal(report.worst[MOK_CHECK_Y].num_failed, 1);
    close_bench(&bench);
}

/* One element of an expert without rows, touched by one bit, in both modes. */
static void test_empty_experts(void **state)
{
    static const char *const names[] = {"one-expert", "one-expert-add"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct bench bench;
        struct mok_ref_report report;
        open_bench(mok_ref_case_find(names[i]), &bench);
        assert_int_equal(mok_ref_mutant_run(&bench.problem, MOK_MUTANT_NONE, &bench.outputs), MOK_OK);
        compare(&bench, &report);
        assert_int_equal(mok_ref_report_failures(&report), 0);
        uint32_t bits;
        memcpy(&bits, &bench.outputs.grads.down[3], sizeof bits);
        bits ^= 1;
        memcpy(&bench.outputs.grads.down[3], &bits, sizeof bits);
        compare(&bench, &report);
        assert_int_equal(report.worst[MOK_CHECK_DDOWN].num_failed, 1);
        close_bench(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mutants),      cmocka_unit_test(test_single_without_slots), cmocka_unit_test(test_one_row_in_7168),
        cmocka_unit_test(test_exact_values), cmocka_unit_test(test_empty_experts),
    };
    return cmocka_run_group_tests_name("ref_mutants", tests, NULL, NULL);
}
