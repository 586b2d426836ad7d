/*
 * Loops over one row, the only places of the CPU backend where values are rounded (numerics.md). Each loop exists twice, for the baseline
 * of the machine and for AVX2 with FMA; both give the same bits, because nothing is contracted or reordered and fma is asked for by name.
 */
#ifndef MOK_CPU_LOOPS_H
#define MOK_CPU_LOOPS_H

#include <mok/mok.h>

#include "base/bf16.h"

struct mok_cpu_loops {
    /* out[j] = in[j], exact. */
    void (*widen)(const mok_bf16 *in, int64_t num, float *out);
    /* out[j] = bf16(in[j]). */
    void (*narrow)(const float *in, int64_t num, mok_bf16 *out);
    /* g_out = bf16(gate), u_out = bf16(up) when they are not NULL; h_out = bf16(act(bf16 gate, bf16 up)) when it is not NULL. */
    void (*act)(const mok_activation *activation, const float *gate, const float *up, int64_t num, mok_bf16 *g_out, mok_bf16 *u_out,
                mok_bf16 *h_out);
    /* One row of D: dg = bf16(w*dh * act_g), du = bf16(w*dh * act_u), wh = bf16(w * h), h made again from g and u. num is a multiple of 8.
     * Returns the partial sum of dh*h, in a fixed order. */
    float (*act_backward)(const mok_activation *activation, float w, const float *dh, const mok_bf16 *g, const mok_bf16 *u, int64_t num,
                          mok_bf16 *dg_out, mok_bf16 *du_out, mok_bf16 *wh_out);
    /* sum[j] = scale * in[j] */
    void (*scale)(float scale, const mok_bf16 *in, int64_t num, float *sum);
    /* sum[j] = fma(weight, in[j], sum[j]) */
    void (*fma)(float weight, const mok_bf16 *in, int64_t num, float *sum);
    /* sum[j] += in[j] */
    void (*add)(const mok_bf16 *in, int64_t num, float *sum);
};

/* The loops for this machine. */
const struct mok_cpu_loops *mok_cpu_loops_find(void);
/* The loops that run everywhere: for the test that both give the same bits. */
extern const struct mok_cpu_loops mok_cpu_loops_plain;

#endif
