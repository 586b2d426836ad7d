/*
 * Device memory and one stream per rank, through the CUDA runtime. Rank r works on device r mod the number of devices, so several ranks may
 * share one. Access between devices is enabled by the groups that need it.
 *
 * Ranks that share a device wait for each other on it, so nothing here may wait for another rank's stream. Every copy and fill goes through the rank's
 * own stream and not through the default one. A rank keeps its stream from case to case: streams that come and go may end up in one hardware queue
 * with the stream of another rank.
 */
#include <cuda_runtime_api.h>

#include "case/case_memory.h"

enum { MAX_RANKS = 64 };

static cudaStream_t streams[MAX_RANKS];        /* a rank is one thread at a time */
static _Thread_local cudaStream_t rank_stream; /* of the rank whose thread this is */

static mok_status status_of(cudaError_t error) { return error == cudaSuccess ? MOK_OK : MOK_ERR_DEVICE; }

static mok_status device_open(int32_t rank, int32_t *device_out, mok_stream *stream_out)
{
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
        return MOK_ERR_NO_DEVICE;
    }
    if (rank >= MAX_RANKS || cudaSetDevice(rank % num_devices) != cudaSuccess) {
        return MOK_ERR_DEVICE;
    }
    if (streams[rank] == NULL && cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking) != cudaSuccess) {
        return MOK_ERR_DEVICE;
    }
    rank_stream = streams[rank];
    *device_out = rank % num_devices;
    *stream_out = rank_stream;
    return MOK_OK;
}

static void device_close(mok_stream stream) { (void)cudaStreamSynchronize((cudaStream_t)stream); }

static void *device_alloc(size_t bytes)
{
    void *memory = NULL;
    return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : NULL; /* aligned to 256 bytes by the runtime's promise */
}

static void device_free(void *memory) { (void)cudaFree(memory); }

/* After everything that the rank has enqueued. */
static mok_status finish(cudaError_t error) { return status_of(error == cudaSuccess ? cudaStreamSynchronize(rank_stream) : error); }

static mok_status device_upload(void *to, const void *from, size_t bytes)
{
    return finish(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, rank_stream));
}

static mok_status device_download(void *to, const void *from, size_t bytes)
{
    return finish(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, rank_stream));
}

static mok_status device_fill(void *to, int byte, size_t bytes) { return finish(cudaMemsetAsync(to, byte, bytes, rank_stream)); }

const struct mok_case_memory mok_case_memory_cuda = {
    .name = "device",
    .open = device_open,
    .close = device_close,
    .alloc = device_alloc,
    .free = device_free,
    .upload = device_upload,
    .download = device_download,
    .fill = device_fill,
};
