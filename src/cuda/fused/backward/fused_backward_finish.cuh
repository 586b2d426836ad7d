/*
 * What becomes of the sums of a tile in a backward pass, warp by warp, 16 rows each.
 *
 *   recompute, E     rounded and packed; the first panel is stored at once, because registers are short, the others during the next tile:
 *                    32 columns a step (panels: g g u u, or dx)
 *   D                at once, through four more operand stages (gemm/gemm_dgrad_down.cuh); the last of them is released beside the next tile's
 *                    second step, when the stores have read it
 *   weight gradient  at once, panel by panel through the warp's buffer; starting values come in through operand stages
 *                    (gemm/gemm_wgrad.cuh). Where the next tile is a weight gradient, too, its starting values take the registers of each
 *                    panel as it leaves, so that the stages they stand in are free for its first steps before the last panel is stored
 *
 * What leaves by the copy engine is given to it by an elected lane, whose addresses come from uniform registers (hw/sync.cuh): behind a comparison of thread
 * numbers each store is a loop of 17 dependent instructions, and a weight gradient has 16 stores. Whether stores have been read, or have landed, is
 * asked by all lanes: it holds up the one they belong to, whichever that is.
 *
 * A tile is announced by a warp of its own (warp 11), because a release at the scope of the GPU takes a microsecond that multiplying warps do
 * not have. They say that their stores have landed many steps into the next tile, when they need not wait for it any more; and at once when
 * the queue is empty at the end of a tile, for the next tile may wait for this one.
 *
 *   a warp's stores landed -> arrive stored[turn] (8 warps) -> warp 11: fence.proxy.async, release at the GPU -> arrive told
 *   told: warp 0 waits for it with tile n - 1 before it says that tile n is stored, and, while it holds tile n, before it takes tile n + 1;
 *         so a tile's place is written anew only when it has been announced, and no phase of the barrier passes unseen
 */
#ifndef MOK_CUDA_FUSED_BACKWARD_FINISH_CUH
#define MOK_CUDA_FUSED_BACKWARD_FINISH_CUH

#include "cuda/fused/backward/fused_backward_args.h"
#include "cuda/fused/backward/fused_backward_walk.h"
#include "cuda/fused/fused_counter.cuh"
#include "cuda/fused/fused_shared.cuh"
#include "cuda/gemm/gemm_dgrad_down.cuh"
#include "cuda/gemm/gemm_finish.cuh"
#include "cuda/gemm/gemm_wgrad.cuh"

enum {
    MOK_FUSED_HELD_PANELS = MOK_GEMM_COLS / MOK_PANEL_COLS - 1,
    MOK_FUSED_OPEN_CHUNK = 2, /* of is_open */
    MOK_FUSED_BACKWARD_LANDED = 20 /* step of the next tile at which stores have landed */
};

/* A warp's part of the tile that waits to be stored and announced. What else there is to know stands in the tile. */
struct mok_fused_held {
    uint32_t words[MOK_FUSED_HELD_PANELS * MOK_PANEL_WORDS]; /* of panels 1, 2, 3 */
    int32_t rows;    /* real rows of the warp's 16; 0 or less = nothing to store */
    int32_t is_open; /* 1: it waits to be announced; MOK_FUSED_OPEN_CHUNK: and the stage of its last chunk waits to be released */
    uint32_t turn;   /* of the tile: its place in shared->back */
};

/* The words get values, so that they hold no registers till then. */
MOK_DEVICE void mok_fused_forget_words(struct mok_fused_held *held)
{
#pragma unroll
    for (int i = 0; i < MOK_FUSED_HELD_PANELS * MOK_PANEL_WORDS; i++) {
        held->words[i] = 0;
    }
}

/* The tile waits to be announced; of its sums nothing is left to be stored. */
MOK_DEVICE void mok_fused_hold_tile(struct mok_fused_held *held)
{
    held->rows = 0;
    held->is_open = 1;
    held->turn = (held->turn + 1) % MOK_FUSED_TURNS;
}

/* Half `half` (32 columns) of panel `panel` of the tile, into the warp's buffer; the second half sends it. rows: real ones of the warp. */
MOK_DEVICE void mok_fused_store_half(const struct mok_fused_backward_args *args, mok_fused_shared *shared,
                                     const struct mok_fused_backward_tile *tile, const uint32_t *packed, int32_t panel, int half, int32_t rows)
{
    int is_shared = mok_fused_is_shared(tile->kind);
    int is_again = tile->kind == MOK_TASK_RECOMPUTE || tile->kind == MOK_TASK_SHARED_RECOMPUTE;
    const struct mok_gemm_out *out = is_again ? &args->pass.gemm[is_shared ? MOK_FUSED_SHARED_GATE_UP : MOK_FUSED_GATE_UP].out[1 + panel / 2]
                                              : &args->dgrad_gate_up[is_shared].finish.out[0];
    int32_t col = tile->gemm.col + (is_again ? panel % 2 : panel) * MOK_PANEL_COLS;
    uint8_t *buffer = shared->panel[mok_cuda_warp()];
    if (rows <= 0 || col >= out->cols) {
        return;
    }
    if (half == 0) { /* the store that read the buffer last is through */
        mok_hw_bulk_wait_read_0();
        __syncwarp();
    }
    mok_cuda_write_quarter(buffer, 2 * half, packed + 8 * half);
    mok_cuda_write_quarter(buffer, 2 * half + 1, packed + 8 * half + 4);
    if (half == 1) {
        mok_cuda_store_panel(out, buffer, tile->gemm.row + (int32_t)mok_cuda_warp() * MOK_GEMM_WARP_ROWS, rows, col);
        if (rows < MOK_GEMM_WARP_ROWS) {
            mok_hw_fence_async(); /* ordinary stores, read by the copy engine */
        }
    }
}

/* Likewise, but for the sums of recompute or E. */
MOK_DEVICE void mok_fused_hold_sums(const struct mok_fused_backward_args *args, mok_fused_shared *shared, struct mok_fused_held *held,
                                    const float *acc, const struct mok_fused_backward_tile *tile)
{
    uint32_t packed[MOK_PANEL_WORDS];
    held->rows = min(tile->gemm.rows - (int32_t)mok_cuda_warp() * MOK_GEMM_WARP_ROWS, (int32_t)MOK_GEMM_WARP_ROWS);
    mok_cuda_pack_panel(acc, packed);
    mok_fused_store_half(args, shared, tile, packed, 0, 0, held->rows);
    mok_fused_store_half(args, shared, tile, packed, 0, 1, held->rows);
#pragma unroll
    for (int p = 0; p < MOK_FUSED_HELD_PANELS; p++) {
        mok_cuda_pack_panel(acc + 32 * (p + 1), held->words + MOK_PANEL_WORDS * p);
    }
}

/* Half a panel: that of held panel `panel`, whose words stand in front. */
MOK_DEVICE void mok_fused_finish_held(const struct mok_fused_backward_args *args, mok_fused_shared *shared, const struct mok_fused_held *held,
                                      int32_t panel, int half)
{
    mok_fused_store_half(args, shared, &shared->back[held->turn], held->words, 1 + panel, half, held->rows);
}

/* The words of the next panel come to the front. A loop over panels is short code: the instruction cache is small. */
MOK_DEVICE void mok_fused_shift_held(struct mok_fused_held *held)
{
#pragma unroll
    for (int i = 0; i < (MOK_FUSED_HELD_PANELS - 1) * MOK_PANEL_WORDS; i++) {
        held->words[i] = held->words[i + MOK_PANEL_WORDS];
    }
}

/* Releases the stage of the last chunk of a tile of D. first: the stage behind it, where the next tile begins. That tile has issued two steps at most: its
 * fourth waits for this stage. One register says it all; there is none for a flag and an index. */
MOK_DEVICE void mok_fused_release_held_chunk(mok_fused_worker *worker, struct mok_fused_held *held, uint32_t first)
{
    if (held->is_open == MOK_FUSED_OPEN_CHUNK) {
        mok_cuda_release_chunk<mok_tile_fused>(worker, (first + mok_tile_fused::STAGES - 1) % mok_tile_fused::STAGES, 1);
        held->is_open = 1;
    }
}

/* Of warp 11's barriers: all warps have stored the tile of a turn; it has told. */
MOK_DEVICE uint64_t *mok_fused_stored(mok_fused_shared *shared, uint32_t turn) { return &shared->panel_full[turn % MOK_FUSED_TURNS]; }
MOK_DEVICE uint64_t *mok_fused_told(mok_fused_shared *shared) { return &shared->panel_empty[0]; }

/* The tile before the held one has been announced. */
MOK_DEVICE void mok_fused_await_told(mok_fused_shared *shared, const struct mok_fused_held *held, uint64_t limit_ns)
{
    if (threadIdx.x == 0 && held->is_open) {
        mok_cuda_wait_barrier(mok_fused_told(shared), (held->turn + 1) & 1, limit_ns);
    }
}

/* All parts of the tile that this warp has are stored: says so once they have landed. */
MOK_DEVICE void mok_fused_announce_held(mok_fused_shared *shared, struct mok_fused_held *held, uint64_t limit_ns)
{
    if (!held->is_open) {
        return;
    }
    mok_fused_await_told(shared, held, limit_ns);
    if (shared->back[held->turn].counter >= 0) {
        mok_hw_bulk_wait_0();
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        mok_hw_mbarrier_arrive_cta(mok_fused_stored(shared, held->turn));
    }
    held->is_open = 0;
}

/* One thread of warp 11. */
MOK_DEVICE void mok_fused_announce_tiles(const struct mok_fused_args *args, mok_fused_shared *shared)
{
    for (uint32_t turn = 0;; turn++) {
        const struct mok_fused_backward_tile *tile = &shared->back[turn % MOK_FUSED_TURNS];
        mok_fused_wait_queue(args, mok_fused_stored(shared, turn), turn / MOK_FUSED_TURNS & 1);
        if (!tile->gemm.valid) {
            return;
        }
        mok_hw_fence_async();
        for (int32_t i = 0; tile->counter >= 0 && i < tile->num_counters; i++) {
            mok_fused_announce(args, tile->counter + i);
        }
        if (tile->carry_counter >= 0) {
            mok_fused_announce(args, tile->carry_counter);
        }
        if (tile->counter < 0) {
            mok_hw_add_relaxed_gpu(&args->state->progress, 1);
        }
        mok_hw_mbarrier_arrive_cta(mok_fused_told(shared));
    }
}

/* All panels at once. */
MOK_DEVICE void mok_fused_store_held(const struct mok_fused_backward_args *args, mok_fused_shared *shared, struct mok_fused_held *held)
{
#pragma unroll 1
    for (int32_t panel = 0; panel < MOK_FUSED_HELD_PANELS && held->rows > 0; panel++) {
        mok_fused_finish_held(args, shared, held, panel, 0);
        mok_fused_finish_held(args, shared, held, panel, 1);
        mok_fused_shift_held(held);
    }
    held->rows = 0;
    mok_fused_forget_words(held);
}

/* Where the sums of a weight gradient go: map, and the warp's first row there. */
struct mok_fused_gradient {
    const CUtensorMap *map;
    int32_t row, col, matrix;
    int32_t bf16;
};

MOK_DEVICE struct mok_fused_gradient mok_fused_open_gradient(const struct mok_wgrad_kernel_args *args, const struct mok_gemm_tile *tile)
{
    const int carries = args->bf16 && tile->carry_out;
    struct mok_fused_gradient gradient = {carries ? &args->carry_out[tile->part] : &args->grad_out[tile->part],
                                          tile->row + (int32_t)mok_cuda_warp() * MOK_GEMM_WARP_ROWS, tile->col,
                                          carries ? tile->carry_out - 1 : tile->expert, mok_cuda_wgrad_writes_bf16(args, tile)};
    return gradient;
}

MOK_DEVICE void mok_fused_send_gradient(const struct mok_fused_gradient *gradient, const uint8_t *from, int32_t row, int32_t col)
{
    mok_cuda_publish_panel();
    if (mok_hw_elect()) {
        mok_hw_tma_store_3d(gradient->map, from, gradient->col + col, gradient->row + row, gradient->matrix);
        mok_hw_bulk_commit();
    }
}

/* Panel `panel` of 32 columns, in two halves of 8 rows: one is written while the other is read. */
MOK_DEVICE void mok_fused_store_fp32(const struct mok_fused_gradient *gradient, mok_fused_shared *shared, const float *acc, int panel)
{
    uint8_t *buffer = shared->panel[mok_cuda_warp()];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (panel == 0 && half == 0) { /* whatever left through the buffer before */
            mok_hw_bulk_wait_read_0();
        } else {
            mok_hw_bulk_wait_read_1();
        }
        __syncwarp();
        mok_cuda_write_fp32_half(buffer, half, acc);
        mok_fused_send_gradient(gradient, buffer + half * (MOK_GEMM_PANEL_BYTES / 2), half * (MOK_GEMM_WARP_ROWS / 2), panel * 32);
    }
}

MOK_DEVICE void mok_fused_store_bf16(const struct mok_fused_gradient *gradient, mok_fused_shared *shared, const float *acc, int panel)
{
    uint8_t *buffer = shared->panel[mok_cuda_warp()];
    uint32_t packed[MOK_PANEL_WORDS];
    mok_hw_bulk_wait_read_0();
    __syncwarp();
    mok_cuda_pack_panel(acc, packed);
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        mok_cuda_write_quarter(buffer, pair, packed + 4 * pair);
    }
    mok_fused_send_gradient(gradient, buffer, 0, panel * 64);
}

/* All sums of a weight gradient. */
MOK_DEVICE void mok_fused_finish_wgrad(const struct mok_fused_gradient *gradient, mok_fused_shared *shared, const float *acc)
{
    if (gradient->bf16) {
#pragma unroll
        for (int panel = 0; panel < MOK_GEMM_COLS / 64; panel++) {
            mok_fused_store_bf16(gradient, shared, acc + 32 * panel, panel);
        }
    } else {
#pragma unroll
        for (int panel = 0; panel < MOK_GEMM_COLS / 32; panel++) {
            mok_fused_store_fp32(gradient, shared, acc + 16 * panel, panel);
        }
    }
}

#endif
