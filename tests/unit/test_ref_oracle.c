/*
 * Oracle 1 against finite differences, oracle 2 against oracle 1, the case table against its own rules.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ref/cases.h"
#include "ref/compare.h"
#include "ref/mutant.h"
#include "ref/product.h"
#include "ref/random.h"

/* What the gradients are gradients of: sum of y * dy. */
static double loss_of(const struct mok_ref_real *real)
{
    struct mok_ref_oracle oracle;
    double loss = 0.0;
    assert_int_equal(mok_ref_oracle_run(real, &oracle), MOK_OK);
    for (int64_t i = 0; i < real->of->num_tokens * real->of->hidden; i++) {
        loss += oracle.y[i] * real->dy[i];
    }
    mok_ref_oracle_free(&oracle);
    return loss;
}

/* Central difference in `values[i]` for a spread of i, against gradient[i]. */
static void check_gradient(const char *what, const struct mok_ref_real *real, double *values, const double *gradient, int64_t count)
{
    struct mok_ref_random random = mok_ref_random_open(what, 0, MOK_FOR_DELAY, 0);
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(gradient[i]));
    }
    assert_true(largest > 1e-3); /* a gradient of zeros would be easy to match */
    for (int n = 0; n < 40; n++) {
        int64_t i = mok_ref_random_below(&random, count);
        double kept = values[i], step = 1e-5;
        values[i] = kept + step;
        double above = loss_of(real);
        values[i] = kept - step;
        double below = loss_of(real);
        values[i] = kept;
        double error = fabs((above - below) / (2.0 * step) - gradient[i]);
        if (!(error <= 1e-7 * fmax(largest, 1.0))) {
            fail_msg("%s[%lld]: difference %.12g, gradient %.12g", what, (long long)i, (above - below) / (2.0 * step), gradient[i]);
        }
    }
}

static void sum_ranks(const double *per_rank, int32_t num_ranks, int64_t count, double *sum)
{
    memset(sum, 0, (size_t)count * sizeof(double));
    for (int64_t i = 0; i < num_ranks * count; i++) {
        sum[i % count] += per_rank[i];
    }
}

static void check_all_gradients(const struct mok_ref_case *recipe)
{
    struct mok_ref_problem p;
    struct mok_ref_real real;
    struct mok_ref_oracle oracle;
    assert_int_equal(mok_ref_generate(recipe, 0, &p), MOK_OK);
    for (int64_t i = 0; i < p.num_tokens * p.top_k; i++) {
        p.w[i] = mok_ref_is_routed(&p, i) ? p.w[i] : 0.25f; /* NaN has no difference */
    }
    assert_int_equal(mok_ref_real_make(&p, &real), MOK_OK);
    assert_int_equal(mok_ref_oracle_run(&real, &oracle), MOK_OK);
    int64_t routed = (int64_t)p.num_experts * p.inter * p.hidden, shared = (int64_t)p.shared_inter * p.hidden;
    check_gradient("x", &real, real.x, oracle.dx, p.num_tokens * p.hidden);
    check_gradient("w", &real, real.w, oracle.dw, p.num_tokens * p.top_k);
    check_gradient("gate", &real, real.routed.gate, oracle.grads.gate, routed);
    check_gradient("up", &real, real.routed.up, oracle.grads.up, routed);
    check_gradient("down", &real, real.routed.down, oracle.grads.down, routed);
    if (shared > 0) {
        double *sum = malloc((size_t)shared * sizeof(double));
        assert_non_null(sum);
        sum_ranks(oracle.shared_grads.gate, p.num_ranks, shared, sum);
        check_gradient("shared gate", &real, real.shared.gate, sum, shared);
        sum_ranks(oracle.shared_grads.up, p.num_ranks, shared, sum);
        check_gradient("shared up", &real, real.shared.up, sum, shared);
        sum_ranks(oracle.shared_grads.down, p.num_ranks, shared, sum);
        check_gradient("shared down", &real, real.shared.down, sum, shared);
        free(sum);
    }
    if (real.shared_w != NULL) {
        check_gradient("shared_w", &real, real.shared_w, oracle.dshared_w, p.num_tokens);
    }
    mok_ref_oracle_free(&oracle);
    mok_ref_real_free(&real);
    mok_ref_problem_free(&p);
}

static void test_finite_differences(void **state)
{
    const struct mok_ref_case plain = {.name = "differences",
                                       .num_ranks = 2,
                                       .tokens = {5, 3},
                                       .num_experts = 3,
                                       .top_k = 2,
                                       .hidden = 16,
                                       .inter = 24,
                                       .shared_inter = 8,
                                       .shared_w = 1,
                                       .grad_dtype = MOK_DTYPE_FP32,
                                       .ids = MOK_IDS_ANY,
                                       .router = MOK_ROUTER_SIGNED};
    struct mok_ref_case limited = plain;
    limited.activation = (mok_activation){1.5f, 1.702f, 1.0f};
    limited.values = MOK_VALUES_WIDE;
    limited.ids = MOK_IDS_HALF;
    (void)state;
    check_all_gradients(&plain);
    check_all_gradients(&limited);
}

/* Add mode starts from what was there; overwrite does not. */
static void test_start_is_added(void **state)
{
    struct mok_ref_problem p;
    struct mok_ref_answer added, written;
    (void)state;
    assert_int_equal(mok_ref_generate(mok_ref_case_find("all-different-add"), 0, &p), MOK_OK);
    assert_int_equal(mok_ref_answer_make(&p, &added), MOK_OK);
    struct mok_ref_problem overwrite = p;
    overwrite.grad_mode = MOK_GRAD_OVERWRITE;
    memset(&overwrite.start, 0, sizeof overwrite.start);
    memset(&overwrite.shared_start, 0, sizeof overwrite.shared_start);
    assert_int_equal(mok_ref_answer_make(&overwrite, &written), MOK_OK);
    for (int64_t i = 0; i < (int64_t)p.num_experts * p.inter * p.hidden; i++) {
        assert_true(fabs(added.oracle.grads.down[i] - written.oracle.grads.down[i] - (double)p.start.down[i]) < 1e-12);
        assert_true(fabs(added.rounded.grads.gate[i] - written.rounded.grads.gate[i] - (double)p.start.gate[i]) < 1e-12);
    }
    for (int64_t i = 0; i < (int64_t)p.num_ranks * p.shared_inter * p.hidden; i++) {
        assert_true(fabs(added.rounded.shared_grads.up[i] - written.rounded.shared_grads.up[i] - (double)p.shared_start.up[i]) < 1e-12);
    }
    mok_ref_answer_free(&added);
    mok_ref_answer_free(&written);
    mok_ref_problem_free(&p);
}

/* Oracle 2, played as a backend, passes every check of every case, and a case's data are the same each time. */
static void test_oracles_agree(void **state)
{
    int failures = 0;
    (void)state;
    for (int c = 0; c < mok_ref_case_count(); c++) {
        const struct mok_ref_case *recipe = mok_ref_case_get(c);
        struct mok_ref_problem p, again;
        struct mok_ref_answer answer;
        struct mok_ref_outputs outputs;
        struct mok_ref_report report;
        if (recipe->slow) {
            continue;
        }
        assert_int_equal(mok_ref_generate(recipe, 1, &p), MOK_OK);
        assert_int_equal(mok_ref_generate(recipe, 1, &again), MOK_OK);
        assert_memory_equal(p.x, again.x, (size_t)(p.num_tokens * p.hidden) * sizeof(mok_bf16));
        assert_memory_equal(p.ids, again.ids, (size_t)(p.num_tokens * p.top_k) * sizeof(int32_t));
        mok_ref_problem_free(&again);
        assert_int_equal(mok_ref_answer_make(&p, &answer), MOK_OK);
        assert_int_equal(mok_ref_outputs_alloc(&p, &outputs), MOK_OK);
        if (mok_ref_mutant_run(&p, MOK_MUTANT_NONE, &outputs) == MOK_OK) {
            mok_ref_report_clear(&report);
            mok_ref_compare(&p, &answer, &outputs, (struct mok_ref_scope){0, p.num_ranks}, &report);
            for (int i = 0; i < MOK_CHECK_COUNT; i++) {
                char text[512];
                mok_ref_report_describe(&report, i, text, sizeof text);
                if (report.worst[i].num_failed > 0) {
                    print_error("%s: %s\n", recipe->name, text);
                    failures++;
                }
            }
            assert_true(report.worst[MOK_CHECK_Y].num_checked == p.num_tokens);
        }
        mok_ref_outputs_free(&p, &outputs);
        mok_ref_answer_free(&answer);
        mok_ref_problem_free(&p);
    }
    assert_int_equal(failures, 0);
}

static void test_products(void **state)
{
    enum {
        M = 13,
        N = 21,
        K = 300
    };
    static double a[M * K], b[N * K], at[M * K], bt[N * K];
    double nt[M * N] = {0}, nn[M * N] = {0}, tn[M * N] = {0};
    struct mok_ref_random random = mok_ref_random_open("products", 0, MOK_FOR_X, 0);
    (void)state;
    for (int i = 0; i < M * K; i++) {
        a[i] = (double)mok_ref_random_below(&random, 17) - 8.0; /* whole numbers: every order gives the same sum */
        at[i % K * M + i / K] = a[i];
    }
    for (int i = 0; i < N * K; i++) {
        b[i] = (double)mok_ref_random_below(&random, 17) - 8.0;
        bt[i % K * N + i / K] = b[i];
    }
    mok_ref_product_nt(M, N, K, a, b, nt);
    mok_ref_product_nn(M, N, K, a, bt, nn);
    mok_ref_product_tn(M, N, K, at, bt, tn);
    for (int i = 0; i < M * N; i++) {
        double sum = 0.0;
        for (int k = 0; k < K; k++) {
            sum += a[i / N * K + k] * b[i % N * K + k];
        }
        assert_true(nt[i] == sum && nn[i] == sum && tn[i] == sum);
    }
}

static void test_bf16_ulp(void **state)
{
    (void)state;
    assert_true(mok_ref_bf16_ulp(1.0) == 0x1p-7);
    assert_true(mok_ref_bf16_ulp(1.9921875) == 0x1p-7);
    assert_true(mok_ref_bf16_ulp(2.0) == 0x1p-6);
    assert_true(mok_ref_bf16_ulp(0.0) == 0x1p-133);
    assert_true(mok_ref_bf16_ulp(0x1p-126) == 0x1p-133);
    assert_true(mok_ref_bf16_ulp(0x1p-125) == 0x1p-132);
}

/* The table's own rule: T, H, I, Is, E and K differ, names are unique, sizes are legal. */
static void test_table(void **state)
{
    (void)state;
    assert_true(mok_ref_case_count() > 0 && mok_ref_case_get(-1) == NULL && mok_ref_case_get(mok_ref_case_count()) == NULL);
    for (int c = 0; c < mok_ref_case_count(); c++) {
        const struct mok_ref_case *recipe = mok_ref_case_get(c);
        int64_t sizes[] = {recipe->hidden, recipe->inter, recipe->shared_inter};
        int needs_distinct = recipe->ids != MOK_IDS_ANY && recipe->ids != MOK_IDS_ONE && recipe->ids != MOK_IDS_ORDERED;
        assert_ptr_equal(mok_ref_case_find(recipe->name), recipe);
        assert_true(recipe->num_ranks >= 1 && recipe->num_ranks <= 8 && recipe->hidden % 8 == 0 && recipe->inter % 8 == 0);
        assert_true(recipe->shared_inter % 8 == 0 && recipe->covers[0] != '\0' &&
                    (!needs_distinct || recipe->top_k <= recipe->num_experts));
        for (int i = 0; i < 3; i++) {
            for (int j = 0; j < i; j++) {
                if (sizes[i] == sizes[j]) {
                    fail_msg("%s: sizes %d and %d are both %lld", recipe->name, i, j, (long long)sizes[i]);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),           cmocka_unit_test(test_bf16_ulp),       cmocka_unit_test(test_table),
        cmocka_unit_test(test_finite_differences), cmocka_unit_test(test_start_is_added), cmocka_unit_test(test_oracles_agree),
    };
    return cmocka_run_group_tests_name("ref_oracle", tests, NULL, NULL);
}
