/*
 * Access history of cells. As long as reads of a cell are ordered among themselves one of them stands for all; concurrent readers get a
 * clock row.
 */
#include "sim_cells.h"

#include <stdlib.h>

static void *grow(void *memory, size_t bytes)
{
    void *grown = realloc(memory, bytes);
    if (!grown) {
        abort();
    }
    return grown;
}

void sim_cells_reset(struct sim_cells *cells)
{
    memset(cells->space, 0, sizeof cells->space);
    cells->num_cells = 0;
    cells->num_many = 0;
}

void sim_cells_add(struct sim_cells *cells, int32_t rank, int32_t buffer, int32_t extent0, int32_t extent1, int32_t extent2)
{
    struct sim_space *space = &cells->space[rank][buffer];
    *space = (struct sim_space){cells->num_cells, {extent0, extent1, extent2}};
    int64_t count = (int64_t)extent0 * extent1 * extent2;
    if (cells->num_cells + count > cells->room) {
        cells->room = 2 * (cells->num_cells + count);
        cells->cell = grow(cells->cell, (size_t)cells->room * sizeof *cells->cell);
    }
    for (int64_t i = cells->num_cells; i < cells->num_cells + count; i++) {
        cells->cell[i] = (struct sim_cell){.writer = -1, .reader = -1, .many = -1};
    }
    cells->num_cells += count;
}

static struct sim_cell *find(struct sim_cells *cells, struct sim_cell_idx idx)
{
    const struct sim_space *space = &cells->space[idx.rank][idx.buffer];
    for (int i = 0; i < 3; i++) {
        if (idx.at[i] < 0 || idx.at[i] >= space->extent[i]) {
            return NULL;
        }
    }
    return cells->cell + space->first + ((int64_t)idx.at[0] * space->extent[1] + idx.at[1]) * space->extent[2] + idx.at[2];
}

static struct sim_conflict no_conflict(void) { return (struct sim_conflict){SIM_FINE, -1, 0, 0, 0}; }

/* Ordered behind the last write? */
static int is_behind_write(const struct sim_cell *cell, const struct sim_clock *clock)
{
    return cell->writer < 0 || cell->written <= clock->at[cell->writer];
}

static struct sim_conflict race_with_write(const struct sim_cell *cell)
{
    return (struct sim_conflict){SIM_RACE, cell->writer, cell->written, 1, 0};
}

/* Adds a reader: alone as long as the reader before it is ordered before it. */
static void note_read(struct sim_cells *cells, struct sim_cell *cell, int32_t id, const struct sim_clock *clock)
{
    if (cell->reader == -1 || (cell->reader >= 0 && cell->read <= clock->at[cell->reader])) {
        cell->reader = id;
        cell->read = clock->at[id];
        return;
    }
    if (cell->many < 0) {
        if (cells->num_many == cells->room_many) {
            cells->room_many = cells->room_many ? 2 * cells->room_many : 256;
            cells->many = grow(cells->many, (size_t)cells->room_many * sizeof *cells->many);
        }
        cell->many = cells->num_many++;
    }
    struct sim_clock *row = cells->many + cell->many;
    if (cell->reader >= 0) {
        sim_clock_clear(row);
        row->at[cell->reader] = cell->read;
        cell->reader = -2;
    }
    row->at[id] = clock->at[id];
}

struct sim_conflict sim_cells_read(struct sim_cells *cells, struct sim_cell_idx idx, int32_t id, const struct sim_clock *clock,
                                   uint32_t stamp)
{
    struct sim_cell *cell = find(cells, idx);
    if (!cell) {
        return (struct sim_conflict){SIM_OUTSIDE, -1, 0, 0, 0};
    }
    if (!is_behind_write(cell, clock)) {
        return race_with_write(cell);
    }
    if (stamp != SIM_ANY_STAMP && cell->stamp != stamp) {
        return (struct sim_conflict){SIM_STALE, cell->writer, cell->written, 1, cell->stamp};
    }
    note_read(cells, cell, id, clock);
    return no_conflict();
}

struct sim_conflict sim_cells_write(struct sim_cells *cells, struct sim_cell_idx idx, int32_t id, const struct sim_clock *clock,
                                    uint32_t stamp)
{
    struct sim_cell *cell = find(cells, idx);
    if (!cell) {
        return (struct sim_conflict){SIM_OUTSIDE, -1, 0, 0, 0};
    }
    if (!is_behind_write(cell, clock)) {
        return race_with_write(cell);
    }
    if (cell->reader >= 0 && cell->read > clock->at[cell->reader]) {
        return (struct sim_conflict){SIM_RACE, cell->reader, cell->read, 0, 0};
    }
    for (int32_t other = 0; cell->reader == -2 && other < SIM_MAX_IDS; other++) {
        if (cells->many[cell->many].at[other] > clock->at[other]) {
            return (struct sim_conflict){SIM_RACE, other, cells->many[cell->many].at[other], 0, 0};
        }
    }
    cell->writer = id;
    cell->written = clock->at[id];
    cell->stamp = stamp;
    cell->reader = -1;
    return no_conflict();
}

const char *sim_buffer_name(int32_t buffer)
{
    static const char *const names[SIM_NUM_BUFFERS] = {
        [SIM_OFFSET] = "offsets [half]",
        [SIM_LIST] = "list [half][expert]",
        [SIM_ROWS] = "published rows [token]",
        [SIM_W] = "published w [token]",
        [SIM_SLOTS] = "slots [slot]",
        [SIM_SLOT_DW] = "slot dw [slot]",
        [SIM_SAVED_X] = "saved x [saved][token]",
        [SIM_RING_X] = "ring x [place][part]",
        [SIM_RING_G] = "ring g [place][col]",
        [SIM_RING_U] = "ring u [place][col]",
        [SIM_RING_H] = "ring h [place][col]",
        [SIM_RING_Y] = "ring y [place][col]",
        [SIM_RING_DY] = "ring dy [place][part]",
        [SIM_RING_W] = "ring w [place][part]",
        [SIM_RING_DG] = "ring dg [place][col]",
        [SIM_RING_DU] = "ring du [place][col]",
        [SIM_RING_WH] = "ring w*h [place][col]",
        [SIM_RING_DX] = "ring dx [place][col]",
        [SIM_RING_DW] = "ring partial dw [place][col]",
        [SIM_KEPT_X] = "kept x [saved][row tile][part]",
        [SIM_KEPT_G] = "kept g [saved][row tile][col]",
        [SIM_KEPT_U] = "kept u [saved][row tile][col]",
        [SIM_KEPT_SHARED_G] = "kept shared g [saved][token tile][col]",
        [SIM_KEPT_SHARED_U] = "kept shared u [saved][token tile][col]",
        [SIM_SHARED_G] = "shared g [token tile][col]",
        [SIM_SHARED_U] = "shared u [token tile][col]",
        [SIM_SHARED_H] = "shared h [token tile][col]",
        [SIM_SHARED_Y] = "shared y [token tile][col]",
        [SIM_SHARED_DG] = "shared dg [token tile][col]",
        [SIM_SHARED_DU] = "shared du [token tile][col]",
        [SIM_SHARED_WH] = "shared v*h [token tile][col]",
        [SIM_SHARED_DX] = "shared dx [token tile][col]",
        [SIM_SHARED_DV] = "shared partial dv [token tile][col]",
        [SIM_GRAD] = "gradient [expert][tile]",
        [SIM_CARRY] = "carry [scratch][tile]",
        [SIM_SHARED_GRAD] = "shared gradient [tile]",
        [SIM_SCHEDULE] = "schedule [schedule][worker]",
        [SIM_COUNTERS] = "counters of the pass",
    };
    return names[buffer];
}
