/*
 * Building a schedule (plan/rows.h has the row order, plan/region.h the layout).
 *
 * In: ids [T, K] of this rank. Out: the arrays of mok_schedule_view. Phases:
 *
 *   worker 0: copy ids, count, sort, publish half n%2, arrive at SCHED(n)
 *   all:      wait for SCHED(n)
 *   worker 0: rows of each local expert from the published offsets of all ranks | meet | all: place the rows of their experts | meet
 *
 * An owner reads the offsets of its own experts and the parts of the lists that belong to them: O(T*K) work per rank.
 */
#include <string.h>

#include "cpu/cpu.h"

/* Published offsets and list of a rank, of schedule n. */
static int32_t *offsets_of(const struct mok_pass_group *group, int32_t rank, uint32_t epoch)
{
    return (int32_t *)(group->peer->base[rank] + group->setup.region.offset[epoch % 2]);
}

static int32_t *list_of(const struct mok_pass_group *group, int32_t rank, uint32_t epoch)
{
    return (int32_t *)(group->peer->base[rank] + group->setup.region.list[epoch % 2]);
}

/* Stable counting sort of own routes by expert. Bad ids are counted and become -1 in the copy. */
static void sort_own(struct mok_pass_group *group, struct mok_cpu_job *job, uint32_t epoch)
{
    struct mok_pass_schedule *schedule = job->schedule;
    int32_t num_experts = group->setup.dims.num_experts;
    int64_t routes = job->build.num_tokens * group->setup.dims.top_k;
    int32_t *offset = offsets_of(group, group->setup.dims.rank, epoch), *list = list_of(group, group->setup.dims.rank, epoch);
    int32_t bad = 0;
    memset(offset, 0, sizeof *offset * ((size_t)num_experts + 1));
    for (int64_t i = 0; i < routes; i++) {
        int32_t id = job->build.ids[i];
        bad += mok_plan_is_bad_id(id, num_experts);
        id = mok_plan_is_routed(id, num_experts) ? id : -1;
        schedule->ids[i] = id;
        if (id >= 0) {
            offset[id + 1]++;
        }
    }
    for (int32_t e = 0; e < num_experts; e++) {
        offset[e + 1] += offset[e];
    }
    offset[num_experts + 1] = bad;
    memcpy(schedule->cursor, offset, sizeof *offset * (size_t)num_experts);
    for (int64_t i = 0; i < routes; i++) {
        if (schedule->ids[i] >= 0) {
            list[schedule->cursor[schedule->ids[i]]++] = (int32_t)i;
        }
    }
    schedule->head.num_tokens = (int32_t)job->build.num_tokens;
}

/* Rows, places and tiles of the local experts. */
static void count_rows(struct mok_pass_group *group, struct mok_pass_schedule *schedule, uint32_t epoch)
{
    const struct mok_pass_setup *setup = &group->setup;
    int32_t first = 0, num_active = 0;
    uint32_t bad = 0;
    memset(schedule->expert_rows, 0, sizeof *schedule->expert_rows * (size_t)setup->num_local);
    for (int32_t source = 0; source < setup->dims.num_ranks; source++) {
        const int32_t *offset = offsets_of(group, source, epoch);
        for (int32_t e = 0; e < setup->num_local; e++) {
            schedule->expert_rows[e] += offset[setup->first_expert + e + 1] - offset[setup->first_expert + e];
        }
        bad += (uint32_t)offset[setup->dims.num_experts + 1];
    }
    for (int32_t e = 0; e < setup->num_local; e++) {
        schedule->expert_first[e] = first;
        int32_t end = first + (int32_t)mok_round_up(schedule->expert_rows[e], MOK_TILE_ROWS);
        for (int32_t tile = first / MOK_TILE_ROWS; tile < end / MOK_TILE_ROWS; tile++) {
            schedule->tile_expert[tile] = e;
        }
        first = end;
        if (schedule->expert_rows[e] > 0) {
            schedule->active[num_active++] = e;
        }
    }
    schedule->expert_first[setup->num_local] = first;
    int32_t behind = num_active;
    for (int32_t e = 0; e < setup->num_local; e++) {
        if (schedule->expert_rows[e] == 0) {
            schedule->active[behind++] = e;
        }
    }
    for (int32_t i = 0; i < setup->num_local; i++) {
        schedule->ordinal[schedule->active[i]] = i;
    }
    schedule->head.num_rows = first;
    schedule->head.num_tiles = first / MOK_TILE_ROWS;
    schedule->head.num_active = num_active;
    schedule->head.bad_ids = bad;
}

/*
 * Rows of one expert: rounds over the sources, as mok_plan_row_in_expert says; walking the rounds gives every row its place in O(1) each.
 * A source that has run out is left out of the later rounds.
 */
static void place_rows(struct mok_pass_group *group, struct mok_pass_schedule *schedule, int32_t expert, uint32_t epoch)
{
    const struct mok_dims *dims = &group->setup.dims;
    int32_t global = group->setup.first_expert + expert;
    const int32_t *part[MOK_MAX_RANKS];
    int32_t count[MOK_MAX_RANKS], rank[MOK_MAX_RANKS];
    int32_t num_left = 0;
    for (int32_t turn = 0; turn < dims->num_ranks; turn++) {
        int32_t source = mok_plan_source_at(dims->num_ranks, dims->rank, turn);
        const int32_t *offset = offsets_of(group, source, epoch);
        if (offset[global + 1] > offset[global]) {
            rank[num_left] = source;
            part[num_left] = list_of(group, source, epoch) + offset[global];
            count[num_left++] = offset[global + 1] - offset[global];
        }
    }
    struct mok_route *route = schedule->routes + schedule->expert_first[expert];
    struct mok_route *end = schedule->routes + schedule->expert_first[expert + 1];
    for (int32_t round = 0; num_left > 0; round++) {
        int32_t num_next = 0;
        for (int32_t i = 0; i < num_left; i++) {
            route->rank = rank[i];
            route->slot = part[i][round];
            route++;
            if (count[i] > round + 1) {
                rank[num_next] = rank[i];
                part[num_next] = part[i];
                count[num_next++] = count[i];
            }
        }
        num_left = num_next;
    }
    for (; route < end; route++) {
        route->rank = -1;
        route->slot = -1;
    }
}

int mok_cpu_build(struct mok_cpu_worker *worker, struct mok_cpu_job *job)
{
    struct mok_pass_group *group = worker->group;
    struct mok_pass_schedule *schedule = job->schedule;
    uint32_t epoch = ++worker->schedule_epoch;
    if (worker->index == 0) {
        schedule->head.build = epoch; /* written and read by worker 0 */
        mok_cpu_delay(worker);
        int64_t begin = mok_trace_now_ns();
        sort_own(group, job, epoch);
        mok_trace_add(group->trace, worker->index, MOK_EVENT_SCHEDULE, 0, job->ticket, begin, mok_trace_now_ns());
        mok_cpu_arrive(group, MOK_CPU_SCHED, epoch);
    }
    if (!mok_cpu_wait_barrier(worker, MOK_CPU_SCHED, epoch)) {
        return 0;
    }
    int64_t begin = mok_trace_now_ns();
    if (worker->index == 0) {
        count_rows(group, schedule, epoch);
    }
    if (!mok_cpu_meet(worker)) {
        return 0;
    }
    for (int32_t e = worker->index; e < group->setup.num_local; e += group->num_workers) {
        place_rows(group, schedule, e, epoch);
    }
    mok_trace_add(group->trace, worker->index, MOK_EVENT_SCHEDULE, 1, job->ticket, begin, mok_trace_now_ns());
    if (!mok_cpu_meet(worker)) {
        return 0;
    }
    if (worker->index == 0) {
        atomic_fetch_add(&group->bad_ids, schedule->head.bad_ids);
    }
    return 1;
}
