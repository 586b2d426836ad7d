/*
 * What a built schedule is, for the rank that owns the rows. Both backends fill the same arrays (the CUDA backend's equal the CPU's bit for bit),
 * in local memory; the walk and every kernel read them.
 */
#ifndef MOK_PLAN_SCHEDULE_H
#define MOK_PLAN_SCHEDULE_H

#include "plan/rows.h"

/* The counts, alone in memory because the host never sees them. */
struct mok_schedule_head {
    int32_t num_rows;   /* padded rows of this rank, a multiple of MOK_TILE_ROWS */
    int32_t num_tiles;  /* num_rows / MOK_TILE_ROWS */
    int32_t num_active; /* local experts with rows */
    int32_t num_tokens; /* T of this rank as a source */
    uint32_t bad_ids;   /* ids outside [-1, E), over all ranks */
    uint32_t build;     /* which build of the group this is, from 1: builds are collective, so the same on all ranks; 0 = not complete */
};

struct mok_schedule_view {
    const struct mok_schedule_head *head; /* [1] */
    const int32_t *expert_rows;           /* [El] rows of each local expert, without padding */
    const int32_t *expert_first;          /* [El + 1] first padded row; expert_first[El] = num_rows */
    const int32_t *tile_expert;           /* [num_tiles] local expert of a row tile */
    const int32_t *active;                /* [El] local experts with rows, ascending, then those without, ascending */
    const int32_t *ordinal;               /* [El] place of a local expert in active */
    const struct mok_route *routes;       /* [num_rows] where each row came from; rank -1 = padding */
    const int32_t *ids;                   /* [T, K] own ids, copied, bad ones made -1: which slots the final sum reads */
};

#endif
