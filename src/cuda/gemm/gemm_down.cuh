/*
 * Loads of down: in h, Wd; out y.
 */
#ifndef MOK_CUDA_GEMM_DOWN_CUH
#define MOK_CUDA_GEMM_DOWN_CUH

#include "cuda/gemm/gemm_walk.cuh"

template <typename TILE>
MOK_DEVICE void mok_cuda_load_down(const struct mok_down_kernel_args *args, struct mok_gemm_shared<TILE> *shared,
                                   struct mok_stage_cursor *cursor, const struct mok_gemm_tile *tile)
{
    for (int32_t step = 0; step < args->num_steps; step++) {
        struct mok_stage *stage = &shared->stage[cursor->idx];
        uint64_t *full = &shared->full[cursor->idx];
        int32_t k = step * MOK_GEMM_DEPTH;
        mok_cuda_begin_stage<TILE>(shared, cursor, MOK_GEMM_STEP_BYTES, args->wait_limit_ns);
        mok_hw_tma_load_2d(stage->a, &args->h, full, k, tile->row);
        mok_cuda_load_weight<TILE>(tile, 0, stage->b, &args->down, full, k, tile->col);
        mok_cuda_load_weight<TILE>(tile, 1, stage->b + MOK_GEMM_B_BYTES / 2, &args->down, full, k, tile->col + MOK_GEMM_COLS / 2);
        mok_cuda_advance<TILE>(cursor);
    }
}

#endif
