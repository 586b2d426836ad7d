/*
 * A small problem for the emulated kernel: tokens, routes and weights of a few ranks, the owner's schedule made by plan/rows.h, and what
 * every row of the layer must be, bit for bit (products summed as the emulated machine sums them).
 */
#ifndef MOK_EMULATE_WORLD_H
#define MOK_EMULATE_WORLD_H

#include "cuda/rank_memory.h"

enum { WORLD_MAX_RANKS = 8 };

struct world_case {
    const char *name;
    int32_t num_ranks, num_experts, top_k, hidden, inter, shared_inter;
    int32_t tokens[WORLD_MAX_RANKS];
    int32_t minibatch_rows, places, look_ahead;
    int32_t num_comm, num_ctas;
    int32_t resident; /* CTAs that are there at one time; 0 = all */
    int32_t apart;
    int32_t has_saved;
    int32_t keep_rows;
    float limit; /* of the activation; 0 = none */
    int32_t grad_bf16, grad_add; /* of a backward pass, which follows where something is saved */
};

struct world {
    const struct world_case *recipe;
    uint32_t random;
    int32_t max_tokens;
    uint16_t *x[WORLD_MAX_RANKS];   /* [T, H] bf16 */
    int32_t *ids[WORLD_MAX_RANKS];  /* [T, K] */
    int32_t *list[WORLD_MAX_RANKS]; /* routes by expert, as a source publishes them */
    int32_t *offset[WORLD_MAX_RANKS];
    uint16_t *weights[3]; /* gate, up [E, I, H], down [E, H, I] bf16 */
    uint16_t *shared_weights[3];
    mok_activation activation;
    /* backward */
    uint16_t *dy[WORLD_MAX_RANKS]; /* [T, H] bf16 */
    float *w[WORLD_MAX_RANKS];     /* [T, K] */
    float *shared_w[WORLD_MAX_RANKS];
};

/* What a row of an expert of width `inter` gives: g, u [inter], y [H]. */
void world_row(const struct world *world, const uint16_t *x, uint16_t *const weights[3], int32_t expert, int32_t inter, uint16_t *g_out,
               uint16_t *u_out, uint16_t *y_out);

void world_open(struct world *world, const struct world_case *recipe, uint32_t seed);
void world_close(struct world *world);

/* What a row gives in a backward pass (docs/numerics.md): dw; dg, du, wh [inter], dx [H]. */
float world_backward_row(const struct world *world, const uint16_t *x, const uint16_t *dy, float w, uint16_t *const weights[3],
                         int32_t expert, int32_t inter, uint16_t *dg_out, uint16_t *du_out, uint16_t *wh_out, uint16_t *dx_out);

/* The schedule of the rank that `dims` names. */
void world_schedule_open(const struct world *world, const struct mok_dims *dims, struct mok_pass_schedule *schedule_out);
void world_schedule_close(struct mok_pass_schedule *schedule);

/* Random bf16 values around 0. */
uint16_t *world_random(struct world *world, int64_t count, float width);

/* Zeroed (byte 0) or poisoned (0xff) memory on 256 bytes. */
void *world_memory(int64_t bytes, int byte);

#endif
