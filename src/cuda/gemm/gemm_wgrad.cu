/*
 * Kernel of the weight gradients.
 */
#include "cuda/gemm/gemm_wgrad.cuh"

extern __shared__ __align__(1024) uint8_t shared_bytes[];

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
    struct mok_worker<TILE> worker = mok_cuda_open_worker<TILE>(shared, warpgroup, args->wait_limit_ns);
    struct mok_gemm_tile tile;
    int more = mok_cuda_take_tile<TILE>(&worker, &tile);
    while (more) {
        if (mok_cuda_has_rows<TILE>(&worker, &tile)) {
            float acc[128];
            mok_cuda_start_wgrad<TILE>(args, &worker, acc, &tile);
            if (tile.num_rows > 0) {
                mok_cuda_multiply<TILE>(&worker, acc, mok_cuda_wgrad_num_steps(&tile), NULL, NULL, NULL);
            }
            mok_cuda_finish_wgrad<TILE>(args, &worker, acc, &tile);
        } else {
            mok_cuda_skip_steps<TILE>(&worker, mok_cuda_wgrad_num_stages(args, &tile));
        }
        more = mok_cuda_take_tile<TILE>(&worker, &tile);
    }
    mok_cuda_close_panels();
}

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
