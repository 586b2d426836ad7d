/*
 * Loads of E, dgrad of gate+up: in dg, du, Wg, Wu; out dx = [dg du] [Wg; Wu], one product: first the steps of dg with Wg, then those of du
 * with Wu. The weights are contracted along their rows, so the B operand is MN-major: blocks of 64 columns (H) by 64 rows (I).
 */
#ifndef MOK_CUDA_GEMM_DGRAD_GATE_UP_CUH
#define MOK_CUDA_GEMM_DGRAD_GATE_UP_CUH

#include "cuda/gemm/gemm_walk.cuh"

template <typename TILE>
MOK_DEVICE void mok_cuda_load_dgrad_gate_up(const struct mok_dgrad_gate_up_kernel_args *args, struct mok_gemm_shared<TILE> *shared,
                                            struct mok_stage_cursor *cursor, const struct mok_gemm_tile *tile)
{
    for (int32_t step = 0; step < 2 * args->half_steps; step++) {
        struct mok_stage *stage = &shared->stage[cursor->idx];
        uint64_t *full = &shared->full[cursor->idx];
        int up = step >= args->half_steps;
        int32_t k = (step - (up ? args->half_steps : 0)) * MOK_GEMM_DEPTH;
        mok_cuda_begin_stage<TILE>(shared, cursor, MOK_GEMM_STEP_BYTES, args->wait_limit_ns);
        mok_hw_tma_load_2d(stage->a, up ? &args->du : &args->dg, full, k, tile->row);
        mok_cuda_load_weight_rows<TILE>(tile, stage, up ? &args->up : &args->gate, full, k);
        mok_cuda_advance<TILE>(cursor);
    }
}

#endif
