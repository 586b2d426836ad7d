/*
 * Kernels of the backward GEMMs over rows: D (dgrad of down, with the derivatives of the activation) and E (dgrad of gate+up).
 */
#include "cuda/gemm/gemm_dgrad_down.cuh"
#include "cuda/gemm/gemm_dgrad_gate_up.cuh"
#include "cuda/gemm/gemm_multiply.cuh"

extern __shared__ __align__(1024) uint8_t shared_bytes[];

template <typename TILE>
MOK_DEVICE void multiply_dgrad_down_tiles(const struct mok_dgrad_down_kernel_args *args, struct mok_gemm_shared<TILE> *shared,
                                          uint32_t warpgroup)
{
    struct mok_worker<TILE> worker = mok_cuda_open_worker<TILE>(shared, warpgroup, args->wait_limit_ns);
    struct mok_gemm_tile tile, next;
    int more = mok_cuda_take_tile<TILE>(&worker, &tile);
    while (more) {
        if (mok_cuda_has_rows<TILE>(&worker, &tile)) {
            float acc[128];
            mok_cuda_multiply<TILE>(&worker, acc, args->num_steps, NULL, NULL, NULL);
            more = mok_cuda_finish_dgrad_down<TILE>(args, &worker, acc, &tile, &next);
        } else {
            mok_cuda_skip_steps<TILE>(&worker, args->num_steps + MOK_DGRAD_DOWN_CHUNKS);
            more = mok_cuda_take_tile<TILE>(&worker, &next);
        }
        tile = next;
    }
    mok_cuda_close_panels();
}

template <typename TILE>
__global__ void __launch_bounds__(MOK_GEMM_THREADS, 1) dgrad_down_kernel(const __grid_constant__ struct mok_dgrad_down_kernel_args args)
{
    struct mok_gemm_shared<TILE> *shared = (struct mok_gemm_shared<TILE> *)shared_bytes;
    uint32_t warpgroup = mok_cuda_warpgroup();
    mok_cuda_open_stages<TILE>(shared);
    if (warpgroup == MOK_GEMM_LOADER / 128) {
        MOK_HW_REGISTERS_DOWN(MOK_GEMM_REGISTERS_LOAD);
        if (threadIdx.x == MOK_GEMM_LOADER) {
            mok_cuda_load_row_tiles<TILE>(&args, shared, MOK_GEMM_COLS, mok_cuda_load_dgrad_down<TILE>);
        }
    } else {
        MOK_HW_REGISTERS_UP(MOK_GEMM_REGISTERS_MULTIPLY);
        multiply_dgrad_down_tiles<TILE>(&args, shared, warpgroup);
    }
    mok_cuda_close_stages<TILE>();
}

template <typename TILE>
__global__ void __launch_bounds__(MOK_GEMM_THREADS, 1)
    dgrad_gate_up_kernel(const __grid_constant__ struct mok_dgrad_gate_up_kernel_args args)
{
    struct mok_gemm_shared<TILE> *shared = (struct mok_gemm_shared<TILE> *)shared_bytes;
    uint32_t warpgroup = mok_cuda_warpgroup();
    mok_cuda_open_stages<TILE>(shared);
    if (warpgroup == MOK_GEMM_LOADER / 128) {
        MOK_HW_REGISTERS_DOWN(MOK_GEMM_REGISTERS_LOAD);
        if (threadIdx.x == MOK_GEMM_LOADER) {
            mok_cuda_load_row_tiles<TILE>(&args, shared, MOK_GEMM_COLS, mok_cuda_load_dgrad_gate_up<TILE>);
        }
    } else {
        MOK_HW_REGISTERS_UP(MOK_GEMM_REGISTERS_MULTIPLY);
        mok_cuda_multiply_rows<TILE>(shared, &args.finish, warpgroup, 2 * args.half_steps, args.wait_limit_ns);
    }
    mok_cuda_close_stages<TILE>();
}

extern "C" struct mok_gemm_kernel mok_cuda_dgrad_down_kernel(void)
{
    struct mok_gemm_kernel kernel = {(const void *)dgrad_down_kernel<struct mok_tile_dgrad_down>, mok_tile_dgrad_down::CLUSTER,
                                     MOK_GEMM_THREADS, sizeof(struct mok_gemm_shared<struct mok_tile_dgrad_down>)};
    return kernel;
}

extern "C" struct mok_gemm_kernel mok_cuda_dgrad_gate_up_kernel(void)
{
    struct mok_gemm_kernel kernel = {(const void *)dgrad_gate_up_kernel<struct mok_tile_dgrad_gate_up>, mok_tile_dgrad_gate_up::CLUSTER,
                                     MOK_GEMM_THREADS, sizeof(struct mok_gemm_shared<struct mok_tile_dgrad_gate_up>)};
    return kernel;
}
