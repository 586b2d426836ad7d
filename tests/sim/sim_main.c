/*
 * The simulator of protocol.md: runs the plan functions with several ranks and workers, vector clocks and random delays.
 *
 *   sim [--plans N] [--seed S] [--ranks R] [--drop RULE | --short RULE]     clean run: every plan must keep all rules and end
 *   sim --list                                                              the rules that can be broken
 *
 * --ranks: every plan has so many, instead of one to four.
 * --drop leaves one rule out, --short waits for one too few; then a violation (or, for look_ahead, a deadlock) must be reported, and the
 * exit status says whether it was: a simulator that misses it proves nothing.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_world.h"

struct options {
    int64_t plans;
    uint64_t seed;
    int32_t num_ranks; /* 0 = drawn */
    enum sim_rule broken;
    uint32_t shortened;
};

static int usage(void)
{
    fprintf(stderr, "usage: sim [--plans N] [--seed S] [--ranks 1..%d] [--drop RULE | --short RULE] | --list\n", SIM_MAX_RANKS);
    return 2;
}

static int list_rules(void)
{
    for (int rule = SIM_NO_RULE + 1; rule < SIM_NUM_RULES; rule++) {
        printf("%s\n", sim_rule_name((enum sim_rule)rule));
    }
    return 0;
}

/* 0 when the options are understood. */
static int parse(int argc, char **argv, struct options *options)
{
    *options = (struct options){.plans = 10000, .seed = 1};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--plans") == 0) {
            options->plans = atoll(value);
        } else if (strcmp(name, "--seed") == 0) {
            options->seed = strtoull(value, NULL, 0);
        } else if (strcmp(name, "--ranks") == 0) {
            options->num_ranks = atoi(value);
            if (options->num_ranks < 1 || options->num_ranks > SIM_MAX_RANKS) {
                return usage();
            }
        } else if (strcmp(name, "--drop") == 0 || strcmp(name, "--short") == 0) {
            options->broken = sim_rule_find(value);
            options->shortened = strcmp(name, "--short") == 0;
            if (options->broken == SIM_NO_RULE ||
                (options->shortened && (options->broken < SIM_FIRST_COUNTER_RULE || options->broken > SIM_LAST_COUNTER_RULE))) {
                return usage();
            }
        } else {
            return usage();
        }
    }
    return argc % 2 == 1 && options->plans > 0 ? 0 : usage();
}

static enum sim_outcome expected_outcome(enum sim_rule broken)
{
    return broken == SIM_NO_RULE ? SIM_PASSED : broken == SIM_LOOK_AHEAD ? SIM_DEADLOCK : SIM_VIOLATION;
}

int main(int argc, char **argv)
{
    static struct sim_world world;
    static struct sim_plan plan;
    struct options options;
    int64_t plans = 0, passes = 0;
    enum sim_outcome outcome = SIM_PASSED;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        return list_rules();
    }
    if (parse(argc, argv, &options) != 0) {
        return 2;
    }
    for (; plans < options.plans && outcome == SIM_PASSED; plans++) {
        sim_plan_make(&plan, options.seed + (uint64_t)plans, options.num_ranks, options.broken);
        outcome = sim_world_run(&world, &plan, options.broken, options.shortened);
        passes += plan.num_actions;
    }
    if (outcome != SIM_PASSED) {
        printf("%s", world.report);
        sim_plan_print(&plan);
    }
    static const char *const outcomes[] = {"all rules kept", "a violation", "a deadlock"};
    printf("%s %s: %s after %" PRId64 " plans, %" PRId64 " builds and passes, %" PRId64 " steps, %" PRId64 " accesses\n",
           options.shortened ? "short" : "drop", sim_rule_name(options.broken), outcomes[outcome], plans, passes, world.num_steps,
           world.num_accesses);
    sim_world_free(&world);
    return outcome == expected_outcome(options.broken) ? 0 : 1;
}
