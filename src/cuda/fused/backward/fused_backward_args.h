/*
 * What the fused backward kernel takes, filled by fused/backward/fused_backward.c.
 */
#ifndef MOK_CUDA_FUSED_BACKWARD_ARGS_H
#define MOK_CUDA_FUSED_BACKWARD_ARGS_H

#include "cuda/fused/fused_args.h"

/* Routed experts, the shared expert. */
enum { MOK_FUSED_ROUTED, MOK_FUSED_SHARED, MOK_FUSED_NUM_SIDES };

/* grad_out, carry_out: fp32 in boxes of 8 rows, not 16. carry_in, carry_out: maps of both scratches, [2, out, in]. */
struct mok_fused_wgrad_side {
    struct mok_wgrad_kernel_args down;    /* a = dy, b = w*h */
    struct mok_wgrad_kernel_args gate_up; /* a = dg and du, b = x, of rows that are not kept or of the shared expert */
};

struct mok_fused_backward_args {
    /* As in a forward pass. gemm: gate+up alone, out[1], out[2] = g, u that are made again. x_ring, x_off: x of rows that are not kept.
     * y_ring, slots_off: dx. */
    struct mok_fused_args pass;
    struct mok_dgrad_down_kernel_args dgrad_down[MOK_FUSED_NUM_SIDES]; /* g, u: those that are made again; shared expert: all */
    CUtensorMap g_kept, u_kept;                                        /* [kept rows, I], box 64 x 128 */
    struct mok_dgrad_gate_up_kernel_args dgrad_gate_up[MOK_FUSED_NUM_SIDES];
    struct mok_fused_wgrad_side wgrad[MOK_FUSED_NUM_SIDES];
    CUtensorMap x_kept; /* [kept rows, H], box 64 x 64 */
    int32_t kept_rows;
    /* moving rows */
    char *dy_ring;       /* [ring rows, H] bf16 */
    int64_t dy_off;      /* in a source's region: [T, H] bf16, read */
    float *w_ring;       /* [ring rows] */
    int64_t w_off;       /* in a source's region: fp32 [T, K], read */
    int64_t slot_dw_off; /* in a source's region: fp32 [T * K], written */
};

#ifdef __cplusplus
extern "C" {
#endif
struct mok_gemm_kernel mok_cuda_fused_backward_kernel(void);
/* sizeof(struct mok_fused_backward_args) as nvcc sees it. */
size_t mok_cuda_fused_backward_args_bytes(void);
#ifdef __cplusplus
}
#endif
#endif
