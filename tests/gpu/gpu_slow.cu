/*
 * See gpu_slow.h.
 */
#include "gpu_slow.h"

#include "cuda/hw/address.cuh"
#include "cuda/hw/scope.cuh"

enum { COMPARE_BLOCKS = 32, COMPARE_THREADS = 256, HOLD_THREADS = 1024, HOLD_BYTES = 227 * 1024 };

extern "C" __global__ void wait_a_while(uint64_t ns)
{
    uint64_t since = mok_hw_time_ns();
    while (mok_hw_time_ns() - since < ns) {
        mok_hw_nap(1000);
    }
}

/* A block fills an SM's shared memory, so each has one for itself. words[0]: blocks that run; words[1]: not 0 = end. */
extern "C" __global__ void __launch_bounds__(HOLD_THREADS) hold_sms(uint32_t *words, uint64_t limit_ns)
{
    uint64_t since = mok_hw_time_ns();
    if (threadIdx.x == 0) {
        atomicAdd_system(&words[0], 1u);
    }
    while (mok_hw_load_relaxed_sys(&words[1]) == 0 && mok_hw_time_ns() - since < limit_ns) {
        mok_hw_nap(1000);
    }
}

extern "C" __global__ void __launch_bounds__(COMPARE_THREADS) count_differences(const uint4 *a, const uint4 *b, uint64_t num, uint32_t *count)
{
    uint32_t mine = 0;
    for (uint64_t i = blockIdx.x * COMPARE_THREADS + threadIdx.x; i < num; i += COMPARE_BLOCKS * COMPARE_THREADS) {
        mine += a[i].x != b[i].x || a[i].y != b[i].y || a[i].z != b[i].z || a[i].w != b[i].w;
    }
    if (mine > 0) {
        atomicAdd(count, mine);
    }
}

extern "C" __global__ void __launch_bounds__(COMPARE_THREADS) copy_words(uint4 *to, const uint4 *from, uint64_t num, uint32_t value)
{
    for (uint64_t i = blockIdx.x * COMPARE_THREADS + threadIdx.x; i < num; i += COMPARE_BLOCKS * COMPARE_THREADS) {
        to[i] = from != NULL ? from[i] : make_uint4(value, value, value, value);
    }
}

int gpu_copy(void *stream, void *to, const void *from, size_t bytes)
{
    copy_words<<<COMPARE_BLOCKS, COMPARE_THREADS, 0, (cudaStream_t)stream>>>((uint4 *)to, (const uint4 *)from, bytes / 16, 0);
    return (int)cudaGetLastError();
}

int gpu_fill(void *stream, void *to, int byte, size_t bytes)
{
    copy_words<<<COMPARE_BLOCKS, COMPARE_THREADS, 0, (cudaStream_t)stream>>>((uint4 *)to, NULL, bytes / 16, (uint32_t)byte * 0x01010101u);
    return (int)cudaGetLastError();
}

int gpu_load_kernels(void)
{
    const void *const kernels[] = {(const void *)wait_a_while, (const void *)hold_sms, (const void *)count_differences, (const void *)copy_words};
    struct cudaFuncAttributes attributes;
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0] && error == cudaSuccess; i++) {
        error = cudaFuncGetAttributes(&attributes, kernels[i]);
    }
    return (int)error;
}

int gpu_slow(void *stream, uint64_t ns)
{
    wait_a_while<<<1, 1, 0, (cudaStream_t)stream>>>(ns);
    return (int)cudaGetLastError();
}

int gpu_hold(void *stream, int32_t num_sms, uint32_t *words, uint64_t limit_ns)
{
    cudaError_t error = cudaFuncSetAttribute((const void *)hold_sms, cudaFuncAttributeMaxDynamicSharedMemorySize, HOLD_BYTES);
    if (error != cudaSuccess) {
        return (int)error;
    }
    hold_sms<<<num_sms, HOLD_THREADS, HOLD_BYTES, (cudaStream_t)stream>>>(words, limit_ns);
    return (int)cudaGetLastError();
}

int gpu_count_differences(void *stream, const void *a, const void *b, size_t bytes, uint32_t *count)
{
    count_differences<<<COMPARE_BLOCKS, COMPARE_THREADS, 0, (cudaStream_t)stream>>>((const uint4 *)a, (const uint4 *)b, bytes / 16, count);
    return (int)cudaGetLastError();
}
