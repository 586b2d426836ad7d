/*
 * The ops table of the CUDA backend, and its small entries: memory, trace, test hooks.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cuda/device.h"
#include "cuda/rank_memory.h"

/* ---- memory ----------------------------------------------------------------------------------------------------------------- */

static void cuda_memory(const struct mok_pass_setup *setup, mok_memory *memory_out)
{
    struct mok_cuda_layout layout = mok_cuda_plan_layout(setup);
    struct mok_cuda_schedule_layout schedule = mok_cuda_plan_schedule(setup);
    memory_out->ring_bytes = (uint64_t)layout.ring_bytes;
    memory_out->saved_bytes = (uint64_t)layout.saved_bytes;
    memory_out->other_bytes = (uint64_t)(layout.other_bytes + schedule.bytes);
}

/* The context of the region's allocator is the device, plus one so that it is not NULL. */
static void *region_alloc(void *context, size_t bytes) { return mok_cuda_alloc_zeroed((int32_t)(intptr_t)context - 1, bytes, NULL); }
static void region_free(void *context, void *memory) { mok_cuda_free((int32_t)(intptr_t)context - 1, memory); }

static mok_status cuda_peer_memory(const struct mok_pass_setup *setup, struct mok_peer_memory *memory_out)
{
    memory_out->alloc = region_alloc;
    memory_out->free = region_free;
    memory_out->context = (void *)(intptr_t)(setup->device + 1);
    memory_out->device = setup->device;
    return MOK_OK;
}

/* ---- saved objects ---------------------------------------------------------------------------------------------------------- */

static struct mok_pass_saved *cuda_saved(struct mok_pass_group *group, int32_t idx) { return &group->saved[idx]; }
static void *cuda_saved_input(struct mok_pass_saved *saved) { return saved->own_x; }

/* ---- trace ------------------------------------------------------------------------------------------------------------------ */

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

/* Copies through own_stream, which nothing holds up. */
static mok_status copy_now(struct mok_pass_group *group, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    MOK_TRY(mok_cuda_check(cudaMemcpyAsync(to, from, bytes, kind, group->own_stream), "copy of trace events"));
    return mok_cuda_check(cudaStreamSynchronize(group->own_stream), "copy of trace events");
}

static mok_status forget_events(struct mok_pass_group *group)
{
    uint64_t none = 0;
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

static mok_status start_trace(struct mok_pass_group *group, int64_t max_events)
{
    MOK_TRY(check_idle(group));
    mok_cuda_free(group->device, group->events);
    group->events = NULL;
    group->max_events = 0;
    if (max_events == 0) {
        return MOK_OK;
    }
    MOK_TRY(forget_events(group));
    group->events = mok_cuda_alloc(group->device, (size_t)max_events * sizeof *group->events);
    if (group->events == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no device memory for %" PRId64 " trace events", max_events);
    }
    group->max_events = max_events;
    return MOK_OK;
}

mok_status mok_cuda_trace(struct mok_pass_group *group, int64_t max_events)
{
    int32_t before = 0;
    MOK_TRY(mok_cuda_enter_device(group->device, &before));
    mok_status status = start_trace(group, max_events);
    mok_cuda_leave_device(group->device, before);
    return status;
}

static mok_status take_events(struct mok_pass_group *group, mok_event *events_out, int64_t capacity, int64_t *num_out, int64_t *dropped_out)
{
    uint64_t seen = 0;
    MOK_TRY(check_idle(group));
    MOK_TRY(copy_now(group, &seen, &group->control->num_events, sizeof seen, cudaMemcpyDeviceToHost));
    int64_t num = mok_min64((int64_t)seen, group->max_events), copied = mok_min64(num, capacity);
    if (copied > 0) {
        MOK_TRY(copy_now(group, events_out, group->events, (size_t)copied * sizeof *events_out, cudaMemcpyDeviceToHost));
    }
    MOK_TRY(forget_events(group));
    *num_out = num;
    if (dropped_out != NULL) {
        *dropped_out = (int64_t)seen - num;
    }
    return MOK_OK;
}

mok_status mok_cuda_trace_take(struct mok_pass_group *group, mok_event *events_out, int64_t capacity, int64_t *num_out, int64_t *dropped_out)
{
    int32_t before = 0;
    MOK_TRY(mok_cuda_enter_device(group->device, &before));
    mok_status status = take_events(group, events_out, capacity, num_out, dropped_out);
    mok_cuda_leave_device(group->device, before);
    return status;
}

/* ---- hooks for tests -------------------------------------------------------------------------------------------------------- */

static mok_status fill(struct mok_pass_group *group, void *to, int byte, int64_t bytes)
{
    return bytes > 0 ? mok_cuda_check(cudaMemsetAsync(to, byte, (size_t)bytes, group->own_stream), "poison") : MOK_OK;
}

static mok_status poison_blocks(struct mok_pass_group *group, int byte)
{
    const struct mok_region *region = &group->setup.region;
    const struct mok_dims *dims = &group->setup.dims;
    const struct mok_cuda_layout *layout = &group->layout;
    char *own = group->peer->base[dims->rank];
    MOK_TRY(fill(group, group->ring, byte, layout->ring_bytes));
    MOK_TRY(fill(group, group->other + layout->histogram, byte, layout->ones - layout->histogram));
    MOK_TRY(fill(group, group->other + layout->carry[0], byte, layout->other_bytes - layout->carry[0]));
    /* published rows, w, slots and dw slots stand one behind the other; saved x follows */
    MOK_TRY(fill(group, own + region->rows, byte, region->saved_x - region->rows));
    for (int32_t i = 0; i < group->setup.num_saved; i++) {
        if (!group->saved[i].is_full) {
            MOK_TRY(fill(group, group->saved[i].own_x, byte, region->saved_x_stride));
            MOK_TRY(fill(group, group->saved_block + i * layout->saved_stride, byte, layout->saved_stride));
        }
    }
    return mok_cuda_check(cudaStreamSynchronize(group->own_stream), "poison");
}

mok_status mok_cuda_poison(struct mok_pass_group *group, int byte)
{
    int32_t before = 0;
    MOK_TRY(mok_cuda_enter_device(group->device, &before));
    mok_status status = poison_blocks(group, byte);
    mok_cuda_leave_device(group->device, before);
    return status;
}

/* ---- table ------------------------------------------------------------------------------------------------------------------ */

const struct mok_pass_ops mok_pass_cuda = {
    .name = "cuda",
    .probe = mok_cuda_probe,
    .choose = mok_cuda_choose,
    .memory = cuda_memory,
    .peer_memory = cuda_peer_memory,
    .create = mok_cuda_create,
    .destroy = mok_cuda_destroy,
    .schedule_create = mok_cuda_schedule_create,
    .schedule_destroy = mok_cuda_schedule_destroy,
    .schedule_build = mok_cuda_schedule_build,
    .schedule_counts = mok_cuda_schedule_counts,
    .schedule_dump = mok_cuda_schedule_dump,
    .saved = cuda_saved,
    .saved_input = cuda_saved_input,
    .forward = mok_cuda_forward,
    .backward = mok_cuda_backward,
    .state = mok_cuda_state,
    .wait = mok_cuda_wait_stream,
    .abort = mok_cuda_abort,
    .trace = mok_cuda_trace,
    .trace_take = mok_cuda_trace_take,
};
