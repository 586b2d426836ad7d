/*
 * plan/rows.h against a straightforward simulation of the rule in numerics.md: round q takes the q-th route of each source that still has
 * one, sources in the order rank+1, .., rank.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/rows.h"
#include "test_plan_random.h"

/* Walks the rounds and compares every row; counts[s * stride] routes of source s. */
static void check_expert(const int32_t *counts, int64_t stride, int32_t num_ranks, int32_t owner)
{
    int64_t row = 0;
    int more = 1;
    for (int32_t q = 0; more; q++) {
        more = 0;
        for (int32_t i = 1; i <= num_ranks; i++) {
            int32_t source = (owner + i) % num_ranks;
            if (counts[source * stride] > q) {
                assert_int_equal(mok_plan_row_in_expert(counts, stride, num_ranks, owner, source, q), row);
                row++;
                more = 1;
            }
        }
    }
}

static void row_order_is_that_of_the_rounds(void **state)
{
    (void)state;
    struct plan_random random = {2};
    int32_t counts[16 * 3];
    for (int i = 0; i < 3000; i++) {
        int32_t num_ranks = plan_random_in(&random, 1, 16), stride = plan_random_in(&random, 1, 3);
        int32_t most = plan_random_in(&random, 0, 40);
        memset(counts, 0x7f, sizeof counts); /* what stands between the strides must not be read */
        for (int32_t s = 0; s < num_ranks; s++) {
            counts[s * stride] = plan_random_chance(&random, 25) ? 0 : plan_random_in(&random, 0, most);
        }
        for (int32_t owner = 0; owner < num_ranks; owner++) {
            check_expert(counts, stride, num_ranks, owner);
        }
    }
}

static void turns_are_a_permutation_and_its_inverse(void **state)
{
    (void)state;
    for (int32_t num_ranks = 1; num_ranks <= 64; num_ranks++) {
        for (int32_t owner = 0; owner < num_ranks; owner++) {
            assert_int_equal(mok_plan_source_at(num_ranks, owner, 0), (owner + 1) % num_ranks);
            assert_int_equal(mok_plan_source_at(num_ranks, owner, num_ranks - 1), owner);
            for (int32_t turn = 0; turn < num_ranks; turn++) {
                int32_t source = mok_plan_source_at(num_ranks, owner, turn);
                assert_in_range(source, 0, num_ranks - 1);
                assert_int_equal(mok_plan_source_turn(num_ranks, owner, source), turn);
            }
        }
    }
}

/* All routes of all ranks, T tokens each: every row of every expert is taken by one route, and offsets are the host's prefix sum. */
static void check_bijection(int32_t num_tokens, int32_t num_experts, int32_t num_ranks, int32_t top_k, uint64_t seed)
{
    struct plan_random random = {seed};
    int64_t routes = (int64_t)num_tokens * top_k;
    int32_t *ids = malloc((size_t)(num_ranks * routes) * sizeof *ids);
    int32_t *counts = calloc((size_t)num_ranks * (size_t)num_experts, sizeof *counts);
    int32_t *seen_of = calloc((size_t)num_ranks * (size_t)num_experts, sizeof *seen_of);
    int64_t *first = calloc((size_t)num_experts + 1, sizeof *first);
    for (int64_t i = 0; i < num_ranks * routes; i++) {
        ids[i] = plan_random_in(&random, -1, num_experts - 1);
        if (ids[i] >= 0) {
            counts[i / routes * num_experts + ids[i]]++;
        }
    }
    for (int32_t e = 0; e < num_experts; e++) {
        first[e + 1] = first[e];
        for (int32_t s = 0; s < num_ranks; s++) {
            first[e + 1] += counts[s * num_experts + e];
        }
    }
    char *taken = calloc((size_t)first[num_experts] + 1, 1);
    for (int64_t i = 0; i < num_ranks * routes; i++) {
        int32_t source = (int32_t)(i / routes), e = ids[i];
        if (e < 0) {
            continue;
        }
        int32_t owner = mok_plan_owner(num_experts, num_ranks, e), q = seen_of[source * num_experts + e]++;
        int64_t row = first[e] + mok_plan_row_in_expert(counts + e, num_experts, num_ranks, owner, source, q);
        assert_true(row >= first[e] && row < first[e + 1]);
        assert_int_equal(taken[row], 0);
        taken[row] = 1;
    }
    assert_null(memchr(taken, 0, (size_t)first[num_experts]));
    free(taken);
    free(first);
    free(seen_of);
    free(counts);
    free(ids);
}

static void slots_map_to_rows_one_to_one(void **state)
{
    (void)state;
    /* Sizes around the blocks of a counting sort. */
    static const int32_t tokens[] = {1, 255, 256, 257, 1025};
    static const int32_t experts[] = {1, 127, 128, 129, 257};
    uint64_t seed = 3;
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
        for (size_t e = 0; e < sizeof experts / sizeof *experts; e++) {
            check_bijection(tokens[t], experts[e], 1, 1, seed++);
            check_bijection(tokens[t], experts[e], 4, 3, seed++);
            check_bijection(tokens[t], experts[e], 5, 8, seed++);
        }
    }
}

static void ids_outside_are_not_routed(void **state)
{
    (void)state;
    static const struct {
        int32_t id, routed, bad;
    } cases[] = {{-1, 0, 0}, {0, 1, 0}, {7, 1, 0}, {8, 0, 1}, {INT32_MAX, 0, 1}, {-2, 0, 1}, {INT32_MIN, 0, 1}, {0x7f7f7f7f, 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(mok_plan_is_routed(cases[i].id, 8), cases[i].routed);
        assert_int_equal(mok_plan_is_bad_id(cases[i].id, 8), cases[i].bad);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_order_is_that_of_the_rounds),
        cmocka_unit_test(turns_are_a_permutation_and_its_inverse),
        cmocka_unit_test(slots_map_to_rows_one_to_one),
        cmocka_unit_test(ids_outside_are_not_routed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
