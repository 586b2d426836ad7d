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
#include "peer/peer_access.h"

#ifdef MOK_HAVE_CUDA

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <pthread.h>

#include "base/status.h"

enum {
    MAX_PEERS = 64,
    CONTEXT_ID_VERSION = 12000 /* of the driver interface that has cuCtxGetId */
};

struct pair {
    unsigned long long context, peer_context; /* 0 = never enabled by the library */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static struct pair pairs[MAX_PEERS][MAX_PEERS];

static mok_status check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) {
        return MOK_OK;
    }
    (void)cudaGetLastError();
    return mok_base_fail(MOK_ERR_DEVICE, "%s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

/* Number of the context of the current device; cudaSetDevice has made it, if there was none. */
static mok_status find_context(unsigned long long *id_out)
{
    union {
        void *pointer;
        CUresult (*function)(CUcontext, unsigned long long *);
    } entry = {NULL};
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    MOK_TRY(check(cudaGetDriverEntryPointByVersion("cuCtxGetId", &entry.pointer, CONTEXT_ID_VERSION, cudaEnableDefault, &result),
                  "question for the context"));
    if (result != cudaDriverEntryPointSuccess || entry.pointer == NULL) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "the driver has no cuCtxGetId (query result %d)", (int)result);
    }
    CUresult error = entry.function(NULL, id_out);
    return error == CUDA_SUCCESS ? MOK_OK : mok_base_fail(MOK_ERR_DEVICE, "the driver does not know the current context (error %d)", (int)error);
}

/* The lock is held, `device` is current. */
static mok_status enable(int32_t device, int32_t peer, struct pair now)
{
    struct pair *known = &pairs[device][peer];
    if (known->context == now.context && known->peer_context == now.peer_context) {
        return MOK_OK;
    }
    cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error != cudaErrorPeerAccessAlreadyEnabled) { /* by the caller: as good */
        MOK_TRY(check(error, "peer access"));
    }
    (void)cudaGetLastError();
    *known = now;
    return MOK_OK;
}

/* Leaves another device current. */
static mok_status enable_once(int32_t device, int32_t peer)
{
    struct pair now = {0, 0};
    MOK_TRY(check(cudaSetDevice(peer), "current device"));
    MOK_TRY(find_context(&now.peer_context));
    MOK_TRY(check(cudaSetDevice(device), "current device"));
    MOK_TRY(find_context(&now.context));
    pthread_mutex_lock(&lock);
    mok_status status = enable(device, peer, now);
    pthread_mutex_unlock(&lock);
    return status;
}

mok_status mok_peer_enable_access(int32_t device, int32_t peer)
{
    int before = 0;
    if (device >= MAX_PEERS || peer >= MAX_PEERS) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "peer access between devices %" PRId32 " and %" PRId32 ": at most %d devices", device, peer, MAX_PEERS);
    }
    MOK_TRY(check(cudaGetDevice(&before), "current device"));
    mok_status status = enable_once(device, peer);
    (void)cudaSetDevice(before);
    return status;
}

#endif
