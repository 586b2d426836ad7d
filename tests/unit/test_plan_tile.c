/*
 * plan/tile.h: tiles cover every width, and a table depends on H, I and the backend only.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "plan/tile.h"

static void check_tiles(struct mok_tiles tiles)
{
    const int32_t widths[] = {tiles.gate_up, tiles.down, tiles.dgrad_down, tiles.dgrad_gate_up, tiles.wgrad_out, tiles.wgrad_in};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        int32_t width = widths[i];
        assert_true(width > 0 && width % 8 == 0);
        for (int32_t columns = 0; columns <= 3 * width; columns += 8) {
            int32_t tiles_needed = mok_plan_num_tiles(columns, width);
            assert_true((int64_t)tiles_needed * width >= columns);
            assert_true((int64_t)(tiles_needed - 1) * width < columns);
        }
    }
}

/* Whatever changes bits depends on H, I and the backend only: the table ignores the rank, the tokens and the ring. */
static void tile_tables_cover_every_width(void **state)
{
    (void)state;
    struct mok_dims dims = {.num_ranks = 1, .hidden = 2880, .inter = 72}, other = dims;
    check_tiles(mok_plan_tiles_cpu(&dims));
    check_tiles(mok_plan_tiles_cuda(&dims));
    other.num_ranks = 7;
    other.rank = 3;
    other.max_tokens = 9999;
    struct mok_tiles a = mok_plan_tiles_cpu(&dims), b = mok_plan_tiles_cpu(&other);
    assert_memory_equal(&a, &b, sizeof a);
    a = mok_plan_tiles_cuda(&dims);
    b = mok_plan_tiles_cuda(&other);
    assert_memory_equal(&a, &b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tile_tables_cover_every_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
