/*
 * Addresses and thread identity: what the other files of this folder build on.
 */
#ifndef MOK_CUDA_HW_ADDRESS_CUH
#define MOK_CUDA_HW_ADDRESS_CUH

#include <stdint.h>

#define MOK_DEVICE static __device__ __forceinline__

/* 32-bit address of shared memory, as PTX instructions take it. */
MOK_DEVICE uint32_t mok_hw_shared_address(const void *pointer) { return (uint32_t)__cvta_generic_to_shared(pointer); }

/* Rank of this CTA in its cluster; 0 without clusters. */
MOK_DEVICE uint32_t mok_hw_cluster_cta(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Nanoseconds; ticks coarsely. */
MOK_DEVICE uint64_t mok_hw_time_ns(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

#endif
