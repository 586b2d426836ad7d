/*
 * A rank of a group on its GPU: creation and leaving (protocol.md sections 1 and 6).
 *
 * Creation: meet (who is on which GPU) -> peer access -> memory -> addresses and words -> load every kernel. Nothing here touches a default
 * stream, which would wait for kernels of other ranks that wait for us.
 * Leaving: own work is done -> `left` word to every peer -> every peer's `left` word is here -> memory goes. Each wait is bounded.
 */
#define _GNU_SOURCE
#include "cuda/ops/ops_cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "cuda/device.h"
#include "cuda/fused/fused.h"
#include "cuda/gemm/gemm.h"
#include "cuda/rank_calls.h"
#include "cuda/schedule/schedule_cuda.h"
#include "peer/peer_access.h"

enum {
    DEFAULT_CONNECTIONS = 8, /* of CUDA_DEVICE_MAX_CONNECTIONS */
    STREAMS_OF_RANK = 2      /* the caller's and the group's own */
};

static const int64_t answer_limit_ns = 10000000000; /* for a copy of a few words: a GPU that takes longer is lost */

/* What ranks tell each other first. */
struct hello {
    char uuid[16]; /* of the GPU */
    int64_t process;
    char host[64]; /* boot id and name: processes with one number on two hosts are two */
    int32_t device;
    int32_t is_known; /* 0: this rank could not find out, and fails by itself */
};

/* ---- creation --------------------------------------------------------------------------------------------------------------- */

static void say_hello(const struct mok_pass_setup *setup, struct hello *hello)
{
    struct cudaDeviceProp properties;
    memset(hello, 0, sizeof *hello);
    hello->process = getpid();
    hello->device = setup->device;
    gethostname(hello->host, sizeof hello->host - 1);
    if (cudaGetDeviceProperties(&properties, setup->device) == cudaSuccess) {
        memcpy(hello->uuid, properties.uuid.bytes, sizeof hello->uuid);
        hello->is_known = 1;
    }
    (void)cudaGetLastError();
}

/* Loads from the GPUs of the other ranks of this process. Between processes the peer has mapped the memory itself. */
static mok_status enable_peers(const struct mok_pass_group *group, const struct hello *all)
{
    int32_t rank = group->setup.dims.rank;
    for (int32_t r = 0; r < group->setup.dims.num_ranks; r++) {
        int is_same_process = all[r].process == all[rank].process && strcmp(all[r].host, all[rank].host) == 0;
        if (!is_same_process || all[r].device == group->device) {
            continue;
        }
        int can = 0;
        MOK_TRY(mok_cuda_check(cudaDeviceCanAccessPeer(&can, group->device, all[r].device), "question for peer access"));
        if (!can) {
            return mok_base_fail(MOK_ERR_UNSUPPORTED, "rank %" PRId32 " on device %" PRId32 " cannot load from the memory of rank %" PRId32
                                 " on device %" PRId32 ": no peer access between the two", rank, group->device, r, all[r].device);
        }
        MOK_TRY(mok_peer_enable_access(group->device, all[r].device));
    }
    return MOK_OK;
}

/*
 * Streams of one process share hardware queues, CUDA_DEVICE_MAX_CONNECTIONS of them, and a rank's arrival that stands behind another rank's wait in
 * the same queue never comes: seen with eight ranks and the default of eight queues. Better refused here than found by a deadline.
 */
static mok_status check_queues(const struct mok_pass_group *group)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    long connections = text == NULL ? DEFAULT_CONNECTIONS : strtol(text, NULL, 10);
    if (group->ranks_here > 1 && (long)group->ranks_here * STREAMS_OF_RANK > connections) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "%" PRId32 " ranks of the group share device %" PRId32 " and need %" PRId32
                             " hardware queues, CUDA_DEVICE_MAX_CONNECTIONS allows %ld: set it to 32 in the environment before the process uses CUDA",
                             group->ranks_here, group->device, group->ranks_here * STREAMS_OF_RANK, connections);
    }
    return MOK_OK;
}

/* Collective in its first step, so that a rank that fails later leaves no one waiting. */
static mok_status meet(struct mok_pass_group *group)
{
    const struct mok_pass_setup *setup = &group->setup;
    int32_t num_ranks = setup->dims.num_ranks;
    struct hello mine, *all = calloc((size_t)num_ranks, sizeof *all);
    if (all == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no memory to meet %" PRId32 " ranks", num_ranks);
    }
    say_hello(setup, &mine);
    mok_status status = group->peer->ops->allgather(group->peer, &mine, sizeof mine, all);
    if (status == MOK_OK && !mine.is_known) {
        status = mok_base_fail(MOK_ERR_DEVICE, "properties of device %" PRId32 " cannot be read", setup->device);
    }
    if (status == MOK_OK) {
        for (int32_t r = 0; r < num_ranks; r++) {
            group->ranks_here += memcmp(all[r].uuid, mine.uuid, sizeof mine.uuid) == 0;
        }
        status = enable_peers(group, all);
    }
    if (status == MOK_OK) {
        status = check_queues(group);
    }
    free(all);
    return status;
}

/* Ranks that share a GPU share its SMs. */
static void share_sms(struct mok_pass_group *group)
{
    group->move_ctas = (int32_t)mok_max64(group->setup.comm_workers / group->ranks_here, 1);
    group->gemm_ctas = (int32_t)mok_max64(group->setup.compute_workers / group->ranks_here, 1);
}

static mok_status make_memory(struct mok_pass_group *group)
{
    const struct mok_cuda_layout *layout = &group->layout;
    size_t words = ((size_t)group->setup.dims.num_ranks + (size_t)group->setup.num_local) * 8;
    group->staging_bytes = words + 4096;
    group->ring = mok_cuda_alloc(group->device, (size_t)layout->ring_bytes);
    group->saved_block = mok_cuda_alloc(group->device, (size_t)layout->saved_bytes);
    group->other = mok_cuda_alloc_zeroed(group->device, (size_t)layout->other_bytes, group->own_stream);
    if (group->ring == NULL || group->saved_block == NULL || group->other == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %" PRId32 ": no device memory for ring %" PRId64 " + saved %" PRId64 " + other %" PRId64 " bytes",
                             group->setup.dims.rank, layout->ring_bytes, layout->saved_bytes, layout->other_bytes);
    }
    MOK_TRY(mok_cuda_check(cudaHostAlloc((void **)&group->record, sizeof *group->record, cudaHostAllocMapped), "pinned host memory"));
    MOK_TRY(mok_cuda_check(cudaHostAlloc(&group->staging, group->staging_bytes, cudaHostAllocDefault), "pinned host memory"));
    memset(group->record, 0, sizeof *group->record);
    group->control = (struct mok_cuda_control *)(group->other + layout->control);
    return MOK_OK;
}

/* Addresses of the regions and the constant arrays, into device memory. Waits for its own copies only. */
static mok_status fill_constants(struct mok_pass_group *group)
{
    const struct mok_dims *dims = &group->setup.dims;
    void *record = NULL;
    MOK_TRY(mok_cuda_check(cudaHostGetDevicePointer(&record, group->record, 0), "device address of pinned memory"));
    char **base = (char **)(group->other + group->layout.base);
    MOK_TRY(mok_cuda_check(cudaMemcpyAsync(base, group->peer->base, (size_t)dims->num_ranks * sizeof *base, cudaMemcpyHostToDevice, group->own_stream),
                           "copy of the region addresses"));
    int64_t num_ones = group->setup.num_saved > 0 && dims->shared_inter > 0 ? dims->max_tokens : 0;
    float *ones = malloc((size_t)num_ones * sizeof *ones + 1);
    if (ones == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for %" PRId64 " weights", num_ones);
    }
    for (int64_t i = 0; i < num_ones; i++) {
        ones[i] = 1.0f;
    }
    mok_status status = mok_cuda_check(cudaMemcpyAsync(group->other + group->layout.ones, ones, (size_t)num_ones * sizeof *ones,
                                                       cudaMemcpyHostToDevice, group->own_stream), "copy of constants");
    if (status == MOK_OK) {
        status = mok_cuda_check(cudaStreamSynchronize(group->own_stream), "copy of constants");
    }
    free(ones);
    group->watch = (struct mok_cuda_watch){
        .base = base,
        .own = group->peer->base[dims->rank],
        .control = group->control,
        .record = record,
        .abort_off = group->setup.region.abort,
        .left_off = group->setup.region.left,
        .peer_limit_ns = (uint64_t)group->setup.peer_timeout_ns,
        .local_limit_ns = (uint64_t)group->setup.local_timeout_ns,
        .rank = dims->rank,
        .num_ranks = dims->num_ranks,
    };
    return status;
}

static mok_status make_saved(struct mok_pass_group *group)
{
    const struct mok_cuda_layout *layout = &group->layout;
    group->saved = calloc((size_t)group->setup.num_saved + 1, sizeof *group->saved);
    if (group->saved == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for %" PRId32 " saved objects", group->setup.num_saved);
    }
    for (int32_t i = 0; i < group->setup.num_saved; i++) {
        struct mok_pass_saved *saved = &group->saved[i];
        char *block = group->saved_block + i * layout->saved_stride;
        saved->group = group;
        saved->x_off = group->setup.region.saved_x + i * group->setup.region.saved_x_stride;
        saved->own_x = group->peer->base[group->setup.dims.rank] + saved->x_off;
        saved->x = block + layout->saved_x;
        saved->g = block + layout->saved_g;
        saved->u = block + layout->saved_u;
        saved->shared_g = layout->shared_remade ? NULL : block + layout->saved_shared_g;
        saved->shared_u = layout->shared_remade ? NULL : block + layout->saved_shared_u;
    }
    return MOK_OK;
}

static mok_status fill_group(struct mok_pass_group *group)
{
    MOK_TRY(meet(group));
    share_sms(group);
    int low = 0, high = 0;
    MOK_TRY(mok_cuda_check(cudaDeviceGetStreamPriorityRange(&low, &high), "stream priorities"));
    MOK_TRY(mok_cuda_check(cudaStreamCreateWithPriority(&group->own_stream, cudaStreamNonBlocking, high), "stream of the group"));
    MOK_TRY(mok_cuda_check(cudaEventCreateWithFlags(&group->last_done, cudaEventDisableTiming), "event of the group"));
    MOK_TRY(make_memory(group));
    MOK_TRY(fill_constants(group));
    MOK_TRY(make_saved(group));
    MOK_TRY(mok_cuda_load_kernels());
    MOK_TRY(mok_cuda_gemm_prepare());
    MOK_TRY(mok_cuda_fused_prepare_forward());
    return mok_cuda_fused_prepare_backward();
}

/* Frees all that there is. */
static void free_group(struct mok_pass_group *group)
{
    mok_cuda_free_schedules(group);
    mok_cuda_free(group->device, group->ring);
    mok_cuda_free(group->device, group->saved_block);
    mok_cuda_free(group->device, group->other);
    mok_cuda_free(group->device, group->events);
    mok_cuda_free(group->device, group->lane_events);
    mok_cuda_free(group->device, group->lane_num);
    (void)cudaFreeHost(group->record);
    (void)cudaFreeHost(group->staging);
    if (group->own_stream != NULL) {
        (void)cudaStreamDestroy(group->own_stream);
    }
    if (group->last_done != NULL) {
        (void)cudaEventDestroy(group->last_done);
    }
    free(group->saved);
    free(group);
}

mok_status mok_cuda_create(const struct mok_pass_setup *setup, struct mok_peer *peer, struct mok_pass_group **group_out)
{
    int32_t before = 0;
    struct mok_pass_group *group = calloc(1, sizeof *group);
    if (group == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for a group");
    }
    group->setup = *setup;
    group->peer = peer;
    group->device = setup->device;
    group->layout = mok_cuda_plan_layout(setup);
    mok_status status = mok_cuda_enter_device(group->device, &before);
    if (status == MOK_OK) {
        status = fill_group(group);
    }
    if (status != MOK_OK) {
        free_group(group);
    } else {
        *group_out = group;
    }
    mok_cuda_leave_device(setup->device, before);
    return status;
}

/* ---- leaving ---------------------------------------------------------------------------------------------------------------- */

/* Own work is done, within the limits that its own waits have. */
static mok_status wait_own_work(struct mok_pass_group *group)
{
    int64_t limit = group->setup.peer_timeout_ns > INT64_MAX / 2 ? -1 : group->setup.peer_timeout_ns + group->setup.local_timeout_ns;
    int64_t deadline = mok_cuda_deadline_after(mok_cuda_status_now(group) == MOK_OK ? limit : group->setup.local_timeout_ns);
    int32_t turns = 0;
    while (group->has_last && !mok_cuda_is_done(group, cudaEventQuery(group->last_done))) {
        if (mok_cuda_status_now(group) == MOK_ERR_DEVICE) {
            return mok_base_fail(MOK_ERR_DEVICE, "rank %" PRId32 ": the device reported an error", group->setup.dims.rank);
        }
        if (mok_cuda_now_ns() >= deadline) {
            return mok_base_fail(MOK_ERR_TIMEOUT, "rank %" PRId32 ": own work did not end", group->setup.dims.rank);
        }
        mok_cuda_pause(&turns);
    }
    return MOK_OK;
}

/* A rank whose `left` word is not here yet; -1 = all are, -2 = the device cannot be asked, or does not answer. */
static int32_t who_is_here(struct mok_pass_group *group)
{
    int32_t num_ranks = group->setup.dims.num_ranks, turns = 0;
    int64_t deadline = mok_cuda_deadline_after(answer_limit_ns);
    const char *words = group->peer->base[group->setup.dims.rank] + group->setup.region.left;
    uint32_t *seen = group->staging;
    cudaError_t error = cudaMemcpyAsync(seen, words, (size_t)num_ranks * 4, cudaMemcpyDeviceToHost, group->own_stream);
    while (error == cudaSuccess && (error = cudaStreamQuery(group->own_stream)) == cudaErrorNotReady) {
        error = mok_cuda_now_ns() < deadline ? cudaSuccess : cudaErrorNotReady;
        mok_cuda_pause(&turns);
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return -2;
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        if (seen[r] == 0) {
            return r;
        }
    }
    return -1;
}

static mok_status leave_peers(struct mok_pass_group *group)
{
    const struct mok_pass_setup *setup = &group->setup;
    MOK_TRY(mok_cuda_raise(group, setup->region.left + setup->dims.rank * 4, 1));
    const struct mok_leave_limit limit = mok_pass_leave_limit(setup, mok_cuda_status_now(group) != MOK_OK);
    int64_t deadline = mok_cuda_deadline_after(limit.ns);
    int32_t turns = 0, missing;
    while ((missing = who_is_here(group)) != -1) {
        if (missing == -2) {
            return mok_base_fail(MOK_ERR_DEVICE, "rank %" PRId32 ": the device cannot say who has left", setup->dims.rank);
        }
        if (mok_cuda_now_ns() >= deadline) {
            return mok_base_fail(MOK_ERR_TIMEOUT, "rank %" PRId32 " keeps its peer-visible memory, because rank %" PRId32
                                 " did not leave the group within %s = %" PRId64 " and may still use it", setup->dims.rank, missing, limit.setting,
                                 limit.ns / 1000000);
        }
        mok_cuda_pause(&turns);
    }
    return MOK_OK;
}

mok_status mok_cuda_destroy(struct mok_pass_group *group)
{
    int32_t before = 0, device = group->device;
    MOK_TRY(mok_cuda_enter_device(device, &before));
    mok_status status = wait_own_work(group);
    if (status == MOK_OK) {
        status = leave_peers(group);
        free_group(group); /* own work is done: nothing uses this memory; the region is the peer's to keep or free */
    }
    mok_cuda_leave_device(device, before);
    return status;
}
