/*
 * Operands of the weight gradients: what one element of a row becomes, and how far a correct backend may be from it.
 *
 * g, u, h, w*h, dg and du are bf16 roundings of fp32 values. Where the value before a rounding is so near a rounding boundary that fp32
 * arithmetic may end on the other side of it, a correct backend may have the neighbouring bf16 number; and everything made from that number
 * moves along. A g that is one ulp off (up to 2^-7 of it) moves silu'(g) * u by up to |g| times as much, and dg with it: more than one ulp
 * of dg. The allowance of an operand is how far it can get: its largest change over the values that g and u may have, each followed by the
 * roundings behind it. It is 0 where no boundary is near, and that is so for nearly all operands.
 */
#ifndef MOK_REF_OPERAND_H
#define MOK_REF_OPERAND_H

#include <mok/mok.h>

/* A sum of products as a backend has it in fp32: within `error` of the exact `value`. */
struct mok_ref_inexact {
    double value;
    double error;
};

/* The values of one element behind the activation, or an allowance for each of them. */
struct mok_ref_operand {
    double h, wh, dg, du;
};

/* The sum of num_terms products of bf16 numbers; squares is the sum of the squares of these products. */
struct mok_ref_inexact mok_ref_operand_sum(int64_t num_terms, double sum, double squares);

/* Rounded to bf16, as a double. */
double mok_ref_operand_round(double value);

/* From g, u (bf16 numbers) and dh, w: docs/numerics.md, backward. */
void mok_ref_operand_make(const mok_activation *activation, double g, double u, float dh, float w, struct mok_ref_operand *operand_out);

/* The allowance for each value of `made`, which is what mok_ref_operand_make gives for the rounded g and u. Values that are NaN get 0. */
void mok_ref_operand_allow(const mok_activation *activation, struct mok_ref_inexact g, struct mok_ref_inexact u, struct mok_ref_inexact dh,
                           float w, const struct mok_ref_operand *made, struct mok_ref_operand *allowance_out);

#endif
