/*
 * Checks of arguments. Each says MOK_OK or fails with one sentence: argument, value, rule. Nothing is written, no tensor is read.
 */
#ifndef MOK_API_CHECK_H
#define MOK_API_CHECK_H

#include "pass/pass.h"

enum { MOK_TENSOR_ALIGN = 16, MOK_STRIDE_MULTIPLE = 8 };

/* A handle, a struct or an output pointer. */
mok_status mok_api_check_given(const char *name, const void *pointer);

/* A struct that begins with struct_size: given, and of the size that this library knows. */
mok_status mok_api_check_struct(const char *name, const void *object, size_t expected);

/* A tensor of num_tokens rows: given and aligned, unless num_tokens is 0. */
mok_status mok_api_check_tensor(const char *name, const void *pointer, int64_t num_tokens);

/* A tensor that may be left out: aligned when it is given. */
mok_status mok_api_check_optional(const char *name, const void *pointer, int64_t num_tokens);

/* The CPU backend has no streams. */
mok_status mok_api_check_stream(const struct mok_pass_ops *ops, mok_stream stream);

/* What a pass reads or writes, for the overlap check: one piece of memory, or the rows of matrices with what lies between them left out.
 * A piece is its only row. */
struct mok_span {
    const char *name;
    const void *base; /* NULL = not given */
    int64_t bytes;    /* from the first to behind the last one */
    int is_output;
    int64_t num, rows;               /* matrices; 0 = one piece */
    int64_t expert_bytes, row_bytes; /* strides */
    int64_t row_length;              /* bytes of a row */
};

enum { MOK_FFN_SPANS = 3 };

/* Spans of gate, up and down of a network that has passed mok_api_check_ffn. names [3]. Nothing is given where num is 0. */
void mok_api_ffn_spans(const char *const *names, const mok_ffn *ffn, int64_t num, int64_t hidden, int64_t inter, int is_output,
                       struct mok_span *spans_out);

/* No output overlaps another output or an input: they have no byte in common. Rows of one may lie between rows of another. */
mok_status mok_api_check_apart(const struct mok_span *spans, int num_spans);

/* Gate, up and down of `num` experts of width `inter`. `name` is "config.routed", "args.grads", ... */
mok_status mok_api_check_ffn(const char *name, const mok_ffn *ffn, int64_t num, int64_t hidden, int64_t inter, int is_gradient);

/* The same of the shared expert. A group without one (shared_inter is 0) takes no memory for it: it would be neither read nor written. */
mok_status mok_api_check_shared(const char *name, const mok_ffn *ffn, int64_t hidden, int64_t shared_inter, int is_gradient);

/* Everything about a config that needs no backend: sizes, ranges, rank, shape, what the peer needs. */
mok_status mok_api_check_config(const mok_group_config *config);

/* The same for the fields that sizes follow from; hub and the like are not looked at. */
mok_status mok_api_check_plan(const mok_group_config *config);

/* The shape as plan functions take it. The config must have passed. */
struct mok_dims mok_api_dims(const mok_group_config *config);

#endif
