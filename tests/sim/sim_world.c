/*
 * Memory, words and counters of the world; who takes the next step; what a report says.
 */
#include "sim_world.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- operations and accesses --------------------------------------------------------------------------------------------------- */

const struct sim_action *sim_action_of(const struct sim_world *world, const struct sim_actor *actor)
{
    return &world->plan->action[actor->action];
}

const struct sim_build *sim_build_of(const struct sim_world *world, const struct sim_actor *actor)
{
    return &world->plan->build[sim_action_of(world, actor)->build][actor->rank];
}

void sim_begin(struct sim_world *world, struct sim_actor *actor, const char *what, int32_t a, int32_t b)
{
    int32_t id = actor->id;
    uint32_t tick = ++world->num_ops[id];
    if (tick >= world->room_ops[id]) {
        world->room_ops[id] = 2 * tick + 64;
        world->op[id] = realloc(world->op[id], world->room_ops[id] * sizeof **world->op);
        if (!world->op[id]) {
            abort();
        }
    }
    world->op[id][tick] = (struct sim_op){what, actor->action, a, b};
    actor->clock.at[id] = tick;
    actor->is_sealed = 0;
}

static int describe_op(const struct sim_world *world, int32_t id, uint32_t tick, char *text, size_t size)
{
    static const char *const kinds[] = {"build", "forward", "backward"};
    const struct sim_actor *actor = &world->actor[id / SIM_IDS];
    const struct sim_op *op = &world->op[id][tick];
    const char *role = actor->is_comm ? "communication" : "computation";
    return snprintf(text, size, "rank %d worker %d (%s), action %d (%s): %s %d,%d", actor->rank, actor->worker, role, op->action,
                    kinds[world->plan->action[op->action].kind], op->what, op->a, op->b);
}

static void report_conflict(struct sim_world *world, const struct sim_actor *actor, struct sim_cell_idx idx, int wrote, uint32_t stamp,
                            struct sim_conflict conflict)
{
    static const char *const verdicts[] = {"", "two accesses to one cell, one of them a write, are not ordered",
                                           "the cell holds something else", "there is no such cell"};
    char mine[256], other[256] = "never written";
    describe_op(world, actor->id, actor->clock.at[actor->id], mine, sizeof mine);
    if (conflict.id >= 0) {
        describe_op(world, conflict.id, conflict.tick, other, sizeof other);
    }
    snprintf(world->report, sizeof world->report, "%s: %s of rank %d at %d,%d,%d\n  %s by %s (stamp %x)\n  %s by %s (stamp %x)\n",
             verdicts[conflict.verdict], sim_buffer_name(idx.buffer), idx.rank, idx.at[0], idx.at[1], idx.at[2], wrote ? "write" : "read",
             mine, stamp, conflict.other_wrote ? "write" : "read", other, conflict.stamp);
    world->outcome = SIM_VIOLATION;
}

static void access_cell(struct sim_world *world, struct sim_actor *actor, struct sim_cell_idx idx, int write, uint32_t stamp)
{
    if (world->outcome != SIM_PASSED) {
        return; /* the first one is reported */
    }
    if (actor->is_sealed) {
        fprintf(stderr, "simulator: an access after a release without an operation of its own\n");
        abort();
    }
    struct sim_conflict conflict = write ? sim_cells_write(&world->cells, idx, actor->id, &actor->clock, stamp)
                                         : sim_cells_read(&world->cells, idx, actor->id, &actor->clock, stamp);
    world->num_accesses++;
    if (conflict.verdict != SIM_FINE) {
        report_conflict(world, actor, idx, write, stamp, conflict);
    }
}

void sim_read(struct sim_world *world, struct sim_actor *actor, struct sim_cell_idx idx, uint32_t stamp)
{
    access_cell(world, actor, idx, 0, stamp);
}

void sim_write(struct sim_world *world, struct sim_actor *actor, struct sim_cell_idx idx, uint32_t stamp)
{
    access_cell(world, actor, idx, 1, stamp);
}

/* ---- releases and waits ---------------------------------------------------------------------------------------------------------- */

void sim_release_add(struct sim_actor *actor, struct sim_counter *counter)
{
    counter->value++;
    sim_clock_join(&counter->clock, &actor->clock);
    actor->is_sealed = 1;
}

void sim_release_store(struct sim_actor *actor, struct sim_counter *counter, uint32_t value)
{
    counter->value = value;
    counter->clock = actor->clock;
    actor->is_sealed = 1;
}

static int is_reached(const struct sim_world *world, enum sim_rule rule, uint32_t value, uint32_t target)
{
    if (rule == world->broken) {
        if (world->shortened == 0) {
            return 1;
        }
        target -= world->shortened;
    }
    return (int32_t)(value - target) >= 0;
}

int sim_wait_word(struct sim_world *world, struct sim_actor *actor, enum sim_rule rule, struct sim_counter *counter, int32_t index,
                  uint32_t target)
{
    if (!is_reached(world, rule, counter->value, target)) {
        actor->rule = rule;
        actor->wait_index = index;
        actor->wait_target = target;
        actor->wait_seen = counter->value;
        return 0;
    }
    if (rule != world->broken || world->shortened) {
        sim_clock_join(&actor->clock, &counter->clock);
    }
    return 1;
}

static struct sim_counter *find_counter(struct sim_world *world, const struct sim_actor *actor, struct mok_wait wait)
{
    struct sim_rank *rank = &world->rank[actor->rank];
    const int64_t *base = rank->counter_base[sim_action_of(world, actor)->kind == SIM_BACKWARD];
    int exists = wait.counter >= 0 && wait.counter < MOK_NUM_COUNTERS && wait.index >= 0;
    if (!exists || base[wait.counter] + wait.index >= base[wait.counter + 1]) {
        snprintf(world->report, sizeof world->report, "counter %d[%d] does not exist\n", wait.counter, wait.index);
        world->outcome = SIM_VIOLATION;
        return rank->counter;
    }
    return rank->counter + base[wait.counter] + wait.index;
}

int sim_is_met(struct sim_world *world, struct sim_actor *actor, enum sim_rule rule, struct mok_wait wait)
{
    return is_reached(world, rule, find_counter(world, actor, wait)->value, wait.target);
}

int sim_wait_counter(struct sim_world *world, struct sim_actor *actor, enum sim_rule rule, struct mok_wait wait)
{
    sim_touch_counters(world, actor);
    return sim_wait_word(world, actor, rule, find_counter(world, actor, wait), wait.index, wait.target);
}

void sim_signal(struct sim_world *world, struct sim_actor *actor, struct mok_wait signal)
{
    sim_touch_counters(world, actor);
    sim_release_add(actor, find_counter(world, actor, signal));
    sim_wake(world, actor->rank);
}

int sim_meet(struct sim_world *world, struct sim_actor *actor, enum sim_meeting meeting, int32_t num, enum sim_rule rule)
{
    struct sim_counter *counter = &world->rank[actor->rank].meeting[meeting];
    sim_release_add(actor, counter);
    if (counter->value != (uint32_t)num) {
        return 0;
    }
    if (rule != world->broken) {
        sim_clock_join(&actor->clock, &counter->clock);
    }
    counter->value = 0;
    sim_clock_clear(&counter->clock);
    return 1;
}

/* ---- ranks and actions --------------------------------------------------------------------------------------------------------- */

void sim_wake(struct sim_world *world, int32_t rank)
{
    int32_t first = world->rank[rank].first_actor;
    for (int32_t i = first; i < first + world->rank[rank].num_workers; i++) {
        if (!world->is_runnable[i] && world->actor[i].state != SIM_AT_END) {
            world->is_runnable[i] = 1;
            world->runnable[world->num_runnable++] = i;
        }
    }
}

/* The walk of the rank's next action, if it is a pass. */
static void prepare_walk(struct sim_world *world, int32_t r)
{
    struct sim_rank *rank = &world->rank[r];
    const struct sim_plan *plan = world->plan;
    const struct sim_action *action = &plan->action[rank->action];
    if (rank->action >= plan->num_actions || action->kind == SIM_BUILD) {
        return;
    }
    int backward = action->kind == SIM_BACKWARD;
    rank->walk = (struct mok_walk){.dims = plan->dims, .ring = plan->ring[r][backward], .tiles = plan->tiles, .backward = backward,
                                   .num_comm = plan->num_comm[r], .shared_recompute = plan->shared_recompute,
                                   .zero_grads = action->zero_grads, .row_group = plan->row_group,
                                   .pushes_rows = !backward && plan->pushes_rows,
                                   .schedule = plan->build[action->build][r].view};
    rank->walk.dims.rank = r;
    mok_walk_init(&rank->walk);
    rank->next_task = 0;
}

void sim_finish_action(struct sim_world *world, struct sim_actor *last)
{
    struct sim_rank *rank = &world->rank[last->rank];
    if (world->plan->action[rank->action].kind == SIM_BUILD) {
        rank->epoch[SIM_BARRIER_SCHED]++;
    } else {
        if (rank->walk.backward) {
            sim_touch_grads(world, last);
        }
        sim_touch_clear(world, last);
        for (int64_t i = 0; i < rank->room; i++) {
            rank->counter[i].value = 0;
            sim_clock_clear(&rank->counter[i].clock);
        }
        rank->epoch[SIM_BARRIER_ENTRY]++;
        rank->epoch[SIM_BARRIER_EXIT]++;
    }
    sim_clock_join(&rank->done, &last->clock);
    rank->launch = rank->done;
    rank->action++;
    prepare_walk(world, last->rank);
    sim_wake(world, last->rank);
}

static void make_rank(struct sim_world *world, int32_t r)
{
    struct sim_rank *rank = &world->rank[r];
    const struct sim_plan *plan = world->plan;
    struct sim_counter *counter = rank->counter;
    int64_t room = rank->room, most = 0;
    memset(rank, 0, sizeof *rank);
    for (int backward = 0; backward < 2; backward++) {
        rank->limits[backward] = mok_plan_limits(&plan->dims, &plan->ring[r][backward]);
        for (int kind = 0; kind <= MOK_NUM_COUNTERS; kind++) {
            rank->counter_base[backward][kind] = mok_plan_counter_base(&rank->limits[backward], kind);
        }
        most = mok_max64(most, rank->counter_base[backward][MOK_NUM_COUNTERS]);
    }
    if (most > room) {
        room = most;
        counter = realloc(counter, (size_t)room * sizeof *counter);
        if (!counter) {
            abort();
        }
    }
    memset(counter, 0, (size_t)room * sizeof *counter);
    rank->counter = counter;
    rank->room = room;
    for (int barrier = 0; barrier < SIM_NUM_BARRIERS; barrier++) {
        rank->epoch[barrier] = plan->first_epoch + 1;
        for (int32_t s = 0; s < plan->dims.num_ranks; s++) {
            rank->word[barrier][s].value = plan->first_epoch;
        }
    }
    rank->first_actor = world->num_actors;
    rank->num_workers = plan->num_comm[r] + plan->num_compute[r];
    for (int32_t w = 0; w < rank->num_workers; w++) {
        world->actor[world->num_actors++] = (struct sim_actor){.rank = r, .worker = w, .is_comm = w < plan->num_comm[r]};
    }
    prepare_walk(world, r);
}

/* ---- the run --------------------------------------------------------------------------------------------------------------------- */

static void report_deadlock(struct sim_world *world)
{
    static const char *const states[SIM_NUM_STATES] = {
        "launch", "prepare", "arrive in", "wait in", "read lists", "step", "step signal", "moved", "arrive out", "take", "task wait",
        "task run", "task signal", "wait out", "wait for the sum", "sum", "leave", "end"};
    size_t at = (size_t)snprintf(world->report, sizeof world->report, "no actor can go on:\n");
    for (int32_t i = 0; i < world->num_actors && at < sizeof world->report; i++) {
        const struct sim_actor *actor = &world->actor[i];
        if (actor->state != SIM_AT_END) {
            const char *role = actor->is_comm ? "communication" : "computation";
            at += (size_t)snprintf(world->report + at, sizeof world->report - at,
                                   "  rank %d worker %d (%s) action %d at %s (step %" PRId64 ", task kind %d): %s[%d] is %u, awaited %u\n",
                                   actor->rank, actor->worker, role, actor->action, states[actor->state], actor->step_idx, actor->task.kind,
                                   sim_rule_name(actor->rule), actor->wait_index, actor->wait_seen, actor->wait_target);
        }
    }
    world->outcome = SIM_DEADLOCK;
}

static void redraw_slowness(struct sim_world *world)
{
    int32_t slow_rank = plan_random_in(&world->random, 0, 2 * world->plan->dims.num_ranks - 1); /* half the time: none */
    for (int32_t i = 0; i < world->num_actors; i++) {
        int is_slow = plan_random_chance(&world->random, 25) || world->actor[i].rank == slow_rank;
        world->slowness[i] = is_slow ? plan_random_in(&world->random, 8, 15) : 0;
    }
}

/* A random runnable actor, slow ones less often. */
static int32_t pick(struct sim_world *world)
{
    for (;;) {
        uint64_t draw = plan_random_next(&world->random);
        int32_t place = (int32_t)((draw & 0xffffffffu) % (uint64_t)world->num_runnable);
        if ((int32_t)((draw >> 40) % 16) >= world->slowness[world->runnable[place]]) {
            return place;
        }
    }
}

static void start(struct sim_world *world, struct sim_plan *plan, enum sim_rule broken, uint32_t shortened)
{
    world->plan = plan;
    world->broken = broken;
    world->shortened = shortened;
    world->random.state = plan->seed ^ 0x5eed5eed5eed5eedu;
    world->num_actors = 0;
    world->num_runnable = 0;
    world->outcome = SIM_PASSED;
    world->report[0] = 0;
    memset(world->num_ops, 0, sizeof world->num_ops);
    memset(world->is_runnable, 0, sizeof world->is_runnable);
    sim_cells_reset(&world->cells);
    for (int32_t r = 0; r < plan->dims.num_ranks; r++) {
        make_rank(world, r);
        sim_wake(world, r);
    }
    sim_touch_make(world);
}

enum sim_outcome sim_world_run(struct sim_world *world, struct sim_plan *plan, enum sim_rule broken, uint32_t shortened)
{
    start(world, plan, broken, shortened);
    int32_t left = world->num_actors;
    for (int64_t step = 0; left > 0 && world->outcome == SIM_PASSED; step++) {
        if (world->num_runnable == 0) {
            report_deadlock(world);
            break;
        }
        if (step % 256 == 0) {
            redraw_slowness(world);
        }
        int32_t place = pick(world), i = world->runnable[place];
        world->is_runnable[i] = sim_actor_step(world, &world->actor[i]) && world->actor[i].state != SIM_AT_END;
        left -= world->actor[i].state == SIM_AT_END;
        if (!world->is_runnable[i]) {
            world->runnable[place] = world->runnable[--world->num_runnable];
        }
        world->num_steps++;
    }
    return world->outcome;
}

void sim_world_free(struct sim_world *world)
{
    for (int32_t r = 0; r < SIM_MAX_RANKS; r++) {
        free(world->rank[r].counter);
    }
    for (int32_t id = 0; id < SIM_MAX_IDS; id++) {
        free(world->op[id]);
    }
    free(world->cells.cell);
    free(world->cells.many);
}
