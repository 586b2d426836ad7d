/*
 * Weight gradients: in a (dg, du or dy) and b (x or wh), both [rows, columns]; out grad [out, in] = the sum over an expert's rows of a^T b. Rows
 * are contracted, so both operands are MN-major: blocks of 64 columns by 64 rows. The accumulators start from zero, from the gradient or from the
 * carry of the window before, and are rounded once, at the end.
 *
 * What the accumulators start from comes through the operand stages, in front of the steps of the contraction, so that it is read while the tile
 * before is still being multiplied. A stage holds three panels (64 rows x 128 bytes) of each warpgroup:
 *   fp32, 32 columns a panel: panels 0 1 2 | 3 4 5 | 6 7        bf16, 64 columns a panel: panels 0 1 2 | 3
 */
#ifndef MOK_CUDA_GEMM_WGRAD_CUH
#define MOK_CUDA_GEMM_WGRAD_CUH

#include "cuda/activation.cuh"
#include "cuda/gemm_store.cuh"
#include "cuda/gemm_walk.cuh"

enum { MOK_WGRAD_STAGE_PANELS = 3 }; /* of a warpgroup in a stage */

/* Whether the values that the tile starts from, or leaves, are bf16: carries are fp32. */
MOK_DEVICE int mok_cuda_wgrad_reads_bf16(const struct mok_wgrad_kernel_args *args, const struct mok_gemm_tile *tile)
{
    return args->bf16 && !tile->carry_in;
}
MOK_DEVICE int mok_cuda_wgrad_writes_bf16(const struct mok_wgrad_kernel_args *args, const struct mok_gemm_tile *tile)
{
    return args->bf16 && !tile->carry_out;
}

MOK_DEVICE int mok_cuda_wgrad_num_panels(int bf16) { return bf16 ? MOK_GEMM_COLS / 64 : MOK_GEMM_COLS / 32; }

/* Stages that the start values of a tile take. */
MOK_DEVICE int32_t mok_cuda_wgrad_start_steps(const struct mok_wgrad_kernel_args *args, const struct mok_gemm_tile *tile)
{
    int32_t panels = mok_cuda_wgrad_num_panels(mok_cuda_wgrad_reads_bf16(args, tile));
    return tile->starts_from_memory ? (panels + MOK_WGRAD_STAGE_PANELS - 1) / MOK_WGRAD_STAGE_PANELS : 0;
}

MOK_DEVICE uint8_t *mok_cuda_wgrad_panel(struct mok_stage *stage, uint32_t warpgroup, int32_t place)
{
    return stage->a + (warpgroup * MOK_WGRAD_STAGE_PANELS + place) * MOK_GEMM_BLOCK_BYTES;
}

template <typename TILE>
MOK_DEVICE void mok_cuda_load_wgrad_start(const struct mok_wgrad_kernel_args *args, struct mok_gemm_shared<TILE> *shared,
                                          struct mok_stage_cursor *cursor, const struct mok_gemm_tile *tile)
{
    const int bf16 = mok_cuda_wgrad_reads_bf16(args, tile);
    const int carries = args->bf16 && tile->carry_in;
    const CUtensorMap *map = carries ? &args->carry_in[tile->part] : &args->grad[tile->part];
    const int32_t num_panels = mok_cuda_wgrad_num_panels(bf16), panel_cols = bf16 ? 64 : 32;
    for (int32_t first = 0; first < num_panels; first += MOK_WGRAD_STAGE_PANELS) {
        struct mok_stage *stage = &shared->stage[cursor->idx];
        uint64_t *full = &shared->full[cursor->idx];
        int32_t count = min((int32_t)MOK_WGRAD_STAGE_PANELS, num_panels - first);
        mok_cuda_begin_stage<TILE>(shared, cursor, (uint32_t)count * 2 * MOK_GEMM_BLOCK_BYTES, args->wait_limit_ns);
        for (int32_t place = 0; place < count; place++) {
            int32_t col = tile->col + (first + place) * panel_cols;
            for (uint32_t warpgroup = 0; warpgroup < 2; warpgroup++) {
                mok_hw_tma_load_3d(mok_cuda_wgrad_panel(stage, warpgroup, place), map, full, col, tile->row + (int32_t)warpgroup * MOK_GEMM_PANEL,
                                   carries ? 0 : tile->expert);
            }
        }
        mok_cuda_advance<TILE>(cursor);
    }
}

template <typename TILE>
MOK_DEVICE void mok_cuda_load_wgrad(const struct mok_wgrad_kernel_args *args, struct mok_gemm_shared<TILE> *shared, struct mok_stage_cursor *cursor,
                                    const struct mok_gemm_tile *tile)
{
    if (tile->starts_from_memory) {
        mok_cuda_load_wgrad_start<TILE>(args, shared, cursor, tile);
    }
    for (int32_t done = 0; done < tile->num_rows; done += MOK_GEMM_DEPTH) {
        struct mok_stage *stage = &shared->stage[cursor->idx];
        uint64_t *full = &shared->full[cursor->idx];
        int32_t row = tile->first_row + done;
        mok_cuda_begin_stage<TILE>(shared, cursor, MOK_GEMM_STEP_BYTES, args->wait_limit_ns);
#pragma unroll
        for (int block = 0; block < MOK_GEMM_ROWS / 64; block++) {
            mok_hw_tma_load_2d(stage->a + block * MOK_GEMM_BLOCK_BYTES, &args->a[tile->part], full, tile->row + block * 64, row);
        }
#pragma unroll
        for (int block = 0; block < MOK_GEMM_COLS / 64; block++) {
            uint8_t *to = stage->b + block * MOK_GEMM_BLOCK_BYTES;
            int32_t col = tile->col + block * 64;
            if (TILE::CLUSTER == 1) {
                mok_hw_tma_load_2d(to, &args->b, full, col, row);
            } else if (block / 2 == (int)mok_hw_cluster_cta()) {
                mok_hw_tma_load_2d_cluster(to, &args->b, full, 3, col, row);
            }
        }
        mok_cuda_advance<TILE>(cursor);
    }
}

/* Address, in a swizzled panel of 64 rows x 32 fp32 columns, of the two values of a thread in row `half` of its two and 8-column block `block`. */
MOK_DEVICE uint32_t mok_cuda_fp32_address(uint32_t panel, uint32_t thread, int half, int block)
{
    uint32_t row = thread / 32 * 16 + thread % 32 / 4 + 8 * half;
    uint32_t chunk = 2 * block + thread % 4 / 2;
    return panel + row * 128 + ((chunk ^ (row % 8)) << 4) + thread % 2 * 8;
}

/* 16 accumulators from a panel of fp32, 32 from a panel of bf16. */
MOK_DEVICE void mok_cuda_read_fp32_panel(uint32_t panel, float *acc)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        mok_hw_load_shared_v2(mok_cuda_fp32_address(panel, threadIdx.x % 128, i % 2, i / 2), &acc[2 * i], &acc[2 * i + 1]);
    }
}

MOK_DEVICE void mok_cuda_read_bf16_panel(uint32_t panel, float *acc)
{
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t packed[4];
        mok_hw_load_matrix_x4(mok_cuda_panel_address(panel, threadIdx.x % 128, p), &packed[0], &packed[1], &packed[2], &packed[3]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            acc[8 * p + 2 * i] = mok_cuda_bf16_low(packed[i]);
            acc[8 * p + 2 * i + 1] = mok_cuda_bf16_high(packed[i]);
        }
    }
}

/* Panel `panel` of `num_panels` of the start values; waits for its stage with the first, releases it with the last panel in it. Returns its address. */
template <typename TILE>
MOK_DEVICE uint32_t mok_cuda_begin_start_panel(const struct mok_wgrad_kernel_args *args, struct mok_gemm_shared<TILE> *shared,
                                               const struct mok_stage_cursor *cursor, uint32_t warpgroup, int panel)
{
    int place = panel % MOK_WGRAD_STAGE_PANELS;
    if (place == 0) {
        mok_cuda_wait_barrier(&shared->full[cursor->idx], cursor->parity, args->wait_limit_ns);
    }
    return mok_hw_shared_address(mok_cuda_wgrad_panel(&shared->stage[cursor->idx], warpgroup, place));
}

template <typename TILE>
MOK_DEVICE void mok_cuda_end_start_panel(struct mok_gemm_shared<TILE> *shared, struct mok_stage_cursor *cursor, int panel, int num_panels)
{
    if (panel % MOK_WGRAD_STAGE_PANELS == MOK_WGRAD_STAGE_PANELS - 1 || panel == num_panels - 1) {
        __syncwarp();
        mok_cuda_release_stage<TILE>(shared, cursor->idx, 1);
        mok_cuda_advance<TILE>(cursor);
    }
}

/* The accumulators before the first step. */
template <typename TILE>
MOK_DEVICE void mok_cuda_start_wgrad(const struct mok_wgrad_kernel_args *args, struct mok_gemm_shared<TILE> *shared, struct mok_stage_cursor *cursor,
                                     uint32_t warpgroup, float *acc, const struct mok_gemm_tile *tile)
{
    if (!tile->starts_from_memory) {
#pragma unroll
        for (int i = 0; i < 128; i++) {
            acc[i] = 0.0f;
        }
    } else if (mok_cuda_wgrad_reads_bf16(args, tile)) {
#pragma unroll
        for (int panel = 0; panel < MOK_GEMM_COLS / 64; panel++) {
            mok_cuda_read_bf16_panel(mok_cuda_begin_start_panel<TILE>(args, shared, cursor, warpgroup, panel), acc + 32 * panel);
            mok_cuda_end_start_panel<TILE>(shared, cursor, panel, MOK_GEMM_COLS / 64);
        }
    } else {
#pragma unroll
        for (int panel = 0; panel < MOK_GEMM_COLS / 32; panel++) {
            mok_cuda_read_fp32_panel(mok_cuda_begin_start_panel<TILE>(args, shared, cursor, warpgroup, panel), acc + 16 * panel);
            mok_cuda_end_start_panel<TILE>(shared, cursor, panel, MOK_GEMM_COLS / 32);
        }
    }
}

/* A panel leaves for its place in the gradient or the carry. */
MOK_DEVICE void mok_cuda_store_wgrad_panel(struct mok_panel_writer *writer, const CUtensorMap *map, const uint8_t *panel, int32_t col, int32_t row,
                                           int32_t expert)
{
    mok_cuda_publish_panel(writer);
    if (writer->thread == 0) {
        mok_hw_tma_store_3d(map, panel, col, row, expert);
    }
    mok_cuda_end_panel(writer);
}

MOK_DEVICE void mok_cuda_finish_wgrad(const struct mok_wgrad_kernel_args *args, struct mok_panel_writer *writer, const float *acc,
                                      const struct mok_gemm_tile *tile)
{
    const int carries = args->bf16 && tile->carry_out;
    const CUtensorMap *map = carries ? &args->carry_out[tile->part] : &args->grad[tile->part];
    const int32_t row = tile->row + (int32_t)writer->warpgroup * MOK_GEMM_PANEL, expert = carries ? 0 : tile->expert;
    if (mok_cuda_wgrad_writes_bf16(args, tile)) {
#pragma unroll
        for (int p = 0; p < MOK_GEMM_COLS / 64; p++) {
            uint8_t *panel = mok_cuda_begin_panel(writer);
            uint32_t packed[MOK_PANEL_WORDS];
            mok_cuda_pack_panel(acc + 32 * p, packed);
            mok_cuda_write_panel(writer, panel, packed);
            mok_cuda_store_wgrad_panel(writer, map, panel, tile->col + p * 64, row, expert);
        }
        return;
    }
#pragma unroll
    for (int p = 0; p < MOK_GEMM_COLS / 32; p++) {
        uint8_t *panel = mok_cuda_begin_panel(writer);
        uint32_t address = mok_hw_shared_address(panel);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            mok_hw_store_shared_v2(mok_cuda_fp32_address(address, writer->thread, i % 2, i / 2), acc[16 * p + 2 * i], acc[16 * p + 2 * i + 1]);
        }
        mok_cuda_store_wgrad_panel(writer, map, panel, tile->col + p * 32, row, expert);
    }
}

#endif
