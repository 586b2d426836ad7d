/*
 * What a pass writes may not lie on what else it reads or writes. In: spans. Out: MOK_OK, or the first pair that has a byte in common.
 *
 * Most pairs are decided by their first and last byte. Matrices whose bytes lie in one range may still be apart: interleaved gate and up
 * rows, experts side by side. Then pairs of experts are looked at, and of a pair whose ranges cross the rows: with one row stride in one
 * step, because all distances between rows are d + j * stride; else row by row.
 */
#include "api/check.h"

#include <inttypes.h>

#include "base/status.h"

/* A piece of memory is the only row of a matrix. */
static struct mok_span as_matrices(const struct mok_span *span)
{
    struct mok_span result = *span;
    if (span->num == 0) {
        result.num = result.rows = 1;
        result.row_length = span->bytes;
    }
    return result;
}

static int is_crossing(int64_t a_first, int64_t a_bytes, int64_t b_first, int64_t b_bytes)
{
    return a_first - b_first < b_bytes && b_first - a_first < a_bytes; /* no sum, which would not fit with huge strides */
}

static int64_t matrix_bytes(const struct mok_span *span) { return (span->rows - 1) * span->row_bytes + span->row_length; }

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* One row of `length` bytes at `first` against the rows of a matrix at 0: the last row that begins before its end is the one to ask. */
static int is_row_on(int64_t first, int64_t length, const struct mok_span *matrix)
{
    int64_t row = 0;
    if (matrix->rows > 1) {
        row = floor_div(first + length - 1, matrix->row_bytes);
        row = row < 0 ? 0 : row >= matrix->rows ? matrix->rows - 1 : row;
    }
    return is_crossing(first, length, row * matrix->row_bytes, matrix->row_length);
}

/* Two matrices of one row stride, b at `distance` from a: rows i of b and k of a are distance + (i - k) * stride apart, so only the two
 * shifts next to -distance / stride can bring them together. */
static int is_shift_on(const struct mok_span *a, const struct mok_span *b, int64_t distance)
{
    int64_t stride = a->row_bytes, shift = floor_div(-distance, stride);
    for (int64_t j = shift; j <= shift + 1; j++) {
        int64_t apart = distance + j * stride;
        if (j > -a->rows && j < b->rows && is_crossing(0, a->row_length, apart, b->row_length)) {
            return 1;
        }
    }
    return 0;
}

/* One matrix of a and one of b, which stands at `distance` from it. */
static int is_matrix_on(const struct mok_span *a, const struct mok_span *b, int64_t distance)
{
    if (!is_crossing(0, matrix_bytes(a), distance, matrix_bytes(b))) {
        return 0;
    }
    if (a->rows > 1 && b->rows > 1 && a->row_bytes == b->row_bytes) {
        return is_shift_on(a, b, distance);
    }
    for (int64_t row = 0; row < a->rows; row++) {
        if (is_row_on(row * a->row_bytes - distance, a->row_length, b)) {
            return 1;
        }
    }
    return 0;
}

static int is_overlap(const struct mok_span *a_span, const struct mok_span *b_span)
{
    if (a_span->base == NULL || b_span->base == NULL || a_span->bytes <= 0 || b_span->bytes <= 0) {
        return 0;
    }
    int64_t distance = (int64_t)((uintptr_t)b_span->base - (uintptr_t)a_span->base);
    if (!is_crossing(0, a_span->bytes, distance, b_span->bytes)) {
        return 0;
    }
    struct mok_span a = as_matrices(a_span), b = as_matrices(b_span);
    if (a.num > 1 && b.num > 1 && a.expert_bytes == b.expert_bytes) {
        /* Only the difference of two experts counts. */
        for (int64_t j = 1 - a.num; j < b.num; j++) {
            if (is_matrix_on(&a, &b, distance + j * b.expert_bytes)) {
                return 1;
            }
        }
        return 0;
    }
    for (int64_t i = 0; i < a.num; i++) {
        for (int64_t j = 0; j < b.num; j++) {
            if (is_matrix_on(&a, &b, distance + j * b.expert_bytes - i * a.expert_bytes)) {
                return 1;
            }
        }
    }
    return 0;
}

mok_status mok_api_check_apart(const struct mok_span *spans, int num_spans)
{
    for (int a = 0; a < num_spans; a++) {
        for (int b = a + 1; b < num_spans; b++) {
            if ((spans[a].is_output || spans[b].is_output) && is_overlap(&spans[a], &spans[b])) {
                return mok_base_fail(MOK_ERR_ARGUMENT, "%s is %p, %" PRId64 " bytes: may not overlap %s (%p, %" PRId64 " bytes)",
                                     spans[a].name, spans[a].base, spans[a].bytes, spans[b].name, spans[b].base, spans[b].bytes);
            }
        }
    }
    return MOK_OK;
}

static struct mok_span span_of(const char *name, const mok_matrices *matrices, int64_t element, int64_t num, int64_t rows, int64_t cols,
                               int is_output)
{
    struct mok_span span = {
        .name = name,
        .base = matrices->base,
        .is_output = is_output,
        .num = num,
        .rows = rows,
        .expert_bytes = num > 1 ? matrices->expert_stride * element : 0,
        .row_bytes = matrices->row_stride * element,
        .row_length = cols * element,
    };
    span.bytes = (num - 1) * span.expert_bytes + matrix_bytes(&span);
    return span;
}

void mok_api_ffn_spans(const char *const *names, const mok_ffn *ffn, int64_t num, int64_t hidden, int64_t inter, int is_output,
                       struct mok_span *spans_out)
{
    if (num == 0) {
        for (int i = 0; i < MOK_FFN_SPANS; i++) {
            spans_out[i] = (struct mok_span){.name = names[i]};
        }
        return;
    }
    int64_t element = ffn->dtype == MOK_DTYPE_FP32 ? 4 : 2;
    spans_out[0] = span_of(names[0], &ffn->gate, element, num, inter, hidden, is_output);
    spans_out[1] = span_of(names[1], &ffn->up, element, num, inter, hidden, is_output);
    spans_out[2] = span_of(names[2], &ffn->down, element, num, hidden, inter, is_output);
}
