/*
 * The walk of one pass on one rank: which tasks there are, in which order, what each waits for and what it announces; and the order of the
 * steps of a communication worker (protocol.md sections 2 to 4). CPU workers, CTAs and the simulator run these very functions.
 *
 * Progress. Tasks are numbered; a worker takes the next number from an atomic counter. Every wait of task i is satisfied by communication
 * steps and by tasks below i, except that a pull of a later lap waits for tasks of earlier laps: so the communication workers and one computation
 * worker suffice. A step is cut into num_comm shares: worker i of the CPU does share i of every step; movers of the fused kernels take shares in
 * order, as they come.
 *
 * Letters: P pull, G gate+up, W down, C push of y rows (combine); D dgrad of down with the SwiGLU backward, E dgrad of gate+up.
 * Forward tasks:  shared gate+up, shared down, then G(0) .. G(d), W(0), G(d+1), W(1), ...          (d = look-ahead)
 * Backward tasks: shared recompute, D, E, weight gradients, then per lap: recompute of rows not kept, D/E with the look-ahead,
 *                 weight gradients in expert order; at the very end zeros for experts without rows (overwrite mode).
 * Communication:  forward  P(0) .. P(n-1), then C(g), P(g+n) for each g;   backward  per lap all pulls, then all pushes.
 *                 Forward with pushes_rows (the fused kernel): P(0), P(1), ... alone. W tasks push their rows and count PLACE_FREE; there is no C,
 *                 and nobody announces Y_DONE.
 */
#ifndef MOK_PLAN_WALK_H
#define MOK_PLAN_WALK_H

#include "plan/ring.h"
#include "plan/schedule.h"
#include "plan/tile.h"

enum mok_task_kind {
    MOK_TASK_NONE, /* past the end of the list */
    MOK_TASK_SHARED_GATE_UP,
    MOK_TASK_SHARED_DOWN,
    MOK_TASK_GATE_UP,
    MOK_TASK_DOWN,
    MOK_TASK_SHARED_RECOMPUTE,
    MOK_TASK_SHARED_DGRAD_DOWN,
    MOK_TASK_SHARED_DGRAD_GATE_UP,
    MOK_TASK_SHARED_WGRAD,
    MOK_TASK_RECOMPUTE,
    MOK_TASK_DGRAD_DOWN,
    MOK_TASK_DGRAD_GATE_UP,
    MOK_TASK_WGRAD,
    MOK_TASK_WGRAD_ZERO
};

enum mok_matrix { MOK_MATRIX_GATE, MOK_MATRIX_UP, MOK_MATRIX_DOWN };

struct mok_task {
    int32_t kind;
    int32_t row_tile;  /* row-wise GEMMs: row tile (shared: token tile) */
    int32_t col_tile;  /* row-wise GEMMs: output tile along the columns */
    int32_t minibatch; /* row-wise GEMMs of routed rows */
    int32_t expert;    /* local expert; shared: 0 */
    /* weight gradients */
    int32_t matrix;    /* mok_matrix */
    int32_t out_tile;  /* tile along the rows of the matrix */
    int32_t in_tile;   /* tile along its columns */
    int32_t lap;
    int32_t first_tile; /* row tiles [first_tile, end_tile) are contracted: the expert's rows in this lap */
    int32_t end_tile;
    int32_t carry_in;   /* 1: the accumulator of the lap before goes on */
    int32_t carry_out;  /* 1: the expert goes on in the next lap */
};

enum mok_step_kind { MOK_STEP_NONE, MOK_STEP_PULL, MOK_STEP_PUSH };

struct mok_step {
    int32_t kind;
    int32_t minibatch;
};

/* A wait: counters[kind][index] >= target. An announcement: counters[kind][index] += 1. */
struct mok_wait {
    int32_t counter; /* mok_counter */
    int32_t index;
    uint32_t target;
};

struct mok_walk {
    /* given */
    struct mok_dims dims;
    struct mok_ring ring;
    struct mok_tiles tiles;
    struct mok_schedule_view schedule;
    int32_t backward;         /* 0 forward, 1 backward */
    int32_t num_comm;         /* communication workers */
    int32_t shared_recompute; /* backward: the shared expert's g, u must be made again */
    int32_t zero_grads;       /* backward: overwrite mode */
    int32_t pushes_rows;      /* forward: down tasks store their rows into the slots themselves, and no step pushes */
    int32_t row_group;        /* row tiles that take their turn at one column tile before the next: order of tiles for cache reuse, >= 1 */
    /* derived by mok_walk_init */
    int32_t num_tiles;
    int32_t num_active;
    int32_t num_local;
    int32_t num_minibatches;
    int32_t num_laps;
    int32_t mb_tiles;    /* row tiles of a full minibatch */
    int32_t keep_tiles;  /* row tiles below this are kept */
    int32_t token_tiles; /* shared expert; 0 without one */
    int32_t cols_first;  /* column tiles of the first GEMM of a pair: gate+up; D */
    int32_t cols_second; /* of the second: down; E */
    int32_t cols_again;  /* of the recompute: gate+up */
    int32_t shared_first, shared_second, shared_again; /* the same of the shared expert */
    int32_t wgrad_tasks;        /* weight-gradient tasks of an expert */
    int32_t shared_wgrad_tasks; /* of the shared expert */
    int64_t num_shared;         /* tasks of the shared expert in front */
};

/* Fills the derived fields from the given ones. Reads schedule.head (on the device: only there). */
MOK_HD void mok_walk_init(struct mok_walk *walk)
{
    const struct mok_dims *dims = &walk->dims;
    const struct mok_tiles *tiles = &walk->tiles;
    int32_t gate_up = mok_plan_num_tiles(dims->inter, tiles->gate_up);
    int32_t shared_gate_up = mok_plan_num_tiles(dims->shared_inter, tiles->gate_up);
    walk->num_tiles = walk->schedule.head->num_tiles;
    walk->num_active = walk->schedule.head->num_active;
    walk->num_local = mok_plan_num_local(dims->num_experts, dims->num_ranks, dims->rank);
    walk->mb_tiles = (int32_t)(walk->ring.minibatch_rows / MOK_TILE_ROWS);
    walk->num_minibatches = (int32_t)mok_ceil_div(walk->num_tiles, walk->mb_tiles);
    walk->num_laps = (int32_t)mok_ceil_div(walk->num_minibatches, walk->ring.num_places);
    walk->keep_tiles = (int32_t)(walk->ring.keep_rows / MOK_TILE_ROWS);
    walk->token_tiles = dims->shared_inter > 0 ? (int32_t)mok_ceil_div(walk->schedule.head->num_tokens, MOK_TILE_ROWS) : 0;
    walk->cols_again = gate_up;
    walk->shared_again = shared_gate_up;
    if (walk->backward) {
        walk->cols_first = mok_plan_num_tiles(dims->inter, tiles->dgrad_down);
        walk->cols_second = mok_plan_num_tiles(dims->hidden, tiles->dgrad_gate_up);
        walk->shared_first = mok_plan_num_tiles(dims->shared_inter, tiles->dgrad_down);
        walk->shared_second = walk->cols_second;
    } else {
        walk->cols_first = gate_up;
        walk->cols_second = mok_plan_num_tiles(dims->hidden, tiles->down);
        walk->shared_first = shared_gate_up;
        walk->shared_second = walk->cols_second;
    }
    int32_t hidden_out = mok_plan_num_tiles(dims->hidden, tiles->wgrad_out), hidden_in = mok_plan_num_tiles(dims->hidden, tiles->wgrad_in);
    walk->wgrad_tasks = 2 * mok_plan_num_tiles(dims->inter, tiles->wgrad_out) * hidden_in +
                        hidden_out * mok_plan_num_tiles(dims->inter, tiles->wgrad_in);
    walk->shared_wgrad_tasks = 2 * mok_plan_num_tiles(dims->shared_inter, tiles->wgrad_out) * hidden_in +
                               hidden_out * mok_plan_num_tiles(dims->shared_inter, tiles->wgrad_in);
    walk->num_shared = (int64_t)walk->token_tiles * (walk->shared_first + walk->shared_second);
    if (walk->backward && dims->shared_inter > 0) {
        walk->num_shared += (walk->shared_recompute ? (int64_t)walk->token_tiles * walk->shared_again : 0) + walk->shared_wgrad_tasks;
    }
}

/* a / b of numbers that are not negative: a division of 32 bits where that will do, which on a GPU is many times as fast. */
MOK_HD int64_t mok_walk_divide(int64_t a, int64_t b)
{
    return (a | b) >> 32 == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

/* ---- geometry ------------------------------------------------------------------------------------------------------------ */

MOK_HD int32_t mok_walk_minibatch_tiles(const struct mok_walk *walk, int32_t minibatch)
{
    int64_t left = walk->num_tiles - (int64_t)minibatch * walk->mb_tiles;
    return (int32_t)mok_min64(left, walk->mb_tiles);
}

MOK_HD int32_t mok_walk_lap_first(const struct mok_walk *walk, int32_t lap) { return lap * walk->ring.num_places; }

MOK_HD int32_t mok_walk_lap_minibatches(const struct mok_walk *walk, int32_t lap)
{
    return (int32_t)mok_min64(walk->ring.num_places, walk->num_minibatches - mok_walk_lap_first(walk, lap));
}

/* First row tile of a lap; lap num_laps gives num_tiles. */
MOK_HD int32_t mok_walk_lap_tile(const struct mok_walk *walk, int32_t lap)
{
    return (int32_t)mok_min64((int64_t)lap * walk->ring.num_places * walk->mb_tiles, walk->num_tiles);
}

MOK_HD int32_t mok_walk_tile_ordinal(const struct mok_walk *walk, int32_t tile)
{
    return walk->schedule.ordinal[walk->schedule.tile_expert[tile]];
}

/* Experts that have rows in row tiles [first, end), end > first. */
MOK_HD int32_t mok_walk_experts_between(const struct mok_walk *walk, int32_t first, int32_t end)
{
    return mok_walk_tile_ordinal(walk, end - 1) - mok_walk_tile_ordinal(walk, first) + 1;
}

MOK_HD int mok_walk_is_kept(const struct mok_walk *walk, int32_t row_tile) { return row_tile < walk->keep_tiles; }

/* Row tiles of a lap that recompute has to make again: [first, lap end). */
MOK_HD int32_t mok_walk_again_first(const struct mok_walk *walk, int32_t lap)
{
    return (int32_t)mok_min64(mok_max64(mok_walk_lap_tile(walk, lap), walk->keep_tiles), mok_walk_lap_tile(walk, lap + 1));
}

/* idx-th tile of a block of rows x cols tiles: groups of row_group row tiles, in a group all row tiles of a column, then the next column. */
MOK_HD void mok_walk_tile_at(const struct mok_walk *walk, int64_t idx, int32_t rows, int32_t cols, int32_t *row_out, int32_t *col_out)
{
    int64_t per_group = (int64_t)walk->row_group * cols;
    int32_t group = (int32_t)mok_walk_divide(idx, per_group);
    int32_t inside = (int32_t)(idx - group * per_group);
    int32_t height = (int32_t)mok_min64(walk->row_group, rows - (int64_t)group * walk->row_group);
    *col_out = inside / height;
    *row_out = group * walk->row_group + inside - *col_out * height;
}

/* ---- tasks --------------------------------------------------------------------------------------------------------------- */

/*
 * idx-th tile of the sequence F(first) .. with S behind by the look-ahead, over minibatches [first, first + count):
 * F(0) .. F(d-1), then pairs F(d+j), S(j). Only the last minibatch of a pass may be short, so every block size is known.
 */
MOK_HD void mok_walk_pair_task(const struct mok_walk *walk, int64_t idx, int32_t first, int32_t count, struct mok_task *task)
{
    int64_t f_full = (int64_t)walk->mb_tiles * walk->cols_first, s_full = (int64_t)walk->mb_tiles * walk->cols_second;
    int64_t f_last = (int64_t)mok_walk_minibatch_tiles(walk, first + count - 1) * walk->cols_first;
    int32_t ahead = (int32_t)mok_min64(walk->ring.look_ahead, count - 1);
    int second = 0;
    int32_t minibatch;
    if (idx < ahead * f_full) {
        minibatch = (int32_t)mok_walk_divide(idx, f_full);
        idx -= minibatch * f_full;
    } else {
        idx -= ahead * f_full;
        /* Pairs whose F is full: S(j) of them is full too, or (d = 0) is the very last. */
        int32_t full_pairs = count - 1 - ahead;
        if (idx < full_pairs * (f_full + s_full)) {
            int32_t pair = (int32_t)mok_walk_divide(idx, f_full + s_full);
            idx -= pair * (f_full + s_full);
            second = idx >= f_full;
            idx -= second ? f_full : 0;
            minibatch = second ? pair : ahead + pair;
        } else {
            idx -= full_pairs * (f_full + s_full);
            if (idx < f_last) {
                minibatch = count - 1;
            } else {
                idx -= f_last;
                int32_t behind = (int32_t)mok_min64(mok_walk_divide(idx, s_full), ahead);
                second = 1;
                minibatch = full_pairs + behind;
                idx -= behind * s_full;
            }
        }
    }
    int32_t rows = mok_walk_minibatch_tiles(walk, first + minibatch);
    mok_walk_tile_at(walk, idx, rows, second ? walk->cols_second : walk->cols_first, &task->row_tile, &task->col_tile);
    task->minibatch = first + minibatch;
    task->row_tile += task->minibatch * walk->mb_tiles;
    task->expert = walk->schedule.tile_expert[task->row_tile];
    if (walk->backward) {
        task->kind = second ? MOK_TASK_DGRAD_GATE_UP : MOK_TASK_DGRAD_DOWN;
    } else {
        task->kind = second ? MOK_TASK_DOWN : MOK_TASK_GATE_UP;
    }
}

/* idx-th weight-gradient tile of one expert of width `inter`: first dWd, whose operands D alone makes; then dWg, dWu. */
MOK_HD void mok_walk_wgrad_tile(const struct mok_walk *walk, int32_t idx, int32_t inter, struct mok_task *task)
{
    int32_t down_in = mok_plan_num_tiles(inter, walk->tiles.wgrad_in);
    int32_t num_down = mok_plan_num_tiles(walk->dims.hidden, walk->tiles.wgrad_out) * down_in;
    int32_t in = down_in;
    task->matrix = MOK_MATRIX_DOWN;
    if (idx >= num_down) {
        idx -= num_down;
        in = mok_plan_num_tiles(walk->dims.hidden, walk->tiles.wgrad_in);
        int32_t num_gate = mok_plan_num_tiles(inter, walk->tiles.wgrad_out) * in;
        task->matrix = idx < num_gate ? MOK_MATRIX_GATE : MOK_MATRIX_UP;
        idx -= idx < num_gate ? 0 : num_gate;
    }
    task->out_tile = idx / in;
    task->in_tile = idx % in;
}

MOK_HD void mok_walk_shared_task(const struct mok_walk *walk, int64_t idx, struct mok_task *task)
{
    int32_t rows = walk->token_tiles;
    int64_t again = walk->backward && walk->shared_recompute ? (int64_t)rows * walk->shared_again : 0;
    int64_t first = (int64_t)rows * walk->shared_first, second = (int64_t)rows * walk->shared_second;
    if (idx < again) {
        task->kind = MOK_TASK_SHARED_RECOMPUTE;
        mok_walk_tile_at(walk, idx, rows, walk->shared_again, &task->row_tile, &task->col_tile);
    } else if (idx < again + first) {
        task->kind = walk->backward ? MOK_TASK_SHARED_DGRAD_DOWN : MOK_TASK_SHARED_GATE_UP;
        mok_walk_tile_at(walk, idx - again, rows, walk->shared_first, &task->row_tile, &task->col_tile);
    } else if (idx < again + first + second) {
        task->kind = walk->backward ? MOK_TASK_SHARED_DGRAD_GATE_UP : MOK_TASK_SHARED_DOWN;
        mok_walk_tile_at(walk, idx - again - first, rows, walk->shared_second, &task->row_tile, &task->col_tile);
    } else {
        task->kind = MOK_TASK_SHARED_WGRAD;
        mok_walk_wgrad_tile(walk, (int32_t)(idx - again - first - second), walk->dims.shared_inter, task);
        task->end_tile = rows;
    }
}

/* Weight-gradient task number idx of a lap. An expert that began in an earlier lap, or goes on in the next, is carried. */
MOK_HD void mok_walk_wgrad_task(const struct mok_walk *walk, int32_t lap, int64_t idx, struct mok_task *task)
{
    int32_t lap_first = mok_walk_lap_tile(walk, lap), lap_end = mok_walk_lap_tile(walk, lap + 1);
    int32_t ordinal = mok_walk_tile_ordinal(walk, lap_first) + (int32_t)(idx / walk->wgrad_tasks);
    int32_t expert = walk->schedule.active[ordinal];
    int32_t expert_first = walk->schedule.expert_first[expert] / MOK_TILE_ROWS;
    int32_t expert_end = walk->schedule.expert_first[expert + 1] / MOK_TILE_ROWS;
    task->kind = MOK_TASK_WGRAD;
    task->expert = expert;
    task->lap = lap;
    task->first_tile = (int32_t)mok_max64(expert_first, lap_first);
    task->end_tile = (int32_t)mok_min64(expert_end, lap_end);
    task->carry_in = expert_first < lap_first;
    task->carry_out = expert_end > lap_end;
    mok_walk_wgrad_tile(walk, (int32_t)(idx % walk->wgrad_tasks), walk->dims.inter, task);
}

/* Tasks of one lap of a backward pass: recompute, D and E, weight gradients. */
MOK_HD int64_t mok_walk_lap_tasks(const struct mok_walk *walk, int32_t lap, int64_t *again_out, int64_t *pairs_out)
{
    int32_t first = mok_walk_lap_tile(walk, lap), end = mok_walk_lap_tile(walk, lap + 1);
    *again_out = (int64_t)(end - mok_walk_again_first(walk, lap)) * walk->cols_again;
    *pairs_out = (int64_t)(end - first) * (walk->cols_first + walk->cols_second);
    return *again_out + *pairs_out + (int64_t)mok_walk_experts_between(walk, first, end) * walk->wgrad_tasks;
}

/* Task of a lap, or of the zeros behind the last lap. Walks over the laps before it: there are few. */
MOK_HD void mok_walk_lap_task(const struct mok_walk *walk, int64_t idx, struct mok_task *task)
{
    for (int32_t lap = 0; lap < walk->num_laps; lap++) {
        int64_t again, pairs;
        int64_t tasks = mok_walk_lap_tasks(walk, lap, &again, &pairs);
        if (idx >= tasks) {
            idx -= tasks;
            continue;
        }
        task->lap = lap;
        if (idx < again) {
            int32_t first = mok_walk_again_first(walk, lap);
            mok_walk_tile_at(walk, idx, mok_walk_lap_tile(walk, lap + 1) - first, walk->cols_again, &task->row_tile, &task->col_tile);
            task->kind = MOK_TASK_RECOMPUTE;
            task->row_tile += first;
            task->minibatch = task->row_tile / walk->mb_tiles;
            task->expert = walk->schedule.tile_expert[task->row_tile];
        } else if (idx < again + pairs) {
            mok_walk_pair_task(walk, idx - again, mok_walk_lap_first(walk, lap), mok_walk_lap_minibatches(walk, lap), task);
        } else {
            mok_walk_wgrad_task(walk, lap, idx - again - pairs, task);
        }
        return;
    }
    int64_t zeros = walk->zero_grads ? (int64_t)(walk->num_local - walk->num_active) * walk->wgrad_tasks : 0;
    if (idx < zeros) {
        task->kind = MOK_TASK_WGRAD_ZERO;
        task->expert = walk->schedule.active[walk->num_active + (int32_t)(idx / walk->wgrad_tasks)];
        mok_walk_wgrad_tile(walk, (int32_t)(idx % walk->wgrad_tasks), walk->dims.inter, task);
    }
}

/* Task number idx >= 0 of the pass; kind MOK_TASK_NONE past the end. */
MOK_HD struct mok_task mok_walk_task(const struct mok_walk *walk, int64_t idx)
{
    struct mok_task task = {MOK_TASK_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    if (idx < walk->num_shared) {
        mok_walk_shared_task(walk, idx, &task);
    } else if (walk->backward) {
        mok_walk_lap_task(walk, idx - walk->num_shared, &task);
    } else if (idx - walk->num_shared < (int64_t)walk->num_tiles * (walk->cols_first + walk->cols_second)) {
        mok_walk_pair_task(walk, idx - walk->num_shared, 0, walk->num_minibatches, &task);
    }
    return task;
}

/* ---- steps of a communication worker -------------------------------------------------------------------------------------- */

/* Step number idx >= 0; kind MOK_STEP_NONE past the end. PUSH is C(g) forward (y rows), and the push of dx rows and dw backward. */
MOK_HD struct mok_step mok_walk_step(const struct mok_walk *walk, int64_t idx)
{
    struct mok_step step = {MOK_STEP_NONE, 0};
    int32_t count = walk->num_minibatches, places = walk->ring.num_places;
    if (idx >= 2 * (int64_t)count) {
        return step;
    }
    if (walk->backward) {
        int32_t lap = (int32_t)(idx / (2 * (int64_t)places));
        int32_t inside = (int32_t)(idx % (2 * (int64_t)places));
        int32_t in_lap = mok_walk_lap_minibatches(walk, lap);
        step.kind = inside < in_lap ? MOK_STEP_PULL : MOK_STEP_PUSH;
        step.minibatch = mok_walk_lap_first(walk, lap) + inside % in_lap;
        return step;
    }
    int32_t primed = walk->pushes_rows ? count : (int32_t)mok_min64(places, count);
    if (walk->pushes_rows && idx >= count) {
        return step;
    }
    if (idx < primed) {
        step.kind = MOK_STEP_PULL;
        step.minibatch = (int32_t)idx;
        return step;
    }
    idx -= primed;
    int32_t both = count - primed; /* C(g) that are followed by a pull */
    if (idx < 2 * (int64_t)both) {
        step.kind = idx % 2 ? MOK_STEP_PULL : MOK_STEP_PUSH;
        step.minibatch = (int32_t)(idx / 2) + (idx % 2 ? places : 0);
    } else {
        step.kind = MOK_STEP_PUSH;
        step.minibatch = (int32_t)(idx - both);
    }
    return step;
}

/* ---- waits and announcements ----------------------------------------------------------------------------------------------- */

MOK_HD struct mok_wait mok_wait_on(int32_t counter, int32_t index, int64_t target)
{
    struct mok_wait wait = {counter, index, (uint32_t)target};
    return wait;
}

/* PLACE_FREE target: the pushes of all communication workers (or, forward, every down task that pushes its rows itself), and (backward)
 * every weight-gradient task that reads rows of the minibatch. */
MOK_HD int64_t mok_walk_place_target(const struct mok_walk *walk, int32_t minibatch)
{
    int64_t target = walk->num_comm;
    if (walk->pushes_rows) {
        target = (int64_t)mok_walk_minibatch_tiles(walk, minibatch) * walk->cols_second;
    }
    if (walk->backward) {
        int32_t first = minibatch * walk->mb_tiles;
        target += (int64_t)mok_walk_experts_between(walk, first, first + mok_walk_minibatch_tiles(walk, minibatch)) * walk->wgrad_tasks;
    }
    return target;
}

/* A pull waits for the minibatch that had its place before (at most one wait). */
MOK_HD int32_t mok_walk_pull_num_waits(const struct mok_walk *walk, int32_t minibatch) { return minibatch >= walk->ring.num_places; }

MOK_HD struct mok_wait mok_walk_pull_wait(const struct mok_walk *walk, int32_t minibatch)
{
    int32_t before = minibatch - walk->ring.num_places;
    return mok_wait_on(MOK_COUNT_PLACE_FREE, before, mok_walk_place_target(walk, before));
}

/* A push takes row tile after row tile; each waits for all column tiles of its second GEMM. */
MOK_HD struct mok_wait mok_walk_push_wait(const struct mok_walk *walk, int32_t row_tile)
{
    return mok_wait_on(walk->backward ? MOK_COUNT_E_DONE : MOK_COUNT_Y_DONE, row_tile, walk->cols_second);
}

/* What a finished step adds one to: PULL -> PULLED[minibatch], PUSH -> PLACE_FREE[minibatch]. */
MOK_HD struct mok_wait mok_walk_step_signal(const struct mok_step *step)
{
    return mok_wait_on(step->kind == MOK_STEP_PULL ? MOK_COUNT_PULLED : MOK_COUNT_PLACE_FREE, step->minibatch, 1);
}

/* Waits of a weight-gradient task: d_done of each of its row tiles, and the carry. */
MOK_HD int32_t mok_walk_task_num_waits(const struct mok_walk *walk, const struct mok_task *task)
{
    switch (task->kind) {
    case MOK_TASK_SHARED_DOWN:
    case MOK_TASK_SHARED_DGRAD_GATE_UP:
    case MOK_TASK_GATE_UP:
    case MOK_TASK_DOWN:
    case MOK_TASK_RECOMPUTE:
    case MOK_TASK_DGRAD_GATE_UP:
        return 1;
    case MOK_TASK_SHARED_DGRAD_DOWN:
        return walk->shared_recompute != 0;
    case MOK_TASK_DGRAD_DOWN:
        return mok_walk_is_kept(walk, task->row_tile) ? 1 : 2;
    case MOK_TASK_SHARED_WGRAD:
        return task->end_tile;
    case MOK_TASK_WGRAD:
        return task->end_tile - task->first_tile + task->carry_in;
    default:
        return 0;
    }
}

/* idx-th wait of a task, 0 <= idx < mok_walk_task_num_waits. */
MOK_HD struct mok_wait mok_walk_task_wait(const struct mok_walk *walk, const struct mok_task *task, int32_t idx)
{
    switch (task->kind) {
    case MOK_TASK_SHARED_DOWN:
        return mok_wait_on(MOK_COUNT_SHARED_G_DONE, task->row_tile, walk->shared_first);
    case MOK_TASK_SHARED_DGRAD_DOWN:
        return mok_wait_on(MOK_COUNT_SHARED_G_DONE, task->row_tile, walk->shared_again);
    case MOK_TASK_SHARED_DGRAD_GATE_UP:
        return mok_wait_on(MOK_COUNT_SHARED_D_DONE, task->row_tile, walk->shared_first);
    case MOK_TASK_SHARED_WGRAD:
        return mok_wait_on(MOK_COUNT_SHARED_D_DONE, idx, walk->shared_first);
    case MOK_TASK_DOWN:
        return mok_wait_on(MOK_COUNT_H_DONE, task->row_tile, walk->cols_first);
    case MOK_TASK_DGRAD_GATE_UP:
        return mok_wait_on(MOK_COUNT_D_DONE, task->row_tile, walk->cols_first);
    case MOK_TASK_WGRAD:
        if (idx < task->end_tile - task->first_tile) {
            return mok_wait_on(MOK_COUNT_D_DONE, task->first_tile + idx, walk->cols_first);
        }
        return mok_wait_on(MOK_COUNT_CARRY_DONE, task->lap - 1, walk->wgrad_tasks);
    case MOK_TASK_DGRAD_DOWN:
        if (idx == 1) {
            return mok_wait_on(MOK_COUNT_G_DONE, task->row_tile, walk->cols_again);
        }
        break;
    default:
        break;
    }
    return mok_wait_on(MOK_COUNT_PULLED, task->minibatch, walk->num_comm);
}

/* Announcements of a finished task. A weight-gradient task frees the place of each minibatch it read, and hands on its carry. */
MOK_HD int32_t mok_walk_task_num_signals(const struct mok_walk *walk, const struct mok_task *task)
{
    switch (task->kind) {
    case MOK_TASK_NONE:
    case MOK_TASK_SHARED_WGRAD:
    case MOK_TASK_WGRAD_ZERO:
        return 0;
    case MOK_TASK_SHARED_DGRAD_DOWN:
        return 2;
    case MOK_TASK_WGRAD:
        return (task->end_tile - 1) / walk->mb_tiles - task->first_tile / walk->mb_tiles + 1 + task->carry_out;
    default:
        return 1;
    }
}

MOK_HD struct mok_wait mok_walk_task_signal(const struct mok_walk *walk, const struct mok_task *task, int32_t idx)
{
    switch (task->kind) {
    case MOK_TASK_SHARED_GATE_UP:
    case MOK_TASK_SHARED_RECOMPUTE:
        return mok_wait_on(MOK_COUNT_SHARED_G_DONE, task->row_tile, 1);
    case MOK_TASK_SHARED_DOWN:
    case MOK_TASK_SHARED_DGRAD_GATE_UP:
        return mok_wait_on(MOK_COUNT_SHARED_DONE, 0, 1);
    case MOK_TASK_SHARED_DGRAD_DOWN: /* its partial sums of dshared_w are read by the final sum */
        return idx == 0 ? mok_wait_on(MOK_COUNT_SHARED_D_DONE, task->row_tile, 1) : mok_wait_on(MOK_COUNT_SHARED_DONE, 0, 1);
    case MOK_TASK_GATE_UP:
        return mok_wait_on(MOK_COUNT_H_DONE, task->row_tile, 1);
    case MOK_TASK_DOWN:
        return walk->pushes_rows ? mok_wait_on(MOK_COUNT_PLACE_FREE, task->minibatch, 1) : mok_wait_on(MOK_COUNT_Y_DONE, task->row_tile, 1);
    case MOK_TASK_RECOMPUTE:
        return mok_wait_on(MOK_COUNT_G_DONE, task->row_tile, 1);
    case MOK_TASK_DGRAD_DOWN:
        return mok_wait_on(MOK_COUNT_D_DONE, task->row_tile, 1);
    case MOK_TASK_DGRAD_GATE_UP:
        return mok_wait_on(MOK_COUNT_E_DONE, task->row_tile, 1);
    default:
        break;
    }
    int32_t first = task->first_tile / walk->mb_tiles, places = (task->end_tile - 1) / walk->mb_tiles - first + 1;
    return idx < places ? mok_wait_on(MOK_COUNT_PLACE_FREE, first + idx, 1) : mok_wait_on(MOK_COUNT_CARRY_DONE, task->lap, 1);
}

/* What the final sum waits for, besides the EXIT barrier. */
MOK_HD struct mok_wait mok_walk_sum_wait(const struct mok_walk *walk)
{
    int64_t target = (int64_t)walk->token_tiles * (walk->shared_second + (walk->backward ? walk->shared_first : 0));
    return mok_wait_on(MOK_COUNT_SHARED_DONE, 0, target);
}

#endif
