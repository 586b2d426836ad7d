/*
 * Kernel of the weight gradients.
 */
#include "cuda/gemm_wgrad.cuh"

template <typename TILE> MOK_DEVICE void load_wgrad_tiles(const struct mok_wgrad_kernel_args *args, struct mok_gemm_shared<TILE> *shared)
{
    struct mok_stage_cursor cursor = {0, 0}, queue = {0, 0};
    struct mok_gemm_tile tile;
    for (int32_t idx = mok_cuda_first_idx<TILE>();; idx += mok_cuda_idx_stride<TILE>()) {
        tile.valid = mok_cuda_find_wgrad_tile<TILE>(args, idx, &tile);
        mok_cuda_post_tile<TILE>(shared, &queue, &tile, args->wait_limit_ns);
        if (!tile.valid) {
            return;
        }
        mok_cuda_load_wgrad<TILE>(args, shared, &cursor, &tile);
    }
}

template <typename TILE>
MOK_DEVICE void multiply_wgrad_tiles(const struct mok_wgrad_kernel_args *args, struct mok_gemm_shared<TILE> *shared, uint32_t warpgroup)
{
    struct mok_stage_cursor cursor = {0, 0}, queue = {0, 0};
    struct mok_panel_writer writer = mok_cuda_open_panels<TILE>(shared, warpgroup);
    struct mok_gemm_tile tile;
    while (mok_cuda_take_tile<TILE>(shared, &queue, &tile, args->wait_limit_ns)) {
        int32_t num_steps = (tile.num_rows + MOK_GEMM_DEPTH - 1) / MOK_GEMM_DEPTH;
        if (tile.rows > (int32_t)warpgroup * MOK_GEMM_PANEL) {
            float acc[128];
            mok_cuda_start_wgrad<TILE>(args, shared, &cursor, warpgroup, acc, &tile);
            mok_hw_wgmma_hold(acc);
            if (num_steps > 0) {
                mok_cuda_multiply<TILE>(acc, shared, &cursor, warpgroup, num_steps, &tile, args->wait_limit_ns);
            }
            mok_cuda_finish_wgrad(args, &writer, acc, &tile);
        } else {
            num_steps += mok_cuda_wgrad_start_steps(args, &tile);
            mok_cuda_skip_steps<TILE>(shared, &cursor, num_steps, args->wait_limit_ns);
        }
    }
    mok_cuda_close_panels(&writer);
}

extern __shared__ __align__(1024) uint8_t shared_bytes[];

template <typename TILE>
__global__ void __launch_bounds__(MOK_GEMM_THREADS, 1) wgrad_kernel(const __grid_constant__ struct mok_wgrad_kernel_args args)
{
    struct mok_gemm_shared<TILE> *shared = (struct mok_gemm_shared<TILE> *)shared_bytes;
    uint32_t warpgroup = mok_cuda_warpgroup();
    mok_cuda_open_stages<TILE>(shared);
    if (warpgroup == MOK_GEMM_LOADER / 128) {
        MOK_HW_REGISTERS_DOWN(MOK_GEMM_REGISTERS_LOAD);
        if (threadIdx.x == MOK_GEMM_LOADER) {
            load_wgrad_tiles<TILE>(&args, shared);
        }
    } else {
        MOK_HW_REGISTERS_UP(MOK_GEMM_REGISTERS_MULTIPLY);
        multiply_wgrad_tiles<TILE>(&args, shared, warpgroup);
    }
    mok_cuda_close_stages<TILE>();
}

extern "C" struct mok_gemm_kernel mok_cuda_wgrad_kernel(void)
{
    struct mok_gemm_kernel kernel = {(const void *)wgrad_kernel<struct mok_tile_wgrad>, mok_tile_wgrad::CLUSTER, MOK_GEMM_THREADS,
                                     sizeof(struct mok_gemm_shared<struct mok_tile_wgrad>)};
    return kernel;
}
