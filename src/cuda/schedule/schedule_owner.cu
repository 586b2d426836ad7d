/*
 * Schedule, owner side: which rows this rank has, and where each comes from (plan/rows.h, plan/schedule.h).
 *
 * in   offset and list of every source, of the half n % 2, n = this build: only the parts for this rank's experts are read
 * out  the arrays of struct mok_schedule_view, the same bits as the CPU backend's
 *
 *   ROUTES  every block: waits for SCHED(n); tables of the rows of each local expert, in shared memory
 *           a thread a route: row = expert_first + mok_plan_row_in_expert; a warp a row tile: its expert, its padding
 *           block 0: what is said of experts; the last block to end: the head, and that n is built
 *
 * Every block makes the tables for itself: one round of loads from the sources, which all blocks make at the same time, costs less than another
 * launch. The local experts' parts of a source's list are one run, so that its loads are coalesced. The row order is arithmetic on R counts a route.
 * When SCHED does not complete for every block, the head stays as COUNT left it: no rows.
 *
 * Blocks that wait must not keep a rank on the same GPU from arriving: a launch has at most as many as the rank has SMs, and several fit an SM.
 */
#include "cuda/hw/sync.cuh"
#include "cuda/kernel.h"
#include "cuda/meet.cuh"
#include "cuda/schedule/scan.cuh"

enum {
    ROUTE_THREADS = MOK_CUDA_ROUTE_THREADS,
    WARP = 32,
    AHEAD = 4 /* routes that a thread has under way */
};

/* In shared memory, of this rank's experts. */
struct tables {
    int32_t *starts;      /* [R, El + 1] first place of each expert in the list of each source */
    int32_t *counts;      /* [R, El] */
    int32_t *first;       /* [El + 1] first row */
    int32_t *source_from; /* [R + 1] routes of the sources before */
};

/* The same in all threads of a block, and in all blocks. */
struct totals {
    int32_t padded, num_active;
    uint32_t bad;
};

MOK_DEVICE struct tables place_tables(const struct mok_cuda_own_args *args, int32_t *shared)
{
    int32_t ranks = args->watch.num_ranks, num_local = args->num_local;
    struct tables tables;
    tables.starts = shared;
    tables.counts = tables.starts + ranks * (num_local + 1);
    tables.first = tables.counts + ranks * num_local;
    tables.source_from = tables.first + num_local + 1;
    return tables;
}

MOK_DEVICE const int32_t *source_ints(const struct mok_cuda_own_args *args, int32_t source, const int64_t *half_off, uint32_t n)
{
    return (const int32_t *)(args->watch.base[source] + half_off[n & 1]);
}

/* Copies the R x (El + 1) offsets that matter, then their differences. Returns the bad ids that this thread was told of. */
MOK_DEVICE int32_t read_sources(const struct mok_cuda_own_args *args, const struct tables *tables, uint32_t n)
{
    int32_t ranks = args->watch.num_ranks, width = args->num_local + 1, bad = 0;
    for (int32_t s = (int32_t)threadIdx.x; s < ranks; s += ROUTE_THREADS) {
        bad += source_ints(args, s, args->offset_off, n)[args->num_experts + 1];
    }
    for (int32_t i = (int32_t)threadIdx.x; i < ranks * width; i += ROUTE_THREADS) {
        tables->starts[i] = source_ints(args, i / width, args->offset_off, n)[args->first_expert + i % width];
    }
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < ranks * args->num_local; i += ROUTE_THREADS) {
        const int32_t *start = tables->starts + i + i / args->num_local;
        tables->counts[i] = start[1] - start[0];
    }
    __syncthreads();
    return bad;
}

/* Rows of local expert e over all sources; 0 past the last expert. */
MOK_DEVICE int32_t count_rows(const struct mok_cuda_own_args *args, const struct tables *tables, int32_t e)
{
    int32_t rows = 0;
    for (int32_t s = 0; e < args->num_local && s < args->watch.num_ranks; s++) {
        rows += tables->counts[s * args->num_local + e];
    }
    return rows;
}

/* first; *padded_out all rows. Returns the number of experts with rows. */
MOK_DEVICE int32_t lay_out_experts(const struct mok_cuda_own_args *args, const struct tables *tables, int32_t *warp_sums, int32_t *padded_out)
{
    int32_t tiles_before = 0, num_active = 0, tiles;
    for (int32_t from = 0; from < args->num_local; from += ROUTE_THREADS) {
        int32_t e = from + (int32_t)threadIdx.x;
        int32_t rows = count_rows(args, tables, e);
        int32_t before = mok_cuda_scan_block((rows + MOK_TILE_ROWS - 1) / MOK_TILE_ROWS, warp_sums, &tiles);
        num_active += __syncthreads_count(rows > 0);
        if (e < args->num_local) {
            tables->first[e] = (tiles_before + before) * MOK_TILE_ROWS;
        }
        tiles_before += tiles;
    }
    *padded_out = tiles_before * MOK_TILE_ROWS;
    if (threadIdx.x == 0) {
        tables->first[args->num_local] = *padded_out;
    }
    return num_active;
}

/* source_from. */
MOK_DEVICE void add_sources(const struct mok_cuda_own_args *args, const struct tables *tables, int32_t *warp_sums)
{
    int32_t ranks = args->watch.num_ranks, done = 0, sum;
    for (int32_t from = 0; from < ranks; from += ROUTE_THREADS) {
        int32_t s = from + (int32_t)threadIdx.x;
        const int32_t *starts = tables->starts + (int64_t)s * (args->num_local + 1);
        int32_t before = mok_cuda_scan_block(s < ranks ? starts[args->num_local] - starts[0] : 0, warp_sums, &sum);
        if (s < ranks) {
            tables->source_from[s] = done + before;
        }
        done += sum;
    }
    if (threadIdx.x == 0) {
        tables->source_from[ranks] = done;
    }
}

MOK_DEVICE struct totals make_tables(const struct mok_cuda_own_args *args, const struct tables *tables, int32_t *warp_sums, uint32_t n)
{
    struct totals totals;
    int32_t bad, told = read_sources(args, tables, n);
    mok_cuda_scan_block(told, warp_sums, &bad);
    totals.bad = (uint32_t)bad;
    totals.num_active = lay_out_experts(args, tables, warp_sums, &totals.padded);
    add_sources(args, tables, warp_sums);
    __syncthreads();
    return totals;
}

/* expert_rows, expert_first; active, ordinal: experts with rows in front, both parts ascending. One block. */
MOK_DEVICE void write_experts(const struct mok_cuda_own_args *args, const struct tables *tables, int32_t num_active, int32_t *warp_sums)
{
    int32_t active_before = 0, active;
    for (int32_t from = 0; from < args->num_local; from += ROUTE_THREADS) {
        int32_t e = from + (int32_t)threadIdx.x, rows = count_rows(args, tables, e);
        int32_t before = active_before + mok_cuda_scan_block(rows > 0, warp_sums, &active);
        if (e < args->num_local) {
            int32_t place = rows > 0 ? before : num_active + e - before;
            args->out.expert_rows[e] = rows;
            args->out.expert_first[e] = tables->first[e];
            args->out.ordinal[e] = place;
            args->out.active[place] = e;
        }
        active_before += active;
    }
    if (threadIdx.x == 0) {
        args->out.expert_first[args->num_local] = tables->first[args->num_local];
    }
}

/* What is said once. One thread. bad_before: of the builds before this one. */
MOK_DEVICE void write_totals(const struct mok_cuda_own_args *args, const struct totals *totals, uint64_t bad_before, uint32_t n)
{
    struct mok_schedule_head head = {totals->padded, totals->padded / MOK_TILE_ROWS, totals->num_active, args->num_tokens, totals->bad, n};
    *args->out.head = head;
    *args->out.token_rows = args->num_tokens;
    *args->out.token_tiles = (args->num_tokens + MOK_TILE_ROWS - 1) / MOK_TILE_ROWS;
    args->watch.control->bad_ids = bad_before + totals->bad;
    volatile struct mok_cuda_record *record = args->watch.record;
    record->bad_ids = bad_before + totals->bad;
}

/* SCHED(n). 1 in all threads = every source has published. The abort word is on its way while the sources' words are looked at. */
MOK_DEVICE int wait_for_sources(const struct mok_cuda_own_args *args, uint32_t n)
{
    uint32_t raised = mok_cuda_abort_word(&args->watch);
    int ok = mok_cuda_wait_for_ranks(&args->watch, args->sched_off, n, MOK_SITE_SCHED_BARRIER);
    if (raised != 0 && threadIdx.x == 0) {
        mok_cuda_give_up(&args->watch, raised);
    }
    return __syncthreads_and(ok && raised == 0);
}

/* The largest i with from[i] <= value, 0 <= i < count, from[0] <= value. Of equal ones the last: runs without elements are passed over. */
MOK_DEVICE int32_t find_run(const int32_t *from, int32_t count, int32_t value)
{
    int32_t low = 0, high = count;
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        int below = from[middle] <= value;
        low = below ? middle : low;
        high = below ? high : middle;
    }
    return low;
}

/* The i-th of all routes for this rank, source by source: its source, and its place in that one's list. */
MOK_DEVICE int32_t find_place(const struct mok_cuda_own_args *args, const struct tables *tables, int32_t i, int32_t *at_out)
{
    int32_t s = find_run(tables->source_from, args->watch.num_ranks, i);
    *at_out = tables->starts[s * (args->num_local + 1)] + i - tables->source_from[s];
    return s;
}

MOK_DEVICE void write_route(const struct mok_cuda_own_args *args, const struct tables *tables, struct mok_route route, int32_t at)
{
    const int32_t *starts = tables->starts + route.rank * (args->num_local + 1);
    int32_t e = find_run(starts, args->num_local, at);
    int64_t row = mok_plan_row_in_expert(tables->counts + e, args->num_local, args->watch.num_ranks, args->watch.rank, route.rank, at - starts[e]);
    args->out.routes[tables->first[e] + row] = route;
}

/* Routes i, i + threads, ... AHEAD of them: loads first, their latency is that of a link. */
MOK_DEVICE void write_routes(const struct mok_cuda_own_args *args, const struct tables *tables, int32_t i, int32_t threads, uint32_t n)
{
    struct mok_route route[AHEAD];
    int32_t at[AHEAD], end = tables->source_from[args->watch.num_ranks];
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
        route[a].rank = -1;
        if (i + a * threads < end) {
            route[a].rank = find_place(args, tables, i + a * threads, &at[a]);
            route[a].slot = source_ints(args, route[a].rank, args->list_off, n)[at[a]];
        }
    }
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
        if (route[a].rank >= 0) {
            write_route(args, tables, route[a], at[a]);
        }
    }
}

/* Expert of a row tile, and rank -1 in its padding rows. One warp. */
MOK_DEVICE void finish_tile(const struct mok_cuda_own_args *args, const struct tables *tables, int32_t tile)
{
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t e = find_run(tables->first, args->num_local, tile * MOK_TILE_ROWS);
    int32_t end = tables->first[e] + count_rows(args, tables, e);
    if (lane == 0) {
        args->out.tile_expert[tile] = e;
    }
    for (int32_t row = tile * MOK_TILE_ROWS + lane; row < (tile + 1) * MOK_TILE_ROWS; row += WARP) {
        if (row >= end) {
            struct mok_route padding = {-1, -1};
            args->out.routes[row] = padding;
        }
    }
}

MOK_DEVICE void write_rows(const struct mok_cuda_own_args *args, const struct tables *tables, const struct totals *totals, uint32_t n)
{
    int32_t thread = (int32_t)(blockIdx.x * ROUTE_THREADS + threadIdx.x), threads = (int32_t)(gridDim.x * ROUTE_THREADS);
    int64_t num_routes = tables->source_from[args->watch.num_ranks];
    for (int64_t i = thread; i < num_routes; i += (int64_t)AHEAD * threads) {
        write_routes(args, tables, (int32_t)i, threads, n);
    }
    for (int32_t tile = thread / WARP; tile < totals->padded / MOK_TILE_ROWS; tile += threads / WARP) {
        finish_tile(args, tables, tile);
    }
}

/* The last block says that build n is complete, if it is in every block: until then, all read control->sched. One thread of each block, when the
 * block's other threads are done. */
MOK_DEVICE void end_build(const struct mok_cuda_own_args *args, const struct totals *totals, int ok, uint32_t n, uint64_t bad_before)
{
    enum { FAILED = 1 << 16 };
    struct mok_cuda_control *control = args->watch.control;
    uint32_t mine = ok ? 1 : 1 + FAILED;
    __threadfence();
    uint32_t arrived = atomicAdd(&control->routes_blocks, mine) + mine;
    if (arrived % FAILED < gridDim.x) {
        return;
    }
    __threadfence();
    int complete = arrived < FAILED;
    if (complete) {
        write_totals(args, totals, bad_before, n);
    }
    control->routes_blocks = 0;
    control->sched = complete ? n : n - 1;
}

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS) find_routes(const __grid_constant__ struct mok_cuda_own_args args)
{
    extern __shared__ int32_t shared[];
    __shared__ int32_t warp_sums[MOK_SCAN_WARPS];
    struct tables tables = place_tables(&args, shared);
    struct totals totals = {0, 0, 0};
    mok_hw_grid_wait();
    uint32_t n = args.watch.control->sched + 1;
    uint64_t bad_before = args.watch.control->bad_ids;
    int ok = wait_for_sources(&args, n);
    if (ok) {
        totals = make_tables(&args, &tables, warp_sums, n);
        if (blockIdx.x == 0) {
            write_experts(&args, &tables, totals.num_active, warp_sums);
        }
        write_rows(&args, &tables, &totals, n);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        end_build(&args, &totals, ok, n, bad_before);
    }
}

size_t mok_cuda_routes_shared_bytes(int64_t num_ranks, int64_t num_local)
{
    return (size_t)(num_ranks * (2 * num_local + 1) + num_local + 1 + num_ranks + 1) * sizeof(int32_t);
}

struct mok_cuda_kernel mok_cuda_routes_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)find_routes, ROUTE_THREADS, sizeof(struct mok_cuda_own_args)};
    return kernel;
}
