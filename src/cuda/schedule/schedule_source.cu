/*
 * Schedule, source side: the routes of this rank, sorted by expert, stable in the order (token, k), published for their owners (plan/rows.h).
 *
 * in   ids [T, K]          out  region: offset [E + 2], list [T * K] of the half n % 2, n = this build; clean ids
 *
 *   COUNT    block b counts its routes by expert: histogram[b][e]; clean ids
 *   SCATTER  block b adds up the histograms: offset[e], and the routes to e in the blocks before b; puts each route at
 *            offset[e] + those before + its rank within the block. Block 0 publishes offset, the last block to end arrives at SCHED(n).
 *
 * Stable: a block has consecutive routes, a warp of it too, and takes 32 at a time in lane order. No two writers share a place, no order
 * depends on a race: shared-memory atomics only count. Every block adds up all histograms by itself: one round of loads that all blocks make at the
 * same time costs less than a block that does it for all while they wait.
 * n is read from the control block: the host does not know it in a replayed graph. Until SCHED(n) completes, n = sched + 1.
 */
#include "cuda/hw/sync.cuh"
#include "cuda/kernel.h"
#include "cuda/meet.cuh"
#include "cuda/schedule/scan.cuh"

enum {
    SORT_THREADS = 256,
    WARP = 32,
    AHEAD = 8, /* loads that a thread has under way */
    NOT_ROUTED = -1
};

/* Routes of this block. */
MOK_DEVICE int64_t chunk_first(const struct mok_cuda_sort_args *args) { return blockIdx.x * args->chunk; }
MOK_DEVICE int64_t chunk_end(const struct mok_cuda_sort_args *args)
{
    return mok_min64(chunk_first(args) + args->chunk, args->num_routes);
}

/* AHEAD ids, `stride` apart, from `first`; those at or behind `end` are NOT_ROUTED. */
MOK_DEVICE void load_ids(const int32_t *from, int64_t first, int64_t stride, int64_t end, int32_t *ids)
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        ids[i] = first + i * stride < end ? from[first + i * stride] : NOT_ROUTED;
    }
}

MOK_DEVICE void clear(int32_t *values, int32_t count)
{
    for (int32_t i = (int32_t)threadIdx.x; i < count; i += (int32_t)blockDim.x) {
        values[i] = 0;
    }
}

/* ---- COUNT ------------------------------------------------------------------------------------------------------------------ */

/* Returns the bad ids that this thread saw. */
MOK_DEVICE int32_t count_chunk(const struct mok_cuda_sort_args *args, int32_t *histogram)
{
    int64_t end = chunk_end(args);
    int32_t num_bad = 0;
    for (int64_t first = chunk_first(args) + threadIdx.x; first < end; first += AHEAD * SORT_THREADS) {
        int32_t ids[AHEAD];
        load_ids(args->ids, first, SORT_THREADS, end, ids);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int routed = mok_plan_is_routed(ids[i], args->num_experts);
            num_bad += mok_plan_is_bad_id(ids[i], args->num_experts);
            if (first + i * SORT_THREADS < end) {
                args->clean_ids[first + i * SORT_THREADS] = routed ? ids[i] : NOT_ROUTED;
            }
            if (routed) {
                atomicAdd(&histogram[ids[i]], 1);
            }
        }
    }
    return num_bad;
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) count_routes(const __grid_constant__ struct mok_cuda_sort_args args)
{
    extern __shared__ int32_t histogram[]; /* [E] */
    __shared__ int32_t warp_sums[MOK_SCAN_WARPS];
    int32_t num_bad;
    mok_hw_grid_let_follow();
    if (blockIdx.x == 0 && threadIdx.x == 0) { /* until the owner side is done, nobody finds rows here */
        struct mok_schedule_head none = {0, 0, 0, 0, 0, 0};
        *args.head = none;
    }
    clear(histogram, args.num_experts);
    __syncthreads();
    mok_cuda_scan_block(count_chunk(&args, histogram), warp_sums, &num_bad); /* a barrier is in it */
    for (int32_t e = (int32_t)threadIdx.x; e < args.num_experts; e += SORT_THREADS) {
        args.histogram[(int64_t)blockIdx.x * args.num_experts + e] = histogram[e];
    }
    if (threadIdx.x == 0) {
        args.block_bad[blockIdx.x] = num_bad;
    }
}

/* ---- SCATTER ---------------------------------------------------------------------------------------------------------------- */

/* Adds the histograms of blocks first, first + step, ... of expert e: all to *total, those of the blocks before this one to *before. */
MOK_DEVICE void add_histograms(const struct mok_cuda_sort_args *args, int32_t e, int32_t first, int32_t step, int32_t *before, int32_t *total)
{
    int32_t earlier = 0, all = 0;
    for (int32_t b = first; b < args->num_blocks; b += 2 * AHEAD * step) {
        int32_t count[2 * AHEAD];
#pragma unroll
        for (int i = 0; i < 2 * AHEAD; i++) {
            int32_t block = b + i * step;
            count[i] = block < args->num_blocks ? args->histogram[(int64_t)block * args->num_experts + e] : 0;
        }
#pragma unroll
        for (int i = 0; i < 2 * AHEAD; i++) {
            earlier += b + i * step < (int32_t)blockIdx.x ? count[i] : 0;
            all += count[i];
        }
    }
    if (all > 0) {
        atomicAdd(before, earlier);
        atomicAdd(total, all);
    }
}

/* total [E] becomes offset [E]; before [E] the place of this block's first route to e. Block 0 publishes. */
MOK_DEVICE void place_block(const struct mok_cuda_sort_args *args, int32_t *before, int32_t *total, int32_t *warp_sums)
{
    int32_t experts = args->num_experts, threads = (int32_t)blockDim.x, done = 0, sum;
    int32_t step = (int32_t)mok_max64(1, threads / experts); /* threads of an expert */
    clear(before, experts);
    clear(total, experts);
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < experts * step; i += threads) {
        add_histograms(args, i % experts, i / experts, step, &before[i % experts], &total[i % experts]);
    }
    __syncthreads();
    int32_t *offset = (int32_t *)(args->region + args->offset_off[(args->watch.control->sched + 1) & 1]);
    for (int32_t first = 0; first < experts; first += threads) {
        int32_t e = first + (int32_t)threadIdx.x;
        int32_t start = done + mok_cuda_scan_block(e < experts ? total[e] : 0, warp_sums, &sum);
        if (e < experts) {
            before[e] += start;
        }
        if (e < experts && blockIdx.x == 0) {
            offset[e] = start;
        }
        done += sum;
    }
    if (blockIdx.x == 0) {
        int32_t num_bad = 0;
        for (int32_t b = (int32_t)threadIdx.x; b < args->num_blocks; b += threads) {
            num_bad += args->block_bad[b];
        }
        mok_cuda_scan_block(num_bad, warp_sums, &sum);
        if (threadIdx.x == 0) {
            offset[experts] = done;
            offset[experts + 1] = sum;
        }
    }
}

/* Counts of each warp become the places of its first routes. place [warps][E]. */
MOK_DEVICE void place_warps(int32_t experts, const int32_t *block_place, int32_t *place)
{
    for (int32_t e = (int32_t)threadIdx.x; e < experts; e += (int32_t)blockDim.x) {
        int32_t at = block_place[e];
        for (int32_t w = 0; w < (int32_t)blockDim.x / WARP; w++) {
            int32_t count = place[w * experts + e];
            place[w * experts + e] = at;
            at += count;
        }
    }
}

/* Puts 32 routes from `at` at their places, in lane order. mine [E]: the warp's next place of each expert. */
MOK_DEVICE void put_routes(int32_t id, int64_t at, int32_t *mine, int32_t *list)
{
    int32_t lane = (int32_t)threadIdx.x % WARP;
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

/* Routes [first, end) of a warp. The first AHEAD rounds come from registers: with chunks of the ordinary size that is all. */
MOK_DEVICE void count_warp(const struct mok_cuda_sort_args *args, const int32_t *ids, int64_t first, int64_t end, int32_t *mine)
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (ids[i] >= 0) {
            atomicAdd(&mine[ids[i]], 1);
        }
    }
    for (int64_t at = first + AHEAD * WARP + threadIdx.x % WARP; at < end; at += WARP) {
        int32_t id = args->clean_ids[at];
        if (id >= 0) {
            atomicAdd(&mine[id], 1);
        }
    }
}

MOK_DEVICE void put_warp(const struct mok_cuda_sort_args *args, const int32_t *ids, int64_t first, int64_t end, int32_t *mine, int32_t *list)
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        put_routes(ids[i], first + i * WARP, mine, list);
    }
    for (int64_t at = first + AHEAD * WARP; at < end; at += WARP) {
        int64_t own = at + threadIdx.x % WARP;
        put_routes(own < end ? args->clean_ids[own] : NOT_ROUTED, at, mine, list);
    }
}

/* As many warps as histograms fit into shared memory beside the two of the block. */
extern "C" __global__ void __launch_bounds__(SORT_THREADS) scatter_routes(const __grid_constant__ struct mok_cuda_sort_args args)
{
    extern __shared__ int32_t tables[]; /* [E] places of the block, [E] offsets, [warps][E] places of each warp */
    __shared__ int32_t warp_sums[MOK_SCAN_WARPS];
    int32_t experts = args.num_experts, num_warps = (int32_t)blockDim.x / WARP, warp = (int32_t)threadIdx.x / WARP;
    int32_t *place = tables + 2 * experts, *mine = place + warp * experts;
    int64_t part = mok_round_up(mok_ceil_div(args.chunk, num_warps), WARP), first = chunk_first(&args) + warp * part;
    int64_t end = mok_min64(chunk_end(&args), first + part);
    int32_t ids[AHEAD];
    mok_hw_grid_let_follow();
    clear(place, num_warps * experts);
    mok_hw_grid_wait();
    uint32_t n = args.watch.control->sched + 1;
    load_ids(args.clean_ids, first + threadIdx.x % WARP, WARP, end, ids);
    int may_meet = mok_cuda_may_meet(&args.watch); /* here, beside other loads, and not when all wait for it */
    place_block(&args, tables, tables + experts, warp_sums);
    __syncthreads();
    count_warp(&args, ids, first, end, mine);
    __syncthreads();
    place_warps(experts, tables, place);
    __syncthreads();
    put_warp(&args, ids, first, end, mine, (int32_t *)(args.region + args.list_off[n & 1]));
    if (mok_cuda_is_last_block(&args.watch.control->scatter_blocks) && may_meet) {
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
