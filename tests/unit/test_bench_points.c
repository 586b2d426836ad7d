/*
 * Points of a sweep: what their text changes, and which are the fastest: measured against the options as given in the same turns, so that a
 * point that was run while the machine was slow is not punished, and without those that change nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/bench_points.h"

enum { REPEATS = 3 };

static struct mok_bench_point points[MOK_BENCH_MAX_POINTS];
static mok_group_config base;

static int32_t parse(const char *text)
{
    int32_t num = -1;
    memset(points, 0, sizeof points);
    assert_int_equal(mok_group_config_init(&base), MOK_OK);
    assert_int_equal(mok_bench_parse_points(text, &base, points, &num), MOK_OK);
    return num;
}

static void set_times(int32_t idx, double ms, double base_ms)
{
    for (int run = 0; run < REPEATS; run++) {
        points[idx].ms[run] = ms;
        points[idx].base_ms[run] = base_ms;
    }
}

static void test_texts(void **state)
{
    (void)state;
    assert_int_equal(parse("path=fused;;minibatch=512,comm-workers=8;"), 4);
    assert_string_equal(points[0].text, "path=fused");
    assert_int_equal(points[0].config.path, MOK_PATH_FUSED);
    assert_string_equal(points[1].text, "");
    assert_int_equal(points[1].config.minibatch_rows, base.minibatch_rows);
    assert_string_equal(points[2].text, "minibatch=512,comm-workers=8");
    assert_int_equal(points[2].config.minibatch_rows, 512);
    assert_int_equal(points[2].config.comm_workers, 8);
    assert_string_equal(points[3].text, "");
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const wrong[] = {"minibatch", "minibatch=7", "height=3", "path=fused;ring=none", "ring=2,device=0"};
    char long_text[2 * MOK_BENCH_MAX_POINTS + 2];
    int32_t num;
    assert_int_equal(mok_group_config_init(&base), MOK_OK);
    for (size_t idx = 0; idx < sizeof wrong / sizeof wrong[0]; idx++) {
        assert_int_equal(mok_bench_parse_points(wrong[idx], &base, points, &num), MOK_ERR_ARGUMENT);
    }
    memset(long_text, ',', MOK_BENCH_POINT_TEXT);
    long_text[MOK_BENCH_POINT_TEXT] = '\0';
    assert_int_equal(mok_bench_parse_points(long_text, &base, points, &num), MOK_ERR_ARGUMENT);
    memset(long_text, ';', MOK_BENCH_MAX_POINTS);
    long_text[MOK_BENCH_MAX_POINTS] = '\0'; /* one point more than there may be */
    assert_int_equal(mok_bench_parse_points(long_text, &base, points, &num), MOK_ERR_ARGUMENT);
    long_text[MOK_BENCH_MAX_POINTS - 1] = '\0';
    assert_int_equal(mok_bench_parse_points(long_text, &base, points, &num), MOK_OK);
    assert_int_equal(num, MOK_BENCH_MAX_POINTS);
}

static void test_fastest(void **state)
{
    (void)state;
    int32_t idx[4] = {-1, -1, -1, -1};
    int32_t num = parse("ring=2;ring=3;;ring=4;ring=5;ring=6");
    set_times(0, 10.0, 10.0);
    set_times(1, 9.8, 9.0); /* fewest milliseconds of those with an option changed but 5, when everything was fast */
    set_times(2, 5.0, 10.0);  /* changes nothing: does not count */
    set_times(3, 10.4, 11.0);
    set_times(4, 10.2, 11.0);
    set_times(5, 9.9, 10.0);
    assert_true(mok_bench_point_ratio(&points[1], REPEATS) == 9.8 / 9.0);
    assert_int_equal(mok_bench_fastest(points, num, &base, REPEATS, 3, idx), 3);
    assert_int_equal(idx[0], 4);
    assert_int_equal(idx[1], 3);
    assert_int_equal(idx[2], 5);
    assert_int_equal(idx[3], -1);
    assert_int_equal(mok_bench_fastest(points, 1, &base, REPEATS, 3, idx), 1);
    assert_int_equal(idx[0], 0);
    assert_int_equal(mok_bench_fastest(points + 2, 1, &base, REPEATS, 3, idx), 0);
}

/* Every order of arrival gives the same answer. */
static void test_order(void **state)
{
    (void)state;
    static const double ms[] = {5.0, 3.0, 4.0, 1.0, 2.0};
    const char *text = "ring=2;ring=3;ring=4;ring=5;ring=6";
    for (int32_t shift = 0; shift < 5; shift++) {
        int32_t idx[3], num = parse(text);
        for (int32_t point = 0; point < num; point++) {
            set_times(point, ms[(point + shift) % 5], 1.0);
        }
        assert_int_equal(mok_bench_fastest(points, num, &base, REPEATS, 3, idx), 3);
        for (int32_t place = 0; place < 3; place++) {
            assert_true(points[idx[place]].ms[0] == 1.0 + place);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts), cmocka_unit_test(test_refusals), cmocka_unit_test(test_fastest),
                                       cmocka_unit_test(test_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
