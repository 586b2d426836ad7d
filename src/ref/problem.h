/*
 * One layer with all its data, as the oracles see it: the tokens of all ranks behind one another in rank order, the weights of all experts,
 * and what a backend gave back for them. Nothing here knows how a pass is planned; this folder uses base/ alone, so that a planning bug
 * cannot hide in the oracle.
 *
 * Sizes: R ranks, N tokens in all, K routes per token, E experts, H hidden, I intermediate, Is shared intermediate.
 */
#ifndef MOK_REF_PROBLEM_H
#define MOK_REF_PROBLEM_H

#include <mok/mok.h>

#include "base/bf16.h"

enum { MOK_REF_MAX_RANKS = 64 };

/* gate, up [num, width, H]; down [num, H, width]; dense. num, width = E, I (routed) or 1, Is (shared). */
struct mok_ref_weights {
    mok_bf16 *gate, *up, *down;
};

/* The same shapes in fp32; bf16 gradients are held here as the fp32 values they stand for. Shared: num = R, one per rank. */
struct mok_ref_grads {
    float *gate, *up, *down;
};

struct mok_ref_problem {
    int32_t num_ranks;
    int32_t num_experts;
    int32_t top_k;
    int32_t hidden;
    int32_t inter;
    int32_t shared_inter; /* 0 = no shared expert */
    int64_t tokens[MOK_REF_MAX_RANKS]; /* T of each rank */
    int64_t num_tokens;                /* N, their sum */
    mok_activation activation;
    int32_t grad_dtype; /* mok_dtype of the weight gradients */
    int32_t grad_mode;  /* mok_grad_mode */

    mok_bf16 *x;     /* [N, H] */
    mok_bf16 *dy;    /* [N, H] */
    int32_t *ids;    /* [N, K]; outside [0, E) = not routed */
    float *w;        /* [N, K] */
    float *shared_w; /* [N] or NULL = 1 */
    struct mok_ref_weights routed, shared;
    struct mok_ref_grads start, shared_start; /* MOK_GRAD_ADD: the gradients before the pass; else all NULL */
};

/* What a backend gave, in the order of the problem. Parts that were not read back are NULL. */
struct mok_ref_outputs {
    mok_bf16 *y;      /* [N, H] */
    mok_bf16 *dx;     /* [N, H] */
    float *dw;        /* [N, K] */
    float *dshared_w; /* [N] */
    struct mok_ref_grads grads, shared_grads;
    mok_bf16 *y_slots;   /* [N * K, H] the slots after forward */
    mok_bf16 *dx_slots;  /* [N * K, H] the slots after backward */
    mok_bf16 *shared_y;  /* [N, H] s_t; NULL without a shared expert */
    mok_bf16 *shared_dx; /* [N, H] dx of the shared expert alone */
};

/* Allocates every array of the problem whose sizes are filled in (zeroed); num_tokens is set from tokens. `with` says which may-be-absent
 * ones. */
struct mok_ref_optional {
    int shared_w;
};
mok_status mok_ref_problem_alloc(struct mok_ref_problem *problem, struct mok_ref_optional with);
void mok_ref_problem_free(struct mok_ref_problem *problem);

/* All arrays of outputs for this problem, in one block that child processes share (fork after this call and they write into it).
 * The shared_* arrays are made only with a shared expert. The block is zeroed and freed by mok_ref_outputs_free. */
mok_status mok_ref_outputs_alloc(const struct mok_ref_problem *problem, struct mok_ref_outputs *outputs_out);
void mok_ref_outputs_free(const struct mok_ref_problem *problem, struct mok_ref_outputs *outputs);

/* First token of a rank in the order of all tokens; rank R gives N. */
int64_t mok_ref_first_token(const struct mok_ref_problem *problem, int32_t rank);
/* First expert of a rank, floor(rank * E / R); rank R gives E. */
int32_t mok_ref_first_expert(const struct mok_ref_problem *problem, int32_t rank);
/* The rank that brings this token. */
int32_t mok_ref_rank_of_token(const struct mok_ref_problem *problem, int64_t token);

/* One bf16 unit in the last place at this magnitude (0 gives the smallest subnormal). */
double mok_ref_bf16_ulp(double magnitude);

static inline int mok_ref_is_routed(const struct mok_ref_problem *problem, int64_t route)
{
    return problem->ids[route] >= 0 && problem->ids[route] < problem->num_experts;
}

#endif
