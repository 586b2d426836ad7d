/*
 * The CUDA runtime as the rest of src/cuda uses it: errors as mok_status, the caller's current device left alone, what a device is.
 */
#ifndef MOK_CUDA_DEVICE_H
#define MOK_CUDA_DEVICE_H

#include <mok/mok.h>

struct mok_cuda_device_facts {
    int32_t ordinal;
    int32_t num_sms;
    uint64_t memory_bytes;
};

/* MOK_OK, or MOK_ERR_DEVICE (MOK_ERR_MEMORY) with what was tried and what CUDA said. error: a cudaError_t. */
mok_status mok_cuda_check(int error, const char *what);

/* MOK_OK when there is a driver and a GPU that this build has kernels for; else MOK_ERR_NO_DEVICE with a sentence. */
mok_status mok_cuda_probe(void);

/* Makes `device` current; *before_out for mok_cuda_leave_device. */
mok_status mok_cuda_enter_device(int32_t device, int32_t *before_out);
void mok_cuda_leave_device(int32_t device, int32_t before);

/* Facts of a device, -1 = the current one. Errors: ARGUMENT (no such device), UNSUPPORTED (not compute capability 9.0), NO_DEVICE. */
mok_status mok_cuda_device_facts(int32_t device, struct mok_cuda_device_facts *facts_out);

/* Device memory, 256-byte aligned; NULL when there is none. alloc_zeroed: all bytes are 0; it blocks, but waits only for its own work on
 * `stream` (cudaStream_t; NULL = a stream of its own: the default stream would wait for kernels that wait for us). */
void *mok_cuda_alloc(int32_t device, size_t bytes);
void *mok_cuda_alloc_zeroed(int32_t device, size_t bytes, mok_stream stream);
void mok_cuda_free(int32_t device, void *memory);

/* Monotonic clock. */
int64_t mok_cuda_now_ns(void);

/* One turn of a polling wait on the host: yields at first, then sleeps for moments. */
void mok_cuda_pause(int32_t *turns);

#endif
