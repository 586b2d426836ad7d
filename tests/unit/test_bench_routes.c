/*
 * Routes that `mok bench` makes: distinct experts, weights that add up to 1, and the skew that was asked for.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/bench_routes.h"

enum { TOKENS = 4096, EXPERTS = 32, TOP_K = 4, ROUTES = TOKENS * TOP_K };

/* Counts of each expert, highest first; checks each token on the way. */
static void count(enum mok_bench_skew skew, int32_t rank, int32_t set, int32_t *counts, int32_t *ids)
{
    struct mok_bench_settings settings = {.shape = {.experts = EXPERTS, .top_k = TOP_K, .tokens = TOKENS}, .skew = skew};
    struct mok_bench_router router;
    static float w[ROUTES];
    assert_int_equal(mok_bench_router_open(&settings, &router), MOK_OK);
    assert_int_equal(mok_bench_route(&router, rank, set, TOKENS, ids, w), MOK_OK);
    mok_bench_router_close(&router);
    memset(counts, 0, EXPERTS * sizeof *counts);
    for (int token = 0; token < TOKENS; token++) {
        uint64_t seen = 0;
        double sum = 0.0;
        for (int k = 0; k < TOP_K; k++) {
            int32_t id = ids[token * TOP_K + k];
            assert_in_range(id, 0, EXPERTS - 1);
            assert_false(seen >> id & 1);
            seen |= (uint64_t)1 << id;
            sum += w[token * TOP_K + k];
            assert_true(w[token * TOP_K + k] > 0.0f);
            counts[id]++;
        }
        assert_true(fabs(sum - 1.0) < 1e-5);
    }
}

static int32_t most_of(const int32_t *counts)
{
    int32_t most = 0;
    for (int expert = 0; expert < EXPERTS; expert++) {
        most = counts[expert] > most ? counts[expert] : most;
    }
    return most;
}

static void test_balanced(void **state)
{
    (void)state;
    static int32_t ids[ROUTES], others[ROUTES];
    int32_t counts[EXPERTS];
    count(MOK_BENCH_BALANCED, 0, 0, counts, ids);
    for (int expert = 0; expert < EXPERTS; expert++) {
        assert_in_range(counts[expert], ROUTES / EXPERTS * 8 / 10, ROUTES / EXPERTS * 12 / 10);
    }
    count(MOK_BENCH_BALANCED, 0, 0, counts, others);
    assert_memory_equal(ids, others, sizeof ids); /* a function of its arguments */
    count(MOK_BENCH_BALANCED, 0, 1, counts, others);
    assert_memory_not_equal(ids, others, sizeof ids);
    count(MOK_BENCH_BALANCED, 1, 0, counts, others);
    assert_memory_not_equal(ids, others, sizeof ids);
}

/* Popularity 1/rank over 32 experts: the first has 1 of 4.06 in each draw, without replacement more than that of the tokens. */
static void test_zipf(void **state)
{
    (void)state;
    static int32_t ids[ROUTES];
    int32_t counts[EXPERTS], again[EXPERTS];
    count(MOK_BENCH_ZIPF, 0, 0, counts, ids);
    int32_t most = most_of(counts);
    assert_in_range(most, TOKENS * 60 / 100, TOKENS * 80 / 100);
    count(MOK_BENCH_ZIPF, 3, 2, again, ids);
    for (int expert = 0; expert < EXPERTS; expert++) {
        assert_true((counts[expert] == most) == (again[expert] == most_of(again))); /* the same expert on every rank */
    }
}

static void test_hot(void **state)
{
    (void)state;
    static int32_t ids[ROUTES];
    int32_t counts[EXPERTS];
    count(MOK_BENCH_HOT, 0, 0, counts, ids);
    assert_int_equal(counts[0], TOKENS);
    for (int expert = 1; expert < EXPERTS; expert++) {
        assert_true(counts[expert] < TOKENS / 4);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct mok_bench_router router;
    struct mok_bench_settings settings = {.shape = {.experts = 3, .top_k = 4}};
    assert_int_equal(mok_bench_router_open(&settings, &router), MOK_ERR_ARGUMENT);
    settings = (struct mok_bench_settings){.shape = {.experts = 32, .top_k = 8}, .skew = MOK_BENCH_REAL, .routes = "/nonexistent"};
    assert_int_equal(mok_bench_router_open(&settings, &router), MOK_ERR_ARGUMENT);
    settings.shape.experts = 64;
    assert_int_equal(mok_bench_router_open(&settings, &router), MOK_ERR_IO);
}

static void test_names(void **state)
{
    (void)state;
    struct mok_bench_settings settings = {.shape = {-1, -1, -1, -1, -1, -1, -1, 0}, .skew_word = "zipf", .shape_name = "qwen3-30b",
                                          .num_repeats = -1, .num_warmups = -1};
    settings.shape.tokens = 5;
    assert_int_equal(mok_bench_resolve(&settings, 1, 2), MOK_OK);
    assert_int_equal(settings.shape.experts, 128);
    assert_int_equal(settings.shape.inter, 768);
    assert_int_equal(settings.shape.tokens, 5); /* given */
    assert_int_equal(settings.shape.num_ranks, 2);
    assert_int_equal(settings.num_repeats, 30);
    assert_int_equal(settings.skew, MOK_BENCH_ZIPF);
    settings.shape_name = "qwen";
    assert_int_equal(mok_bench_resolve(&settings, 1, 2), MOK_ERR_ARGUMENT);
    settings.shape_name = NULL;
    settings.skew_word = "even";
    assert_int_equal(mok_bench_resolve(&settings, 1, 2), MOK_ERR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_balanced), cmocka_unit_test(test_zipf),  cmocka_unit_test(test_hot),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
