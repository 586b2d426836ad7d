/*
 * plan/walk.h: the invariants of test_plan_check.h over random plans and over the corners that have a name; indices past 2^31.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "test_plan_check.h"
#include "test_plan_random.h"

/* A small plan: one rank, `local` experts of `rows` rows each, one column tile everywhere but gate+up (2) and down (3). */
static struct plan_case simple_case(int32_t local, int32_t rows, int32_t mb_tiles, int32_t places, int32_t look_ahead, int32_t backward)
{
    struct plan_case plan = {.num_comm = 2, .backward = backward, .row_group = 1, .zero_grads = 1};
    plan.dims = (struct mok_dims){.num_ranks = 1, .num_experts = local, .top_k = 1, .hidden = 24, .inter = 16};
    plan.tiles = (struct mok_tiles){.gate_up = 8, .down = 8, .dgrad_down = 16, .dgrad_gate_up = 24, .wgrad_out = 16, .wgrad_in = 16};
    plan.ring = (struct mok_ring){.minibatch_rows = mb_tiles * MOK_TILE_ROWS, .num_places = places, .look_ahead = look_ahead};
    for (int32_t e = 0; e < local; e++) {
        plan.expert_rows[e] = rows;
    }
    return plan;
}

static void check(struct plan_case plan)
{
    if (!plan_check(&plan)) {
        fail_msg("%s", plan_error);
    }
}

static void check_both(struct plan_case plan)
{
    for (plan.backward = 0; plan.backward < 2; plan.backward++) {
        check(plan);
    }
}

static struct plan_case random_case(struct plan_random *random)
{
    struct plan_case plan = {0};
    int32_t skewed = plan_random_chance(random, 30);
    plan.dims.num_ranks = plan_random_in(random, 1, 4);
    plan.dims.rank = plan_random_in(random, 0, plan.dims.num_ranks - 1);
    plan.dims.num_experts = plan_random_in(random, 1, plan.dims.num_ranks * (plan_random_chance(random, 20) ? PLAN_MAX_LOCAL - 1 : 6));
    plan.dims.top_k = plan_random_in(random, 1, 8);
    plan.dims.hidden = 8 * plan_random_in(random, 1, 5);
    plan.dims.inter = 8 * plan_random_in(random, 1, 5);
    plan.dims.shared_inter = plan_random_chance(random, 40) ? 8 * plan_random_in(random, 1, 4) : 0;
    int32_t *widths[] = {&plan.tiles.gate_up, &plan.tiles.down, &plan.tiles.dgrad_down, &plan.tiles.dgrad_gate_up, &plan.tiles.wgrad_out,
                         &plan.tiles.wgrad_in};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        *widths[i] = 8 * plan_random_in(random, 1, 6);
    }
    plan.ring.minibatch_rows = MOK_TILE_ROWS * plan_random_in(random, 1, 4);
    plan.ring.num_places = plan_random_in(random, 1, 5);
    plan.ring.look_ahead = plan_random_in(random, 0, plan.ring.num_places - 1);
    plan.ring.keep_rows = plan_random_chance(random, 40) ? 0 : MOK_TILE_ROWS * plan_random_in(random, 0, 40);
    plan.num_comm = plan_random_in(random, 1, 5);
    plan.backward = plan_random_in(random, 0, 1);
    plan.shared_recompute = plan_random_in(random, 0, 1);
    plan.zero_grads = plan_random_in(random, 0, 1);
    plan.row_group = plan_random_in(random, 1, 6);
    plan.pushes_rows = plan_random_in(random, 0, 1);
    plan.num_tokens = plan_random_chance(random, 20) ? 0 : plan_random_in(random, 1, 600);
    for (int32_t e = 0; e < PLAN_MAX_LOCAL; e++) {
        int32_t most = skewed && plan_random_chance(random, 30) ? 1500 : 260;
        plan.expert_rows[e] = plan_random_chance(random, 30) ? 0 : plan_random_in(random, 1, most);
    }
    return plan;
}

static void random_plans_keep_every_rule(void **state)
{
    (void)state;
    struct plan_random random = {8};
    for (int i = 0; i < 20000; i++) {
        uint64_t seed = random.state;
        struct plan_case plan = random_case(&random);
        if (!plan_check(&plan)) {
            fail_msg("plan of random state %llu: %s", (unsigned long long)seed, plan_error);
        }
    }
}

static void nothing_to_do(void **state)
{
    (void)state;
    check_both(simple_case(3, 0, 2, 2, 1, 0)); /* no rows: backward still writes the zeros */
    struct plan_case plan = simple_case(3, 0, 2, 2, 1, 1);
    plan.zero_grads = 0;
    check(plan);
    plan = simple_case(1, 0, 1, 1, 0, 0); /* two experts on four ranks: rank 0 owns none */
    plan.dims.num_ranks = 4;
    plan.dims.num_experts = 2;
    check_both(plan);
    plan.dims.shared_inter = 16; /* a shared expert, but no token: its gradients are still written */
    check_both(plan);
    plan.num_tokens = 129;
    check_both(plan);
    plan.shared_recompute = 1;
    check_both(plan);
}

static void corners_of_the_ring(void **state)
{
    (void)state;
    check_both(simple_case(1, 1, 1, 1, 0, 0));     /* one tile */
    check_both(simple_case(1, 1, 4, 5, 4, 0));     /* one tile in a large ring: the minibatch is partial, the look-ahead too long */
    check_both(simple_case(5, 200, 1, 1, 0, 0));   /* ring of one */
    check_both(simple_case(5, 200, 3, 2, 1, 0));   /* last minibatch partial: 10 tiles in threes */
    check_both(simple_case(5, 200, 3, 4, 3, 0));   /* exactly one lap */
    check_both(simple_case(1, 1280, 1, 2, 1, 0));  /* one expert over five laps */
    check_both(simple_case(2, 640, 2, 2, 0, 0));   /* an expert ends in the middle of a lap, no look-ahead */
    struct plan_case plan = simple_case(5, 200, 2, 2, 1, 1);
    for (plan.ring.keep_rows = 0; plan.ring.keep_rows <= 12 * MOK_TILE_ROWS; plan.ring.keep_rows += MOK_TILE_ROWS) {
        check(plan); /* none, some, all and more than all rows are kept */
    }
    for (plan.row_group = 1; plan.row_group <= 12; plan.row_group++) {
        check_both(plan);
    }
}

/* A look-ahead as long as the ring waits for itself (protocol.md section 3): the progress check has to say so. */
static void too_long_a_look_ahead_is_found(void **state)
{
    (void)state;
    struct plan_case plan = simple_case(4, 128, 1, 2, 2, 0);
    assert_false(plan_check(&plan));
    assert_non_null(strstr(plan_error, "stuck"));
    plan.backward = 1; /* inside a lap all minibatches have places of their own: no wait for a later one */
    check(plan);
}

static void row_groups_permute_the_tiles_of_a_block(void **state)
{
    (void)state;
    enum { MOST = 9 };
    struct mok_walk walk = {0};
    for (walk.row_group = 1; walk.row_group <= MOST + 1; walk.row_group++) {
        for (int32_t rows = 1; rows <= MOST; rows++) {
            for (int32_t columns = 1; columns <= MOST; columns++) {
                char seen[MOST][MOST] = {{0}};
                for (int32_t i = 0; i < rows * columns; i++) {
                    int32_t row, column;
                    mok_walk_tile_at(&walk, i, rows, columns, &row, &column);
                    assert_in_range(row, 0, rows - 1);
                    assert_in_range(column, 0, columns - 1);
                    assert_false(seen[row][column]);
                    seen[row][column] = 1;
                }
            }
        }
    }
}

/* More than 2^32 tasks: numbers are 64-bit, and the ends of the list are where they should be. */
static void task_numbers_pass_32_bits(void **state)
{
    (void)state;
    const int32_t num_tiles = 1 << 22;
    int32_t *tile_expert = calloc((size_t)num_tiles, sizeof *tile_expert);
    int32_t expert_first[2] = {0, num_tiles * MOK_TILE_ROWS}, zero = 0;
    struct mok_schedule_head head = {.num_rows = num_tiles * MOK_TILE_ROWS, .num_tiles = num_tiles, .num_active = 1};
    assert_non_null(tile_expert);
    struct mok_walk walk = {.dims = {.num_ranks = 1, .num_experts = 1, .top_k = 8, .hidden = 8192, .inter = 8192, .max_tokens = 1 << 26},
                            .ring = {.minibatch_rows = 3 * MOK_TILE_ROWS, .num_places = 4, .look_ahead = 2},
                            .tiles = {8, 8, 8, 8, 8, 8},
                            .num_comm = 4,
                            .row_group = 2};
    walk.schedule = (struct mok_schedule_view){.head = &head, .expert_first = expert_first, .tile_expert = tile_expert, .active = &zero,
                                               .ordinal = &zero};
    mok_walk_init(&walk);
    int64_t total = (int64_t)num_tiles * 2048;
    assert_true(total > (int64_t)UINT32_MAX);
    assert_int_equal(mok_walk_task(&walk, total).kind, MOK_TASK_NONE);
    struct mok_task last = mok_walk_task(&walk, total - 1);
    assert_int_equal(last.kind, MOK_TASK_DOWN);
    assert_int_equal(last.row_tile, num_tiles - 1);
    assert_int_equal(last.col_tile, 1023);
    /* Pairs in the middle: G(2 + j) begins behind two minibatches and j pairs. */
    for (int64_t pair = 0; pair < walk.num_minibatches - 3; pair += 99991) {
        struct mok_task task = mok_walk_task(&walk, 2 * 3 * 1024 + pair * 2 * 3 * 1024);
        assert_int_equal(task.kind, MOK_TASK_GATE_UP);
        assert_int_equal(task.minibatch, pair + 2);
        assert_int_equal(task.row_tile, (pair + 2) * 3);
        assert_int_equal(task.col_tile, 0);
    }
    assert_int_equal(mok_walk_step(&walk, 2 * (int64_t)walk.num_minibatches).kind, MOK_STEP_NONE);
    assert_int_equal(mok_walk_step(&walk, 2 * (int64_t)walk.num_minibatches - 1).minibatch, walk.num_minibatches - 1);
    free(tile_expert);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_plans_keep_every_rule),
        cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(corners_of_the_ring),
        cmocka_unit_test(too_long_a_look_ahead_is_found),
        cmocka_unit_test(row_groups_permute_the_tiles_of_a_block),
        cmocka_unit_test(task_numbers_pass_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
