/*
 * Grouped GEMMs of one MoE layer on Hopper (sm_90a): BF16 operands, fp32 accumulators. Plain C; no CUDA header needed.
 *
 * Rows. All row-wise tensors are [buffer_rows, columns] bf16, row-major without gaps. The rows of a local expert are a run that starts
 * at a multiple of 128 and is padded to a multiple of 128, experts in order, so a row tile (128 rows) belongs to one expert. How many rows
 * an expert has is known on the device only: the kernels read the tables of struct mok_gemm_rows, the host knows the bounds.
 *
 * Windows (laps). A launch works on the row tiles first_tile .. first_tile + ceil(buffer_rows/128) - 1 of the schedule, as far as they
 * exist; row tile t stands at row (t - first_tile) * 128 of every row-wise buffer. first_tile = 0 and a buffer for all rows is the plain
 * case.
 *
 * Padding rows (behind the expert's real rows in its last tile) are loaded; nothing made from one is stored, except by
 * mok_cuda_dgrad_down_launch, which writes zeros. mok_cuda_wgrad_launch contracts rows: it needs zeros in both operands
 * in the padding rows up to the expert's next multiple of 64.
 *
 * Weights and weight gradients are mok_matrices: [El, rows, cols] with an expert stride and a row stride; base 16-byte aligned, strides
 * multiples of 8 elements. H and I are multiples of 8.
 *
 * Bits depend on H, I and the values of the row (weight gradients: of the expert's rows) only: no split of the contraction, no
 * floating-point atomics. All calls enqueue on `stream`, never block, never allocate, and may be captured in a graph. Every wait in a
 * kernel is bounded: after wait_limit_ms it raises a device error instead of hanging.
 */
#ifndef MOK_CUDA_GEMM_H
#define MOK_CUDA_GEMM_H

#include <mok/mok.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where the rows are. All pointers are device memory, written by the schedule before the launch (stream order), read by the kernel; they
 * are the arrays of struct mok_schedule_view. The shared expert is one expert whose rows are the tokens: num_tiles = ceil(T/128). */
struct mok_gemm_rows {
    const int32_t *num_tiles;    /* [1] row tiles of the schedule, all experts together */
    const int32_t *tile_expert;  /* [*num_tiles] local expert of a row tile */
    const int32_t *expert_first; /* [El] first padded row of each local expert, a multiple of 128 */
    const int32_t *expert_rows;  /* [El] real rows of each local expert */
    int64_t buffer_rows; /* rows of every row-wise tensor of the launch, below 2^31; 0 = nothing to do. Rows behind it read as zero and are
                            not written, so tensors of exactly T rows will do for the shared expert */
    int32_t first_tile;  /* row tile that stands at row 0 of the buffers */
    int32_t num_experts; /* El >= 0 */
};

/* Common to all launches. */
struct mok_gemm_launch {
    int32_t num_ctas;      /* CTAs to use (one a SM); 0 = all SMs */
    int32_t wait_limit_ms; /* longest wait of one barrier inside the kernel; 0 = 10 000 */
    int32_t row_group;     /* row tiles that take their turn at one column tile before the next (order only, no bits); 0 = automatic */
};

/* 1. g = bf16(x Wg^T), u = bf16(x Wu^T), h = bf16(act(g, u)). */
struct mok_gate_up_args {
    struct mok_gemm_rows rows;
    struct mok_gemm_launch launch;
    int32_t hidden, inter; /* H, I */
    mok_activation activation;
    const void *x;         /* [buffer_rows, H] bf16, in */
    mok_matrices gate, up; /* [El, I, H] bf16, in */
    void *h;               /* [buffer_rows, I] bf16, out; NULL = not wanted (recompute of g and u alone) */
    void *g, *u;           /* [keep_rows, I] bf16, out: both or none */
    int64_t keep_rows;     /* rows 0 .. keep_rows-1 of the buffers have g and u stored; a multiple of 128, 0 without g, u */
};

/* 2. y = bf16(h Wd^T). */
struct mok_down_args {
    struct mok_gemm_rows rows;
    struct mok_gemm_launch launch;
    int32_t hidden, inter;
    const void *h;     /* [buffer_rows, I] bf16, in */
    mok_matrices down; /* [El, H, I] bf16, in */
    void *y;           /* [buffer_rows, H] bf16, out */
};

/* 3. D: dh = dy Wd;  d = w * dh;  dg = bf16(d * act_g), du = bf16(d * act_u), wh = bf16(w * h), dw partials. h is made again from g, u. */
struct mok_dgrad_down_args {
    struct mok_gemm_rows rows;
    struct mok_gemm_launch launch;
    int32_t hidden, inter;
    mok_activation activation;
    const void *dy;    /* [buffer_rows, H] bf16, in */
    mok_matrices down; /* [El, H, I] bf16, in */
    const void *g, *u; /* [buffer_rows, I] bf16, in */
    const float *w;    /* [buffer_rows] fp32, in: router weight of each row; not read for padding rows */
    void *dg, *du; /* [buffer_rows, I] bf16, out; may be g and u themselves. Zeros in padding rows, to the next multiple of 64 at least */
    void *wh;      /* [buffer_rows, I] bf16, out. Zeros as above */
    float *dw_partial; /* [buffer_rows, mok_plan_num_tiles(I, tiles.dgrad_down)] fp32, out: sum over the tile's I columns of dh * h;
                          dw is their sum in tile order. Padding rows are not written */
};

/* 4. E: dx = bf16([dg du] [Wg; Wu]), one product over 2I. */
struct mok_dgrad_gate_up_args {
    struct mok_gemm_rows rows;
    struct mok_gemm_launch launch;
    int32_t hidden, inter;
    const void *dg, *du;   /* [buffer_rows, I] bf16, in */
    mok_matrices gate, up; /* [El, I, H] bf16, in */
    void *dx;              /* [buffer_rows, H] bf16, out */
};

/*
 * 5-7. Weight gradients: grad[p][e] (+)= sum over rows r of expert e of a[p][r, :]^T b[r, :].
 *      dWg, dWu: num_parts 2, a = {dg, du}, b = x, out = I, in = H.   dWd: num_parts 1, a = {dy}, b = wh, out = H, in = I.
 * An expert whose rows span windows is summed across launches in window order: the accumulator goes on from fp32 gradients themselves, and
 * with bf16 gradients from carry_in, to carry_out (two scratches that the caller swaps from window to window). Experts with no rows get
 * their zeros (overwrite mode) from the launch with first_tile = 0.
 */
struct mok_wgrad_args {
    struct mok_gemm_rows rows;
    struct mok_gemm_launch launch;
    int32_t num_parts;    /* 1 or 2 */
    int32_t out, in;      /* rows and columns of one gradient matrix */
    int32_t dtype;        /* of the gradients: MOK_DTYPE_FP32 or MOK_DTYPE_BF16 */
    int32_t mode;         /* mok_grad_mode */
    const void *a[2];     /* [buffer_rows, out] bf16, in */
    const void *b;        /* [buffer_rows, in] bf16, in */
    mok_matrices grad[2]; /* [El, out, in] dtype, out (in/out in add mode) */
    const float
        *carry_in[2]; /* [out, in] fp32, in: sums so far of the expert that began before this window. NULL with fp32 or a single window */
    float *carry_out[2]; /* [out, in] fp32, out: of the expert that goes on behind this window. NULL as above */
};

/* Loads all kernels on the current device and sets their limits. Once per device, before the first launch, not while capturing. */
MOK_MUST_USE mok_status mok_cuda_gemm_prepare(void);

MOK_MUST_USE mok_status mok_cuda_gate_up_launch(const struct mok_gate_up_args *args, mok_stream stream);
MOK_MUST_USE mok_status mok_cuda_down_launch(const struct mok_down_args *args, mok_stream stream);
MOK_MUST_USE mok_status mok_cuda_dgrad_down_launch(const struct mok_dgrad_down_args *args, mok_stream stream);
MOK_MUST_USE mok_status mok_cuda_dgrad_gate_up_launch(const struct mok_dgrad_gate_up_args *args, mok_stream stream);
MOK_MUST_USE mok_status mok_cuda_wgrad_launch(const struct mok_wgrad_args *args, mok_stream stream);

#ifdef __cplusplus
}
#endif
#endif
