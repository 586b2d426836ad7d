/*
 * The rules that keep memory accesses in order, each of which can be broken on purpose: a simulator that does not see a missing wait proves
 * nothing.
 */
#ifndef MOK_SIM_RULES_H
#define MOK_SIM_RULES_H

#include "plan/walk.h"

enum sim_rule {
    SIM_NO_RULE,
    /* waits for barrier words */
    SIM_WAIT_SCHED,
    SIM_WAIT_ENTRY,
    SIM_WAIT_EXIT,
    /* waits for counters, one rule per kind of waiter */
    SIM_FIRST_COUNTER_RULE,
    SIM_GATE_UP_PULLED = SIM_FIRST_COUNTER_RULE,
    SIM_DOWN_H_DONE,
    SIM_PUSH_Y_DONE,
    SIM_PULL_PLACE_FREE_FORWARD,
    SIM_PULL_PLACE_FREE_BACKWARD,
    SIM_RECOMPUTE_PULLED,
    SIM_DGRAD_DOWN_PULLED,
    SIM_DGRAD_DOWN_G_DONE,
    SIM_DGRAD_GATE_UP_D_DONE,
    SIM_WGRAD_D_DONE,
    SIM_WGRAD_CARRY_DONE,
    SIM_PUSH_E_DONE,
    SIM_SHARED_DOWN_G_DONE,
    SIM_SHARED_DGRAD_DOWN_G_DONE,
    SIM_SHARED_DGRAD_GATE_UP_D_DONE,
    SIM_SHARED_WGRAD_D_DONE,
    SIM_SUM_SHARED_DONE_FORWARD,
    SIM_SUM_SHARED_DONE_BACKWARD,
    SIM_LAST_COUNTER_RULE = SIM_SUM_SHARED_DONE_BACKWARD,
    /* order without a wait of its own */
    SIM_STREAM,        /* a pass begins behind the pass before it */
    SIM_SLOTS_READ,    /* by stream order, own slots are read before the next ENTRY */
    SIM_LISTS_WRITTEN, /* the last worker that wrote lists arrives at SCHED, behind the others */
    SIM_PUBLISHED,     /* the last worker that published arrives at ENTRY */
    SIM_MOVED,         /* the last communication worker arrives at EXIT */
    SIM_LEFT,          /* the last worker to leave clears the counters */
    /* room that keeps things apart */
    SIM_HALVES,     /* two halves of lists, by parity */
    SIM_SCRATCHES,  /* two carry scratches, by parity of laps */
    SIM_LOOK_AHEAD, /* at most num_places - 1; broken: a deadlock */
    SIM_NUM_RULES
};

const char *sim_rule_name(enum sim_rule rule);
/* SIM_NO_RULE when there is no such name. */
enum sim_rule sim_rule_find(const char *name);

/* Which rule a wait of a task belongs to. */
enum sim_rule sim_rule_of_task(const struct mok_task *task, const struct mok_wait *wait);

#endif
