/*
 * Forward tasks, routed and shared: gate+up with the activation behind it, and down (numerics.md has the rounding points).
 *
 *   gate+up  x [128, H]  * [Wg; Wu] tile^T  -> bf16 g, u (where kept) and h        down  h [128, I] * Wd tile^T  -> bf16 y
 *
 * Only rows before the padding are stored.
 */
#include <string.h>

#include "cpu/cpu.h"

struct mok_cpu_tile mok_cpu_forward_tile(const struct mok_pass_group *group, const struct mok_cpu_job *job, int32_t row_tile, int is_shared)
{
    const struct mok_walk *walk = &group->pass.walk;
    const struct mok_cpu_layout *layout = &group->layout;
    const struct mok_pass_saved *saved = job->saved;
    int64_t row = (int64_t)row_tile * MOK_TILE_ROWS, hidden = walk->dims.hidden;
    struct mok_cpu_tile tile;
    memset(&tile, 0, sizeof tile);
    tile.is_shared = is_shared;
    if (is_shared) {
        int64_t x_off = saved != NULL ? saved->x_off : group->setup.region.rows;
        int64_t at = row * walk->dims.shared_inter;
        tile.weights = &job->layer.shared;
        tile.inter = walk->dims.shared_inter;
        tile.valid = (int32_t)mok_min64(MOK_TILE_ROWS, walk->schedule.head->num_tokens - row);
        tile.x = (const mok_bf16 *)(group->peer->base[walk->dims.rank] + x_off) + row * hidden;
        tile.g = saved != NULL && saved->shared_g != NULL ? saved->shared_g + at : NULL;
        tile.u = saved != NULL && saved->shared_u != NULL ? saved->shared_u + at : NULL;
        tile.h = (mok_bf16 *)(group->other_block + layout->shared_h) + at;
        tile.y = (mok_bf16 *)(group->other_block + layout->shared_s) + row * hidden;
        return tile;
    }
    int64_t ring_row = mok_plan_ring_row(&walk->ring, row);
    tile.weights = &job->layer.routed;
    tile.expert = walk->schedule.tile_expert[row_tile];
    tile.inter = walk->dims.inter;
    tile.valid = mok_cpu_valid_rows(walk, row_tile);
    tile.x = mok_cpu_row_x(group, saved, row);
    if (mok_walk_is_kept(walk, row_tile)) {
        tile.g = saved->g + row * tile.inter;
        tile.u = saved->u + row * tile.inter;
    }
    tile.h = (mok_bf16 *)(group->ring_block + layout->h) + ring_row * tile.inter;
    tile.y = (mok_bf16 *)(group->ring_block + layout->y) + ring_row * hidden;
    return tile;
}

void mok_cpu_gate_up(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, const struct mok_cpu_tile *tile, int32_t col_tile)
{
    const struct mok_pass_group *group = worker->group;
    int32_t hidden = group->setup.dims.hidden;
    int32_t width = mok_cpu_tile_width(tile->inter, group->tiles.gate_up, col_tile);
    mok_cpu_load_rows(group->loops, tile->x, hidden, tile->valid, group->call.height, hidden, worker->operand_a);
    mok_cpu_load_weights(worker, tile, MOK_CPU_GATE_UP, col_tile);
    struct mok_cpu_panel gate = mok_cpu_multiply_nt(worker, 0, width, hidden), up = mok_cpu_multiply_nt(worker, 1, width, hidden);
    int64_t col = (int64_t)col_tile * group->tiles.gate_up;
    for (int64_t row = 0; row < tile->valid; row++) {
        int64_t at = row * tile->inter + col;
        group->loops->act(&job->layer.activation, gate.rows + row * gate.stride, up.rows + row * up.stride, width,
                          tile->g != NULL ? tile->g + at : NULL, tile->u != NULL ? tile->u + at : NULL,
                          tile->h != NULL ? tile->h + at : NULL);
    }
}

static void down(struct mok_cpu_worker *worker, const struct mok_cpu_tile *tile, int32_t col_tile)
{
    const struct mok_pass_group *group = worker->group;
    int32_t hidden = group->setup.dims.hidden;
    int32_t total = mok_cpu_tile_width(hidden, group->tiles.down, col_tile);
    mok_cpu_load_rows(group->loops, tile->h, tile->inter, tile->valid, group->call.height, tile->inter, worker->operand_a);
    mok_cpu_load_weights(worker, tile, MOK_CPU_DOWN, col_tile);
    for (int32_t panel = 0; panel * MOK_CPU_PANEL < total; panel++) {
        int32_t width = mok_cpu_tile_width(total, MOK_CPU_PANEL, panel);
        int64_t col = (int64_t)col_tile * group->tiles.down + panel * MOK_CPU_PANEL;
        mok_cpu_narrow_panel(worker, mok_cpu_multiply_nt(worker, panel, width, tile->inter), tile->valid, width, tile->y + col, hidden);
    }
}

void mok_cpu_forward_task(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, const struct mok_task *task)
{
    int is_shared = task->kind == MOK_TASK_SHARED_GATE_UP || task->kind == MOK_TASK_SHARED_DOWN;
    struct mok_cpu_tile tile = mok_cpu_forward_tile(worker->group, job, task->row_tile, is_shared);
    if (task->kind == MOK_TASK_GATE_UP || task->kind == MOK_TASK_SHARED_GATE_UP) {
        mok_cpu_gate_up(worker, job, &tile, task->col_tile);
    } else {
        down(worker, &tile, task->col_tile);
    }
}
