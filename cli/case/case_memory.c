/*
 * Host memory as the CPU backend takes it, and which memory belongs to which backend.
 */
#include "case/case_memory.h"

#include <stdlib.h>
#include <string.h>

static mok_status host_open(int32_t rank, int32_t *device_out, mok_stream *stream_out)
{
    (void)rank;
    *device_out = -1;
    *stream_out = NULL;
    return MOK_OK;
}

static void host_close(mok_stream stream) { (void)stream; }

static void *host_alloc(size_t bytes) { return aligned_alloc(256, (bytes + 256) / 256 * 256); }

static mok_status host_copy(void *to, const void *from, size_t bytes)
{
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
    return MOK_OK;
}

static mok_status host_fill(void *to, int byte, size_t bytes)
{
    if (bytes > 0) {
        memset(to, byte, bytes);
    }
    return MOK_OK;
}

const struct mok_case_memory mok_case_memory_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .alloc = host_alloc,
    .free = free,
    .upload = host_copy,
    .download = host_copy,
    .fill = host_fill,
};

const struct mok_case_memory *mok_case_memory_of(int32_t backend)
{
    if (backend == MOK_BACKEND_CPU) {
        return &mok_case_memory_host;
    }
#ifdef MOK_HAVE_CUDA
    if (backend == MOK_BACKEND_CUDA) {
        return &mok_case_memory_cuda;
    }
#endif
    return NULL;
}
