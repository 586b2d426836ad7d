/*
 * Names of the rules, as --drop and --short take them.
 */
#include "sim_rules.h"

#include <stddef.h>
#include <string.h>

static const char *const names[SIM_NUM_RULES] = {
    [SIM_NO_RULE] = "none",
    [SIM_WAIT_SCHED] = "sched",
    [SIM_WAIT_ENTRY] = "entry",
    [SIM_WAIT_EXIT] = "exit",
    [SIM_GATE_UP_PULLED] = "gate_up.pulled",
    [SIM_DOWN_H_DONE] = "down.h_done",
    [SIM_PUSH_Y_DONE] = "push.y_done",
    [SIM_PULL_PLACE_FREE_FORWARD] = "pull.place_free.forward",
    [SIM_PULL_PLACE_FREE_BACKWARD] = "pull.place_free.backward",
    [SIM_RECOMPUTE_PULLED] = "recompute.pulled",
    [SIM_DGRAD_DOWN_PULLED] = "dgrad_down.pulled",
    [SIM_DGRAD_DOWN_G_DONE] = "dgrad_down.g_done",
    [SIM_DGRAD_GATE_UP_D_DONE] = "dgrad_gate_up.d_done",
    [SIM_WGRAD_D_DONE] = "wgrad.d_done",
    [SIM_WGRAD_CARRY_DONE] = "wgrad.carry_done",
    [SIM_PUSH_E_DONE] = "push.e_done",
    [SIM_SHARED_DOWN_G_DONE] = "shared_down.g_done",
    [SIM_SHARED_DGRAD_DOWN_G_DONE] = "shared_dgrad_down.g_done",
    [SIM_SHARED_DGRAD_GATE_UP_D_DONE] = "shared_dgrad_gate_up.d_done",
    [SIM_SHARED_WGRAD_D_DONE] = "shared_wgrad.d_done",
    [SIM_SUM_SHARED_DONE_FORWARD] = "sum.shared_done.forward",
    [SIM_SUM_SHARED_DONE_BACKWARD] = "sum.shared_done.backward",
    [SIM_STREAM] = "stream",
    [SIM_SLOTS_READ] = "slots_read",
    [SIM_LISTS_WRITTEN] = "lists_written",
    [SIM_PUBLISHED] = "published",
    [SIM_MOVED] = "moved",
    [SIM_LEFT] = "left",
    [SIM_HALVES] = "halves",
    [SIM_SCRATCHES] = "scratches",
    [SIM_LOOK_AHEAD] = "look_ahead",
};

const char *sim_rule_name(enum sim_rule rule) { return names[rule]; }

enum sim_rule sim_rule_find(const char *name)
{
    for (int rule = 0; rule < SIM_NUM_RULES; rule++) {
        if (strcmp(names[rule], name) == 0) {
            return (enum sim_rule)rule;
        }
    }
    return SIM_NO_RULE;
}

enum sim_rule sim_rule_of_task(const struct mok_task *task, const struct mok_wait *wait)
{
    switch (task->kind) {
    case MOK_TASK_SHARED_DOWN: return SIM_SHARED_DOWN_G_DONE;
    case MOK_TASK_SHARED_DGRAD_DOWN: return SIM_SHARED_DGRAD_DOWN_G_DONE;
    case MOK_TASK_SHARED_DGRAD_GATE_UP: return SIM_SHARED_DGRAD_GATE_UP_D_DONE;
    case MOK_TASK_SHARED_WGRAD: return SIM_SHARED_WGRAD_D_DONE;
    case MOK_TASK_GATE_UP: return SIM_GATE_UP_PULLED;
    case MOK_TASK_DOWN: return SIM_DOWN_H_DONE;
    case MOK_TASK_RECOMPUTE: return SIM_RECOMPUTE_PULLED;
    case MOK_TASK_DGRAD_DOWN: return wait->counter == MOK_COUNT_PULLED ? SIM_DGRAD_DOWN_PULLED : SIM_DGRAD_DOWN_G_DONE;
    case MOK_TASK_DGRAD_GATE_UP: return SIM_DGRAD_GATE_UP_D_DONE;
    case MOK_TASK_WGRAD: return wait->counter == MOK_COUNT_CARRY_DONE ? SIM_WGRAD_CARRY_DONE : SIM_WGRAD_D_DONE;
    default: return SIM_NO_RULE;
    }
}
