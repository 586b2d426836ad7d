/*
 * Kernels of the backward GEMMs over rows: D (dgrad of down, with the derivatives of the activation) and E (dgrad of gate+up).
 */
#include "cuda/gemm_dgrad_down.cuh"
#include "cuda/gemm_dgrad_gate_up.cuh"

template <typename TILE> MOK_DEVICE void load_dgrad_down_tiles(const struct mok_dgrad_down_kernel_args *args, struct mok_gemm_shared<TILE> *shared)
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
        mok_cuda_load_dgrad_down<TILE>(args, shared, &cursor, &tile);
    }
}

template <typename TILE>
MOK_DEVICE void multiply_dgrad_down_tiles(const struct mok_dgrad_down_kernel_args *args, struct mok_gemm_shared<TILE> *shared, uint32_t warpgroup)
{
    struct mok_stage_cursor cursor = {0, 0}, queue = {0, 0};
    struct mok_gemm_tile tile;
    while (mok_cuda_take_tile<TILE>(shared, &queue, &tile, args->wait_limit_ns)) {
        if (tile.rows > (int32_t)warpgroup * MOK_GEMM_PANEL) {
            float acc[128];
            mok_cuda_multiply<TILE>(acc, shared, &cursor, warpgroup, args->num_steps, &tile, args->wait_limit_ns);
            mok_cuda_finish_dgrad_down<TILE>(args, shared, &cursor, warpgroup, acc, &tile);
        } else {
            mok_cuda_skip_steps<TILE>(shared, &cursor, args->num_steps + MOK_DGRAD_DOWN_CHUNKS, args->wait_limit_ns);
        }
    }
    if (threadIdx.x % 128 == 0) {
        mok_hw_bulk_wait_0();
    }
}

template <typename TILE>
MOK_DEVICE void load_dgrad_gate_up_tiles(const struct mok_dgrad_gate_up_kernel_args *args, struct mok_gemm_shared<TILE> *shared)
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
        mok_cuda_load_dgrad_gate_up<TILE>(args, shared, &cursor, &tile);
    }
}

template <typename TILE>
MOK_DEVICE void multiply_dgrad_gate_up_tiles(const struct mok_dgrad_gate_up_kernel_args *args, struct mok_gemm_shared<TILE> *shared, uint32_t warpgroup)
{
    struct mok_stage_cursor cursor = {0, 0}, queue = {0, 0};
    struct mok_panel_writer writer = mok_cuda_open_panels<TILE>(shared, warpgroup);
    struct mok_gemm_tile tile;
    while (mok_cuda_take_tile<TILE>(shared, &queue, &tile, args->wait_limit_ns)) {
        if (tile.rows > (int32_t)warpgroup * MOK_GEMM_PANEL) {
            float acc[128];
            mok_cuda_multiply<TILE>(acc, shared, &cursor, warpgroup, 2 * args->half_steps, &tile, args->wait_limit_ns);
            mok_cuda_store_tile(&writer, &args->dx, acc, &tile);
        } else {
            mok_cuda_skip_steps<TILE>(shared, &cursor, 2 * args->half_steps, args->wait_limit_ns);
        }
    }
    mok_cuda_close_panels(&writer);
}

extern __shared__ __align__(1024) uint8_t shared_bytes[];

template <typename TILE>
__global__ void __launch_bounds__(MOK_GEMM_THREADS, 1) dgrad_down_kernel(const __grid_constant__ struct mok_dgrad_down_kernel_args args)
{
    struct mok_gemm_shared<TILE> *shared = (struct mok_gemm_shared<TILE> *)shared_bytes;
    uint32_t warpgroup = mok_cuda_warpgroup();
    mok_cuda_open_stages<TILE>(shared);
    if (warpgroup == MOK_GEMM_LOADER / 128) {
        MOK_HW_REGISTERS_DOWN(MOK_GEMM_REGISTERS_LOAD);
        if (threadIdx.x == MOK_GEMM_LOADER) {
            load_dgrad_down_tiles<TILE>(&args, shared);
        }
    } else {
        MOK_HW_REGISTERS_UP(MOK_GEMM_REGISTERS_MULTIPLY);
        multiply_dgrad_down_tiles<TILE>(&args, shared, warpgroup);
    }
    mok_cuda_close_stages<TILE>();
}

template <typename TILE>
__global__ void __launch_bounds__(MOK_GEMM_THREADS, 1) dgrad_gate_up_kernel(const __grid_constant__ struct mok_dgrad_gate_up_kernel_args args)
{
    struct mok_gemm_shared<TILE> *shared = (struct mok_gemm_shared<TILE> *)shared_bytes;
    uint32_t warpgroup = mok_cuda_warpgroup();
    mok_cuda_open_stages<TILE>(shared);
    if (warpgroup == MOK_GEMM_LOADER / 128) {
        MOK_HW_REGISTERS_DOWN(MOK_GEMM_REGISTERS_LOAD);
        if (threadIdx.x == MOK_GEMM_LOADER) {
            load_dgrad_gate_up_tiles<TILE>(&args, shared);
        }
    } else {
        MOK_HW_REGISTERS_UP(MOK_GEMM_REGISTERS_MULTIPLY);
        multiply_dgrad_gate_up_tiles<TILE>(&args, shared, warpgroup);
    }
    mok_cuda_close_stages<TILE>();
}

extern "C" struct mok_gemm_kernel mok_cuda_dgrad_down_kernel(void)
{
    struct mok_gemm_kernel kernel = {(const void *)dgrad_down_kernel<struct mok_tile_dgrad>, mok_tile_dgrad::CLUSTER, MOK_GEMM_THREADS,
                                     sizeof(struct mok_gemm_shared<struct mok_tile_dgrad>)};
    return kernel;
}

extern "C" struct mok_gemm_kernel mok_cuda_dgrad_gate_up_kernel(void)
{
    struct mok_gemm_kernel kernel = {(const void *)dgrad_gate_up_kernel<struct mok_tile_dgrad>, mok_tile_dgrad::CLUSTER, MOK_GEMM_THREADS,
                                     sizeof(struct mok_gemm_shared<struct mok_tile_dgrad>)};
    return kernel;
}
