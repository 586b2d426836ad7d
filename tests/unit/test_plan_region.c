/*
 * plan/region.h: the parts of the peer-visible region do not overlap, are aligned and large enough, and every offset is 64-bit.
 * No memory is needed for that: addresses are computed from a made-up base.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "plan/region.h"
#include "plan/ring.h"
#include "test_plan_random.h"

struct part {
    int64_t at;
    int64_t bytes;
};

enum { MAX_PARTS = 32 };

/* The table at the head of region.h, as parts. */
static int list_parts(const struct mok_dims *dims, int32_t num_saved, struct part *parts)
{
    struct mok_region region = mok_plan_region(dims, num_saved);
    int64_t words = (int64_t)4 * dims->num_ranks, routes = dims->max_tokens * dims->top_k, rows = dims->max_tokens * dims->hidden * 2;
    const struct part fixed[] = {
        {region.board, (int64_t)MOK_BOARD_BYTES * dims->num_ranks},
        {region.sched, words},
        {region.entry, words},
        {region.exit, words},
        {region.left, words},
        {region.entry_tag, 2 * words},
        {region.abort, 4},
        {region.offset[0], 4 * ((int64_t)dims->num_experts + 2)},
        {region.offset[1], 4 * ((int64_t)dims->num_experts + 2)},
        {region.list[0], 4 * routes},
        {region.list[1], 4 * routes},
        {region.rows, rows},
        {region.w, 4 * routes},
        {region.slots, routes * dims->hidden * 2},
        {region.slot_dw, 4 * routes},
    };
    int count = 0;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        parts[count++] = fixed[i];
    }
    for (int32_t i = 0; i < num_saved; i++) {
        parts[count++] = (struct part){region.saved_x + i * region.saved_x_stride, rows};
    }
    parts[count++] = (struct part){region.bytes, 0};
    return count;
}

static int part_before(const void *a, const void *b)
{
    int64_t left = ((const struct part *)a)->at, right = ((const struct part *)b)->at;
    return (left > right) - (left < right);
}

static void check_parts(const struct mok_dims *dims, int32_t num_saved)
{
    struct part parts[MAX_PARTS];
    int count = list_parts(dims, num_saved, parts);
    qsort(parts, (size_t)count, sizeof *parts, part_before);
    assert_int_equal(parts[0].at, 0);
    for (int i = 0; i + 1 < count; i++) {
        assert_int_equal(parts[i].at % MOK_REGION_ALIGN, 0);
        assert_true(parts[i].bytes > 0);
        assert_true(parts[i].at + parts[i].bytes <= parts[i + 1].at);
    }
    assert_int_equal(parts[count - 1].at % MOK_REGION_ALIGN, 0);
}

static void parts_are_aligned_and_apart(void **state)
{
    (void)state;
    struct plan_random random = {4};
    for (int i = 0; i < 5000; i++) {
        struct mok_dims dims = {0};
        dims.num_ranks = plan_random_in(&random, 1, 72);
        dims.num_experts = plan_random_in(&random, 1, 300);
        dims.top_k = plan_random_in(&random, 1, 64);
        dims.hidden = 8 * plan_random_in(&random, 1, 1024);
        dims.max_tokens = plan_random_in(&random, 1, plan_random_chance(&random, 50) ? 9 : 70000);
        check_parts(&dims, plan_random_in(&random, 0, 8));
    }
}

/* Every rank computes the same offsets: they depend on nothing that differs between ranks. */
static void offsets_are_equal_on_all_ranks(void **state)
{
    (void)state;
    struct mok_dims dims = {.num_ranks = 3, .num_experts = 256, .top_k = 8, .hidden = 2880, .inter = 64, .max_tokens = 77};
    struct mok_region first = mok_plan_region(&dims, 2);
    for (dims.rank = 1; dims.rank < dims.num_ranks; dims.rank++) {
        struct mok_region other = mok_plan_region(&dims, 2);
        assert_memory_equal(&first, &other, sizeof first);
    }
}

/* The addresses of the first and the last row of a large group, as a backend computes them, from a base that is no memory. */
static void addresses_pass_2_to_the_31(void **state)
{
    (void)state;
    static const struct {
        int32_t hidden, top_k;
        int64_t max_tokens;
    } cases[] = {{7168, 8, 37450}, {7168, 8, 65536}, {8192, 64, 1 << 20}, {16384, 16, 1 << 24}, {8, 1, INT32_MAX}, {1 << 20, 64, 33554431}};
    const uintptr_t base = (uintptr_t)0x100000000000u;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mok_dims dims = {.num_ranks = 8, .num_experts = 256, .top_k = cases[i].top_k, .hidden = cases[i].hidden, .inter = 2048,
                                .max_tokens = cases[i].max_tokens};
        check_parts(&dims, 3);
        struct mok_region region = mok_plan_region(&dims, 3);
        int64_t routes = dims.max_tokens * dims.top_k, row_bytes = (int64_t)dims.hidden * 2;
        assert_true(routes <= INT32_MAX); /* a slot is an int32 */
        assert_true(routes * dims.hidden > INT32_MAX);
        int32_t last_slot = (int32_t)(routes - 1);
        uintptr_t first_row = base + (uintptr_t)region.slots, last_row = first_row + (uintptr_t)(last_slot * row_bytes);
        assert_true(last_row - base > (uintptr_t)1 << 31);
        assert_true(last_row + (uintptr_t)row_bytes <= base + (uintptr_t)region.slot_dw);
        assert_int_equal((last_row - first_row) / (uintptr_t)row_bytes, last_slot);
        assert_true(region.saved_x + 3 * region.saved_x_stride <= region.bytes);
        assert_true(region.saved_x_stride >= dims.max_tokens * row_bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_aligned_and_apart),
        cmocka_unit_test(offsets_are_equal_on_all_ranks),
        cmocka_unit_test(addresses_pass_2_to_the_31),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
