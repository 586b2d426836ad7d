/*
 * Barriers in shared memory (mbarrier): one instruction a function. `bar` points into shared memory of this CTA.
 * Phases. A barrier is in phase 0 after init; wait(bar, parity) returns once the phase of that parity is complete, so a fresh barrier lets
 * wait(bar, 1) through at once.
 */
#ifndef MOK_CUDA_HW_MBARRIER_CUH
#define MOK_CUDA_HW_MBARRIER_CUH

#include "base/hd.h"
#include "cuda/hw/address.cuh"

MOK_DEVICE void mok_hw_mbarrier_init(uint64_t *bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mok_hw_shared_address(bar)), "r"(arrivals) : "memory");
}

/* Makes inits visible to the async proxy and to the other CTAs of the cluster. */
MOK_DEVICE void mok_hw_fence_mbarrier_init_cluster(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/* Release at CTA scope; partner: mok_hw_mbarrier_try_wait_cta. */
MOK_DEVICE void mok_hw_mbarrier_arrive_cta(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mok_hw_shared_address(bar)) : "memory");
}

/* Arrives once and tells the barrier how many bytes this phase still has to receive. */
MOK_DEVICE void mok_hw_mbarrier_arrive_expect_cta(uint64_t *bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mok_hw_shared_address(bar)), "r"(bytes) : "memory");
}

/* Arrives at the same barrier of CTA `cta` of the cluster. A release of CTA scope: between the two CTAs it orders nothing but the async proxy's own work.
 * Enough to say that something has been read, which the other CTA then fills anew (docs/protocol.md, section 7). */
MOK_DEVICE void mok_hw_mbarrier_arrive_cluster(uint64_t *bar, uint32_t cta)
{
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
                 "}" ::"r"(mok_hw_shared_address(bar)),
                 "r"(cta)
                 : "memory");
}

/* 1 when the phase is complete. Suspends the thread for a while that the hardware chooses. Acquire at CTA scope. */
MOK_DEVICE uint32_t mok_hw_mbarrier_try_wait_cta(uint64_t *bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(mok_hw_shared_address(bar)), "r"(parity)
                 : "memory");
    return done;
}

/* The same without suspending the thread: for a warp whose lanes look at barriers of their own. */
MOK_DEVICE uint32_t mok_hw_mbarrier_test_wait_cta(uint64_t *bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(mok_hw_shared_address(bar)), "r"(parity)
                 : "memory");
    return done;
}

#endif
