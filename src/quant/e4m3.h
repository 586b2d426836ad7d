/*
 * FP8 e4m3 (OCP: 1 sign, 4 exponent, 3 mantissa bits, bias 7; largest value 448 = 0x7e, NaN = 0x7f and 0xff, no infinity).
 *
 * Integer arithmetic, but for one addition that rounds to nearest even: the same bytes on host and device. A subnormal fp32 input may be
 * flushed to zero without harm, it rounds to 0 either way.
 */
#ifndef MOK_QUANT_E4M3_H
#define MOK_QUANT_E4M3_H

#include "base/hd.h"

enum { MOK_E4M3_NAN = 0x7f, MOK_E4M3_MAX = 0x7e };

union mok_e4m3_bits {
    float f;
    uint32_t u;
};

/* Nearest, ties to even; beyond +-448, infinities included, saturates; NaN stays NaN. The sign is kept, that of zero too. */
MOK_HD uint8_t mok_e4m3_from_float(float value)
{
    union mok_e4m3_bits v;
    v.f = value;
    uint32_t sign = (v.u >> 24) & 0x80u;
    v.u &= 0x7fffffffu;
    if (v.u > 0x7f800000u) {
        return (uint8_t)(sign | MOK_E4M3_NAN);
    }
    if (v.u >= 0x43e00000u) { /* 448 */
        return (uint8_t)(sign | MOK_E4M3_MAX);
    }
    if (v.u < 0x3c800000u) { /* 2^-6: a subnormal e4m3 counts steps of 2^-9, which is the last digit of fp32 numbers from 2^14 on */
        v.f += 16384.0f;
        return (uint8_t)(sign | (v.u - 0x46800000u)); /* eight steps are the code of 2^-6 */
    }
    uint32_t even = (v.u >> 20) & 1u;
    return (uint8_t)(sign | (((v.u + 0x7ffffu + even) >> 20) - ((127u - 7u) << 3))); /* a carry walks into the exponent */
}

/* Exact. */
MOK_HD float mok_e4m3_to_float(uint8_t byte)
{
    union mok_e4m3_bits v;
    uint32_t magnitude = byte & 0x7fu;
    if (magnitude == MOK_E4M3_NAN) {
        v.u = 0x7fc00000u;
    } else if (magnitude < 8u) {
        v.f = (float)magnitude * 0.001953125f; /* 2^-9 */
    } else {
        v.u = (magnitude << 20) + ((127u - 7u) << 23);
    }
    v.u |= (uint32_t)(byte & 0x80u) << 24;
    return v.f;
}

#endif
