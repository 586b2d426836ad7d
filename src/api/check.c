/*
 * Checks of pointers, strides and matrices. What may not share memory is in check_overlap.c, the group's config in check_config.c.
 */
#include "api/check.h"

#include <inttypes.h>
#include <string.h>

#include "base/status.h"

mok_status mok_api_check_given(const char *name, const void *pointer)
{
    return pointer != NULL ? MOK_OK : mok_base_fail(MOK_ERR_ARGUMENT, "%s is NULL: must be given", name);
}

mok_status mok_api_check_struct(const char *name, const void *object, size_t expected)
{
    MOK_TRY(mok_api_check_given(name, object));
    size_t size;
    memcpy(&size, object, sizeof size);
    if (size != expected) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s.struct_size is %zu: must be %zu, the size in this library's header", name, size,
                             expected);
    }
    return MOK_OK;
}

static mok_status check_aligned(const char *name, const void *pointer)
{
    if ((uintptr_t)pointer % MOK_TENSOR_ALIGN != 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s is %p: must be a multiple of %d bytes", name, pointer, MOK_TENSOR_ALIGN);
    }
    return MOK_OK;
}

mok_status mok_api_check_tensor(const char *name, const void *pointer, int64_t num_tokens)
{
    if (num_tokens == 0) {
        return MOK_OK;
    }
    if (pointer == NULL) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s is NULL: may be NULL only when the rank has no tokens, and it has %" PRId64, name,
                             num_tokens);
    }
    return check_aligned(name, pointer);
}

mok_status mok_api_check_optional(const char *name, const void *pointer, int64_t num_tokens)
{
    return num_tokens == 0 || pointer == NULL ? MOK_OK : check_aligned(name, pointer);
}

mok_status mok_api_check_stream(const struct mok_pass_ops *ops, mok_stream stream)
{
    if (stream != NULL && ops->backend == MOK_BACKEND_CPU) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "stream is %p: must be NULL with the CPU backend", stream);
    }
    return MOK_OK;
}

/* a * b + c of non-negative numbers; 0 when it does not fit. */
static int fits(int64_t a, int64_t b, int64_t c, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out) && !__builtin_add_overflow(*out, c, out);
}

static mok_status check_stride(const char *name, const char *part, const char *which, int64_t stride, int64_t least)
{
    if (stride < least || stride % MOK_STRIDE_MULTIPLE != 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s.%s.%s is %" PRId64 ": must be a multiple of %d and at least %" PRId64, name, part, which,
                             stride, MOK_STRIDE_MULTIPLE, least);
    }
    return MOK_OK;
}

static mok_status check_matrices(const char *name, const char *part, const mok_matrices *matrices, int64_t num, int64_t rows, int64_t cols)
{
    if (matrices->base == NULL) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s.%s.base is NULL: must be given for %" PRId64 " local expert%s", name, part, num,
                             num == 1 ? "" : "s");
    }
    if ((uintptr_t)matrices->base % MOK_TENSOR_ALIGN != 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s.%s.base is %p: must be a multiple of %d bytes", name, part, matrices->base,
                             MOK_TENSOR_ALIGN);
    }
    MOK_TRY(check_stride(name, part, "row_stride", matrices->row_stride, cols));
    int64_t expert_stride = num == 1 ? 0 : matrices->expert_stride;
    if (num > 1) {
        MOK_TRY(check_stride(name, part, "expert_stride", expert_stride, cols));
    }
    /* Elements from the first to behind the last one: of one expert, of the first row of all experts, of all. */
    int64_t one_expert, first_rows, elements, bytes;
    if (!fits(matrices->row_stride, rows - 1, cols, &one_expert) || !fits(expert_stride, num - 1, cols, &first_rows) ||
        !fits(expert_stride, num - 1, one_expert, &elements) || !fits(elements, 8, 0, &bytes)) {
        return mok_base_fail(MOK_ERR_ARGUMENT,
                             "%s.%s.row_stride is %" PRId64 " and expert_stride %" PRId64 ": the last element lies past 2^60 elements", name,
                             part, matrices->row_stride, expert_stride);
    }
    /* Experts stand one after another, or take turns row by row. */
    if (num > 1 && expert_stride < one_expert && matrices->row_stride < first_rows) {
        return mok_base_fail(MOK_ERR_ARGUMENT,
                             "%s.%s.expert_stride is %" PRId64 ": experts overlap, it must be at least %" PRId64
                             " (or row_stride at least %" PRId64 ")",
                             name, part, expert_stride, one_expert, first_rows);
    }
    return MOK_OK;
}

mok_status mok_api_check_shared(const char *name, const mok_ffn *ffn, int64_t hidden, int64_t shared_inter, int is_gradient)
{
    const struct {
        const char *part;
        const void *base;
    } parts[] = {{"gate", ffn->gate.base}, {"up", ffn->up.base}, {"down", ffn->down.base}};
    for (int idx = 0; idx < 3; idx++) {
        if (shared_inter > 0 && parts[idx].base == NULL) {
            return mok_base_fail(MOK_ERR_ARGUMENT, "%s.%s.base is NULL: must be given, for shape.shared_intermediate is %" PRId64, name,
                                 parts[idx].part, shared_inter);
        }
        if (shared_inter == 0 && parts[idx].base != NULL) {
            return mok_base_fail(MOK_ERR_ARGUMENT,
                                 "%s.%s.base is %p: must be NULL, the group has no shared expert (shape.shared_intermediate is 0)", name,
                                 parts[idx].part, parts[idx].base);
        }
    }
    return mok_api_check_ffn(name, ffn, shared_inter > 0, hidden, shared_inter, is_gradient);
}

mok_status mok_api_check_ffn(const char *name, const mok_ffn *ffn, int64_t num, int64_t hidden, int64_t inter, int is_gradient)
{
    int is_unused = num == 0 && ffn->dtype == MOK_DTYPE_NONE;
    if (ffn->dtype != MOK_DTYPE_BF16 && !(is_gradient && ffn->dtype == MOK_DTYPE_FP32) && !is_unused) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s.dtype is %" PRId32 ": must be %s", name, ffn->dtype,
                             is_gradient ? "MOK_DTYPE_FP32 (2) or MOK_DTYPE_BF16 (1)" : "MOK_DTYPE_BF16 (1)");
    }
    if (ffn->reserved != 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s.reserved is %" PRId32 ": must be 0", name, ffn->reserved);
    }
    if (num == 0) {
        return MOK_OK;
    }
    MOK_TRY(check_matrices(name, "gate", &ffn->gate, num, inter, hidden));
    MOK_TRY(check_matrices(name, "up", &ffn->up, num, inter, hidden));
    MOK_TRY(check_matrices(name, "down", &ffn->down, num, hidden, inter));
    if (is_gradient && (ffn->gate.base == ffn->up.base || ffn->gate.base == ffn->down.base || ffn->up.base == ffn->down.base)) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s.gate.base, up.base and down.base are %p, %p, %p: gradients may not share memory", name,
                             ffn->gate.base, ffn->up.base, ffn->down.base);
    }
    return MOK_OK;
}
