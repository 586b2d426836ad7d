/*
 * Ranks that come late, at random, call after call: every result is right (docs/cases.md K3). 200 schedules, forward and backward passes
 * over changing tokens and routes, a random pause of each process before each call and of each worker before each piece of work; and calls
 * that are enqueued ahead without waiting.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../unit/test_plan_random.h"
#include "base/status.h"
#include "fault_member.h"
#include "fault_run.h"
#include "ref/cases.h"

enum { NUM_PROBLEMS = 5, CALLS = 200, TIMEOUT_MS = 60000, LIMIT_MS = 110000, LONGEST_PAUSE_US = 5000 };

static const struct mok_ref_case recipe = {
    .name = "delays", .num_ranks = 4, .num_experts = 6, .top_k = 3, .hidden = 64, .inter = 32, .shared_inter = 40, .tokens = {33, 0, 90, 5},
    .ids = MOK_IDS_SKEWED, .router = MOK_ROUTER_SIGNED, .shared_w = 1, .grad_dtype = MOK_DTYPE_FP32,
};

static struct mok_ref_problem problems[NUM_PROBLEMS];
static struct mok_ref_answer answers[NUM_PROBLEMS];

static void pause_at_random(struct plan_random *random)
{
    if (plan_random_chance(random, 60)) {
        usleep((useconds_t)plan_random_in(random, 0, LONGEST_PAUSE_US));
    }
}

/* One round on one problem; without waiting between the calls when `ahead` is set. */
static mok_status run_round(struct fault_member *member, struct plan_random *random, int ahead)
{
    mok_status (*const calls[])(struct fault_member *) = {fault_member_build, fault_member_forward, fault_member_backward};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        pause_at_random(random);
        MOK_TRY(calls[i](member));
        if (!ahead) {
            MOK_TRY(mok_group_wait(member->group, NULL, -1));
        }
    }
    return mok_group_wait(member->group, NULL, -1);
}

static mok_status run_calls(struct fault_member *member, struct fault_note *note)
{
    struct plan_random random = {(uint64_t)member->rank + 77};
    for (int32_t i = 0; i < CALLS; i++) {
        int32_t which = i % NUM_PROBLEMS;
        fault_member_load(member, &problems[which]);
        MOK_TRY(run_round(member, &random, i % 2));
        note->num_failures += fault_member_compare(member, &answers[which], note->message, sizeof note->message);
        note->passes_done++;
    }
    return MOK_OK;
}

static int rank_main(struct fault_run *run, int32_t rank, const void *context)
{
    struct fault_note *note = &run->shared->note[rank];
    struct fault_member member;
    void *bases[FAULT_MAX_RANKS];
    mok_external external = {.struct_size = sizeof external, .bases = bases, .bytes = run->region_bytes};
    mok_group_config config;
    (void)context;
    setenv("MOK_TEST_DELAY_US", "300", 1);
    if (!fault_run_map(run, rank, bases) || fault_member_config(&problems[0], rank, &config) != MOK_OK) {
        return 3;
    }
    config.external = &external;
    config.peer_timeout_ms = TIMEOUT_MS;
    config.local_timeout_ms = TIMEOUT_MS;
    note->created = fault_member_create(&member, &problems[0], &config);
    if (note->created == MOK_OK) {
        note->status = run_calls(&member, note);
        if (note->status != MOK_OK) {
            snprintf(note->message, sizeof note->message, "%s", mok_last_error());
        }
        note->destroyed = fault_member_destroy(&member);
    }
    note->is_complete = 1;
    return 0;
}

static void late_ranks_get_right_results(void **state)
{
    struct fault_run run;
    mok_group_config config;
    mok_memory memory = {.struct_size = sizeof memory};
    (void)state;
    alarm(FAULT_HARD_LIMIT_S);
    assert_int_equal(fault_member_config(&problems[0], 0, &config), MOK_OK);
    assert_int_equal(mok_group_memory(&config, &memory), MOK_OK);
    fault_run_open(&run, recipe.num_ranks, memory.peer_bytes);
    fault_run_start(&run, rank_main, NULL);
    for (int32_t r = 0; r < run.num_ranks; r++) {
        int ended = fault_run_wait(&run, r, LIMIT_MS);
        const struct fault_note *note = &run.shared->note[r];
        if (ended != 0 || !note->is_complete || note->created != MOK_OK || note->status != MOK_OK || note->num_failures != 0) {
            fail_msg("rank %d: exit %d, created %d, status %d, %lld rows or elements wrong: %s", r, ended, note->created, note->status,
                     (long long)note->num_failures, note->message);
        }
        assert_int_equal(note->passes_done, CALLS);
        assert_int_equal(note->destroyed, MOK_OK);
    }
    fault_run_close(&run);
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(late_ranks_get_right_results)};
    for (uint32_t i = 0; i < NUM_PROBLEMS; i++) {
        if (mok_ref_generate(&recipe, i, &problems[i]) != MOK_OK || mok_ref_answer_make(&problems[i], &answers[i]) != MOK_OK) {
            return 1;
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
