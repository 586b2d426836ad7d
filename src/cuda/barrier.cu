/*
 * Barriers between ranks as launches of their own, and words that need no answer (protocol.md sections 1 and 6).
 *
 * | release                                        | acquire                                               |
 * | arrive: everything before it in stream order,  | wait: everything behind it in stream order on the     |
 * | then store_release_sys to word[self] of rank s | rank s, which reads its own word[self] by acquire     |
 * The kernel boundary orders the writes of earlier kernels (bulk copies: each kernel waits for its own) before the release.
 */
#include "cuda/kernel.h"
#include "cuda/watch.cuh"

MOK_DEVICE int needs_are_met(const struct mok_cuda_barrier_args *args) { return args->needs == NULL || *args->needs != 0; }

MOK_DEVICE void arrive_at_all(const struct mok_cuda_barrier_args *args, uint32_t n)
{
    const struct mok_cuda_watch *watch = &args->watch;
    for (int32_t s = (int32_t)threadIdx.x; s < watch->num_ranks; s += (int32_t)blockDim.x) {
        mok_hw_fence_sys();
        mok_hw_store_release_sys(mok_cuda_word(watch, s, args->words_off) + watch->rank, n);
    }
}

MOK_DEVICE int wait_for_all(const struct mok_cuda_barrier_args *args, uint32_t n)
{
    const struct mok_cuda_watch *watch = &args->watch;
    const uint32_t *words = mok_cuda_word(watch, watch->rank, args->words_off);
    int ok = 1;
    for (int32_t s = (int32_t)threadIdx.x; s < watch->num_ranks; s += (int32_t)blockDim.x) {
        ok = ok && mok_cuda_wait_word(watch, words + s, n, watch->peer_limit_ns, args->site, s);
    }
    return ok;
}

/* One block. A rank that is aborted neither arrives nor waits: its peers see the abort word. */
extern "C" __global__ void __launch_bounds__(MOK_CUDA_SCAN_THREADS) barrier_between_ranks(const __grid_constant__ struct mok_cuda_barrier_args args)
{
    uint32_t n = *args.epoch + (uint32_t)args.ahead;
    int alive = needs_are_met(&args);
    if (alive && mok_cuda_abort_word(&args.watch) != 0) {
        alive = 0;
        if (threadIdx.x == 0) {
            struct mok_cuda_sight sight = {args.site, -1, (int64_t)n, 0};
            mok_cuda_give_up(&args.watch, &sight);
        }
    }
    if (alive && args.arrives) {
        arrive_at_all(&args, n);
    }
    if (!args.waits) {
        return;
    }
    int ok = __syncthreads_and(alive && wait_for_all(&args, n));
    if (threadIdx.x == 0) {
        *args.ok = ok ? 1 : 0;
        if (ok) {
            *args.epoch = n;
        }
    }
}

extern "C" __global__ void __launch_bounds__(MOK_CUDA_SCAN_THREADS) raise_word(const __grid_constant__ struct mok_cuda_raise_args args)
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
