/*
 * A rank is killed, stopped, stalls or gives up, at each point of its life. Every other rank must have a status inside the deadlines, a
 * fault record that names the wait, the same status from every later call, and a bounded way out (protocol.md section 6).
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

#include "api/object.h"
#include "base/status.h"
#include "cpu/cpu.h"
#include "fault_member.h"
#include "fault_run.h"
#include "pass/site.h"
#include "plan/region.h"
#include "ref/cases.h"

enum {
    PEER_TIMEOUT_MS = 1500 * FAULT_SLOWNESS,
    LOCAL_TIMEOUT_MS = 700 * FAULT_SLOWNESS,
    SLACK_MS = 3000 * FAULT_SLOWNESS, /* of a machine that is busy with other tests */
    STUCK_TIMEOUT_MS = 300 * FAULT_SLOWNESS, /* local limit of the rank that stands still inside a pass: below all limits of the others */
    ROUNDS = 3
};

/* Longest delay, in microseconds, before each piece of work of a rank that is to be caught in the middle of a pass. */
#define SLOW_US "40000"

enum what { KILL, STOP, SLEEP, GIVE_UP, STUCK, NONE };

enum point { BEFORE_CREATE, BEFORE_SCHED, BEFORE_FORWARD, IN_FORWARD, BEFORE_BACKWARD, IN_BACKWARD };

struct script {
    const char *name;
    enum what what;
    enum point point;
    int32_t bad_rank;
    int32_t round; /* of build, forward, backward */
    int32_t site;  /* where the others wait: expected in the record of who gave up */
};

/* Rank 2 brings no tokens; experts of all ranks are used. */
static const struct mok_ref_case recipe = {
    .name = "faults", .num_ranks = 3, .num_experts = 7, .top_k = 2, .hidden = 64, .inter = 48, .shared_inter = 32, .tokens = {150, 67, 0},
    .ids = MOK_IDS_SKEWED, .grad_dtype = MOK_DTYPE_FP32,
};

static struct mok_ref_problem problem;

/* ---- in a rank --------------------------------------------------------------------------------------------------------------- */

/* A rank while it lives: what it was told to do, and where its words are. */
struct life {
    struct fault_run *run;
    struct fault_note *note;
    const struct script *script;
    struct fault_member member;
    int32_t rank;
    int32_t round;
    const _Atomic uint32_t *entry_word, *exit_word; /* own words in the own region */
};

static void misbehave(struct life *life)
{
    life->note->entry_seen = (int32_t)atomic_load(life->entry_word);
    life->note->exit_seen = (int32_t)atomic_load(life->exit_word);
    life->note->fault_ns = fault_now_ns();
    switch (life->script->what) {
    case KILL:
        kill(getpid(), SIGKILL);
        break;
    case STOP:
        kill(getpid(), SIGSTOP);
        break;
    case SLEEP:
        while (!atomic_load(&life->run->shared->released)) {
            fault_sleep_ms(2);
        }
        break;
    case GIVE_UP:
        life->note->created = mok_group_abort(life->member.group);
        break;
    case STUCK:
        mok_cpu_set_stuck(life->member.group->inner);
        break;
    default:
        break;
    }
}

/* Does what the script says when this is its point. In the middle of a pass: between the own arrivals at its ENTRY and its EXIT. */
static void reach(struct life *life, enum point point, uint32_t pass)
{
    int is_round = point == BEFORE_CREATE || life->round == life->script->round;
    if (life->rank != life->script->bad_rank || point != life->script->point || !is_round) {
        return;
    }
    if (point == IN_FORWARD || point == IN_BACKWARD) {
        while (atomic_load(life->entry_word) != pass) {
        }
    }
    misbehave(life);
}

/* One call, then the wait for what it enqueued. */
static mok_status call(struct life *life, mok_status (*work)(struct fault_member *), enum point inside, uint32_t pass)
{
    life->note->called_ns = fault_now_ns();
    mok_status status = work(&life->member);
    if (status == MOK_OK && inside != BEFORE_CREATE) {
        reach(life, inside, pass);
    }
    return status == MOK_OK ? mok_group_wait(life->member.group, NULL, -1) : status;
}

static mok_status live(struct life *life)
{
    for (life->round = 0; life->round < ROUNDS; life->round++) {
        uint32_t forward = 2 * (uint32_t)life->round + 1;
        reach(life, BEFORE_SCHED, 0);
        MOK_TRY(call(life, fault_member_build, BEFORE_CREATE, 0));
        reach(life, BEFORE_FORWARD, 0);
        MOK_TRY(call(life, fault_member_forward, IN_FORWARD, forward));
        reach(life, BEFORE_BACKWARD, 0);
        MOK_TRY(call(life, fault_member_backward, IN_BACKWARD, forward + 1));
    }
    return MOK_OK;
}

/* Every later call says the same. */
static void call_again(struct life *life)
{
    struct fault_member *member = &life->member;
    int64_t padded;
    mok_group_state state = {.struct_size = sizeof state};
    mok_status later[] = {
        mok_group_status(member->group, &state), fault_member_build(member), fault_member_forward(member),
        fault_member_backward(member), mok_group_wait(member->group, NULL, -1), mok_schedule_counts(member->schedule, NULL, NULL, &padded),
        mok_group_status(member->group, NULL), mok_group_wait(member->group, NULL, 0),
    };
    life->note->num_later = (int32_t)(sizeof later / sizeof *later);
    for (int32_t i = 0; i < life->note->num_later; i++) {
        life->note->num_later_wrong += later[i] != life->note->status;
    }
    life->note->fault = state.fault;
    life->note->passes_done = state.passes_done;
}

static void find_words(struct life *life, const mok_group_config *config, char *own)
{
    struct mok_dims dims = {.num_ranks = config->num_ranks, .num_experts = config->shape.num_experts, .top_k = config->shape.top_k,
                            .hidden = config->shape.hidden, .max_tokens = config->shape.max_tokens};
    struct mok_region region = mok_plan_region(&dims, config->num_saved);
    life->entry_word = (const _Atomic uint32_t *)(own + region.entry) + life->rank;
    life->exit_word = (const _Atomic uint32_t *)(own + region.exit) + life->rank;
}

static void make_config(const struct script *script, int32_t rank, mok_group_config *config)
{
    if (fault_member_config(&problem, rank, config) != MOK_OK) {
        _exit(3);
    }
    config->peer_timeout_ms = PEER_TIMEOUT_MS;
    config->local_timeout_ms = script->what == STUCK && rank == script->bad_rank ? STUCK_TIMEOUT_MS : LOCAL_TIMEOUT_MS;
    if (rank == script->bad_rank && (script->point == IN_FORWARD || script->point == IN_BACKWARD)) {
        setenv("MOK_TEST_DELAY_US", SLOW_US, 1);
    }
}

static int rank_main(struct fault_run *run, int32_t rank, const void *context)
{
    struct life life = {.run = run, .note = &run->shared->note[rank], .script = context, .rank = rank};
    void *bases[FAULT_MAX_RANKS];
    mok_external external = {.struct_size = sizeof external, .bases = bases, .bytes = run->region_bytes};
    mok_group_config config;
    if (!fault_run_map(run, rank, bases)) {
        return 3;
    }
    make_config(life.script, rank, &config);
    config.external = &external;
    find_words(&life, &config, bases[rank]);
    reach(&life, BEFORE_CREATE, 0);
    life.note->called_ns = fault_now_ns();
    life.note->created = fault_member_create(&life.member, &problem, &config);
    if (life.note->created == MOK_OK) {
        life.note->status = live(&life);
    }
    life.note->failed_ns = fault_now_ns();
    snprintf(life.note->message, sizeof life.note->message, "%s", mok_last_error());
    if (life.note->created == MOK_OK) {
        call_again(&life);
        life.note->destroyed = fault_member_destroy(&life.member);
    }
    life.note->destroyed_ns = fault_now_ns();
    life.note->is_complete = 1;
    return 0;
}

/* ---- the tests ----------------------------------------------------------------------------------------------------------------- */

static size_t region_bytes(void)
{
    mok_group_config config;
    mok_memory memory = {.struct_size = sizeof memory};
    assert_int_equal(fault_member_config(&problem, 0, &config), MOK_OK);
    assert_int_equal(mok_group_memory(&config, &memory), MOK_OK);
    return memory.peer_bytes;
}

static int64_t ms_between(int64_t from_ns, int64_t to_ns) { return (to_ns - from_ns) / 1000000; }

/* The record of a rank whose own wait expired, and of one that was told. */
static void check_record(const struct script *script, const struct fault_note *note, int32_t rank)
{
    assert_int_equal(note->fault.status, note->status);
    if (note->status == MOK_ERR_ABORTED) {
        assert_int_equal(note->fault.site, MOK_SITE_NONE);
        assert_in_range(note->fault.rank, 0, problem.num_ranks - 1);
        assert_int_not_equal(note->fault.rank, rank);
        if (script->what == GIVE_UP) {
            assert_int_equal(note->fault.rank, script->bad_rank);
        }
        char words[32];
        snprintf(words, sizeof words, "rank %d gave up first", note->fault.rank);
        assert_non_null(strstr(note->message, words));
        return;
    }
    assert_int_equal(note->fault.site, script->site);
    assert_int_equal(note->fault.rank, rank);
    assert_int_equal(note->fault.index, script->bad_rank);
    assert_in_range(note->fault.block, 0, 2);
    assert_int_equal(note->fault.expected, note->fault.seen + 1); /* barrier words: the bad rank has not come for this time */
    assert_non_null(strstr(note->message, mok_site_name(script->site)));
    /* Not before its time either. */
    assert_true(ms_between(note->called_ns, note->failed_ns) >= PEER_TIMEOUT_MS * 9 / 10);
}

/* A rank that did nothing wrong. */
static void check_survivor(const struct script *script, const struct fault_note *note, const struct fault_note *bad, int32_t rank)
{
    assert_true(note->is_complete);
    assert_int_equal(note->created, MOK_OK);
    assert_true(note->status == MOK_ERR_TIMEOUT || note->status == MOK_ERR_ABORTED);
    assert_true(note->message[0] != 0);
    check_record(script, note, rank);
    assert_true(note->num_later > 0);
    assert_int_equal(note->num_later_wrong, 0);
    int64_t begin = note->called_ns > bad->fault_ns ? note->called_ns : bad->fault_ns;
    int64_t limit = script->what == GIVE_UP ? SLACK_MS : PEER_TIMEOUT_MS + SLACK_MS;
    assert_true(ms_between(begin, note->failed_ns) <= limit);
    assert_true(ms_between(note->failed_ns, note->destroyed_ns) <= LOCAL_TIMEOUT_MS + SLACK_MS);
    /* Regions are the caller's to unmap only when every rank has left. */
    assert_int_equal(note->destroyed, script->what == GIVE_UP ? MOK_OK : MOK_ERR_TIMEOUT);
}

/* The bad rank, when it lives on: it is told, and can leave, because the others have left. */
static void check_returned(const struct script *script, const struct fault_note *note)
{
    assert_true(note->is_complete);
    assert_int_equal(note->created, MOK_OK);
    assert_int_equal(note->status, MOK_ERR_ABORTED);
    assert_int_equal(note->fault.status, MOK_ERR_ABORTED);
    assert_true((note->fault.rank == script->bad_rank) == (script->what == GIVE_UP));
    assert_in_range(note->fault.rank, 0, problem.num_ranks - 1);
    assert_non_null(strstr(note->message, script->what == GIVE_UP ? "mok_group_abort was called on this rank" : "gave up first"));
    assert_int_equal(note->num_later_wrong, 0);
    assert_int_equal(note->destroyed, MOK_OK);
}

static void run_script(void **state)
{
    const struct script *script = *state;
    struct fault_run run;
    const int64_t limit = 2 * (PEER_TIMEOUT_MS + LOCAL_TIMEOUT_MS + SLACK_MS);
    alarm(FAULT_HARD_LIMIT_S);
    fault_run_open(&run, problem.num_ranks, region_bytes());
    fault_run_start(&run, rank_main, script);
    const struct fault_note *bad = &run.shared->note[script->bad_rank];
    int gave_up = 0;
    for (int32_t r = 0; r < run.num_ranks; r++) {
        if (r != script->bad_rank) {
            assert_int_equal(fault_run_wait(&run, r, limit), 0);
            check_survivor(script, &run.shared->note[r], bad, r);
            gave_up += run.shared->note[r].status == MOK_ERR_TIMEOUT;
        }
    }
    /* One of them found out by itself, unless it was told by the bad rank. */
    assert_true(script->what == GIVE_UP ? gave_up == 0 : gave_up > 0);
    if (script->point == IN_FORWARD || script->point == IN_BACKWARD) {
        assert_int_equal(bad->exit_seen, bad->entry_seen - 1);
    }
    if (script->what == STOP) {
        fault_run_wait_stopped(&run, script->bad_rank, limit);
        fault_run_continue(&run, script->bad_rank);
    }
    atomic_store(&run.shared->released, 1);
    int ended = fault_run_wait(&run, script->bad_rank, limit);
    assert_int_equal(ended, script->what == KILL ? -SIGKILL : 0);
    if (script->what != KILL) {
        check_returned(script, bad);
    }
    fault_run_close(&run);
    alarm(0);
}

/* Creation with a rank that never comes: nobody gets a group, everybody gets a reason, in time. */
static void creation_without_a_rank(void **state)
{
    static const struct script stays_away = {"", SLEEP, BEFORE_CREATE, 1, 0, 0};
    struct fault_run run;
    (void)state;
    alarm(FAULT_HARD_LIMIT_S);
    fault_run_open(&run, problem.num_ranks, region_bytes());
    fault_run_start(&run, rank_main, &stays_away);
    for (int32_t r = 0; r < run.num_ranks; r += 2) {
        const struct fault_note *note = &run.shared->note[r];
        assert_int_equal(fault_run_wait(&run, r, PEER_TIMEOUT_MS + SLACK_MS), 0);
        assert_true(note->is_complete);
        assert_int_equal(note->created, MOK_ERR_TIMEOUT);
        assert_true(ms_between(note->called_ns, note->failed_ns) <= PEER_TIMEOUT_MS + SLACK_MS);
    }
    /* One of them waited its time and names who is missing; the other may have been told. */
    assert_true(strstr(run.shared->note[0].message, "rank 1") || strstr(run.shared->note[2].message, "rank 1"));
    /* Who comes too late is refused at once. */
    atomic_store(&run.shared->released, 1);
    assert_int_equal(fault_run_wait(&run, 1, PEER_TIMEOUT_MS + SLACK_MS), 0);
    assert_true(run.shared->note[1].created == MOK_ERR_TIMEOUT || run.shared->note[1].created == MOK_ERR_ABORTED);
    fault_run_close(&run);
    alarm(0);
}

/* A rank whose own workers stand still inside a pass: the short limit ends it, in that rank; the others are told. */
static void standstill_inside_a_pass(void **state)
{
    static const struct script sticks = {"", STUCK, BEFORE_FORWARD, 1, 1, 0};
    struct fault_run run;
    (void)state;
    alarm(FAULT_HARD_LIMIT_S);
    fault_run_open(&run, problem.num_ranks, region_bytes());
    fault_run_start(&run, rank_main, &sticks);
    for (int32_t r = 0; r < run.num_ranks; r++) {
        assert_int_equal(fault_run_wait(&run, r, PEER_TIMEOUT_MS + SLACK_MS), 0);
        const struct fault_note *note = &run.shared->note[r];
        assert_true(note->is_complete);
        assert_int_equal(note->status, r == sticks.bad_rank ? MOK_ERR_TIMEOUT : MOK_ERR_ABORTED);
        assert_int_equal(note->fault.status, note->status);
        assert_int_equal(note->num_later_wrong, 0);
    }
    const struct fault_note *bad = &run.shared->note[sticks.bad_rank];
    assert_int_equal(bad->fault.rank, sticks.bad_rank);
    assert_true(bad->fault.site == MOK_SITE_TEAM || bad->fault.site >= MOK_SITE_COUNTER);
    assert_true(bad->fault.seen < bad->fault.expected);
    assert_non_null(strstr(bad->message, mok_site_name(bad->fault.site)));
    fault_run_close(&run);
    alarm(0);
}

/* The script in which nothing happens: the checks above do not pass by themselves. */
static void a_quiet_life(void **state)
{
    static const struct script quiet = {"", NONE, BEFORE_CREATE, -1, 0, 0};
    struct fault_run run;
    (void)state;
    alarm(FAULT_HARD_LIMIT_S);
    fault_run_open(&run, problem.num_ranks, region_bytes());
    fault_run_start(&run, rank_main, &quiet);
    for (int32_t r = 0; r < run.num_ranks; r++) {
        assert_int_equal(fault_run_wait(&run, r, PEER_TIMEOUT_MS + SLACK_MS), 0);
        const struct fault_note *note = &run.shared->note[r];
        assert_true(note->is_complete);
        if (note->created != MOK_OK || note->status != MOK_OK) {
            fail_msg("rank %d: created %d, status %d: %s", r, note->created, note->status, note->message);
        }
        assert_int_equal(note->fault.status, MOK_OK);
        assert_int_equal(note->fault.site, MOK_SITE_NONE);
        assert_int_equal(note->destroyed, MOK_OK);
        assert_int_equal(note->passes_done, 2 * ROUNDS);
    }
    fault_run_close(&run);
    alarm(0);
}

static const struct script scripts[] = {
    {"killed before SCHED of the first round", KILL, BEFORE_SCHED, 1, 0, MOK_SITE_SCHED_BARRIER},
    {"killed before a later SCHED", KILL, BEFORE_SCHED, 0, 2, MOK_SITE_SCHED_BARRIER},
    {"killed between schedule and forward", KILL, BEFORE_FORWARD, 2, 1, MOK_SITE_ENTRY_BARRIER},
    {"killed between passes", KILL, BEFORE_BACKWARD, 1, 1, MOK_SITE_ENTRY_BARRIER},
    {"killed in the middle of a forward pass", KILL, IN_FORWARD, 1, 1, MOK_SITE_EXIT_BARRIER},
    {"killed in the middle of a backward pass", KILL, IN_BACKWARD, 0, 0, MOK_SITE_EXIT_BARRIER},
    {"stopped before SCHED", STOP, BEFORE_SCHED, 1, 0, MOK_SITE_SCHED_BARRIER},
    {"stopped between passes", STOP, BEFORE_BACKWARD, 2, 1, MOK_SITE_ENTRY_BARRIER},
    {"stopped in the middle of a forward pass", STOP, IN_FORWARD, 0, 1, MOK_SITE_EXIT_BARRIER},
    {"stopped in the middle of a backward pass", STOP, IN_BACKWARD, 1, 1, MOK_SITE_EXIT_BARRIER},
    {"stalled, never builds a schedule", SLEEP, BEFORE_SCHED, 1, 0, MOK_SITE_SCHED_BARRIER},
    {"stalled, never calls forward", SLEEP, BEFORE_FORWARD, 0, 0, MOK_SITE_ENTRY_BARRIER},
    {"stalled, never calls backward", SLEEP, BEFORE_BACKWARD, 2, 2, MOK_SITE_ENTRY_BARRIER},
    {"gives up before SCHED", GIVE_UP, BEFORE_SCHED, 0, 1, 0},
    {"gives up between passes", GIVE_UP, BEFORE_BACKWARD, 1, 1, 0},
    {"gives up in the middle of a pass", GIVE_UP, IN_FORWARD, 2, 1, 0},
};

enum { NUM_SCRIPTS = sizeof scripts / sizeof *scripts, NUM_OTHERS = 3 };

int main(void)
{
    struct CMUnitTest tests[NUM_OTHERS + NUM_SCRIPTS] = {cmocka_unit_test(a_quiet_life), cmocka_unit_test(creation_without_a_rank),
                                                         cmocka_unit_test(standstill_inside_a_pass)};
    for (size_t i = 0; i < NUM_SCRIPTS; i++) {
        tests[NUM_OTHERS + i] = (struct CMUnitTest){.name = scripts[i].name, .test_func = run_script,
                                                    .initial_state = (void *)(uintptr_t)&scripts[i]};
    }
    if (mok_ref_generate(&recipe, 0, &problem) != MOK_OK) {
        return 1;
    }
    int failed = cmocka_run_group_tests_name("faults", tests, NULL, NULL);
    mok_ref_problem_free(&problem);
    return failed;
}
