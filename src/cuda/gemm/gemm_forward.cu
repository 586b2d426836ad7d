/*
 * Kernels of the forward GEMMs: gate+up with the activation, and down. Persistent CTAs: the loader walks the tiles.
 */
#include "cuda/gemm/gemm_down.cuh"
#include "cuda/gemm/gemm_gate_up.cuh"
#include "cuda/gemm/gemm_multiply.cuh"

extern __shared__ __align__(1024) uint8_t shared_bytes[];

template <typename TILE>
__global__ void __launch_bounds__(MOK_GEMM_THREADS, 1) gate_up_kernel(const __grid_constant__ struct mok_gate_up_kernel_args args)
{
    struct mok_gemm_shared<TILE> *shared = (struct mok_gemm_shared<TILE> *)shared_bytes;
    uint32_t warpgroup = mok_cuda_warpgroup();
    mok_cuda_open_stages<TILE>(shared);
    if (warpgroup == MOK_GEMM_LOADER / 128) {
        MOK_HW_REGISTERS_DOWN(MOK_GEMM_REGISTERS_LOAD);
        if (threadIdx.x == MOK_GEMM_LOADER) {
            mok_cuda_load_row_tiles<TILE>(&args, shared, MOK_GATE_UP_COLS, mok_cuda_load_gate_up<TILE>);
        }
    } else {
        MOK_HW_REGISTERS_UP(MOK_GEMM_REGISTERS_MULTIPLY);
        mok_cuda_multiply_rows<TILE>(shared, &args.finish, warpgroup, args.num_steps, args.wait_limit_ns);
    }
    mok_cuda_close_stages<TILE>();
}

template <typename TILE>
__global__ void __launch_bounds__(MOK_GEMM_THREADS, 1) down_kernel(const __grid_constant__ struct mok_down_kernel_args args)
{
    struct mok_gemm_shared<TILE> *shared = (struct mok_gemm_shared<TILE> *)shared_bytes;
    uint32_t warpgroup = mok_cuda_warpgroup();
    mok_cuda_open_stages<TILE>(shared);
    if (warpgroup == MOK_GEMM_LOADER / 128) {
        MOK_HW_REGISTERS_DOWN(MOK_GEMM_REGISTERS_LOAD);
        if (threadIdx.x == MOK_GEMM_LOADER) {
            mok_cuda_load_row_tiles<TILE>(&args, shared, MOK_GEMM_COLS, mok_cuda_load_down<TILE>);
        }
    } else {
        MOK_HW_REGISTERS_UP(MOK_GEMM_REGISTERS_MULTIPLY);
        mok_cuda_multiply_rows<TILE>(shared, &args.finish, warpgroup, args.num_steps, args.wait_limit_ns);
    }
    mok_cuda_close_stages<TILE>();
}

extern "C" struct mok_gemm_kernel mok_cuda_gate_up_kernel(void)
{
    struct mok_gemm_kernel kernel = {(const void *)gate_up_kernel<struct mok_tile_gate_up>, mok_tile_gate_up::CLUSTER, MOK_GEMM_THREADS,
                                     sizeof(struct mok_gemm_shared<struct mok_tile_gate_up>)};
    return kernel;
}

extern "C" struct mok_gemm_kernel mok_cuda_down_kernel(void)
{
    struct mok_gemm_kernel kernel = {(const void *)down_kernel<struct mok_tile_down>, mok_tile_down::CLUSTER, MOK_GEMM_THREADS,
                                     sizeof(struct mok_gemm_shared<struct mok_tile_down>)};
    return kernel;
}
