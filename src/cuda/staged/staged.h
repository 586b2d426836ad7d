/*
 * The staged path: what stands between ENTRY and EXIT as a fixed list of launches on the caller's stream (design.md section 2, protocol.md
 * sections 1 to 5). ops/whole_pass.c enqueues the rest.
 *
 *   forward   ENTRY arrives | shared gate+up, down | ENTRY waits -> per window: pull x, gate+up, down, push y -> EXIT
 *   backward  ENTRY arrives | shared D, E, weight gradients | ENTRY waits
 *             -> per window: pull dy and w (and x again, gate+up, where rows were not kept), D, E, push dx and dw, weight gradients
 *             -> EXIT arrives behind the last push, waits behind the last weight gradients
 *
 * Windows: staged_rows.h.
 */
#ifndef MOK_CUDA_STAGED_H
#define MOK_CUDA_STAGED_H

#include "cuda/rank_pass.h"

/* The shared expert: needs no peer, so it may stand between the two parts of ENTRY. */
MOK_MUST_USE mok_status mok_cuda_staged_shared_forward(const struct mok_cuda_pass *pass);
MOK_MUST_USE mok_status mok_cuda_staged_shared_backward(const struct mok_cuda_pass *pass);

/* The routed experts. Backward arrives at EXIT itself, if there is a window; exit_parts: what the caller is to enqueue of that barrier. */
MOK_MUST_USE mok_status mok_cuda_staged_forward(const struct mok_cuda_pass *pass);
MOK_MUST_USE mok_status mok_cuda_staged_backward(const struct mok_cuda_pass *pass, int *exit_parts_out);

#endif
