/*
 * Barriers among threads, register budgets and proxy fences: one instruction a function, the scope in its name.
 */
#ifndef MOK_CUDA_HW_SYNC_CUH
#define MOK_CUDA_HW_SYNC_CUH

#include "cuda/hw/address.cuh"

MOK_DEVICE void mok_hw_cluster_arrive(void) { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
MOK_DEVICE void mok_hw_cluster_wait(void) { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

/* 1 in one thread of the warp, always the same, 0 in the others. For code that the whole warp reaches together: there the compiler knows that
 * addresses are the same in all lanes and that one thread is at work, and feeds the copy engine from uniform registers. Behind a comparison of
 * thread numbers it writes a loop around each copy that asks which lanes want the same. */
MOK_DEVICE uint32_t mok_hw_elect(void)
{
    uint32_t elected;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(elected)
                 :
                 : "memory");
    return elected;
}

/* Shared memory written by ordinary stores, next read by TMA or wgmma: each writer fences, then a barrier. */
MOK_DEVICE void mok_hw_fence_async_shared_cta(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* A kernel that is launched to follow another closely (kernel.c): waits until the one before is complete and its writes are seen. In any other
 * kernel it does nothing. */
MOK_DEVICE void mok_hw_grid_wait(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/* Once all blocks have said so, the blocks of the kernel that follows may come to the SMs, as far as there is room. */
MOK_DEVICE void mok_hw_grid_let_follow(void) { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/* Lets the device report an error and end the kernel: a store to address 0. Not the trap instruction: where that is reachable, the compiler
 * keeps to the registers of the kernel's entry, whatever setmaxnreg grants, and spills. */
MOK_DEVICE void mok_hw_raise_device_error(void) { asm volatile("st.global.u32 [%0], %1;" ::"l"((uint64_t)0), "r"(0) : "memory"); }

/* Registers a thread of the calling warpgroup may use from here on. Takes effect in all four warps; a multiple of 8. */
#define MOK_HW_REGISTERS_UP(count) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)(count)))
#define MOK_HW_REGISTERS_DOWN(count) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)(count)))

#endif
