/*
 * The walk of a backward pass in units of a cluster (see fused/fused_walk.h): `span` neighbouring row tiles of one column tile, or `span`
 * neighbouring tiles of a weight gradient along its rows, which share one operand. Host and device; the host tests run it.
 *
 * Blocks, in order: shared expert: recompute, D, E, weight gradients; then lap by lap; zeros at the end. The tasks of a lap are those of
 * plan/walk.h, in another order; none of them waits for another of its unit. Gate and up stand one below the other as one matrix, so that an
 * odd number of tiles leaves a place empty once and not twice. Units are counted in 32 bits, as the kernel's counter does.
 *
 * A lap: recompute; D(0) .. D(d-1); then rounds, one a minibatch: round j has D(j+d), E(j) and, if walk.spreads, mixed with them in
 * proportion the weight gradients of the experts whose last row of the lap stands in minibatch j-1; those of the last minibatch come at the
 * end. Without spreads all of them stand at the end of the lap. Weight gradients are bound by memory and use no link, D and E wait for the
 * tensor cores: beside each other they ought to take less time than one after the other, but so far they take more (docs/performance.md).
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
    walk->round = -1;
    walk->lap_begin = walk->round_begin = 0;
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

/* Units of D and E before round `round` of a lap. */
MOK_HD int32_t mok_fused_pairs_before(const struct mok_fused_walk *walk, int32_t lap, int32_t round)
{
    const struct mok_walk *units = &walk->units;
    int32_t first = mok_walk_lap_first(units, lap), count = mok_walk_lap_minibatches(units, lap);
    int32_t ahead = (int32_t)mok_min64(units->ring.look_ahead, count - 1), full = count - 1 - ahead;
    int32_t both = units->mb_tiles * (units->cols_first + units->cols_second);
    int32_t last = mok_walk_minibatch_tiles(units, first + count - 1) * (units->cols_first + units->cols_second);
    if (round == count) {
        return (count - 1) * both + last;
    }
    int32_t before = ahead * units->mb_tiles * units->cols_first + (round < full ? round : full) * both;
    if (round > full) { /* the last D is short */
        before += mok_walk_minibatch_tiles(units, first + count - 1) * units->cols_first + (round - full) * units->mb_tiles * units->cols_second;
    }
    return before;
}

/* Experts of a lap all of whose rows in it stand before minibatch `inside` of it. */
MOK_HD int32_t mok_fused_experts_before(const struct mok_fused_walk *walk, int32_t lap, int32_t inside)
{
    const struct mok_walk *tiles = &walk->tiles;
    int32_t first = mok_walk_lap_tile(tiles, lap), end = mok_walk_lap_tile(tiles, lap + 1);
    int32_t tile = first + inside * tiles->mb_tiles;
    if (inside <= 0 || (!walk->spreads && tile < end)) {
        return 0;
    }
    return tile >= end ? mok_walk_experts_between(tiles, first, end) : mok_walk_tile_ordinal(tiles, tile) - mok_walk_tile_ordinal(tiles, first);
}

/* idx-th unit of the weight gradients of a lap. */
MOK_HD void mok_fused_lap_wgrad(const struct mok_fused_walk *walk, int32_t idx, int32_t lap, struct mok_fused_unit *unit)
{
    mok_walk_wgrad_task(&walk->tiles, lap, (int64_t)(idx / walk->wgrad_units) * walk->tiles.wgrad_tasks, &unit->task);
    mok_fused_wgrad_unit(walk, idx % walk->wgrad_units, walk->tiles.dims.inter, unit);
}

/* Round `round` of a lap; number `count`, the last, has weight gradients alone. */
MOK_HD void mok_fused_open_round(struct mok_fused_walk *walk, int32_t lap, int32_t round, int32_t begin)
{
    int32_t count = mok_walk_lap_minibatches(&walk->units, lap);
    walk->round = round;
    walk->round_begin = begin;
    walk->round_pair = mok_fused_pairs_before(walk, lap, round);
    walk->round_expert = mok_fused_experts_before(walk, lap, round - 1);
    walk->round_wgrads = (mok_fused_experts_before(walk, lap, round) - walk->round_expert) * walk->wgrad_units;
    walk->round_units = walk->round_wgrads + (round < count ? mok_fused_pairs_before(walk, lap, round + 1) - walk->round_pair : 0);
}

/* idx-th unit of a lap, behind the recompute. */
MOK_HD void mok_fused_round_unit(struct mok_fused_walk *walk, int32_t idx, int32_t lap, struct mok_fused_unit *unit)
{
    if (walk->round < 0 || idx < walk->round_begin) {
        mok_fused_open_round(walk, lap, 0, mok_fused_pairs_before(walk, lap, 0));
    }
    while (idx >= walk->round_begin + walk->round_units) {
        mok_fused_open_round(walk, lap, walk->round + 1, walk->round_begin + walk->round_units);
    }
    int32_t inside = idx - walk->round_begin;
    if (inside < 0) {
        mok_fused_pair_unit(walk, idx, lap, unit);
        return;
    }
    int32_t behind = (int32_t)((int64_t)inside * walk->round_wgrads / walk->round_units); /* weight gradients before this unit */
    if ((int64_t)(inside + 1) * walk->round_wgrads >= (int64_t)(behind + 1) * walk->round_units) {
        mok_fused_lap_wgrad(walk, walk->round_expert * walk->wgrad_units + behind, lap, unit);
    } else {
        mok_fused_pair_unit(walk, walk->round_pair + inside - behind, lap, unit);
    }
}

/* Of a lap, or of the zeros behind the last lap. */
MOK_HD void mok_fused_lap_unit(struct mok_fused_walk *walk, int32_t idx, struct mok_fused_unit *unit)
{
    const struct mok_walk *tiles = &walk->tiles;
    if (idx < walk->lap_begin) {
        walk->lap = 0;
        walk->lap_begin = 0;
        walk->round = -1;
    }
    for (; walk->lap < tiles->num_laps; walk->lap++) {
        int32_t lap = walk->lap, first = mok_walk_lap_tile(tiles, lap), end = mok_walk_lap_tile(tiles, lap + 1);
        int32_t again_first = mok_walk_again_first(tiles, lap);
        int32_t again = (end - again_first + walk->span - 1) / walk->span * tiles->cols_again;
        int32_t all = again + mok_fused_pairs_before(walk, lap, mok_walk_lap_minibatches(tiles, lap)) +
                      mok_walk_experts_between(tiles, first, end) * walk->wgrad_units;
        int32_t inside = idx - walk->lap_begin;
        if (inside >= all) {
            walk->lap_begin += all;
            walk->round = -1;
            continue;
        }
        unit->task.lap = lap;
        if (inside < again) {
            unit->task.kind = MOK_TASK_RECOMPUTE;
            mok_fused_block_unit(walk, inside, again_first, end, tiles->cols_again, unit);
        } else {
            mok_fused_round_unit(walk, inside - again, lap, unit);
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
