/*
 * Cells: the smallest pieces of memory that the simulator tells apart. One cell = one buffer x one place in it (a row tile and a column
 * tile or a part of a communication worker, a token, a slot ...). A cell knows who wrote it last, who has read it since, and a stamp that
 * says what was written, so that an ordered read of the wrong content is found too.
 */
#ifndef MOK_SIM_CELLS_H
#define MOK_SIM_CELLS_H

#include "sim_clock.h"

/* Comments: the indices of a cell. "part" = communication worker, "col" = column tile. Place = row tile of the ring. */
enum sim_buffer {
    /* peer-visible (plan/region.h) */
    SIM_OFFSET,  /* [half] */
    SIM_LIST,    /* [half][expert] */
    SIM_ROWS,    /* [token] */
    SIM_W,       /* [token] */
    SIM_SLOTS,   /* [slot] */
    SIM_SLOT_DW, /* [slot] */
    SIM_SAVED_X, /* [saved][token] */
    /* ring */
    SIM_RING_X,  /* [place][part] */
    SIM_RING_G,  /* [place][col] */
    SIM_RING_U,
    SIM_RING_H,
    SIM_RING_Y,
    SIM_RING_DY, /* [place][part] */
    SIM_RING_W,
    SIM_RING_DG, /* [place][col] */
    SIM_RING_DU,
    SIM_RING_WH,
    SIM_RING_DX,
    SIM_RING_DW, /* partial sums of dw, one per D tile */
    /* saved object */
    SIM_KEPT_X,   /* [saved][row tile][part] */
    SIM_KEPT_G,   /* [saved][row tile][col] */
    SIM_KEPT_U,
    SIM_KEPT_SHARED_G, /* [saved][token tile][col] */
    SIM_KEPT_SHARED_U,
    /* shared expert, [token tile][col] */
    SIM_SHARED_G,
    SIM_SHARED_U,
    SIM_SHARED_H,
    SIM_SHARED_Y,
    SIM_SHARED_DG,
    SIM_SHARED_DU,
    SIM_SHARED_WH,
    SIM_SHARED_DX,
    SIM_SHARED_DV,
    /* gradients */
    SIM_GRAD,        /* [expert][weight-gradient tile] */
    SIM_CARRY,       /* [scratch][weight-gradient tile] */
    SIM_SHARED_GRAD, /* [weight-gradient tile] */
    /* the rest of a rank */
    SIM_SCHEDULE, /* [schedule][worker that filled it] */
    SIM_COUNTERS, /* all counters of the pass: adding and looking count as reads, clearing as a write */
    SIM_NUM_BUFFERS
};

enum { SIM_ANY_STAMP = 0 };

enum sim_verdict {
    SIM_FINE,
    SIM_RACE,   /* not ordered with an earlier access */
    SIM_STALE,  /* ordered, but it is not what the reader expects */
    SIM_OUTSIDE /* no such cell */
};

struct sim_cell_idx {
    int32_t rank;
    int32_t buffer;
    int32_t at[3];
};

/* What an access ran into. */
struct sim_conflict {
    enum sim_verdict verdict;
    int32_t id; /* the other access; -1 = none */
    uint32_t tick;
    int32_t other_wrote;
    uint32_t stamp; /* SIM_STALE: the one found */
};

struct sim_cell {
    int32_t writer; /* clock id, -1 = never written */
    uint32_t written;
    uint32_t stamp;
    int32_t reader; /* the only reader since, -1 = none, -2 = several: row `many` has their ticks */
    uint32_t read;
    int32_t many;
};

struct sim_space {
    int64_t first;
    int32_t extent[3];
};

struct sim_cells {
    struct sim_space space[SIM_MAX_RANKS][SIM_NUM_BUFFERS];
    struct sim_cell *cell;
    int64_t num_cells, room;
    struct sim_clock *many;
    int32_t num_many, room_many;
};

/* Forgets all buffers. */
void sim_cells_reset(struct sim_cells *cells);
/* Makes the cells of a buffer, never written. */
void sim_cells_add(struct sim_cells *cells, int32_t rank, int32_t buffer, int32_t extent0, int32_t extent1, int32_t extent2);

/* One access by clock id `id`, whose clock is `clock`. stamp: written, or (reads) expected unless SIM_ANY_STAMP. */
struct sim_conflict sim_cells_read(struct sim_cells *cells, struct sim_cell_idx idx, int32_t id, const struct sim_clock *clock,
                                   uint32_t stamp);
struct sim_conflict sim_cells_write(struct sim_cells *cells, struct sim_cell_idx idx, int32_t id, const struct sim_clock *clock,
                                    uint32_t stamp);

const char *sim_buffer_name(int32_t buffer);

#endif
