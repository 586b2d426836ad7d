/*
 * What is timed without being named: the paths of a bench on GPUs. The first one is what the library takes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bench/bench_settings.h"

static void test_paths(void **state)
{
    (void)state;
    int32_t paths[MOK_BENCH_MAX_PATHS];
    for (int32_t path = MOK_PATH_AUTO; path <= MOK_PATH_FUSED; path++) {
        int32_t num = mok_bench_paths(path, paths);
        assert_int_equal(num, path == MOK_PATH_STAGED ? 1 : 2);
        assert_int_equal(paths[0], path == MOK_PATH_STAGED ? MOK_PATH_STAGED : MOK_PATH_FUSED);
        assert_int_equal(paths[num - 1], MOK_PATH_STAGED); /* its stages are timed in the last lane */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_paths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
