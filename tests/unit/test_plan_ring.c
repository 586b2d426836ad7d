/*
 * plan/ring.h: the minibatch rule, ring rows, and the flat array of counters.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "plan/ring.h"
#include "test_plan_random.h"

/* The rule of plan/ring.h: the fewest rows, in multiples of 128, so that every GEMM has at least two 128 x 256 tiles per worker. */
static void minibatch_fills_the_workers_twice(void **state)
{
    (void)state;
    struct plan_random random = {5};
    for (int i = 0; i < 20000; i++) {
        struct mok_dims dims = {.hidden = 8 * plan_random_in(&random, 1, 1024), .inter = 8 * plan_random_in(&random, 1, 1024)};
        int32_t workers = plan_random_in(&random, 1, 160);
        for (int backward = 0; backward < 2; backward++) {
            int64_t rows = mok_plan_minibatch_rows(&dims, workers, backward);
            int64_t narrow = mok_min64(backward ? dims.inter : 2 * dims.inter, dims.hidden);
            assert_true(rows > 0 && rows % MOK_TILE_ROWS == 0);
            assert_true(rows * narrow >= 2 * (int64_t)workers * 128 * 256);
            assert_true((rows - MOK_TILE_ROWS) * narrow < 2 * (int64_t)workers * 128 * 256);
        }
    }
    struct mok_dims dims = {.hidden = 7168, .inter = 2048};
    assert_int_equal(mok_plan_minibatch_rows(&dims, 112, 0), 1792);  /* 2 * 112 * 32768 / 4096 */
    assert_int_equal(mok_plan_minibatch_rows(&dims, 112, 1), 3584);  /* 2 * 112 * 32768 / 2048 */
}

static void ring_rows_cycle_through_the_places(void **state)
{
    (void)state;
    struct plan_random random = {6};
    for (int i = 0; i < 2000; i++) {
        struct mok_ring ring = {.minibatch_rows = MOK_TILE_ROWS * plan_random_in(&random, 1, 5)};
        ring.num_places = plan_random_in(&random, 1, 6);
        int64_t rows = mok_plan_ring_rows(&ring);
        assert_int_equal(rows, ring.minibatch_rows * ring.num_places);
        for (int j = 0; j < 50; j++) {
            int64_t row = plan_random_in(&random, 0, 100000), minibatch = row / ring.minibatch_rows;
            int64_t place = minibatch % ring.num_places;
            assert_int_equal(mok_plan_ring_row(&ring, row), place * ring.minibatch_rows + row % ring.minibatch_rows);
        }
    }
}

/* D4 and beyond: byte offsets of rows in a ring or saved object, past 2^31 and 2^32. */
static void offsets_of_rows_pass_32_bits(void **state)
{
    (void)state;
    struct mok_ring ring = {.minibatch_rows = (int64_t)1 << 33, .num_places = 3, .keep_rows = 0};
    int64_t row = ((int64_t)1 << 33) * 4 + 5;
    assert_int_equal(mok_plan_ring_row(&ring, row), ((int64_t)1 << 33) + 5);
    ring = (struct mok_ring){.minibatch_rows = 61824, .num_places = 1};
    int64_t last = mok_plan_ring_row(&ring, 61699);
    assert_int_equal(last, 61699);
    assert_true(last * 2 * 17408 > INT32_MAX);
    struct mok_dims dims = {.num_ranks = 8, .num_experts = 256, .top_k = 8, .hidden = 7168, .inter = 2048, .max_tokens = 37450};
    int64_t rows = mok_plan_max_rows(&dims);
    assert_int_equal(rows, (8 * 37450 * 8 + 32 * 127) / 128 * 128);
    assert_true(rows * dims.hidden > (int64_t)1 << 33);
}

/* Kinds follow each other without a gap or an overlap, and each has room for all its indices. */
static void counters_are_apart(void **state)
{
    (void)state;
    struct plan_random random = {7};
    for (int i = 0; i < 5000; i++) {
        struct mok_dims dims = {0};
        dims.num_ranks = plan_random_in(&random, 1, 8);
        dims.num_experts = plan_random_in(&random, 1, 64);
        dims.top_k = plan_random_in(&random, 1, 8);
        dims.max_tokens = plan_random_in(&random, 1, 5000);
        dims.shared_inter = plan_random_chance(&random, 50) ? 64 : 0;
        struct mok_ring ring = {.minibatch_rows = MOK_TILE_ROWS * plan_random_in(&random, 1, 9)};
        ring.num_places = plan_random_in(&random, 1, 5);
        struct mok_limits limits = mok_plan_limits(&dims, &ring);
        assert_int_equal(limits.max_tiles * MOK_TILE_ROWS, limits.max_rows);
        assert_true(limits.max_minibatches * ring.minibatch_rows >= limits.max_rows);
        assert_true((limits.max_minibatches - 1) * ring.minibatch_rows < limits.max_rows);
        assert_true(limits.max_laps * ring.num_places >= limits.max_minibatches);
        assert_int_equal(limits.max_token_tiles, dims.shared_inter ? (dims.max_tokens + 127) / 128 : 0);
        int64_t most[MOK_NUM_COUNTERS];
        for (int kind = 0; kind < MOK_NUM_COUNTERS; kind++) {
            most[kind] = limits.max_tiles;
        }
        most[MOK_COUNT_PULLED] = most[MOK_COUNT_PLACE_FREE] = limits.max_minibatches;
        most[MOK_COUNT_CARRY_DONE] = limits.max_laps;
        most[MOK_COUNT_SHARED_G_DONE] = most[MOK_COUNT_SHARED_D_DONE] = limits.max_token_tiles;
        most[MOK_COUNT_SHARED_DONE] = 1;
        int64_t base = 0;
        for (int kind = 0; kind < MOK_NUM_COUNTERS; kind++) {
            assert_int_equal(mok_plan_counter_base(&limits, kind), base);
            base += most[kind];
        }
        assert_int_equal(mok_plan_counter_base(&limits, MOK_NUM_COUNTERS), base);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(minibatch_fills_the_workers_twice),
        cmocka_unit_test(ring_rows_cycle_through_the_places),
        cmocka_unit_test(offsets_of_rows_pass_32_bits),
        cmocka_unit_test(counters_are_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
