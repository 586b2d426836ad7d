/*
 * Tile table: how wide the output tiles of each grouped GEMM are. Whatever changes bits (tile widths, K step) depends on H, I, the format and
 * the backend only. Tile height is MOK_TILE_ROWS for all row-wise GEMMs.
 */
#ifndef MOK_PLAN_TILE_H
#define MOK_PLAN_TILE_H

#include "plan/shape.h"

struct mok_tiles {
    int32_t gate_up;       /* I columns of a gate+up tile (it holds as many gate as up columns) */
    int32_t down;          /* H columns of a down tile */
    int32_t dgrad_down;    /* I columns of a tile of D (dgrad of down); one dw partial sum per such tile */
    int32_t dgrad_gate_up; /* H columns of a tile of E (dgrad of gate+up) */
    int32_t wgrad_out;     /* rows of a weight-gradient tile: I of dWg, dWu; H of dWd */
    int32_t wgrad_in;      /* columns of a weight-gradient tile: H of dWg, dWu; I of dWd */
};

/* CPU: wide tiles, so that a one-thread BLAS call runs at its best and converting weights to fp32 costs little beside it. */
MOK_HD struct mok_tiles mok_plan_tiles_cpu(const struct mok_dims *dims)
{
    struct mok_tiles tiles = {256, 512, 256, 512, 512, 512};
    (void)dims;
    return tiles;
}

/* Hopper: 128 x 256 tiles everywhere; gate+up holds 128 gate and 128 up columns. */
MOK_HD struct mok_tiles mok_plan_tiles_cuda(const struct mok_dims *dims)
{
    struct mok_tiles tiles = {128, 256, 256, 256, 128, 256};
    (void)dims;
    return tiles;
}

MOK_HD int32_t mok_plan_num_tiles(int32_t columns, int32_t tile) { return (columns + tile - 1) / tile; }

#endif
