/*
 * Bulk copies of plain bytes (the copy engine without a tensor map): one instruction a function. Addresses and sizes are multiples of 16.
 * Global memory may be a peer's. Groups of copies, and waits for them: hw/tma.cuh.
 */
#ifndef MOK_CUDA_HW_BULK_CUH
#define MOK_CUDA_HW_BULK_CUH

#include "cuda/hw/address.cuh"

/* Global to shared memory; `bar` receives the bytes. */
MOK_DEVICE void mok_hw_bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(mok_hw_shared_address(to)),
                 "l"((uint64_t)from), "r"(bytes), "r"(mok_hw_shared_address(bar))
                 : "memory");
}

/* Shared memory to global, in the calling thread's open group of bulk copies. */
MOK_DEVICE void mok_hw_bulk_store(void *to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"((uint64_t)to), "r"(mok_hw_shared_address(from)), "r"(bytes)
                 : "memory");
}

#endif
