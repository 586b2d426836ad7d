/*
 * The table of what each backend has (cli/case/case_list.c) against the library: what it leaves out is refused with MOK_ERR_UNSUPPORTED, what it
 * has is not. And a refusal of something on the list is a failure, not a skip.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "case/case_equal.h"
#include "case/case_list.h"
#include "case/case_run.h"

enum {
    REGION_BYTES = 1 << 20
};

static const int32_t backends[] = {MOK_BACKEND_CPU, MOK_BACKEND_CUDA};

static mok_status ask_memory(int32_t backend, int32_t path)
{
    const struct mok_ref_case *recipe = mok_ref_case_find("all-different");
    struct mok_ref_knobs knobs = {.path = path};
    struct mok_case_join join = {.backend = backend, .peer = MOK_PEER_THREADS, .num_saved = 1};
    struct mok_ref_problem problem;
    mok_group_config config;
    mok_memory memory = {.struct_size = sizeof memory};
    assert_int_equal(mok_ref_generate(recipe, 0, &problem), MOK_OK);
    assert_int_equal(mok_case_config(&problem, &knobs, &join, -1, NULL, &config), MOK_OK);
    mok_status status = mok_group_memory(&config, &memory);
    mok_ref_problem_free(&problem);
    return status;
}

/* Planning needs no GPU, so this holds wherever the backend is built. */
static void test_paths(void **state)
{
    static const int32_t paths[] = {MOK_PATH_AUTO, MOK_PATH_FUSED, MOK_PATH_STAGED};
    (void)state;
    for (size_t b = 0; b < sizeof backends / sizeof backends[0]; b++) {
        for (size_t p = 0; p < sizeof paths / sizeof paths[0]; p++) {
            mok_status status = ask_memory(backends[b], paths[p]);
            if (status != MOK_ERR_NOT_BUILT) {
                assert_int_equal(status, mok_case_has_path(backends[b], paths[p]) ? MOK_OK : MOK_ERR_UNSUPPORTED);
            }
        }
        assert_true(mok_case_has_path(backends[b], MOK_PATH_AUTO) && mok_case_has_ranks(backends[b], MOK_CASE_THREADS));
    }
    assert_true(!mok_case_has_path(MOK_BACKEND_AUTO, MOK_PATH_AUTO)); /* a list is that of one backend */
}

/* Creating a group of one rank, which a backend refuses before it meets anybody. */
static mok_status create(int32_t backend, int32_t peer)
{
    mok_group *group = NULL;
    mok_group_config config;
    void *region = aligned_alloc(4096, REGION_BYTES);
    mok_external external = {sizeof external, &region, REGION_BYTES};
    assert_non_null(region);
    memset(region, 0, REGION_BYTES);
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = backend;
    config.peer = peer;
    config.num_ranks = 1;
    config.shape = (mok_shape){2, 1, 16, 8, 0, MOK_FORMAT_BF16, 4};
    config.external = peer == MOK_PEER_EXTERNAL ? &external : NULL;
    mok_status status = mok_group_create(&config, &group);
    mok_group_destroy(group);
    free(region);
    return status;
}

static void test_peers(void **state)
{
    static const struct {
        enum mok_case_ranks ranks;
        int32_t peer;
    } kinds[] = {{MOK_CASE_EXTERNAL, MOK_PEER_EXTERNAL}, {MOK_CASE_MPI, MOK_PEER_MPI}};
    (void)state;
    for (size_t b = 0; b < sizeof backends / sizeof backends[0]; b++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            if (mok_case_has_ranks(backends[b], kinds[k].ranks)) {
                continue; /* the case table runs on it */
            }
            mok_status status = create(backends[b], kinds[k].peer);
            assert_true(status == MOK_ERR_UNSUPPORTED || status == MOK_ERR_NOT_BUILT || status == MOK_ERR_NO_DEVICE);
        }
    }
}

/* A case that is not on the list is refused when it is run all the same, and that is neither a skip nor a pass. */
static void test_refusal_is_failure(void **state)
{
    struct mok_case_where where = {.backend = MOK_BACKEND_CPU, .ranks = MOK_CASE_THREADS};
    const struct mok_ref_case *recipe = mok_ref_case_find("staged");
    struct mok_case_result result;
    (void)state;
    if (ask_memory(MOK_BACKEND_CPU, MOK_PATH_AUTO) == MOK_ERR_NOT_BUILT) {
        skip();
    }
    assert_true(!mok_case_is_listed(recipe, &where) && mok_case_is_listed(mok_ref_case_find("fused"), &where));
    mok_case_run(recipe, &where, &result);
    assert_int_equal(result.status, MOK_ERR_UNSUPPORTED);
    assert_true(!mok_case_skipped(&result) && !mok_case_passed(&result));
}

/* Nearly everything is on every list; ways are numbered without gaps. */
static void test_lists(void **state)
{
    (void)state;
    for (size_t b = 0; b < sizeof backends / sizeof backends[0]; b++) {
        struct mok_case_where where = {.backend = backends[b], .ranks = MOK_CASE_THREADS};
        int num_listed = 0, num_ways = mok_case_way_count(&where);
        for (int c = 0; c < mok_ref_case_count(); c++) {
            num_listed += mok_case_is_listed(mok_ref_case_get(c), &where);
        }
        assert_true(num_listed >= mok_ref_case_count() - 1 && num_ways >= 25);
        for (int i = 0; i < num_ways; i++) {
            struct mok_case_way way = mok_case_way_get(mok_ref_case_get(0), &where, i);
            struct mok_case_way before = mok_case_way_get(mok_ref_case_get(0), &where, i > 0 ? i - 1 : 0);
            assert_true(mok_case_has_path(backends[b], way.knobs.path) && mok_case_has_ranks(backends[b], way.ranks));
            assert_true(i == 0 || strcmp(way.name, before.name) != 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_peers),
        cmocka_unit_test(test_refusal_is_failure),
        cmocka_unit_test(test_lists),
    };
    return cmocka_run_group_tests_name("case_list", tests, NULL, NULL);
}
