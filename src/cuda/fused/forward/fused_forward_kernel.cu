/*
 * The fused forward pass of a rank: one persistent kernel that pulls rows, multiplies and pushes rows, behind the ENTRY barrier and before
 * the EXIT barrier.
 *
 * In: published x of all ranks, the schedule, weights. Out: slots of all ranks, shared expert's rows, the saved object. CTAs meet in
 * counters of this rank alone (fused/fused_counter.cuh), so ranks that share a GPU need not be resident together, and nothing here waits for a
 * peer.
 *
 * CTAs below walk.num_comm are communication CTAs. They copy beside the products, through a small ring of their own, or (apart) instead of
 * them through all of their shared memory. Progress needs one that moves and one cluster that multiplies: both take what is next.
 *
 * Roles of a CTA and its barriers: fused/fused_shared.cuh.
 */
#include "cuda/fused/forward/fused_forward_args.h"
#include "cuda/fused/forward/fused_forward_load.cuh"
#include "cuda/fused/forward/fused_forward_move.cuh"
#include "cuda/fused/forward/fused_forward_multiply.cuh"
#include "cuda/fused/forward/fused_forward_push.cuh"
#include "cuda/fused/forward/fused_forward_scout.cuh"

extern __shared__ __align__(1024) uint8_t shared_bytes[];

MOK_DEVICE void help(const struct mok_fused_args *args, mok_fused_shared *shared)
{
    int is_alive = *args->ok != 0, is_mover = is_alive && (int32_t)blockIdx.x < shared->walk.tiles.num_comm;
    switch (threadIdx.x / 32) {
    case MOK_FUSED_LOAD_WARP:
        mok_fused_forward_load(args, shared);
        break;
    case MOK_FUSED_SCOUT_WARP:
        if (mok_hw_cluster_cta() == 0) {
            mok_fused_forward_scout(args, shared, is_alive && !(is_mover && args->apart));
        }
        break;
    case MOK_FUSED_MOVE_WARP:
        if (is_mover) {
            mok_fused_forward_move(args, shared);
        }
        break;
    case MOK_FUSED_PUSH_WARP:
        mok_fused_push(args, shared);
        break;
    default: break;
    }
}

extern "C" __global__ void __launch_bounds__(MOK_GEMM_THREADS, 1) fused_forward(const __grid_constant__ struct mok_fused_args args)
{
    mok_fused_shared *shared = (mok_fused_shared *)shared_bytes;
    uint32_t warpgroup = mok_cuda_warpgroup();
    mok_fused_open(&args, shared);
    if (warpgroup == MOK_GEMM_LOADER / 128) {
        MOK_HW_REGISTERS_DOWN(MOK_FUSED_REGISTERS_HELP);
        help(&args, shared);
    } else {
        MOK_HW_REGISTERS_UP(MOK_FUSED_REGISTERS_MULTIPLY);
        mok_fused_forward_multiply(&args, shared, warpgroup);
    }
    mok_cuda_close_stages<mok_tile_fused>();
}

struct mok_gemm_kernel mok_cuda_fused_forward_kernel(void)
{
    struct mok_gemm_kernel kernel = {(const void *)fused_forward, mok_tile_fused::CLUSTER, MOK_GEMM_THREADS, sizeof(mok_fused_shared)};
    return kernel;
}

size_t mok_cuda_fused_forward_args_bytes(void) { return sizeof(struct mok_fused_args); }
