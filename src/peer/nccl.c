/*
 * Ranks that are processes with a GPU each, and meet through NCCL: memory of ncclMemAlloc in a symmetric window, so that every rank's region has an
 * address on every GPU. Works across hosts inside one NVLink domain.
 *
 * Rules.
 *  - The communicator does not block: every call is polled with the peer's limit, and aborted when the limit is over.
 *  - NVLink multicast stays off (NCCL_NVLS_ENABLE=0, unless the caller has set it): nothing here needs it.
 *  - What is permitted is found out by doing it: after the window is there, each rank reads a word from each. All ranks agree, or all fail.
 *  - A window is looked at on the device only when it stands there: where NCCL cannot make one, it hands out an address of its own instead.
 *  - A region that must be kept keeps its window and its communicator, too.
 *  - One rank alone meets nobody: no communicator and no window, its region is memory of the backend.
 */
#include "peer/member.h"

#ifdef MOK_HAVE_NCCL

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "peer/nccl_window.h"

enum {
    NCCL_MIN_VERSION = 22803, /* the first with ncclGetLsaPointer */
    LEAVE_MS = 10000          /* longest wait for NCCL to take a communicator down */
};

struct nccl_peer {
    struct mok_peer peer; /* first, so that a peer is one of these */
    int32_t device;
    ncclComm_t comm;
    cudaStream_t stream;
    char *exchange;        /* device memory: own bytes, then those of all ranks */
    void *region;
    ncclWindow_t window;
    struct mok_peer_memory memory; /* the region's, where one rank is alone */
    int32_t is_kept;
};

static int is_alone(const struct nccl_peer *self) { return self->peer.num_ranks == 1; }

/* ---- bounded calls ---------------------------------------------------------------------------------------------------------- */

static mok_status cuda_status(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) {
        return MOK_OK;
    }
    (void)cudaGetLastError();
    return mok_base_fail(error == cudaErrorMemoryAllocation ? MOK_ERR_MEMORY : MOK_ERR_DEVICE, "%s: %s", what, cudaGetErrorString(error));
}

static mok_status nccl_status(const struct nccl_peer *self, ncclResult_t result, const char *what)
{
    if (result == ncclSuccess) {
        return MOK_OK;
    }
    const char *detail = self->comm == NULL ? "" : ncclGetLastError(self->comm);
    return mok_base_fail(result == ncclInvalidArgument || result == ncclInvalidUsage ? MOK_ERR_UNSUPPORTED : MOK_ERR_DEVICE, "rank %d: NCCL %s: %s%s%s",
                         self->peer.rank, what, ncclGetErrorString(result), detail[0] == '\0' ? "" : ": ", detail);
}

/* A communicator that is given up takes its unfinished work along. */
static void drop_comm(struct nccl_peer *self)
{
    if (self->comm != NULL) {
        (void)ncclCommAbort(self->comm);
        self->comm = NULL;
    }
}

/* Until NCCL has finished what `result` began. Asks the communicator in any case: a call may say success and go on in the background. */
static mok_status finish(struct nccl_peer *self, ncclResult_t result, const char *what)
{
    int64_t deadline = mok_peer_deadline_ns(self->peer.timeout_ms);
    int32_t turns = 0;
    while (result == ncclSuccess || result == ncclInProgress) {
        ncclResult_t state = ncclSuccess;
        result = ncclCommGetAsyncError(self->comm, &state);
        if (result == ncclSuccess && state == ncclSuccess) {
            return MOK_OK;
        }
        result = result == ncclSuccess ? state : result;
        if (result == ncclInProgress && mok_peer_clock_ns() >= deadline) {
            drop_comm(self);
            return mok_base_fail(MOK_ERR_TIMEOUT, "rank %d: NCCL %s: not all of %d ranks came within peer_timeout_ms = %lld", self->peer.rank, what,
                                 self->peer.num_ranks, (long long)self->peer.timeout_ms);
        }
        mok_peer_pause(&turns);
    }
    return nccl_status(self, result, what);
}

/* Until the stream is done. */
static mok_status finish_stream(struct nccl_peer *self, const char *what)
{
    int64_t deadline = mok_peer_deadline_ns(self->peer.timeout_ms);
    int32_t turns = 0;
    cudaError_t error;
    while ((error = cudaStreamQuery(self->stream)) == cudaErrorNotReady) {
        ncclResult_t result = ncclSuccess;
        (void)ncclCommGetAsyncError(self->comm, &result);
        if (result != ncclSuccess && result != ncclInProgress) {
            mok_status status = nccl_status(self, result, what);
            drop_comm(self);
            return status;
        }
        if (mok_peer_clock_ns() >= deadline) {
            drop_comm(self);
            return mok_base_fail(MOK_ERR_TIMEOUT, "rank %d: %s: not all of %d ranks came within peer_timeout_ms = %lld", self->peer.rank, what,
                                 self->peer.num_ranks, (long long)self->peer.timeout_ms);
        }
        mok_peer_pause(&turns);
    }
    return cuda_status(error, what);
}

/* ---- ops -------------------------------------------------------------------------------------------------------------------- */

static mok_status exchange(struct nccl_peer *self, const void *mine, size_t bytes, void *all_out)
{
    char *all = self->exchange + MOK_BOARD_DATA;
    MOK_TRY(cuda_status(cudaMemcpyAsync(self->exchange, mine, bytes, cudaMemcpyHostToDevice, self->stream), "exchange between ranks"));
    MOK_TRY(finish(self, ncclAllGather(self->exchange, all, bytes, ncclChar, self->comm, self->stream), "exchange between ranks"));
    MOK_TRY(finish_stream(self, "exchange between ranks"));
    MOK_TRY(cuda_status(cudaMemcpyAsync(all_out, all, bytes * (size_t)self->peer.num_ranks, cudaMemcpyDeviceToHost, self->stream),
                        "exchange between ranks"));
    return finish_stream(self, "exchange between ranks");
}

static mok_status nccl_allgather(struct mok_peer *peer, const void *mine, size_t bytes, void *all_out)
{
    struct nccl_peer *self = (struct nccl_peer *)peer;
    int before = 0;
    if (bytes > MOK_BOARD_DATA || (self->comm == NULL && !is_alone(self))) {
        return mok_base_fail(MOK_ERR_INTERNAL, "allgather of %zu bytes, at most %d fit; communicator %s", bytes, MOK_BOARD_DATA,
                             self->comm == NULL ? "given up" : "ready");
    }
    if (is_alone(self)) {
        memcpy(all_out, mine, bytes);
        return MOK_OK;
    }
    MOK_TRY(cuda_status(cudaGetDevice(&before), "current device"));
    MOK_TRY(cuda_status(cudaSetDevice(self->device), "device of the group"));
    mok_status status = exchange(self, mine, bytes, all_out);
    (void)cudaSetDevice(before);
    return status;
}

static void free_peer(struct nccl_peer *self)
{
    if (self->comm != NULL && !self->is_kept) {
        int64_t limit = self->peer.timeout_ms;
        self->peer.timeout_ms = limit < LEAVE_MS ? limit : LEAVE_MS;
        if (finish(self, ncclCommFinalize(self->comm), "leave") == MOK_OK) {
            (void)ncclCommDestroy(self->comm);
        } else {
            drop_comm(self);
        }
    }
    if (self->stream != NULL) {
        (void)cudaStreamDestroy(self->stream);
    }
    (void)cudaFree(self->exchange);
    mok_peer_destroy(&self->peer);
}

static void nccl_leave(struct mok_peer *peer)
{
    struct nccl_peer *self = (struct nccl_peer *)peer;
    int before = 0;
    (void)cudaGetDevice(&before);
    (void)cudaSetDevice(self->device);
    free_peer(self);
    (void)cudaSetDevice(before);
}

static mok_status open_comm(struct nccl_peer *self, const mok_group_config *config)
{
    ncclConfig_t options = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    int version = 0;
    if (is_alone(self)) {
        return MOK_OK;
    }
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0);
    MOK_TRY(nccl_status(self, ncclGetVersion(&version), "version"));
    if (version < NCCL_MIN_VERSION) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "NCCL %d is loaded, peer nccl needs %d", version, NCCL_MIN_VERSION);
    }
    size_t bytes = (size_t)(self->peer.num_ranks + 1) * MOK_BOARD_DATA;
    MOK_TRY(cuda_status(cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking), "stream of the peer"));
    MOK_TRY(cuda_status(cudaMalloc((void **)&self->exchange, bytes), "memory for exchanges"));
    memcpy(&id, config->nccl_id, sizeof id);
    options.blocking = 0;
    ncclResult_t result = ncclCommInitRankConfig(&self->comm, self->peer.num_ranks, id, self->peer.rank, &options);
    return finish(self, result, "meeting");
}

static mok_status nccl_join(const mok_group_config *config, struct mok_peer **peer_out)
{
    int before = 0;
    struct mok_peer *peer = NULL;
    MOK_TRY(mok_peer_create(sizeof(struct nccl_peer), &mok_peer_nccl, config, &peer));
    struct nccl_peer *self = (struct nccl_peer *)peer;
    mok_status status = cuda_status(cudaGetDevice(&before), "current device");
    self->device = config->device >= 0 ? config->device : before;
    if (status == MOK_OK) {
        status = cuda_status(cudaSetDevice(self->device), "device of the group");
    }
    if (status == MOK_OK) {
        status = open_comm(self, config);
    }
    if (status != MOK_OK) {
        drop_comm(self);
        free_peer(self);
    } else {
        *peer_out = peer;
    }
    (void)cudaSetDevice(before);
    return status;
}

/* Memory with all bytes 0, before any rank can map it. */
static mok_status alloc_region(struct nccl_peer *self, size_t bytes)
{
    ncclResult_t result = ncclMemAlloc(&self->region, bytes);
    if (result != ncclSuccess) {
        self->region = NULL;
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: NCCL has no %zu bytes: %s", self->peer.rank, bytes, ncclGetErrorString(result));
    }
    MOK_TRY(cuda_status(cudaMemsetAsync(self->region, 0, bytes, self->stream), "zeros in the region"));
    return finish_stream(self, "zeros in the region");
}

/* Addresses of all regions on this GPU, and a word read through each. */
static mok_status find_regions(struct nccl_peer *self)
{
    int32_t num_ranks = self->peer.num_ranks;
    uint32_t mark = (uint32_t)self->peer.rank + 1, zero = 0, num_right = 0;
    void **bases = (void **)self->exchange; /* between two exchanges */
    uint32_t *sum = (uint32_t *)(bases + num_ranks);
    size_t bytes = (size_t)num_ranks * sizeof *bases;
    MOK_TRY(cuda_status((cudaError_t)mok_peer_nccl_bases(self->window, num_ranks, bases, self->stream), "addresses of the regions"));
    MOK_TRY(cuda_status(cudaMemcpyAsync(self->peer.base, bases, bytes, cudaMemcpyDeviceToHost, self->stream), "addresses of the regions"));
    MOK_TRY(cuda_status(cudaMemcpyAsync(self->region, &mark, sizeof mark, cudaMemcpyHostToDevice, self->stream), "mark in the own region"));
    MOK_TRY(finish_stream(self, "addresses of the regions"));
    char *all = malloc((size_t)num_ranks);
    if (all == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory to meet %d ranks", self->peer.rank, num_ranks);
    }
    mok_status status = exchange(self, "", 1, all); /* all marks are there; overwrites bases */
    free(all);
    MOK_TRY(status);
    MOK_TRY(cuda_status(cudaMemcpyAsync(bases, self->peer.base, bytes, cudaMemcpyHostToDevice, self->stream), "look at the regions"));
    MOK_TRY(cuda_status(cudaMemcpyAsync(sum, &zero, sizeof zero, cudaMemcpyHostToDevice, self->stream), "look at the regions"));
    MOK_TRY(cuda_status((cudaError_t)mok_peer_nccl_check(bases, num_ranks, sum, self->stream), "look at the regions"));
    MOK_TRY(cuda_status(cudaMemcpyAsync(&num_right, sum, sizeof num_right, cudaMemcpyDeviceToHost, self->stream), "look at the regions"));
    MOK_TRY(finish_stream(self, "look at the regions"));
    if (num_right != (uint32_t)num_ranks) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "rank %d reads the right word from %u of %d regions", self->peer.rank, num_right, num_ranks);
    }
    return MOK_OK;
}

/* Without symmetric memory NCCL returns no window, or its own record of the registration, which is host memory: a kernel that reads it faults. */
static int is_on_device(ncclWindow_t window)
{
    struct cudaPointerAttributes attributes;
    cudaError_t error = window == NULL ? cudaErrorInvalidValue : cudaPointerGetAttributes(&attributes, window);
    (void)cudaGetLastError();
    return error == cudaSuccess && attributes.type == cudaMemoryTypeDevice;
}

static mok_status open_window(struct nccl_peer *self, size_t bytes)
{
    ncclResult_t result = ncclCommWindowRegister(self->comm, self->region, bytes, &self->window, NCCL_WIN_COLL_SYMMETRIC);
    MOK_TRY(finish(self, result, "symmetric window"));
    if (!is_on_device(self->window)) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "rank %d: NCCL makes no symmetric window on this machine: no peer access between its GPUs, or "
                             "NCCL_WIN_ENABLE or NCCL_CUMEM_ENABLE is 0", self->peer.rank);
    }
    int reachable = mok_peer_nccl_reachable(self->comm);
    if (reachable != self->peer.num_ranks) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "rank %d can load from the memory of %d ranks of %d: peer nccl needs one NVLink domain",
                             self->peer.rank, reachable, self->peer.num_ranks);
    }
    return find_regions(self);
}

/* Failure of one is failure of all. The sentence of the own one stays: after a fault of the device the exchange fails, too. */
static mok_status agree(struct nccl_peer *self, mok_status own)
{
    int32_t num_ranks = self->peer.num_ranks;
    int32_t *all = malloc((size_t)num_ranks * sizeof *all), mine = own;
    struct mok_kept kept = mok_base_keep(own);
    if (all == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory to meet %d ranks", self->peer.rank, num_ranks);
    }
    mok_status status = self->comm == NULL ? own : exchange(self, &mine, sizeof mine, all);
    for (int32_t r = 0; status == MOK_OK && own == MOK_OK && r < num_ranks; r++) {
        if (all[r] != MOK_OK) {
            status = mok_base_fail((mok_status)all[r], "rank %d cannot map the regions of the group", r);
        }
    }
    free(all);
    return own != MOK_OK ? mok_base_repeat_kept(&kept) : status;
}

static void close_window(struct nccl_peer *self)
{
    if (is_alone(self)) {
        self->memory.free(self->memory.context, self->region);
        self->region = NULL;
        return;
    }
    if (self->window != NULL && self->comm != NULL) {
        (void)finish(self, ncclCommWindowDeregister(self->comm, self->window), "closing of the window");
    }
    self->window = NULL;
    if (self->region != NULL) {
        (void)ncclMemFree(self->region);
    }
    self->region = NULL;
}

static mok_status map_region(struct nccl_peer *self, size_t bytes, const struct mok_peer_memory *memory)
{
    size_t whole = (bytes + NCCL_WIN_REQUIRED_ALIGNMENT - 1) / NCCL_WIN_REQUIRED_ALIGNMENT * NCCL_WIN_REQUIRED_ALIGNMENT;
    struct mok_peer_offer mine = {.bytes = bytes, .room = whole, .device = memory->device};
    mine.status = (int32_t)(memory->device < 0 ? MOK_ERR_UNSUPPORTED : alloc_region(self, whole));
    MOK_TRY(mok_peer_exchange_offers(&self->peer, &mine));
    MOK_TRY(agree(self, open_window(self, whole)));
    /* The word that was read: the region is zero again before any rank returns. */
    MOK_TRY(cuda_status(cudaMemsetAsync(self->region, 0, MOK_BOARD_BYTES, self->stream), "zeros in the region"));
    MOK_TRY(finish_stream(self, "zeros in the region"));
    return agree(self, MOK_OK);
}

static mok_status map_alone(struct nccl_peer *self, size_t bytes, const struct mok_peer_memory *memory)
{
    self->memory = *memory;
    self->region = memory->alloc(memory->context, bytes);
    struct mok_peer_offer mine = {.address = (uintptr_t)self->region, .bytes = bytes, .room = bytes, .device = memory->device};
    mine.status = (int32_t)(memory->device < 0 ? MOK_ERR_UNSUPPORTED : self->region == NULL ? MOK_ERR_MEMORY : MOK_OK);
    return mok_peer_exchange_offers(&self->peer, &mine);
}

static mok_status nccl_map(struct mok_peer *peer, size_t bytes, const struct mok_peer_memory *memory)
{
    struct nccl_peer *self = (struct nccl_peer *)peer;
    int before = 0;
    MOK_TRY(cuda_status(cudaGetDevice(&before), "current device"));
    MOK_TRY(cuda_status(cudaSetDevice(self->device), "device of the group"));
    mok_status status = is_alone(self) ? map_alone(self, bytes, memory) : map_region(self, bytes, memory);
    if (status == MOK_OK) {
        peer->bytes = bytes;
    } else {
        close_window(self);
        mok_peer_forget_regions(peer);
    }
    (void)cudaSetDevice(before);
    return status;
}

static void nccl_unmap(struct mok_peer *peer, int keep)
{
    struct nccl_peer *self = (struct nccl_peer *)peer;
    int before = 0;
    (void)cudaGetDevice(&before);
    (void)cudaSetDevice(self->device);
    self->is_kept = keep;
    if (!keep) {
        close_window(self);
    }
    mok_peer_forget_regions(peer);
    (void)cudaSetDevice(before);
}

static mok_status nccl_probe(void)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        return mok_base_fail(MOK_ERR_NO_DEVICE, "no usable GPU: %s", cudaGetErrorString(error));
    }
    return MOK_OK;
}

const struct mok_peer_ops mok_peer_nccl = {
    .name = "nccl",
    .probe = nccl_probe,
    .join = nccl_join,
    .allgather = nccl_allgather,
    .map = nccl_map,
    .unmap = nccl_unmap,
    .leave = nccl_leave,
};

#endif
