/*
 * Where the matrices of an FFN stand in one block of memory, for each layout of the case table, and moving values between the dense arrays
 * of a problem and such a block. Blocks here are host images; whoever calls uploads them.
 */
#ifndef MOK_CASE_LAYOUT_H
#define MOK_CASE_LAYOUT_H

#include "ref/cases.h"

/* Offsets and strides in elements. gate, up [num, width, hidden]; down [num, hidden, width]. */
struct mok_case_place {
    int64_t num, width, hidden;
    int64_t first[3];         /* of gate, up, down */
    int64_t expert_stride[3];
    int64_t row_stride[3];
    int64_t elements; /* of the block */
};

struct mok_case_place mok_case_place_plan(enum mok_ref_layout layout, int64_t num, int64_t width, int64_t hidden);

/* The FFN at `block`, as the public API takes it. */
mok_ffn mok_case_place_ffn(const struct mok_case_place *place, int32_t dtype, void *block);

/* dense[3]: gate, up, down of `num` experts, one behind the other. Elements between the matrices are not touched. */
void mok_case_place_bf16(const struct mok_case_place *place, const mok_bf16 *const dense[3], mok_bf16 *block);
void mok_case_place_grads(const struct mok_case_place *place, int32_t dtype, const float *const dense[3], void *block);
/* The reverse. Each element that is taken is replaced in `block` by that of `before`; what then still differs from `before` was written
 * outside the matrices. */
void mok_case_take_grads(const struct mok_case_place *place, int32_t dtype, void *block, const void *before, float *const dense[3]);

size_t mok_case_dtype_bytes(int32_t dtype);

#endif
