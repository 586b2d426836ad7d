/*
 * Peer access between the GPUs of one process, enabled once.
 *
 * CUDA answers a second cudaDeviceEnablePeerAccess with an error, and tools report that error to the user even where the caller takes it for what it
 * is. So one table of the process remembers which pairs the library has enabled. CUDA has no question for "is it enabled", so a pair that the
 * caller enabled by himself is still found by the error.
 *
 * Access is between contexts, not devices: it is gone when either device has been reset. So an entry holds the two contexts' numbers, which the
 * driver gives out once in the life of a process.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <pthread.h>

#include "base/status.h"
#include "cuda/device.h"

enum {
    MAX_PEERS = 64,
    CONTEXT_ID_VERSION = 12000 /* of the driver interface that has cuCtxGetId */
};

struct pair {
    unsigned long long context, peer_context; /* 0 = never enabled by the library */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static struct pair pairs[MAX_PEERS][MAX_PEERS];

/* Number of the context that the runtime works with on a device. */
static mok_status find_context(int32_t device, unsigned long long *id_out)
{
    union {
        void *pointer;
        CUresult (*function)(CUcontext, unsigned long long *);
    } entry = {NULL};
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    int32_t before = 0;
    MOK_TRY(mok_cuda_check(cudaGetDriverEntryPointByVersion("cuCtxGetId", &entry.pointer, CONTEXT_ID_VERSION, cudaEnableDefault, &result),
                           "question for the context"));
    if (result != cudaDriverEntryPointSuccess || entry.pointer == NULL) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "the driver has no cuCtxGetId (query result %d)", (int)result);
    }
    MOK_TRY(mok_cuda_enter_device(device, &before));
    mok_status status = mok_cuda_check(cudaFree(NULL), "context of a device"); /* makes the context, if this process had none there */
    CUresult error = status == MOK_OK ? entry.function(NULL, id_out) : CUDA_SUCCESS;
    mok_cuda_leave_device(device, before);
    if (error != CUDA_SUCCESS) {
        return mok_base_fail(MOK_ERR_DEVICE, "the driver does not know the context of device %" PRId32 " (error %d)", device, (int)error);
    }
    return status;
}

/* The lock is held, `device` is current. */
static mok_status enable(int32_t peer, struct pair now, struct pair *known)
{
    if (known->context == now.context && known->peer_context == now.peer_context) {
        return MOK_OK;
    }
    cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error != cudaErrorPeerAccessAlreadyEnabled) { /* by the caller: as good */
        MOK_TRY(mok_cuda_check(error, "peer access"));
    }
    (void)cudaGetLastError();
    *known = now;
    return MOK_OK;
}

mok_status mok_cuda_enable_peer(int32_t device, int32_t peer)
{
    struct pair now = {0, 0};
    int32_t before = 0;
    if (device >= MAX_PEERS || peer >= MAX_PEERS) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "peer access between devices %" PRId32 " and %" PRId32 ": at most %d devices", device, peer, MAX_PEERS);
    }
    MOK_TRY(find_context(device, &now.context));
    MOK_TRY(find_context(peer, &now.peer_context));
    MOK_TRY(mok_cuda_enter_device(device, &before));
    pthread_mutex_lock(&lock);
    mok_status status = enable(peer, now, &pairs[device][peer]);
    pthread_mutex_unlock(&lock);
    mok_cuda_leave_device(device, before);
    return status;
}
