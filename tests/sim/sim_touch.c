/*
 * Which cells are read and written when lists, rows and results move. Tasks: sim_touch_task.c.
 */
#include "sim_touch.h"

/* ---- making the buffers ---------------------------------------------------------------------------------------------------------- */

static int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }

/* Column tiles of routed and shared rows: the widest of both directions. */
static int32_t widest(const struct sim_plan *plan)
{
    const struct mok_tiles *tiles = &plan->tiles;
    int32_t inter = most(plan->dims.inter, plan->dims.shared_inter);
    int32_t columns = most(mok_plan_num_tiles(inter, tiles->gate_up), mok_plan_num_tiles(inter, tiles->dgrad_down));
    columns = most(columns, mok_plan_num_tiles(plan->dims.hidden, tiles->down));
    return most(columns, mok_plan_num_tiles(plan->dims.hidden, tiles->dgrad_gate_up));
}

static int32_t grad_tiles(const struct sim_plan *plan, int32_t inter)
{
    return 2 * mok_plan_num_tiles(inter, plan->tiles.wgrad_out) * mok_plan_num_tiles(plan->dims.hidden, plan->tiles.wgrad_in) +
           mok_plan_num_tiles(plan->dims.hidden, plan->tiles.wgrad_out) * mok_plan_num_tiles(inter, plan->tiles.wgrad_in);
}

static void make_peer_visible(struct sim_world *world, int32_t r)
{
    const struct mok_dims *dims = &world->plan->dims;
    int32_t tokens = (int32_t)dims->max_tokens;
    sim_cells_add(&world->cells, r, SIM_OFFSET, 2, 1, 1);
    sim_cells_add(&world->cells, r, SIM_LIST, 2, dims->num_experts, 1);
    sim_cells_add(&world->cells, r, SIM_ROWS, tokens, 1, 1);
    sim_cells_add(&world->cells, r, SIM_W, tokens, 1, 1);
    sim_cells_add(&world->cells, r, SIM_SLOTS, tokens * dims->top_k, widest(world->plan), 1);
    sim_cells_add(&world->cells, r, SIM_SLOT_DW, tokens * dims->top_k, 1, 1);
    sim_cells_add(&world->cells, r, SIM_SAVED_X, world->plan->num_saved, tokens, 1);
}

static void make_local(struct sim_world *world, int32_t r)
{
    const struct sim_plan *plan = world->plan;
    struct sim_cells *cells = &world->cells;
    const struct mok_limits *limits = world->rank[r].limits;
    int32_t places = (int32_t)(mok_max64(mok_plan_ring_rows(&plan->ring[r][0]), mok_plan_ring_rows(&plan->ring[r][1])) / MOK_TILE_ROWS);
    int32_t tiles = (int32_t)mok_min64(plan->ring[r][0].keep_rows / MOK_TILE_ROWS, limits->max_tiles);
    int32_t token_tiles = (int32_t)limits->max_token_tiles;
    int32_t columns = widest(plan), parts = plan->num_comm[r], local = mok_plan_num_local(plan->dims.num_experts, plan->dims.num_ranks, r);
    for (int32_t buffer = SIM_RING_X; buffer <= SIM_RING_DW; buffer++) {
        int by_part = buffer == SIM_RING_X || buffer == SIM_RING_DY || buffer == SIM_RING_W;
        sim_cells_add(cells, r, buffer, places, by_part ? parts : columns, 1);
    }
    for (int32_t buffer = SIM_KEPT_X; buffer <= SIM_KEPT_U; buffer++) {
        sim_cells_add(cells, r, buffer, plan->num_saved, tiles, buffer == SIM_KEPT_X ? parts : columns);
    }
    for (int32_t buffer = SIM_KEPT_SHARED_G; buffer <= SIM_KEPT_SHARED_U; buffer++) {
        sim_cells_add(cells, r, buffer, plan->num_saved, token_tiles, columns);
    }
    for (int32_t buffer = SIM_SHARED_G; buffer <= SIM_SHARED_DV; buffer++) {
        sim_cells_add(cells, r, buffer, token_tiles, columns, 1);
    }
    sim_cells_add(cells, r, SIM_GRAD, local, grad_tiles(plan, plan->dims.inter), 1);
    sim_cells_add(cells, r, SIM_CARRY, 2, grad_tiles(plan, plan->dims.inter), 1);
    sim_cells_add(cells, r, SIM_SHARED_GRAD, grad_tiles(plan, plan->dims.shared_inter), 1, 1);
    sim_cells_add(cells, r, SIM_SCHEDULE, plan->num_schedules, world->rank[r].num_workers, 1);
    sim_cells_add(cells, r, SIM_COUNTERS, 1, 1, 1);
}

void sim_touch_make(struct sim_world *world)
{
    for (int32_t r = 0; r < world->plan->dims.num_ranks; r++) {
        make_peer_visible(world, r);
        make_local(world, r);
    }
}

/* ---- counters and schedules ---------------------------------------------------------------------------------------------------------- */

void sim_touch_counters(struct sim_world *world, struct sim_actor *actor)
{
    if (actor->is_sealed) {
        sim_begin(world, actor, "counters", 0, 0);
    }
    sim_read(world, actor, own(actor, SIM_COUNTERS, 0, 0, 0), SIM_ANY_STAMP);
}

void sim_touch_clear(struct sim_world *world, struct sim_actor *actor)
{
    sim_write(world, actor, own(actor, SIM_COUNTERS, 0, 0, 0), stamp_whole(actor->action));
}

static int32_t half_of(const struct sim_world *world, const struct sim_actor *actor)
{
    return world->broken == SIM_HALVES ? 0 : (int32_t)(world->rank[actor->rank].epoch[SIM_BARRIER_SCHED] & 1);
}

void sim_touch_write_lists(struct sim_world *world, struct sim_actor *actor)
{
    int32_t half = half_of(world, actor), workers = world->rank[actor->rank].num_workers;
    for (int32_t e = actor->worker; e < world->plan->dims.num_experts; e += workers) {
        sim_write(world, actor, own(actor, SIM_LIST, half, e, 0), stamp_whole(actor->action));
    }
    if (actor->worker == 0) {
        sim_write(world, actor, own(actor, SIM_OFFSET, half, 0, 0), stamp_whole(actor->action));
    }
}

void sim_touch_read_lists(struct sim_world *world, struct sim_actor *actor)
{
    const struct mok_dims *dims = &world->plan->dims;
    int32_t half = half_of(world, actor), first = mok_plan_first_expert(dims->num_experts, dims->num_ranks, actor->rank);
    int32_t local = mok_plan_num_local(dims->num_experts, dims->num_ranks, actor->rank);
    for (int32_t s = 0; s < dims->num_ranks; s++) {
        sim_read(world, actor, (struct sim_cell_idx){s, SIM_OFFSET, {half, 0, 0}}, stamp_whole(actor->action));
        for (int32_t e = actor->worker; e < local; e += world->rank[actor->rank].num_workers) {
            sim_read(world, actor, (struct sim_cell_idx){s, SIM_LIST, {half, first + e, 0}}, stamp_whole(actor->action));
        }
    }
    sim_write(world, actor, own(actor, SIM_SCHEDULE, sim_action_of(world, actor)->schedule, actor->worker, 0),
              (uint32_t)sim_action_of(world, actor)->build + 1);
}

void sim_touch_schedule(struct sim_world *world, struct sim_actor *actor)
{
    const struct sim_action *action = sim_action_of(world, actor);
    read_all(world, actor, SIM_SCHEDULE, action->schedule, world->rank[actor->rank].num_workers, (uint32_t)action->build + 1);
}

/* ---- rows that move ------------------------------------------------------------------------------------------------------------------ */

/* Tokens [first, end) are this worker's share of publishing and summing. */
static void share_tokens(const struct sim_world *world, const struct sim_actor *actor, int32_t *first_out, int32_t *end_out)
{
    int32_t tokens = sim_build_of(world, actor)->num_tokens, workers = world->rank[actor->rank].num_workers;
    *first_out = tokens * actor->worker / workers;
    *end_out = tokens * (actor->worker + 1) / workers;
}

void sim_touch_publish(struct sim_world *world, struct sim_actor *actor)
{
    const struct sim_action *action = sim_action_of(world, actor);
    int32_t first, end;
    share_tokens(world, actor, &first, &end);
    for (int32_t token = first; token < end; token++) {
        int x_is_saved = action->kind == SIM_FORWARD && action->saved >= 0;
        struct sim_cell_idx rows = own(actor, SIM_ROWS, token, 0, 0), saved = own(actor, SIM_SAVED_X, action->saved, token, 0);
        sim_write(world, actor, x_is_saved ? saved : rows, stamp_whole(actor->action));
        if (action->kind == SIM_BACKWARD) {
            sim_write(world, actor, own(actor, SIM_W, token, 0, 0), stamp_whole(actor->action));
        }
    }
}

int sim_touch_has_part(const struct sim_world *world, const struct sim_actor *actor, int32_t row_tile)
{
    return !world->plan->split_by_tile || row_tile % world->plan->num_comm[actor->rank] == actor->worker;
}

/* The next row at or behind `row` that this worker moves; -1 behind the last of the tile. */
static int32_t next_row(const struct sim_world *world, const struct sim_actor *actor, int32_t row_tile, int32_t row)
{
    const struct mok_route *routes = walk_of(world, actor)->schedule.routes;
    for (; row < (row_tile + 1) * MOK_TILE_ROWS; row++) {
        int mine = world->plan->split_by_tile || row % world->plan->num_comm[actor->rank] == actor->worker;
        if (mine && routes[row].rank >= 0) {
            return row;
        }
    }
    return -1;
}

/* The worker's part of a row tile: all parts, when tiles are not shared. */
static void write_parts(struct sim_world *world, struct sim_actor *actor, int32_t buffer, int32_t at0, int32_t row_tile)
{
    uint32_t stamp = stamp_of(actor->action, row_tile);
    for (int32_t part = 0; part < world->plan->num_comm[actor->rank]; part++) {
        if (world->plan->split_by_tile || part == actor->worker) {
            int kept = buffer == SIM_KEPT_X;
            sim_write(world, actor, own(actor, buffer, at0, kept ? row_tile : part, kept ? part : 0), stamp);
        }
    }
}

void sim_touch_pull(struct sim_world *world, struct sim_actor *actor, int32_t row_tile)
{
    const struct sim_action *action = sim_action_of(world, actor);
    const struct mok_walk *walk = walk_of(world, actor);
    int kept = is_kept(world, actor, row_tile);
    int32_t row = next_row(world, actor, row_tile, row_tile * MOK_TILE_ROWS);
    for (; row >= 0; row = next_row(world, actor, row_tile, row + 1)) {
        struct mok_route route = walk->schedule.routes[row];
        int32_t token = route.slot / walk->dims.top_k;
        struct sim_cell_idx rows = {route.rank, SIM_ROWS, {token, 0, 0}}, saved = {route.rank, SIM_SAVED_X, {action->saved, token, 0}};
        if (walk->backward) {
            sim_read(world, actor, rows, stamp_whole(actor->action));
            sim_read(world, actor, (struct sim_cell_idx){route.rank, SIM_W, {token, 0, 0}}, stamp_whole(actor->action));
            if (!kept) {
                sim_read(world, actor, saved, stamp_whole(action->forward));
            }
        } else {
            sim_read(world, actor, action->saved >= 0 ? saved : rows, stamp_whole(actor->action));
        }
    }
    if (walk->backward) {
        write_parts(world, actor, SIM_RING_DY, place_of(walk, row_tile), row_tile);
        write_parts(world, actor, SIM_RING_W, place_of(walk, row_tile), row_tile);
    }
    if (!kept) {
        write_parts(world, actor, SIM_RING_X, place_of(walk, row_tile), row_tile);
    } else if (!walk->backward) {
        write_parts(world, actor, SIM_KEPT_X, action->saved, row_tile);
    }
}

void sim_touch_push(struct sim_world *world, struct sim_actor *actor, int32_t row_tile)
{
    const struct mok_walk *walk = walk_of(world, actor);
    int32_t place = place_of(walk, row_tile);
    read_all(world, actor, walk->backward ? SIM_RING_DX : SIM_RING_Y, place, walk->cols_second, stamp_of(actor->action, row_tile));
    if (walk->backward) {
        read_all(world, actor, SIM_RING_DW, place, walk->cols_first, stamp_of(actor->action, row_tile));
    }
    int32_t row = next_row(world, actor, row_tile, row_tile * MOK_TILE_ROWS);
    for (; row >= 0; row = next_row(world, actor, row_tile, row + 1)) {
        struct mok_route route = walk->schedule.routes[row];
        for (int32_t col = 0; col < walk->cols_second; col++) {
            sim_write(world, actor, (struct sim_cell_idx){route.rank, SIM_SLOTS, {route.slot, col, 0}}, stamp_whole(actor->action));
        }
        if (walk->backward) {
            sim_write(world, actor, (struct sim_cell_idx){route.rank, SIM_SLOT_DW, {route.slot, 0, 0}}, stamp_whole(actor->action));
        }
    }
}

void sim_touch_sum(struct sim_world *world, struct sim_actor *actor)
{
    const struct mok_walk *walk = walk_of(world, actor);
    int32_t first, end, k = walk->dims.top_k;
    share_tokens(world, actor, &first, &end);
    for (int32_t slot = first * k; slot < end * k; slot++) {
        if (walk->schedule.ids[slot] >= 0) {
            read_all(world, actor, SIM_SLOTS, slot, walk->cols_second, stamp_whole(actor->action));
            if (walk->backward) {
                sim_read(world, actor, own(actor, SIM_SLOT_DW, slot, 0, 0), stamp_whole(actor->action));
            }
        }
    }
    for (int32_t tile = first / MOK_TILE_ROWS; walk->token_tiles > 0 && first < end && tile * MOK_TILE_ROWS < end; tile++) {
        read_all(world, actor, walk->backward ? SIM_SHARED_DX : SIM_SHARED_Y, tile, walk->shared_second, stamp_of(actor->action, tile));
        if (walk->backward) {
            read_all(world, actor, SIM_SHARED_DV, tile, walk->shared_first, stamp_of(actor->action, tile));
        }
    }
}
