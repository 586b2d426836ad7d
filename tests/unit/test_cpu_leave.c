/*
 * Ranks of the CPU backend that leave: how long destroy waits for them, what those are told that still wait for one, and that an ordinary end at
 * different times is none of this.
 */
#include <time.h>

#include "test_cpu_world.h"

/* ---- destroy ----------------------------------------------------------------------------------------------------------------- */

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
        assert_non_null(strstr(world->why[r], "its peer-visible memory, because rank 0 did not leave the group within peer_timeout_ms = 300 and may"));
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
        assert_non_null(strstr(world->why[r], "its peer-visible memory, because rank 0 did not leave the group within local_timeout_ms = 300 and may"));
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

/* ---- a rank that has left ---------------------------------------------------------------------------------------------------- */

/* Rank 1 goes; the others make one call more, which can never be whole. */
static void rank_1_leaves_before_a_build(struct world *world, struct cpu_rank *rank)
{
    if (rank->rank != 1) {
        world->called[rank->rank] = build(rank);
        world->called[rank->rank] = mok_pass_cpu.wait(rank->group, NULL, -1);
    }
}

static void rank_1_leaves_before_a_pass(struct world *world, struct cpu_rank *rank)
{
    world->called[rank->rank] = build(rank);
    world->called[rank->rank] = rank->rank != 1 ? run_forward(rank) : mok_pass_cpu.wait(rank->group, NULL, -1);
}

/* Those that wait hear of it at once, from the words of the rank itself, or from one that has; nobody waits for a limit. */
static void expect_left(const struct world *world, int32_t site, int32_t gone)
{
    int num_seen = 0;
    for (int32_t r = 0; r < RANKS; r++) {
        const mok_fault *fault = &world->states[r].fault;
        assert_int_equal(world->destroyed[r], MOK_OK);
        if (r == gone) {
            assert_int_equal(world->called[r], MOK_OK);
            continue;
        }
        assert_int_equal(world->called[r], MOK_ERR_ABORTED);
        assert_int_equal(fault->status, MOK_ERR_ABORTED);
        assert_true(world->script_ms[r] < 30000);
        if (fault->rank == gone) {
            num_seen++;
            assert_int_equal(fault->site, site);
            assert_int_equal(fault->index, gone);
            assert_int_equal(fault->expected, fault->seen + 1);
        } else {
            assert_int_equal(fault->rank, RANKS - gone - r);
            assert_int_equal(fault->site, MOK_SITE_NONE);
        }
    }
    assert_true(num_seen > 0);
}

static void rank_that_has_left_is_named_at_sched(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 60000, 60000, rank_1_leaves_before_a_build);
    expect_left(world, MOK_SITE_SCHED_BARRIER, 1);
    free_world(world);
}

static void rank_that_has_left_is_named_at_entry(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 60000, 60000, rank_1_leaves_before_a_pass);
    expect_left(world, MOK_SITE_ENTRY_BARRIER, 1);
    free_world(world);
}

/* One wait by hand at a barrier that rank 1 has not come to. When it left, its group was dead: who raised that is in its region alone. */
static void wait_for_one_that_left_dead(struct world *world, struct cpu_rank *rank)
{
    if (rank->rank != 0) {
        return;
    }
    const struct mok_region *region = &rank->group->setup.region;
    mok_cpu_word *left = (mok_cpu_word *)(rank->peer->base[0] + region->left), *aborted = (mok_cpu_word *)(rank->peer->base[1] + region->abort);
    while (atomic_load(left + 1) == 0) {
        mok_cpu_relax(1000);
    }
    atomic_store(aborted, 1 + 2);
    struct mok_cpu_worker waiter = {.group = rank->group};
    struct mok_cpu_waiting waiting = mok_cpu_wait_begin(&waiter, MOK_SITE_SCHED_BARRIER, 1, 1);
    world->called[0] = mok_cpu_wait_arrival(&waiting, MOK_CPU_SCHED, 1, 0) ? MOK_ERR_INTERNAL : MOK_OK;
}

static void who_left_a_dead_group_is_not_the_cause(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 60000, 60000, wait_for_one_that_left_dead);
    assert_int_equal(world->called[0], MOK_OK);
    assert_int_equal(world->states[0].fault.status, MOK_ERR_ABORTED);
    assert_int_equal(world->states[0].fault.rank, 2);
    free_world(world);
}

/* The same at EXIT: before this rank has compared what the ranks entered, that is left to the comparison. */
static void wait_at_exit_for_one_that_left(struct world *world, struct cpu_rank *rank)
{
    if (rank->rank != 0) {
        return;
    }
    mok_cpu_word *left = (mok_cpu_word *)(rank->peer->base[0] + rank->group->setup.region.left);
    while (atomic_load(left + 1) == 0) {
        mok_cpu_relax(1000);
    }
    struct mok_cpu_worker waiter = {.group = rank->group};
    struct mok_cpu_waiting waiting = mok_cpu_wait_begin(&waiter, MOK_SITE_EXIT_BARRIER, 1, 1);
    world->called[0] = mok_cpu_wait_arrival(&waiting, MOK_CPU_EXIT, 1, 0) ? MOK_OK : MOK_ERR_INTERNAL;
    world->called[1] = mok_pass_cpu.state(rank->group, NULL);
    atomic_store(&rank->group->pass.is_entered, 1);
    world->called[2] = mok_cpu_wait_arrival(&waiting, MOK_CPU_EXIT, 1, 0) ? MOK_ERR_INTERNAL : MOK_OK;
}

static void who_left_after_entry_waits_for_the_comparison(void **state)
{
    (void)state;
    struct world *world = run_world(&quick_run, 60000, 60000, wait_at_exit_for_one_that_left);
    for (int call = 0; call < 3; call++) {
        assert_int_equal(world->called[call], MOK_OK);
    }
    assert_int_equal(world->states[0].fault.site, MOK_SITE_EXIT_BARRIER);
    assert_int_equal(world->states[0].fault.rank, 1);
    free_world(world);
}

/* The legal end: ranks that are through leave while the others still work, which sleep before each piece of it. */
static void end_at_different_times(struct world *world, struct cpu_rank *rank)
{
    mok_cpu_set_delay(rank->group, rank->rank == 1 ? 0 : 20000);
    mok_status status = build(rank);
    status = status == MOK_OK ? run_forward(rank) : status;
    world->called[rank->rank] = status == MOK_OK ? run_backward(rank) : status;
}

static void ranks_may_leave_while_others_finish(void **state)
{
    (void)state;
    for (int turn = 0; turn < 5; turn++) {
        struct world *world = run_world(&quick_run, 60000, 60000, end_at_different_times);
        for (int32_t r = 0; r < RANKS; r++) {
            assert_int_equal(world->called[r], MOK_OK);
            assert_int_equal(world->states[r].fault.status, MOK_OK);
            assert_int_equal(world->states[r].passes_done, 2);
            assert_int_equal(world->destroyed[r], MOK_OK);
        }
        free_world(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(destroy_does_not_wait_for_ever),
        cmocka_unit_test(destroy_outlasts_a_late_abort),
        cmocka_unit_test(destroy_of_a_dead_group_has_the_short_limit),
        cmocka_unit_test(rank_that_has_left_is_named_at_sched),
        cmocka_unit_test(rank_that_has_left_is_named_at_entry),
        cmocka_unit_test(who_left_a_dead_group_is_not_the_cause),
        cmocka_unit_test(ranks_may_leave_while_others_finish),
        cmocka_unit_test(who_left_after_entry_waits_for_the_comparison),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
