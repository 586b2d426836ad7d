/*
 * The tensor copy engine (TMA): one instruction a function. `map` is a CUtensorMap in kernel parameter (or constant, global) memory;
 * coordinates are in elements, innermost first. Elements outside the tensor read as zero and are not written.
 */
#ifndef MOK_CUDA_HW_TMA_CUH
#define MOK_CUDA_HW_TMA_CUH

#include "cuda/hw/address.cuh"

/* Global to shared memory; `bar` receives the bytes. */
MOK_DEVICE void mok_hw_tma_load_2d(void *to, const void *map, uint64_t *bar, int32_t c0, int32_t c1)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
                     mok_hw_shared_address(to)),
                 "l"((uint64_t)map), "r"(mok_hw_shared_address(bar)), "r"(c0), "r"(c1)
                 : "memory");
}

MOK_DEVICE void mok_hw_tma_load_3d(void *to, const void *map, uint64_t *bar, int32_t c0, int32_t c1, int32_t c2)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
                     mok_hw_shared_address(to)),
                 "l"((uint64_t)map), "r"(mok_hw_shared_address(bar)), "r"(c0), "r"(c1), "r"(c2)
                 : "memory");
}

/* The same into every CTA of `ctas` (bit mask over the cluster): same place in each, each one's own `bar` receives the bytes. */
MOK_DEVICE void mok_hw_tma_load_2d_cluster(void *to, const void *map, uint64_t *bar, uint16_t ctas, int32_t c0, int32_t c1)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%4, %5}], [%2], %3;" ::"r"(mok_hw_shared_address(to)),
                 "l"((uint64_t)map), "r"(mok_hw_shared_address(bar)), "h"(ctas), "r"(c0), "r"(c1)
                 : "memory");
}

MOK_DEVICE void mok_hw_tma_load_3d_cluster(void *to, const void *map, uint64_t *bar, uint16_t ctas, int32_t c0, int32_t c1, int32_t c2)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(mok_hw_shared_address(to)),
                 "l"((uint64_t)map), "r"(mok_hw_shared_address(bar)), "h"(ctas), "r"(c0), "r"(c1), "r"(c2)
                 : "memory");
}

/* Shared memory to global, in the calling thread's open group of bulk copies. */
MOK_DEVICE void mok_hw_tma_store_2d(const void *map, const void *from, int32_t c0, int32_t c1)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"((uint64_t)map),
                 "r"(mok_hw_shared_address(from)), "r"(c0), "r"(c1)
                 : "memory");
}

MOK_DEVICE void mok_hw_tma_store_3d(const void *map, const void *from, int32_t c0, int32_t c1, int32_t c2)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"((uint64_t)map),
                 "r"(mok_hw_shared_address(from)), "r"(c0), "r"(c1), "r"(c2)
                 : "memory");
}

MOK_DEVICE void mok_hw_bulk_commit(void) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Until at most one, or none, of this thread's groups still have to *read* shared memory. */
MOK_DEVICE void mok_hw_bulk_wait_read_1(void) { asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); }
MOK_DEVICE void mok_hw_bulk_wait_read_0(void) { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/* Until the writes of all this thread's groups are done. */
MOK_DEVICE void mok_hw_bulk_wait_0(void) { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#endif
