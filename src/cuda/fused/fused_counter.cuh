/*
 * The counters in which the CTAs of a rank meet (plan/ring.h), on the device.
 *
 * | release                                                          | acquire                                                    |
 * | all writers: stores done, mok_hw_fence_async, then one of them   | mok_fused_wait_counter, then mok_hw_fence_async by whoever |
 * | (behind a CTA-wide meeting) mok_fused_announce                   | reads through TMA or bulk copies                           |
 * A wait ends at the target, with this rank's abort word, or after local_timeout without progress of this rank.
 */
#ifndef MOK_CUDA_FUSED_COUNTER_CUH
#define MOK_CUDA_FUSED_COUNTER_CUH

#include "cuda/fused/fused_args.h"
#include "cuda/hw/counter.cuh"
#include "cuda/watch.cuh"

enum { MOK_FUSED_POLLS = 16 /* looks at a counter between looks at the abort word and the clock */ };

MOK_DEVICE int32_t mok_fused_counter_word(const struct mok_fused_args *args, const struct mok_wait *wait)
{
    return args->counter_base[wait->counter] + wait->index;
}

MOK_DEVICE void mok_fused_announce(const struct mok_fused_args *args, int32_t word)
{
    mok_hw_add_release_gpu(args->counters + word, 1);
    mok_hw_add_relaxed_gpu(&args->state->progress, 1);
}

/* What a wait remembers of the rank's standstill. */
struct mok_fused_patience {
    uint64_t since;
    uint32_t progress;
};

/* 1: the wait may go on. */
MOK_DEVICE int mok_fused_may_wait(const struct mok_fused_args *args, struct mok_fused_patience *patience, const struct mok_wait *wait,
                                  uint32_t seen)
{
    uint32_t raised = mok_cuda_abort_word(&args->watch);
    if (raised != 0) {
        mok_cuda_give_up(&args->watch, raised);
        return 0;
    }
    uint32_t progress = mok_hw_load_relaxed_gpu(&args->state->progress);
    uint64_t now = mok_hw_time_ns();
    if (progress != patience->progress) {
        patience->progress = progress;
        patience->since = now;
    } else if (now - patience->since > args->watch.local_limit_ns) {
        struct mok_cuda_sight sight = {mok_site_of_counter(wait->counter), wait->index, (int64_t)wait->target, (int64_t)seen};
        mok_cuda_expire(&args->watch, &sight);
        return 0;
    }
    return 1;
}

/* 1: reached. 0: the pass is over for this rank. */
MOK_DEVICE int mok_fused_wait_counter(const struct mok_fused_args *args, const struct mok_wait *wait)
{
    const uint32_t *word = args->counters + mok_fused_counter_word(args, wait);
    if (mok_hw_load_acquire_gpu(word) >= wait->target) {
        return 1;
    }
    struct mok_fused_patience patience = {mok_hw_time_ns(), 0};
    for (;;) {
        uint32_t seen = 0;
        for (int i = 0; i < MOK_FUSED_POLLS; i++) {
            seen = mok_hw_load_acquire_gpu(word);
            if (seen >= wait->target) {
                return 1;
            }
            mok_hw_nap(MOK_WATCH_NAP_NS);
        }
        if (!mok_fused_may_wait(args, &patience, wait, seen)) {
            return 0;
        }
    }
}

#endif
