/*
 * Trace of a rank on its GPU: events of the stream's launches, stamped by a kernel of one thread before and behind them, and events of
 * the persistent kernels' roles, which record for themselves (trace/lane.h). Nothing exists, and nothing is enqueued, unless asked for.
 */
#include "cuda/rank_calls.h"

#include <inttypes.h>
#include <stdlib.h>

#include "cuda/device.h"
#include "trace/lane.h"

/* ---- stages of a stream ----------------------------------------------------------------------------------------------------- */

static mok_status stamp(struct mok_pass_group *group, int32_t kind, int64_t index, int is_end, mok_stream stream)
{
    if (group->events == NULL) {
        return MOK_OK;
    }
    struct mok_cuda_stamp_args args = {
        .control = group->control,
        .events = group->events,
        .capacity = (uint64_t)group->max_events,
        .index = index,
        .kind = kind,
        .is_end = is_end,
    };
    return mok_cuda_launch(MOK_CUDA_STAMP, 1, 1, 0, &args, stream);
}

mok_status mok_cuda_stage_begin(struct mok_pass_group *group, mok_stream stream) { return stamp(group, 0, 0, 0, stream); }

mok_status mok_cuda_stage_end(struct mok_pass_group *group, int32_t kind, int64_t index, mok_stream stream)
{
    return stamp(group, kind, index, 1, stream);
}

/* ---- start and stop --------------------------------------------------------------------------------------------------------- */

/* Copies through own_stream, which nothing holds up. */
static mok_status copy_now(struct mok_pass_group *group, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    MOK_TRY(mok_cuda_check(cudaMemcpyAsync(to, from, bytes, kind, group->own_stream), "copy of trace events"));
    return mok_cuda_check(cudaStreamSynchronize(group->own_stream), "copy of trace events");
}

static mok_status forget_events(struct mok_pass_group *group)
{
    uint64_t none = 0;
    if (group->num_lanes > 0) {
        MOK_TRY(mok_cuda_check(cudaMemsetAsync(group->lane_num, 0, (size_t)group->num_lanes * sizeof *group->lane_num, group->own_stream),
                               "clearing of trace lanes"));
    }
    return copy_now(group, &group->control->num_events, &none, sizeof none, cudaMemcpyHostToDevice);
}

/* Work is queued while the last call is not done. */
static mok_status check_idle(const struct mok_pass_group *group)
{
    if (group->has_last && cudaEventQuery(group->last_done) == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return mok_base_fail(MOK_ERR_ARGUMENT, "rank %" PRId32 ": work is queued on the group; trace may be used between passes only",
                             group->setup.dims.rank);
    }
    return MOK_OK;
}

static void free_events(struct mok_pass_group *group)
{
    mok_cuda_free(group->device, group->events);
    mok_cuda_free(group->device, group->lane_events);
    mok_cuda_free(group->device, group->lane_num);
    group->events = group->lane_events = NULL;
    group->lane_num = NULL;
    group->num_lanes = 0;
    group->max_events = 0;
}

/* CTAs of a persistent kernel, at most: two clusters of two where a rank has fewer SMs. */
static int32_t max_ctas(const struct mok_pass_group *group) { return group->gemm_ctas > 4 ? group->gemm_ctas : 4; }

static mok_status allocate_events(struct mok_pass_group *group, int64_t max_events)
{
    size_t lane_bytes = (size_t)max_events * sizeof(mok_event);
    int32_t num_lanes = group->setup.path == MOK_PATH_FUSED ? max_ctas(group) * MOK_LANE_ROLES : 0;
    group->events = mok_cuda_alloc(group->device, lane_bytes);
    if (num_lanes > 0) {
        group->lane_events = mok_cuda_alloc(group->device, (size_t)num_lanes * lane_bytes);
        group->lane_num = mok_cuda_alloc(group->device, (size_t)num_lanes * sizeof *group->lane_num);
    }
    if (group->events == NULL || (num_lanes > 0 && (group->lane_events == NULL || group->lane_num == NULL))) {
        return mok_base_fail(MOK_ERR_MEMORY, "no device memory for %" PRId64 " trace events of each of %" PRId32 " workers", max_events,
                             num_lanes + 1);
    }
    group->num_lanes = num_lanes;
    group->max_events = max_events;
    return MOK_OK;
}

static mok_status start_trace(struct mok_pass_group *group, int64_t max_events)
{
    MOK_TRY(check_idle(group));
    free_events(group);
    if (max_events == 0) {
        return MOK_OK;
    }
    mok_status status = allocate_events(group, mok_min64(max_events, INT32_MAX));
    if (status == MOK_OK) {
        status = forget_events(group);
    }
    if (status != MOK_OK) {
        free_events(group);
    }
    return status;
}

mok_status mok_cuda_trace(struct mok_pass_group *group, int64_t max_events)
{
    int32_t before = 0;
    MOK_TRY(mok_cuda_enter_device(group->device, &before));
    mok_status status = start_trace(group, max_events);
    mok_cuda_leave_device(group->device, before);
    return status;
}

/* ---- taking ----------------------------------------------------------------------------------------------------------------- */

/* What a caller has room for, and what there was. */
struct haul {
    mok_event *events;
    int64_t capacity;
    int64_t num;
    int64_t dropped;
};

/* `seen` events of one worker, as far as the worker had room for them. */
static mok_status take_worker(struct mok_pass_group *group, const mok_event *from, int64_t seen, struct haul *haul)
{
    int64_t num = mok_min64(seen, group->max_events), room = mok_max64(haul->capacity - haul->num, 0), copied = mok_min64(num, room);
    if (copied > 0) {
        MOK_TRY(copy_now(group, haul->events + haul->num, from, (size_t)copied * sizeof *from, cudaMemcpyDeviceToHost));
    }
    haul->num += num;
    haul->dropped += seen - num;
    return MOK_OK;
}

/* Events are recorded when they end, so what happened inside another stands before it. */
static int compare_events(const void *left, const void *right)
{
    const mok_event *a = left, *b = right;
    if (a->worker != b->worker) {
        return a->worker < b->worker ? -1 : 1;
    }
    if (a->begin_ns != b->begin_ns) {
        return a->begin_ns < b->begin_ns ? -1 : 1;
    }
    return a->end_ns != b->end_ns ? (a->end_ns > b->end_ns ? -1 : 1) : 0;
}

static mok_status take_lanes(struct mok_pass_group *group, struct haul *haul)
{
    uint32_t *num = malloc((size_t)group->num_lanes * sizeof *num);
    if (num == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for the counts of %" PRId32 " workers", group->num_lanes);
    }
    mok_status status = copy_now(group, num, group->lane_num, (size_t)group->num_lanes * sizeof *num, cudaMemcpyDeviceToHost);
    for (int32_t lane = 0; lane < group->num_lanes && status == MOK_OK; lane++) {
        status = take_worker(group, group->lane_events + lane * group->max_events, num[lane], haul);
    }
    free(num);
    return status;
}

static mok_status take_events(struct mok_pass_group *group, struct haul *haul)
{
    uint64_t seen = 0;
    MOK_TRY(check_idle(group));
    MOK_TRY(copy_now(group, &seen, &group->control->num_events, sizeof seen, cudaMemcpyDeviceToHost));
    MOK_TRY(take_worker(group, group->events, (int64_t)seen, haul));
    if (group->num_lanes > 0) {
        MOK_TRY(take_lanes(group, haul));
        qsort(haul->events, (size_t)mok_min64(haul->num, haul->capacity), sizeof *haul->events, compare_events);
    }
    return forget_events(group);
}

mok_status mok_cuda_trace_take(struct mok_pass_group *group, mok_event *events_out, int64_t capacity, int64_t *num_out, int64_t *dropped_out)
{
    int32_t before = 0;
    struct haul haul = {events_out, capacity, 0, 0};
    MOK_TRY(mok_cuda_enter_device(group->device, &before));
    mok_status status = take_events(group, &haul);
    mok_cuda_leave_device(group->device, before);
    if (status == MOK_OK) {
        *num_out = haul.num;
        if (dropped_out != NULL) {
            *dropped_out = haul.dropped;
        }
    }
    return status;
}
