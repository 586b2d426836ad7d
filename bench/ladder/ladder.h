/*
 * The ladder: checks the grouped GEMMs of src/cuda against a plain reference, and times them beside dense cuBLAS calls of the same shape.
 * Host code in C dialect; device memory is allocated once per problem and freed with it.
 */
#ifndef LADDER_H
#define LADDER_H

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/gemm/gemm.h"

#define LADDER_CUDA(call)                                                                                                                  \
    do {                                                                                                                                   \
        cudaError_t ladder_error_ = (call);                                                                                                \
        if (ladder_error_ != cudaSuccess) {                                                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(ladder_error_));                              \
            exit(3);                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

#define LADDER_MOK(call)                                                                                                                   \
    do {                                                                                                                                   \
        mok_status ladder_status_ = (call);                                                                                                \
        if (ladder_status_ != MOK_OK) {                                                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, mok_last_error());                                               \
            exit(3);                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

/* A layer's share of one GPU with every operand of the seven GEMMs. */
struct ladder_problem {
    int32_t num_experts, hidden, inter;
    int32_t num_tiles;
    int64_t real_rows;         /* without padding */
    int64_t buffer_rows;       /* with padding, and some tiles that the schedule does not use */
    int32_t *counts;           /* host [El] real rows */
    int32_t *first;            /* host [El] */
    struct mok_gemm_rows rows; /* device tables */
    mok_activation activation;
    mok_matrices gate, up, down;
    uint16_t *x, *h, *g, *u, *y; /* x, dy: random; rows made zero in the padding up to 64 */
    uint16_t *dy, *dg, *du, *wh, *dx;
    float *w, *dw_partial;
    mok_matrices grad_gate, grad_up, grad_down; /* fp32 or bf16, with gaps between rows when `gaps` */
    int32_t grad_dtype;
    uint16_t *weights;
    void *grads;
    int64_t weights_count, grads_bytes;
};

/* How a problem is laid out in memory. */
struct ladder_layout {
    int32_t interleaved; /* gate and up rows alternate; else packed one behind the other */
    int32_t gaps;        /* row strides wider than the rows, expert strides wider than the matrices */
    int32_t grad_dtype;  /* mok_dtype */
};

/* counts is copied. Random data from `seed`; outputs poisoned. */
void ladder_problem_create(struct ladder_problem *problem, int32_t num_experts, const int32_t *counts, int32_t hidden, int32_t inter,
                           const struct ladder_layout *layout, uint64_t seed);
void ladder_problem_destroy(struct ladder_problem *problem);

/* Normal bf16 (or fp32) values of standard deviation `scale`, a function of seed and index. */
void ladder_fill_bf16(uint16_t *to, int64_t count, float scale, uint64_t seed);
void ladder_fill_fp32(float *to, int64_t count, float scale, uint64_t seed);
void ladder_poison(void *to, int64_t bytes);

/* Arguments of the seven GEMMs on this problem. keep: store g and u too. */
struct mok_gate_up_args ladder_gate_up_args(const struct ladder_problem *problem, int keep);
struct mok_down_args ladder_down_args(const struct ladder_problem *problem);
struct mok_dgrad_down_args ladder_dgrad_down_args(const struct ladder_problem *problem);
struct mok_dgrad_gate_up_args ladder_dgrad_gate_up_args(const struct ladder_problem *problem);
struct mok_wgrad_args ladder_wgrad_gate_up_args(const struct ladder_problem *problem, int32_t mode);
struct mok_wgrad_args ladder_wgrad_down_args(const struct ladder_problem *problem, int32_t mode);

/* ---- reference (ladder_reference.cu) --------------------------------------------------------------------------------- */

/* What a check saw. worst: error / tolerance of the worst element, and its row. */
struct ladder_report {
    unsigned long long checked, bad;
    unsigned long long worst; /* float bits of the ratio << 32 | row */
};

/* An operand as the reference reads it: element (i, k) of expert e. */
struct ladder_operand {
    const uint16_t *base;
    int64_t expert_stride, row_stride, k_stride;
};

/* For each real row r of expert e and column c: sum[r * cols + c] (+)= sum over k < depth of a(r, k) b_e(c, k), in double; size likewise of
 * the absolute values. */
void ladder_product(const struct ladder_problem *problem, struct ladder_operand a, struct ladder_operand b, int32_t cols, int32_t depth,
                    int add, double *sum, double *size);

/* bf16 got[r, c] of real rows within half an ulp of sum[r, c] and size * 2^-17; other rows of the buffer still poisoned. */
void ladder_check_product(const struct ladder_problem *problem, const char *what, const uint16_t *got, int32_t cols, const double *sum,
                          const double *size);
/* h against g and u; dg, du, wh, dw partials against dh (sum, size), g, u, h and w. */
void ladder_check_activation(const struct ladder_problem *problem, const char *what);
void ladder_check_dgrad(const struct ladder_problem *problem, const char *what, const double *sum, const double *size, int32_t tile_cols);
/* One gradient matrix of all experts against the sum over rows of a^T b, started from `before` (the region of problem->grads before the
 * launch) in add mode. Marks the elements of the matrix in seen [bytes of the region]. */
void ladder_check_wgrad(const struct ladder_problem *problem, const char *what, const mok_matrices *grad, int32_t out, int32_t in,
                        const uint16_t *a, const uint16_t *b, int add, const void *before, uint8_t *seen);
/* Bytes that are not marked are as before. */
void ladder_check_unseen(const char *what, const void *before, const void *after, const uint8_t *seen, int64_t bytes);
/* The same bits in both. */
void ladder_check_equal(const char *what, const void *a, const void *b, int64_t bytes);

/* ---- checks (ladder_verify.cu) ---------------------------------------------------------------------------------------- */

/* All checks so far. */
extern int64_t ladder_num_checks, ladder_num_failed;
void ladder_verify(void);

/* ---- times (ladder_speed.cu) ------------------------------------------------------------------------------------------ */

/* only: part of a shape's name, or NULL for all shapes. json: file to write, or NULL. */
/* Each GEMM and its dense twin once, for a profiler. */
void ladder_once(const char *only);
void ladder_speed(const char *only, const char *label, FILE *json);

#endif
