/*
 * Barriers between ranks: one word per (barrier, source rank) in every rank's region, written by the source alone, only growing, compared
 * by signed difference. The epoch is this rank's own count of schedules or passes (protocol.md section 1).
 */
#include "base/status.h"
#include "cpu/cpu.h"

static int64_t barrier_off(const struct mok_region *region, int32_t barrier)
{
    switch (barrier) {
    case MOK_CPU_SCHED: return region->sched;
    case MOK_CPU_ENTRY: return region->entry;
    default: return region->exit;
    }
}

static mok_cpu_word *words_of(struct mok_peer *peer, int32_t rank, int64_t offset) { return (mok_cpu_word *)(peer->base[rank] + offset); }

int32_t mok_cpu_barrier_site(int32_t barrier)
{
    switch (barrier) {
    case MOK_CPU_SCHED: return MOK_SITE_SCHED_BARRIER;
    case MOK_CPU_ENTRY: return MOK_SITE_ENTRY_BARRIER;
    default: return MOK_SITE_EXIT_BARRIER;
    }
}

void mok_cpu_arrive(struct mok_pass_group *group, int32_t barrier, uint32_t epoch)
{
    const struct mok_dims *dims = &group->setup.dims;
    int64_t offset = barrier_off(&group->setup.region, barrier);
    for (int32_t i = 1; i <= dims->num_ranks; i++) {
        int32_t rank = (dims->rank + i) % dims->num_ranks;
        atomic_store_explicit(words_of(group->peer, rank, offset) + dims->rank, epoch, memory_order_release);
    }
}

static _Atomic uint64_t *tags_of(const struct mok_pass_group *group, int32_t rank)
{
    return (_Atomic uint64_t *)(group->peer->base[rank] + group->setup.region.entry_tag);
}

/* The tag comes before the word: who has seen the word sees it. */
void mok_cpu_enter(struct mok_pass_group *group)
{
    const struct mok_dims *dims = &group->setup.dims;
    for (int32_t rank = 0; rank < dims->num_ranks; rank++) {
        atomic_store_explicit(tags_of(group, rank) + dims->rank, group->pass.tag, memory_order_relaxed);
    }
    mok_cpu_arrive(group, MOK_CPU_ENTRY, group->pass.epoch);
}

/*
 * Where two tags differ, each rank sees one that differs from its own. So each records that itself and raises its own abort word alone: a
 * rank that is slow would else only hear that a peer gave up.
 */
int mok_cpu_check_entry(struct mok_cpu_worker *worker)
{
    struct mok_pass_group *group = worker->group;
    const struct mok_dims *dims = &group->setup.dims;
    for (int32_t source = 0; source < dims->num_ranks; source++) {
        uint64_t tag = atomic_load_explicit(tags_of(group, dims->rank) + source, memory_order_relaxed);
        if (tag != group->pass.tag) {
            mok_fault fault = {MOK_ERR_DISAGREE, MOK_SITE_ENTRY_BARRIER,   dims->rank,  worker->index,
                               source,           (int64_t)group->pass.tag, (int64_t)tag};
            mok_cpu_record(group, &fault, 0);
            return 0;
        }
    }
    return 1;
}

int32_t mok_cpu_missing_rank(const struct mok_pass_group *group, int32_t barrier, uint32_t epoch, uint32_t *seen_out)
{
    const struct mok_dims *dims = &group->setup.dims;
    mok_cpu_word *words = words_of(group->peer, dims->rank, barrier_off(&group->setup.region, barrier));
    for (int32_t source = 0; source < dims->num_ranks; source++) {
        *seen_out = atomic_load_explicit(words + source, memory_order_acquire);
        if ((int32_t)(*seen_out - epoch) < 0) {
            return source;
        }
    }
    return -1;
}

/* A rank stores its `left` word behind all its arrivals: who has left and still has not arrived never will. Before ENTRY is compared, a
 * rank that is missing at EXIT may have left because the passes differ, which this rank has yet to see for itself. */
static int will_never_come(const struct mok_pass_group *group, int32_t barrier, uint32_t epoch, int32_t source)
{
    if (barrier == MOK_CPU_EXIT && !atomic_load_explicit(&group->pass.is_entered, memory_order_relaxed)) {
        return 0;
    }
    const struct mok_region *region = &group->setup.region;
    int32_t own = group->setup.dims.rank;
    mok_cpu_word *words = words_of(group->peer, own, barrier_off(region, barrier));
    return atomic_load_explicit(words_of(group->peer, own, region->left) + source, memory_order_acquire) != 0 &&
           (int32_t)(atomic_load_explicit(words + source, memory_order_acquire) - epoch) < 0;
}

int mok_cpu_wait_arrival(struct mok_cpu_waiting *wait, int32_t barrier, int32_t missing, uint32_t seen)
{
    struct mok_pass_group *group = wait->worker->group;
    wait->index = missing;
    if (will_never_come(group, barrier, (uint32_t)wait->expected, missing) && !mok_cpu_hear_abort(group, missing)) {
        mok_fault fault = {MOK_ERR_ABORTED, wait->site, missing, wait->worker->index, missing, wait->expected, seen};
        mok_cpu_record(group, &fault, 1);
        return 0;
    }
    return mok_cpu_wait_again(wait, seen);
}

int mok_cpu_wait_barrier(struct mok_cpu_worker *worker, int32_t barrier, uint32_t epoch)
{
    struct mok_pass_group *group = worker->group;
    uint32_t seen;
    int32_t missing = mok_cpu_missing_rank(group, barrier, epoch, &seen);
    if (missing < 0) {
        return 1;
    }
    struct mok_cpu_waiting waiting = mok_cpu_wait_begin(worker, mok_cpu_barrier_site(barrier), missing, epoch);
    while (missing >= 0) {
        if (!mok_cpu_wait_arrival(&waiting, barrier, missing, seen)) {
            return 0;
        }
        missing = mok_cpu_missing_rank(group, barrier, epoch, &seen);
    }
    mok_cpu_wait_end(&waiting);
    return 1;
}

void mok_cpu_say_left(struct mok_peer *peer, const struct mok_region *region)
{
    for (int32_t rank = 0; rank < peer->num_ranks; rank++) {
        atomic_store_explicit(words_of(peer, rank, region->left) + peer->rank, 1, memory_order_release);
    }
}

mok_status mok_cpu_wait_left(struct mok_pass_group *group)
{
    const struct mok_pass_setup *setup = &group->setup;
    mok_cpu_word *words = words_of(group->peer, setup->dims.rank, setup->region.left);
    const struct mok_leave_limit limit = mok_pass_leave_limit(setup, mok_cpu_is_aborted(group));
    int64_t begin = mok_trace_now_ns();
    uint32_t polls = 0;
    for (int32_t rank = 0; rank < setup->dims.num_ranks;) {
        if (atomic_load_explicit(words + rank, memory_order_acquire) != 0) {
            rank++;
            continue;
        }
        if (mok_trace_now_ns() - begin > limit.ns) {
            return mok_base_fail(MOK_ERR_TIMEOUT,
                                 "rank %d keeps its peer-visible memory, because rank %d did not leave the group within %s = %lld and may still "
                                 "use it",
                                 setup->dims.rank, rank, limit.setting, (long long)(limit.ns / 1000000));
        }
        mok_cpu_relax(polls++);
    }
    return MOK_OK;
}
