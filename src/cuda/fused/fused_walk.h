/*
 * The walk of a forward pass as clusters of CTAs take it: in units of `span` neighbouring row tiles of one column tile, a row tile for each
 * CTA.
 *
 * A unit never reaches over the end of a minibatch (or of the tokens), where its last places stay empty. So all its tasks belong to one
 * block of plan/walk.h, none of them waits for another, and what holds for tasks there holds for units: every wait of a unit is satisfied
 * by communication steps and by units below it. Host and device; the host tests run it.
 */
#ifndef MOK_CUDA_FUSED_WALK_H
#define MOK_CUDA_FUSED_WALK_H

#include "plan/walk.h"

struct mok_fused_walk {
    struct mok_walk tiles; /* the pass, task by task */
    struct mok_walk units; /* the same, with a unit where a row tile was */
    int32_t span;          /* row tiles of a unit */
    /* Backward: units of the weight gradients of an expert in a lap, and of the shared expert (fused/fused_backward_walk.h). */
    int32_t wgrad_units, shared_wgrad_units;
    int32_t spreads; /* given: 1 = weight gradients stand between D and E of later minibatches, 0 = at the end of the lap */
    /* Where the last unit that was asked for stands: what is asked for next stands behind it, as a rule. */
    int32_t lap, lap_begin, round, round_begin;
    int32_t round_units, round_pair, round_expert, round_wgrads; /* of the round: all units, its first of D and E, of gradients, how many */
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

/* First row tile of the unit that `unit` (a task of walk->units) is, and the end of the block it must not reach over. */
MOK_HD int32_t mok_fused_unit_first(const struct mok_fused_walk *walk, const struct mok_task *unit, int32_t *end_out)
{
    if (unit->kind == MOK_TASK_SHARED_GATE_UP || unit->kind == MOK_TASK_SHARED_DOWN) {
        *end_out = walk->tiles.token_tiles;
        return unit->row_tile * walk->span;
    }
    int32_t first = unit->minibatch * walk->tiles.mb_tiles;
    *end_out = first + mok_walk_minibatch_tiles(&walk->tiles, unit->minibatch);
    return first + (unit->row_tile - unit->minibatch * walk->units.mb_tiles) * walk->span;
}

/* A unit of the list: the task of its first place, and where its block ends. kind MOK_TASK_NONE past the end of the list. */
struct mok_fused_unit {
    struct mok_task task;
    int32_t end; /* row tile */
};

MOK_HD struct mok_fused_unit mok_fused_unit_at(const struct mok_fused_walk *walk, int64_t idx)
{
    struct mok_fused_unit unit = {mok_walk_task(&walk->units, idx), 0};
    if (unit.task.kind != MOK_TASK_NONE) {
        unit.task.row_tile = mok_fused_unit_first(walk, &unit.task, &unit.end);
    }
    return unit;
}

/* Task of place `place` of a unit. 1: there is one. 0: the place is empty; the task names the expert of the unit's last real tile. */
MOK_HD int mok_fused_unit_task(const struct mok_fused_walk *walk, const struct mok_fused_unit *unit, int32_t place,
                               struct mok_task *task_out)
{
    *task_out = unit->task;
    task_out->row_tile += place;
    if (unit->task.kind == MOK_TASK_GATE_UP || unit->task.kind == MOK_TASK_DOWN) {
        task_out->expert = walk->tiles.schedule.tile_expert[mok_min64(task_out->row_tile, unit->end - 1)];
    }
    return task_out->row_tile < unit->end;
}

#endif
