/*
 * E8M0, the scale of an MX block: byte b is 2^(b-127) for 0..254, and NaN for 255. There is no zero: byte 0 is 2^-127.
 *
 * Scales are taken from the bits of the block's largest magnitude, an fp32 value that nothing has rounded: no division, no logarithm, so
 * that host and device give the same byte. Device code that uses these must keep fp32 subnormals (no -ftz=true): bf16 has them.
 */
#ifndef MOK_QUANT_E8M0_H
#define MOK_QUANT_E8M0_H

#include "base/hd.h"

enum { MOK_E8M0_NAN = 255 };

/* 448 = 1.75 * 2^8, the largest e4m3. */
enum { MOK_E8M0_TOP_EXPONENT = 8, MOK_E8M0_TOP_FRACTION = 0x600000 };

union mok_e8m0_bits {
    float f;
    uint32_t u;
};

/* Smallest power of two with amax / scale <= 448, not below 2^-127. amax >= 0; infinity and NaN give 255. */
MOK_HD uint8_t mok_e8m0_rceil(float amax)
{
    union mok_e8m0_bits v;
    v.f = amax;
    int32_t exponent = (int32_t)(v.u >> 23);
    if (exponent == 255) {
        return MOK_E8M0_NAN;
    }
    exponent += (v.u & 0x7fffffu) > MOK_E8M0_TOP_FRACTION;
    return (uint8_t)(exponent > MOK_E8M0_TOP_EXPONENT ? exponent - MOK_E8M0_TOP_EXPONENT : 0);
}

/* 2^(floor(log2(amax)) - 8), not below 2^-127: OCP MX v1.0. What lies above 448 * scale saturates. */
MOK_HD uint8_t mok_e8m0_floor(float amax)
{
    union mok_e8m0_bits v;
    v.f = amax;
    int32_t exponent = (int32_t)(v.u >> 23);
    if (exponent == 255) {
        return MOK_E8M0_NAN;
    }
    return (uint8_t)(exponent > MOK_E8M0_TOP_EXPONENT ? exponent - MOK_E8M0_TOP_EXPONENT : 0);
}

/* 2^(b-127), exact. */
MOK_HD float mok_e8m0_to_float(uint8_t byte)
{
    union mok_e8m0_bits v;
    v.u = byte == MOK_E8M0_NAN ? 0x7fc00000u : byte == 0 ? 0x00400000u : (uint32_t)byte << 23;
    return v.f;
}

/* 2^(127-b), what a value is multiplied by before it becomes e4m3; exact. NaN for 255. */
MOK_HD float mok_e8m0_to_inverse(uint8_t byte)
{
    return byte == MOK_E8M0_NAN ? mok_e8m0_to_float(byte) : mok_e8m0_to_float((uint8_t)(254 - byte));
}

#endif
