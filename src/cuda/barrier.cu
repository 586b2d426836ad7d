/*
 * Barriers between ranks as launches of their own, and words that need no answer (protocol.md sections 1 and 6). The kernel boundary orders the
 * writes of earlier kernels (bulk copies: each kernel waits for its own) before the arrival, and the reads of later ones behind the wait.
 */
#include "cuda/kernel.h"
#include "cuda/meet.cuh"

/* One block. */
extern "C" __global__ void __launch_bounds__(MOK_CUDA_ONE_BLOCK) barrier_between_ranks(const __grid_constant__ struct mok_cuda_barrier_args args)
{
    uint32_t n = *args.epoch + (uint32_t)args.ahead;
    int alive = args.needs == NULL || *args.needs != 0;
    alive = alive && mok_cuda_may_meet(&args.watch, n, args.site);
    if (alive && args.arrives) {
        mok_cuda_arrive(&args.watch, args.words_off, n);
    }
    if (!args.waits) {
        return;
    }
    int ok = __syncthreads_and(alive && mok_cuda_wait_for_ranks(&args.watch, args.words_off, n, args.site));
    if (threadIdx.x == 0) {
        *args.ok = ok ? 1 : 0;
        if (ok) {
            *args.epoch = n;
        }
    }
}

extern "C" __global__ void __launch_bounds__(MOK_CUDA_ONE_BLOCK) raise_word(const __grid_constant__ struct mok_cuda_raise_args args)
{
    for (int32_t s = (int32_t)threadIdx.x; s < args.watch.num_ranks; s += (int32_t)blockDim.x) {
        mok_hw_fence_sys();
        mok_hw_store_release_sys(mok_cuda_word(&args.watch, s, args.word_off), args.value);
    }
}

struct mok_cuda_kernel mok_cuda_barrier_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)barrier_between_ranks, 0, sizeof(struct mok_cuda_barrier_args)};
    return kernel;
}

struct mok_cuda_kernel mok_cuda_raise_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)raise_word, 0, sizeof(struct mok_cuda_raise_args)};
    return kernel;
}
