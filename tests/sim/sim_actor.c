/*
 * What a worker does, one small step at a time, as protocol.md says. The order of work comes from plan/walk.h alone.
 *
 *   build:  launch, write lists, [last: arrive at SCHED], wait for SCHED, read lists, leave
 *   pass:   launch, publish, [last: arrive at ENTRY];
 *           communication: wait for ENTRY, steps, [last: arrive at EXIT], perhaps tasks;   computation: tasks;
 *           where down tasks push rows: [last of all workers behind its tasks: arrive at EXIT];
 *           wait for EXIT, wait for the shared expert, sum, leave, [last: clear counters]
 */
#include "sim_world.h"

enum { BLOCKED, MOVED };

static int go(struct sim_actor *actor, enum sim_state state)
{
    actor->state = state;
    return MOVED;
}

static int is_build(const struct sim_world *world, const struct sim_actor *actor)
{
    return sim_action_of(world, actor)->kind == SIM_BUILD;
}

static int at_launch(struct sim_world *world, struct sim_actor *actor)
{
    struct sim_rank *rank = &world->rank[actor->rank];
    if (actor->action == world->plan->num_actions) {
        return go(actor, SIM_AT_END);
    }
    if (rank->action < actor->action) {
        actor->rule = SIM_STREAM;
        return BLOCKED;
    }
    actor->id = SIM_IDS * (int32_t)(actor - world->actor) + actor->action % 2;
    sim_clock_clear(&actor->clock);
    sim_begin(world, actor, "launch", 0, 0);
    if (world->broken != SIM_STREAM) {
        sim_clock_join(&actor->clock, &rank->launch);
    }
    if (!is_build(world, actor)) {
        sim_touch_schedule(world, actor);
    }
    return go(actor, SIM_AT_PREPARE);
}

/* Where a worker goes after the entry phase. */
static int enter(const struct sim_world *world, struct sim_actor *actor)
{
    actor->peer = 0;
    return go(actor, is_build(world, actor) || actor->is_comm ? SIM_AT_WAIT_IN : SIM_AT_TAKE);
}

static int at_prepare(struct sim_world *world, struct sim_actor *actor)
{
    int build = is_build(world, actor);
    sim_begin(world, actor, build ? "write lists" : "publish", 0, 0);
    if (build) {
        sim_touch_write_lists(world, actor);
    } else {
        sim_touch_publish(world, actor);
    }
    actor->peer = 0;
    if (sim_meet(world, actor, SIM_MEETING_IN, world->rank[actor->rank].num_workers, build ? SIM_LISTS_WRITTEN : SIM_PUBLISHED)) {
        return go(actor, SIM_AT_ARRIVE_IN);
    }
    return enter(world, actor);
}

/* Stores the own word at one peer. 1 when all have it. */
static int arrive_at_next(struct sim_world *world, struct sim_actor *actor, enum sim_barrier barrier)
{
    int32_t num_ranks = world->plan->dims.num_ranks, peer = (actor->rank + 1 + actor->peer) % num_ranks;
    sim_release_store(actor, &world->rank[peer].word[barrier][actor->rank], world->rank[actor->rank].epoch[barrier]);
    sim_wake(world, peer);
    return ++actor->peer == num_ranks;
}

static int at_arrive_in(struct sim_world *world, struct sim_actor *actor)
{
    if (!arrive_at_next(world, actor, is_build(world, actor) ? SIM_BARRIER_SCHED : SIM_BARRIER_ENTRY)) {
        return MOVED;
    }
    return enter(world, actor);
}

/* Waits for the word of the next source: BLOCKED, or MOVED with *all_out telling whether it was the last. */
static int wait_for_next(struct sim_world *world, struct sim_actor *actor, enum sim_barrier barrier, enum sim_rule rule, int *all_out)
{
    struct sim_rank *rank = &world->rank[actor->rank];
    if (!sim_wait_word(world, actor, rule, &rank->word[barrier][actor->peer], actor->peer, rank->epoch[barrier])) {
        return BLOCKED;
    }
    *all_out = ++actor->peer == world->plan->dims.num_ranks;
    return MOVED;
}

static int at_wait_in(struct sim_world *world, struct sim_actor *actor)
{
    int all = 0, build = is_build(world, actor);
    int moved = wait_for_next(world, actor, build ? SIM_BARRIER_SCHED : SIM_BARRIER_ENTRY, build ? SIM_WAIT_SCHED : SIM_WAIT_ENTRY, &all);
    if (all) {
        actor->step_idx = 0;
        actor->step_tile = 0;
        return go(actor, build ? SIM_AT_READ_LISTS : SIM_AT_STEP);
    }
    return moved;
}

static int at_read_lists(struct sim_world *world, struct sim_actor *actor)
{
    sim_begin(world, actor, "read lists", 0, 0);
    sim_touch_read_lists(world, actor);
    return go(actor, SIM_AT_LEAVE);
}

/* ---- tasks ------------------------------------------------------------------------------------------------------------------------ */

/* A worker has no more tasks. */
static int finish_tasks(struct sim_world *world, struct sim_actor *actor)
{
    const struct sim_rank *rank = &world->rank[actor->rank];
    actor->peer = 0;
    if (rank->walk.pushes_rows && sim_meet(world, actor, SIM_MEETING_MOVED, rank->num_workers, SIM_MOVED)) {
        return go(actor, SIM_AT_ARRIVE_OUT);
    }
    return go(actor, SIM_AT_WAIT_OUT);
}

static int at_take(struct sim_world *world, struct sim_actor *actor)
{
    struct sim_rank *rank = &world->rank[actor->rank];
    sim_touch_counters(world, actor); /* the task number is cleared with them */
    actor->task = mok_walk_task(&rank->walk, rank->next_task++);
    actor->wait_idx = 0;
    actor->is_borrowed = 0;
    actor->peer = 0;
    sim_wake(world, actor->rank);
    return actor->task.kind == MOK_TASK_NONE ? finish_tasks(world, actor) : go(actor, SIM_AT_TASK_WAIT);
}

static int at_task_wait(struct sim_world *world, struct sim_actor *actor)
{
    const struct mok_walk *walk = &world->rank[actor->rank].walk;
    while (actor->wait_idx < mok_walk_task_num_waits(walk, &actor->task)) {
        struct mok_wait wait = mok_walk_task_wait(walk, &actor->task, actor->wait_idx);
        if (!sim_wait_counter(world, actor, sim_rule_of_task(&actor->task, &wait), wait)) {
            return BLOCKED;
        }
        actor->wait_idx++;
    }
    return go(actor, SIM_AT_TASK_RUN);
}

static int at_task_run(struct sim_world *world, struct sim_actor *actor)
{
    sim_touch_task(world, actor);
    actor->wait_idx = 0;
    return go(actor, SIM_AT_TASK_SIGNAL);
}

static int at_task_signal(struct sim_world *world, struct sim_actor *actor)
{
    const struct mok_walk *walk = &world->rank[actor->rank].walk;
    if (actor->wait_idx < mok_walk_task_num_signals(walk, &actor->task)) {
        sim_signal(world, actor, mok_walk_task_signal(walk, &actor->task, actor->wait_idx++));
        return MOVED;
    }
    return go(actor, actor->is_borrowed ? SIM_AT_STEP : SIM_AT_TAKE);
}

/* A communication worker with nothing to move takes the next task if all its inputs are there: it never waits inside. */
static int borrow_task(struct sim_world *world, struct sim_actor *actor)
{
    struct sim_rank *rank = &world->rank[actor->rank];
    if (world->plan->comm_takes_tasks < 2) {
        return BLOCKED;
    }
    struct mok_task task = mok_walk_task(&rank->walk, rank->next_task);
    for (int32_t i = 0; i < mok_walk_task_num_waits(&rank->walk, &task); i++) {
        struct mok_wait wait = mok_walk_task_wait(&rank->walk, &task, i);
        if (!sim_is_met(world, actor, sim_rule_of_task(&task, &wait), wait)) {
            return BLOCKED;
        }
    }
    if (task.kind == MOK_TASK_NONE) {
        return BLOCKED;
    }
    at_take(world, actor);
    actor->is_borrowed = 1;
    return MOVED;
}

/* ---- steps of communication workers ------------------------------------------------------------------------------------------------- */

static int at_pull(struct sim_world *world, struct sim_actor *actor, const struct mok_walk *walk, int32_t minibatch)
{
    enum sim_rule rule = walk->backward ? SIM_PULL_PLACE_FREE_BACKWARD : SIM_PULL_PLACE_FREE_FORWARD;
    if (mok_walk_pull_num_waits(walk, minibatch) && !sim_wait_counter(world, actor, rule, mok_walk_pull_wait(walk, minibatch))) {
        return borrow_task(world, actor);
    }
    int32_t first = minibatch * walk->mb_tiles, tiles = mok_walk_minibatch_tiles(walk, minibatch);
    for (int32_t tile = first; tile < first + tiles; tile++) {
        if (sim_touch_has_part(world, actor, tile)) {
            sim_begin(world, actor, "pull of minibatch, row tile", minibatch, tile);
            sim_touch_pull(world, actor, tile);
        }
    }
    return go(actor, SIM_AT_STEP_SIGNAL);
}

static int at_push(struct sim_world *world, struct sim_actor *actor, const struct mok_walk *walk, int32_t minibatch)
{
    int32_t tile = minibatch * walk->mb_tiles + actor->step_tile;
    if (sim_touch_has_part(world, actor, tile)) {
        if (!sim_wait_counter(world, actor, walk->backward ? SIM_PUSH_E_DONE : SIM_PUSH_Y_DONE, mok_walk_push_wait(walk, tile))) {
            return borrow_task(world, actor);
        }
        sim_begin(world, actor, "push of minibatch, row tile", minibatch, tile);
        sim_touch_push(world, actor, tile);
    }
    if (++actor->step_tile < mok_walk_minibatch_tiles(walk, minibatch)) {
        return MOVED;
    }
    actor->step_tile = 0;
    return go(actor, SIM_AT_STEP_SIGNAL);
}

static int at_step(struct sim_world *world, struct sim_actor *actor)
{
    const struct mok_walk *walk = &world->rank[actor->rank].walk;
    struct mok_step step = mok_walk_step(walk, actor->step_idx);
    switch (step.kind) {
    case MOK_STEP_PULL: return at_pull(world, actor, walk, step.minibatch);
    case MOK_STEP_PUSH: return at_push(world, actor, walk, step.minibatch);
    default: return go(actor, SIM_AT_MOVED);
    }
}

static int at_step_signal(struct sim_world *world, struct sim_actor *actor)
{
    struct mok_step step = mok_walk_step(&world->rank[actor->rank].walk, actor->step_idx++);
    sim_signal(world, actor, mok_walk_step_signal(&step));
    return go(actor, SIM_AT_STEP);
}

/* ---- the way out --------------------------------------------------------------------------------------------------------------------- */

static int after_moving(struct sim_world *world, struct sim_actor *actor)
{
    actor->peer = 0;
    return world->plan->comm_takes_tasks ? go(actor, SIM_AT_TAKE) : finish_tasks(world, actor);
}

static int at_moved(struct sim_world *world, struct sim_actor *actor)
{
    actor->peer = 0;
    if (!world->rank[actor->rank].walk.pushes_rows &&
        sim_meet(world, actor, SIM_MEETING_MOVED, world->plan->num_comm[actor->rank], SIM_MOVED)) {
        return go(actor, SIM_AT_ARRIVE_OUT);
    }
    return after_moving(world, actor);
}

static int at_arrive_out(struct sim_world *world, struct sim_actor *actor)
{
    if (!arrive_at_next(world, actor, SIM_BARRIER_EXIT)) {
        return MOVED;
    }
    if (!world->rank[actor->rank].walk.pushes_rows) {
        return after_moving(world, actor);
    }
    actor->peer = 0;
    return go(actor, SIM_AT_WAIT_OUT);
}

static int at_wait_out(struct sim_world *world, struct sim_actor *actor)
{
    int all = 0;
    int moved = wait_for_next(world, actor, SIM_BARRIER_EXIT, SIM_WAIT_EXIT, &all);
    return all ? go(actor, SIM_AT_WAIT_SUM) : moved;
}

static int at_wait_sum(struct sim_world *world, struct sim_actor *actor)
{
    const struct mok_walk *walk = &world->rank[actor->rank].walk;
    enum sim_rule rule = walk->backward ? SIM_SUM_SHARED_DONE_BACKWARD : SIM_SUM_SHARED_DONE_FORWARD;
    return sim_wait_counter(world, actor, rule, mok_walk_sum_wait(walk)) ? go(actor, SIM_AT_SUM) : BLOCKED;
}

/* The sum runs under a clock id of its own, which joins the worker's again: unless just that order is broken. */
static int at_sum(struct sim_world *world, struct sim_actor *actor)
{
    struct sim_clock before = actor->clock;
    int32_t id = actor->id;
    actor->id = SIM_IDS * (int32_t)(actor - world->actor) + SIM_IDS - 1;
    sim_begin(world, actor, "sum", 0, 0);
    sim_touch_sum(world, actor);
    actor->id = id;
    if (world->broken == SIM_SLOTS_READ) {
        actor->clock = before;
    }
    return go(actor, SIM_AT_LEAVE);
}

static int at_leave(struct sim_world *world, struct sim_actor *actor)
{
    struct sim_rank *rank = &world->rank[actor->rank];
    sim_begin(world, actor, "leave", 0, 0);
    sim_clock_join(&rank->done, &actor->clock);
    if (sim_meet(world, actor, SIM_MEETING_LEFT, rank->num_workers, SIM_LEFT)) {
        sim_begin(world, actor, "clear", 0, 0);
        sim_finish_action(world, actor);
    }
    actor->action++;
    return go(actor, SIM_AT_LAUNCH);
}

int sim_actor_step(struct sim_world *world, struct sim_actor *actor)
{
    switch (actor->state) {
    case SIM_AT_LAUNCH: return at_launch(world, actor);
    case SIM_AT_PREPARE: return at_prepare(world, actor);
    case SIM_AT_ARRIVE_IN: return at_arrive_in(world, actor);
    case SIM_AT_WAIT_IN: return at_wait_in(world, actor);
    case SIM_AT_READ_LISTS: return at_read_lists(world, actor);
    case SIM_AT_STEP: return at_step(world, actor);
    case SIM_AT_STEP_SIGNAL: return at_step_signal(world, actor);
    case SIM_AT_MOVED: return at_moved(world, actor);
    case SIM_AT_ARRIVE_OUT: return at_arrive_out(world, actor);
    case SIM_AT_TAKE: return at_take(world, actor);
    case SIM_AT_TASK_WAIT: return at_task_wait(world, actor);
    case SIM_AT_TASK_RUN: return at_task_run(world, actor);
    case SIM_AT_TASK_SIGNAL: return at_task_signal(world, actor);
    case SIM_AT_WAIT_OUT: return at_wait_out(world, actor);
    case SIM_AT_WAIT_SUM: return at_wait_sum(world, actor);
    case SIM_AT_SUM: return at_sum(world, actor);
    case SIM_AT_LEAVE: return at_leave(world, actor);
    default: return BLOCKED;
    }
}
