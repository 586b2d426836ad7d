/*
 * Finishing a tile during the next one. At the end of a tile its sums are rounded and packed: 64 registers a thread, g and u side by side
 * for gate+up. The accumulators are then free for the next tile, and after each of its first steps, while the tensor cores work on it, one
 * piece of the tile before is made and stored. So the activation and the stores cost no time of their own, as long as there is a next tile.
 * A piece must take less time than a step (about 1,000 cycles), or the tensor cores run dry; arithmetic is about half as fast beside them.
 *
 *   store     pieces 0..7: 32 columns each
 *   gate+up   pieces 0..3: the panels of g and u, in kept rows; then 4..19: 8 columns of h each, written over g
 */
#ifndef MOK_CUDA_GEMM_FINISH_CUH
#define MOK_CUDA_GEMM_FINISH_CUH

#include "cuda/gemm/activation.cuh"
#include "cuda/gemm/gemm_store.cuh"

enum { MOK_PENDING_WORDS = 64 };

/* A warp's part of the tile that waits to be stored. */
struct mok_pending {
    uint32_t words[MOK_PENDING_WORDS]; /* panel p: words 16p .. 16p + 15; gate+up: panels 0, 1 are g (later h), panels 2, 3 are u */
    int32_t row;                       /* the warp's first row */
    int32_t rows;                      /* real rows of its 16; 0 = nothing is pending */
    int32_t col;
};

MOK_DEVICE void mok_cuda_set_pending(struct mok_pending *pending, const float *acc, const struct mok_gemm_tile *tile)
{
    int32_t first = (int32_t)mok_cuda_warp() * MOK_GEMM_WARP_ROWS;
#pragma unroll
    for (int p = 0; p < MOK_GEMM_COLS / MOK_PANEL_COLS; p++) {
        mok_cuda_pack_panel(acc + 32 * p, pending->words + MOK_PANEL_WORDS * p);
    }
    pending->row = tile->row + first;
    pending->rows = min(tile->rows - first, (int32_t)MOK_GEMM_WARP_ROWS);
    pending->col = tile->col;
}

/* Quarters first .. first+count-1 of panel `panel` of the words, into the buffer of this turn; the last one sends it to column `col` of
 * `out`. */
MOK_DEVICE void mok_cuda_finish_quarters(const struct mok_gemm_out *out, struct mok_panel_writer *writer, const struct mok_pending *pending,
                                         int panel, int first, int count, int32_t col)
{
    if (col >= out->cols) {
        return;
    }
    uint8_t *buffer = mok_cuda_panel_buffer(writer, first == 0);
#pragma unroll
    for (int quarter = first; quarter < first + count; quarter++) {
        mok_cuda_write_quarter(buffer, quarter, pending->words + MOK_PANEL_WORDS * panel + 4 * quarter);
    }
    if (first + count == 4) {
        mok_cuda_send_panel(writer, out, pending->row, pending->rows, col);
    }
}

/* 4 elements of h from two words of g and of u, written over g. */
MOK_DEVICE void mok_cuda_activate_words(const struct mok_gemm_activation *act, int clamps, uint32_t *g, const uint32_t *u)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        g[i] = mok_hw_pack_bf16(mok_cuda_activate(act, clamps, mok_cuda_bf16_low(g[i]), mok_cuda_bf16_low(u[i])),
                                mok_cuda_activate(act, clamps, mok_cuda_bf16_high(g[i]), mok_cuda_bf16_high(u[i])));
    }
}

/* Eighth `eighth` of panel `panel` of h; the second of a quarter writes it, the last one sends the panel. */
MOK_DEVICE void mok_cuda_finish_h(const struct mok_gemm_finish *finish, struct mok_panel_writer *writer, struct mok_pending *pending,
                                  int panel, int eighth)
{
    uint32_t *g = pending->words + MOK_PANEL_WORDS * panel + 2 * eighth, *u = g + 2 * MOK_PANEL_WORDS;
    if (finish->activation.clamps) {
        mok_cuda_activate_words(&finish->activation, 1, g, u);
    } else {
        mok_cuda_activate_words(&finish->activation, 0, g, u);
    }
    if (eighth % 2 == 1) {
        mok_cuda_finish_quarters(&finish->out[0], writer, pending, panel, eighth / 2, 1, pending->col + panel * MOK_PANEL_COLS);
    }
}

/* Piece `piece` (a constant) of the pending tile. */
template <typename TILE>
MOK_DEVICE void mok_cuda_finish_piece(const struct mok_gemm_finish *finish, struct mok_panel_writer *writer, struct mok_pending *pending,
                                      int piece)
{
    if (pending->rows <= 0) {
        return;
    }
    if (TILE::FINISH == MOK_FINISH_STORE) {
        mok_cuda_finish_quarters(&finish->out[0], writer, pending, piece / 2, piece % 2 * 2, 2, pending->col + piece / 2 * MOK_PANEL_COLS);
    } else if (piece >= 4 && finish->store_h) {
        mok_cuda_finish_h(finish, writer, pending, (piece - 4) / 8, (piece - 4) % 8);
    } else if (piece < 4 && pending->row < finish->keep_rows) {
        mok_cuda_finish_quarters(&finish->out[1 + piece / 2], writer, pending, piece, 0, 4, pending->col + piece % 2 * MOK_PANEL_COLS);
    }
}

/* All of it, when no next tile runs beside. */
template <typename TILE>
MOK_DEVICE void mok_cuda_flush_pending(const struct mok_gemm_finish *finish, struct mok_panel_writer *writer, struct mok_pending *pending)
{
#pragma unroll
    for (int piece = 0; piece < TILE::DEFERRED; piece++) {
        mok_cuda_finish_piece<TILE>(finish, writer, pending, piece);
    }
    pending->rows = 0;
}

#endif
