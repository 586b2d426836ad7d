/*
 * bf16 on the host: conversions with round to nearest even. NaN stays NaN (made quiet), so that a NaN token shows as one.
 */
#ifndef MOK_BASE_BF16_H
#define MOK_BASE_BF16_H

#include "base/hd.h"

typedef uint16_t mok_bf16; /* the bits */

MOK_HD float mok_bf16_to_float(mok_bf16 bits)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.u = (uint32_t)bits << 16;
    return v.f;
}

MOK_HD mok_bf16 mok_bf16_from_float(float value)
{
    union {
        float f;
        uint32_t u;
    } v;
    v.f = value;
    if ((v.u & 0x7fffffffu) > 0x7f800000u) {
        return (mok_bf16)((v.u >> 16) | 0x40u);
    }
    return (mok_bf16)((v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16);
}

#endif
