/*
 * Schedule, source side: the routes of this rank, sorted by expert, stable in the order (token, k), published for their owners (plan/rows.h).
 *
 * in   ids [T, K]          out  region: offset [E + 2], list [T * K] of the half n % 2, n = this build; clean ids
 *
 *   COUNT    block b counts its routes by expert: histogram[b][e]
 *            the last block: offset[e], and histogram[b][e] := routes to e in the blocks before b
 *   SCATTER  block b puts each route at offset[e] + histogram[b][e] + its rank within the block
 *            the last block: SCHED(n) arrives
 *
 * Stable: a block has consecutive routes, a warp of it too, and takes 32 at a time in lane order. No two writers share a place, no order
 * depends on a race: shared-memory atomics only count.
 * n is read from the control block: the host does not know it in a replayed graph. Until SCHED(n) completes, n = sched + 1.
 */
#include "cuda/kernel.h"
#include "cuda/meet.cuh"
#include "cuda/scan.cuh"

enum { SORT_THREADS = 256, WARP = 32 };

MOK_DEVICE int half_of_build(const struct mok_cuda_sort_args *args) { return (int)((args->watch.control->sched + 1) & 1); }

MOK_DEVICE int64_t chunk_end(const struct mok_cuda_sort_args *args, int64_t first)
{
    return mok_min64(first + args->chunk, args->num_routes);
}

/* Counts the block's routes into `histogram`, writes clean ids; returns the bad ids that this thread saw. */
MOK_DEVICE int32_t count_chunk(const struct mok_cuda_sort_args *args, int32_t *histogram)
{
    int64_t first = blockIdx.x * args->chunk, end = chunk_end(args, first);
    int32_t num_bad = 0;
    for (int32_t e = (int32_t)threadIdx.x; e < args->num_experts; e += SORT_THREADS) {
        histogram[e] = 0;
    }
    __syncthreads();
    for (int64_t i = first + threadIdx.x; i < end; i += SORT_THREADS) {
        int32_t id = args->ids[i];
        int routed = mok_plan_is_routed(id, args->num_experts);
        num_bad += mok_plan_is_bad_id(id, args->num_experts);
        args->clean_ids[i] = routed ? id : -1;
        if (routed) {
            atomicAdd(&histogram[id], 1);
        }
    }
    __syncthreads();
    for (int32_t e = (int32_t)threadIdx.x; e < args->num_experts; e += SORT_THREADS) {
        args->histogram[(int64_t)blockIdx.x * args->num_experts + e] = histogram[e];
    }
    return num_bad;
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

/* offset [E + 2] from the histograms of all blocks. */
MOK_DEVICE void scan_blocks(const struct mok_cuda_sort_args *args, int32_t *warp_sums)
{
    int32_t *offset = (int32_t *)(args->region + args->offset_off[half_of_build(args)]);
    int32_t done = 0, num_bad = 0, total;
    for (int32_t first = 0; first < args->num_experts; first += SORT_THREADS) {
        int32_t e = first + (int32_t)threadIdx.x;
        int32_t count = e < args->num_experts ? scan_expert(args, e) : 0;
        int32_t before = mok_cuda_scan_block(count, warp_sums, &total);
        if (e < args->num_experts) {
            offset[e] = done + before;
        }
        done += total;
    }
    for (int32_t b = (int32_t)threadIdx.x; b < args->num_blocks; b += SORT_THREADS) {
        num_bad += args->block_bad[b];
    }
    mok_cuda_scan_block(num_bad, warp_sums, &total);
    if (threadIdx.x == 0) {
        offset[args->num_experts] = done;
        offset[args->num_experts + 1] = total;
    }
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) count_routes(const __grid_constant__ struct mok_cuda_sort_args args)
{
    extern __shared__ int32_t histogram[]; /* [E] */
    __shared__ int32_t warp_sums[MOK_SCAN_WARPS];
    int32_t num_bad;
    if (blockIdx.x == 0 && threadIdx.x == 0) { /* until the owner side is done, nobody finds rows here */
        struct mok_schedule_head none = {0, 0, 0, 0, 0};
        *args.head = none;
    }
    mok_cuda_scan_block(count_chunk(&args, histogram), warp_sums, &num_bad);
    if (threadIdx.x == 0) {
        args.block_bad[blockIdx.x] = num_bad;
    }
    if (mok_cuda_is_last_block(&args.watch.control->count_blocks)) {
        scan_blocks(&args, warp_sums);
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

/* Puts a warp's routes [first, end) at their places, in order. mine [E]: the warp's next place of each expert. */
MOK_DEVICE void put_routes(const struct mok_cuda_sort_args *args, int64_t first, int64_t end, int32_t *mine, int32_t *list)
{
    int32_t lane = (int32_t)threadIdx.x % WARP;
    for (int64_t at = first; at < end; at += WARP) {
        int32_t id = at + lane < end ? args->clean_ids[at + lane] : -1;
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

/* As many warps as histograms fit into shared memory. */
extern "C" __global__ void __launch_bounds__(SORT_THREADS) scatter_routes(const __grid_constant__ struct mok_cuda_sort_args args)
{
    extern __shared__ int32_t place[]; /* [warps][E] */
    int half = half_of_build(&args);
    uint32_t n = args.watch.control->sched + 1;
    int32_t num_warps = (int32_t)blockDim.x / WARP, warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    int32_t *mine = place + warp * args.num_experts;
    int64_t part = mok_round_up(mok_ceil_div(args.chunk, num_warps), WARP);
    int64_t end = chunk_end(&args, blockIdx.x * args.chunk), first = blockIdx.x * args.chunk + warp * part;
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
    place_warps(&args, (const int32_t *)(args.region + args.offset_off[half]), place, num_warps);
    __syncthreads();
    put_routes(&args, first, end, mine, (int32_t *)(args.region + args.list_off[half]));
    if (mok_cuda_is_last_block(&args.watch.control->scatter_blocks) && mok_cuda_may_meet(&args.watch, n, MOK_SITE_SCHED_BARRIER)) {
        mok_cuda_arrive(&args.watch, args.sched_off, n);
    }
}

struct mok_cuda_kernel mok_cuda_count_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)count_routes, SORT_THREADS, sizeof(struct mok_cuda_sort_args)};
    return kernel;
}

struct mok_cuda_kernel mok_cuda_scatter_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)scatter_routes, 0, sizeof(struct mok_cuda_sort_args)};
    return kernel;
}
