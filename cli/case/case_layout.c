/*
 * FFN layouts. STRIDED gives each of the three matrices strides of its own, so that no two can be mixed up unseen.
 */
#include "case/case_layout.h"

#include <string.h>

struct mok_case_place mok_case_place_plan(enum mok_ref_layout layout, int64_t num, int64_t width, int64_t hidden)
{
    int64_t matrix = width * hidden;
    struct mok_case_place p = {
        num, width, hidden, {0, num * matrix, 2 * num * matrix}, {matrix, matrix, matrix}, {hidden, hidden, width}, 3 * num * matrix};
    if (layout == MOK_LAYOUT_PACKED || layout == MOK_LAYOUT_INTERLEAVED) {
        p.first[1] = layout == MOK_LAYOUT_PACKED ? matrix : hidden;
        p.expert_stride[0] = p.expert_stride[1] = 2 * matrix;
        p.row_stride[0] = p.row_stride[1] = layout == MOK_LAYOUT_PACKED ? hidden : 2 * hidden;
    } else if (layout == MOK_LAYOUT_STRIDED) {
        int64_t rows[3] = {width, width, hidden}, columns[3] = {hidden, hidden, width}, at = 0;
        for (int m = 0; m < 3; m++) {
            p.first[m] = at;
            p.row_stride[m] = columns[m] + 8 * (m + 1);
            p.expert_stride[m] = rows[m] * p.row_stride[m] + 16 * (m + 1);
            at += num * p.expert_stride[m];
        }
        p.elements = at;
    }
    return p;
}

size_t mok_case_dtype_bytes(int32_t dtype) { return dtype == MOK_DTYPE_FP32 ? 4 : 2; }

mok_ffn mok_case_place_ffn(const struct mok_case_place *place, int32_t dtype, void *block)
{
    mok_ffn ffn = {.dtype = dtype};
    mok_matrices *all[3] = {&ffn.gate, &ffn.up, &ffn.down};
    for (int m = 0; m < 3; m++) {
        all[m]->base = place->num == 0 ? NULL : (char *)block + (size_t)place->first[m] * mok_case_dtype_bytes(dtype);
        all[m]->expert_stride = place->expert_stride[m];
        all[m]->row_stride = place->row_stride[m];
    }
    return ffn;
}

/* Calls below walk all elements: `dense` counts along the dense arrays, the result is the place in the block. */
static int64_t element_at(const struct mok_case_place *place, int m, int64_t dense)
{
    int64_t columns = m == 2 ? place->width : place->hidden, matrix = place->width * place->hidden;
    int64_t row = dense % matrix / columns;
    return place->first[m] + dense / matrix * place->expert_stride[m] + row * place->row_stride[m] + dense % columns;
}

void mok_case_place_bf16(const struct mok_case_place *place, const mok_bf16 *const dense[3], mok_bf16 *block)
{
    for (int m = 0; m < 3; m++) {
        for (int64_t i = 0; i < place->num * place->width * place->hidden; i++) {
            block[element_at(place, m, i)] = dense[m][i];
        }
    }
}

void mok_case_place_grads(const struct mok_case_place *place, int32_t dtype, const float *const dense[3], void *block)
{
    for (int m = 0; m < 3; m++) {
        for (int64_t i = 0; i < place->num * place->width * place->hidden; i++) {
            int64_t at = element_at(place, m, i);
            if (dtype == MOK_DTYPE_FP32) {
                ((float *)block)[at] = dense[m][i];
            } else {
                ((mok_bf16 *)block)[at] = mok_bf16_from_float(dense[m][i]);
            }
        }
    }
}

void mok_case_take_grads(const struct mok_case_place *place, int32_t dtype, void *block, const void *before, float *const dense[3])
{
    size_t bytes = mok_case_dtype_bytes(dtype);
    for (int m = 0; m < 3; m++) {
        for (int64_t i = 0; i < place->num * place->width * place->hidden; i++) {
            int64_t at = element_at(place, m, i);
            dense[m][i] = dtype == MOK_DTYPE_FP32 ? ((float *)block)[at] : mok_bf16_to_float(((mok_bf16 *)block)[at]);
            memcpy((char *)block + (size_t)at * bytes, (const char *)before + (size_t)at * bytes, bytes);
        }
    }
}
