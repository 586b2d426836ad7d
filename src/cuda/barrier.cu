/*
 * Barriers between ranks as launches of their own, and words that need no answer (protocol.md sections 1 and 6). The kernel boundary orders the
 * writes of earlier kernels (bulk copies: each kernel waits for its own) before the arrival, and the reads of later ones behind the wait.
 */
#include "cuda/kernel.h"
#include "cuda/meet.cuh"

/* Thread s tells rank s what this rank meets it for, before the same thread arrives there: the word's release covers the tag. */
MOK_DEVICE void leave_tags(const struct mok_cuda_barrier_args *args, uint64_t tag)
{
    for (int32_t s = (int32_t)threadIdx.x; s < args->watch.num_ranks; s += (int32_t)blockDim.x) {
        mok_hw_store_relaxed_sys_u64((uint64_t *)(args->watch.base[s] + args->tags_off) + args->watch.rank, tag);
    }
}

/*
 * Behind the wait for rank s, by thread s. Where two tags differ, each rank sees one that differs from its own: so it records that itself and raises
 * its own abort word alone, and a slow rank is not told by a peer that somebody gave up.
 */
MOK_DEVICE int are_tags_mine(const struct mok_cuda_barrier_args *args, uint64_t tag)
{
    const struct mok_cuda_watch *watch = &args->watch;
    int ok = 1;
    for (int32_t s = (int32_t)threadIdx.x; s < watch->num_ranks; s += (int32_t)blockDim.x) {
        uint64_t seen = mok_hw_load_relaxed_sys_u64((const uint64_t *)(watch->own + args->tags_off) + s);
        if (seen != tag) {
            struct mok_cuda_sight sight = {args->site, s, (int64_t)tag, (int64_t)seen};
            mok_cuda_record_fault(watch, MOK_ERR_DISAGREE, watch->rank, &sight);
            mok_hw_store_relaxed_sys(mok_cuda_word(watch, watch->rank, watch->abort_off), 1u + (uint32_t)watch->rank);
            ok = 0;
        }
    }
    return ok;
}

/* One block. */
extern "C" __global__ void __launch_bounds__(MOK_CUDA_ONE_BLOCK) barrier_between_ranks(const __grid_constant__ struct mok_cuda_barrier_args args)
{
    uint32_t n = *args.epoch + (uint32_t)args.ahead;
    int alive = args.needs == NULL || *args.needs != 0;
    alive = alive && mok_cuda_may_meet(&args.watch);
    uint64_t tag = args.tags_off > 0 ? args.tag | *args.build : 0;
    if (alive && args.arrives && args.tags_off > 0) {
        leave_tags(&args, tag);
    }
    if (alive && args.arrives) {
        mok_cuda_arrive(&args.watch, args.words_off, n);
    }
    if (!args.waits) {
        return;
    }
    alive = alive && mok_cuda_wait_for_ranks(&args.watch, args.words_off, n, args.site);
    int ok = __syncthreads_and(alive && (args.tags_off == 0 || are_tags_mine(&args, tag)));
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
