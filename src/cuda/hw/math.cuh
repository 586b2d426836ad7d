/*
 * Arithmetic that C has no operator for: one instruction a function.
 */
#ifndef MOK_CUDA_HW_MATH_CUH
#define MOK_CUDA_HW_MATH_CUH

#include "cuda/hw/address.cuh"

/* Minimum and maximum that keep a NaN (fminf drops it). */
MOK_DEVICE float mok_hw_min_nan(float a, float b)
{
    float c;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

MOK_DEVICE float mok_hw_max_nan(float a, float b)
{
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

/* 2^x, within 2 ulp. */
MOK_DEVICE float mok_hw_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1/x, within 1 ulp. */
MOK_DEVICE float mok_hw_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two floats to bf16, nearest even; `low` in the lower half. */
MOK_DEVICE uint32_t mok_hw_pack_bf16(float low, float high)
{
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

#endif
