/*
 * The two halves of a barrier between ranks (protocol.md sections 1 and 7).
 *
 * | release                                        | acquire                                               |
 * | arrive: everything this rank did before, seen  | wait: everything behind it on rank s, which           |
 * | by the arriving threads, then                  | reads its own word[self] by load_acquire_sys          |
 * | store_release_sys to word[self] of rank s      |                                                       |
 * | leave (raise_word), behind all arrivals:       | wait: a look at own left[s] by load_acquire_sys, then |
 * | store_release_sys to left[self] of rank s      | at the word once more                                 |
 */
#ifndef MOK_CUDA_MEET_CUH
#define MOK_CUDA_MEET_CUH

#include "cuda/watch.cuh"

/* Thread s of the block tells rank s that this rank is at barrier n. */
MOK_DEVICE void mok_cuda_arrive(const struct mok_cuda_watch *watch, int64_t words_off, uint32_t n)
{
    for (int32_t s = (int32_t)threadIdx.x; s < watch->num_ranks; s += (int32_t)blockDim.x) {
        mok_hw_fence_sys();
        mok_hw_store_release_sys(mok_cuda_word(watch, s, words_off) + watch->rank, n);
    }
}

/* Thread s waits for rank s. The result is for this thread's ranks only. */
MOK_DEVICE int mok_cuda_wait_for_ranks(const struct mok_cuda_watch *watch, int64_t words_off, uint32_t n, int32_t site)
{
    const uint32_t *words = (const uint32_t *)(watch->own + words_off);
    int ok = 1;
    for (int32_t s = (int32_t)threadIdx.x; s < watch->num_ranks; s += (int32_t)blockDim.x) {
        ok = ok && mok_cuda_wait_word(watch, words + s, n, watch->peer_limit_ns, site, s);
    }
    return ok;
}

/* A rank that is aborted neither arrives nor waits: its peers see the abort word. Called by all threads of a block; 1 = go on. */
MOK_DEVICE int mok_cuda_may_meet(const struct mok_cuda_watch *watch)
{
    uint32_t raised = mok_cuda_abort_word(watch);
    if (raised != 0 && threadIdx.x == 0) {
        mok_cuda_give_up(watch, raised);
    }
    return raised == 0;
}

#endif
