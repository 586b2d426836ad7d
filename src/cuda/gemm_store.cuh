/*
 * From accumulators to global memory, bf16, one panel (64 rows x 64 columns of one warpgroup) at a time: registers -> shared memory (128-byte
 * swizzle, no bank conflicts) -> TMA store, which runs while the next panel is made. A warpgroup has two panel buffers and never waits for the other
 * warpgroup. In a tile with padding rows the threads copy the real rows themselves, because nothing made from a padding row may be stored.
 *
 * Packed panel: word 4p + i (p = 0..3) of a thread is matrix i of the pair of 8-column blocks 2p, 2p+1 (hw/matrix.cuh), that is accumulators
 * 8p + 2i and 8p + 2i + 1 of the panel's 32.
 *
 *   buffer of turn n is free   thread 0: at most one later store still reads -> named barrier -> all write
 *   buffer is written          all: fence.proxy.async -> named barrier -> thread 0: TMA store
 */
#ifndef MOK_CUDA_GEMM_STORE_CUH
#define MOK_CUDA_GEMM_STORE_CUH

#include "cuda/gemm_tile.cuh"
#include "cuda/hw/math.cuh"
#include "cuda/hw/matrix.cuh"

enum { MOK_PANEL_WORDS = 16 };

/* A multiplying warpgroup's place in its two panel buffers. */
struct mok_panel_writer {
    uint8_t *buffers; /* [2][64 * 128] */
    uint32_t turn;
    uint32_t warpgroup;
    uint32_t thread; /* 0 .. 127 */
};

template <typename TILE>
MOK_DEVICE struct mok_panel_writer mok_cuda_open_panels(struct mok_gemm_shared<TILE> *shared, uint32_t warpgroup)
{
    struct mok_panel_writer writer = {&shared->panel[warpgroup][0][0], 0, warpgroup, threadIdx.x % 128};
    return writer;
}

/* Before the kernel ends: shared memory must outlive the stores that read it. */
MOK_DEVICE void mok_cuda_close_panels(const struct mok_panel_writer *writer)
{
    if (writer->thread == 0) {
        mok_hw_bulk_wait_0();
    }
}

MOK_DEVICE void mok_cuda_warpgroup_barrier(uint32_t warpgroup) { mok_hw_barrier_cta(MOK_GEMM_BARRIER_WARPGROUP + warpgroup, 128); }

/* Address of this thread's row for the matrix instruction that moves 8-column blocks 2 * pair, 2 * pair + 1 of a swizzled 64 x 64 panel. */
MOK_DEVICE uint32_t mok_cuda_panel_address(uint32_t panel, uint32_t thread, uint32_t pair)
{
    uint32_t lane = thread % 32;
    uint32_t row = thread / 32 * 16 + lane % 16;
    uint32_t chunk = 2 * pair + lane / 16;
    return panel + row * 128 + ((chunk ^ (row % 8)) << 4);
}

/* 32 accumulators of a panel, rounded. */
MOK_DEVICE void mok_cuda_pack_panel(const float *acc, uint32_t *packed)
{
#pragma unroll
    for (int i = 0; i < MOK_PANEL_WORDS; i++) {
        packed[i] = mok_hw_pack_bf16(acc[2 * i], acc[2 * i + 1]);
    }
}

/* Rows 0 .. rows-1 of a panel in shared memory to global memory, 16 bytes a thread at a time. */
MOK_DEVICE void mok_cuda_copy_panel_rows(const struct mok_gemm_out *out, const uint8_t *panel, uint32_t thread, int64_t row, int32_t rows, int32_t col)
{
    uint32_t chunk = thread % 8;
    if (col + (int32_t)chunk * 8 >= out->cols) {
        return;
    }
    for (int32_t r = (int32_t)thread / 8; r < rows; r += 16) {
        const uint4 *from = (const uint4 *)(panel + r * 128 + ((chunk ^ (r % 8)) << 4));
        uint16_t *to = (uint16_t *)out->base + (row + r) * out->cols + col + chunk * 8;
        *(uint4 *)to = *from;
    }
}

/* The next panel buffer, once the store that read it last is through. Called by the whole warpgroup. */
MOK_DEVICE uint8_t *mok_cuda_begin_panel(const struct mok_panel_writer *writer)
{
    if (writer->thread == 0) {
        mok_hw_bulk_wait_read_1();
    }
    mok_cuda_warpgroup_barrier(writer->warpgroup);
    return writer->buffers + (writer->turn & 1) * MOK_GEMM_BLOCK_BYTES;
}

/* All threads have written the panel: it may be read by TMA, in thread 0. */
MOK_DEVICE void mok_cuda_publish_panel(const struct mok_panel_writer *writer)
{
    mok_hw_fence_async_shared_cta();
    mok_cuda_warpgroup_barrier(writer->warpgroup);
}

/* One group of bulk copies a turn, also when it is empty, so that "at most one group" in mok_cuda_begin_panel means the other buffer. */
MOK_DEVICE void mok_cuda_end_panel(struct mok_panel_writer *writer)
{
    if (writer->thread == 0) {
        mok_hw_bulk_commit();
    }
    writer->turn++;
}

MOK_DEVICE void mok_cuda_write_panel(const struct mok_panel_writer *writer, uint8_t *panel, const uint32_t *packed)
{
    uint32_t address = mok_hw_shared_address(panel);
#pragma unroll
    for (int p = 0; p < 4; p++) {
        mok_hw_store_matrix_x4(mok_cuda_panel_address(address, writer->thread, p), packed[4 * p], packed[4 * p + 1], packed[4 * p + 2],
                               packed[4 * p + 3]);
    }
}

/* One panel at (row, col) of `out`, `rows` of its 64 rows real (>= 1). Called by the whole warpgroup. */
MOK_DEVICE void mok_cuda_store_panel(struct mok_panel_writer *writer, const struct mok_gemm_out *out, const uint32_t *packed, int32_t row, int32_t rows,
                                     int32_t col)
{
    if (col >= out->cols) {
        return;
    }
    uint8_t *panel = mok_cuda_begin_panel(writer);
    mok_cuda_write_panel(writer, panel, packed);
    mok_cuda_publish_panel(writer);
    if (rows < MOK_GEMM_PANEL) {
        mok_cuda_copy_panel_rows(out, panel, writer->thread, row, rows, col);
    } else if (writer->thread == 0) {
        mok_hw_tma_store_2d(&out->map, panel, col, row);
    }
    mok_cuda_end_panel(writer);
}

/* All 256 columns of a warpgroup's accumulators. */
MOK_DEVICE void mok_cuda_store_tile(struct mok_panel_writer *writer, const struct mok_gemm_out *out, const float *acc, const struct mok_gemm_tile *tile)
{
    int32_t row = tile->row + (int32_t)writer->warpgroup * MOK_GEMM_PANEL;
    int32_t rows = tile->rows - (int32_t)writer->warpgroup * MOK_GEMM_PANEL;
#pragma unroll
    for (int p = 0; p < MOK_GEMM_COLS / MOK_GEMM_PANEL; p++) {
        uint32_t packed[MOK_PANEL_WORDS];
        mok_cuda_pack_panel(acc + 32 * p, packed);
        mok_cuda_store_panel(writer, out, packed, row, rows, tile->col + p * MOK_GEMM_PANEL);
    }
}

#endif
