/*
 * 8x8 matrices of 16-bit values between registers and shared memory: one instruction a function. Lane l gives the address of row l % 8 of
 * matrix l / 8 (16 bytes, aligned); register m of lane l holds elements 2*(l%4), 2*(l%4)+1 of row l/4 of matrix m, as in a wgmma
 * accumulator.
 */
#ifndef MOK_CUDA_HW_MATRIX_CUH
#define MOK_CUDA_HW_MATRIX_CUH

#include "cuda/hw/address.cuh"
#include "cuda/hw/lanes.cuh"

#if MOK_LANES_ARRIVE
/* The same words in the same places by ordinary stores; as the instruction does, the warp comes together first. */
MOK_DEVICE void mok_hw_store_matrix_x4(uint32_t address, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3)
{
    const uint32_t lane = threadIdx.x % 32, words[4] = {m0, m1, m2, m3};
    __syncwarp();
#pragma unroll
    for (uint32_t m = 0; m < 4; m++) {
        uint32_t row = __shfl_sync(0xffffffffu, address, (int)(8 * m + lane / 4));
        asm volatile("st.shared::cta.u32 [%0], %1;" ::"r"(row + 4 * (lane % 4)), "r"(words[m]) : "memory");
    }
}
#else
MOK_DEVICE void mok_hw_store_matrix_x4(uint32_t address, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m0), "r"(m1), "r"(m2), "r"(m3)
                 : "memory");
}
#endif

MOK_DEVICE void mok_hw_load_matrix_x4(uint32_t address, uint32_t *m0, uint32_t *m1, uint32_t *m2, uint32_t *m3)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(*m0), "=r"(*m1), "=r"(*m2), "=r"(*m3)
                 : "r"(address)
                 : "memory");
}

/* Two neighbouring floats of shared memory, 8-byte aligned. */
MOK_DEVICE void mok_hw_load_shared_v2(uint32_t address, float *a, float *b)
{
    asm volatile("ld.shared::cta.v2.f32 {%0, %1}, [%2];" : "=f"(*a), "=f"(*b) : "r"(address) : "memory");
}

MOK_DEVICE void mok_hw_store_shared_v2(uint32_t address, float a, float b)
{
    asm volatile("st.shared::cta.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}

#endif
