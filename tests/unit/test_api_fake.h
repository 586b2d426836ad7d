/*
 * A backend that computes nothing: it counts what reaches it and fails where a test wants it to. It calls itself cpu, so that src/api
 * treats it as the CPU backend, and it shares real memory over real peers.
 */
#ifndef MOK_TEST_API_FAKE_H
#define MOK_TEST_API_FAKE_H

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "api/create.h"
#include "base/status.h"

/* What the test sets before, -1 = no rank. All ranks of the process share it. */
static struct {
    atomic_int probe_fails_on;
    atomic_int memory_fails_on;
    atomic_int create_fails_on;
    atomic_int group_status; /* what state says */
    mok_fault fault;
    atomic_int dies_with; /* the status with which the group dies under the next call that enqueues or waits, without a sentence */
} fake_wish = {-1, -1, -1, MOK_OK, {0, 0, 0, 0, 0, 0, 0}, MOK_OK};

/* What the backend saw. */
static struct {
    atomic_int builds, forwards, backwards, waits, aborts, traces;
    atomic_int groups_alive, schedules_alive, regions_alive;
} fake_seen;

struct mok_pass_group {
    struct mok_pass_setup setup;
    void **saved_x;
};

struct mok_pass_schedule {
    struct mok_pass_group *group;
};

/* MOK_OK, or the group dies here. */
static mok_status fake_dies(void)
{
    mok_status status = (mok_status)atomic_exchange(&fake_wish.dies_with, MOK_OK);
    if (status != MOK_OK) {
        fake_wish.group_status = status;
    }
    return status;
}

static mok_status fake_probe(void) { return MOK_OK; }

static mok_status fake_choose(const mok_group_config *config, struct mok_pass_setup *setup)
{
    if (setup->dims.rank == fake_wish.probe_fails_on) {
        return mok_base_fail(MOK_ERR_NO_DEVICE, "the fake has no device on rank %d", setup->dims.rank);
    }
    setup->path = setup->path == MOK_PATH_AUTO ? MOK_PATH_FUSED : setup->path;
    setup->comm_workers = setup->comm_workers == 0 ? 1 : setup->comm_workers;
    setup->compute_workers = setup->compute_workers == 0 ? 1 : setup->compute_workers;
    setup->ring_forward.minibatch_rows = config->minibatch_rows == 0 ? 128 : config->minibatch_rows;
    setup->ring_forward.num_places = config->ring_minibatches == 0 ? 4 : config->ring_minibatches;
    setup->ring_forward.look_ahead =
        (int32_t)mok_min64(config->look_ahead == 0 ? 1 : config->look_ahead, setup->ring_forward.num_places - 1);
    setup->ring_backward = setup->ring_forward;
    return MOK_OK;
}

static void fake_memory(const struct mok_pass_setup *setup, mok_memory *memory_out)
{
    memory_out->ring_bytes = (uint64_t)mok_plan_ring_rows(&setup->ring_forward) * 1000;
    memory_out->saved_bytes = (uint64_t)setup->num_saved * 100;
    memory_out->other_bytes = 10;
}

static void *fake_alloc(void *context, size_t bytes)
{
    (void)context;
    size_t rounded = (bytes + 255) / 256 * 256;
    void *region = aligned_alloc(256, rounded);
    if (region != NULL) {
        memset(region, 0, rounded);
        atomic_fetch_add(&fake_seen.regions_alive, 1);
    }
    return region;
}

static void fake_free(void *context, void *region)
{
    (void)context;
    atomic_fetch_sub(&fake_seen.regions_alive, 1);
    free(region);
}

static mok_status fake_peer_memory(const struct mok_pass_setup *setup, struct mok_peer_memory *memory_out)
{
    if (setup->dims.rank == fake_wish.memory_fails_on) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: the fake has no memory", setup->dims.rank);
    }
    memory_out->alloc = fake_alloc;
    memory_out->free = fake_free;
    memory_out->device = -1;
    return MOK_OK;
}

static mok_status fake_create(const struct mok_pass_setup *setup, struct mok_peer *peer, struct mok_pass_group **group_out)
{
    if (setup->dims.rank == fake_wish.create_fails_on) {
        return mok_base_fail(MOK_ERR_MEMORY, "the fake cannot create on rank %d", setup->dims.rank);
    }
    struct mok_pass_group *group = calloc(1, sizeof *group);
    group->setup = *setup;
    group->saved_x = calloc(setup->num_saved > 0 ? (size_t)setup->num_saved : 1, sizeof *group->saved_x);
    for (int32_t idx = 0; idx < setup->num_saved; idx++) {
        group->saved_x[idx] = peer->base[peer->rank] + setup->region.saved_x + idx * setup->region.saved_x_stride;
    }
    atomic_fetch_add(&fake_seen.groups_alive, 1);
    *group_out = group;
    return MOK_OK;
}

static mok_status fake_destroy(struct mok_pass_group *group)
{
    free(group->saved_x);
    free(group);
    atomic_fetch_sub(&fake_seen.groups_alive, 1);
    return MOK_OK;
}

static mok_status fake_schedule_create(struct mok_pass_group *group, struct mok_pass_schedule **schedule_out)
{
    struct mok_pass_schedule *schedule = calloc(1, sizeof *schedule);
    schedule->group = group;
    atomic_fetch_add(&fake_seen.schedules_alive, 1);
    *schedule_out = schedule;
    return MOK_OK;
}

static void fake_schedule_destroy(struct mok_pass_schedule *schedule)
{
    atomic_fetch_sub(&fake_seen.schedules_alive, 1);
    free(schedule);
}

static mok_status fake_schedule_build(struct mok_pass_schedule *schedule, const int32_t *ids, int64_t num_tokens, mok_stream stream)
{
    (void)schedule, (void)ids, (void)num_tokens, (void)stream;
    atomic_fetch_add(&fake_seen.builds, 1);
    return fake_dies();
}

static mok_status fake_schedule_counts(struct mok_pass_schedule *schedule, mok_stream stream, int64_t *rows_out, int64_t *padded_out)
{
    (void)schedule, (void)stream, (void)rows_out;
    *padded_out = 128;
    return fake_dies();
}

static struct mok_pass_saved *fake_saved(struct mok_pass_group *group, int32_t idx)
{
    return (struct mok_pass_saved *)&group->saved_x[idx];
}

static void *fake_saved_input(struct mok_pass_saved *saved) { return *(void **)saved; }

static mok_status fake_forward(struct mok_pass_group *group, const struct mok_pass_forward *pass)
{
    (void)group, (void)pass;
    atomic_fetch_add(&fake_seen.forwards, 1);
    return fake_dies();
}

static mok_status fake_backward(struct mok_pass_group *group, const struct mok_pass_backward *pass)
{
    (void)group, (void)pass;
    atomic_fetch_add(&fake_seen.backwards, 1);
    return fake_dies();
}

static mok_status fake_state(struct mok_pass_group *group, mok_group_state *state_out)
{
    (void)group;
    state_out->fault = fake_wish.fault;
    return (mok_status)fake_wish.group_status;
}

static mok_status fake_wait(struct mok_pass_group *group, mok_stream stream, int64_t timeout_ms)
{
    (void)group, (void)stream, (void)timeout_ms;
    atomic_fetch_add(&fake_seen.waits, 1);
    return fake_dies();
}

static void fake_abort(struct mok_pass_group *group)
{
    (void)group;
    atomic_fetch_add(&fake_seen.aborts, 1);
}

static mok_status fake_trace(struct mok_pass_group *group, int64_t max_events)
{
    (void)group, (void)max_events;
    atomic_fetch_add(&fake_seen.traces, 1);
    return MOK_OK;
}

static mok_status fake_trace_take(struct mok_pass_group *group, mok_event *events_out, int64_t capacity, int64_t *num_out,
                                  int64_t *dropped_out)
{
    (void)group, (void)events_out, (void)capacity, (void)dropped_out;
    *num_out = 0;
    return MOK_OK;
}

static const struct mok_pass_ops fake_ops = {
    .name = "cpu",
    .backend = MOK_BACKEND_CPU,
    .probe = fake_probe,
    .choose = fake_choose,
    .memory = fake_memory,
    .peer_memory = fake_peer_memory,
    .create = fake_create,
    .destroy = fake_destroy,
    .schedule_create = fake_schedule_create,
    .schedule_destroy = fake_schedule_destroy,
    .schedule_build = fake_schedule_build,
    .schedule_counts = fake_schedule_counts,
    .saved = fake_saved,
    .saved_input = fake_saved_input,
    .forward = fake_forward,
    .backward = fake_backward,
    .state = fake_state,
    .wait = fake_wait,
    .abort = fake_abort,
    .trace = fake_trace,
    .trace_take = fake_trace_take,
};

/* Everything that reached the backend and does something. */
static inline int fake_calls(void)
{
    return fake_seen.builds + fake_seen.forwards + fake_seen.backwards + fake_seen.waits + fake_seen.aborts + fake_seen.traces;
}

#endif
