/*
 * Schedule, source side: the routes of this rank, sorted by expert, stable in the order (token, k), published for their owners (plan/rows.h).
 *
 * in   ids [T, K]          out  region: offset [E + 2], list [T * K] of the half n % 2, n = this build; clean ids
 *
 *   COUNT    block b counts its routes by expert                      histogram[b][e]
 *   SCAN     one block: offset[e], and histogram[b][e] := routes to e in the blocks before b
 *   SCATTER  block b puts each route at offset[e] + histogram[b][e] + its rank within the block
 *
 * Stable: a block has consecutive routes, a warp of it too, and takes 32 at a time in lane order. No two writers share a place, no order
 * depends on a race: shared-memory atomics only count.
 * n is read from the control block: the host does not know it in a replayed graph. Until SCHED(n) completes, n = sched + 1.
 */
#include "cuda/hw/address.cuh"
#include "cuda/kernel.h"
#include "cuda/scan.cuh"

enum { SORT_THREADS = 256, WARP = 32 };

MOK_DEVICE int half_of_build(const struct mok_cuda_control *control) { return (int)((control->sched + 1) & 1); }

MOK_DEVICE int64_t chunk_end(const struct mok_cuda_sort_args *args, int64_t first)
{
    return mok_min64(first + args->chunk, args->num_routes);
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) count_routes(const __grid_constant__ struct mok_cuda_sort_args args)
{
    extern __shared__ int32_t histogram[]; /* [E] */
    int32_t block = (int32_t)blockIdx.x;
    int64_t first = block * args.chunk, end = chunk_end(&args, first);
    int32_t num_bad = 0;
    if (block == 0 && threadIdx.x == 0) { /* until the owner side is done, nobody finds rows here */
        struct mok_schedule_head none = {0, 0, 0, 0, 0};
        *args.head = none;
    }
    for (int32_t e = (int32_t)threadIdx.x; e < args.num_experts; e += SORT_THREADS) {
        histogram[e] = 0;
    }
    __syncthreads();
    for (int64_t i = first + threadIdx.x; i < end; i += SORT_THREADS) {
        int32_t id = args.ids[i];
        int routed = mok_plan_is_routed(id, args.num_experts);
        num_bad += mok_plan_is_bad_id(id, args.num_experts);
        args.clean_ids[i] = routed ? id : -1;
        if (routed) {
            atomicAdd(&histogram[id], 1);
        }
    }
    num_bad = __reduce_add_sync(0xffffffffu, num_bad);
    __shared__ int32_t warp_bad[SORT_THREADS / WARP];
    if (threadIdx.x % WARP == 0) {
        warp_bad[threadIdx.x / WARP] = num_bad;
    }
    __syncthreads();
    for (int32_t e = (int32_t)threadIdx.x; e < args.num_experts; e += SORT_THREADS) {
        args.histogram[(int64_t)block * args.num_experts + e] = histogram[e];
    }
    if (threadIdx.x == 0) {
        int32_t sum = 0;
        for (int w = 0; w < SORT_THREADS / WARP; w++) {
            sum += warp_bad[w];
        }
        args.block_bad[block] = sum;
    }
}

/* Turns expert e's counts of all blocks into the number of routes in the blocks before; returns their sum. */
MOK_DEVICE int32_t scan_expert(const struct mok_cuda_sort_args *args, int32_t e)
{
    enum { BATCH = 8 };
    int32_t sum = 0;
    for (int32_t b = 0; b < args->num_blocks; b += BATCH) {
        int32_t count[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            count[i] = b + i < args->num_blocks ? args->histogram[(int64_t)(b + i) * args->num_experts + e] : 0;
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (b + i < args->num_blocks) {
                args->histogram[(int64_t)(b + i) * args->num_experts + e] = sum;
            }
            sum += count[i];
        }
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(MOK_CUDA_SCAN_THREADS) scan_routes(const __grid_constant__ struct mok_cuda_sort_args args)
{
    __shared__ int32_t warp_sums[MOK_SCAN_WARPS];
    int32_t *offset = (int32_t *)(args.region + args.offset_off[half_of_build(args.control)]);
    int32_t done = 0, total;
    for (int32_t first = 0; first < args.num_experts; first += MOK_CUDA_SCAN_THREADS) {
        int32_t e = first + (int32_t)threadIdx.x;
        int32_t count = e < args.num_experts ? scan_expert(&args, e) : 0;
        int32_t before = mok_cuda_scan_block(count, warp_sums, &total);
        if (e < args.num_experts) {
            offset[e] = done + before;
        }
        done += total;
    }
    int32_t num_bad = 0;
    for (int32_t b = (int32_t)threadIdx.x; b < args.num_blocks; b += MOK_CUDA_SCAN_THREADS) {
        num_bad += args.block_bad[b];
    }
    mok_cuda_scan_block(num_bad, warp_sums, &total);
    if (threadIdx.x == 0) {
        offset[args.num_experts] = done;
        offset[args.num_experts + 1] = total;
    }
}

/* Places of the block's first route to each expert, warp by warp: place[w][e]. */
MOK_DEVICE void place_warps(const struct mok_cuda_sort_args *args, const int32_t *offset, int32_t *place, int32_t num_warps)
{
    const int32_t *before = args->histogram + (int64_t)blockIdx.x * args->num_experts;
    for (int32_t e = (int32_t)threadIdx.x; e < args->num_experts; e += (int32_t)blockDim.x) {
        int32_t at = offset[e] + before[e];
        for (int32_t w = 0; w < num_warps; w++) {
            int32_t count = place[w * args->num_experts + e];
            place[w * args->num_experts + e] = at;
            at += count;
        }
    }
}

/* As many warps as histograms fit into shared memory. */
extern "C" __global__ void __launch_bounds__(SORT_THREADS) scatter_routes(const __grid_constant__ struct mok_cuda_sort_args args)
{
    extern __shared__ int32_t place[]; /* [warps][E] */
    int half = half_of_build(args.control);
    const int32_t *offset = (const int32_t *)(args.region + args.offset_off[half]);
    int32_t *list = (int32_t *)(args.region + args.list_off[half]);
    int32_t num_warps = (int32_t)blockDim.x / WARP, warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    int32_t *mine = place + warp * args.num_experts;
    int64_t first = blockIdx.x * args.chunk, end = chunk_end(&args, first);
    int64_t part = mok_round_up(mok_ceil_div(args.chunk, num_warps), WARP);
    first += warp * part;
    end = mok_min64(end, first + part);
    for (int32_t i = (int32_t)threadIdx.x; i < num_warps * args.num_experts; i += (int32_t)blockDim.x) {
        place[i] = 0;
    }
    __syncthreads();
    for (int64_t i = first + lane; i < end; i += WARP) {
        int32_t id = args.clean_ids[i];
        if (id >= 0) {
            atomicAdd(&mine[id], 1);
        }
    }
    __syncthreads();
    place_warps(&args, offset, place, num_warps);
    __syncthreads();
    for (int64_t at = first; at < end; at += WARP) {
        int32_t id = at + lane < end ? args.clean_ids[at + lane] : -1;
        uint32_t same = __match_any_sync(0xffffffffu, id);
        int32_t before = __popc(same & ((1u << lane) - 1));
        int32_t base = id >= 0 ? mine[id] : 0;
        __syncwarp();
        if (id >= 0) {
            list[base + before] = (int32_t)(at + lane);
            if (before == 0) {
                mine[id] = base + __popc(same);
            }
        }
        __syncwarp();
    }
}

struct mok_cuda_kernel mok_cuda_count_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)count_routes, SORT_THREADS, sizeof(struct mok_cuda_sort_args)};
    return kernel;
}

struct mok_cuda_kernel mok_cuda_scan_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)scan_routes, MOK_CUDA_SCAN_THREADS, sizeof(struct mok_cuda_sort_args)};
    return kernel;
}

struct mok_cuda_kernel mok_cuda_scatter_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)scatter_routes, 0, sizeof(struct mok_cuda_sort_args)};
    return kernel;
}
