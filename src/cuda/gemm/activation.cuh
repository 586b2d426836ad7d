/*
 * The expert's activation and its derivatives (numerics.md): in fp32 from the bf16-rounded g and u, every product and sum rounded by
 * itself, so that h made again in backward has the bits of forward. `clamps` is a constant at each call: without a limit min and clamp
 * change nothing and are left out.
 *
 *   z = min(g, limit), c = clamp(u, -limit, limit), s = sigmoid(alpha z)
 *   h = (z s) (c + offset)     act_g = (s + alpha (z s) (1 - s)) (c + offset) or 0 beyond the clamp     act_u = z s or 0 beyond the clamp
 */
#ifndef MOK_CUDA_ACTIVATION_CUH
#define MOK_CUDA_ACTIVATION_CUH

#include "cuda/gemm/gemm_args.h"
#include "cuda/hw/math.cuh"

/* The two bf16 values of a word. */
MOK_DEVICE float mok_cuda_bf16_low(uint32_t packed) { return __uint_as_float(packed << 16); }
MOK_DEVICE float mok_cuda_bf16_high(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }

MOK_DEVICE float mok_cuda_sigmoid(const struct mok_gemm_activation *act, float z)
{
    return mok_hw_reciprocal(__fadd_rn(1.0f, mok_hw_exp2(__fmul_rn(act->minus_alpha_log2e, z))));
}

MOK_DEVICE float mok_cuda_clamp_gate(const struct mok_gemm_activation *act, int clamps, float g)
{
    return clamps ? mok_hw_min_nan(g, act->limit) : g;
}

MOK_DEVICE float mok_cuda_clamp_up(const struct mok_gemm_activation *act, int clamps, float u)
{
    return __fadd_rn(clamps ? mok_hw_max_nan(mok_hw_min_nan(u, act->limit), -act->limit) : u, act->up_offset);
}

/* h before its rounding to bf16. */
MOK_DEVICE float mok_cuda_activate(const struct mok_gemm_activation *act, int clamps, float g, float u)
{
    float z = mok_cuda_clamp_gate(act, clamps, g);
    return __fmul_rn(__fmul_rn(z, mok_cuda_sigmoid(act, z)), mok_cuda_clamp_up(act, clamps, u));
}

/* Returns what mok_cuda_activate returns. A NaN counts as inside the clamp, so that it reaches both derivatives. */
MOK_DEVICE float mok_cuda_activate_derive(const struct mok_gemm_activation *act, int clamps, float g, float u, float *by_g_out,
                                          float *by_u_out)
{
    float z = mok_cuda_clamp_gate(act, clamps, g);
    float s = mok_cuda_sigmoid(act, z);
    float silu = __fmul_rn(z, s);
    float up = mok_cuda_clamp_up(act, clamps, u);
    float slope = __fmaf_rn(__fmul_rn(act->alpha, silu), __fadd_rn(1.0f, -s), s);
    *by_g_out = clamps && g > act->limit ? 0.0f : __fmul_rn(slope, up);
    *by_u_out = clamps && fabsf(u) > act->limit ? 0.0f : silu;
    return __fmul_rn(silu, up);
}

#endif
