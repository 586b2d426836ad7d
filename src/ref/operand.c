/*
 * See operand.h. How far fp32 arithmetic may be off, from the formats:
 *
 * A sum of n products of bf16 numbers, Q = sqrt(sum of their squares). Each product is exact in fp32. Partial sums, their terms in no
 * special order, are of the size of Q and of the sum itself. What happens to them: a vector unit rounds after each addition, by half of
 * 2^-23 of the partial sum at most; a tensor core adds 16 products at a time to the accumulator, aligned to the largest of them with two
 * bits below the last of fp32, cuts what is below, and cuts the result to fp32. So the error has two parts:
 *   2^-23 * sqrt(n) * Q            what falls to either side: n of 2^-24 at random
 *   n * 2^-28 * (Q + |sum|)        what always falls towards zero: n / 16 cuts, of 2^-24 on average
 * Against both kinds of unit made by hand, over n from 8 to 16,384 and terms with light and heavy tails, errors were at most 0.75 of it
 * (tests/unit/test_ref_flips.c). A worst case can be constructed that is sqrt(n) times larger; no bound that admits it shows anything.
 *
 * The activation. exp and the division have errors of 2 ulp, the argument of exp one rounding, which exp multiplies by its size; with the
 * products around them (|alpha z| + 5) * 2^-23 of the value. In the derivative of silu, s (1 + alpha z (1 - s)), the two terms may cancel,
 * so it is that share of s (1 + |alpha z|) there.
 */
#include "ref/operand.h"

#include <math.h>
#include <string.h>

#include "base/bf16.h"

struct mok_ref_inexact mok_ref_operand_sum(int64_t num_terms, double sum, double squares)
{
    double terms = sqrt(squares), n = (double)num_terms;
    return (struct mok_ref_inexact){sum, ldexp(sqrt(n) * terms, -23) + ldexp(n * (terms + fabs(sum)), -28)};
}

double mok_ref_operand_round(double value) { return (double)mok_bf16_to_float(mok_bf16_from_float((float)value)); }

/* act and its partial derivatives at bf16 g, u: fp32 values, with their errors. */
struct activated {
    struct mok_ref_inexact h, by_g, by_u;
};

/* A comparison with NaN is false, so NaN stays. */
static struct activated activate(const mok_activation *act, double g, double u)
{
    double limit = act->limit;
    double z = g > limit ? limit : g;
    double c = (u > limit ? limit : u < -limit ? -limit : u) + act->up_offset;
    double s = 1.0 / (1.0 + exp(-act->alpha * z));
    double h = z * s * c;
    double by_g = g > limit ? 0.0 : s * (1.0 + act->alpha * z * (1.0 - s)) * c;
    double by_u = u > limit || u < -limit ? 0.0 : z * s;
    double share = ldexp(fabs(act->alpha * z) + 5.0, -23);
    double slope = g > limit ? 0.0 : s * (1.0 + fabs(act->alpha * z)) * fabs(c);
    return (struct activated){{(float)h, share * fabs(h)}, {(float)by_g, share * slope}, {(float)by_u, share * fabs(by_u)}};
}

void mok_ref_operand_make(const mok_activation *activation, double g, double u, float dh, float w, struct mok_ref_operand *operand_out)
{
    struct activated at = activate(activation, g, u);
    float d = w * dh;
    operand_out->h = mok_ref_operand_round(at.h.value);
    operand_out->wh = mok_ref_operand_round(w * (float)operand_out->h);
    operand_out->dg = mok_ref_operand_round(d * (float)at.by_g.value);
    operand_out->du = mok_ref_operand_round(d * (float)at.by_u.value);
}

/* The bf16 numbers that an inexact value may be rounded to: at both ends, and in the middle where that is another. Returns how many. */
static int candidates(struct mok_ref_inexact from, double found[3])
{
    int num = 0;
    double ends[] = {from.value - from.error, from.value, from.value + from.error};
    for (int i = 0; i < 3; i++) {
        double rounded = mok_ref_operand_round(ends[i]);
        if (num == 0 || rounded != found[num - 1]) {
            found[num++] = rounded;
        }
    }
    return num;
}

static void widen(double *allowance, double made, double possible)
{
    double change = fabs(possible - made);
    *allowance = change > *allowance ? change : *allowance; /* false with NaN */
}

/* d * by, rounded: errors of both add up, and the product is rounded to fp32 first. */
static void widen_product(double *allowance, double made, struct mok_ref_inexact d, struct mok_ref_inexact by)
{
    double product = d.value * by.value, found[3];
    double error = d.error * fabs(by.value) + fabs(d.value) * by.error + ldexp(fabs(product), -23);
    int num = candidates((struct mok_ref_inexact){product, error}, found);
    for (int i = 0; i < num; i++) {
        widen(allowance, made, found[i]);
    }
}

void mok_ref_operand_allow(const mok_activation *activation, struct mok_ref_inexact g, struct mok_ref_inexact u, struct mok_ref_inexact dh,
                           float w, const struct mok_ref_operand *made, struct mok_ref_operand *allowance_out)
{
    double gates[3], ups[3], found[3];
    int num_gates = candidates(g, gates), num_ups = candidates(u, ups);
    struct mok_ref_inexact d = {(double)w * dh.value, fabs((double)w) * (dh.error + ldexp(fabs(dh.value), -23))};
    memset(allowance_out, 0, sizeof *allowance_out);
    for (int i = 0; i < num_gates * num_ups; i++) {
        struct activated at = activate(activation, gates[i / num_ups], ups[i % num_ups]);
        int num = candidates(at.h, found);
        for (int j = 0; j < num; j++) {
            widen(&allowance_out->h, made->h, found[j]);
            widen(&allowance_out->wh, made->wh, mok_ref_operand_round(w * (float)found[j]));
        }
        widen_product(&allowance_out->dg, made->dg, d, at.by_g);
        widen_product(&allowance_out->du, made->du, d, at.by_u);
    }
}
