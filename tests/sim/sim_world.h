/*
 * The world of one plan: ranks with barrier words, counters and buffers, and the workers (actors) that run the walk on them.
 *
 * sim_world.c: memory, words, counters, the scheduler that lets a random actor take its next small step, and the reports.
 * sim_actor.c: what an actor does, step by step, as protocol.md says; every wait goes through sim_wait_*.
 * sim_touch.c: which cells each piece of work reads and writes.
 */
#ifndef MOK_SIM_WORLD_H
#define MOK_SIM_WORLD_H

#include "sim_cells.h"
#include "sim_plan.h"

/* A counter or a barrier word: its value, and the clock of those who wrote it. */
struct sim_counter {
    uint32_t value;
    struct sim_clock clock;
};

enum sim_barrier { SIM_BARRIER_SCHED, SIM_BARRIER_ENTRY, SIM_BARRIER_EXIT, SIM_NUM_BARRIERS };

/* Meetings of the workers of a rank: each adds one, the last one goes on in the name of all. */
enum sim_meeting { SIM_MEETING_IN, SIM_MEETING_MOVED, SIM_MEETING_LEFT, SIM_NUM_MEETINGS };

struct sim_rank {
    struct sim_counter word[SIM_NUM_BARRIERS][SIM_MAX_RANKS]; /* [barrier][source] */
    struct sim_counter meeting[SIM_NUM_MEETINGS];
    struct mok_limits limits[2]; /* by direction: where a kind of counter begins in the flat array */
    int64_t counter_base[2][MOK_NUM_COUNTERS + 1];
    struct sim_counter *counter;
    int64_t room;      /* counters there is memory for */
    int64_t next_task; /* the atomic task number */
    uint32_t epoch[SIM_NUM_BARRIERS]; /* the next phase's; SCHED counts builds, ENTRY and EXIT passes */
    int32_t action;          /* the one that runs, by stream order */
    struct mok_walk walk;    /* of that action, when it is a pass */
    struct sim_clock launch; /* everything that happened before that action */
    struct sim_clock done;   /* everything that its workers did */
    int32_t num_workers;
    int32_t first_actor;
};

enum sim_state {
    SIM_AT_LAUNCH,
    SIM_AT_PREPARE,   /* write lists; publish rows */
    SIM_AT_ARRIVE_IN, /* SCHED or ENTRY, word by word */
    SIM_AT_WAIT_IN,
    SIM_AT_READ_LISTS,
    SIM_AT_STEP,
    SIM_AT_STEP_SIGNAL,
    SIM_AT_MOVED,
    SIM_AT_ARRIVE_OUT,
    SIM_AT_TAKE,
    SIM_AT_TASK_WAIT,
    SIM_AT_TASK_RUN,
    SIM_AT_TASK_SIGNAL,
    SIM_AT_WAIT_OUT,
    SIM_AT_WAIT_SUM,
    SIM_AT_SUM,
    SIM_AT_LEAVE,
    SIM_AT_END,
    SIM_NUM_STATES
};

/* One operation of an actor, for reports. */
struct sim_op {
    const char *what;
    int32_t action;
    int32_t a, b; /* minibatch or row tile or expert; column tile or the like */
};

struct sim_actor {
    int32_t rank;
    int32_t worker; /* communication workers come first */
    int32_t is_comm;
    int32_t id; /* clock id of the action that it runs */
    struct sim_clock clock;
    int32_t is_sealed; /* it has handed its clock on: the next access needs a new operation */
    enum sim_state state;
    int32_t action;
    int32_t peer; /* cursor over ranks, in barriers */
    int64_t step_idx;
    int32_t step_tile; /* cursor over the row tiles of a push */
    struct mok_task task;
    int32_t wait_idx;
    int32_t is_borrowed;
    /* what it is blocked on, for the report of a deadlock */
    enum sim_rule rule;
    int32_t wait_index;
    uint32_t wait_target, wait_seen;
};

enum sim_outcome { SIM_PASSED, SIM_VIOLATION, SIM_DEADLOCK };

struct sim_world {
    struct sim_plan *plan;
    enum sim_rule broken; /* SIM_NO_RULE in a clean run */
    uint32_t shortened;   /* 0: the broken wait is left out; n: its target is n too small */
    struct plan_random random;
    struct sim_cells cells;
    struct sim_rank rank[SIM_MAX_RANKS];
    struct sim_actor actor[SIM_MAX_ACTORS];
    int32_t num_actors;
    int32_t runnable[SIM_MAX_ACTORS];
    int32_t num_runnable;
    int32_t is_runnable[SIM_MAX_ACTORS];
    int32_t slowness[SIM_MAX_ACTORS]; /* chance in 16 to be passed over, redrawn now and then */
    struct sim_op *op[SIM_MAX_IDS]; /* by tick */
    uint32_t num_ops[SIM_MAX_IDS], room_ops[SIM_MAX_IDS];
    int64_t num_accesses, num_steps;
    enum sim_outcome outcome;
    char report[4096];
};

/* Runs a plan. The world is reused from plan to plan; zero it before the first. */
enum sim_outcome sim_world_run(struct sim_world *world, struct sim_plan *plan, enum sim_rule broken, uint32_t shortened);
void sim_world_free(struct sim_world *world);

/* ---- for actors --------------------------------------------------------------------------------------------------------------- */

/* One step of an actor: 1 = it did something, 0 = it is blocked. */
int sim_actor_step(struct sim_world *world, struct sim_actor *actor);

const struct sim_action *sim_action_of(const struct sim_world *world, const struct sim_actor *actor);
const struct sim_build *sim_build_of(const struct sim_world *world, const struct sim_actor *actor);

/* Begins an operation: accesses from here on carry its tick. */
void sim_begin(struct sim_world *world, struct sim_actor *actor, const char *what, int32_t a, int32_t b);
/* Hands the actor's clock on: added to what others handed on before (a chain of atomic additions), or in its place (a plain store). */
void sim_release_add(struct sim_actor *actor, struct sim_counter *counter);
void sim_release_store(struct sim_actor *actor, struct sim_counter *counter, uint32_t value);
/* 1 when the wait is over (the clock is then joined); 0, noted for the report, when not. A broken rule is not waited for. */
int sim_wait_word(struct sim_world *world, struct sim_actor *actor, enum sim_rule rule, struct sim_counter *counter, int32_t index,
                  uint32_t target);
int sim_wait_counter(struct sim_world *world, struct sim_actor *actor, enum sim_rule rule, struct mok_wait wait);
/* The same without joining: is there anything to wait for? */
int sim_is_met(struct sim_world *world, struct sim_actor *actor, enum sim_rule rule, struct mok_wait wait);
void sim_signal(struct sim_world *world, struct sim_actor *actor, struct mok_wait signal);
/* Adds one to a meeting; 1 for the last worker, who then (unless `rule` is broken) is ordered behind the others. */
int sim_meet(struct sim_world *world, struct sim_actor *actor, enum sim_meeting meeting, int32_t num, enum sim_rule rule);
/* Something changed in this rank: its blocked actors look again. */
void sim_wake(struct sim_world *world, int32_t rank);
/* The rank's running action is over: clears what a pass leaves, and launches the next. */
void sim_finish_action(struct sim_world *world, struct sim_actor *last);

/* ---- for touches --------------------------------------------------------------------------------------------------------------- */

void sim_read(struct sim_world *world, struct sim_actor *actor, struct sim_cell_idx idx, uint32_t stamp);
void sim_write(struct sim_world *world, struct sim_actor *actor, struct sim_cell_idx idx, uint32_t stamp);

/* Makes all buffers of a plan. */
void sim_touch_make(struct sim_world *world);
void sim_touch_counters(struct sim_world *world, struct sim_actor *actor);
void sim_touch_clear(struct sim_world *world, struct sim_actor *actor);
void sim_touch_write_lists(struct sim_world *world, struct sim_actor *actor);
void sim_touch_read_lists(struct sim_world *world, struct sim_actor *actor);
void sim_touch_schedule(struct sim_world *world, struct sim_actor *actor);
void sim_touch_publish(struct sim_world *world, struct sim_actor *actor);
/* The actor's part of a row tile, pulled or pushed. 0 when it has none: then there is nothing to wait for either. */
int sim_touch_has_part(const struct sim_world *world, const struct sim_actor *actor, int32_t row_tile);
void sim_touch_pull(struct sim_world *world, struct sim_actor *actor, int32_t row_tile);
void sim_touch_push(struct sim_world *world, struct sim_actor *actor, int32_t row_tile);
void sim_touch_task(struct sim_world *world, struct sim_actor *actor);
/* After a backward pass: every gradient has been summed to the last row of its expert. */
void sim_touch_grads(struct sim_world *world, struct sim_actor *actor);
void sim_touch_sum(struct sim_world *world, struct sim_actor *actor);

#endif
