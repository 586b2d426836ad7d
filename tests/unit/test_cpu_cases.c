/*
 * The case table through the ops of the CPU backend, against both oracles and check 3 (docs/numerics.md). Slow cases: MOK_TEST_SLOW=1, or
 * by name as arguments of the program.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/status.h"
#include "test_cpu_run.h"

static struct cpu_run run_of(const struct mok_ref_case *recipe)
{
    struct cpu_run run = {
        .minibatch_rows = recipe->knobs.minibatch_rows,
        .ring_minibatches = recipe->knobs.ring_minibatches,
        .look_ahead = recipe->knobs.look_ahead,
        .keep_rows = recipe->knobs.keep_rows,
        .comm_workers = recipe->knobs.comm_workers,
        .compute_workers = recipe->knobs.compute_workers,
        .poison = 0xff,
        .max_tokens = recipe->knobs.max_tokens,
    };
    return run;
}

static int64_t fail_of_case(const struct mok_ref_case *recipe)
{
    struct mok_ref_problem problem;
    struct mok_ref_answer answer;
    struct mok_ref_outputs outputs;
    struct cpu_run run = run_of(recipe);
    assert_int_equal(mok_ref_generate(recipe, 0, &problem), MOK_OK);
    assert_int_equal(mok_ref_answer_make(&problem, &answer), MOK_OK);
    assert_int_equal(mok_ref_outputs_alloc(&problem, &outputs), MOK_OK);
    int64_t failures = run_problem(&problem, &run, &outputs, NULL);
    if (failures == 0) {
        failures = count_wrong(&problem, &answer, &outputs);
    }
    mok_ref_outputs_free(&problem, &outputs);
    mok_ref_answer_free(&answer);
    mok_ref_problem_free(&problem);
    return failures;
}

static void case_table_is_right(void **state)
{
    (void)state;
    int num_failed = 0, num_run = 0;
    for (int i = 0; i < mok_ref_case_count(); i++) {
        const struct mok_ref_case *recipe = mok_ref_case_get(i);
        if (recipe->slow && getenv("MOK_TEST_SLOW") == NULL) {
            continue;
        }
        int64_t failures = fail_of_case(recipe);
        num_run++;
        if (failures != 0) {
            print_message("case %s: %lld failures\n", recipe->name, (long long)failures);
            num_failed++;
        }
    }
    print_message("%d cases run\n", num_run);
    assert_true(num_run > 0);
    assert_int_equal(num_failed, 0);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const struct mok_ref_case *recipe = mok_ref_case_find(argv[i]);
        int64_t failures = recipe != NULL ? fail_of_case(recipe) : -1;
        print_message("case %s: %lld failures\n", argv[i], (long long)failures);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(case_table_is_right)};
    return argc > 1 ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
}
