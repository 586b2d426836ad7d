/*
 * Finishing a tile during the next one. At the end of a tile its sums are rounded and packed: 64 registers a thread, g and u side by side for gate+up.
 * The accumulators are then free for the next tile, and after each of its first steps, while the tensor cores work on it, one piece of the tile
 * before is made and stored. So the activation and the stores cost no time of their own, as long as there is a next tile. A piece must take less
 * time than a step (about 1,000 cycles), or the tensor cores run dry; arithmetic is about half as fast beside them.
 *
 *   store     piece p = 0..3: panel p (64 columns)
 *   gate+up   pieces 0..7: 16 columns of h each; 8, 9: panels of g; 10, 11: panels of u
 */
#ifndef MOK_CUDA_GEMM_FINISH_CUH
#define MOK_CUDA_GEMM_FINISH_CUH

#include "cuda/activation.cuh"
#include "cuda/gemm_store.cuh"

enum { MOK_PENDING_WORDS = 64 };

/* A warp's part of the tile that waits to be stored. */
struct mok_pending {
    uint32_t words[MOK_PENDING_WORDS]; /* panel p: words 16p .. 16p + 15; gate+up: panels 0, 1 are g, panels 2, 3 are u */
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

/* 8 elements of h from packed g and u. */
MOK_DEVICE void mok_cuda_activate_quarter(const struct mok_gemm_activation *act, int clamps, const uint32_t *g, const uint32_t *u, uint32_t *h_out)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        h_out[i] = mok_hw_pack_bf16(mok_cuda_activate(act, clamps, mok_cuda_bf16_low(g[i]), mok_cuda_bf16_low(u[i])),
                                    mok_cuda_activate(act, clamps, mok_cuda_bf16_high(g[i]), mok_cuda_bf16_high(u[i])));
    }
}

/* Quarter `quarter` of panel `panel` of h; the last one sends the panel. */
MOK_DEVICE void mok_cuda_finish_h_quarter(const struct mok_gemm_finish *finish, struct mok_panel_writer *writer, const struct mok_pending *pending,
                                          int panel, int quarter)
{
    const uint32_t *g = pending->words + MOK_PANEL_WORDS * panel + 4 * quarter, *u = g + 2 * MOK_PANEL_WORDS;
    int32_t col = pending->col + panel * MOK_PANEL_COLS;
    uint32_t h[4];
    if (!finish->store_h || col >= finish->out[0].cols) {
        return;
    }
    if (finish->activation.clamps) {
        mok_cuda_activate_quarter(&finish->activation, 1, g, u, h);
    } else {
        mok_cuda_activate_quarter(&finish->activation, 0, g, u, h);
    }
    mok_cuda_write_quarter(mok_cuda_panel_buffer(writer, quarter == 0), quarter, h);
    if (quarter == 3) {
        mok_cuda_send_panel(writer, &finish->out[0], pending->row, pending->rows, col);
    }
}

/* A panel of words as they are. */
MOK_DEVICE void mok_cuda_finish_words(const struct mok_gemm_out *out, struct mok_panel_writer *writer, const struct mok_pending *pending,
                                      const uint32_t *words, int32_t col)
{
    if (col < out->cols) {
        mok_cuda_store_panel(writer, out, words, pending->row, pending->rows, col);
    }
}

/* Piece `piece` (a constant) of the pending tile. */
template <typename TILE>
MOK_DEVICE void mok_cuda_finish_piece(const struct mok_gemm_finish *finish, struct mok_panel_writer *writer, const struct mok_pending *pending, int piece)
{
    if (pending->rows <= 0) {
        return;
    }
    if (TILE::FINISH == MOK_FINISH_STORE) {
        mok_cuda_finish_words(&finish->out[0], writer, pending, pending->words + piece * MOK_PANEL_WORDS, pending->col + piece * MOK_PANEL_COLS);
    } else if (piece < 8) {
        mok_cuda_finish_h_quarter(finish, writer, pending, piece / 4, piece % 4);
    } else if (pending->row < finish->keep_rows) {
        mok_cuda_finish_words(&finish->out[piece < 10 ? 1 : 2], writer, pending, pending->words + (piece - 8) * MOK_PANEL_WORDS,
                              pending->col + piece % 2 * MOK_PANEL_COLS);
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
