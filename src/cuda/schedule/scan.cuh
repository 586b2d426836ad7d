/*
 * What threads of a block, or blocks of a grid, find out together.
 */
#ifndef MOK_CUDA_SCAN_CUH
#define MOK_CUDA_SCAN_CUH

#include "cuda/hw/address.cuh"
#include "cuda/kernel.h"

enum { MOK_SCAN_WARP = 32, MOK_SCAN_WARPS = MOK_CUDA_ONE_BLOCK / MOK_SCAN_WARP };

/* Sum of the values of the threads before this one; *total_out the sum of all. warp_sums [MOK_SCAN_WARPS] in shared memory. All threads of
 * the block, a multiple of 32, call it. */
MOK_DEVICE int32_t mok_cuda_scan_block(int32_t value, int32_t *warp_sums, int32_t *total_out)
{
    int32_t lane = (int32_t)threadIdx.x % MOK_SCAN_WARP, warp = (int32_t)threadIdx.x / MOK_SCAN_WARP, sum = value;
    for (int step = 1; step < MOK_SCAN_WARP; step *= 2) {
        int32_t other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    __syncthreads(); /* warp_sums of the call before have been read */
    if (lane == MOK_SCAN_WARP - 1) {
        warp_sums[warp] = sum;
    }
    __syncthreads();
    int32_t before = 0, total = 0;
    for (int w = 0; w < (int)blockDim.x / MOK_SCAN_WARP; w++) {
        int32_t other = warp_sums[w];
        before += w < warp ? other : 0;
        total += other;
    }
    *total_out = total;
    return before + sum - value;
}

/*
 * 1 in all threads of the block that comes here last; it then sees what the other blocks wrote before they came. *arrived counts up and is 0 again
 * afterwards. Release and acquire are the fences around the atomic.
 */
MOK_DEVICE int mok_cuda_is_last_block(uint32_t *arrived)
{
    int is_last = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    return __syncthreads_or(is_last);
}

#endif
