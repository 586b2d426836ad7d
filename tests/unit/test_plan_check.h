/*
 * Invariants of the walk (plan/walk.h), written a second time as plain loops over the rules of protocol.md sections 2 to 4. Shared by
 * test_plan_walk.c (random plans) and the fuzzer (plans made from bytes).
 *
 *   struct plan_case -> plan_check() -> 1, or 0 with the broken rule in plan_error
 *
 * Checked: the task list equals the list that the rules give, task by task; the steps equal theirs; every counter index is inside its
 * array; what is announced adds up to exactly what is waited for; the weight-gradient segments cut each expert's rows, once, with the right
 * carry flags; and communication workers with one computation worker, blocking strictly in order, reach the end.
 */
#ifndef MOK_TEST_PLAN_CHECK_H
#define MOK_TEST_PLAN_CHECK_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/walk.h"

enum { PLAN_MAX_LOCAL = 24, PLAN_MAX_TILES = 256 };

struct plan_case {
    struct mok_dims dims; /* max_tokens is derived: room for the rows */
    struct mok_ring ring;
    struct mok_tiles tiles;
    int32_t num_comm;
    int32_t pushes_rows; /* of a forward pass */
    int32_t backward;
    int32_t shared_recompute;
    int32_t zero_grads;
    int32_t row_group;
    int32_t num_tokens;
    int32_t expert_rows[PLAN_MAX_LOCAL]; /* rows of each local expert, without padding */
};

/* A schedule as plan/schedule.h wants it, and the walk over it. */
struct plan_walk {
    struct mok_schedule_head head;
    int32_t expert_first[PLAN_MAX_LOCAL + 1];
    int32_t tile_expert[PLAN_MAX_TILES];
    int32_t active[PLAN_MAX_LOCAL];
    int32_t ordinal[PLAN_MAX_LOCAL];
    struct mok_walk walk;
};

struct plan_list {
    struct mok_task *tasks;
    int64_t count;
    int64_t room;
};

static char plan_error[512];

static inline int plan_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(plan_error, sizeof plan_error, format, args);
    va_end(args);
    return 0;
}

/* ---- the schedule ---------------------------------------------------------------------------------------------------------- */

/* 0 when the case has more tiles than fit. */
static inline int plan_make_walk(struct plan_case *plan, struct plan_walk *out)
{
    int32_t local = mok_plan_num_local(plan->dims.num_experts, plan->dims.num_ranks, plan->dims.rank), tiles = 0, place = 0;
    int64_t rows = 0;
    memset(out, 0, sizeof *out);
    for (int32_t e = 0; e < local; e++) {
        out->expert_first[e] = tiles * MOK_TILE_ROWS;
        for (int32_t left = plan->expert_rows[e]; left > 0; left -= MOK_TILE_ROWS) {
            if (tiles == PLAN_MAX_TILES) {
                return 0;
            }
            out->tile_expert[tiles++] = e;
        }
        rows += plan->expert_rows[e];
    }
    out->expert_first[local] = tiles * MOK_TILE_ROWS;
    for (int has_rows = 1; has_rows >= 0; has_rows--) {
        for (int32_t e = 0; e < local; e++) {
            if ((plan->expert_rows[e] > 0) == has_rows) {
                out->ordinal[e] = place;
                out->active[place++] = e;
                out->head.num_active += has_rows;
            }
        }
    }
    out->head.num_tiles = tiles;
    out->head.num_rows = tiles * MOK_TILE_ROWS;
    out->head.num_tokens = plan->num_tokens;
    plan->dims.max_tokens = mok_max64(mok_max64(plan->num_tokens, 1), mok_ceil_div(rows, (int64_t)plan->dims.num_ranks * plan->dims.top_k));
    out->walk = (struct mok_walk){.dims = plan->dims, .ring = plan->ring, .tiles = plan->tiles, .backward = plan->backward,
                                  .num_comm = plan->num_comm, .shared_recompute = plan->shared_recompute, .zero_grads = plan->zero_grads,
                                  .row_group = plan->row_group, .pushes_rows = !plan->backward && plan->pushes_rows};
    out->walk.schedule = (struct mok_schedule_view){.head = &out->head, .expert_rows = plan->expert_rows, .expert_first = out->expert_first,
                                                    .tile_expert = out->tile_expert, .active = out->active, .ordinal = out->ordinal};
    mok_walk_init(&out->walk);
    return 1;
}

/* ---- the task list that the rules give --------------------------------------------------------------------------------------- */

static inline void plan_add(struct plan_list *list, struct mok_task task)
{
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 256;
        list->tasks = realloc(list->tasks, (size_t)list->room * sizeof *list->tasks);
        if (!list->tasks) {
            abort();
        }
    }
    list->tasks[list->count++] = task;
}

/* Tiles of a block [first, end) x columns in groups of row_group row tiles. minibatch < 0: computed from the row tile. */
static inline void plan_add_block(struct plan_list *list, const struct plan_case *plan, const struct plan_walk *w, int32_t kind,
                                  int32_t first, int32_t end, int32_t columns, int32_t lap)
{
    int32_t mb_tiles = (int32_t)(plan->ring.minibatch_rows / MOK_TILE_ROWS);
    int routed = kind == MOK_TASK_GATE_UP || kind == MOK_TASK_DOWN || kind == MOK_TASK_RECOMPUTE || kind == MOK_TASK_DGRAD_DOWN ||
                 kind == MOK_TASK_DGRAD_GATE_UP;
    for (int32_t group = first; group < end; group += plan->row_group) {
        for (int32_t column = 0; column < columns; column++) {
            for (int32_t row = group; row < end && row < group + plan->row_group; row++) {
                plan_add(list, (struct mok_task){.kind = kind, .row_tile = row, .col_tile = column,
                                                 .minibatch = routed ? row / mb_tiles : 0,
                                                 .expert = routed ? w->tile_expert[row] : 0, .lap = lap});
            }
        }
    }
}

static inline int32_t plan_columns(int32_t width, int32_t tile)
{
    int32_t count = 0;
    for (int32_t at = 0; at < width; at += tile) {
        count++;
    }
    return count;
}

/* All weight-gradient tiles of one expert: dWd, dWg, dWu, each row by row. */
static inline void plan_add_wgrad(struct plan_list *list, const struct plan_case *plan, int32_t inter, struct mok_task task)
{
    static const int32_t order[] = {MOK_MATRIX_DOWN, MOK_MATRIX_GATE, MOK_MATRIX_UP};
    for (int i = 0; i < 3; i++) {
        int32_t out = order[i] == MOK_MATRIX_DOWN ? plan->dims.hidden : inter, in = order[i] == MOK_MATRIX_DOWN ? inter : plan->dims.hidden;
        task.matrix = order[i];
        for (task.out_tile = 0; task.out_tile * plan->tiles.wgrad_out < out; task.out_tile++) {
            for (task.in_tile = 0; task.in_tile * plan->tiles.wgrad_in < in; task.in_tile++) {
                plan_add(list, task);
            }
        }
    }
}

/* F(0) .. F(d), S(0), F(d+1), S(1), ... over minibatches [first, end). */
static inline void plan_add_pairs(struct plan_list *list, const struct plan_case *plan, const struct plan_walk *w, int32_t first,
                                  int32_t end, int32_t lap)
{
    int32_t mb_tiles = (int32_t)(plan->ring.minibatch_rows / MOK_TILE_ROWS), next = first;
    int32_t kinds[2] = {MOK_TASK_GATE_UP, MOK_TASK_DOWN};
    int32_t columns[2] = {plan_columns(plan->dims.inter, plan->tiles.gate_up), plan_columns(plan->dims.hidden, plan->tiles.down)};
    if (plan->backward) {
        kinds[0] = MOK_TASK_DGRAD_DOWN;
        kinds[1] = MOK_TASK_DGRAD_GATE_UP;
        columns[0] = plan_columns(plan->dims.inter, plan->tiles.dgrad_down);
        columns[1] = plan_columns(plan->dims.hidden, plan->tiles.dgrad_gate_up);
    }
    for (int32_t second = first; second < end; second++) {
        for (; next < end && next <= second + plan->ring.look_ahead; next++) {
            plan_add_block(list, plan, w, kinds[0], next * mb_tiles, (int32_t)mok_min64((next + 1) * mb_tiles, w->head.num_tiles),
                           columns[0], lap);
        }
        plan_add_block(list, plan, w, kinds[1], second * mb_tiles, (int32_t)mok_min64((second + 1) * mb_tiles, w->head.num_tiles),
                       columns[1], lap);
    }
}

static inline void plan_add_shared(struct plan_list *list, const struct plan_case *plan, const struct plan_walk *w)
{
    int32_t inter = plan->dims.shared_inter, rows = (plan->num_tokens + MOK_TILE_ROWS - 1) / MOK_TILE_ROWS;
    if (inter == 0) {
        return;
    }
    if (!plan->backward) {
        plan_add_block(list, plan, w, MOK_TASK_SHARED_GATE_UP, 0, rows, plan_columns(inter, plan->tiles.gate_up), 0);
        plan_add_block(list, plan, w, MOK_TASK_SHARED_DOWN, 0, rows, plan_columns(plan->dims.hidden, plan->tiles.down), 0);
        return;
    }
    if (plan->shared_recompute) {
        plan_add_block(list, plan, w, MOK_TASK_SHARED_RECOMPUTE, 0, rows, plan_columns(inter, plan->tiles.gate_up), 0);
    }
    plan_add_block(list, plan, w, MOK_TASK_SHARED_DGRAD_DOWN, 0, rows, plan_columns(inter, plan->tiles.dgrad_down), 0);
    plan_add_block(list, plan, w, MOK_TASK_SHARED_DGRAD_GATE_UP, 0, rows, plan_columns(plan->dims.hidden, plan->tiles.dgrad_gate_up), 0);
    plan_add_wgrad(list, plan, inter, (struct mok_task){.kind = MOK_TASK_SHARED_WGRAD, .end_tile = rows});
}

static inline void plan_add_lap(struct plan_list *list, const struct plan_case *plan, const struct plan_walk *w, int32_t lap)
{
    int32_t mb_tiles = (int32_t)(plan->ring.minibatch_rows / MOK_TILE_ROWS), places = plan->ring.num_places;
    int32_t minibatches = (w->head.num_tiles + mb_tiles - 1) / mb_tiles, local = w->walk.num_local;
    int32_t first = lap * places, end = (int32_t)mok_min64(first + places, minibatches);
    int32_t first_tile = first * mb_tiles, end_tile = (int32_t)mok_min64(end * mb_tiles, w->head.num_tiles);
    int32_t again = (int32_t)mok_max64(first_tile, plan->ring.keep_rows / MOK_TILE_ROWS);
    plan_add_block(list, plan, w, MOK_TASK_RECOMPUTE, again, end_tile, plan_columns(plan->dims.inter, plan->tiles.gate_up), lap);
    plan_add_pairs(list, plan, w, first, end, lap);
    for (int32_t e = 0; e < local; e++) {
        int32_t from = w->expert_first[e] / MOK_TILE_ROWS, to = w->expert_first[e + 1] / MOK_TILE_ROWS;
        struct mok_task task = {.kind = MOK_TASK_WGRAD, .expert = e, .lap = lap, .carry_in = from < first_tile, .carry_out = to > end_tile};
        task.first_tile = (int32_t)mok_max64(from, first_tile);
        task.end_tile = (int32_t)mok_min64(to, end_tile);
        if (task.first_tile < task.end_tile) {
            plan_add_wgrad(list, plan, plan->dims.inter, task);
        }
    }
}

static inline void plan_expect(struct plan_list *list, const struct plan_case *plan, const struct plan_walk *w)
{
    int32_t mb_tiles = (int32_t)(plan->ring.minibatch_rows / MOK_TILE_ROWS);
    int32_t minibatches = (w->head.num_tiles + mb_tiles - 1) / mb_tiles;
    list->count = 0;
    plan_add_shared(list, plan, w);
    if (!plan->backward) {
        plan_add_pairs(list, plan, w, 0, minibatches, 0);
        return;
    }
    for (int32_t lap = 0; lap * plan->ring.num_places < minibatches; lap++) {
        plan_add_lap(list, plan, w, lap);
    }
    for (int32_t e = 0; plan->zero_grads && e < w->walk.num_local; e++) {
        if (plan->expert_rows[e] == 0) {
            plan_add_wgrad(list, plan, plan->dims.inter, (struct mok_task){.kind = MOK_TASK_WGRAD_ZERO, .expert = e});
        }
    }
}

/* ---- the checks -------------------------------------------------------------------------------------------------------------- */

static inline int plan_check_tasks(const struct plan_list *list, const struct plan_walk *w)
{
    for (int64_t i = 0; i <= list->count + 2; i++) {
        struct mok_task expected = {MOK_TASK_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        struct mok_task task = mok_walk_task(&w->walk, i);
        if (i < list->count) {
            expected = list->tasks[i];
        }
        if (memcmp(&task, &expected, sizeof task) != 0) {
            return plan_fail("task %lld is kind %d row %d col %d minibatch %d expert %d matrix %d tile %d,%d lap %d rows %d..%d carry "
                             "%d %d, expected kind %d row %d col %d minibatch %d expert %d matrix %d tile %d,%d lap %d rows %d..%d "
                             "carry %d %d",
                             (long long)i, task.kind, task.row_tile, task.col_tile, task.minibatch, task.expert, task.matrix, task.out_tile,
                             task.in_tile, task.lap, task.first_tile, task.end_tile, task.carry_in, task.carry_out, expected.kind,
                             expected.row_tile, expected.col_tile, expected.minibatch, expected.expert, expected.matrix, expected.out_tile,
                             expected.in_tile, expected.lap, expected.first_tile, expected.end_tile, expected.carry_in, expected.carry_out);
        }
    }
    return 1;
}

/* The segments of each expert's weight-gradient tile follow each other, cover all its rows, and say where the sum begins and ends. */
static inline int plan_check_segments(const struct plan_list *list, const struct plan_case *plan, const struct plan_walk *w)
{
    int64_t covered[PLAN_MAX_LOCAL] = {0}, wanted;
    int32_t reached[PLAN_MAX_LOCAL]; /* row tile up to which the expert's first tile (dWd 0,0) has been summed */
    for (int32_t e = 0; e < w->walk.num_local; e++) {
        reached[e] = w->expert_first[e] / MOK_TILE_ROWS;
    }
    for (int64_t i = 0; i < list->count; i++) {
        struct mok_task task = mok_walk_task(&w->walk, i);
        if (task.kind != MOK_TASK_WGRAD) {
            continue;
        }
        covered[task.expert] += task.end_tile - task.first_tile;
        if (task.matrix == MOK_MATRIX_DOWN && task.out_tile == 0 && task.in_tile == 0) {
            int first = task.first_tile == w->expert_first[task.expert] / MOK_TILE_ROWS;
            int last = task.end_tile == w->expert_first[task.expert + 1] / MOK_TILE_ROWS;
            if (task.first_tile != reached[task.expert] || task.carry_in == first || task.carry_out == last) {
                return plan_fail("expert %d, lap %d: rows %d..%d after %d, carry %d %d", task.expert, task.lap, task.first_tile,
                                 task.end_tile, reached[task.expert], task.carry_in, task.carry_out);
            }
            reached[task.expert] = task.end_tile;
        }
    }
    for (int32_t e = 0; plan->backward && e < w->walk.num_local; e++) {
        wanted = (int64_t)(w->expert_first[e + 1] - w->expert_first[e]) / MOK_TILE_ROWS * w->walk.wgrad_tasks;
        if (covered[e] != wanted) {
            return plan_fail("expert %d: weight gradients contract %lld row tiles, expected %lld", e, (long long)covered[e],
                             (long long)wanted);
        }
    }
    return 1;
}

static inline int plan_check_steps(const struct plan_case *plan, const struct plan_walk *w)
{
    int32_t count = w->walk.num_minibatches, places = plan->ring.num_places;
    struct mok_step *steps = malloc((2 * (size_t)count + 1) * sizeof *steps);
    int64_t num = 0, i = 0;
    int ok = 1;
    if (!steps) {
        abort();
    }
    if (plan->backward) {
        for (int32_t first = 0; first < count; first += places) {
            for (int kind = MOK_STEP_PULL; kind <= MOK_STEP_PUSH; kind++) {
                for (int32_t g = first; g < count && g < first + places; g++) {
                    steps[num++] = (struct mok_step){kind, g};
                }
            }
        }
    } else if (w->walk.pushes_rows) {
        for (int32_t g = 0; g < count; g++) {
            steps[num++] = (struct mok_step){MOK_STEP_PULL, g};
        }
    } else {
        for (int32_t g = 0; g < count && g < places; g++) {
            steps[num++] = (struct mok_step){MOK_STEP_PULL, g};
        }
        for (int32_t g = 0; g < count; g++) {
            steps[num++] = (struct mok_step){MOK_STEP_PUSH, g};
            if (g + places < count) {
                steps[num++] = (struct mok_step){MOK_STEP_PULL, g + places};
            }
        }
    }
    for (i = 0; ok && i < num; i++) {
        struct mok_step step = mok_walk_step(&w->walk, i);
        ok = step.kind == steps[i].kind && step.minibatch == steps[i].minibatch;
    }
    free(steps);
    if (!ok) {
        return plan_fail("step %lld is not what the order of protocol.md says", (long long)(i - 1));
    }
    return mok_walk_step(&w->walk, num).kind == MOK_STEP_NONE || plan_fail("a step follows the last one, %lld", (long long)num);
}

/* ---- counters: what is announced, what is waited for -------------------------------------------------------------------------- */

struct plan_counters {
    struct mok_limits limits;
    uint32_t *value; /* flat, as backends keep them */
};

/* The counter, or NULL when the index is outside its kind. */
static inline uint32_t *plan_counter(const struct plan_counters *counters, struct mok_wait wait)
{
    if (wait.counter < 0 || wait.counter >= MOK_NUM_COUNTERS || wait.index < 0) {
        return NULL;
    }
    int64_t base = mok_plan_counter_base(&counters->limits, wait.counter);
    int64_t end = mok_plan_counter_base(&counters->limits, wait.counter + 1);
    return base + wait.index < end ? counters->value + base + wait.index : NULL;
}

static inline int plan_signal(const struct plan_counters *counters, struct mok_wait signal)
{
    uint32_t *value = plan_counter(counters, signal);
    if (!value || signal.target != 1) {
        return plan_fail("signal on counter %d[%d] += %u", signal.counter, signal.index, signal.target);
    }
    ++*value;
    return 1;
}

/* A wait is for everything that will ever be announced there, so that nothing that is still missing can hide behind it. */
static inline int plan_check_wait(const struct plan_counters *counters, struct mok_wait wait)
{
    uint32_t *value = plan_counter(counters, wait);
    if (!value) {
        return plan_fail("wait on counter %d[%d]: no such counter", wait.counter, wait.index);
    }
    return *value == wait.target || plan_fail("counter %d[%d] ends at %u, awaited %u", wait.counter, wait.index, *value, wait.target);
}

static inline int plan_check_counts(const struct plan_list *list, const struct plan_walk *w, const struct plan_counters *counters)
{
    const struct mok_walk *walk = &w->walk;
    int ok = 1;
    for (int64_t i = 0; ok && i < list->count; i++) {
        for (int32_t s = 0; ok && s < mok_walk_task_num_signals(walk, &list->tasks[i]); s++) {
            ok = plan_signal(counters, mok_walk_task_signal(walk, &list->tasks[i], s));
        }
    }
    for (int64_t i = 0; ok && mok_walk_step(walk, i).kind != MOK_STEP_NONE; i++) {
        struct mok_step step = mok_walk_step(walk, i);
        for (int32_t c = 0; ok && c < walk->num_comm; c++) {
            ok = plan_signal(counters, mok_walk_step_signal(&step));
        }
    }
    for (int64_t i = 0; ok && i < list->count; i++) {
        for (int32_t k = 0; ok && k < mok_walk_task_num_waits(walk, &list->tasks[i]); k++) {
            ok = plan_check_wait(counters, mok_walk_task_wait(walk, &list->tasks[i], k));
        }
    }
    for (int32_t g = 0; ok && g < walk->num_minibatches; g++) {
        if (mok_walk_pull_num_waits(walk, g)) {
            ok = plan_check_wait(counters, mok_walk_pull_wait(walk, g));
        }
    }
    for (int32_t tile = 0; ok && tile < walk->num_tiles && !walk->pushes_rows; tile++) {
        ok = plan_check_wait(counters, mok_walk_push_wait(walk, tile));
    }
    return ok && plan_check_wait(counters, mok_walk_sum_wait(walk));
}

static inline int plan_is_met(const struct plan_counters *counters, struct mok_wait wait)
{
    return *plan_counter(counters, wait) >= wait.target;
}

/* Takes the worker's next step if its wait is met. */
static inline int plan_try_step(const struct plan_walk *w, const struct plan_counters *counters, int64_t *next, int32_t *tile)
{
    struct mok_step step = mok_walk_step(&w->walk, *next);
    int32_t first = step.minibatch * w->walk.mb_tiles;
    if (step.kind == MOK_STEP_NONE) {
        return 0;
    }
    if (step.kind == MOK_STEP_PULL) {
        if (mok_walk_pull_num_waits(&w->walk, step.minibatch) && !plan_is_met(counters, mok_walk_pull_wait(&w->walk, step.minibatch))) {
            return 0;
        }
    } else if (!plan_is_met(counters, mok_walk_push_wait(&w->walk, first + *tile))) {
        return 0;
    } else if (++*tile < mok_walk_minibatch_tiles(&w->walk, step.minibatch)) {
        return 1;
    }
    *tile = 0;
    ++*next;
    return plan_signal(counters, mok_walk_step_signal(&step));
}

/* Communication workers and one computation worker, each blocking at its next wait: the pass must end. */
static inline int plan_check_progress(const struct plan_list *list, const struct plan_walk *w, const struct plan_counters *counters)
{
    enum { MAX_COMM = 16 };
    int64_t step[MAX_COMM] = {0}, task = 0;
    int32_t tile[MAX_COMM] = {0}, met = 0;
    for (int moved = 1; moved;) {
        moved = 0;
        for (int32_t c = 0; c < w->walk.num_comm && c < MAX_COMM; c++) {
            while (plan_try_step(w, counters, &step[c], &tile[c])) {
                moved = 1;
            }
        }
        while (task < list->count) {
            const struct mok_task *next = &list->tasks[task];
            if (met < mok_walk_task_num_waits(&w->walk, next)) {
                if (!plan_is_met(counters, mok_walk_task_wait(&w->walk, next, met))) {
                    break;
                }
                met++;
                continue;
            }
            for (int32_t s = 0; s < mok_walk_task_num_signals(&w->walk, next); s++) {
                plan_signal(counters, mok_walk_task_signal(&w->walk, next, s));
            }
            moved = 1;
            met = 0;
            task++;
        }
    }
    for (int32_t c = 0; c < w->walk.num_comm && c < MAX_COMM; c++) {
        if (step[c] != (w->walk.pushes_rows ? 1 : 2) * (int64_t)w->walk.num_minibatches) {
            return plan_fail("communication worker %d is stuck at step %lld", c, (long long)step[c]);
        }
    }
    return task == list->count || plan_fail("the computation worker is stuck at task %lld of %lld", (long long)task,
                                            (long long)list->count);
}

/* 1 when the case keeps every rule; 0 with the broken one in plan_error. Cases that are too large are skipped: 1. */
static inline int plan_check(struct plan_case *plan)
{
    static struct plan_list list; /* kept from case to case: saves its growing again */
    struct plan_walk *w = malloc(sizeof *w);
    struct plan_counters counters;
    int ok = 1;
    if (!w) {
        abort();
    }
    if (plan_make_walk(plan, w)) {
        plan_expect(&list, plan, w);
        counters.limits = mok_plan_limits(&plan->dims, &plan->ring);
        size_t bytes = (size_t)mok_plan_counter_base(&counters.limits, MOK_NUM_COUNTERS) * sizeof(uint32_t);
        counters.value = calloc(1, bytes);
        if (!counters.value) {
            abort();
        }
        ok = plan_check_tasks(&list, w) && plan_check_segments(&list, plan, w) && plan_check_steps(plan, w) &&
             plan_check_counts(&list, w, &counters);
        memset(counters.value, 0, bytes);
        ok = ok && plan_check_progress(&list, w, &counters);
        free(counters.value);
    }
    free(w);
    return ok;
}

#endif
