/*
 * The walk of a forward pass in units of a cluster (see fused/fused_walk.h). Host and device; the host tests run it.
 */
#ifndef MOK_CUDA_FUSED_FORWARD_WALK_H
#define MOK_CUDA_FUSED_FORWARD_WALK_H

#include "cuda/fused/fused_walk.h"

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
