/*
 * Words that several GPUs or several CTAs share: loads and stores with their scope and order in the name, one instruction a function.
 *
 * | release                                  | acquire                          |
 * | mok_hw_store_release_sys (arrival, left) | mok_hw_load_acquire_sys (wait)   |
 * relaxed_sys goes to memory every time and orders nothing: for the abort word and for values whose order another pair gives.
 */
#ifndef MOK_CUDA_HW_SCOPE_CUH
#define MOK_CUDA_HW_SCOPE_CUH

#include "cuda/hw/address.cuh"

MOK_DEVICE uint32_t mok_hw_load_acquire_sys(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

MOK_DEVICE void mok_hw_store_release_sys(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

MOK_DEVICE uint32_t mok_hw_load_relaxed_sys(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

MOK_DEVICE void mok_hw_store_relaxed_sys(uint32_t *word, uint32_t value)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

MOK_DEVICE uint64_t mok_hw_load_relaxed_sys_u64(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

MOK_DEVICE void mok_hw_store_relaxed_sys_u64(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/* Orders this thread's accesses before it with those after it, for every observer of the system. */
MOK_DEVICE void mok_hw_fence_sys(void) { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/* Between ordinary accesses and those of the copy engine, in both directions, to memory of any kind. */
MOK_DEVICE void mok_hw_fence_async(void) { asm volatile("fence.proxy.async;" ::: "memory"); }

/* Gives the other warps of the SM a turn, for about `ns` nanoseconds. */
MOK_DEVICE void mok_hw_nap(uint32_t ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

#endif
