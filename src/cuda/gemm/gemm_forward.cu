/*
 * Kernels of the forward GEMMs: gate+up with the activation, and down. Persistent CTAs: the loader walks the tiles.
 */
#include "cuda/gemm/gemm_down.cuh"
#include "cuda/gemm/gemm_gate_up.cuh"
#include "cuda/gemm/gemm_multiply.cuh"

extern __shared__ __align__(1024) uint8_t shared_bytes[];

template <typename TILE>
MOK_DEVICE void load_gate_up_tiles(const struct mok_gate_up_kernel_args *args, struct mok_gemm_shared<TILE> *shared)
{
    struct mok_stage_cursor cursor = {0, 0}, queue = {0, 0};
    struct mok_gemm_tile tile;
    int32_t tiles = mok_cuda_window_tiles(&args->walk);
    for (int32_t idx = mok_cuda_first_idx<TILE>();; idx += mok_cuda_idx_stride<TILE>()) {
        tile.valid = mok_cuda_find_row_tile<TILE>(&args->walk, tiles, MOK_GATE_UP_COLS, idx, &tile);
        mok_cuda_post_tile<TILE>(shared, &queue, &tile, args->wait_limit_ns);
        if (!tile.valid) {
            return;
        }
        mok_cuda_load_gate_up<TILE>(args, shared, &cursor, &tile);
    }
}

template <typename TILE> MOK_DEVICE void load_down_tiles(const struct mok_down_kernel_args *args, struct mok_gemm_shared<TILE> *shared)
{
    struct mok_stage_cursor cursor = {0, 0}, queue = {0, 0};
    struct mok_gemm_tile tile;
    int32_t tiles = mok_cuda_window_tiles(&args->walk);
    for (int32_t idx = mok_cuda_first_idx<TILE>();; idx += mok_cuda_idx_stride<TILE>()) {
        tile.valid = mok_cuda_find_row_tile<TILE>(&args->walk, tiles, MOK_GEMM_COLS, idx, &tile);
        mok_cuda_post_tile<TILE>(shared, &queue, &tile, args->wait_limit_ns);
        if (!tile.valid) {
            return;
        }
        mok_cuda_load_down<TILE>(args, shared, &cursor, &tile);
    }
}

template <typename TILE>
__global__ void __launch_bounds__(MOK_GEMM_THREADS, 1) gate_up_kernel(const __grid_constant__ struct mok_gate_up_kernel_args args)
{
    struct mok_gemm_shared<TILE> *shared = (struct mok_gemm_shared<TILE> *)shared_bytes;
    uint32_t warpgroup = mok_cuda_warpgroup();
    mok_cuda_open_stages<TILE>(shared);
    if (warpgroup == MOK_GEMM_LOADER / 128) {
        MOK_HW_REGISTERS_DOWN(MOK_GEMM_REGISTERS_LOAD);
        if (threadIdx.x == MOK_GEMM_LOADER) {
            load_gate_up_tiles<TILE>(&args, shared);
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
            load_down_tiles<TILE>(&args, shared);
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
