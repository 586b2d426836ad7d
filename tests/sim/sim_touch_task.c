/*
 * Which cells a GEMM task reads and writes.
 */
#include "sim_touch.h"

#include <stddef.h>

/* x of a routed row tile. */
static void read_x(struct sim_world *world, struct sim_actor *actor, int32_t row_tile)
{
    const struct sim_action *action = sim_action_of(world, actor);
    int32_t parts = world->plan->num_comm[actor->rank];
    if (is_kept(world, actor, row_tile)) {
        int32_t maker = action->kind == SIM_BACKWARD ? action->forward : actor->action;
        read_all_kept(world, actor, SIM_KEPT_X, row_tile, parts, stamp_of(maker, row_tile));
    } else {
        read_all(world, actor, SIM_RING_X, place_of(walk_of(world, actor), row_tile), parts, stamp_of(actor->action, row_tile));
    }
}

/* g and u of one tile, in the ring or in the saved object. */
static void write_g_u(struct sim_world *world, struct sim_actor *actor, int32_t row_tile, int32_t col_tile)
{
    int32_t saved = sim_action_of(world, actor)->saved, place = place_of(walk_of(world, actor), row_tile);
    uint32_t stamp = stamp_of(actor->action, row_tile);
    int kept = is_kept(world, actor, row_tile);
    sim_write(world, actor, kept ? own(actor, SIM_KEPT_G, saved, row_tile, col_tile) : own(actor, SIM_RING_G, place, col_tile, 0), stamp);
    sim_write(world, actor, kept ? own(actor, SIM_KEPT_U, saved, row_tile, col_tile) : own(actor, SIM_RING_U, place, col_tile, 0), stamp);
}

static void touch_dgrad_down(struct sim_world *world, struct sim_actor *actor, const struct mok_walk *walk)
{
    int32_t tile = actor->task.row_tile, col = actor->task.col_tile, place = place_of(walk, tile);
    uint32_t stamp = stamp_of(actor->action, tile);
    read_all(world, actor, SIM_RING_DY, place, world->plan->num_comm[actor->rank], stamp);
    read_all(world, actor, SIM_RING_W, place, world->plan->num_comm[actor->rank], stamp);
    if (is_kept(world, actor, tile)) {
        uint32_t kept = stamp_of(sim_action_of(world, actor)->forward, tile);
        read_all_kept(world, actor, SIM_KEPT_G, tile, walk->cols_again, kept);
        read_all_kept(world, actor, SIM_KEPT_U, tile, walk->cols_again, kept);
    } else {
        read_all(world, actor, SIM_RING_G, place, walk->cols_again, stamp);
        read_all(world, actor, SIM_RING_U, place, walk->cols_again, stamp);
    }
    sim_write(world, actor, own(actor, SIM_RING_DG, place, col, 0), stamp);
    sim_write(world, actor, own(actor, SIM_RING_DU, place, col, 0), stamp);
    sim_write(world, actor, own(actor, SIM_RING_WH, place, col, 0), stamp);
    sim_write(world, actor, own(actor, SIM_RING_DW, place, col, 0), stamp);
}

/* Index of a weight-gradient tile among those of its expert. */
static int32_t grad_index(const struct mok_walk *walk, const struct mok_task *task, int32_t inter)
{
    int32_t hidden_in = mok_plan_num_tiles(walk->dims.hidden, walk->tiles.wgrad_in);
    int32_t inter_in = mok_plan_num_tiles(inter, walk->tiles.wgrad_in);
    int32_t inter_out = mok_plan_num_tiles(inter, walk->tiles.wgrad_out);
    switch (task->matrix) {
    case MOK_MATRIX_GATE: return task->out_tile * hidden_in + task->in_tile;
    case MOK_MATRIX_UP: return (inter_out + task->out_tile) * hidden_in + task->in_tile;
    default: return 2 * inter_out * hidden_in + task->out_tile * inter_in + task->in_tile;
    }
}

/* The accumulator: from the gradient or the lap before, into the gradient or the next lap. Its stamp: the row tile it has summed up to. */
static void touch_accumulator(struct sim_world *world, struct sim_actor *actor, const struct mok_walk *walk)
{
    const struct mok_task *task = &actor->task;
    int32_t idx = grad_index(walk, task, walk->dims.inter);
    struct sim_cell_idx grad = own(actor, SIM_GRAD, task->expert, idx, 0);
    int32_t from = world->broken == SIM_SCRATCHES ? 0 : (task->lap + 1) % 2, to = world->broken == SIM_SCRATCHES ? 0 : task->lap % 2;
    int scratch = world->plan->bf16_grads;
    if (task->carry_in) {
        sim_read(world, actor, scratch ? own(actor, SIM_CARRY, from, idx, 0) : grad, stamp_of(actor->action, task->first_tile));
    } else if (!walk->zero_grads) {
        sim_read(world, actor, grad, SIM_ANY_STAMP);
    }
    sim_write(world, actor, scratch && task->carry_out ? own(actor, SIM_CARRY, to, idx, 0) : grad, stamp_of(actor->action, task->end_tile));
}

static void touch_wgrad(struct sim_world *world, struct sim_actor *actor, const struct mok_walk *walk)
{
    const struct mok_task *task = &actor->task;
    for (int32_t tile = task->first_tile; tile < task->end_tile; tile++) {
        int32_t place = place_of(walk, tile);
        uint32_t stamp = stamp_of(actor->action, tile);
        if (task->matrix == MOK_MATRIX_DOWN) {
            read_all(world, actor, SIM_RING_DY, place, world->plan->num_comm[actor->rank], stamp);
            read_all(world, actor, SIM_RING_WH, place, walk->cols_first, stamp);
        } else {
            read_all(world, actor, task->matrix == MOK_MATRIX_GATE ? SIM_RING_DG : SIM_RING_DU, place, walk->cols_first, stamp);
            read_x(world, actor, tile);
        }
    }
    touch_accumulator(world, actor, walk);
}

void sim_touch_grads(struct sim_world *world, struct sim_actor *actor)
{
    const struct mok_walk *walk = walk_of(world, actor);
    for (int32_t e = 0; e < walk->num_local; e++) {
        int32_t end = walk->schedule.expert_first[e + 1] / MOK_TILE_ROWS, has_rows = walk->schedule.expert_rows[e] > 0;
        if (has_rows || walk->zero_grads) {
            read_all(world, actor, SIM_GRAD, e, walk->wgrad_tasks, has_rows ? stamp_of(actor->action, end) : stamp_whole(actor->action));
        }
    }
    for (int32_t i = 0; walk->dims.shared_inter > 0 && i < walk->shared_wgrad_tasks; i++) {
        sim_read(world, actor, own(actor, SIM_SHARED_GRAD, i, 0, 0), stamp_whole(actor->action));
    }
}

/* ---- shared expert -------------------------------------------------------------------------------------------------------- */

/* The rank's own x, kept for backward, of one token tile. */
static void read_own_x(struct sim_world *world, struct sim_actor *actor, int32_t token_tile)
{
    const struct sim_action *action = sim_action_of(world, actor);
    int64_t end = mok_min64(sim_build_of(world, actor)->num_tokens, ((int64_t)token_tile + 1) * MOK_TILE_ROWS);
    for (int32_t token = token_tile * MOK_TILE_ROWS; token < end; token++) {
        sim_read(world, actor, own(actor, SIM_SAVED_X, action->saved, token, 0), stamp_whole(action->forward));
    }
}

static void touch_shared_dgrad_down(struct sim_world *world, struct sim_actor *actor, const struct mok_walk *walk)
{
    int32_t tile = actor->task.row_tile;
    uint32_t stamp = stamp_of(actor->action, tile);
    if (walk->shared_recompute) {
        read_all(world, actor, SIM_SHARED_G, tile, walk->shared_again, stamp);
        read_all(world, actor, SIM_SHARED_U, tile, walk->shared_again, stamp);
    } else {
        uint32_t kept = stamp_of(sim_action_of(world, actor)->forward, tile);
        read_all_kept(world, actor, SIM_KEPT_SHARED_G, tile, walk->shared_again, kept);
        read_all_kept(world, actor, SIM_KEPT_SHARED_U, tile, walk->shared_again, kept);
    }
    static const int32_t made[] = {SIM_SHARED_DG, SIM_SHARED_DU, SIM_SHARED_WH, SIM_SHARED_DV};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        sim_write(world, actor, own(actor, made[i], tile, actor->task.col_tile, 0), stamp);
    }
}

static void touch_shared_wgrad(struct sim_world *world, struct sim_actor *actor, const struct mok_walk *walk)
{
    static const int32_t operand[] = {[MOK_MATRIX_GATE] = SIM_SHARED_DG, [MOK_MATRIX_UP] = SIM_SHARED_DU,
                                      [MOK_MATRIX_DOWN] = SIM_SHARED_WH};
    const struct mok_task *task = &actor->task;
    for (int32_t tile = task->first_tile; tile < task->end_tile; tile++) {
        read_all(world, actor, operand[task->matrix], tile, walk->shared_first, stamp_of(actor->action, tile));
        if (task->matrix != MOK_MATRIX_DOWN) {
            read_own_x(world, actor, tile);
        }
    }
    sim_write(world, actor, own(actor, SIM_SHARED_GRAD, grad_index(walk, task, walk->dims.shared_inter), 0, 0), stamp_whole(actor->action));
}

static void touch_shared_task(struct sim_world *world, struct sim_actor *actor, const struct mok_walk *walk)
{
    int32_t tile = actor->task.row_tile, col = actor->task.col_tile, saved = sim_action_of(world, actor)->saved;
    uint32_t stamp = stamp_of(actor->action, tile);
    switch (actor->task.kind) {
    case MOK_TASK_SHARED_GATE_UP: /* reads the caller's x */
        if (saved >= 0 && !walk->shared_recompute) {
            sim_write(world, actor, own(actor, SIM_KEPT_SHARED_G, saved, tile, col), stamp);
            sim_write(world, actor, own(actor, SIM_KEPT_SHARED_U, saved, tile, col), stamp);
        }
        sim_write(world, actor, own(actor, SIM_SHARED_H, tile, col, 0), stamp);
        break;
    case MOK_TASK_SHARED_DOWN:
        read_all(world, actor, SIM_SHARED_H, tile, walk->shared_first, stamp);
        sim_write(world, actor, own(actor, SIM_SHARED_Y, tile, col, 0), stamp);
        break;
    case MOK_TASK_SHARED_RECOMPUTE:
        read_own_x(world, actor, tile);
        sim_write(world, actor, own(actor, SIM_SHARED_G, tile, col, 0), stamp);
        sim_write(world, actor, own(actor, SIM_SHARED_U, tile, col, 0), stamp);
        break;
    case MOK_TASK_SHARED_DGRAD_DOWN: /* reads the caller's dy and v */
        touch_shared_dgrad_down(world, actor, walk);
        break;
    case MOK_TASK_SHARED_DGRAD_GATE_UP:
        read_all(world, actor, SIM_SHARED_DG, tile, walk->shared_first, stamp);
        read_all(world, actor, SIM_SHARED_DU, tile, walk->shared_first, stamp);
        sim_write(world, actor, own(actor, SIM_SHARED_DX, tile, col, 0), stamp);
        break;
    default:
        touch_shared_wgrad(world, actor, walk);
        break;
    }
}

/* Columns of a column tile of y, straight into the slots. */
static void push_columns(struct sim_world *world, struct sim_actor *actor, int32_t row_tile, int32_t col)
{
    const struct mok_route *routes = walk_of(world, actor)->schedule.routes + row_tile * MOK_TILE_ROWS;
    for (int32_t row = 0; row < MOK_TILE_ROWS; row++) {
        if (routes[row].rank >= 0) {
            sim_write(world, actor, (struct sim_cell_idx){routes[row].rank, SIM_SLOTS, {routes[row].slot, col, 0}}, stamp_whole(actor->action));
        }
    }
}

/* ---- all tasks ------------------------------------------------------------------------------------------------------------ */

static const char *const task_names[] = {
    [MOK_TASK_NONE] = "none",
    [MOK_TASK_SHARED_GATE_UP] = "shared gate+up of tile",
    [MOK_TASK_SHARED_DOWN] = "shared down of tile",
    [MOK_TASK_GATE_UP] = "gate+up of tile",
    [MOK_TASK_DOWN] = "down of tile",
    [MOK_TASK_SHARED_RECOMPUTE] = "shared recompute of tile",
    [MOK_TASK_SHARED_DGRAD_DOWN] = "shared dgrad of down of tile",
    [MOK_TASK_SHARED_DGRAD_GATE_UP] = "shared dgrad of gate+up of tile",
    [MOK_TASK_SHARED_WGRAD] = "shared weight gradient of matrix, tile",
    [MOK_TASK_RECOMPUTE] = "recompute of tile",
    [MOK_TASK_DGRAD_DOWN] = "dgrad of down of tile",
    [MOK_TASK_DGRAD_GATE_UP] = "dgrad of gate+up of tile",
    [MOK_TASK_WGRAD] = "weight gradient of expert, matrix",
    [MOK_TASK_WGRAD_ZERO] = "zero weight gradient of expert, matrix",
};

void sim_touch_task(struct sim_world *world, struct sim_actor *actor)
{
    const struct mok_walk *walk = walk_of(world, actor);
    const struct mok_task *task = &actor->task;
    int32_t tile = task->row_tile, col = task->col_tile, place = place_of(walk, tile);
    int grad = task->kind == MOK_TASK_WGRAD || task->kind == MOK_TASK_WGRAD_ZERO;
    uint32_t stamp = stamp_of(actor->action, tile);
    sim_begin(world, actor, task_names[task->kind], grad ? task->expert : tile, grad ? task->matrix : col);
    switch (task->kind) {
    case MOK_TASK_GATE_UP:
        read_x(world, actor, tile);
        write_g_u(world, actor, tile, col);
        sim_write(world, actor, own(actor, SIM_RING_H, place, col, 0), stamp);
        break;
    case MOK_TASK_DOWN:
        read_all(world, actor, SIM_RING_H, place, walk->cols_first, stamp);
        if (walk->pushes_rows) {
            push_columns(world, actor, tile, col);
        } else {
            sim_write(world, actor, own(actor, SIM_RING_Y, place, col, 0), stamp);
        }
        break;
    case MOK_TASK_RECOMPUTE:
        read_x(world, actor, tile);
        write_g_u(world, actor, tile, col);
        break;
    case MOK_TASK_DGRAD_DOWN:
        touch_dgrad_down(world, actor, walk);
        break;
    case MOK_TASK_DGRAD_GATE_UP:
        read_all(world, actor, SIM_RING_DG, place, walk->cols_first, stamp);
        read_all(world, actor, SIM_RING_DU, place, walk->cols_first, stamp);
        sim_write(world, actor, own(actor, SIM_RING_DX, place, col, 0), stamp);
        break;
    case MOK_TASK_WGRAD:
        touch_wgrad(world, actor, walk);
        break;
    case MOK_TASK_WGRAD_ZERO:
        sim_write(world, actor, own(actor, SIM_GRAD, task->expert, grad_index(walk, task, walk->dims.inter), 0),
                  stamp_whole(actor->action));
        break;
    default:
        touch_shared_task(world, actor, walk);
        break;
    }
}
