/*
 * What `mok bench` counts and folds: products against operations, floors of ranks that share a GPU and of ranks that do not, spreads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/bench_measure.h"
#include "bench/bench_spread.h"
#include "trace/event.h"

static const struct mok_bench_sizes sizes_of_one = {
    .hidden = 1024, .inter = 512, .shared_inter = 256, .top_k = 4, .tokens = 640, .rows = 2560, .experts = 8, .is_kept = 1};

/* ---- counting ----------------------------------------------------------------------------------------------------------- */

static double operations_of(const struct mok_bench_sizes *sizes, int first, int num)
{
    double sum = 0.0;
    for (int gemm = first; gemm < first + num; gemm++) {
        struct mok_bench_product product = mok_bench_gemm_product(sizes, (enum mok_bench_gemm)gemm);
        sum += 2.0 * (double)product.m * (double)product.n * (double)product.k;
    }
    return sum;
}

/* All of a rank's routes stay with it, so its products do the operations of its tokens. */
static void test_products_do_the_operations(void **state)
{
    (void)state;
    const int forward = MOK_BENCH_NUM_FORWARD_GEMMS;
    assert_true(operations_of(&sizes_of_one, 0, forward) == mok_bench_operations(&sizes_of_one, 0));
    assert_true(operations_of(&sizes_of_one, forward, MOK_BENCH_NUM_GEMMS - forward) == mok_bench_operations(&sizes_of_one, 1));
    assert_true(mok_bench_operations(&sizes_of_one, 0) == 6.0 * 640 * 1024 * (4 * 512 + 256));
}

static void test_rows_are_rounded_for_dense_products_only(void **state)
{
    (void)state;
    struct mok_bench_sizes sizes = sizes_of_one;
    sizes.rows = 2560 + 65;
    assert_int_equal(mok_bench_gemm_product(&sizes, MOK_BENCH_DOWN).m, 2688);
    assert_int_equal(mok_bench_gemm_product(&sizes, MOK_BENCH_WGRAD_DOWN).k, 2688);
    sizes.rows = 3;
    assert_int_equal(mok_bench_gemm_product(&sizes, MOK_BENCH_DOWN).m, 3);
    sizes.rows = 0;
    assert_int_equal(mok_bench_gemm_product(&sizes, MOK_BENCH_DOWN).m, 0);
    assert_true(mok_bench_stage_bytes(&sizes, mok_bench_find_stage(MOK_EVENT_PULL, 0)) == 0.0);
}

/* Every product belongs to one stage, and every stage is found by its event. */
static void test_stages_share_out_the_products(void **state)
{
    (void)state;
    int num_of[MOK_BENCH_NUM_GEMMS] = {0};
    for (int stage = 0; stage < MOK_BENCH_NUM_STAGES; stage++) {
        const struct mok_bench_stage *what = mok_bench_stage_at(stage);
        assert_int_equal(mok_bench_find_stage(what->kind, what->is_backward), stage);
        assert_true(mok_bench_stage_bytes(&sizes_of_one, stage) > 0.0);
        for (int idx = 0; idx < what->num_gemms; idx++) {
            num_of[what->first_gemm + idx]++;
            assert_int_equal(what->first_gemm + idx >= MOK_BENCH_NUM_FORWARD_GEMMS, what->is_backward);
        }
    }
    for (int gemm = 0; gemm < MOK_BENCH_NUM_GEMMS; gemm++) {
        assert_int_equal(num_of[gemm], 1);
    }
    assert_int_equal(mok_bench_find_stage(MOK_EVENT_WAIT, 0), -1);
}

static void test_bytes_by_hand(void **state)
{
    (void)state;
    const double row = 2.0 * 1024, narrow = 2.0 * 512, matrix = 2.0 * 1024 * 512;
    struct mok_bench_sizes sizes = sizes_of_one;
    assert_true(mok_bench_stage_bytes(&sizes, mok_bench_find_stage(MOK_EVENT_PULL, 0)) == 2560 * 2 * row);
    assert_true(mok_bench_stage_bytes(&sizes, mok_bench_find_stage(MOK_EVENT_PULL, 1)) == 2560 * 2 * (row + 4));
    assert_true(mok_bench_stage_bytes(&sizes, mok_bench_find_stage(MOK_EVENT_PUBLISH, 0)) == 640 * 2 * row);
    assert_true(mok_bench_stage_bytes(&sizes, mok_bench_find_stage(MOK_EVENT_SUM, 0)) == 640 * 6 * row); /* 4 slots, shared, y */
    int gate_up = -1;
    for (int stage = 0; stage < MOK_BENCH_NUM_STAGES; stage++) {
        const struct mok_bench_stage *what = mok_bench_stage_at(stage);
        gate_up = what->num_gemms == 1 && what->first_gemm == MOK_BENCH_GATE_UP ? stage : gate_up;
    }
    assert_true(mok_bench_stage_bytes(&sizes, gate_up) == 2560 * (row + 3 * narrow) + 8 * 2 * matrix);
    sizes.is_kept = 0;
    assert_true(mok_bench_stage_bytes(&sizes, gate_up) == 2560 * (row + narrow) + 8 * 2 * matrix);
    sizes.rows_in = 10;
    sizes.rows_out = 30;
    assert_true(mok_bench_stage_link_bytes(&sizes, mok_bench_find_stage(MOK_EVENT_PUSH, 1)) == 30 * row);
    assert_true(mok_bench_stage_link_bytes(&sizes, mok_bench_find_stage(MOK_EVENT_SUM, 0)) == 0.0);
    assert_true(mok_bench_pass_link_bytes(&sizes) == 40 * row);
}

/* ---- folding ------------------------------------------------------------------------------------------------------------ */

/* Two ranks: rank 1 is twice as slow and has twice the rows. */
static struct mok_bench_job *make_job(int32_t num_devices)
{
    struct mok_bench_job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    job->facts.num_devices = num_devices;
    for (int rank = 0; rank < 2; rank++) {
        struct mok_bench_times *times = &job->times[rank];
        job->gpus[rank].sets[1].sizes = sizes_of_one;
        job->gpus[rank].sets[1].sizes.rows *= rank + 1;
        times->layer_ms[0][0] = 10.0 * (rank + 1);
        times->layer_ms[0][1] = 20.0 * (rank + 1);
        times->zero_copy_ms[0] = 9.0 * (rank + 1);
        times->copy_ms = rank + 1.0;
        for (int gemm = 0; gemm < MOK_BENCH_NUM_GEMMS; gemm++) {
            times->gemm_ms[gemm] = rank + 1.0;
        }
    }
    return job;
}

static void test_ranks_of_one_gpu_add_up(void **state)
{
    (void)state;
    struct mok_bench_job *job = make_job(1);
    struct mok_bench_run run;
    int pull = mok_bench_find_stage(MOK_EVENT_PULL, 0);
    mok_bench_fold(job, 2, 1, &run);
    assert_true(run.layer_ms[0][0] == 20.0 && run.layer_ms[0][1] == 40.0 && run.zero_copy_ms[0] == 18.0);
    assert_true(run.dense_ms[0] == 4 * 3.0 && run.dense_ms[1] == 8 * 3.0);
    assert_true(run.gemm_ms[MOK_BENCH_DOWN] == 3.0);
    assert_true(run.memory_rate == 2.0 * MOK_BENCH_COPY_BYTES); /* the first rank's copy alone */
    assert_true(run.stage_floor_ms[pull] == 3 * 2560 * 2 * 2048.0 / run.memory_rate);
    assert_true(run.bound[pull] == MOK_BENCH_BY_MEMORY);
    assert_true(run.floor_ms[0] == run.dense_ms[0]);
    free(job);
}

static void test_the_slowest_gpu_counts(void **state)
{
    (void)state;
    struct mok_bench_job *job = make_job(2);
    struct mok_bench_run run;
    int pull = mok_bench_find_stage(MOK_EVENT_PULL, 0);
    job->times[0].link_ms = 1.0;
    job->times[1].link_ms = 4.0;
    job->gpus[0].sets[1].sizes.rows_in = 5120;
    mok_bench_fold(job, 2, 1, &run);
    assert_true(run.dense_ms[0] == 4 * 2.0 && run.dense_ms[1] == 8 * 2.0);
    assert_true(run.memory_rate == 2.0 * MOK_BENCH_COPY_BYTES / 2.0);
    assert_true(run.link_rate == MOK_BENCH_COPY_BYTES / 4.0);
    assert_true(run.stage_floor_ms[pull] == 5120 * 2048.0 / run.link_rate); /* 0.078 ms; through memory 0.039 on the other */
    assert_true(run.bound[pull] == MOK_BENCH_BY_LINK);
    double sum = 0.0;
    for (int stage = 0; stage < MOK_BENCH_NUM_STAGES; stage++) {
        sum += mok_bench_stage_at(stage)->is_backward ? 0.0 : run.stage_floor_ms[stage];
    }
    assert_true(run.stage_floors_ms[0] == sum);
    free(job);
}

/* Without cuBLAS and with one GPU, a floor is made of what there is. */
static void test_floors_without_dense_times(void **state)
{
    (void)state;
    struct mok_bench_job *job = make_job(1);
    struct mok_bench_run run;
    memset(job->times[0].gemm_ms, 0, sizeof job->times[0].gemm_ms);
    memset(job->times[1].gemm_ms, 0, sizeof job->times[1].gemm_ms);
    mok_bench_fold(job, 2, 1, &run);
    assert_true(run.dense_ms[0] == 0.0 && run.link_rate == 0.0);
    assert_true(run.floor_ms[0] > 0.0 && run.floor_ms[1] > run.floor_ms[0]);
    free(job);
}

static void test_spreads(void **state)
{
    (void)state;
    const double odd[] = {3.0, 1.0, 2.0}, even[] = {4.0, 1.0, 2.0, 3.0};
    struct mok_bench_spread spread = mok_bench_spread_of(odd, 3);
    assert_true(spread.least == 1.0 && spread.median == 2.0 && spread.most == 3.0);
    spread = mok_bench_spread_of(even, 4);
    assert_true(spread.least == 1.0 && spread.median == 2.5 && spread.most == 4.0);
    assert_true(mok_bench_spread_of(odd, 0).median == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_do_the_operations),
        cmocka_unit_test(test_rows_are_rounded_for_dense_products_only),
        cmocka_unit_test(test_stages_share_out_the_products),
        cmocka_unit_test(test_bytes_by_hand),
        cmocka_unit_test(test_ranks_of_one_gpu_add_up),
        cmocka_unit_test(test_the_slowest_gpu_counts),
        cmocka_unit_test(test_floors_without_dense_times),
        cmocka_unit_test(test_spreads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
