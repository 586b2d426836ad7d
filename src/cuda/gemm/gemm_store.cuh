/*
 * From accumulators to global memory, bf16, one panel (16 rows x 64 columns of one warp) at a time: registers -> shared memory (128-byte
 * swizzle, no bank conflicts) -> TMA store, which runs while the next panel is made. Each warp has two panel buffers and waits for no other
 * warp. In a tile with padding rows the lanes copy the real rows themselves, because nothing made from a padding row may be stored.
 *
 * Packed panel: word 4p + i (p = 0..3) of a lane is matrix i of the pair of 8-column blocks 2p, 2p+1 (hw/matrix.cuh), that is accumulators
 * 8p + 2i and 8p + 2i + 1 of the panel's 32.
 *
 *   buffer of turn n is free   all: at most one later store of the lane still reads -> __syncwarp -> all write
 *   buffer is written          all: fence.proxy.async -> __syncwarp -> elected lane: TMA store
 */
#ifndef MOK_CUDA_GEMM_STORE_CUH
#define MOK_CUDA_GEMM_STORE_CUH

#include "cuda/gemm/gemm_tile.cuh"
#include "cuda/hw/math.cuh"
#include "cuda/hw/matrix.cuh"

enum { MOK_PANEL_WORDS = 16, MOK_PANEL_COLS = 64 };

/* A multiplying warp's place in its two panel buffers. */
struct mok_panel_writer {
    uint8_t *buffers; /* [2][16 * 128] */
    uint32_t turn;
};

/* Warp 0 .. 7 of the multiplying warpgroups, the same in all lanes. */
MOK_DEVICE uint32_t mok_cuda_warp(void) { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

/* Address of this lane's row for the matrix instruction that moves 8-column blocks 2 * pair, 2 * pair + 1 of a swizzled panel. */
MOK_DEVICE uint32_t mok_cuda_panel_address(uint32_t panel, uint32_t pair)
{
    uint32_t lane = threadIdx.x % 32, row = lane % 16;
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

/* The four words of a lane for 8-column blocks 2 * pair, 2 * pair + 1 of a panel. */
MOK_DEVICE void mok_cuda_write_quarter(uint8_t *panel, int pair, const uint32_t *packed)
{
    mok_hw_store_matrix_x4(mok_cuda_panel_address(mok_hw_shared_address(panel), pair), packed[0], packed[1], packed[2], packed[3]);
}

/* A written panel may be read by TMA, in any lane. */
MOK_DEVICE void mok_cuda_publish_panel(void)
{
    mok_hw_fence_async_shared_cta();
    __syncwarp();
}

/* Rows 0 .. rows-1 of a panel in shared memory to global memory, 16 bytes a lane at a time. The loop stays one: this code stands in many places. */
MOK_DEVICE void mok_cuda_copy_panel_rows(const struct mok_gemm_out *out, const uint8_t *panel, int64_t row, int32_t rows, int32_t col)
{
    uint32_t lane = threadIdx.x % 32, chunk = lane % 8;
    if (col + (int32_t)chunk * 8 >= out->cols) {
        return;
    }
#pragma unroll 1
    for (int32_t r = (int32_t)lane / 8; r < rows; r += 4) {
        const uint4 *from = (const uint4 *)(panel + r * 128 + ((chunk ^ (r % 8)) << 4));
        uint16_t *to = (uint16_t *)out->base + (row + r) * out->cols + col + chunk * 8;
        *(uint4 *)to = *from;
    }
}

/* The written panel leaves for (row, col) of `out`, `rows` of its 16 rows real: one group of bulk copies of each lane, also when it is empty. Called by
 * the whole warp. An elected lane gives the panel to the copy engine, its addresses come from uniform registers (hw/sync.cuh); whether it has been read,
 * or has landed, is asked by all lanes. */
MOK_DEVICE void mok_cuda_store_panel(const struct mok_gemm_out *out, const uint8_t *panel, int32_t row, int32_t rows, int32_t col)
{
    mok_cuda_publish_panel();
    if (rows < MOK_GEMM_WARP_ROWS) {
        mok_cuda_copy_panel_rows(out, panel, row, rows, col);
    } else if (mok_hw_elect()) {
        mok_hw_tma_store_2d(&out->map, panel, col, row);
    }
    mok_hw_bulk_commit();
}

/* The buffer of this turn; with waits (a constant): once the store that read it last is through. */
MOK_DEVICE uint8_t *mok_cuda_panel_buffer(const struct mok_panel_writer *writer, int waits)
{
    if (waits) {
        mok_hw_bulk_wait_read_1();
        __syncwarp();
    }
    return writer->buffers + (writer->turn & 1) * MOK_GEMM_PANEL_BYTES;
}

/* The written buffer of this turn leaves. With a group of copies for each turn "at most one" means the other buffer. */
MOK_DEVICE void mok_cuda_send_panel(struct mok_panel_writer *writer, const struct mok_gemm_out *out, int32_t row, int32_t rows, int32_t col)
{
    mok_cuda_store_panel(out, mok_cuda_panel_buffer(writer, 0), row, rows, col);
    writer->turn++;
}

/* Before the kernel ends: shared memory must outlive the stores that read it, whichever lane they belong to. */
MOK_DEVICE void mok_cuda_close_panels(void) { mok_hw_bulk_wait_0(); }

#endif
