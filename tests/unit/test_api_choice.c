/*
 * What is chosen before creation is what the group then has: the caller's values where there are some, clamped to what can be, and never AUTO.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cblas.h>

#include <mok/mok.h>

/* A group of one rank on the CPU; everything else is left open. */
static mok_group_config open_config(void)
{
    mok_group_config config;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CPU;
    config.shape = (mok_shape){.num_experts = 3, .top_k = 2, .hidden = 64, .intermediate = 32, .max_tokens = 400};
    return config;
}

/* Chooses, creates, asks, and returns what both said. */
static mok_choice chosen(const mok_group_config *config)
{
    mok_choice before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    mok_group *group = NULL;
    assert_int_equal(mok_group_choose(config, &before), MOK_OK);
    assert_int_equal(mok_group_create(config, &group), MOK_OK);
    assert_int_equal(mok_group_choice(group, &after), MOK_OK);
    assert_int_equal(mok_group_destroy(group), MOK_OK);
    assert_memory_equal(&before, &after, sizeof before);
    return after;
}

static void test_open(void **state)
{
    (void)state;
    mok_group_config config = open_config();
    mok_choice choice = chosen(&config);
    const mok_ring_choice *rings[] = {&choice.forward, &choice.backward};
    assert_int_equal(choice.backend, MOK_BACKEND_CPU);
    assert_int_equal(choice.path, MOK_PATH_FUSED);
    assert_true(choice.comm_workers >= 1 && choice.compute_workers >= 1);
    for (int pass = 0; pass < 2; pass++) {
        assert_true(rings[pass]->minibatch_rows >= 128 && rings[pass]->minibatch_rows % 128 == 0);
        assert_true(rings[pass]->ring_minibatches >= 1);
        assert_true(rings[pass]->look_ahead >= 0 && rings[pass]->look_ahead < rings[pass]->ring_minibatches);
    }
}

static void test_given(void **state)
{
    (void)state;
    mok_group_config config = open_config();
    config.comm_workers = 2;
    config.compute_workers = 3;
    config.minibatch_rows = 256;
    config.ring_minibatches = 3;
    config.look_ahead = 1;
    mok_choice choice = chosen(&config);
    const mok_ring_choice *rings[] = {&choice.forward, &choice.backward};
    assert_int_equal(choice.comm_workers, 2);
    assert_int_equal(choice.compute_workers, 3);
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(rings[pass]->minibatch_rows, 256);
        assert_int_equal(rings[pass]->ring_minibatches, 3);
        assert_int_equal(rings[pass]->look_ahead, 1);
    }
}

/* 1,152 rows are the worst case here: (400 * 2 + 3 * 127) rounded down to 128. */
static void test_too_much(void **state)
{
    (void)state;
    mok_group_config config = open_config();
    config.minibatch_rows = 1 << 20;
    mok_choice choice = chosen(&config);
    assert_int_equal(choice.forward.minibatch_rows, 1152);
    assert_int_equal(choice.forward.ring_minibatches, 1);
    assert_int_equal(choice.forward.look_ahead, 0);
    config.minibatch_rows = 512;
    config.ring_minibatches = 100;
    config.look_ahead = 100;
    choice = chosen(&config);
    assert_int_equal(choice.backward.minibatch_rows, 512);
    assert_int_equal(choice.backward.ring_minibatches, 3);
    assert_int_equal(choice.backward.look_ahead, 2);
}

/* No saved object, no backward pass. */
static void test_inference(void **state)
{
    (void)state;
    mok_group_config config = open_config();
    mok_memory memory = {.struct_size = sizeof memory};
    config.num_saved = 0;
    mok_choice choice = chosen(&config);
    assert_true(choice.forward.minibatch_rows > 0);
    assert_int_equal(choice.backward.minibatch_rows, 0);
    assert_int_equal(choice.backward.ring_minibatches, 0);
    assert_int_equal(mok_group_memory(&config, &memory), MOK_OK);
    assert_int_equal(memory.keep_rows, 0);
}

/* What creation refuses whatever the machine is like. */
static void test_pair(void **state)
{
    (void)state;
    mok_group_config config = open_config();
    mok_choice choice = {.struct_size = sizeof choice};
    mok_memory memory = {.struct_size = sizeof memory};
    config.peer = MOK_PEER_NCCL;
    assert_int_equal(mok_group_choose(&config, &choice), MOK_ERR_UNSUPPORTED);
    assert_int_equal(mok_group_memory(&config, &memory), MOK_ERR_UNSUPPORTED);
}

/* Asking leaves the caller's OpenBLAS alone; a group sets it to one thread. First of all tests: no group has been there. */
static void test_blas_threads(void **state)
{
    (void)state;
    mok_group_config config = open_config();
    mok_choice choice = {.struct_size = sizeof choice};
    openblas_set_num_threads(2);
    int before = openblas_get_num_threads(); /* 1 on one core */
    assert_true(mok_backend_available(MOK_BACKEND_CPU));
    assert_non_null(mok_build_info());
    assert_int_equal(mok_group_choose(&config, &choice), MOK_OK);
    assert_int_equal(openblas_get_num_threads(), before);
    (void)chosen(&config);
    assert_int_equal(openblas_get_num_threads(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blas_threads), cmocka_unit_test(test_open),      cmocka_unit_test(test_given),
        cmocka_unit_test(test_too_much),     cmocka_unit_test(test_inference), cmocka_unit_test(test_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
