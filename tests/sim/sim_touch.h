/*
 * Which cells each piece of work reads and writes: what both halves of it share. Where a backend may touch less (a weight-gradient tile
 * reads some columns only), the whole row tile is taken: what is ordered for all columns is ordered for some.
 *
 * Stamps say what a cell holds: the action (+1) that made it, with the row tile it belongs to where places are reused.
 */
#ifndef MOK_SIM_TOUCH_H
#define MOK_SIM_TOUCH_H

#include "sim_world.h"

static inline uint32_t stamp_of(int32_t action, int32_t tile) { return ((uint32_t)action + 1) << 16 | (uint32_t)(tile + 1); }

/* The action alone: buffers that are filled once per action. */
static inline uint32_t stamp_whole(int32_t action) { return stamp_of(action, -1); }

static inline const struct mok_walk *walk_of(const struct sim_world *world, const struct sim_actor *actor)
{
    return &world->rank[actor->rank].walk;
}

static inline struct sim_cell_idx own(const struct sim_actor *actor, int32_t buffer, int32_t at0, int32_t at1, int32_t at2)
{
    return (struct sim_cell_idx){actor->rank, buffer, {at0, at1, at2}};
}

/* All cells [at0][at1][0 .. count) or, with count in the second index, [at0][0 .. count). */
static inline void read_all(struct sim_world *world, struct sim_actor *actor, int32_t buffer, int32_t at0, int32_t count, uint32_t stamp)
{
    for (int32_t i = 0; i < count; i++) {
        sim_read(world, actor, own(actor, buffer, at0, i, 0), stamp);
    }
}

static inline void read_all_kept(struct sim_world *world, struct sim_actor *actor, int32_t buffer, int32_t tile, int32_t count,
                                 uint32_t stamp)
{
    for (int32_t i = 0; i < count; i++) {
        sim_read(world, actor, own(actor, buffer, sim_action_of(world, actor)->saved, tile, i), stamp);
    }
}

static inline int32_t place_of(const struct mok_walk *walk, int32_t row_tile)
{
    return (int32_t)(mok_plan_ring_row(&walk->ring, (int64_t)row_tile * MOK_TILE_ROWS) / MOK_TILE_ROWS);
}

/* Do x, g, u of this row tile stand in the saved object? */
static inline int is_kept(const struct sim_world *world, const struct sim_actor *actor, int32_t row_tile)
{
    return sim_action_of(world, actor)->saved >= 0 && mok_walk_is_kept(walk_of(world, actor), row_tile);
}

#endif
