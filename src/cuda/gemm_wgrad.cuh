/*
 * Weight gradients: in a (dg, du or dy) and b (x or wh), both [rows, columns]; out grad [out, in] = the sum over an expert's rows of a^T b. Rows are
 * contracted, so both operands are MN-major: blocks of 64 columns by 64 rows. The accumulators start from zero, from the gradient or from the carry of
 * the window before, and are rounded once, at the end.
 */
#ifndef MOK_CUDA_GEMM_WGRAD_CUH
#define MOK_CUDA_GEMM_WGRAD_CUH

#include "cuda/activation.cuh"
#include "cuda/gemm_walk.cuh"

template <typename TILE>
MOK_DEVICE void mok_cuda_load_wgrad(const struct mok_wgrad_kernel_args *args, struct mok_gemm_shared<TILE> *shared, struct mok_stage_cursor *cursor,
                                    const struct mok_gemm_tile *tile)
{
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

/* A gradient or carry matrix, at the thread's first element of a tile. */
struct mok_wgrad_place {
    uint8_t *first;
    int64_t eight_rows; /* bytes to the row 8 further on */
    int32_t bf16;
    int32_t rows; /* 0, 1, 2 of the thread's two rows exist */
    int32_t cols; /* columns of the tile that exist */
};

MOK_DEVICE struct mok_wgrad_place mok_cuda_wgrad_place(const struct mok_wgrad_kernel_args *args, const struct mok_gemm_tile *tile, uint32_t warpgroup,
                                                       const float *carry)
{
    uint32_t thread = threadIdx.x % 128;
    int32_t first = (int32_t)(warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4);
    const mok_matrices *grad = &args->grad[tile->part];
    int64_t stride = carry ? args->in : grad->row_stride;
    int64_t element = (int64_t)(tile->row + first) * stride + tile->col + thread % 4 * 2;
    struct mok_wgrad_place place;
    place.bf16 = carry ? 0 : args->bf16;
    int64_t size = place.bf16 ? 2 : 4;
    place.first = carry ? (uint8_t *)carry : (uint8_t *)grad->base + tile->expert * grad->expert_stride * size;
    place.first += element * size;
    place.eight_rows = 8 * stride * size;
    place.rows = (first < tile->rows) + (first + 8 < tile->rows);
    place.cols = min(args->in - tile->col, (int32_t)MOK_GEMM_COLS);
    return place;
}

MOK_DEVICE void mok_cuda_wgrad_read(const struct mok_wgrad_place *place, float *acc)
{
#pragma unroll
    for (int j = 0; j < MOK_GEMM_COLS / 8; j++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 value = {0.0f, 0.0f};
            const uint8_t *from = place->first + half * place->eight_rows;
            if (half < place->rows && 8 * j < place->cols) {
                if (place->bf16) {
                    uint32_t packed = *(const uint32_t *)(from + j * 16);
                    value.x = mok_cuda_bf16_low(packed);
                    value.y = mok_cuda_bf16_high(packed);
                } else {
                    value = *(const float2 *)(from + j * 32);
                }
            }
            acc[4 * j + 2 * half] = value.x;
            acc[4 * j + 2 * half + 1] = value.y;
        }
    }
}

MOK_DEVICE void mok_cuda_wgrad_write(const struct mok_wgrad_place *place, const float *acc)
{
#pragma unroll
    for (int j = 0; j < MOK_GEMM_COLS / 8; j++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint8_t *to = place->first + half * place->eight_rows;
            float2 value = {acc[4 * j + 2 * half], acc[4 * j + 2 * half + 1]};
            if (half < place->rows && 8 * j < place->cols) {
                if (place->bf16) {
                    *(uint32_t *)(to + j * 16) = mok_hw_pack_bf16(value.x, value.y);
                } else {
                    *(float2 *)(to + j * 32) = value;
                }
            }
        }
    }
}

/* The accumulators before the first step. */
MOK_DEVICE void mok_cuda_start_wgrad(const struct mok_wgrad_kernel_args *args, uint32_t warpgroup, float *acc, const struct mok_gemm_tile *tile)
{
    const float *carry = tile->carry_in && args->bf16 ? args->carry_in[tile->part] : NULL;
    if (tile->carry_in || args->add) {
        struct mok_wgrad_place place = mok_cuda_wgrad_place(args, tile, warpgroup, carry);
        mok_cuda_wgrad_read(&place, acc);
    } else {
#pragma unroll
        for (int i = 0; i < 128; i++) {
            acc[i] = 0.0f;
        }
    }
}

MOK_DEVICE void mok_cuda_finish_wgrad(const struct mok_wgrad_kernel_args *args, uint32_t warpgroup, const float *acc, const struct mok_gemm_tile *tile)
{
    const float *carry = tile->carry_out && args->bf16 ? args->carry_out[tile->part] : NULL;
    struct mok_wgrad_place place = mok_cuda_wgrad_place(args, tile, warpgroup, carry);
    mok_cuda_wgrad_write(&place, acc);
}

#endif
