/*
 * The fused path: what stands between the ENTRY and the EXIT barrier as one kernel, for each pass. Here its host side: what it chooses where
 * the caller leaves it open, and its launches. The frame of both kernels: fused_shared.cuh; the kernels: fused/forward, fused/backward.
 */
#ifndef MOK_CUDA_FUSED_H
#define MOK_CUDA_FUSED_H

#include "base/status.h"
#include "cuda/rank_pass.h"

/* A ring and minibatch for the forward pass of the fused path, where config leaves them open. ring: as chosen for the staged path. */
void mok_cuda_fused_choose_ring(const mok_group_config *config, const struct mok_pass_setup *setup, struct mok_ring *ring);

/* Minibatch of the backward pass, where config leaves it open. Its ring is as chosen for the staged path: one lap where memory allows, so
 * that pulls wait for nothing. */
int64_t mok_cuda_fused_backward_rows(const struct mok_pass_setup *setup);

/* Load a kernel on the current device. Not while capturing. */
MOK_MUST_USE mok_status mok_cuda_fused_prepare_forward(void);
MOK_MUST_USE mok_status mok_cuda_fused_prepare_backward(void);

/* Enqueues pull, shared expert, products and push of a forward pass. */
MOK_MUST_USE mok_status mok_cuda_fused_forward(const struct mok_cuda_pass *pass);

/* Enqueues pull, products, weight gradients and push of a backward pass. */
MOK_MUST_USE mok_status mok_cuda_fused_backward(const struct mok_cuda_pass *pass);

#endif
