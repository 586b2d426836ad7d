/*
 * Bounded waits (protocol.md section 6). A wait that is in vain polls the abort word, compares its clock with its limit, and gives the core
 * away.
 *
 * Limits. ENTRY, EXIT and SCHED barriers, and everything until this rank has seen ENTRY complete: peer_timeout. In between: local_timeout
 * of standstill. Every clock starts again when a task or copy of this rank ends. A wait that is not a barrier but stands under peer_timeout
 * gets local_timeout on top, so that the record names the barrier and not the worker that waited behind it.
 *
 * An expired wait writes the fault record, then raises the abort word of every rank; who sees the own abort word raised gives up too.
 */
#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "cpu/cpu.h"

enum {
    SPINS = 64, /* looks that only yield */
    FIRST_SLEEP_NS = 20000,
    LONGEST_SLEEP_NS = 200000,  /* what a wait may add to a pass */
    LONGEST_POLL_NS = 100000000 /* a poll that took longer was a process that was stopped: it counts as this */
};

void mok_cpu_relax(uint32_t polls)
{
    if (polls < SPINS) {
        sched_yield();
        return;
    }
    int64_t sleep_ns = mok_min64(FIRST_SLEEP_NS * (int64_t)(polls - SPINS + 1), LONGEST_SLEEP_NS);
    struct timespec pause = {0, sleep_ns};
    nanosleep(&pause, NULL);
}

/* ---- abort and fault record ------------------------------------------------------------------------------------------------ */

static mok_cpu_word *abort_word(const struct mok_pass_group *group, int32_t rank)
{
    return (mok_cpu_word *)(group->peer->base[rank] + group->setup.region.abort);
}

int mok_cpu_is_aborted(const struct mok_pass_group *group)
{
    return atomic_load_explicit(abort_word(group, group->setup.dims.rank), memory_order_acquire) != 0;
}

/* The first raiser stays in the word. */
static void raise_on(const struct mok_pass_group *group, int32_t rank)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(abort_word(group, rank), &none, 1 + (uint32_t)group->setup.dims.rank);
}

void mok_cpu_abort_all(struct mok_pass_group *group)
{
    for (int32_t rank = 0; rank < group->setup.dims.num_ranks; rank++) {
        raise_on(group, rank);
    }
}

void mok_cpu_record(struct mok_pass_group *group, const mok_fault *fault, int is_for_all)
{
    pthread_mutex_lock(&group->fault_lock);
    if (!mok_cpu_is_aborted(group)) {
        group->fault = *fault;
        if (is_for_all) {
            mok_cpu_abort_all(group);
        } else {
            raise_on(group, group->setup.dims.rank);
        }
    }
    pthread_mutex_unlock(&group->fault_lock);
}

int mok_cpu_hear_abort(struct mok_pass_group *group, int32_t rank)
{
    uint32_t none = 0, word = atomic_load(abort_word(group, rank));
    if (word != 0) {
        atomic_compare_exchange_strong(abort_word(group, group->setup.dims.rank), &none, word);
    }
    return word != 0;
}

static void expire(const struct mok_cpu_waiting *wait, int64_t seen)
{
    struct mok_pass_group *group = wait->worker->group;
    mok_fault fault = {MOK_ERR_TIMEOUT, wait->site, group->setup.dims.rank, wait->worker->index, wait->index, wait->expected, seen};
    mok_cpu_record(group, &fault, 1);
}

mok_status mok_cpu_status(struct mok_pass_group *group, mok_fault *fault_out)
{
    pthread_mutex_lock(&group->fault_lock);
    mok_fault fault = group->fault;
    if (fault.status == MOK_OK && mok_cpu_is_aborted(group)) {
        fault.status = MOK_ERR_ABORTED;
        fault.rank = (int32_t)atomic_load(abort_word(group, group->setup.dims.rank)) - 1; /* the raiser */
    }
    pthread_mutex_unlock(&group->fault_lock);
    if (fault_out != NULL) {
        *fault_out = fault;
    }
    return (mok_status)fault.status;
}

/* ---- one wait ---------------------------------------------------------------------------------------------------------------- */

void mok_cpu_progress(struct mok_pass_group *group) { atomic_fetch_add_explicit(&group->progress, 1, memory_order_relaxed); }

static int is_barrier(int32_t site)
{
    return site == MOK_SITE_SCHED_BARRIER || site == MOK_SITE_ENTRY_BARRIER || site == MOK_SITE_EXIT_BARRIER;
}

static int64_t limit_of(const struct mok_cpu_waiting *wait)
{
    const struct mok_pass_group *group = wait->worker->group;
    const struct mok_pass_setup *setup = &group->setup;
    if (is_barrier(wait->site)) {
        return setup->peer_timeout_ns;
    }
    if (atomic_load_explicit(&group->pass.is_entered, memory_order_relaxed)) {
        return setup->local_timeout_ns;
    }
    return setup->peer_timeout_ns + setup->local_timeout_ns;
}

struct mok_cpu_waiting mok_cpu_wait_begin(struct mok_cpu_worker *worker, int32_t site, int64_t index, int64_t expected)
{
    int64_t now = mok_trace_now_ns();
    struct mok_cpu_waiting wait = {worker, site, index, expected, 0, atomic_load_explicit(&worker->group->progress, memory_order_relaxed),
                                   now,    now,  0};
    return wait;
}

int mok_cpu_wait_again(struct mok_cpu_waiting *wait, int64_t seen)
{
    struct mok_pass_group *group = wait->worker->group;
    if (mok_cpu_is_aborted(group)) {
        return 0;
    }
    int64_t now = mok_trace_now_ns();
    uint32_t progress = atomic_load_explicit(&group->progress, memory_order_relaxed);
    wait->waited_ns = progress == wait->progress ? wait->waited_ns + mok_min64(now - wait->last_ns, LONGEST_POLL_NS) : 0;
    wait->progress = progress;
    wait->last_ns = now;
    if (wait->waited_ns > limit_of(wait)) {
        expire(wait, seen);
        return 0;
    }
    mok_cpu_relax(wait->polls++);
    return 1;
}

void mok_cpu_wait_end(const struct mok_cpu_waiting *wait)
{
    struct mok_cpu_worker *worker = wait->worker;
    if (worker->group->trace != NULL) {
        mok_trace_add(worker->group->trace, worker->index, MOK_EVENT_WAIT + wait->site, wait->index, worker->job->ticket, wait->begin_ns,
                      mok_trace_now_ns());
    }
}

/* ---- counters ---------------------------------------------------------------------------------------------------------------- */

mok_cpu_word *mok_cpu_counter(const struct mok_pass_group *group, struct mok_wait wait)
{
    const struct mok_limits *limits = &group->limits[group->pass.walk.backward];
    return group->counters + mok_plan_counter_base(limits, wait.counter) + wait.index;
}

static uint32_t count_of(const struct mok_pass_group *group, struct mok_wait wait)
{
    return atomic_load_explicit(mok_cpu_counter(group, wait), memory_order_acquire);
}

int mok_cpu_is_done(const struct mok_pass_group *group, struct mok_wait wait) { return count_of(group, wait) >= wait.target; }

int mok_cpu_wait_for(struct mok_cpu_worker *worker, struct mok_wait wait)
{
    const struct mok_pass_group *group = worker->group;
    uint32_t seen = count_of(group, wait);
    if (seen >= wait.target) {
        return 1;
    }
    struct mok_cpu_waiting waiting = mok_cpu_wait_begin(worker, mok_site_of_counter(wait.counter), wait.index, wait.target);
    while (seen < wait.target) {
        if (!mok_cpu_wait_again(&waiting, seen)) {
            return 0;
        }
        seen = count_of(group, wait);
    }
    mok_cpu_wait_end(&waiting);
    return 1;
}

void mok_cpu_signal(struct mok_pass_group *group, struct mok_wait signal)
{
    atomic_fetch_add_explicit(mok_cpu_counter(group, signal), 1, memory_order_acq_rel);
}

/* ---- meeting of a rank's workers ------------------------------------------------------------------------------------------- */

int mok_cpu_meet(struct mok_cpu_worker *worker)
{
    struct mok_pass_group *group = worker->group;
    uint32_t meeting = ++worker->meets;
    uint32_t all = meeting * (uint32_t)group->num_workers;
    if (atomic_fetch_add_explicit(&group->meet_arrived, 1, memory_order_acq_rel) + 1 == all) {
        atomic_store_explicit(&group->meet_open, meeting, memory_order_release);
        return !mok_cpu_is_aborted(group);
    }
    uint32_t open = atomic_load_explicit(&group->meet_open, memory_order_acquire);
    struct mok_cpu_waiting waiting = mok_cpu_wait_begin(worker, MOK_SITE_TEAM, 0, meeting);
    while ((int32_t)(open - meeting) < 0) {
        if (!mok_cpu_wait_again(&waiting, open)) {
            return 0;
        }
        open = atomic_load_explicit(&group->meet_open, memory_order_acquire);
    }
    mok_cpu_wait_end(&waiting);
    return 1;
}
