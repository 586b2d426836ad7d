/*
 * One pass of a rank, as its launches need it: whoever enqueues a whole pass fills it, both paths read it.
 */
#ifndef MOK_CUDA_RANK_PASS_H
#define MOK_CUDA_RANK_PASS_H

#include "cuda/rank_memory.h"

struct mok_cuda_pass {
    struct mok_pass_group *group;
    struct mok_pass_schedule *schedule;
    struct mok_pass_saved *saved; /* NULL = inference */
    const struct mok_pass_layer *layer;
    const struct mok_ring *ring;
    int64_t kept_rows; /* of this pass */
    mok_stream stream;
    const struct mok_pass_forward *forward;   /* NULL in a backward pass */
    const struct mok_pass_backward *backward; /* NULL in a forward pass */
};

/* Of a row of x, y, dx; of a row of h, g, u. */
static inline int64_t mok_cuda_hidden_bytes(const struct mok_cuda_pass *pass) { return 2 * (int64_t)pass->group->setup.dims.hidden; }
static inline int64_t mok_cuda_inter_bytes(const struct mok_cuda_pass *pass) { return 2 * (int64_t)pass->group->setup.dims.inter; }

#endif
