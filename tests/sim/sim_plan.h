/*
 * A random plan: the shape of a group, how many workers each rank has, and a sequence of schedule builds, forward and backward passes with
 * the routes of every build. Everything follows from one seed.
 */
#ifndef MOK_SIM_PLAN_H
#define MOK_SIM_PLAN_H

#include "../unit/test_plan_random.h"
#include "plan/walk.h"
#include "sim_clock.h"
#include "sim_rules.h"

enum { SIM_MAX_ACTIONS = 12, SIM_MAX_SAVED = 3, SIM_MAX_SCHEDULES = 2 };

enum sim_action_kind { SIM_BUILD, SIM_FORWARD, SIM_BACKWARD };

struct sim_action {
    int32_t kind;
    int32_t schedule;
    int32_t saved;      /* -1 = inference */
    int32_t build;      /* index of the build whose routes are used */
    int32_t forward;    /* backward: index of the action that filled the saved object */
    int32_t zero_grads; /* backward: overwrite mode */
};

/* One rank's view of one build: what its own ids became, and the schedule of the rows it owns. */
struct sim_build {
    int32_t num_tokens;
    const int32_t *ids; /* [T, K] */
    struct mok_schedule_head head;
    struct mok_route *routes;
    struct mok_schedule_view view; /* of the arrays; its head is the one above */
};

struct sim_plan {
    uint64_t seed;
    struct mok_dims dims; /* rank 0's */
    struct mok_tiles tiles;
    struct mok_ring ring[SIM_MAX_RANKS][2]; /* forward, backward; ranks agree on keep_rows alone */
    int32_t num_comm[SIM_MAX_RANKS];
    int32_t num_compute[SIM_MAX_RANKS];
    int32_t num_saved;
    int32_t num_schedules;
    int32_t row_group;
    int32_t pushes_rows;     /* forward: down tasks store their rows into the slots */
    int32_t shared_recompute;
    int32_t bf16_grads;      /* gradients that need the carry scratches */
    int32_t split_by_tile;   /* communication workers share out whole row tiles; else the rows of each */
    int32_t comm_takes_tasks; /* 0: communication workers do nothing else; 1: tasks after the last push; 2: also borrowed ones */
    uint32_t first_epoch;    /* what the epochs start from: near the end of uint32 they wrap */
    int32_t num_actions;
    struct sim_action action[SIM_MAX_ACTIONS];
    int32_t num_builds;
    struct sim_build build[SIM_MAX_ACTIONS][SIM_MAX_RANKS];
};

/* Makes the plan of a seed. Its arrays live until the next call. num_ranks: 0 = drawn, up to four. broken: the rule that will be broken; plans
 * differ by what that needs. */
void sim_plan_make(struct sim_plan *plan, uint64_t seed, int32_t num_ranks, enum sim_rule broken);
/* To stdout, for a report. */
void sim_plan_print(const struct sim_plan *plan);

#endif
