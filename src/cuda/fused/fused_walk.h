/*
 * A pass as clusters of CTAs take it: in units of `span` neighbouring row tiles of one column tile, a row tile for each CTA.
 *
 * A unit never reaches over the end of a minibatch (or of the tokens), where its last places stay empty. So all its tasks belong to one
 * block of plan/walk.h, none of them waits for another, and what holds for tasks there holds for units: every wait of a unit is satisfied
 * by communication steps and by units below it. Host and device; the host tests run it. Units of a forward pass:
 * fused/forward/fused_forward_walk.h; of a backward pass: fused/backward/fused_backward_walk.h.
 */
#ifndef MOK_CUDA_FUSED_WALK_H
#define MOK_CUDA_FUSED_WALK_H

#include "plan/walk.h"

struct mok_fused_walk {
    struct mok_walk tiles; /* the pass, task by task */
    struct mok_walk units; /* the same, with a unit where a row tile was */
    int32_t span;          /* row tiles of a unit */
    /* Backward: units of the weight gradients of an expert in a lap, and of the shared expert (fused/backward/fused_backward_walk.h). */
    int32_t wgrad_units, shared_wgrad_units;
    /* Where the last unit that was asked for stands: what is asked for next stands behind it, as a rule. */
    int32_t lap, lap_begin;
};

/* tiles: given fields filled; span set. In a backward pass mok_fused_backward_walk_init does the rest. */
MOK_HD void mok_fused_walk_init(struct mok_fused_walk *walk)
{
    struct mok_walk *tiles = &walk->tiles, *units = &walk->units;
    mok_walk_init(tiles);
    *units = *tiles;
    units->mb_tiles = (int32_t)mok_ceil_div(tiles->mb_tiles, walk->span);
    units->num_tiles = 0;
    if (tiles->num_minibatches > 0) {
        int32_t last = tiles->num_minibatches - 1;
        units->num_tiles = last * units->mb_tiles + (int32_t)mok_ceil_div(mok_walk_minibatch_tiles(tiles, last), walk->span);
    }
    units->token_tiles = (int32_t)mok_ceil_div(tiles->token_tiles, walk->span);
    units->row_group = (int32_t)mok_ceil_div(tiles->row_group, walk->span);
    units->num_shared = (int64_t)units->token_tiles * (units->shared_first + units->shared_second);
}

/* A unit of the list: the task of its first place, and where its block ends. kind MOK_TASK_NONE past the end of the list. */
struct mok_fused_unit {
    struct mok_task task;
    int32_t end; /* row tile */
};

#endif
