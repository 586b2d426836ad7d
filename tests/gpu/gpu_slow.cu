/*
 * See gpu_slow.h.
 */
#include "gpu_slow.h"

#include "cuda/hw/address.cuh"
#include "cuda/hw/scope.cuh"

extern "C" __global__ void wait_a_while(uint64_t ns)
{
    uint64_t since = mok_hw_time_ns();
    while (mok_hw_time_ns() - since < ns) {
        mok_hw_nap(1000);
    }
}

int gpu_slow(void *stream, uint64_t ns)
{
    wait_a_while<<<1, 1, 0, (cudaStream_t)stream>>>(ns);
    return (int)cudaGetLastError();
}
