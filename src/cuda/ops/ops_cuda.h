/*
 * The ops of the CUDA backend (src/pass/pass.h) that know all of its rooms: what a group gets where the caller leaves it open, its creation
 * and end, and whole passes.
 */
#ifndef MOK_CUDA_OPS_CUDA_H
#define MOK_CUDA_OPS_CUDA_H

#include "cuda/rank_memory.h"

mok_status mok_cuda_choose(const mok_group_config *config, struct mok_pass_setup *setup);
mok_status mok_cuda_create(const struct mok_pass_setup *setup, struct mok_peer *peer, struct mok_pass_group **group_out);
mok_status mok_cuda_destroy(struct mok_pass_group *group);
mok_status mok_cuda_forward(struct mok_pass_group *group, const struct mok_pass_forward *forward);
mok_status mok_cuda_backward(struct mok_pass_group *group, const struct mok_pass_backward *backward);

/* For tests. Fills the ring, own slots, published rows, scratch and every saved object that is free with a byte. Only while nothing is queued. */
mok_status mok_cuda_poison(struct mok_pass_group *group, int byte);

#endif
