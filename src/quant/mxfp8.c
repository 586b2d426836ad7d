/*
 * MXFP8 on the host (OCP MX v1.0): blocks of 32 values along a row, each e4m3 under one E8M0 scale.
 *
 * quantise    amax = largest magnitude of the block, in fp32; scale byte by the rounding asked for; element = e4m3(value / scale),
 *             saturating
 * dequantise  element * scale, exact in fp32; infinite from 2^128 on
 *
 * Special blocks. All zero: scale byte 0, zeros with their signs. Tiny: the scale byte stops at 0 (2^-127), never NaN. With a NaN or an
 * infinity: scale byte 255 and every element 0x7f, so that the whole block is NaN to any reader. The largest bf16 numbers (255 * 2^120)
 * round up to 256 * 2^120, which fp32 cannot hold: they come back infinite.
 */
#include <stddef.h>

#include "base/bf16.h"
#include "base/status.h"
#include "base/tensor.h"
#include "quant/e4m3.h"
#include "quant/e8m0.h"

enum { BLOCK = 32 };

/* Infinite when a value is infinite or NaN: their magnitudes are the largest bits of all. */
static float find_amax(const mok_bf16 *block)
{
    mok_bf16 top = 0;
    for (int i = 0; i < BLOCK; i++) {
        mok_bf16 magnitude = block[i] & 0x7fffu;
        top = magnitude > top ? magnitude : top;
    }
    return mok_bf16_to_float(top);
}

static uint8_t quantize_block(const mok_bf16 *block, mok_scale_rounding rounding, uint8_t *e4m3_out)
{
    float amax = find_amax(block);
    uint8_t scale = rounding == MOK_SCALE_RCEIL ? mok_e8m0_rceil(amax) : mok_e8m0_floor(amax);
    float inverse = mok_e8m0_to_inverse(scale);
    for (int i = 0; i < BLOCK; i++) {
        e4m3_out[i] = scale == MOK_E8M0_NAN ? MOK_E4M3_NAN : mok_e4m3_from_float(mok_bf16_to_float(block[i]) * inverse);
    }
    return scale;
}

static mok_status check_shape(int64_t num_rows, int64_t num_cols)
{
    if (num_rows < 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "num_rows is %lld: must be at least 0", (long long)num_rows);
    }
    if (num_cols < 0 || num_cols % BLOCK != 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "num_cols is %lld: must be a multiple of %d", (long long)num_cols, BLOCK);
    }
    if (num_cols > 0 && num_rows > INT64_MAX / 4 / num_cols) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "num_rows %lld times num_cols %lld is more than memory can hold", (long long)num_rows,
                             (long long)num_cols);
    }
    return MOK_OK;
}

mok_status mok_mxfp8_quantize(const void *x, int64_t num_rows, int64_t num_cols, mok_scale_rounding rounding, uint8_t *e4m3_out,
                              uint8_t *e8m0_out)
{
    MOK_TRY(check_shape(num_rows, num_cols));
    int64_t num_values = num_rows * num_cols;
    MOK_TRY(mok_base_check_tensor("x", x, sizeof(mok_bf16), num_values, "value"));
    MOK_TRY(mok_base_check_tensor("e4m3_out", e4m3_out, 1, num_values, "value"));
    MOK_TRY(mok_base_check_tensor("e8m0_out", e8m0_out, 1, num_values / BLOCK, "value"));
    if (rounding != MOK_SCALE_RCEIL && rounding != MOK_SCALE_OCP_FLOOR) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "rounding is %d: must be a mok_scale_rounding (0..1)", (int)rounding);
    }
    for (int64_t block = 0; block < num_values / BLOCK; block++) { /* rows are whole blocks: one run of blocks */
        e8m0_out[block] = quantize_block((const mok_bf16 *)x + block * BLOCK, rounding, e4m3_out + block * BLOCK);
    }
    return MOK_OK;
}

mok_status mok_mxfp8_dequantize(const uint8_t *e4m3, const uint8_t *e8m0, int64_t num_rows, int64_t num_cols, float *x_out)
{
    MOK_TRY(check_shape(num_rows, num_cols));
    int64_t num_values = num_rows * num_cols;
    MOK_TRY(mok_base_check_tensor("e4m3", e4m3, 1, num_values, "value"));
    MOK_TRY(mok_base_check_tensor("e8m0", e8m0, 1, num_values / BLOCK, "value"));
    MOK_TRY(mok_base_check_tensor("x_out", x_out, sizeof *x_out, num_values, "value"));
    for (int64_t i = 0; i < num_values; i++) {
        x_out[i] = mok_e4m3_to_float(e4m3[i]) * mok_e8m0_to_float(e8m0[i / BLOCK]);
    }
    return MOK_OK;
}
