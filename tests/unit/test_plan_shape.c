/*
 * plan/shape.h: who owns which expert, and the bounds on rows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "plan/shape.h"
#include "test_plan_random.h"

/* Every expert has one owner, in rank order, and num_local adds up. */
static void check_split(int32_t num_experts, int32_t num_ranks)
{
    int32_t expert = 0;
    assert_int_equal(mok_plan_first_expert(num_experts, num_ranks, 0), 0);
    assert_int_equal(mok_plan_first_expert(num_experts, num_ranks, num_ranks), num_experts);
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        assert_int_equal(mok_plan_first_expert(num_experts, num_ranks, rank), expert);
        int32_t local = mok_plan_num_local(num_experts, num_ranks, rank);
        assert_true(local == num_experts / num_ranks || local == (num_experts + num_ranks - 1) / num_ranks);
        for (int32_t i = 0; i < local; i++) {
            assert_int_equal(mok_plan_owner(num_experts, num_ranks, expert), rank);
            expert++;
        }
    }
    assert_int_equal(expert, num_experts);
}

static void owner_is_the_inverse_of_first_expert(void **state)
{
    (void)state;
    for (int32_t num_experts = 1; num_experts <= 300; num_experts++) {
        for (int32_t num_ranks = 1; num_ranks <= 64; num_ranks++) {
            check_split(num_experts, num_ranks);
        }
    }
    check_split(1, MOK_MAX_RANKS);
    check_split(1 << 20, MOK_MAX_RANKS);
    check_split((1 << 20) + 1, 1000);
}

static void uneven_splits_are_those_of_the_rule(void **state)
{
    (void)state;
    /* 256 experts on 3 ranks: 85, 85, 86. */
    assert_int_equal(mok_plan_first_expert(256, 3, 1), 85);
    assert_int_equal(mok_plan_first_expert(256, 3, 2), 170);
    assert_int_equal(mok_plan_num_local(256, 3, 2), 86);
    assert_int_equal(mok_plan_owner(256, 3, 84), 0);
    assert_int_equal(mok_plan_owner(256, 3, 85), 1);
    assert_int_equal(mok_plan_owner(256, 3, 255), 2);
    /* 2 experts on 4 ranks: the odd ranks have one each. */
    for (int32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(mok_plan_num_local(2, 4, rank), rank % 2);
    }
    assert_int_equal(mok_plan_owner(2, 4, 0), 1);
    assert_int_equal(mok_plan_owner(2, 4, 1), 3);
    /* Near the end of int32: no product in 32 bits. */
    assert_int_equal(mok_plan_first_expert(2000000000, 1000, 999), 1998000000);
    assert_int_equal(mok_plan_owner(2000000000, 1000, 1999999999), 999);
}

/* The most padded rows that `routes` routes can make on `local` experts, found by trying: singles first, the rest to one expert. */
static int64_t worst_padded(int64_t routes, int64_t local)
{
    int64_t worst = 0;
    for (int64_t active = 1; active <= local && active <= routes; active++) {
        /* `active` experts with 1 + 128 * n_i routes waste the most; what is left over goes to one of them. */
        int64_t left = routes - active;
        int64_t rows = active * MOK_TILE_ROWS + left / MOK_TILE_ROWS * MOK_TILE_ROWS;
        worst = rows > worst ? rows : worst;
    }
    return worst;
}

static void max_rows_is_the_worst_case_and_not_more(void **state)
{
    (void)state;
    struct plan_random random = {1};
    for (int i = 0; i < 20000; i++) {
        struct mok_dims dims = {0};
        dims.num_ranks = plan_random_in(&random, 1, 8);
        dims.num_experts = plan_random_in(&random, 1, 40);
        dims.top_k = plan_random_in(&random, 1, 9);
        dims.max_tokens = plan_random_in(&random, 1, 300);
        int64_t routes = dims.num_ranks * dims.max_tokens * dims.top_k, most = 0;
        for (dims.rank = 0; dims.rank < dims.num_ranks; dims.rank++) {
            int32_t local = mok_plan_num_local(dims.num_experts, dims.num_ranks, dims.rank);
            int64_t rows = mok_plan_max_rows(&dims);
            assert_int_equal(rows, worst_padded(routes, local));
            assert_int_equal(rows % MOK_TILE_ROWS, 0);
            most = mok_max64(most, rows);
        }
        assert_int_equal(mok_plan_max_rows_any(&dims), most);
    }
}

static void max_rows_passes_32_bits(void **state)
{
    (void)state;
    struct mok_dims dims = {.num_ranks = 1024, .num_experts = 1024, .top_k = 64, .max_tokens = 1 << 24};
    assert_int_equal(mok_plan_max_rows(&dims), (int64_t)1 << 40);
    assert_int_equal(mok_plan_max_rows_any(&dims), (int64_t)1 << 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owner_is_the_inverse_of_first_expert),
        cmocka_unit_test(uneven_splits_are_those_of_the_rule),
        cmocka_unit_test(max_rows_is_the_worst_case_and_not_more),
        cmocka_unit_test(max_rows_passes_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
