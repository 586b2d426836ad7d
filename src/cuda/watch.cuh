/*
 * Waits on the device that end: each has a limit, a name, and polls this rank's abort word (protocol.md section 6).
 *
 * An expired wait writes the record and raises the abort word of every rank. A wait that sees the abort word of its own rank writes the record,
 * too, so that the host learns of it without asking the device: who raised it, and nothing of itself, for it is not what went wrong.
 */
#ifndef MOK_CUDA_WATCH_CUH
#define MOK_CUDA_WATCH_CUH

#include <mok/mok.h>

#include "cuda/control.h"
#include "cuda/hw/scope.cuh"
#include "pass/site.h"

enum { MOK_WATCH_NAP_NS = 100 };

MOK_DEVICE uint32_t *mok_cuda_word(const struct mok_cuda_watch *watch, int32_t rank, int64_t offset)
{
    return (uint32_t *)(watch->base[rank] + offset);
}

/* 0, or 1 + the rank that raised the abort. */
MOK_DEVICE uint32_t mok_cuda_abort_word(const struct mok_cuda_watch *watch)
{
    return mok_hw_load_relaxed_sys((const uint32_t *)(watch->own + watch->abort_off));
}

/* What a wait saw when it gave up. */
struct mok_cuda_sight {
    int32_t site;
    int64_t index;
    int64_t expected;
    int64_t seen;
};

/* 1: this thread writes the record. One does in the life of a group. */
MOK_DEVICE int mok_cuda_claim_record(const struct mok_cuda_watch *watch) { return atomicCAS(&watch->control->fault_claim, 0u, 1u) == 0; }

/* `rank` is this rank, or the one that has left. */
MOK_DEVICE void mok_cuda_record_fault(const struct mok_cuda_watch *watch, int32_t status, int32_t rank, const struct mok_cuda_sight *sight)
{
    if (!mok_cuda_claim_record(watch)) {
        return;
    }
    volatile struct mok_cuda_record *record = watch->record;
    record->site = sight->site;
    record->rank = rank;
    record->block = (int32_t)blockIdx.x;
    record->index = sight->index;
    record->expected = sight->expected;
    record->seen = sight->seen;
    mok_hw_fence_sys();
    record->status = status;
}

MOK_DEVICE void mok_cuda_raise_abort(const struct mok_cuda_watch *watch)
{
    for (int32_t r = 0; r < watch->num_ranks; r++) {
        mok_hw_store_relaxed_sys(mok_cuda_word(watch, r, watch->abort_off), 1u + (uint32_t)watch->rank);
    }
}

/* The limit is over: record, then abort. */
MOK_DEVICE void mok_cuda_expire(const struct mok_cuda_watch *watch, const struct mok_cuda_sight *sight)
{
    mok_cuda_record_fault(watch, MOK_ERR_TIMEOUT, watch->rank, sight);
    mok_cuda_raise_abort(watch);
}

/* The abort word is `raised`: record only. */
MOK_DEVICE void mok_cuda_give_up(const struct mok_cuda_watch *watch, uint32_t raised)
{
    if (!mok_cuda_claim_record(watch)) {
        return;
    }
    volatile struct mok_cuda_record *record = watch->record;
    record->rank = (int32_t)raised - 1;
    mok_hw_fence_sys();
    record->status = MOK_ERR_ABORTED;
}

/*
 * `source` has left and will never come: an abort from that rank. But if its group was dead when it left, from the rank that raised that, whose
 * store to this rank may still be on its way.
 */
MOK_DEVICE void mok_cuda_forsake(const struct mok_cuda_watch *watch, int32_t source, const struct mok_cuda_sight *sight)
{
    uint32_t raised = mok_hw_load_relaxed_sys(mok_cuda_word(watch, source, watch->abort_off));
    if (raised != 0) {
        mok_cuda_give_up(watch, raised);
        mok_hw_store_relaxed_sys(mok_cuda_word(watch, watch->rank, watch->abort_off), raised);
        return;
    }
    mok_cuda_record_fault(watch, MOK_ERR_ABORTED, source, sight);
    mok_cuda_raise_abort(watch);
}

/*
 * Waits until the word of a peer has reached n, by signed difference: acquire, partner of mok_hw_store_release_sys. 1 = reached.
 * The peer stores `left` behind all its arrivals: a word that is too low in a look behind one that saw `left` stays so.
 */
MOK_DEVICE int mok_cuda_wait_word(const struct mok_cuda_watch *watch, const uint32_t *word, uint32_t n, uint64_t limit_ns, int32_t site,
                                  int32_t source)
{
    const uint32_t *left = (const uint32_t *)(watch->own + watch->left_off) + source;
    uint64_t since = mok_hw_time_ns();
    uint32_t has_left = 0;
    for (;;) {
        uint32_t seen = mok_hw_load_acquire_sys(word);
        if ((int32_t)(seen - n) >= 0) {
            return 1;
        }
        struct mok_cuda_sight sight = {site, source, (int64_t)n, (int64_t)seen};
        if (has_left != 0) {
            mok_cuda_forsake(watch, source, &sight);
            return 0;
        }
        uint32_t raised = mok_cuda_abort_word(watch);
        has_left = mok_hw_load_acquire_sys(left); /* beside the abort word: a look takes no longer for it */
        if (raised != 0) {
            mok_cuda_give_up(watch, raised);
            return 0;
        }
        if (mok_hw_time_ns() - since > limit_ns) {
            mok_cuda_expire(watch, &sight);
            return 0;
        }
        mok_hw_nap(MOK_WATCH_NAP_NS);
    }
}

#endif
