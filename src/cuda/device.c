/*
 * The CUDA runtime as the rest of src/cuda uses it. See device.h.
 */
#include "cuda/device.h"

#include <cuda_runtime_api.h>
#include <sched.h>
#include <time.h>

#include "base/status.h"

enum {
    CAPABILITY_MAJOR = 9, /* the kernels are built for sm_90a alone */
    CAPABILITY_MINOR = 0,
    YIELDS = 200, /* turns of a host wait that only yield: a pass takes about a millisecond */
    NAP_NS = 20000
};

mok_status mok_cuda_check(int error, const char *what)
{
    if (error == cudaSuccess) {
        return MOK_OK;
    }
    (void)cudaGetLastError(); /* not to be found again by the caller's own check */
    mok_status status = error == cudaErrorMemoryAllocation ? MOK_ERR_MEMORY : MOK_ERR_DEVICE;
    return mok_base_fail(status, "%s: %s (%s)", what, cudaGetErrorString((cudaError_t)error), cudaGetErrorName((cudaError_t)error));
}

static int has_kernels_for(int device)
{
    int major = 0, minor = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == CAPABILITY_MAJOR &&
           minor == CAPABILITY_MINOR;
}

mok_status mok_cuda_probe(void)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return mok_base_fail(MOK_ERR_NO_DEVICE, "no usable GPU: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
    }
    for (int device = 0; device < count; device++) {
        if (has_kernels_for(device)) {
            return MOK_OK;
        }
    }
    return mok_base_fail(MOK_ERR_NO_DEVICE, "no usable GPU: none of %d devices has compute capability %d.%d, the only one this build has kernels for",
                         count, CAPABILITY_MAJOR, CAPABILITY_MINOR);
}

mok_status mok_cuda_enter_device(int32_t device, int32_t *before_out)
{
    int before = 0;
    MOK_TRY(mok_cuda_check(cudaGetDevice(&before), "current device"));
    if (before != device) {
        MOK_TRY(mok_cuda_check(cudaSetDevice(device), "change of the current device"));
    }
    *before_out = before;
    return MOK_OK;
}

void mok_cuda_leave_device(int32_t device, int32_t before)
{
    if (before != device) {
        (void)cudaSetDevice(before);
    }
}

mok_status mok_cuda_device_facts(int32_t device, struct mok_cuda_device_facts *facts_out)
{
    MOK_TRY(mok_cuda_probe());
    int count = 0, ordinal = device;
    MOK_TRY(mok_cuda_check(cudaGetDeviceCount(&count), "number of devices"));
    if (device < 0) {
        MOK_TRY(mok_cuda_check(cudaGetDevice(&ordinal), "current device"));
    } else if (device >= count) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.device is %d: this process sees %d devices", device, count);
    }
    if (!has_kernels_for(ordinal)) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "device %d: this build has kernels for compute capability %d.%d only", ordinal, CAPABILITY_MAJOR,
                             CAPABILITY_MINOR);
    }
    struct cudaDeviceProp properties;
    MOK_TRY(mok_cuda_check(cudaGetDeviceProperties(&properties, ordinal), "properties of the device"));
    facts_out->ordinal = ordinal;
    facts_out->num_sms = properties.multiProcessorCount;
    facts_out->memory_bytes = properties.totalGlobalMem;
    return MOK_OK;
}

static cudaError_t zero_on(void *memory, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = cudaMemsetAsync(memory, 0, bytes, stream);
    return error == cudaSuccess ? cudaStreamSynchronize(stream) : error;
}

static cudaError_t zero(void *memory, size_t bytes, mok_stream stream)
{
    if (stream != NULL) {
        return zero_on(memory, bytes, (cudaStream_t)stream);
    }
    cudaStream_t own;
    cudaError_t error = cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
    if (error == cudaSuccess) {
        error = zero_on(memory, bytes, own);
        (void)cudaStreamDestroy(own);
    }
    return error;
}

void *mok_cuda_alloc(int32_t device, size_t bytes)
{
    int32_t before = 0;
    void *memory = NULL;
    if (mok_cuda_enter_device(device, &before) != MOK_OK) {
        return NULL;
    }
    if (cudaMalloc(&memory, bytes > 0 ? bytes : 1) != cudaSuccess) {
        (void)cudaGetLastError();
        memory = NULL;
    }
    mok_cuda_leave_device(device, before);
    return memory;
}

void *mok_cuda_alloc_zeroed(int32_t device, size_t bytes, mok_stream stream)
{
    int32_t before = 0;
    void *memory = mok_cuda_alloc(device, bytes);
    if (memory == NULL || mok_cuda_enter_device(device, &before) != MOK_OK) {
        return memory;
    }
    cudaError_t error = zero(memory, bytes, stream);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        (void)cudaFree(memory);
        memory = NULL;
    }
    mok_cuda_leave_device(device, before);
    return memory;
}

void mok_cuda_free(int32_t device, void *memory)
{
    int32_t before = 0;
    if (memory != NULL && mok_cuda_enter_device(device, &before) == MOK_OK) {
        (void)cudaFree(memory);
        mok_cuda_leave_device(device, before);
    }
}

int64_t mok_cuda_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void mok_cuda_pause(int32_t *turns)
{
    if (*turns < YIELDS) {
        (*turns)++;
        sched_yield();
        return;
    }
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}
