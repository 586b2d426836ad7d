/*
 * cuda/fused/backward/fused_backward_walk.h: units of a cluster against the tasks of plan/walk.h, over random backward passes. Every task stands in
 * exactly one place of one unit; all tasks of a unit run the same steps and share an operand where weight gradients do; and a pass that takes
 * units strictly in order, beside a communication worker that takes its steps in order, waits for nothing that is not announced by then.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cuda/fused/backward/fused_backward_walk.h"
#include "test_plan_check.h"
#include "test_plan_random.h"

enum { NUM_PLANS = 1500, MAX_WORDS = 16 * PLAN_MAX_TILES };

struct pass {
    struct mok_fused_walk walk;
    struct mok_limits limits;
    uint32_t counters[MAX_WORDS];
    int64_t step; /* of the communication worker */
};

static struct plan_case random_plan(struct plan_random *random)
{
    struct plan_case plan = {.num_comm = 2, .backward = 1, .row_group = plan_random_in(random, 1, 20)};
    plan.dims = (struct mok_dims){.num_ranks = 1, .num_experts = plan_random_in(random, 1, 8), .top_k = 1};
    plan.dims.hidden = 8 * plan_random_in(random, 1, 5);
    plan.dims.inter = 8 * plan_random_in(random, 1, 5);
    plan.dims.shared_inter = plan_random_chance(random, 50) ? 8 * plan_random_in(random, 1, 4) : 0;
    plan.tiles = (struct mok_tiles){.gate_up = 8, .down = 8, .dgrad_down = 16, .dgrad_gate_up = 8, .wgrad_out = 8, .wgrad_in = 16};
    plan.ring.minibatch_rows = MOK_TILE_ROWS * plan_random_in(random, 1, 6);
    plan.ring.num_places = plan_random_in(random, 1, 4);
    plan.ring.look_ahead = plan_random_in(random, 0, plan.ring.num_places - 1);
    plan.ring.keep_rows = plan_random_chance(random, 50) ? 0 : MOK_TILE_ROWS * plan_random_in(random, 0, 12);
    plan.shared_recompute = plan.ring.keep_rows == 0;
    plan.zero_grads = plan_random_chance(random, 50);
    plan.num_tokens = plan_random_in(random, 0, 700);
    for (int32_t e = 0; e < plan.dims.num_experts; e++) {
        plan.expert_rows[e] = plan_random_chance(random, 25) ? 0 : plan_random_in(random, 1, 900);
    }
    return plan;
}

static uint32_t *word_of(struct pass *pass, const struct mok_wait *wait)
{
    int64_t at = mok_plan_counter_base(&pass->limits, wait->counter) + wait->index;
    assert_in_range(at, 0, MAX_WORDS - 1);
    return &pass->counters[at];
}

static int is_reached(struct pass *pass, const struct mok_wait *wait) { return *word_of(pass, wait) >= wait->target; }

/* The communication workers go as far as they can. */
static void move_on(struct pass *pass)
{
    const struct mok_walk *tiles = &pass->walk.tiles;
    for (;; pass->step++) {
        struct mok_step step = mok_walk_step(tiles, pass->step);
        if (step.kind == MOK_STEP_NONE) {
            return;
        }
        if (step.kind == MOK_STEP_PULL && mok_walk_pull_num_waits(tiles, step.minibatch) > 0) {
            struct mok_wait wait = mok_walk_pull_wait(tiles, step.minibatch);
            if (!is_reached(pass, &wait)) {
                return;
            }
        }
        int32_t first = step.minibatch * tiles->mb_tiles;
        for (int32_t tile = first; step.kind == MOK_STEP_PUSH && tile < first + mok_walk_minibatch_tiles(tiles, step.minibatch); tile++) {
            struct mok_wait wait = mok_walk_push_wait(tiles, tile);
            if (!is_reached(pass, &wait)) {
                return;
            }
        }
        struct mok_wait signal = mok_walk_step_signal(&step);
        *word_of(pass, &signal) += (uint32_t)tiles->num_comm;
    }
}

static int same_task(const struct mok_task *a, const struct mok_task *b)
{
    return a->kind == b->kind && a->row_tile == b->row_tile && a->col_tile == b->col_tile && a->expert == b->expert &&
           a->matrix == b->matrix && a->out_tile == b->out_tile && a->in_tile == b->in_tile && a->lap == b->lap &&
           a->first_tile == b->first_tile && a->end_tile == b->end_tile && a->carry_in == b->carry_in && a->carry_out == b->carry_out;
}

/* Marks the task in the list of plan/walk.h; a row-wise task's minibatch and lap follow from its row tile. */
static void mark_task(const struct plan_list *list, char *marks, const struct mok_task *task)
{
    for (int64_t i = 0; i < list->count; i++) {
        if (!marks[i] && same_task(&list->tasks[i], task)) {
            marks[i] = 1;
            return;
        }
    }
    fail_msg("a task of kind %d that is not in the list, or is there once only", task->kind);
}

static void run_unit(struct pass *pass, const struct mok_fused_unit *unit, const struct plan_list *list, char *marks)
{
    const struct mok_walk *tiles = &pass->walk.tiles;
    struct mok_task tasks[4];
    int exists[4];
    for (int32_t place = 0; place < pass->walk.span; place++) {
        exists[place] = mok_fused_backward_unit_task(&pass->walk, unit, place, &tasks[place]);
        assert_true(place == 0 ? exists[place] : exists[place] <= exists[place - 1]);
        assert_int_equal(tasks[place].kind, tasks[0].kind);
        assert_int_equal(tasks[place].col_tile, tasks[0].col_tile);
        assert_int_equal(tasks[place].in_tile, tasks[0].in_tile);
        assert_int_equal(tasks[place].matrix == MOK_MATRIX_DOWN, tasks[0].matrix == MOK_MATRIX_DOWN);
        for (int32_t i = 0; exists[place] && i < mok_walk_task_num_waits(tiles, &tasks[place]); i++) {
            struct mok_wait wait = mok_walk_task_wait(tiles, &tasks[place], i);
            assert_true(is_reached(pass, &wait));
        }
    }
    for (int32_t place = 0; place < pass->walk.span && exists[place]; place++) {
        mark_task(list, marks, &tasks[place]);
        for (int32_t i = 0; i < mok_walk_task_num_signals(tiles, &tasks[place]); i++) {
            struct mok_wait signal = mok_walk_task_signal(tiles, &tasks[place], i);
            *word_of(pass, &signal) += 1;
        }
    }
}

static void check_plan(struct plan_case *plan, int32_t span)
{
    static struct pass pass;
    static struct mok_task tasks[1 << 16];
    static char marks[1 << 16];
    struct plan_walk made;
    if (!plan_make_walk(plan, &made)) {
        return;
    }
    memset(&pass, 0, sizeof pass);
    memset(marks, 0, sizeof marks);
    struct plan_list list = {tasks, 0, 1 << 16};
    for (struct mok_task task = mok_walk_task(&made.walk, 0); task.kind != MOK_TASK_NONE; task = mok_walk_task(&made.walk, list.count)) {
        assert_in_range(list.count, 0, list.room - 1);
        tasks[list.count++] = task;
    }
    pass.limits = mok_plan_limits(&made.walk.dims, &made.walk.ring);
    pass.walk = (struct mok_fused_walk){.tiles = made.walk, .span = span};
    mok_fused_walk_init(&pass.walk);
    mok_fused_backward_walk_init(&pass.walk);
    int64_t num_marked = 0;
    for (int64_t idx = 0;; idx++) {
        struct mok_fused_unit unit = mok_fused_backward_unit_at(&pass.walk, idx);
        move_on(&pass);
        if (unit.task.kind == MOK_TASK_NONE) {
            break;
        }
        run_unit(&pass, &unit, &list, marks);
    }
    for (int64_t i = 0; i < list.count; i++) {
        num_marked += marks[i];
    }
    assert_int_equal(num_marked, list.count);
    assert_int_equal(mok_walk_step(&pass.walk.tiles, pass.step).kind, MOK_STEP_NONE);
}

static void units_are_the_tasks(void **state)
{
    (void)state;
    struct plan_random random = {21};
    for (int i = 0; i < NUM_PLANS; i++) {
        struct plan_case plan = random_plan(&random);
        check_plan(&plan, 1 + i % 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(units_are_the_tasks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
