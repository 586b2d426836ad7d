/*
 * The group: its memory and workers, made together and taken down together; its state. The workers are the device: the host side here only
 * makes, enqueues (cpu_calls.c) and looks.
 */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cpu/cpu.h"
#include "cpu/cpu_calls.h"

/* Points the saved objects into their block and into the region. */
static void point_saved(struct mok_pass_group *group)
{
    const struct mok_cpu_layout *layout = &group->layout;
    int has_shared = group->setup.dims.shared_inter > 0 && !layout->shared_remade;
    for (int32_t i = 0; i < group->setup.num_saved; i++) {
        struct mok_pass_saved *saved = &group->saved[i];
        char *block = group->saved_block + i * layout->saved_stride;
        saved->group = group;
        saved->idx = i;
        saved->x_off = group->setup.region.saved_x + i * group->setup.region.saved_x_stride;
        saved->own_x = group->peer->base[group->setup.dims.rank] + saved->x_off;
        saved->x = (mok_bf16 *)(block + layout->saved_x);
        saved->g = (mok_bf16 *)(block + layout->saved_g);
        saved->u = (mok_bf16 *)(block + layout->saved_u);
        saved->shared_g = has_shared ? (mok_bf16 *)(block + layout->saved_shared_g) : NULL;
        saved->shared_u = has_shared ? (mok_bf16 *)(block + layout->saved_shared_u) : NULL;
    }
}

static void free_memory(struct mok_pass_group *group)
{
    free(group->workers);
    free(group->saved);
    free(group->other_block);
    free(group->saved_block);
    free(group->ring_block);
    free(group);
}

/* The group with its memory, without locks and workers. NULL: no memory. */
static struct mok_pass_group *alloc_group(const struct mok_pass_setup *setup, struct mok_peer *peer)
{
    struct mok_pass_group *group = calloc(1, sizeof *group);
    if (group == NULL) {
        return NULL;
    }
    group->setup = *setup;
    group->peer = peer;
    group->tiles = mok_cpu_tiles(setup);
    group->limits[0] = mok_plan_limits(&setup->dims, &setup->ring_forward);
    group->limits[1] = mok_plan_limits(&setup->dims, &setup->ring_backward);
    group->layout = mok_cpu_plan_layout(setup);
    group->loops = mok_cpu_loops_find();
    group->num_workers = setup->comm_workers + setup->compute_workers;
    group->ring_block = mok_cpu_alloc(group->layout.ring_bytes);
    group->saved_block = mok_cpu_alloc(group->layout.saved_bytes);
    group->other_block = mok_cpu_alloc(group->layout.other_bytes);
    group->saved = calloc((size_t)mok_max64(setup->num_saved, 1), sizeof *group->saved);
    group->workers = calloc((size_t)group->num_workers, sizeof *group->workers);
    if (group->ring_block == NULL || group->saved_block == NULL || group->other_block == NULL || group->saved == NULL ||
        group->workers == NULL) {
        free_memory(group);
        return NULL;
    }
    group->counters = (mok_cpu_word *)(group->other_block + group->layout.counters);
    point_saved(group);
    mok_cpu_read_delay(group);
    return group;
}

/* A rank that fails here has touched no peer's memory and never will: it says that it left, so that the others' destroy need not wait for
 * it. */
mok_status mok_cpu_create(const struct mok_pass_setup *setup, struct mok_peer *peer, struct mok_pass_group **group_out)
{
    struct mok_cpu_call call;
    mok_status status = mok_cpu_gemm_probe(&call);
    if (status != MOK_OK) {
        goto err_left;
    }
    struct mok_pass_group *group = alloc_group(setup, peer);
    if (group == NULL) {
        struct mok_cpu_layout layout = mok_cpu_plan_layout(setup);
        status =
            mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory for ring (%lld bytes), saved objects (%lld) and scratch (%lld)",
                          setup->dims.rank, (long long)layout.ring_bytes, (long long)layout.saved_bytes, (long long)layout.other_bytes);
        goto err_left;
    }
    group->call = call;
    if (pthread_mutex_init(&group->fault_lock, NULL) != 0) {
        status = mok_base_fail(MOK_ERR_MEMORY, "rank %d: a lock could not be made", setup->dims.rank);
        goto err_memory;
    }
    status = mok_cpu_queue_init(&group->queue);
    if (status != MOK_OK) {
        goto err_fault_lock;
    }
    status = mok_cpu_team_start(group);
    if (status != MOK_OK) {
        goto err_queue;
    }
    status = mok_cpu_gemm_join(setup->dims.rank, group->num_workers);
    if (status != MOK_OK) {
        goto err_team;
    }
    *group_out = group;
    return MOK_OK;

err_team:
    mok_cpu_team_stop(group);
err_queue:
    mok_cpu_queue_destroy(&group->queue);
err_fault_lock:
    pthread_mutex_destroy(&group->fault_lock);
err_memory:
    free_memory(group);
err_left:
    mok_cpu_say_left(peer, &setup->region);
    return status;
}

/* Queued work ends by itself or by its deadlines; then nobody here touches a peer's memory any more. */
mok_status mok_cpu_destroy(struct mok_pass_group *group)
{
    mok_cpu_team_stop(group);
    mok_cpu_gemm_leave(group->num_workers);
    mok_cpu_say_left(group->peer, &group->setup.region);
    mok_status status = mok_cpu_wait_left(group);
    mok_trace_destroy(group->trace);
    mok_cpu_queue_destroy(&group->queue);
    pthread_mutex_destroy(&group->fault_lock);
    free_memory(group);
    return status;
}

mok_status mok_cpu_state(struct mok_pass_group *group, mok_group_state *state_out)
{
    mok_fault fault;
    mok_status status = mok_cpu_status(group, &fault);
    if (state_out != NULL) {
        state_out->fault = fault;
        state_out->bad_ids = atomic_load(&group->bad_ids);
        state_out->passes_done = atomic_load(&group->passes_done);
    }
    return status;
}

/* On a dead group the workers let go of all queued work at once: waiting for that too means that tensors are the caller's again. */
mok_status mok_cpu_wait(struct mok_pass_group *group, mok_stream stream, int64_t timeout_ms)
{
    (void)stream;
    if (!mok_cpu_queue_wait(&group->queue, mok_cpu_queue_last(&group->queue), timeout_ms)) {
        return mok_base_fail(MOK_ERR_TIMEOUT, "rank %d: work was not done within timeout_ms = %lld", group->setup.dims.rank,
                             (long long)timeout_ms);
    }
    return mok_cpu_status(group, NULL);
}

void mok_cpu_abort(struct mok_pass_group *group)
{
    pthread_mutex_lock(&group->fault_lock);
    mok_cpu_abort_all(group);
    pthread_mutex_unlock(&group->fault_lock);
}

static mok_status check_idle(struct mok_pass_group *group)
{
    if (!mok_cpu_queue_is_idle(&group->queue)) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "rank %d: work is queued; traces are started and taken between passes",
                             group->setup.dims.rank);
    }
    return MOK_OK;
}

mok_status mok_cpu_trace(struct mok_pass_group *group, int64_t max_events)
{
    struct mok_trace *trace = NULL;
    MOK_TRY(check_idle(group));
    if (max_events > 0) {
        MOK_TRY(mok_trace_create(group->num_workers, max_events, &trace));
    }
    mok_trace_destroy(group->trace);
    group->trace = trace;
    return MOK_OK;
}

mok_status mok_cpu_trace_take(struct mok_pass_group *group, mok_event *events_out, int64_t capacity, int64_t *num_out, int64_t *dropped_out)
{
    MOK_TRY(check_idle(group));
    mok_trace_take(group->trace, events_out, capacity, num_out, dropped_out);
    return MOK_OK;
}

struct mok_pass_saved *mok_cpu_saved(struct mok_pass_group *group, int32_t idx) { return &group->saved[idx]; }

void *mok_cpu_saved_input(struct mok_pass_saved *saved) { return saved->own_x; }
