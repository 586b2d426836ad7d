/*
 * The ops table of the CUDA backend, and its small entries: memory, test hooks.
 */
#include "cuda/ops/ops_cuda.h"

#include "cuda/device.h"
#include "cuda/rank_calls.h"
#include "cuda/schedule/schedule_cuda.h"

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
    .backend = MOK_BACKEND_CUDA,
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
