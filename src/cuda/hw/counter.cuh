/*
 * Counters that the CTAs of one GPU share: one instruction a function, scope and order in its name.
 *
 * | release                    | acquire                    |
 * | mok_hw_add_release_gpu     | mok_hw_load_acquire_gpu    |
 * | mok_hw_add_release_gpu     | relaxed loads, then mok_hw_fence_gpu |
 * | mok_hw_count_acq_rel_cta   | itself                     |
 */
#ifndef MOK_CUDA_HW_COUNTER_CUH
#define MOK_CUDA_HW_COUNTER_CUH

#include "cuda/hw/address.cuh"

MOK_DEVICE uint32_t mok_hw_load_acquire_gpu(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

MOK_DEVICE uint32_t mok_hw_load_relaxed_gpu(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

MOK_DEVICE void mok_hw_add_release_gpu(uint32_t *word, uint32_t value)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

MOK_DEVICE void mok_hw_add_relaxed_gpu(uint32_t *word, uint32_t value)
{
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/* Adds and returns what was there before. */
MOK_DEVICE uint32_t mok_hw_take_relaxed_gpu(uint32_t *word, uint32_t value)
{
    uint32_t before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(value) : "memory");
    return before;
}

/* Orders this thread's accesses before it with those after it, for every observer of the GPU. */
MOK_DEVICE void mok_hw_fence_gpu(void) { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/* Adds one to a word of this CTA's shared memory, back to 0 after `last`; returns what was there before. */
MOK_DEVICE uint32_t mok_hw_count_acq_rel_cta(uint32_t *word, uint32_t last)
{
    uint32_t before;
    asm volatile("atom.acq_rel.cta.shared::cta.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "r"(mok_hw_shared_address(word)), "r"(last)
                 : "memory");
    return before;
}

#endif
