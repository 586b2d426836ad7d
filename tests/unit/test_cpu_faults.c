/*
 * Waits of the CPU backend that end: a rank that does not come, stands still, or aborts; and queues that run far ahead.
 * Deadlines here are short; each check allows for a slow machine by asking for the right record, not for the right moment.
 */
#include "test_cpu_world.h"

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

/* A rank that was told knows by whom: one whose own wait expired. */
static void expect_told_by_one_that_expired(const struct world *world, int32_t rank)
{
    int32_t raiser = world->states[rank].fault.rank;
    assert_in_range(raiser, 0, RANKS - 1);
    assert_int_not_equal(raiser, rank);
    assert_int_equal(world->states[raiser].fault.status, MOK_ERR_TIMEOUT);
    assert_int_equal(world->states[rank].fault.site, MOK_SITE_NONE);
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
            expect_told_by_one_that_expired(world, r);
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
        assert_int_equal(world->states[r].fault.rank, 0);
        assert_int_equal(world->destroyed[r], MOK_OK);
        assert_true(world->script_ms[r] < 30000);
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
        cmocka_unit_test(missing_rank_is_named_at_entry),
        cmocka_unit_test(missing_rank_is_named_at_sched),
        cmocka_unit_test(standstill_ends_at_the_local_limit),
        cmocka_unit_test(progress_starts_the_clock_again),
        cmocka_unit_test(abort_reaches_every_rank),
        cmocka_unit_test(passes_may_be_queued_far_ahead),
        cmocka_unit_test(wait_can_be_repeated),
        cmocka_unit_test(trace_has_every_kind_of_work),
        cmocka_unit_test(build_that_meets_a_pass_is_a_time_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
