/*
 * e4m3, E8M0 and MXFP8 on the host: every value of the small formats, every bf16 as a block's largest, and the faults seen elsewhere.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bf16.h"
#include "mok/mok.h"
#include "quant/e4m3.h"
#include "quant/e8m0.h"

enum { BLOCK = 32 };

/* Value of an e4m3 code by the format's definition. */
static double value_of(uint8_t byte)
{
    int exponent = (byte >> 3) & 15;
    int fraction = byte & 7;
    double magnitude = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
    if ((byte & 0x7f) == 0x7f) {
        return NAN;
    }
    return byte & 0x80 ? -magnitude : magnitude;
}

/* The nearest code by looking at all; on a tie the even one; saturating. */
static uint8_t nearest_by_search(double value)
{
    int best = 0;
    for (int code = 1; code <= MOK_E4M3_MAX; code++) {
        double nearer = fabs(fabs(value) - value_of((uint8_t)best)) - fabs(fabs(value) - value_of((uint8_t)code));
        if (nearer > 0.0 || (nearer == 0.0 && code % 2 == 0)) {
            best = code;
        }
    }
    return (uint8_t)(best | (signbit(value) ? 0x80 : 0));
}

static void test_every_e4m3_value(void **state)
{
    (void)state;
    for (int byte = 0; byte < 256; byte++) {
        float value = mok_e4m3_to_float((uint8_t)byte);
        if ((byte & 0x7f) == MOK_E4M3_NAN) {
            assert_true(isnan(value));
        } else {
            assert_true((double)value == value_of((uint8_t)byte));
            assert_int_equal(signbit(value) != 0, byte >> 7);
        }
        assert_int_equal(mok_e4m3_from_float(value), byte); /* NaN keeps its sign, too */
    }
}

static void test_rounding_to_e4m3_against_search(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000u; bits++) { /* every bf16 */
        float value = mok_bf16_to_float((mok_bf16)bits);
        if (!isnan(value) && fabsf(value) < 1e4f) {
            assert_int_equal(mok_e4m3_from_float(value), nearest_by_search((double)value));
        }
    }
    for (int code = 0; code < MOK_E4M3_MAX; code++) { /* every tie and its fp32 neighbours */
        float middle = (mok_e4m3_to_float((uint8_t)code) + mok_e4m3_to_float((uint8_t)(code + 1))) * 0.5f;
        const float near[3] = {nextafterf(middle, 0.0f), middle, nextafterf(middle, 1e9f)};
        for (int i = 0; i < 3; i++) {
            int expected = i == 0 ? code : i == 2 ? code + 1 : code + (code & 1);
            assert_int_equal(mok_e4m3_from_float(near[i]), expected);
            assert_int_equal(mok_e4m3_from_float(-near[i]), expected | 0x80);
        }
    }
}

/* F11 */
static void test_e4m3_saturates(void **state)
{
    (void)state;
    const float large[8] = {448.0f, 449.0f, 464.0f, 465.0f, 480.0f, 1e6f, 3.4e38f, INFINITY};
    for (int i = 0; i < 8; i++) {
        assert_int_equal(mok_e4m3_from_float(large[i]), 0x7e);
        assert_int_equal(mok_e4m3_from_float(-large[i]), 0xfe);
    }
    assert_int_equal(mok_e4m3_from_float(NAN) & 0x7f, 0x7f);
}

/* F5: byte 0 is no zero, 254 and 255 are no infinity. */
static void test_every_e8m0_value(void **state)
{
    (void)state;
    for (int byte = 0; byte < 255; byte++) {
        assert_true((double)mok_e8m0_to_float((uint8_t)byte) == ldexp(1.0, byte - 127));
        assert_true((double)mok_e8m0_to_inverse((uint8_t)byte) == ldexp(1.0, 127 - byte));
    }
    assert_true(isnan(mok_e8m0_to_float(255)) && isnan(mok_e8m0_to_inverse(255)));
    const uint8_t bytes[4] = {0, 1, 254, 255};
    uint8_t ones[4 * BLOCK];
    float x[4 * BLOCK];
    memset(ones, 0x38, sizeof ones);
    assert_int_equal(mok_mxfp8_dequantize(ones, bytes, 4, BLOCK, x), MOK_OK);
    for (int i = 0; i < BLOCK; i++) {
        assert_true(x[i] == 0x1p-127f && x[BLOCK + i] == 0x1p-126f && x[2 * BLOCK + i] == 0x1p127f && isnan(x[3 * BLOCK + i]));
    }
}

/* The definitions, in double: RCEIL is the smallest s with amax <= 448 * 2^s, floor is floor(log2(amax)) - 8; both within 0..254. */
static void test_scale_of_every_bf16(void **state)
{
    (void)state;
    assert_int_equal(mok_e8m0_rceil(0.0f), 0);
    assert_int_equal(mok_e8m0_floor(0.0f), 0);
    for (uint32_t bits = 1; bits < 0x7f80u; bits++) {
        double amax = (double)mok_bf16_to_float((mok_bf16)bits);
        int exponent = 0;
        frexp(amax, &exponent); /* amax = fraction in [0.5, 1) times 2^exponent */
        int floor_byte = exponent - 1 - 8 + 127;
        int rceil_byte = 0;
        while (amax > 448.0 * ldexp(1.0, rceil_byte - 127)) {
            rceil_byte++;
        }
        assert_int_equal(mok_e8m0_floor((float)amax), floor_byte < 0 ? 0 : floor_byte);
        assert_int_equal(mok_e8m0_rceil((float)amax), rceil_byte);
    }
    for (int s = -118; s < 118; s++) { /* fp32 neighbours of 448 * 2^s, where a division by 448 could round to the other side */
        float edge = ldexpf(448.0f, s);
        assert_int_equal(mok_e8m0_rceil(edge), s + 127);
        assert_int_equal(mok_e8m0_rceil(nextafterf(edge, 0.0f)), s + 127);
        assert_int_equal(mok_e8m0_rceil(nextafterf(edge, INFINITY)), s + 128);
    }
}

/* A block whose first value is `top` and whose others are `rest`. */
static void make_block(float top, float rest, mok_bf16 *block_out)
{
    for (int i = 0; i < BLOCK; i++) {
        block_out[i] = mok_bf16_from_float(i == 0 ? top : i % 2 == 0 ? rest : -rest);
    }
}

static uint8_t quantize(const mok_bf16 *block, mok_scale_rounding rounding, uint8_t *e4m3_out, float *x_out)
{
    uint8_t scale = 0x55;
    assert_int_equal(mok_mxfp8_quantize(block, 1, BLOCK, rounding, e4m3_out, &scale), MOK_OK);
    assert_int_equal(mok_mxfp8_dequantize(e4m3_out, &scale, 1, BLOCK, x_out), MOK_OK);
    return scale;
}

/* F2: the byte values of both roundings, and what the largest value becomes. */
static void test_scale_rounding_by_its_bytes(void **state)
{
    (void)state;
    static const struct {
        float amax;
        int rceil_byte;
        float rceil_value;
        int floor_byte;
        float floor_value;
    } rows[] = {
        {150.0f, 126, 144.0f, 126, 144.0f}, /* OCP ceil would be 127 */
        {448.0f, 127, 448.0f, 127, 448.0f},
        {450.0f, 128, 448.0f, 127, 448.0f},
        {956.0f, 129, 960.0f, 128, 896.0f},
    };
    mok_bf16 block[BLOCK];
    uint8_t e4m3[BLOCK];
    float x[BLOCK];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        make_block(rows[i].amax, 1.0f, block);
        assert_true(mok_bf16_to_float(block[0]) == rows[i].amax);
        assert_int_equal(quantize(block, MOK_SCALE_RCEIL, e4m3, x), rows[i].rceil_byte);
        assert_true(x[0] == rows[i].rceil_value);
        assert_int_equal(quantize(block, MOK_SCALE_OCP_FLOOR, e4m3, x), rows[i].floor_byte);
        assert_true(x[0] == rows[i].floor_value);
        assert_true(x[1] == -1.0f && x[2] == 1.0f);
    }
}

/* F1: tiny and empty blocks stay finite, and the scale byte stops at 0. */
static void test_tiny_blocks_stay_finite(void **state)
{
    (void)state;
    const float tops[5] = {3e-36f, 1e-38f, 0x1p-133f, 0x1p-126f, 1.0f};
    mok_bf16 block[BLOCK];
    uint8_t e4m3[BLOCK];
    float x[BLOCK];
    for (int rounding = 0; rounding < 2; rounding++) {
        for (int i = 0; i < 5; i++) {
            for (int is_single = 0; is_single < 2; is_single++) { /* one value that is not zero, or all of one size */
                make_block(tops[i], is_single ? 0.0f : tops[i], block);
                uint8_t scale = quantize(block, (mok_scale_rounding)rounding, e4m3, x);
                double unit = ldexp(1.0, scale - 127);
                for (int j = 0; j < BLOCK; j++) {
                    double value = (double)mok_bf16_to_float(block[j]);
                    assert_true(isfinite(x[j]));
                    assert_int_equal(e4m3[j], nearest_by_search(value / unit));
                    assert_true((double)x[j] == value_of(e4m3[j]) * unit);
                }
                assert_true(scale == 0 || tops[i] > 1e-36f);
            }
        }
        make_block(0.0f, 0.0f, block);
        assert_int_equal(quantize(block, (mok_scale_rounding)rounding, e4m3, x), 0);
        for (int j = 0; j < BLOCK; j++) {
            assert_true(x[j] == 0.0f);
            assert_int_equal(e4m3[j] & 0x7f, 0);
        }
    }
}

/* F6: a block with an infinity or a NaN is NaN as a whole, its neighbours are not touched. */
static void test_infinity_and_nan_make_the_block_nan(void **state)
{
    (void)state;
    const mok_bf16 bad[4] = {0x7f80, 0xff80, 0x7fc0, 0xff81};
    for (int rounding = 0; rounding < 2; rounding++) {
        for (int i = 0; i < 4; i++) {
            mok_bf16 row[3 * BLOCK];
            uint8_t e4m3[3 * BLOCK];
            uint8_t scales[3];
            float x[3 * BLOCK];
            for (int j = 0; j < 3 * BLOCK; j++) {
                row[j] = mok_bf16_from_float(1.5f);
            }
            row[BLOCK + 7 * i] = bad[i];
            assert_int_equal(mok_mxfp8_quantize(row, 1, 3 * BLOCK, (mok_scale_rounding)rounding, e4m3, scales), MOK_OK);
            assert_int_equal(mok_mxfp8_dequantize(e4m3, scales, 1, 3 * BLOCK, x), MOK_OK);
            assert_int_equal(scales[1], 255);
            for (int j = 0; j < 3 * BLOCK; j++) {
                int is_bad = j / BLOCK == 1;
                assert_true(is_bad ? isnan(x[j]) && e4m3[j] == 0x7f : x[j] == 1.5f);
            }
        }
    }
    /* The largest finite bf16 is no special block. */
    mok_bf16 block[BLOCK];
    uint8_t e4m3[BLOCK];
    float x[BLOCK];
    make_block(1.0f, 1.0f, block);
    block[0] = 0x7f7f;
    assert_int_equal(quantize(block, MOK_SCALE_RCEIL, e4m3, x), 254 - 8 + 1);
    assert_int_equal(e4m3[0], nearest_by_search(255.0));
    assert_true(isinf(x[0]) && x[1] == 0.0f); /* 256 * 2^120 is past fp32, and 2^-120 far below the block's last digit */
}

/* Rows and columns: block b of row r is where it should be, and each value is within e4m3's rounding of what went in. */
static void test_many_rows(void **state)
{
    (void)state;
    enum { ROWS = 7, COLS = 96, NUM = ROWS * COLS };
    mok_bf16 x[NUM];
    uint8_t e4m3[NUM + 1];
    uint8_t scales[NUM / BLOCK + 1];
    float back[NUM];
    srand(5);
    for (int i = 0; i < NUM; i++) {
        x[i] = mok_bf16_from_float(ldexpf((float)rand() / (float)RAND_MAX - 0.5f, i / BLOCK - 10)); /* each block has a size of its own */
    }
    e4m3[NUM] = 0xaa;
    scales[NUM / BLOCK] = 0xaa;
    assert_int_equal(mok_mxfp8_quantize(x, ROWS, COLS, MOK_SCALE_RCEIL, e4m3, scales), MOK_OK);
    assert_true(e4m3[NUM] == 0xaa && scales[NUM / BLOCK] == 0xaa);
    assert_int_equal(mok_mxfp8_dequantize(e4m3, scales, ROWS, COLS, back), MOK_OK);
    for (int i = 0; i < NUM; i++) {
        double value = (double)mok_bf16_to_float(x[i]);
        double scale = ldexp(1.0, scales[i / BLOCK] - 127);
        assert_int_equal(e4m3[i], nearest_by_search(value / scale));
        assert_true((double)back[i] == value_of(e4m3[i]) * scale);
        assert_true(fabs((double)back[i] - value) <= fmax(fabs(value) / 16.0, scale * 0x1p-10));
    }
}

static void test_bad_arguments_are_refused_by_name(void **state)
{
    (void)state;
    mok_bf16 x[BLOCK] = {0};
    uint8_t e4m3[BLOCK];
    uint8_t scale;
    float back[BLOCK];
    assert_int_equal(mok_mxfp8_quantize(x, 1, 31, MOK_SCALE_RCEIL, e4m3, &scale), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "num_cols is 31: must be a multiple of 32"));
    assert_int_equal(mok_mxfp8_quantize(x, -1, 32, MOK_SCALE_RCEIL, e4m3, &scale), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "num_rows is -1: must be at least 0"));
    assert_int_equal(mok_mxfp8_quantize(x, INT64_MAX / 32, 64, MOK_SCALE_RCEIL, e4m3, &scale), MOK_ERR_ARGUMENT);
    assert_int_equal(mok_mxfp8_quantize(x, 1, 32, (mok_scale_rounding)2, e4m3, &scale), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "rounding is 2: must be "));
    assert_int_equal(mok_mxfp8_quantize(NULL, 1, 32, MOK_SCALE_RCEIL, e4m3, &scale), MOK_ERR_ARGUMENT);
    assert_int_equal(mok_mxfp8_quantize(x, 1, 32, MOK_SCALE_RCEIL, NULL, &scale), MOK_ERR_ARGUMENT);
    assert_int_equal(mok_mxfp8_quantize(x, 1, 32, MOK_SCALE_RCEIL, e4m3, NULL), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "e8m0_out is NULL: must be given with 1 value"));
    assert_int_equal(mok_mxfp8_quantize(NULL, 0, 32, MOK_SCALE_RCEIL, NULL, NULL), MOK_OK);
    assert_int_equal(mok_mxfp8_dequantize(e4m3, &scale, 1, 33, back), MOK_ERR_ARGUMENT);
    assert_int_equal(mok_mxfp8_dequantize(NULL, &scale, 1, 32, back), MOK_ERR_ARGUMENT);
    assert_int_equal(mok_mxfp8_dequantize(e4m3, NULL, 2, 32, back), MOK_ERR_ARGUMENT);
    assert_string_equal(mok_last_error(), "e8m0 is NULL: must be given with 2 values");
    assert_int_equal(mok_mxfp8_dequantize(e4m3, &scale, 1, 32, NULL), MOK_ERR_ARGUMENT);
    assert_string_equal(mok_last_error(), "x_out is NULL: must be given with 32 values");
    assert_int_equal(mok_mxfp8_quantize((char *)x + 1, 1, 32, MOK_SCALE_RCEIL, e4m3, &scale), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "x is 0x"));
    assert_non_null(strstr(mok_last_error(), ": must be a multiple of 2 bytes"));
    assert_int_equal(mok_mxfp8_dequantize(e4m3, &scale, 1, 32, (float *)((uintptr_t)back + 2)), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "x_out is 0x"));
    assert_non_null(strstr(mok_last_error(), ": must be a multiple of 4 bytes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_e4m3_value),
        cmocka_unit_test(test_rounding_to_e4m3_against_search),
        cmocka_unit_test(test_e4m3_saturates),
        cmocka_unit_test(test_every_e8m0_value),
        cmocka_unit_test(test_scale_of_every_bf16),
        cmocka_unit_test(test_scale_rounding_by_its_bytes),
        cmocka_unit_test(test_tiny_blocks_stay_finite),
        cmocka_unit_test(test_infinity_and_nan_make_the_block_nan),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_bad_arguments_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
