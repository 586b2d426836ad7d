/*
 * Waits of the CPU backend that end: a rank that does not come, stands still, aborts, or never leaves; and queues that run far ahead.
 * Deadlines here are short; each check allows for a slow machine by asking for the right record, not for the right moment.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

#include "base/status.h"
#include "test_cpu_run.h"

enum { RANKS = 3 };

static const struct mok_ref_case small_case = {
    .name = "faults",
    .num_ranks = RANKS,
    .num_experts = 5,
    .top_k = 2,
    .hidden = 64,
    .inter = 40,
    .shared_inter = 24,
    .tokens = {130, 70, 33},
    .ids = MOK_IDS_DISTINCT,
    .values = MOK_VALUES_NORMAL,
    .router = MOK_ROUTER_NORMALIZED,
    .grad_dtype = MOK_DTYPE_FP32,
};

/* A rank and what it does; all ranks of a world run the same script with their own rank. */
struct world {
    struct mok_ref_problem problem;
    struct mok_ref_outputs outputs;
    struct cpu_run run;
    int64_t local_timeout_ms;
    struct cpu_rank ranks[RANKS];
    mok_status called[RANKS]; /* status of the last call of the script */
    mok_status destroyed[RANKS];
    mok_group_state states[RANKS];
    char why[RANKS][256]; /* sentence of a destroy that failed */
    int64_t script_ms[RANKS], destroy_ms[RANKS];
    void *kept[RANKS]; /* region that a rank left behind because a peer might still touch it */
    pthread_barrier_t opened;
};

typedef void script(struct world *world, struct cpu_rank *rank);

struct actor {
    struct world *world;
    struct cpu_rank *rank;
    script *act;
};

static int64_t now_ms(void) { return mok_trace_now_ns() / 1000000; }

static void *be_actor(void *argument)
{
    struct actor *actor = argument;
    struct world *world = actor->world;
    struct cpu_rank *rank = actor->rank;
    rank->status = open_rank(rank);
    /* The test's own waits are for its threads: no rank begins before all are open. */
    pthread_barrier_wait(&world->opened);
    if (rank->status != MOK_OK) {
        return NULL;
    }
    int64_t begin = now_ms();
    make_grads(rank);
    actor->act(world, rank);
    world->script_ms[rank->rank] = now_ms() - begin;
    world->states[rank->rank].struct_size = sizeof world->states[0];
    mok_status state = mok_pass_cpu.state(rank->group, &world->states[rank->rank]);
    (void)state;
    take_grads(rank);
    begin = now_ms();
    mok_pass_cpu.schedule_destroy(rank->schedule);
    world->destroyed[rank->rank] = mok_pass_cpu.destroy(rank->group);
    world->destroy_ms[rank->rank] = now_ms() - begin;
    if (world->destroyed[rank->rank] != MOK_OK) {
        mok_base_error_copy(world->why[rank->rank], sizeof world->why[0]);
    }
    world->kept[rank->rank] = world->destroyed[rank->rank] != MOK_OK ? rank->peer->base[rank->rank] : NULL;
    rank->peer->ops->unmap(rank->peer, world->destroyed[rank->rank] != MOK_OK);
    rank->peer->ops->leave(rank->peer);
    return NULL;
}

static struct world *run_world(const struct cpu_run *run, int64_t peer_timeout_ms, int64_t local_timeout_ms, script *act)
{
    struct world *world = calloc(1, sizeof *world);
    struct actor actors[RANKS];
    pthread_t threads[RANKS];
    mok_hub *hub;
    char peer_text[32], local_text[32];
    world->run = *run;
    world->local_timeout_ms = local_timeout_ms;
    snprintf(peer_text, sizeof peer_text, "%lld", (long long)peer_timeout_ms);
    snprintf(local_text, sizeof local_text, "%lld", (long long)local_timeout_ms);
    setenv("MOK_PEER_TIMEOUT", peer_text, 1);
    setenv("MOK_LOCAL_TIMEOUT", local_text, 1);
    assert_int_equal(mok_ref_generate(&small_case, 0, &world->problem), MOK_OK);
    assert_int_equal(mok_ref_outputs_alloc(&world->problem, &world->outputs), MOK_OK);
    assert_int_equal(mok_hub_create(RANKS, &hub), MOK_OK);
    pthread_barrier_init(&world->opened, NULL, RANKS);
    for (int32_t r = 0; r < RANKS; r++) {
        struct cpu_rank *rank = &world->ranks[r];
        rank->run = &world->run;
        rank->problem = &world->problem;
        rank->outputs = &world->outputs;
        rank->hub = hub;
        rank->rank = r;
        actors[r] = (struct actor){world, rank, act};
        assert_int_equal(pthread_create(&threads[r], NULL, be_actor, &actors[r]), 0);
    }
    for (int32_t r = 0; r < RANKS; r++) {
        pthread_join(threads[r], NULL);
        assert_int_equal(world->ranks[r].status, MOK_OK);
    }
    for (int32_t r = 0; r < RANKS; r++) {
        free(world->kept[r]); /* now all are gone */
    }
    pthread_barrier_destroy(&world->opened);
    mok_hub_destroy(hub);
    return world;
}

static void free_world(struct world *world)
{
    mok_ref_outputs_free(&world->problem, &world->outputs);
    mok_ref_problem_free(&world->problem);
    free(world);
}

static const struct cpu_run quick_run = {.keep_rows = MOK_KEEP_ALL, .minibatch_rows = 128, .ring_minibatches = 2, .poison = 0xff};

static mok_status build(struct cpu_rank *rank)
{
    const struct mok_ref_problem *problem = rank->problem;
    return mok_pass_cpu.schedule_build(rank->schedule, problem->ids + mok_ref_first_token(problem, rank->rank) * problem->top_k,
                                       problem->tokens[rank->rank], NULL);
}

/* ---- a rank that does not come ---------------------------------------------------------------------------------------------- */

static void rank_1_makes_no_pass(struct world *world, struct cpu_rank *rank)
{
    world->called[rank->rank] = build(rank);
    if (rank->rank != 1 && world->called[rank->rank] == MOK_OK) {
        world->called[rank->rank] = run_forward(rank);
    } else {
        world->called[rank->rank] = mok_pass_cpu.wait(rank->group, NULL, -1);
        while (mok_pass_cpu.state(rank->group, NULL) == MOK_OK) {
            mok_cpu_relax(1000);
        }
        world->called[rank->rank] = run_forward(rank); /* too late */
    }
}

/* All ranks know; those that expired name the barrier and the rank that was missing. */
static void expect_missing(const struct world *world, int32_t site, int32_t missing)
{
    int num_expired = 0;
    for (int32_t r = 0; r < RANKS; r++) {
        const mok_fault *fault = &world->states[r].fault;
        assert_int_not_equal(world->called[r], MOK_OK);
        assert_int_equal(world->called[r], fault->status);
        assert_true(fault->status == MOK_ERR_TIMEOUT || fault->status == MOK_ERR_ABORTED);
        assert_int_equal(world->destroyed[r], MOK_OK);
        if (fault->status == MOK_ERR_TIMEOUT) {
            num_expired++;
            assert_int_equal(fault->site, site);
            assert_int_equal(fault->index, missing);
            assert_int_equal(fault->rank, r);
            assert_int_equal(fault->expected, fault->seen + 1);
        } else {
            assert_int_equal(fault->rank, -1);
        }
    }
    assert_true(num_expired > 0);
    assert_int_equal(world->states[missing].fault.status, MOK_ERR_ABORTED);
}

static void missing_rank_is_named_at_entry(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 300, 20000, rank_1_makes_no_pass);
    expect_missing(world, MOK_SITE_ENTRY_BARRIER, 1);
    free_world(world);
}

static void rank_1_builds_where_others_run(struct world *world, struct cpu_rank *rank)
{
    mok_status status = build(rank);
    if (rank->rank == 1) {
        status = status == MOK_OK ? build(rank) : status;
        status = status == MOK_OK ? mok_pass_cpu.wait(rank->group, NULL, -1) : status;
    } else {
        status = status == MOK_OK ? run_forward(rank) : status;
    }
    world->called[rank->rank] = status;
}

/* The tags of ENTRY do not help here: the ranks stand at two barriers, until the limit for peers is over. */
static void build_that_meets_a_pass_is_a_time_out(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 300, 20000, rank_1_builds_where_others_run);
    int num_expired = 0;
    for (int32_t r = 0; r < RANKS; r++) {
        const mok_fault *fault = &world->states[r].fault;
        assert_int_equal(world->called[r], fault->status);
        assert_true(fault->status == MOK_ERR_TIMEOUT || fault->status == MOK_ERR_ABORTED);
        if (fault->status == MOK_ERR_TIMEOUT) {
            num_expired++;
            assert_int_equal(fault->site, r == 1 ? MOK_SITE_SCHED_BARRIER : MOK_SITE_ENTRY_BARRIER);
        }
        assert_int_equal(world->destroyed[r], MOK_OK);
        assert_in_range(world->script_ms[r], 300, 20000);
    }
    assert_true(num_expired > 0);
    free_world(world);
}

static void rank_2_builds_nothing(struct world *world, struct cpu_rank *rank)
{
    if (rank->rank != 2) {
        world->called[rank->rank] = build(rank);
        world->called[rank->rank] = run_forward(rank);
    } else {
        while (mok_pass_cpu.state(rank->group, NULL) == MOK_OK) {
            mok_cpu_relax(1000);
        }
        world->called[rank->rank] = build(rank);
    }
}

static void missing_rank_is_named_at_sched(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 300, 20000, rank_2_builds_nothing);
    expect_missing(world, MOK_SITE_SCHED_BARRIER, 2);
    free_world(world);
}

/* ---- standstill -------------------------------------------------------------------------------------------------------------- */

static void make_a_stuck_pass(struct world *world, struct cpu_rank *rank)
{
    mok_cpu_set_stuck(rank->group);
    world->called[rank->rank] = build(rank);
    world->called[rank->rank] = run_forward(rank);
}

/* No row is pulled on any rank, for as long as the group lives: its computation workers wait for rows that never come. */
static void standstill_ends_at_the_local_limit(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 60000, 100, make_a_stuck_pass);
    int num_expired = 0;
    for (int32_t r = 0; r < RANKS; r++) {
        const mok_fault *fault = &world->states[r].fault;
        assert_int_equal(world->called[r], fault->status);
        assert_true(fault->status == MOK_ERR_TIMEOUT || fault->status == MOK_ERR_ABORTED);
        if (fault->status == MOK_ERR_TIMEOUT) {
            num_expired++;
            assert_true(fault->site >= MOK_SITE_COUNTER); /* rows pulled, or on a busy machine a shared task before them */
        }
    }
    assert_true(num_expired > 0);
    free_world(world);
}

/* One wait by hand, in the place of a worker: it lasts as long as the rank makes progress, and the limit from then on. */
static void wait_by_hand(struct world *world, struct cpu_rank *rank)
{
    if (rank->rank != 0) {
        return;
    }
    struct mok_cpu_worker waiter = {.group = rank->group, .index = 7};
    atomic_store(&rank->group->pass.is_entered, 1);
    struct mok_cpu_waiting waiting = mok_cpu_wait_begin(&waiter, MOK_SITE_TEAM, 5, 6);
    int64_t begin = now_ms();
    int alive = 1;
    while (alive && now_ms() - begin < 4 * world->local_timeout_ms) {
        mok_cpu_progress(rank->group);
        alive = mok_cpu_wait_again(&waiting, 4);
    }
    world->called[0] = alive ? MOK_OK : MOK_ERR_INTERNAL;
    int64_t last_ns = waiting.last_ns;
    while (mok_cpu_wait_again(&waiting, 4)) {
    }
    world->called[1] = mok_trace_now_ns() - last_ns >= world->local_timeout_ms * 1000000 ? MOK_OK : MOK_ERR_INTERNAL;
}

static void progress_starts_the_clock_again(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 60000, 150, wait_by_hand);
    const mok_fault *fault = &world->states[0].fault;
    assert_int_equal(world->called[0], MOK_OK);
    assert_int_equal(world->called[1], MOK_OK);
    assert_int_equal(fault->status, MOK_ERR_TIMEOUT);
    assert_int_equal(fault->site, MOK_SITE_TEAM);
    assert_int_equal(fault->rank, 0);
    assert_int_equal(fault->block, 7);
    assert_int_equal(fault->index, 5);
    assert_int_equal(fault->expected, 6);
    assert_int_equal(fault->seen, 4);
    free_world(world);
}

/* ---- abort ------------------------------------------------------------------------------------------------------------------- */

static void rank_0_aborts(struct world *world, struct cpu_rank *rank)
{
    if (rank->rank == 0) {
        mok_pass_cpu.abort(rank->group);
    }
    world->called[rank->rank] = build(rank);
    if (world->called[rank->rank] == MOK_OK) {
        world->called[rank->rank] = mok_pass_cpu.wait(rank->group, NULL, -1);
    }
}

static void abort_reaches_every_rank(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 60000, 60000, rank_0_aborts);
    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(world->called[r], MOK_ERR_ABORTED);
        assert_int_equal(world->states[r].fault.status, MOK_ERR_ABORTED);
        assert_int_equal(world->states[r].fault.rank, r == 0 ? 0 : -1);
        assert_int_equal(world->destroyed[r], MOK_OK);
        assert_true(world->script_ms[r] < 30000);
    }
    free_world(world);
}

/* ---- leaving ----------------------------------------------------------------------------------------------------------------- */

static void sleep_ms(int64_t ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static void rank_0_stays_long(struct world *world, struct cpu_rank *rank)
{
    (void)world;
    if (rank->rank == 0) {
        sleep_ms(2000);
    }
}

static void destroy_does_not_wait_for_ever(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 300, 60000, rank_0_stays_long);
    assert_int_equal(world->destroyed[0], MOK_OK); /* the others had left */
    for (int32_t r = 1; r < RANKS; r++) {
        assert_int_equal(world->destroyed[r], MOK_ERR_TIMEOUT);
        assert_non_null(strstr(world->why[r], "rank 0 did not leave the group within peer_timeout_ms = 300;"));
        assert_in_range(world->destroy_ms[r], 300, 1900);
    }
    free_world(world);
}

static void rank_0_aborts_and_stays_long(struct world *world, struct cpu_rank *rank)
{
    if (rank->rank == 0) {
        mok_pass_cpu.abort(rank->group);
    }
    while (mok_pass_cpu.state(rank->group, NULL) == MOK_OK) {
        mok_cpu_relax(1000);
    }
    rank_0_stays_long(world, rank);
}

/* A group that is dead when a rank begins to leave: the shorter limit, and by its name. */
static void destroy_of_a_dead_group_has_the_short_limit(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 60000, 300, rank_0_aborts_and_stays_long);
    for (int32_t r = 1; r < RANKS; r++) {
        assert_int_equal(world->destroyed[r], MOK_ERR_TIMEOUT);
        assert_non_null(strstr(world->why[r], "rank 0 did not leave the group within local_timeout_ms = 300;"));
        assert_in_range(world->destroy_ms[r], 300, 1900);
    }
    free_world(world);
}

static void rank_0_aborts_late(struct world *world, struct cpu_rank *rank)
{
    (void)world;
    if (rank->rank == 0) {
        sleep_ms(500);
        mok_pass_cpu.abort(rank->group);
        sleep_ms(300); /* who has waited for longer than the short limit still waits for this */
    }
}

/* A group that dies while ranks wait in destroy, later than the short limit: they wait on for the rank that is about to leave. */
static void destroy_outlasts_a_late_abort(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 60000, 100, rank_0_aborts_late);
    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(world->destroyed[r], MOK_OK);
    }
    free_world(world);
}

/* ---- queues ------------------------------------------------------------------------------------------------------------------ */

enum { AHEAD = 40 };

/* Builds and passes far ahead of the workers; the last answers must be those of one pass. */
static void run_far_ahead(struct world *world, struct cpu_rank *rank)
{
    const struct mok_ref_problem *problem = rank->problem;
    int64_t first = mok_ref_first_token(problem, rank->rank), hidden = problem->hidden;
    mok_status status = MOK_OK;
    for (int i = 0; i < AHEAD && status == MOK_OK; i++) {
        struct mok_pass_saved *saved = mok_pass_cpu.saved(rank->group, 0);
        struct mok_pass_forward forward = {
            .layer = &rank->layer,
            .schedule = rank->schedule,
            .saved = saved,
            .x = problem->x + first * hidden,
            .w = problem->w + first * problem->top_k,
            .y = world->outputs.y + first * hidden,
        };
        struct mok_pass_backward backward = {
            .layer = &rank->layer,
            .schedule = rank->schedule,
            .saved = saved,
            .dy = problem->dy + first * hidden,
            .w = problem->w + first * problem->top_k,
            .dx = world->outputs.dx + first * hidden,
            .dw = world->outputs.dw + first * problem->top_k,
            .dshared_w = world->outputs.dshared_w + first,
            .grads = rank->grads,
            .shared_grads = rank->shared_grads,
            .grad_mode = MOK_GRAD_OVERWRITE,
        };
        status = i % 3 == 0 ? build(rank) : MOK_OK;
        status = status == MOK_OK ? mok_pass_cpu.forward(rank->group, &forward) : status;
        status = status == MOK_OK ? mok_pass_cpu.backward(rank->group, &backward) : status;
        memset(&forward, 0xff, sizeof forward); /* arguments are copied */
        memset(&backward, 0xff, sizeof backward);
    }
    world->called[rank->rank] = status == MOK_OK ? mok_pass_cpu.wait(rank->group, NULL, -1) : status;
}

static void passes_may_be_queued_far_ahead(void **state)
{
    (void)state;
    struct cpu_run run = quick_run;
    run.delay_us = 200;
    struct world *world = run_world(&run, 60000, 60000, run_far_ahead);
    struct mok_ref_answer answer;
    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(world->called[r], MOK_OK);
        assert_int_equal(world->states[r].passes_done, 2 * AHEAD);
        assert_int_equal(world->destroyed[r], MOK_OK);
    }
    assert_int_equal(mok_ref_answer_make(&world->problem, &answer), MOK_OK);
    world->outputs.y_slots = world->outputs.dx_slots = NULL; /* not read back here */
    world->outputs.shared_y = world->outputs.shared_dx = NULL;
    assert_int_equal(count_wrong(&world->problem, &answer, &world->outputs), 0);
    mok_ref_answer_free(&answer);
    free_world(world);
}

static void wait_has_a_limit_of_its_own(struct world *world, struct cpu_rank *rank)
{
    mok_status status = build(rank);
    status = status == MOK_OK ? mok_pass_cpu.wait(rank->group, NULL, 60000) : status;
    if (rank->rank == 0) { /* the others come later */
        struct mok_pass_forward forward = {
            .layer = &rank->layer, .schedule = rank->schedule, .x = world->problem.x, .w = world->problem.w, .y = world->outputs.y};
        status = status == MOK_OK ? mok_pass_cpu.forward(rank->group, &forward) : status;
        world->called[0] = mok_pass_cpu.wait(rank->group, NULL, 20);
        pthread_barrier_wait(&world->opened);
        status = status == MOK_OK ? mok_pass_cpu.wait(rank->group, NULL, -1) : status;
    } else {
        pthread_barrier_wait(&world->opened);
        int64_t first = mok_ref_first_token(&world->problem, rank->rank);
        struct mok_pass_forward forward = {.layer = &rank->layer,
                                           .schedule = rank->schedule,
                                           .x = world->problem.x + first * world->problem.hidden,
                                           .w = world->problem.w + first * world->problem.top_k,
                                           .y = world->outputs.y + first * world->problem.hidden};
        status = status == MOK_OK ? mok_pass_cpu.forward(rank->group, &forward) : status;
        world->called[rank->rank] = mok_pass_cpu.wait(rank->group, NULL, -1);
    }
    rank->bad_ids = (uint64_t)status;
}

static void wait_can_be_repeated(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 60000, 60000, wait_has_a_limit_of_its_own);
    assert_int_equal(world->called[0], MOK_ERR_TIMEOUT);
    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(world->ranks[r].bad_ids, MOK_OK);
        assert_int_equal(world->states[r].fault.status, MOK_OK);
        assert_int_equal(world->states[r].passes_done, 1);
    }
    free_world(world);
}

/* ---- trace ------------------------------------------------------------------------------------------------------------------- */

static void trace_a_pass(struct world *world, struct cpu_rank *rank)
{
    static mok_event events[RANKS][4096];
    int64_t num = 0, dropped = 0;
    mok_status status = mok_pass_cpu.trace(rank->group, 2000);
    status = status == MOK_OK ? build(rank) : status;
    status = status == MOK_OK ? run_forward(rank) : status;
    status = status == MOK_OK ? run_backward(rank) : status;
    status = status == MOK_OK ? mok_pass_cpu.trace_take(rank->group, events[rank->rank], 4096, &num, &dropped) : status;
    int64_t found[MOK_EVENT_WAIT] = {0}, wrong = dropped;
    for (int64_t i = 0; i < num; i++) {
        const mok_event *event = &events[rank->rank][i];
        found[event->kind < MOK_EVENT_WAIT ? event->kind : 0]++;
        wrong += event->end_ns < event->begin_ns || event->pass < 1 || event->pass > 3;
        wrong += i > 0 && event->worker < event[-1].worker;
    }
    static const int expected[] = {MOK_EVENT_SCHEDULE,
                                   MOK_EVENT_PUBLISH,
                                   MOK_EVENT_PULL,
                                   MOK_EVENT_PUSH,
                                   MOK_EVENT_SUM,
                                   MOK_EVENT_TASK + MOK_TASK_GATE_UP,
                                   MOK_EVENT_TASK + MOK_TASK_SHARED_DOWN,
                                   MOK_EVENT_TASK + MOK_TASK_WGRAD};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        wrong += found[expected[i]] == 0;
    }
    rank->bad_ids = (uint64_t)wrong;
    world->called[rank->rank] = status == MOK_OK ? mok_pass_cpu.trace(rank->group, 0) : status;
}

static void trace_has_every_kind_of_work(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 60000, 60000, trace_a_pass);
    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(world->called[r], MOK_OK);
        assert_int_equal(world->ranks[r].bad_ids, 0);
    }
    free_world(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_rank_is_named_at_entry),     cmocka_unit_test(missing_rank_is_named_at_sched),
        cmocka_unit_test(standstill_ends_at_the_local_limit), cmocka_unit_test(progress_starts_the_clock_again),
        cmocka_unit_test(abort_reaches_every_rank),           cmocka_unit_test(destroy_does_not_wait_for_ever),
        cmocka_unit_test(passes_may_be_queued_far_ahead),     cmocka_unit_test(wait_can_be_repeated),
        cmocka_unit_test(trace_has_every_kind_of_work),       cmocka_unit_test(build_that_meets_a_pass_is_a_time_out),
        cmocka_unit_test(destroy_outlasts_a_late_abort),      cmocka_unit_test(destroy_of_a_dead_group_has_the_short_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
