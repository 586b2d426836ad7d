/*
 * Which bits are equal (docs/numerics.md): y, dx, dw for every minibatch, ring, look-ahead, number of kept rows, split of workers and
 * number of ranks; weight gradients for all of these but the number of ranks. All runs are stirred by random delays and poisoned.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/status.h"
#include "test_cpu_run.h"

static const struct mok_ref_case base_case = {
    .name = "bits",
    .num_ranks = 2,
    .num_experts = 5,
    .top_k = 3,
    .hidden = 72,
    .inter = 296, /* two tiles of gate+up, the second narrow */
    .shared_inter = 40,
    .tokens = {310, 173},
    .ids = MOK_IDS_SKEWED,
    .values = MOK_VALUES_NORMAL,
    .router = MOK_ROUTER_SIGNED,
    .shared_w = 1,
    .activation = {3.0f, 1.2f, 0.5f},
    .grad_dtype = MOK_DTYPE_FP32,
    .grad_mode = MOK_GRAD_ADD,
};

static const struct cpu_run base_run = {.keep_rows = MOK_KEEP_ALL, .poison = 0xff};

static void expect_equal(const void *a, const void *b, int64_t bytes, const char *what, const char *variant)
{
    if (bytes > 0 && memcmp(a, b, (size_t)bytes) != 0) {
        fail_msg("%s differs: %s", what, variant);
    }
}

static void expect_equal_rows(const struct mok_ref_problem *problem, const struct mok_ref_outputs *a, const struct mok_ref_outputs *b,
                              const char *variant)
{
    expect_equal(a->y, b->y, problem->num_tokens * problem->hidden * 2, "y", variant);
    expect_equal(a->dx, b->dx, problem->num_tokens * problem->hidden * 2, "dx", variant);
    expect_equal(a->dw, b->dw, problem->num_tokens * problem->top_k * 4, "dw", variant);
    expect_equal(a->dshared_w, b->dshared_w, problem->num_tokens * 4, "dshared_w", variant);
}

static void expect_equal_ffn(const struct mok_ref_grads *a, const struct mok_ref_grads *b, int64_t num, const char *variant)
{
    expect_equal(a->gate, b->gate, num * 4, "gradient of gate", variant);
    expect_equal(a->up, b->up, num * 4, "gradient of up", variant);
    expect_equal(a->down, b->down, num * 4, "gradient of down", variant);
}

static void expect_equal_grads(const struct mok_ref_problem *problem, const struct mok_ref_outputs *a, const struct mok_ref_outputs *b,
                               const char *variant)
{
    int64_t hidden = problem->hidden;
    expect_equal_ffn(&a->grads, &b->grads, problem->num_experts * problem->inter * hidden, variant);
    expect_equal_ffn(&a->shared_grads, &b->shared_grads, (int64_t)problem->num_ranks * problem->shared_inter * hidden, variant);
}

static void compare_variants(int32_t grad_dtype, int32_t grad_mode)
{
    static const struct {
        const char *name;
        struct cpu_run run;
    } variants[] = {
        {"again", {.keep_rows = MOK_KEEP_ALL, .poison = 0x7f}},
        {"small minibatch, ring of one", {.keep_rows = MOK_KEEP_ALL, .minibatch_rows = 128, .ring_minibatches = 1, .poison = 0xff}},
        {"small minibatch, ring of two", {.keep_rows = MOK_KEEP_ALL, .minibatch_rows = 128, .ring_minibatches = 2, .poison = 0xff}},
        {"ring of three, look-ahead two",
         {.keep_rows = MOK_KEEP_ALL, .minibatch_rows = 256, .ring_minibatches = 3, .look_ahead = 2, .poison = 0xff}},
        {"nothing kept", {.keep_rows = 0, .minibatch_rows = 128, .ring_minibatches = 2, .poison = 0xff}},
        {"nothing kept, one minibatch", {.keep_rows = 0, .poison = 0x7f}},
        {"some kept", {.keep_rows = 384, .minibatch_rows = 256, .ring_minibatches = 1, .poison = 0xff}},
        {"many workers",
         {.keep_rows = 256,
          .minibatch_rows = 128,
          .ring_minibatches = 4,
          .comm_workers = 3,
          .compute_workers = 3,
          .poison = 0xff,
          .delay_us = 300}},
        {"many that compute",
         {.keep_rows = MOK_KEEP_ALL,
          .minibatch_rows = 128,
          .ring_minibatches = 2,
          .comm_workers = 1,
          .compute_workers = 5,
          .poison = 0xff,
          .delay_us = 300}},
        {"many that move",
         {.keep_rows = 0,
          .minibatch_rows = 128,
          .ring_minibatches = 3,
          .comm_workers = 4,
          .compute_workers = 1,
          .poison = 0x7f,
          .delay_us = 300}},
        {"x handed in in place, larger T_max, twice",
         {.keep_rows = MOK_KEEP_ALL, .is_zero_copy = 1, .max_tokens = 777, .num_repeats = 2, .poison = 0xff}},
    };
    struct mok_ref_case recipe = base_case;
    struct mok_ref_problem problem;
    struct mok_ref_outputs expected, outputs;
    recipe.grad_dtype = grad_dtype;
    recipe.grad_mode = grad_mode;
    assert_int_equal(mok_ref_generate(&recipe, 0, &problem), MOK_OK);
    assert_int_equal(mok_ref_outputs_alloc(&problem, &expected), MOK_OK);
    assert_int_equal(mok_ref_outputs_alloc(&problem, &outputs), MOK_OK);
    assert_int_equal(run_problem(&problem, &base_run, &expected, NULL), 0);
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        assert_int_equal(run_problem(&problem, &variants[i].run, &outputs, NULL), 0);
        expect_equal_rows(&problem, &expected, &outputs, variants[i].name);
        expect_equal_grads(&problem, &expected, &outputs, variants[i].name);
    }
    mok_ref_outputs_free(&problem, &outputs);
    mok_ref_outputs_free(&problem, &expected);
    mok_ref_problem_free(&problem);
}

static void minibatch_ring_and_workers_change_no_bit(void **state)
{
    (void)state;
    compare_variants(MOK_DTYPE_FP32, MOK_GRAD_ADD);
}

static void nor_in_bf16_gradients(void **state)
{
    (void)state;
    compare_variants(MOK_DTYPE_BF16, MOK_GRAD_OVERWRITE);
}

/* Inference: the same y, though nothing is kept. */
static void inference_gives_the_same_y(void **state)
{
    (void)state;
    struct mok_ref_problem problem;
    struct mok_ref_outputs expected, outputs;
    struct cpu_run run = base_run;
    run.is_inference = 1;
    run.minibatch_rows = 128;
    run.ring_minibatches = 2;
    assert_int_equal(mok_ref_generate(&base_case, 0, &problem), MOK_OK);
    assert_int_equal(mok_ref_outputs_alloc(&problem, &expected), MOK_OK);
    assert_int_equal(mok_ref_outputs_alloc(&problem, &outputs), MOK_OK);
    assert_int_equal(run_problem(&problem, &base_run, &expected, NULL), 0);
    assert_int_equal(run_problem(&problem, &run, &outputs, NULL), 0);
    expect_equal(expected.y, outputs.y, problem.num_tokens * problem.hidden * 2, "y", "inference");
    mok_ref_outputs_free(&problem, &outputs);
    mok_ref_outputs_free(&problem, &expected);
    mok_ref_problem_free(&problem);
}

static void number_of_ranks_changes_no_bit_of_rows(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int32_t num_ranks;
        int64_t tokens[8];
    } spreads[] = {
        {"one rank", 1, {483}},
        {"two ranks, the other way", 2, {1, 482}},
        {"three ranks, one without tokens", 3, {200, 0, 283}},
        {"eight ranks, some without experts", 8, {60, 61, 62, 60, 60, 60, 60, 60}},
    };
    struct mok_ref_problem problem;
    struct mok_ref_outputs expected;
    assert_int_equal(mok_ref_generate(&base_case, 0, &problem), MOK_OK);
    assert_int_equal(mok_ref_outputs_alloc(&problem, &expected), MOK_OK);
    assert_int_equal(run_problem(&problem, &base_run, &expected, NULL), 0);
    for (size_t i = 0; i < sizeof spreads / sizeof spreads[0]; i++) {
        struct mok_ref_problem other;
        struct mok_ref_outputs outputs;
        assert_int_equal(mok_ref_spread(&problem, spreads[i].num_ranks, spreads[i].tokens, &other), MOK_OK);
        assert_int_equal(mok_ref_outputs_alloc(&other, &outputs), MOK_OK);
        assert_int_equal(run_problem(&other, &base_run, &outputs, NULL), 0);
        expect_equal_rows(&problem, &expected, &outputs, spreads[i].name);
        mok_ref_outputs_free(&other, &outputs);
        mok_ref_problem_free(&other);
    }
    mok_ref_outputs_free(&problem, &expected);
    mok_ref_problem_free(&problem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(minibatch_ring_and_workers_change_no_bit),
        cmocka_unit_test(nor_in_bf16_gradients),
        cmocka_unit_test(inference_gives_the_same_y),
        cmocka_unit_test(number_of_ranks_changes_no_bit_of_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
