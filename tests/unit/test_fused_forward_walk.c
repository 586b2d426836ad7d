/*
 * cuda/fused/forward/fused_forward_walk.h: units of a cluster against the tasks of plan/walk.h, over random forward passes. Every task stands
 * in exactly one place of one unit; all tasks of a unit have one kind and one column tile, so one number of steps; and what a unit waits for
 * is announced by units below it, pulls included.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cuda/fused/forward/fused_forward_walk.h"
#include "test_plan_check.h"
#include "test_plan_random.h"

enum { MAX_COLS = 8, NUM_PLANS = 2000 };

/* What has been announced so far, counter by counter. */
struct seen {
    int32_t gate_up[PLAN_MAX_TILES], down[PLAN_MAX_TILES], shared_gate_up[PLAN_MAX_TILES], shared_down[PLAN_MAX_TILES];
};

static struct plan_case random_plan(struct plan_random *random)
{
    struct plan_case plan = {.num_comm = 2, .row_group = plan_random_in(random, 1, 20)};
    plan.dims = (struct mok_dims){.num_ranks = 1, .num_experts = plan_random_in(random, 1, 12), .top_k = 1};
    plan.dims.hidden = 8 * plan_random_in(random, 1, 4);
    plan.dims.inter = 8 * plan_random_in(random, 1, 4);
    plan.dims.shared_inter = plan_random_chance(random, 50) ? 8 * plan_random_in(random, 1, 4) : 0;
    plan.tiles = (struct mok_tiles){.gate_up = 8, .down = 8, .dgrad_down = 8, .dgrad_gate_up = 8, .wgrad_out = 8, .wgrad_in = 8};
    plan.ring.minibatch_rows = MOK_TILE_ROWS * plan_random_in(random, 1, 6);
    plan.ring.num_places = plan_random_in(random, 1, 4);
    plan.ring.look_ahead = plan_random_in(random, 0, plan.ring.num_places - 1);
    plan.num_tokens = plan_random_in(random, 0, 900);
    for (int32_t e = 0; e < plan.dims.num_experts; e++) {
        plan.expert_rows[e] = plan_random_chance(random, 25) ? 0 : plan_random_in(random, 1, 500);
    }
    return plan;
}

/* All pushes of the minibatch are possible: every y of it is announced. */
static int is_pushed(const struct mok_walk *walk, const struct seen *seen, int32_t minibatch)
{
    int32_t first = minibatch * walk->mb_tiles, end = first + mok_walk_minibatch_tiles(walk, minibatch);
    for (int32_t tile = first; tile < end; tile++) {
        if (seen->down[tile] < walk->cols_second) {
            return 0;
        }
    }
    return 1;
}

/* The minibatch can be in its place: all those that had the place, or a place that is pulled before it, are pushed. */
static int is_pulled(const struct mok_walk *walk, const struct seen *seen, int32_t minibatch)
{
    for (int32_t before = 0; before <= minibatch - walk->ring.num_places; before++) {
        if (!is_pushed(walk, seen, before)) {
            return 0;
        }
    }
    return 1;
}

static void check_wait(const struct mok_walk *walk, const struct seen *seen, const struct mok_task *task)
{
    if (mok_walk_task_num_waits(walk, task) == 0) {
        return;
    }
    struct mok_wait wait = mok_walk_task_wait(walk, task, 0);
    switch (wait.counter) {
    case MOK_COUNT_PULLED: assert_true(is_pulled(walk, seen, wait.index)); break;
    case MOK_COUNT_H_DONE: assert_true(seen->gate_up[wait.index] >= (int32_t)wait.target); break;
    default: assert_int_equal(wait.counter, MOK_COUNT_SHARED_G_DONE); assert_true(seen->shared_gate_up[wait.index] >= (int32_t)wait.target);
    }
}

static int32_t *counter_of(struct seen *seen, const struct mok_task *task)
{
    switch (task->kind) {
    case MOK_TASK_GATE_UP: return &seen->gate_up[task->row_tile];
    case MOK_TASK_DOWN: return &seen->down[task->row_tile];
    case MOK_TASK_SHARED_GATE_UP: return &seen->shared_gate_up[task->row_tile];
    default: assert_int_equal(task->kind, MOK_TASK_SHARED_DOWN); return &seen->shared_down[task->row_tile];
    }
}

/* Walks all units; a bit for each (row tile, column tile) of each kind. */
static int64_t walk_units(const struct mok_fused_walk *walk, struct seen *seen, uint32_t *columns)
{
    int64_t num_tasks = 0;
    for (int64_t idx = 0;; idx++) {
        struct mok_fused_unit unit = mok_fused_unit_at(walk, idx);
        struct mok_task tasks[4];
        int exists[4];
        if (unit.task.kind == MOK_TASK_NONE) {
            return num_tasks;
        }
        for (int32_t place = 0; place < walk->span; place++) {
            exists[place] = mok_fused_unit_task(walk, &unit, place, &tasks[place]);
            assert_true(place == 0 ? exists[place] : exists[place] <= exists[place - 1]);
            assert_int_equal(tasks[place].kind, tasks[0].kind);
            assert_int_equal(tasks[place].col_tile, tasks[0].col_tile);
            if (exists[place]) {
                check_wait(&walk->tiles, seen, &tasks[place]);
            } else {
                assert_int_equal(tasks[place].expert, tasks[place - 1].expert);
            }
        }
        for (int32_t place = 0; place < walk->span && exists[place]; place++) {
            uint32_t *bits = &columns[tasks[place].kind * PLAN_MAX_TILES + tasks[place].row_tile];
            assert_in_range(tasks[place].col_tile, 0, MAX_COLS - 1);
            assert_int_equal(*bits >> tasks[place].col_tile & 1, 0);
            *bits |= 1u << tasks[place].col_tile;
            ++*counter_of(seen, &tasks[place]);
            num_tasks++;
        }
    }
}

/* The same task list as plan/walk.h, in another order. */
static void check_plan(struct plan_case *plan, int32_t span)
{
    struct plan_walk made;
    struct seen seen = {{0}, {0}, {0}, {0}};
    static uint32_t columns[(MOK_TASK_DOWN + 1) * PLAN_MAX_TILES];
    if (!plan_make_walk(plan, &made)) {
        return;
    }
    memset(columns, 0, sizeof columns);
    struct mok_fused_walk walk = {.tiles = made.walk, .span = span};
    mok_fused_walk_init(&walk);
    int64_t found = walk_units(&walk, &seen, columns), num_tasks = 0;
    for (struct mok_task task = mok_walk_task(&walk.tiles, 0); task.kind != MOK_TASK_NONE; task = mok_walk_task(&walk.tiles, ++num_tasks)) {
        assert_int_equal(columns[task.kind * PLAN_MAX_TILES + task.row_tile] >> task.col_tile & 1, 1);
    }
    assert_int_equal(found, num_tasks);
}

static void units_are_the_tasks(void **state)
{
    (void)state;
    struct plan_random random = {20};
    for (int i = 0; i < NUM_PLANS; i++) {
        struct plan_case plan = random_plan(&random);
        for (int32_t span = 1; span <= 4; span++) {
            check_plan(&plan, span);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(units_are_the_tasks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
