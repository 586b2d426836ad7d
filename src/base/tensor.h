/*
 * Pointers to tensors of the host helpers (router, quantisation), which need no more than the alignment of their elements.
 */
#ifndef MOK_BASE_TENSOR_H
#define MOK_BASE_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include <mok/mok.h>

/* Given, and a multiple of element_bytes; anything goes when num is 0. `things` is what num counts: "token", "value". Errors: ARGUMENT. */
mok_status mok_base_check_tensor(const char *name, const void *pointer, size_t element_bytes, int64_t num, const char *things);

#endif
