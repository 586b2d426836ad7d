/*
 * See bench_kernels.h.
 */
#include "bench/bench_kernels.h"

#include <cuda_bf16.h>

#include "cuda/hw/scope.cuh"

enum { FILL_BLOCKS = 1024, FILL_THREADS = 256 };

/* One thread. Rounds are compared by their difference: they may wrap. */
extern "C" __global__ void hold(struct mok_bench_gate *gate, int32_t rank, uint32_t round, uint64_t limit_ns)
{
    uint64_t since = mok_hw_time_ns();
    mok_hw_store_release_sys(&gate->arrived[rank], round);
    while ((int32_t)(mok_hw_load_acquire_sys(&gate->go) - round) < 0) {
        if (mok_hw_time_ns() - since > limit_ns) {
            mok_hw_store_release_sys(&gate->given_up[rank], 1);
            return;
        }
    }
}

static __device__ __forceinline__ uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Two values of one 64-bit number, by Box and Muller. The first uniform value is never 0. */
extern "C" __global__ void fill_normal(__nv_bfloat16 *out, int64_t count, float scale, uint64_t seed)
{
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t pair = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; 2 * pair < count; pair += stride) {
        uint64_t bits = mix(mix(seed) + (uint64_t)pair * 0x9e3779b97f4a7c15u);
        float radius = scale * sqrtf(-2.0f * logf(((float)(uint32_t)(bits >> 40) + 0.5f) * 0x1p-24f));
        float sine, cosine;
        sincospif((float)(uint32_t)(bits & 0xffffff) * 0x1p-23f, &sine, &cosine);
        out[2 * pair] = __float2bfloat16_rn(radius * cosine);
        if (2 * pair + 1 < count) {
            out[2 * pair + 1] = __float2bfloat16_rn(radius * sine);
        }
    }
}

int mok_bench_hold(struct mok_bench_gate *gate, int32_t rank, uint32_t round, uint64_t limit_ns, void *stream)
{
    hold<<<1, 1, 0, (cudaStream_t)stream>>>(gate, rank, round, limit_ns);
    return (int)cudaGetLastError();
}

int mok_bench_fill_normal(void *out, int64_t count, float scale, uint64_t seed, void *stream)
{
    fill_normal<<<FILL_BLOCKS, FILL_THREADS, 0, (cudaStream_t)stream>>>((__nv_bfloat16 *)out, count, scale, seed);
    return (int)cudaGetLastError();
}
