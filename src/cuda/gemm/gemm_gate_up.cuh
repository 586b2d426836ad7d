/*
 * Loads of gate+up: in x, Wg, Wu; out h and, in kept rows, g and u. A tile holds 128 gate and 128 up columns side by side, so that one
 * thread has both values of an element: accumulators 0..63 are gate, 64..127 up.
 */
#ifndef MOK_CUDA_GEMM_GATE_UP_CUH
#define MOK_CUDA_GEMM_GATE_UP_CUH

#include "cuda/gemm/gemm_walk.cuh"

enum { MOK_GATE_UP_COLS = MOK_GEMM_COLS / 2 };

template <typename TILE>
MOK_DEVICE void mok_cuda_load_gate_up(const struct mok_gate_up_kernel_args *args, struct mok_gemm_shared<TILE> *shared,
                                      struct mok_stage_cursor *cursor, const struct mok_gemm_tile *tile)
{
    for (int32_t step = 0; step < args->num_steps; step++) {
        struct mok_stage *stage = &shared->stage[cursor->idx];
        uint64_t *full = &shared->full[cursor->idx];
        int32_t k = step * MOK_GEMM_DEPTH;
        mok_cuda_begin_stage<TILE>(shared, cursor, MOK_GEMM_STEP_BYTES, args->wait_limit_ns);
        mok_hw_tma_load_2d(stage->a, &args->x, full, k, tile->row);
        mok_cuda_load_weight<TILE>(tile, 0, stage->b, &args->gate, full, k, tile->col);
        mok_cuda_load_weight<TILE>(tile, 1, stage->b + MOK_GEMM_B_BYTES / 2, &args->up, full, k, tile->col);
        mok_cuda_advance<TILE>(cursor);
    }
}

#endif
