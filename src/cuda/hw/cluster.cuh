/*
 * Shared memory of the other CTA of a cluster, and barriers there: one instruction a function. Addresses come from mok_hw_cluster_address;
 * for a CTA's own rank they name its own memory.
 *
 * | release                                    | acquire                                       |
 * | mok_hw_mbarrier_arrive_release_cluster     | mok_hw_mbarrier_try_wait_acquire_cluster      |
 * | mok_hw_fence_cluster, then                 | the same                                      |
 * |   mok_hw_mbarrier_arrive_relaxed_cluster   |                                               |
 */
#ifndef MOK_CUDA_HW_CLUSTER_CUH
#define MOK_CUDA_HW_CLUSTER_CUH

#include "cuda/hw/address.cuh"

/* Where `pointer` into this CTA's shared memory stands in that of CTA `cta`. */
MOK_DEVICE uint32_t mok_hw_cluster_address(const void *pointer, uint32_t cta)
{
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(mok_hw_shared_address(pointer)), "r"(cta));
    return address;
}

MOK_DEVICE void mok_hw_cluster_store(uint32_t address, uint32_t value)
{
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

/* Orders this thread's accesses before it with those after it, for every observer of the cluster. In front of a relaxed arrival it makes that a release. */
MOK_DEVICE void mok_hw_fence_cluster(void) { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }

MOK_DEVICE void mok_hw_mbarrier_arrive_release_cluster(uint32_t bar)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Orders nothing by itself: a fence in front of it does. */
MOK_DEVICE void mok_hw_mbarrier_arrive_relaxed_cluster(uint32_t bar)
{
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* 1 when the phase is complete. */
MOK_DEVICE uint32_t mok_hw_mbarrier_try_wait_acquire_cluster(uint64_t *bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(mok_hw_shared_address(bar)), "r"(parity)
                 : "memory");
    return done;
}

#endif
