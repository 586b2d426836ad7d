/*
 * The scout of a cluster in a backward pass (see fused/forward/fused_forward_scout.cuh): takes units, waits until the inputs of all their
 * tasks are complete, hands each CTA its tile.
 *
 * A weight gradient waits for D of all row tiles up to its last. They are done in row order, but for a few: the scout remembers up to where it
 * has seen them done, and looks at several at a time. That it waits for those of other experts, too, keeps carries safe though movers take
 * their shares in any order: whoever writes a scratch in lap L has seen D of the first minibatch of lap L, hence its place free, hence the
 * reader of that scratch in lap L - 1 done (docs/protocol.md, section 4).
 */
#ifndef MOK_CUDA_FUSED_BACKWARD_SCOUT_CUH
#define MOK_CUDA_FUSED_BACKWARD_SCOUT_CUH

#include "cuda/fused/backward/fused_backward_args.h"
#include "cuda/fused/backward/fused_backward_walk.h"
#include "cuda/fused/fused_counter.cuh"
#include "cuda/fused/fused_shared.cuh"

enum { MOK_FUSED_SCOUT_LOOKS = 8 /* counters that are read at one time */ };

/* All of counters known .. end - 1 of a kind are at their target; moves `known` on. Returns 0 when nothing may start any more. */
MOK_DEVICE int mok_fused_wait_tiles(const struct mok_fused_args *args, int32_t counter, int32_t end, uint32_t target, int32_t *known)
{
    const uint32_t *words = args->counters + args->counter_base[counter];
    int is_new = *known < end;
    while (*known < end) {
        uint32_t seen[MOK_FUSED_SCOUT_LOOKS];
        int32_t count = 0;
#pragma unroll
        for (int i = 0; i < MOK_FUSED_SCOUT_LOOKS; i++) {
            seen[i] = mok_hw_load_relaxed_gpu(words + min(*known + i, end - 1));
        }
#pragma unroll
        for (int i = 0; i < MOK_FUSED_SCOUT_LOOKS; i++) {
            count += count == i && seen[i] >= target;
        }
        *known = min(*known + count, end);
        if (count < MOK_FUSED_SCOUT_LOOKS && *known < end) {
            struct mok_wait wait = mok_wait_on(counter, *known, target);
            if (!mok_fused_wait_counter(args, &wait)) {
                return 0;
            }
        }
    }
    if (is_new) {
        mok_hw_fence_gpu();
    }
    return 1;
}

/* The inputs of a weight gradient. */
MOK_DEVICE int mok_fused_wait_wgrad(const struct mok_fused_args *args, const struct mok_walk *walk, const struct mok_task *task,
                                    struct mok_fused_known *known)
{
    if (task->kind == MOK_TASK_SHARED_WGRAD) {
        return mok_fused_wait_tiles(args, MOK_COUNT_SHARED_D_DONE, task->end_tile, (uint32_t)walk->shared_first, &known->shared);
    }
    if (task->carry_in) {
        struct mok_wait wait = mok_wait_on(MOK_COUNT_CARRY_DONE, task->lap - 1, walk->wgrad_tasks);
        if (!mok_fused_wait_counter(args, &wait)) {
            return 0;
        }
    }
    return mok_fused_wait_tiles(args, MOK_COUNT_D_DONE, task->end_tile, (uint32_t)walk->cols_first, &known->routed);
}

/* For the trace: the counter that a unit waits for last. */
MOK_DEVICE int32_t mok_fused_input_kind(int32_t kind)
{
    int32_t counter = mok_fused_is_shared(kind)              ? MOK_COUNT_SHARED_D_DONE
                      : kind == MOK_TASK_DGRAD_GATE_UP       ? MOK_COUNT_D_DONE
                      : mok_fused_is_wgrad(kind)             ? MOK_COUNT_D_DONE
                                                             : MOK_COUNT_PULLED;
    return MOK_EVENT_WAIT + mok_site_of_counter(counter);
}

/* The inputs of all tasks of the unit. */
MOK_DEVICE int mok_fused_wait_unit(const struct mok_fused_args *args, const struct mok_fused_walk *walk, const struct mok_fused_unit *unit,
                                   struct mok_fused_known *known)
{
    if (mok_fused_is_wgrad(unit->task.kind)) {
        return mok_fused_wait_wgrad(args, &walk->tiles, &unit->task, known);
    }
#pragma unroll 1
    for (int32_t place = 0; place < mok_tile_fused::CLUSTER; place++) {
        struct mok_task task;
        int32_t num = mok_fused_backward_unit_task(walk, unit, place, &task) ? mok_walk_task_num_waits(&walk->tiles, &task) : 0;
        for (int32_t i = 0; i < num; i++) {
            struct mok_wait wait = mok_walk_task_wait(&walk->tiles, &task, i);
            if (!mok_fused_wait_counter(args, &wait)) {
                return 0;
            }
        }
    }
    return 1;
}

MOK_DEVICE void mok_fused_fill_wgrad_tile(const struct mok_fused_backward_args *args, const struct mok_walk *walk,
                                          const struct mok_task *task, int exists, struct mok_fused_backward_tile *tile)
{
    int is_down = task->matrix == MOK_MATRIX_DOWN, is_shared = task->kind == MOK_TASK_SHARED_WGRAD;
    const struct mok_fused_wgrad_side *side = &args->wgrad[is_shared ? MOK_FUSED_SHARED : MOK_FUSED_ROUTED];
    const struct mok_wgrad_kernel_args *wgrad = is_down ? &side->down : &side->gate_up;
    int32_t lap_first = is_shared ? 0 : mok_walk_lap_tile(walk, task->lap), end = task->end_tile * MOK_TILE_ROWS;
    int32_t real = is_shared ? walk->schedule.head->num_tokens
                             : walk->schedule.expert_first[task->expert] + walk->schedule.expert_rows[task->expert];
    tile->is_down = is_down;
    tile->gemm.part = task->matrix == MOK_MATRIX_UP;
    tile->gemm.row = task->out_tile * MOK_TILE_ROWS;
    tile->gemm.col_tile = task->in_tile;
    tile->gemm.col = task->in_tile * MOK_GEMM_COLS;
    tile->keep_row = task->first_tile * MOK_TILE_ROWS;
    tile->gemm.first_row = tile->keep_row - lap_first * MOK_TILE_ROWS;
    tile->gemm.num_rows = task->kind == MOK_TASK_WGRAD_ZERO ? 0 : max(0, min(real, end) - tile->keep_row);
    tile->gemm.carry_in = task->carry_in ? 2 - task->lap % 2 : 0;
    tile->gemm.carry_out = task->carry_out ? 1 + task->lap % 2 : 0;
    tile->gemm.starts_from_memory = task->carry_in || (tile->gemm.num_rows > 0 && wgrad->add);
    int is_written = exists && (tile->gemm.num_rows > 0 || !wgrad->add);
    tile->gemm.rows = is_written ? min(wgrad->out - tile->gemm.row, (int32_t)MOK_TILE_ROWS) : 0;
    tile->counter = tile->carry_counter = -1;
    if (exists && task->kind == MOK_TASK_WGRAD && walk->num_laps > 1) { /* else nobody waits for the place */
        int32_t first = task->first_tile / walk->mb_tiles;
        tile->counter = args->pass.counter_base[MOK_COUNT_PLACE_FREE] + first;
        tile->num_counters = (task->end_tile - 1) / walk->mb_tiles - first + 1;
        tile->carry_counter = task->carry_out ? args->pass.counter_base[MOK_COUNT_CARRY_DONE] + task->lap : -1;
    }
}

MOK_DEVICE void mok_fused_fill_rows_tile(const struct mok_fused_backward_args *args, const struct mok_walk *walk,
                                         const struct mok_task *task, int exists, struct mok_fused_backward_tile *tile)
{
    int is_shared = mok_fused_is_shared(task->kind), is_again = task->kind == MOK_TASK_RECOMPUTE || task->kind == MOK_TASK_SHARED_RECOMPUTE;
    int32_t first = task->row_tile * MOK_TILE_ROWS, end;
    if (is_shared) {
        end = walk->schedule.head->num_tokens;
        tile->gemm.row = first;
        tile->keep_row = -1;
    } else {
        end = walk->schedule.expert_first[task->expert] + walk->schedule.expert_rows[task->expert];
        tile->gemm.row = (int32_t)(first - (int64_t)(task->minibatch / walk->ring.num_places) * mok_plan_ring_rows(&walk->ring));
        tile->keep_row = mok_walk_is_kept(walk, task->row_tile) ? first : -1;
    }
    tile->gemm.rows = exists ? min(end - first, (int32_t)MOK_TILE_ROWS) : 0;
    tile->gemm.col_tile = task->col_tile;
    tile->gemm.col = task->col_tile * (is_again ? MOK_GEMM_COLS / 2 : MOK_GEMM_COLS);
    tile->is_down = 0;
    tile->gemm.part = tile->gemm.first_row = tile->gemm.num_rows = 0;
    tile->gemm.carry_in = tile->gemm.carry_out = tile->gemm.starts_from_memory = 0;
    tile->counter = tile->carry_counter = -1;
    if (exists && task->kind != MOK_TASK_SHARED_DGRAD_GATE_UP) { /* the final sum is behind the kernel */
        struct mok_wait signal = mok_walk_task_signal(walk, task, 0);
        tile->counter = mok_fused_counter_word(&args->pass, &signal);
    }
}

/* The tile of place `place`. */
MOK_DEVICE void mok_fused_fill_tile(const struct mok_fused_backward_args *args, const struct mok_fused_walk *walk,
                                    const struct mok_fused_unit *unit, int32_t place, struct mok_fused_backward_tile *tile)
{
    const int span = mok_tile_fused::CLUSTER;
    struct mok_task task;
    int exists = mok_fused_backward_unit_task(walk, unit, place, &task);
    tile->kind = task.kind;
    tile->gemm.expert = task.expert;
    tile->gemm.shares_b = span > 1;
    tile->num_counters = 1;
    if (mok_fused_is_wgrad(task.kind)) {
        mok_fused_fill_wgrad_tile(args, &walk->tiles, &task, exists, tile);
        return;
    }
    if (span > 1 && !mok_fused_is_shared(task.kind)) {
        const int32_t *tile_expert = walk->tiles.schedule.tile_expert;
        tile->gemm.shares_b = tile_expert[unit->task.row_tile] == tile_expert[min(unit->task.row_tile + span, unit->end) - 1];
    }
    mok_fused_fill_rows_tile(args, &walk->tiles, &task, exists, tile);
}

/* Copies a tile from the scout's own memory to the same place of CTA `cta`. */
MOK_DEVICE void mok_fused_copy_tile(const struct mok_fused_backward_tile *tile, uint32_t cta)
{
    const uint32_t *words = (const uint32_t *)tile;
    uint32_t to = mok_hw_cluster_address(tile, cta);
#pragma unroll 4
    for (uint32_t i = 0; i < sizeof *tile / 4; i++) {
        mok_hw_cluster_store(to + 4 * i, words[i]);
    }
}

/* Takes the next unit, waits for its inputs and writes its tiles. The scout's own is made last, over that of the other CTA. */
MOK_DEVICE int mok_fused_prepare_unit(const struct mok_fused_backward_args *args, mok_fused_shared *shared, int works,
                                      struct mok_fused_known *known, struct mok_fused_backward_tile *tile)
{
    struct mok_fused_unit *unit = &shared->unit;
    int valid = works;
    if (works) {
        *unit = mok_fused_backward_unit_at(&shared->walk, mok_hw_take_relaxed_gpu(&args->pass.state->next_unit, 1));
        uint64_t since = mok_fused_trace_now(&args->pass.trace);
        valid = unit->task.kind != MOK_TASK_NONE && mok_fused_wait_unit(&args->pass, &shared->walk, unit, known);
        mok_fused_trace_add(&args->pass.trace, &shared->lanes, MOK_LANE_SCOUT, mok_fused_input_kind(unit->task.kind), unit->task.row_tile, since);
    }
    tile->gemm.valid = valid;
#pragma unroll 1
    for (int32_t cta = mok_tile_fused::CLUSTER - 1; cta >= 0; cta--) {
        if (valid) {
            mok_fused_fill_tile(args, &shared->walk, unit, cta, tile);
        }
        if (cta > 0) {
            mok_fused_copy_tile(tile, (uint32_t)cta);
        }
    }
    return valid;
}

/*
 * One thread, of the first CTA. works: 0 = this cluster has no part in the products.
 *
 * A unit is taken and prepared while the one before is in the queue still: that takes several microseconds, as a chain of looks into memory.
 * Its tiles are written where tiles stood MOK_FUSED_TURNS before: all warps have taken tile turn - 2, so nobody holds one older than
 * turn - 3.
 */
MOK_DEVICE void mok_fused_backward_scout(const struct mok_fused_backward_args *args, mok_fused_shared *shared, int works)
{
    struct mok_fused_known none = {0, 0};
    shared->known = none;
    mok_fused_backward_walk_init(&shared->walk);
    for (uint32_t turn = 0;; turn++) {
        int valid = mok_fused_prepare_unit(args, shared, works, &shared->known, &shared->back[turn % MOK_FUSED_TURNS]);
        mok_hw_fence_cluster(); /* of the tiles just written: a microsecond that the queue need not wait for */
        uint64_t since = mok_fused_trace_now(&args->pass.trace);
        mok_fused_wait_queue(&args->pass, &shared->tile_empty, (turn + 1) & 1);
        mok_fused_trace_add(&args->pass.trace, &shared->lanes, MOK_LANE_SCOUT, MOK_EVENT_WAIT + MOK_SITE_QUEUE, 0, since);
        for (uint32_t cta = 0; cta < mok_tile_fused::CLUSTER; cta++) {
            mok_hw_mbarrier_arrive_relaxed_cluster(mok_hw_cluster_address(&shared->tile_full, cta));
        }
        if (!valid) {
            break;
        }
    }
    mok_fused_trace_close(&args->pass.trace, &shared->lanes, MOK_LANE_SCOUT);
}

#endif
