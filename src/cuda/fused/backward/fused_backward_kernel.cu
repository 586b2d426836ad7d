/*
 * The fused backward pass of a rank: one persistent kernel that pulls dy and w, makes the gradients of rows and weights, and pushes dx and dw,
 * behind the ENTRY barrier and before the EXIT barrier. Roles of a CTA and their barriers are those of the forward kernel
 * (fused/fused_shared.cuh, fused/forward/fused_forward_kernel.cu), but for two: warp 11 announces finished tiles, it pushes nothing, and the
 * mover (warp 10) pushes dx rows and dw as well as it pulls. Tiles are of several kinds, and differ in how their operands are loaded, in the
 * major orders of their steps, and in what becomes of their sums.
 *
 * In: published dy and w of all ranks, the saved object, x of all ranks where rows were not kept, the schedule, weights. Out: slots and
 * dw slots of all ranks, weight gradients, the shared expert's dx and partial sums of dv.
 */
#include "cuda/fused/backward/fused_backward_load.cuh"
#include "cuda/fused/backward/fused_backward_move.cuh"
#include "cuda/fused/backward/fused_backward_multiply.cuh"
#include "cuda/fused/backward/fused_backward_scout.cuh"

extern __shared__ __align__(1024) uint8_t shared_bytes[];

MOK_DEVICE void help(const struct mok_fused_backward_args *args, mok_fused_shared *shared)
{
    int is_alive = *args->pass.ok != 0, is_mover = is_alive && (int32_t)blockIdx.x < shared->walk.tiles.num_comm;
    switch (threadIdx.x / 32) {
    case MOK_FUSED_LOAD_WARP:
        mok_fused_backward_load(args, shared);
        break;
    case MOK_FUSED_SCOUT_WARP:
        if (threadIdx.x % 32 == 0 && mok_hw_cluster_cta() == 0) {
            mok_fused_backward_scout(args, shared, is_alive && !(is_mover && args->pass.apart));
        }
        break;
    case MOK_FUSED_MOVE_WARP:
        if (is_mover) {
            mok_fused_backward_move(args, shared);
        }
        break;
    case MOK_FUSED_PUSH_WARP:
        if (threadIdx.x % 32 == 0) {
            mok_fused_announce_tiles(&args->pass, shared);
        }
        break;
    default: break;
    }
}

extern "C" __global__ void __launch_bounds__(MOK_GEMM_THREADS, 1)
    fused_backward(const __grid_constant__ struct mok_fused_backward_args args)
{
    mok_fused_shared *shared = (mok_fused_shared *)shared_bytes;
    uint32_t warpgroup = mok_cuda_warpgroup();
    mok_fused_open(&args.pass, shared);
    if (warpgroup == MOK_GEMM_LOADER / 128) {
        MOK_HW_REGISTERS_DOWN(MOK_FUSED_REGISTERS_HELP);
        help(&args, shared);
    } else {
        MOK_HW_REGISTERS_UP(MOK_FUSED_REGISTERS_MULTIPLY);
        mok_fused_backward_multiply(&args, shared, warpgroup);
    }
    mok_cuda_close_stages<mok_tile_fused>();
}

struct mok_gemm_kernel mok_cuda_fused_backward_kernel(void)
{
    struct mok_gemm_kernel kernel = {(const void *)fused_backward, mok_tile_fused::CLUSTER, MOK_GEMM_THREADS, sizeof(mok_fused_shared)};
    return kernel;
}

size_t mok_cuda_fused_backward_args_bytes(void) { return sizeof(struct mok_fused_backward_args); }
