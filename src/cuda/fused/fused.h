/*
 * The fused passes on the host side: their counters in the rank's memory, and the launches that take the place of the staged path's
 * launches between the ENTRY and the EXIT barrier.
 */
#ifndef MOK_CUDA_FUSED_H
#define MOK_CUDA_FUSED_H

#include "cuda/staged/staged.h"

/* Bytes of counters and state that a group needs, zeroed before each pass. */
int64_t mok_cuda_fused_counter_bytes(const struct mok_pass_setup *setup);

/* path and path_backward of setup, from config and sizes. */
void mok_cuda_fused_choose_path(const mok_group_config *config, struct mok_pass_setup *setup);

/* A ring and minibatch for the forward pass of the fused path, where config leaves them open. ring: as chosen for the staged path. */
void mok_cuda_fused_choose_ring(const mok_group_config *config, const struct mok_pass_setup *setup, struct mok_ring *ring);

/* Minibatch of the backward pass, where config leaves it open. Its ring is as chosen for the staged path: one lap where memory allows, so
 * that pulls wait for nothing. */
int64_t mok_cuda_fused_backward_rows(const struct mok_pass_setup *setup);

/* Load a kernel on the current device. Not while capturing. */
MOK_MUST_USE mok_status mok_cuda_fused_prepare(void);
MOK_MUST_USE mok_status mok_cuda_fused_prepare_backward(void);

/* Enqueues pull, shared expert, products and push of a forward pass; x: own tokens. */
MOK_MUST_USE mok_status mok_cuda_fused_forward(const struct mok_staged *pass, const void *x);

/* Enqueues pull, products, weight gradients and push of a backward pass. */
MOK_MUST_USE mok_status mok_cuda_fused_backward(const struct mok_staged *pass);

#endif
