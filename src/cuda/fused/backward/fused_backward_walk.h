/*
 * The walk of a backward pass in units of a cluster (see fused/fused_walk.h): `span` neighbouring row tiles of one column tile, or `span`
 * neighbouring tiles of a weight gradient along its rows, which share one operand. Host and device; the host tests run it.
 *
 * Blocks, in order: shared expert: recompute, D, E, weight gradients; then lap by lap; zeros at the end. The tasks of a lap are those of
 * plan/walk.h, in another order; none of them waits for another of its unit. Gate and up stand one below the other as one matrix, so that an
 * odd number of tiles leaves a place empty once and not twice. Units are counted in 32 bits, as the kernel's counter does.
 *
 * A lap: recompute; D and E of its minibatches with the plan's look-ahead; weight gradients, expert by expert. They could stand between D and E of later
 * minibatches, since they are bound by memory and use no link: measured twice, slower by 2 to 20% (docs/performance.md).
 */
#ifndef MOK_CUDA_FUSED_BACKWARD_WALK_H
#define MOK_CUDA_FUSED_BACKWARD_WALK_H

#include "cuda/fused/fused_walk.h"

/* Units of the weight gradients of an expert of width `inter`: dWd, then gate and up. */
MOK_HD int32_t mok_fused_down_cells(const struct mok_fused_walk *walk)
{
    return (int32_t)mok_ceil_div(mok_plan_num_tiles(walk->tiles.dims.hidden, walk->tiles.tiles.wgrad_out), walk->span);
}

MOK_HD int32_t mok_fused_gate_up_cells(const struct mok_fused_walk *walk, int32_t inter)
{
    return (int32_t)mok_ceil_div(2 * mok_plan_num_tiles(inter, walk->tiles.tiles.wgrad_out), walk->span);
}

MOK_HD int32_t mok_fused_count_wgrad_units(const struct mok_fused_walk *walk, int32_t inter)
{
    return mok_fused_down_cells(walk) * mok_plan_num_tiles(inter, walk->tiles.tiles.wgrad_in) +
           mok_fused_gate_up_cells(walk, inter) * mok_plan_num_tiles(walk->tiles.dims.hidden, walk->tiles.tiles.wgrad_in);
}

/* After mok_fused_walk_init. */
MOK_HD void mok_fused_backward_walk_init(struct mok_fused_walk *walk)
{
    struct mok_walk *tiles = &walk->tiles, *units = &walk->units;
    walk->wgrad_units = mok_fused_count_wgrad_units(walk, tiles->dims.inter);
    walk->shared_wgrad_units = tiles->dims.shared_inter > 0 ? mok_fused_count_wgrad_units(walk, tiles->dims.shared_inter) : 0;
    walk->lap = 0;
    walk->lap_begin = 0;
    units->num_shared += (tiles->shared_recompute ? (int64_t)units->token_tiles * units->shared_again : 0) + walk->shared_wgrad_units;
}

/* idx-th unit of a block of row tiles [first, end) x cols. */
MOK_HD void mok_fused_block_unit(const struct mok_fused_walk *walk, int64_t idx, int32_t first, int32_t end, int32_t cols,
                                 struct mok_fused_unit *unit)
{
    int32_t row;
    mok_walk_tile_at(&walk->units, idx, (int32_t)mok_ceil_div(end - first, walk->span), cols, &row, &unit->task.col_tile);
    unit->task.row_tile = first + row * walk->span;
    unit->end = end;
}

/* idx-th unit of an expert's weight gradients. out_tile counts through gate and up; unit->end is where the matrices end. */
MOK_HD void mok_fused_wgrad_unit(const struct mok_fused_walk *walk, int32_t idx, int32_t inter, struct mok_fused_unit *unit)
{
    const struct mok_tiles *tiles = &walk->tiles.tiles;
    int32_t hidden = walk->tiles.dims.hidden, cells = mok_fused_down_cells(walk), in = mok_plan_num_tiles(inter, tiles->wgrad_in), cell;
    unit->task.matrix = MOK_MATRIX_DOWN;
    unit->end = mok_plan_num_tiles(hidden, tiles->wgrad_out);
    if (idx >= cells * in) {
        idx -= cells * in;
        cells = mok_fused_gate_up_cells(walk, inter);
        in = mok_plan_num_tiles(hidden, tiles->wgrad_in);
        unit->task.matrix = MOK_MATRIX_GATE;
        unit->end = 2 * mok_plan_num_tiles(inter, tiles->wgrad_out);
    }
    mok_walk_tile_at(&walk->units, idx, cells, in, &cell, &unit->task.in_tile);
    unit->task.out_tile = cell * walk->span;
}

MOK_HD void mok_fused_shared_unit(const struct mok_fused_walk *walk, int64_t idx, struct mok_fused_unit *unit)
{
    const struct mok_walk *tiles = &walk->tiles;
    int64_t rows = walk->units.token_tiles, again = tiles->shared_recompute ? rows * tiles->shared_again : 0;
    int64_t first = rows * tiles->shared_first, second = rows * tiles->shared_second;
    if (idx < again) {
        unit->task.kind = MOK_TASK_SHARED_RECOMPUTE;
        mok_fused_block_unit(walk, idx, 0, tiles->token_tiles, tiles->shared_again, unit);
    } else if (idx < again + first) {
        unit->task.kind = MOK_TASK_SHARED_DGRAD_DOWN;
        mok_fused_block_unit(walk, idx - again, 0, tiles->token_tiles, tiles->shared_first, unit);
    } else if (idx < again + first + second) {
        unit->task.kind = MOK_TASK_SHARED_DGRAD_GATE_UP;
        mok_fused_block_unit(walk, idx - again - first, 0, tiles->token_tiles, tiles->shared_second, unit);
    } else {
        unit->task.kind = MOK_TASK_SHARED_WGRAD;
        unit->task.end_tile = tiles->token_tiles;
        mok_fused_wgrad_unit(walk, (int32_t)(idx - again - first - second), tiles->dims.shared_inter, unit);
    }
}

/* A unit of D or E. */
MOK_HD void mok_fused_pair_unit(const struct mok_fused_walk *walk, int64_t idx, int32_t lap, struct mok_fused_unit *unit)
{
    const struct mok_walk *tiles = &walk->tiles;
    mok_walk_pair_task(&walk->units, idx, mok_walk_lap_first(tiles, lap), mok_walk_lap_minibatches(tiles, lap), &unit->task);
    int32_t first = unit->task.minibatch * tiles->mb_tiles;
    unit->task.row_tile = first + (unit->task.row_tile - unit->task.minibatch * walk->units.mb_tiles) * walk->span;
    unit->end = first + mok_walk_minibatch_tiles(tiles, unit->task.minibatch);
}

/* Units of D and E of a lap. */
MOK_HD int32_t mok_fused_lap_pairs(const struct mok_fused_walk *walk, int32_t lap)
{
    const struct mok_walk *units = &walk->units;
    int32_t first = mok_walk_lap_first(units, lap), count = mok_walk_lap_minibatches(units, lap);
    return ((count - 1) * units->mb_tiles + mok_walk_minibatch_tiles(units, first + count - 1)) * (units->cols_first + units->cols_second);
}

/* idx-th unit of the weight gradients of a lap. */
MOK_HD void mok_fused_lap_wgrad(const struct mok_fused_walk *walk, int32_t idx, int32_t lap, struct mok_fused_unit *unit)
{
    mok_walk_wgrad_task(&walk->tiles, lap, (int64_t)(idx / walk->wgrad_units) * walk->tiles.wgrad_tasks, &unit->task);
    mok_fused_wgrad_unit(walk, idx % walk->wgrad_units, walk->tiles.dims.inter, unit);
}

/* Of a lap, or of the zeros behind the last lap. */
MOK_HD void mok_fused_lap_unit(struct mok_fused_walk *walk, int32_t idx, struct mok_fused_unit *unit)
{
    const struct mok_walk *tiles = &walk->tiles;
    if (idx < walk->lap_begin) {
        walk->lap = 0;
        walk->lap_begin = 0;
    }
    for (; walk->lap < tiles->num_laps; walk->lap++) {
        int32_t lap = walk->lap, first = mok_walk_lap_tile(tiles, lap), end = mok_walk_lap_tile(tiles, lap + 1);
        int32_t again_first = mok_walk_again_first(tiles, lap);
        int32_t again = (end - again_first + walk->span - 1) / walk->span * tiles->cols_again;
        int32_t pairs = mok_fused_lap_pairs(walk, lap);
        int32_t all = again + pairs + mok_walk_experts_between(tiles, first, end) * walk->wgrad_units;
        int32_t inside = idx - walk->lap_begin;
        if (inside >= all) {
            walk->lap_begin += all;
            continue;
        }
        unit->task.lap = lap;
        if (inside < again) {
            unit->task.kind = MOK_TASK_RECOMPUTE;
            mok_fused_block_unit(walk, inside, again_first, end, tiles->cols_again, unit);
        } else if (inside < again + pairs) {
            mok_fused_pair_unit(walk, inside - again, lap, unit);
        } else {
            mok_fused_lap_wgrad(walk, inside - again - pairs, lap, unit);
        }
        return;
    }
    idx -= walk->lap_begin;
    int32_t zeros = tiles->zero_grads ? (tiles->num_local - tiles->num_active) * walk->wgrad_units : 0;
    if (idx < zeros) {
        unit->task.kind = MOK_TASK_WGRAD_ZERO;
        unit->task.expert = tiles->schedule.active[tiles->num_active + idx / walk->wgrad_units];
        mok_fused_wgrad_unit(walk, idx % walk->wgrad_units, tiles->dims.inter, unit);
    }
}

/* Unit number idx >= 0 of a backward pass; kind MOK_TASK_NONE past the end. Quick when idx does not go back. */
MOK_HD struct mok_fused_unit mok_fused_backward_unit_at(struct mok_fused_walk *walk, int64_t idx)
{
    struct mok_fused_unit unit = {{MOK_TASK_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0};
    if (idx < walk->units.num_shared) {
        mok_fused_shared_unit(walk, idx, &unit);
    } else {
        mok_fused_lap_unit(walk, (int32_t)(idx - walk->units.num_shared), &unit);
    }
    return unit;
}

MOK_HD int mok_fused_is_wgrad(int32_t kind)
{
    return kind == MOK_TASK_WGRAD || kind == MOK_TASK_SHARED_WGRAD || kind == MOK_TASK_WGRAD_ZERO;
}

MOK_HD int mok_fused_is_shared(int32_t kind) { return kind >= MOK_TASK_SHARED_RECOMPUTE && kind <= MOK_TASK_SHARED_WGRAD; }

/* Task of place `place` of a unit. 1: there is one. 0: the place is empty; the task names expert or matrix of the unit's last real tile. */
MOK_HD int mok_fused_backward_unit_task(const struct mok_fused_walk *walk, const struct mok_fused_unit *unit, int32_t place,
                                        struct mok_task *task_out)
{
    *task_out = unit->task;
    if (mok_fused_is_wgrad(unit->task.kind)) {
        int32_t inter = unit->task.kind == MOK_TASK_SHARED_WGRAD ? walk->tiles.dims.shared_inter : walk->tiles.dims.inter;
        int32_t half = mok_plan_num_tiles(inter, walk->tiles.tiles.wgrad_out);
        task_out->out_tile += place;
        if (unit->task.matrix == MOK_MATRIX_GATE && task_out->out_tile >= half) {
            task_out->matrix = MOK_MATRIX_UP;
            task_out->out_tile -= half;
        }
        return unit->task.out_tile + place < unit->end;
    }
    task_out->row_tile += place;
    if (!mok_fused_is_shared(unit->task.kind)) {
        int32_t real = (int32_t)mok_min64(task_out->row_tile, unit->end - 1);
        task_out->expert = walk->tiles.schedule.tile_expert[real];
        task_out->minibatch = real / walk->tiles.mb_tiles;
    }
    return task_out->row_tile < unit->end;
}

#endif
