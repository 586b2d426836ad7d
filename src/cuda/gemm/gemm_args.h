/*
 * What the GEMM kernels take: one struct a kernel, filled by gemm/gemm_launch.c, read by the kernels. Maps are TMA descriptors (tensor_map.h):
 * they carry base, shape and strides, so that loads outside a tensor give zeros and stores outside are dropped. The fused kernels take some of these
 * structs as parts of theirs.
 */
#ifndef MOK_CUDA_GEMM_ARGS_H
#define MOK_CUDA_GEMM_ARGS_H

#include <cuda.h>
#include <stddef.h>

#include "cuda/gemm/gemm.h"
#include "plan/tile.h"

/* Sizes that host and kernels share: those of boxes and walks. */
enum {
    MOK_GEMM_ROWS = MOK_TILE_ROWS, /* of an output tile */
    MOK_GEMM_COLS = 256,
    MOK_GEMM_DEPTH = 64,      /* of a step along the contraction: 128 bytes, the width of the swizzle */
    MOK_GEMM_WARP_ROWS = 16,  /* of a warp, and of a box that it writes */
    MOK_GEMM_ROW_GROUP = 16   /* 16 row tiles x 8 column tiles: as many A as B bytes for the CTAs at work at one time */
};

/* Where a kernel finds its tiles. */
struct mok_gemm_walk {
    struct mok_gemm_rows rows;
    int32_t window_tiles; /* row tiles of the buffers */
    int32_t num_cols;     /* column tiles of the output (weight gradients: of one matrix) */
    int32_t row_group;    /* row tiles that take their turn at one column tile before the next: order for cache reuse */
};

/* A bf16 matrix of rows x cols that is written 16 rows x 64 columns at a time. */
struct mok_gemm_out {
    CUtensorMap map; /* box 64 x 16 */
    void *base;      /* the same matrix, for tiles with padding rows */
    int64_t cols;
};

struct mok_gemm_activation {
    float limit;
    float alpha;
    float minus_alpha_log2e; /* exp(-alpha z) = 2^(minus_alpha_log2e z) */
    float up_offset;
    int32_t clamps; /* limit is finite */
};

/* What becomes of the sums of gate+up, down and E. */
struct mok_gemm_finish {
    struct mok_gemm_out out[3]; /* y or dx; gate+up: h, g, u */
    /* gate+up */
    struct mok_gemm_activation activation;
    int64_t keep_rows; /* rows below have g and u stored */
    int32_t store_h;
};

struct mok_gate_up_kernel_args {
    CUtensorMap x;        /* [rows, H], box 64 x 128 */
    CUtensorMap gate, up; /* [El, I, H], box 64 x 128 x 1 */
    struct mok_gemm_finish finish;
    struct mok_gemm_walk walk;
    uint64_t wait_limit_ns;
    int32_t num_steps; /* H / 64, rounded up */
};

struct mok_down_kernel_args {
    CUtensorMap h;    /* [rows, I], box 64 x 128 */
    CUtensorMap down; /* [El, H, I], box 64 x 128 x 1 */
    struct mok_gemm_finish finish;
    struct mok_gemm_walk walk;
    uint64_t wait_limit_ns;
    int32_t num_steps; /* I / 64, rounded up */
};

struct mok_dgrad_down_kernel_args {
    CUtensorMap dy;   /* [rows, H], box 64 x 128 */
    CUtensorMap down; /* [El, H, I], box 64 (I) x 64 (H) x 1 */
    CUtensorMap g, u; /* [rows, I], box 64 x 128 */
    struct mok_gemm_out dg, du, wh;
    struct mok_gemm_walk walk;
    struct mok_gemm_activation activation;
    uint64_t wait_limit_ns;
    const float *w;    /* [rows] */
    float *dw_partial; /* [rows, num_cols] */
    int32_t num_steps; /* H / 64, rounded up */
};

struct mok_dgrad_gate_up_kernel_args {
    CUtensorMap dg, du;   /* [rows, I], box 64 x 128 */
    CUtensorMap gate, up; /* [El, I, H], box 64 (H) x 64 (I) x 1 */
    struct mok_gemm_finish finish;
    struct mok_gemm_walk walk;
    uint64_t wait_limit_ns;
    int32_t half_steps; /* I / 64, rounded up: steps of dg with Wg, then as many of du with Wu */
};

struct mok_wgrad_kernel_args {
    CUtensorMap a[2]; /* [rows, out], box 64 x 64 */
    CUtensorMap b;    /* [rows, in], box 64 x 64 */
    /* The matrices themselves, in boxes of 128 bytes (32 columns of fp32, 64 of bf16) x 64 rows to be read, x 16 to be written. */
    CUtensorMap grad_in[2], grad_out[2];   /* [El, out, in] fp32 or bf16 */
    CUtensorMap carry_in[2], carry_out[2]; /* [1, out, in] fp32; bf16 gradients only */
    struct mok_gemm_walk walk;
    uint64_t wait_limit_ns;
    int32_t num_parts, out, in;
    int32_t out_tiles; /* of one part */
    int32_t bf16;      /* 1: gradients are bf16, 0: fp32 */
    int32_t add;
};

/* A kernel as the host launches it. */
struct mok_gemm_kernel {
    const void *function;
    int32_t cluster; /* CTAs of a cluster */
    int32_t threads;
    size_t shared_bytes;
};

#ifdef __cplusplus
extern "C" {
#endif
struct mok_gemm_kernel mok_cuda_gate_up_kernel(void);
struct mok_gemm_kernel mok_cuda_down_kernel(void);
struct mok_gemm_kernel mok_cuda_dgrad_down_kernel(void);
struct mok_gemm_kernel mok_cuda_dgrad_gate_up_kernel(void);
struct mok_gemm_kernel mok_cuda_wgrad_kernel(void);

/* gemm_fill.c. An output of num_rows x cols, written 16 rows x 64 columns at a time. */
MOK_MUST_USE mok_status mok_cuda_fill_out(struct mok_gemm_out *out, void *base, int64_t num_rows, int64_t cols);
void mok_cuda_fill_activation(struct mok_gemm_activation *to, const mok_activation *from);
#ifdef __cplusplus
}
#endif
#endif
