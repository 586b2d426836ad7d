/*
 * Finishing a tile of the fused forward kernel during the next one (see gemm/gemm_finish.cuh), and announcing it once it is stored. A
 * multiplying warp does so for its 16 rows:
 *
 *   down      pieces 0, 2, 5, 7, 10, 12, 15, 17: 32 columns of y each, to the pusher (shared expert: to memory); piece 19: announced.
 *             Between two panels the pusher reads those that all eight warps have given it
 *   gate+up   pieces 0..3: the panels of g and u, in kept rows; 4..19: 8 columns of h each;       step 23: announced
 *
 * What lies between the last store and the announcement gives the stores time to land. When the queue is empty at the end of a tile nothing
 * may be held back, for the next tile may wait for this one: all pieces are then made at once.
 *
 *   a warp's stores landed -> fence.proxy.async -> count in shared memory (acq_rel) -> the eighth warp: release at the GPU
 */
#ifndef MOK_CUDA_FUSED_FORWARD_FINISH_CUH
#define MOK_CUDA_FUSED_FORWARD_FINISH_CUH

#include "cuda/fused/fused_counter.cuh"
#include "cuda/fused/fused_shared.cuh"
#include "cuda/gemm/gemm_finish.cuh"

enum {
    MOK_FUSED_DOWN_ANNOUNCED = 19,   /* piece */
    MOK_FUSED_MOST_LOOKS = 1 << 26, /* of a wait for the own CTA's pusher, each suspended for a while: more is a bug */
    MOK_FUSED_GATE_UP_ANNOUNCED = 23 /* step of the next tile, behind the last piece */
};

/* A warp's part of the tile that waits to be stored. */
struct mok_fused_pending {
    uint32_t words[MOK_PENDING_WORDS]; /* as in struct mok_pending */
    int32_t gemm;
    int32_t row, keep_row; /* the warp's first row */
    int32_t rows;          /* real rows of its 16; 0 or less = nothing to store */
    int32_t col;
    int32_t counter; /* word to count up; -1 = nothing to announce */
    uint32_t turn;   /* of the tile: its place in shared->finished */
};

/* rows: of the tile. acc NULL (a constant): this warpgroup has none of them. */
MOK_DEVICE void mok_fused_set_pending(struct mok_fused_pending *pending, const float *acc, const struct mok_fused_tile *tile)
{
    int32_t first = (int32_t)mok_cuda_warp() * MOK_GEMM_WARP_ROWS;
#pragma unroll
    for (int p = 0; p < MOK_GEMM_COLS / MOK_PANEL_COLS && acc != NULL; p++) {
        mok_cuda_pack_panel(acc + 32 * p, pending->words + MOK_PANEL_WORDS * p);
    }
    pending->gemm = tile->gemm;
    pending->row = tile->row + first;
    pending->keep_row = tile->keep_row < 0 ? -1 : tile->keep_row + first;
    pending->rows = acc == NULL ? 0 : min(tile->rows - first, (int32_t)MOK_GEMM_WARP_ROWS);
    pending->col = tile->col;
    pending->counter = tile->counter;
    pending->turn = (pending->turn + 1) % MOK_FUSED_TURNS;
}

/* The written panel goes to the pusher. */
MOK_DEVICE void mok_fused_give_panel(mok_fused_shared *shared, uint32_t warp, int32_t rows, int32_t col)
{
    struct mok_fused_sent *sent = &shared->sent[warp];
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        sent->rows = rows;
        sent->col = col;
        sent->num++;
    }
    __syncwarp(); /* all lanes read how many there are */
    if (MOK_LANES_ARRIVE || threadIdx.x % 32 == 0) {
        mok_hw_mbarrier_arrive_cta(&shared->panel_full[warp]);
    }
}

/* Whoever read the warp's buffer last is through: a store, or the pusher. */
MOK_DEVICE void mok_fused_wait_panel(mok_fused_shared *shared, uint32_t warp)
{
    uint32_t looks = 0, parity = (shared->sent[warp].num & 1) ^ 1; /* no clock: it would be code in every piece */
    mok_hw_bulk_wait_read_0();
    while (!mok_hw_mbarrier_try_wait_cta(&shared->panel_empty[warp], parity)) {
        if (++looks == MOK_FUSED_MOST_LOOKS) {
            mok_hw_raise_device_error();
        }
    }
    __syncwarp();
}

/* Quarters first .. first+count-1 of a packed panel, into the warp's one buffer; the last one sends it. */
MOK_DEVICE void mok_fused_finish_quarters(mok_fused_shared *shared, int pushes, const struct mok_gemm_out *out, const uint32_t *packed,
                                          int first, int count, int32_t row, int32_t rows, int32_t col)
{
    uint32_t warp = mok_cuda_warp();
    uint8_t *panel = shared->panel[warp];
    if (col >= out->cols) {
        return;
    }
    if (first == 0) {
        mok_fused_wait_panel(shared, warp);
    }
#pragma unroll
    for (int quarter = first; quarter < first + count; quarter++) {
        mok_cuda_write_quarter(panel, quarter, packed + 4 * quarter);
    }
    if (first + count == 4) {
        if (pushes) {
            mok_fused_give_panel(shared, warp, rows, col);
        } else {
            mok_cuda_store_panel(out, panel, row, rows, col);
        }
    }
}

/* Eighth `eighth` of panel `panel` of h, written over g; the second of a quarter stores it. */
MOK_DEVICE void mok_fused_finish_h(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pending *pending,
                                   int panel, int eighth)
{
    uint32_t *packed = pending->words + MOK_PANEL_WORDS * panel, *g = packed + 2 * eighth, *u = g + 2 * MOK_PANEL_WORDS;
    mok_cuda_activate_words(&args->activation, 1, g, u); /* without a limit it is infinite: the same bits, half the code */
    if (eighth % 2 == 1) {
        mok_fused_finish_quarters(shared, 0, &args->gemm[pending->gemm].out[0], packed, eighth / 2, 1, pending->row, pending->rows,
                                  pending->col + panel * MOK_PANEL_COLS);
    }
}

/* All parts of the tile that this warp has are stored and landed: says so, once. */
MOK_DEVICE void mok_fused_announce_tile(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pending *pending)
{
    if (pending->counter < 0) {
        return;
    }
    if (!mok_fused_pushes(pending->gemm)) {
        mok_hw_bulk_wait_0();
        mok_hw_fence_async();
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        uint32_t before = mok_hw_count_acq_rel_cta(&shared->finished[pending->turn], MOK_FUSED_MULTIPLY_WARPS - 1);
        if (before == MOK_FUSED_MULTIPLY_WARPS - 1) {
            mok_fused_announce(args, pending->counter);
        }
    }
    pending->counter = -1;
}

/* Piece `piece` (a constant, 0 .. TILE::DEFERRED - 1). */
MOK_DEVICE void mok_fused_finish_piece(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pending *pending,
                                       int piece)
{
    int is_down = pending->gemm == MOK_FUSED_DOWN || pending->gemm == MOK_FUSED_SHARED_DOWN;
    if (is_down && piece == MOK_FUSED_DOWN_ANNOUNCED) {
        mok_fused_announce_tile(args, shared, pending);
    }
    if (pending->rows <= 0) {
        return;
    }
    const struct mok_gemm_out *out = args->gemm[pending->gemm].out;
    if (is_down) {
        if (piece % 5 == 0 || piece % 5 == 2) {
            mok_fused_finish_quarters(shared, mok_fused_pushes(pending->gemm), out, pending->words + piece / 5 * MOK_PANEL_WORDS, piece % 5, 2,
                                      pending->row, pending->rows, pending->col + piece / 5 * MOK_PANEL_COLS);
        }
    } else if (piece >= 4) {
        mok_fused_finish_h(args, shared, pending, (piece - 4) / 8, (piece - 4) % 8);
    } else if (pending->keep_row >= 0) {
        mok_fused_finish_quarters(shared, 0, &out[1 + piece / 2], pending->words + piece * MOK_PANEL_WORDS, 0, 4, pending->keep_row,
                                  pending->rows, pending->col + piece % 2 * MOK_PANEL_COLS);
    }
}

#endif
