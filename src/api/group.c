/*
 * Calls on a group that is alive: status, wait, abort, saved objects, trace.
 *
 * status, wait and abort take no lock: a thread that hangs in another call can be watched and ended. A group that has failed says so in
 * every later call, with the sentence that was made when it was first seen.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/check.h"
#include "api/names.h"
#include "api/object.h"
#include "base/status.h"
#include "pass/site.h"

static void describe_entry(uint64_t tag, char *text, size_t size)
{
    struct mok_entry entry = mok_plan_entry_of(tag);
    const char *kind = entry.backward ? "backward" : "forward";
    if (entry.saved < 0) {
        snprintf(text, size, "%s without a saved object on build %" PRIu32, kind, entry.build);
    } else {
        snprintf(text, size, "%s with saved object %" PRId32 " on build %" PRIu32, kind, entry.saved, entry.build);
    }
}

/* The ranks entered different passes: expected is this rank's tag, seen that of rank `index`. */
static void describe_disagreement(const mok_fault *fault, char *text, size_t size)
{
    char here[96], there[96];
    describe_entry((uint64_t)fault->expected, here, sizeof here);
    describe_entry((uint64_t)fault->seen, there, sizeof there);
    snprintf(text, size,
             "rank %" PRId32 ": the group is dead (MOK_ERR_DISAGREE), destroy it: this rank runs %s of a schedule, rank %" PRId64
             " runs %s: pass, saved object and schedule must be the same on all ranks",
             fault->rank, here, fault->index, there);
}

static int is_between_ranks(int32_t site)
{
    return site == MOK_SITE_SCHED_BARRIER || site == MOK_SITE_ENTRY_BARRIER || site == MOK_SITE_EXIT_BARRIER || site == MOK_SITE_LEFT;
}

/* A wait was longer than its limit: which one, and how long it is. The record does not say whether ENTRY was complete. */
static void describe_limit(const mok_group *group, int32_t site, char *text, size_t size)
{
    int64_t peer_ms = group->setup.peer_timeout_ns / 1000000, local_ms = group->setup.local_timeout_ns / 1000000;
    if (is_between_ranks(site)) {
        snprintf(text, size, "a wait was longer than its limit, peer_timeout_ms = %" PRId64, peer_ms);
    } else if (group->ops->backend == MOK_BACKEND_CPU) {
        snprintf(text, size, "a wait was longer than its limit, local_timeout_ms = %" PRId64 " (and peer_timeout_ms = %" PRId64
                 " more before all ranks have entered a pass)", local_ms, peer_ms);
    } else {
        snprintf(text, size, "a wait was longer than its limit, local_timeout_ms = %" PRId64, local_ms);
    }
}

/* Who ended the group. A wait for a rank that has left names it twice. */
static void describe_abort(const mok_group *group, const mok_fault *fault, char *text, size_t size)
{
    if (fault->rank == group->setup.dims.rank) {
        snprintf(text, size, "mok_group_abort was called on this rank");
    } else if (is_between_ranks(fault->site) && fault->index == fault->rank) {
        snprintf(text, size, "rank %" PRId32 " has left the group", fault->rank);
    } else {
        snprintf(text, size, "rank %" PRId32 " gave up first, or aborted the group: its message says why", fault->rank);
    }
}

/* The sentence of a dead group, from its fault record. */
static void describe_fault(const mok_group *group, mok_status status, const mok_fault *fault, char *text, size_t size)
{
    if (status == MOK_ERR_DISAGREE) {
        describe_disagreement(fault, text, size);
        return;
    }
    int32_t rank = group->setup.dims.rank;
    char why[160];
    if (status == MOK_ERR_TIMEOUT) {
        describe_limit(group, fault->site, why, sizeof why);
    } else if (status == MOK_ERR_ABORTED) {
        describe_abort(group, fault, why, sizeof why);
    } else {
        snprintf(why, sizeof why, "the device or the library reported an error");
    }
    if (fault->site == MOK_SITE_NONE) {
        snprintf(text, size, "rank %" PRId32 ": the group is dead (%s), destroy it: %s", rank, mok_status_name(status), why);
    } else {
        snprintf(text, size, "rank %" PRId32 ": the group is dead (%s), destroy it: %s; worker %" PRId32 " waited for %s of %s %" PRId64
                 ", expected %" PRId64 ", saw %" PRId64,
                 rank, mok_status_name(status), why, fault->block, mok_site_name(fault->site), mok_api_site_index_name(fault->site),
                 fault->index, fault->expected, fault->seen);
    }
}

mok_status mok_api_check_process(const mok_group *group)
{
    pid_t here = getpid();
    if (here != group->process) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "group belongs to process %ld, this is process %ld: must be a group that this process made, a child "
                             "of fork has no part in its parent's", (long)group->process, (long)here);
    }
    return MOK_OK;
}

mok_status mok_api_group_alive(mok_group *group, mok_group_state *state_out)
{
    memset(state_out, 0, sizeof *state_out);
    state_out->struct_size = sizeof *state_out;
    MOK_TRY(mok_api_check_process(group));
    mok_status status = group->ops->state(group->inner, state_out);
    if (status == MOK_OK) {
        return MOK_OK;
    }
    pthread_mutex_lock(&group->fault_lock);
    if (group->fault_status == MOK_OK) {
        group->fault_status = status;
        describe_fault(group, status, &state_out->fault, group->fault_text, sizeof group->fault_text);
        mok_base_fail(status, "%s", group->fault_text);
    }
    status = mok_base_repeat(group->fault_status, group->fault_text);
    pthread_mutex_unlock(&group->fault_lock);
    return status;
}

mok_status mok_api_end_call(mok_group *group, mok_status status)
{
    mok_group_state state;
    if (status == MOK_ERR_TIMEOUT || status == MOK_ERR_ABORTED || status == MOK_ERR_DISAGREE) {
        MOK_TRY(mok_api_group_alive(group, &state));
    }
    return status;
}

mok_status mok_group_status(mok_group *group, mok_group_state *state_out)
{
    MOK_TRY(mok_api_check_given("group", group));
    if (state_out != NULL) {
        MOK_TRY(mok_api_check_struct("state_out", state_out, sizeof *state_out));
    }
    mok_group_state state;
    mok_status status = mok_api_group_alive(group, &state);
    if (state_out != NULL) {
        *state_out = state;
    }
    return status;
}

mok_status mok_group_wait(mok_group *group, mok_stream stream, int64_t timeout_ms)
{
    MOK_TRY(mok_api_check_given("group", group));
    MOK_TRY(mok_api_check_stream(group->ops, stream));
    if (timeout_ms < -1) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "timeout_ms is %" PRId64 ": must be 0 or more, or -1 for no limit of its own", timeout_ms);
    }
    MOK_TRY(mok_api_check_process(group));
    mok_status waited = group->ops->wait(group->inner, stream, timeout_ms);
    mok_group_state state;
    MOK_TRY(mok_api_group_alive(group, &state));
    return waited;
}

mok_status mok_group_abort(mok_group *group)
{
    MOK_TRY(mok_api_check_given("group", group));
    MOK_TRY(mok_api_check_process(group)); /* the words of peers are shared with the child */
    group->ops->abort(group->inner);
    return MOK_OK;
}

mok_status mok_group_saved(mok_group *group, int32_t idx, mok_saved **saved_out)
{
    MOK_TRY(mok_api_check_given("group", group));
    MOK_TRY(mok_api_check_given("saved_out", saved_out));
    MOK_TRY(mok_api_check_process(group));
    if (group->setup.num_saved == 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "idx is %" PRId32 ": the group has no saved objects, it was created with num_saved = 0", idx);
    }
    if (idx < 0 || idx >= group->setup.num_saved) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "idx is %" PRId32 ": must be from 0 to %" PRId32 ", the group has num_saved = %" PRId32, idx,
                             group->setup.num_saved - 1, group->setup.num_saved);
    }
    *saved_out = &group->saved[idx];
    return MOK_OK;
}

mok_status mok_saved_input(mok_saved *saved, void **x_out)
{
    MOK_TRY(mok_api_check_given("saved", saved));
    MOK_TRY(mok_api_check_given("x_out", x_out));
    MOK_TRY(mok_api_check_process(saved->group));
    *x_out = saved->group->ops->saved_input(saved->inner);
    return MOK_OK;
}

mok_status mok_saved_release(mok_saved *saved)
{
    MOK_TRY(mok_api_check_given("saved", saved));
    MOK_TRY(mok_api_check_process(saved->group));
    pthread_mutex_lock(&saved->group->lock);
    saved->is_waiting = 0;
    pthread_mutex_unlock(&saved->group->lock);
    return MOK_OK;
}

mok_status mok_group_trace(mok_group *group, int64_t max_events)
{
    MOK_TRY(mok_api_check_given("group", group));
    if (max_events < 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "max_events is %" PRId64 ": must be 0 (stop) or more", max_events);
    }
    mok_group_state state;
    MOK_TRY(mok_api_group_alive(group, &state));
    pthread_mutex_lock(&group->lock);
    mok_status status = group->ops->trace(group->inner, max_events);
    pthread_mutex_unlock(&group->lock);
    return status;
}

mok_status mok_group_trace_take(mok_group *group, mok_event *events_out, int64_t capacity, int64_t *num_out, int64_t *dropped_out)
{
    MOK_TRY(mok_api_check_given("group", group));
    MOK_TRY(mok_api_check_given("num_out", num_out));
    if (capacity < 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "capacity is %" PRId64 ": must be 0 or more", capacity);
    }
    MOK_TRY(mok_api_check_process(group));
    if (events_out == NULL && capacity > 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "events_out is NULL: may be NULL only when capacity is 0, and it is %" PRId64, capacity);
    }
    pthread_mutex_lock(&group->lock);
    mok_status status = group->ops->trace_take(group->inner, events_out, capacity, num_out, dropped_out);
    pthread_mutex_unlock(&group->lock);
    return status;
}
