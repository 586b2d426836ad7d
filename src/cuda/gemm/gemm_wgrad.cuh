/*
 * Weight gradients: in a (dg, du or dy) and b (x or wh), both [rows, columns]; out grad [out, in] = the sum over an expert's rows of a^T b.
 * Rows are contracted, so both operands are MN-major: blocks of 64 columns by 64 rows. The accumulators start from zero, from the gradient
 * or from the carry of the window before, and are rounded once, at the end.
 *
 * What the accumulators start from comes through the operand stages, in front of the steps of the contraction, so that it is read while the
 * tile before is still being multiplied. A stage holds three panels (64 rows x 128 bytes) of each warpgroup:
 *
 *   fp32, 32 columns a panel: panels 0 1 2 | 3 4 5 | 6 7        bf16, 64 columns a panel: panels 0 1 2 | 3
 *
 * The sums leave panel by panel (16 rows of a warp) through the warp's two buffers. TMA stores take about 32 bytes a cycle, so this costs
 * 4,000 cycles with fp32; handing them out through empty operand stages was no faster, because the next tile's loads then wait instead.
 */
#ifndef MOK_CUDA_GEMM_WGRAD_CUH
#define MOK_CUDA_GEMM_WGRAD_CUH

#include "cuda/gemm/gemm_multiply.cuh"
#include "cuda/gemm/gemm_walk.cuh"

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

/* Steps of the contraction, and all stages of a tile. */
MOK_DEVICE int32_t mok_cuda_wgrad_num_steps(const struct mok_gemm_tile *tile)
{
    return (tile->num_rows + MOK_GEMM_DEPTH - 1) / MOK_GEMM_DEPTH;
}

MOK_DEVICE int32_t mok_cuda_wgrad_num_stages(const struct mok_wgrad_kernel_args *args, const struct mok_gemm_tile *tile)
{
    int32_t panels = tile->starts_from_memory ? mok_cuda_wgrad_num_panels(mok_cuda_wgrad_reads_bf16(args, tile)) : 0;
    return (panels + MOK_WGRAD_STAGE_PANELS - 1) / MOK_WGRAD_STAGE_PANELS + mok_cuda_wgrad_num_steps(tile);
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
    const CUtensorMap *map = carries ? &args->carry_in[tile->part] : &args->grad_in[tile->part];
    const int32_t num_panels = mok_cuda_wgrad_num_panels(bf16), panel_cols = bf16 ? 64 : 32;
    for (int32_t first = 0; first < num_panels; first += MOK_WGRAD_STAGE_PANELS) {
        struct mok_stage *stage = &shared->stage[cursor->idx];
        uint64_t *full = &shared->full[cursor->idx];
        int32_t count = min((int32_t)MOK_WGRAD_STAGE_PANELS, num_panels - first);
        mok_cuda_begin_stage<TILE>(shared, cursor, (uint32_t)count * 2 * MOK_GEMM_BLOCK_BYTES, args->wait_limit_ns);
#pragma unroll 1
        for (int32_t place = 0; place < count; place++) {
            int32_t col = tile->col + (first + place) * panel_cols;
#pragma unroll
            for (uint32_t warpgroup = 0; warpgroup < 2; warpgroup++) {
                mok_hw_tma_load_3d(mok_cuda_wgrad_panel(stage, warpgroup, place), map, full, col,
                                   tile->row + (int32_t)warpgroup * MOK_GEMM_GROUP_ROWS, carries ? tile->carry_in - 1 : tile->expert);
            }
        }
        mok_cuda_advance<TILE>(cursor);
    }
}

template <typename TILE>
MOK_DEVICE void mok_cuda_load_wgrad(const struct mok_wgrad_kernel_args *args, struct mok_gemm_shared<TILE> *shared,
                                    struct mok_stage_cursor *cursor, const struct mok_gemm_tile *tile)
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
                mok_hw_tma_load_2d_cluster(to, &args->b, full, MOK_GEMM_BOTH_CTAS, col, row);
            }
        }
        mok_cuda_advance<TILE>(cursor);
    }
}

/* Addresses of the two values of a lane in row `half` of its two and 8-column block `block` of a swizzled panel of 32 fp32 columns. Lanes
 * of odd rows take block ^ 2, so that the 16 lanes that are served at one time touch all 32 banks. */
MOK_DEVICE uint32_t mok_cuda_fp32_address(uint32_t panel, int half, int block)
{
    uint32_t lane = threadIdx.x % 32, row = lane / 4 + 8 * half;
    uint32_t chunk = 2 * (block ^ (lane / 4 % 2 * 2)) + lane % 4 / 2;
    return panel + row * 128 + ((chunk ^ (row % 8)) << 4) + lane % 2 * 8;
}

/* 16 accumulators from a panel of fp32, 32 from a panel of bf16. */
MOK_DEVICE void mok_cuda_read_fp32_panel(uint32_t panel, float *acc)
{
    const int odd = threadIdx.x / 4 % 2;
    float low[8], high[8];
    /* All loads first: their latency is paid once. */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        mok_hw_load_shared_v2(mok_cuda_fp32_address(panel, i % 2, i / 2), &low[2 * i], &low[2 * i + 1]);
        mok_hw_load_shared_v2(mok_cuda_fp32_address(panel, i % 2, i / 2 + 2), &high[2 * i], &high[2 * i + 1]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int half = i / 2 % 2, block = i / 4;
        acc[4 * block + 2 * half + i % 2] = odd ? high[i] : low[i];
        acc[4 * (block + 2) + 2 * half + i % 2] = odd ? low[i] : high[i];
    }
}

/* Half `half` of a panel: 8 rows, 1 KB. */
MOK_DEVICE void mok_cuda_write_fp32_half(uint8_t *panel, int half, const float *acc)
{
    const uint32_t address = mok_hw_shared_address(panel);
    const int odd = threadIdx.x / 4 % 2;
#pragma unroll
    for (int block = 0; block < 2; block++) {
        const float *low = acc + 4 * block + 2 * half, *high = low + 8;
        mok_hw_store_shared_v2(mok_cuda_fp32_address(address, half, block), odd ? high[0] : low[0], odd ? high[1] : low[1]);
        mok_hw_store_shared_v2(mok_cuda_fp32_address(address, half, block + 2), odd ? low[0] : high[0], odd ? low[1] : high[1]);
    }
}

MOK_DEVICE void mok_cuda_write_fp32_panel(uint8_t *panel, const float *acc)
{
    mok_cuda_write_fp32_half(panel, 0, acc);
    mok_cuda_write_fp32_half(panel, 1, acc);
}

MOK_DEVICE void mok_cuda_read_bf16_panel(uint32_t panel, float *acc)
{
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t packed[4];
        mok_hw_load_matrix_x4(mok_cuda_panel_address(panel, p), &packed[0], &packed[1], &packed[2], &packed[3]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            acc[8 * p + 2 * i] = mok_cuda_bf16_low(packed[i]);
            acc[8 * p + 2 * i + 1] = mok_cuda_bf16_high(packed[i]);
        }
    }
}

/* The warp's part of panel `panel` of the start values; waits for its stage with the first panel in it. */
template <typename TILE> MOK_DEVICE uint32_t mok_cuda_begin_start_panel(struct mok_worker<TILE> *worker, int panel)
{
    if (panel % MOK_WGRAD_STAGE_PANELS == 0) {
        mok_cuda_await_stage<TILE>(worker);
    }
    uint8_t *stage_panel =
        mok_cuda_wgrad_panel(&worker->shared->stage[worker->stage.idx], worker->warpgroup, panel % MOK_WGRAD_STAGE_PANELS);
    return mok_hw_shared_address(stage_panel + worker->warp % 4 * MOK_GEMM_PANEL_BYTES);
}

/* Releases the stage with the last panel in it. */
template <typename TILE> MOK_DEVICE void mok_cuda_end_start_panel(struct mok_worker<TILE> *worker, int panel, int num_panels)
{
    if (panel % MOK_WGRAD_STAGE_PANELS == MOK_WGRAD_STAGE_PANELS - 1 || panel == num_panels - 1) {
        __syncwarp();
        mok_cuda_release_stage<TILE>(worker, worker->stage.idx);
        mok_cuda_advance<TILE>(&worker->stage);
    }
}

/* The accumulators before the first step. */
template <typename TILE>
MOK_DEVICE void mok_cuda_start_wgrad(const struct mok_wgrad_kernel_args *args, struct mok_worker<TILE> *worker, float *acc,
                                     const struct mok_gemm_tile *tile)
{
    if (!tile->starts_from_memory) {
#pragma unroll
        for (int i = 0; i < 128; i++) {
            acc[i] = 0.0f;
        }
    } else if (mok_cuda_wgrad_reads_bf16(args, tile)) {
#pragma unroll
        for (int panel = 0; panel < MOK_GEMM_COLS / 64; panel++) {
            mok_cuda_read_bf16_panel(mok_cuda_begin_start_panel<TILE>(worker, panel), acc + 32 * panel);
            mok_cuda_end_start_panel<TILE>(worker, panel, MOK_GEMM_COLS / 64);
        }
    } else {
#pragma unroll
        for (int panel = 0; panel < MOK_GEMM_COLS / 32; panel++) {
            mok_cuda_read_fp32_panel(mok_cuda_begin_start_panel<TILE>(worker, panel), acc + 16 * panel);
            mok_cuda_end_start_panel<TILE>(worker, panel, MOK_GEMM_COLS / 32);
        }
    }
    mok_hw_wgmma_hold(acc);
}

/* A written panel leaves for (row, col) of the matrix. */
MOK_DEVICE void mok_cuda_send_wgrad_panel(struct mok_panel_writer *writer, const CUtensorMap *map, const uint8_t *panel, int32_t col,
                                          int32_t row, int32_t expert)
{
    mok_cuda_publish_panel();
    if (mok_hw_elect()) {
        mok_hw_tma_store_3d(map, panel, col, row, expert);
    }
    mok_hw_bulk_commit();
    writer->turn++;
}

template <typename TILE>
MOK_DEVICE void mok_cuda_finish_wgrad(const struct mok_wgrad_kernel_args *args, struct mok_worker<TILE> *worker, const float *acc,
                                      const struct mok_gemm_tile *tile)
{
    struct mok_panel_writer *writer = &worker->writer;
    const int carries = args->bf16 && tile->carry_out;
    const CUtensorMap *map = carries ? &args->carry_out[tile->part] : &args->grad_out[tile->part];
    const int32_t row = tile->row + (int32_t)worker->warp * MOK_GEMM_WARP_ROWS, expert = carries ? tile->carry_out - 1 : tile->expert;
    if (mok_cuda_wgrad_writes_bf16(args, tile)) {
#pragma unroll
        for (int p = 0; p < MOK_GEMM_COLS / 64; p++) {
            uint8_t *panel = mok_cuda_panel_buffer(writer, 1);
            uint32_t packed[MOK_PANEL_WORDS];
            mok_cuda_pack_panel(acc + 32 * p, packed);
#pragma unroll
            for (int pair = 0; pair < 4; pair++) {
                mok_cuda_write_quarter(panel, pair, packed + 4 * pair);
            }
            mok_cuda_send_wgrad_panel(writer, map, panel, tile->col + p * 64, row, expert);
        }
        return;
    }
#pragma unroll
    for (int p = 0; p < MOK_GEMM_COLS / 32; p++) {
        uint8_t *panel = mok_cuda_panel_buffer(writer, 1);
        mok_cuda_write_fp32_panel(panel, acc + 16 * p);
        mok_cuda_send_wgrad_panel(writer, map, panel, tile->col + p * 32, row, expert);
    }
}

#endif
