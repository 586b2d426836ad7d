/*
 * See device_board.h. Every entry leaves the caller's current device as it was, and waits for its own stream alone.
 */
#include "peer/device_board.h"

#include "base/status.h"

#ifdef MOK_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "peer/board_swap.h"
#include "peer/peer_access.h"

struct mok_device_board {
    struct mok_notice_access access; /* its context is this struct */
    int32_t device;
    cudaStream_t stream;
    char *staging; /* pinned host memory: MOK_BOARD_BYTES */
};

static mok_status check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) {
        return MOK_OK;
    }
    (void)cudaGetLastError();
    return mok_base_fail(error == cudaErrorMemoryAllocation ? MOK_ERR_MEMORY : MOK_ERR_DEVICE, "%s: %s (%s)", what, cudaGetErrorString(error),
                         cudaGetErrorName(error));
}

/* Enqueues one kind of work, then waits for it. */
enum job { JOB_READ, JOB_WRITE, JOB_SWAP, JOB_CLEAR };

static cudaError_t enqueue(struct mok_device_board *board, enum job job, void *there, const uint64_t *words, size_t bytes)
{
    switch (job) {
    case JOB_READ: return cudaMemcpyAsync(board->staging, there, bytes, cudaMemcpyDeviceToHost, board->stream);
    case JOB_WRITE: return cudaMemcpyAsync(there, board->staging, bytes, cudaMemcpyHostToDevice, board->stream);
    case JOB_SWAP: return (cudaError_t)mok_peer_swap_word(there, words[0], words[1], board->staging, board->stream);
    case JOB_CLEAR: return cudaMemsetAsync(there, 0, bytes, board->stream);
    }
    return cudaErrorInvalidValue;
}

static mok_status run(struct mok_device_board *board, enum job job, void *there, const uint64_t *words, size_t bytes)
{
    int before = 0;
    MOK_TRY(check(cudaGetDevice(&before), "current device"));
    cudaError_t error = cudaSetDevice(board->device);
    error = error == cudaSuccess ? enqueue(board, job, there, words, bytes) : error;
    error = error == cudaSuccess ? cudaStreamSynchronize(board->stream) : error;
    mok_status status = check(error, "a notice board on a device");
    (void)cudaSetDevice(before);
    return status;
}

static mok_status board_read(void *context, void *to, const void *from, size_t bytes)
{
    struct mok_device_board *board = context;
    MOK_TRY(run(board, JOB_READ, (void *)(uintptr_t)from, NULL, bytes));
    memcpy(to, board->staging, bytes);
    return MOK_OK;
}

static mok_status board_write(void *context, void *to, const void *from, size_t bytes)
{
    struct mok_device_board *board = context;
    memcpy(board->staging, from, bytes);
    return run(board, JOB_WRITE, to, NULL, bytes);
}

static mok_status board_swap(void *context, void *word, uint64_t expected, uint64_t desired, uint64_t *found_out)
{
    struct mok_device_board *board = context;
    const uint64_t words[2] = {expected, desired};
    MOK_TRY(run(board, JOB_SWAP, word, words, 0));
    memcpy(found_out, board->staging, sizeof *found_out);
    return MOK_OK;
}

mok_status mok_peer_device_board_clear(struct mok_device_board *board, void *to, size_t bytes)
{
    return bytes > 0 ? run(board, JOB_CLEAR, to, NULL, bytes) : MOK_OK;
}

const struct mok_notice_access *mok_peer_device_board_access(const struct mok_device_board *board) { return &board->access; }

/* ---- opening ---------------------------------------------------------------------------------------------------------------- */

static mok_status reach(int32_t device, const void *region, int32_t rank)
{
    struct cudaPointerAttributes attributes;
    int can = 0;
    MOK_TRY(check(cudaPointerGetAttributes(&attributes, region), "what kind of memory a region is"));
    if (attributes.type != cudaMemoryTypeDevice) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "external.bases[%" PRId32 "] is %p, which is no device memory, and backend is cuda", rank, region);
    }
    if (attributes.device == device) {
        return MOK_OK;
    }
    MOK_TRY(check(cudaDeviceCanAccessPeer(&can, device, attributes.device), "question for peer access"));
    if (!can) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "external.bases[%" PRId32 "] is memory of device %d, which device %" PRId32 " cannot load from", rank,
                             attributes.device, device);
    }
    return mok_peer_enable_access(device, attributes.device);
}

static mok_status fill_board(struct mok_device_board *board, char *const *regions, int32_t num_ranks)
{
    MOK_TRY(check(cudaSetDevice(board->device), "device of the group"));
    for (int32_t r = 0; r < num_ranks; r++) {
        MOK_TRY(reach(board->device, regions[r], r));
    }
    MOK_TRY(check(cudaStreamCreateWithFlags(&board->stream, cudaStreamNonBlocking), "stream of the peer"));
    MOK_TRY(check(cudaHostAlloc((void **)&board->staging, MOK_BOARD_BYTES, cudaHostAllocMapped), "pinned host memory"));
    return check((cudaError_t)mok_peer_load_swap(), "kernel of the peer");
}

mok_status mok_peer_device_board_open(int32_t device, char *const *regions, int32_t num_ranks, struct mok_device_board **board_out)
{
    int before = 0;
    MOK_TRY(check(cudaGetDevice(&before), "current device"));
    struct mok_device_board *board = calloc(1, sizeof *board);
    if (board == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for a notice board");
    }
    board->device = device >= 0 ? device : before;
    board->access = (struct mok_notice_access){.read = board_read, .write = board_write, .swap = board_swap, .context = board};
    mok_status status = fill_board(board, regions, num_ranks);
    (void)cudaSetDevice(before);
    if (status != MOK_OK) {
        mok_peer_device_board_close(board);
        return status;
    }
    *board_out = board;
    return MOK_OK;
}

void mok_peer_device_board_close(struct mok_device_board *board)
{
    if (board == NULL) {
        return;
    }
    if (board->stream != NULL) {
        (void)cudaStreamDestroy(board->stream);
    }
    (void)cudaFreeHost(board->staging);
    free(board);
}

#else

mok_status mok_peer_device_board_open(int32_t device, char *const *regions, int32_t num_ranks, struct mok_device_board **board_out)
{
    (void)device, (void)regions, (void)num_ranks, (void)board_out;
    return mok_base_fail(MOK_ERR_NOT_BUILT, "peer external with backend cuda: this build has no CUDA");
}

void mok_peer_device_board_close(struct mok_device_board *board) { (void)board; }
const struct mok_notice_access *mok_peer_device_board_access(const struct mok_device_board *board) { return (const void *)board; }

mok_status mok_peer_device_board_clear(struct mok_device_board *board, void *to, size_t bytes)
{
    (void)board, (void)to, (void)bytes;
    return MOK_ERR_NOT_BUILT;
}

#endif
