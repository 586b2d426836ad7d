/*
 * Schedule, owner side: which rows this rank has, and where each comes from (plan/rows.h, plan/schedule.h).
 *
 * in   offset and list of every source, of the half n % 2 (n = control->sched): only the parts for this rank's experts are read
 * out  the arrays of struct mok_schedule_view, the same bits as the CPU backend's
 *
 *   OWN     one block: waits for SCHED(n); starts, counts [R, El]; rows and first row of each local expert; active experts; head
 *   ROUTES  a thread a route: row = expert_first + mok_plan_row_in_expert; a warp a row tile: its expert, its padding
 *
 * The local experts' parts of a source's list are one run, so that its loads are coalesced. The row order is arithmetic on R counts a route.
 * When SCHED does not complete, the head stays as COUNT left it: no rows.
 */
#include "cuda/kernel.h"
#include "cuda/meet.cuh"
#include "cuda/schedule/scan.cuh"

enum { ROUTE_THREADS = 256, WARP = 32 };

MOK_DEVICE const int32_t *source_ints(const struct mok_cuda_own_args *args, int32_t source, const int64_t *half_off)
{
    return (const int32_t *)(args->watch.base[source] + half_off[args->watch.control->sched & 1]);
}

/* Copies the R x (El + 1) offsets that matter, then their differences. */
MOK_DEVICE void read_sources(const struct mok_cuda_own_args *args)
{
    int32_t width = args->num_local + 1, num = args->watch.num_ranks * width;
    for (int32_t i = (int32_t)threadIdx.x; i < num; i += MOK_CUDA_ONE_BLOCK) {
        args->starts[i] = source_ints(args, i / width, args->offset_off)[args->first_expert + i % width];
    }
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < num; i += MOK_CUDA_ONE_BLOCK) {
        int32_t s = i / width, e = i % width;
        if (e < args->num_local) {
            args->counts[s * args->num_local + e] = args->starts[i + 1] - args->starts[i];
        }
    }
    __syncthreads();
}

/* Rows of local expert e over all sources; 0 past the last expert. */
MOK_DEVICE int32_t count_rows(const struct mok_cuda_own_args *args, int32_t e)
{
    int32_t rows = 0;
    for (int32_t s = 0; e < args->num_local && s < args->watch.num_ranks; s++) {
        rows += args->counts[s * args->num_local + e];
    }
    return rows;
}

/* expert_rows, expert_first. Returns the number of experts with rows; *padded_out all rows. */
MOK_DEVICE int32_t lay_out_experts(const struct mok_cuda_own_args *args, int32_t *warp_sums, int32_t *padded_out)
{
    int32_t tiles_before = 0, num_active = 0, tiles, active;
    for (int32_t first = 0; first < args->num_local; first += MOK_CUDA_ONE_BLOCK) {
        int32_t e = first + (int32_t)threadIdx.x;
        int32_t rows = count_rows(args, e);
        int32_t before = mok_cuda_scan_block((rows + MOK_TILE_ROWS - 1) / MOK_TILE_ROWS, warp_sums, &tiles);
        mok_cuda_scan_block(rows > 0, warp_sums, &active);
        if (e < args->num_local) {
            args->out.expert_rows[e] = rows;
            args->out.expert_first[e] = (tiles_before + before) * MOK_TILE_ROWS;
        }
        tiles_before += tiles;
        num_active += active;
    }
    *padded_out = tiles_before * MOK_TILE_ROWS;
    return num_active;
}

/* active, ordinal: experts with rows in front, both parts ascending. */
MOK_DEVICE void list_active(const struct mok_cuda_own_args *args, int32_t num_active, int32_t *warp_sums)
{
    int32_t active_before = 0, active;
    for (int32_t first = 0; first < args->num_local; first += MOK_CUDA_ONE_BLOCK) {
        int32_t e = first + (int32_t)threadIdx.x;
        int is_active = e < args->num_local && args->out.expert_rows[e] > 0;
        int32_t before = active_before + mok_cuda_scan_block(is_active, warp_sums, &active);
        if (e < args->num_local) {
            int32_t place = is_active ? before : num_active + e - before;
            args->out.ordinal[e] = place;
            args->out.active[place] = e;
        }
        active_before += active;
    }
}

/* Routes of the sources before each, and all bad ids. Returns the latter, in all threads. */
MOK_DEVICE uint32_t add_sources(const struct mok_cuda_own_args *args, int32_t *warp_sums)
{
    int32_t ranks = args->watch.num_ranks, done = 0, bad = 0, sum;
    for (int32_t first = 0; first < ranks; first += MOK_CUDA_ONE_BLOCK) {
        int32_t s = first + (int32_t)threadIdx.x;
        const int32_t *starts = args->starts + (int64_t)s * (args->num_local + 1);
        int32_t before = mok_cuda_scan_block(s < ranks ? starts[args->num_local] - starts[0] : 0, warp_sums, &sum);
        if (s < ranks) {
            args->source_from[s] = done + before;
            bad += source_ints(args, s, args->offset_off)[args->num_experts + 1];
        }
        done += sum;
    }
    mok_cuda_scan_block(bad, warp_sums, &sum);
    if (threadIdx.x == 0) {
        args->source_from[ranks] = done;
    }
    return (uint32_t)sum;
}

/* What is said once. One thread. */
MOK_DEVICE void write_totals(const struct mok_cuda_own_args *args, int32_t num_active, int32_t padded, uint32_t bad)
{
    struct mok_cuda_control *control = args->watch.control;
    args->out.expert_first[args->num_local] = padded;
    struct mok_schedule_head head = {padded, padded / MOK_TILE_ROWS, num_active, args->num_tokens, bad};
    *args->out.head = head;
    *args->out.token_rows = args->num_tokens;
    *args->out.token_tiles = (args->num_tokens + MOK_TILE_ROWS - 1) / MOK_TILE_ROWS;
    control->bad_ids += bad;
    volatile struct mok_cuda_record *record = args->watch.record;
    record->bad_ids = control->bad_ids;
}

/* SCHED(n). 1 = every source has published. */
MOK_DEVICE int wait_for_sources(const struct mok_cuda_own_args *args)
{
    struct mok_cuda_control *control = args->watch.control;
    uint32_t n = control->sched + 1;
    int ok = mok_cuda_may_meet(&args->watch, n, MOK_SITE_SCHED_BARRIER) &&
             mok_cuda_wait_for_ranks(&args->watch, args->sched_off, n, MOK_SITE_SCHED_BARRIER);
    ok = __syncthreads_and(ok);
    if (threadIdx.x == 0) {
        control->sched_ok = ok ? 1 : 0;
        control->sched = ok ? n : n - 1;
    }
    __syncthreads();
    return ok;
}

extern "C" __global__ void __launch_bounds__(MOK_CUDA_ONE_BLOCK) own_rows(const __grid_constant__ struct mok_cuda_own_args args)
{
    __shared__ int32_t warp_sums[MOK_SCAN_WARPS];
    if (!wait_for_sources(&args)) {
        if (threadIdx.x == 0) {
            args.source_from[args.watch.num_ranks] = 0;
        }
        return;
    }
    int32_t padded;
    read_sources(&args);
    int32_t num_active = lay_out_experts(&args, warp_sums, &padded);
    __syncthreads();
    list_active(&args, num_active, warp_sums);
    uint32_t bad = add_sources(&args, warp_sums);
    if (threadIdx.x == 0) {
        write_totals(&args, num_active, padded, bad);
    }
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

/* What ROUTES looks up for each route, in shared memory where it fits. */
struct tables {
    const int32_t *starts, *counts, *source_from;
};

MOK_DEVICE void copy_table(int32_t *to, const int32_t *from, int32_t count)
{
    for (int32_t i = (int32_t)threadIdx.x; i < count; i += ROUTE_THREADS) {
        to[i] = from[i];
    }
}

MOK_DEVICE struct tables stage_tables(const struct mok_cuda_own_args *args, int32_t *shared)
{
    struct tables tables = {args->starts, args->counts, args->source_from};
    int32_t ranks = args->watch.num_ranks, num_starts = ranks * (args->num_local + 1), num_counts = ranks * args->num_local;
    if (args->stages_tables) {
        copy_table(shared, args->starts, num_starts);
        copy_table(shared + num_starts, args->counts, num_counts);
        copy_table(shared + num_starts + num_counts, args->source_from, ranks + 1);
        __syncthreads();
        tables.starts = shared;
        tables.counts = shared + num_starts;
        tables.source_from = shared + num_starts + num_counts;
    }
    return tables;
}

/* i-th of all routes for this rank, source by source. */
MOK_DEVICE void place_route(const struct mok_cuda_own_args *args, const struct tables *tables, int32_t i)
{
    int32_t s = find_run(tables->source_from, args->watch.num_ranks, i);
    const int32_t *starts = tables->starts + s * (args->num_local + 1);
    int32_t at = starts[0] + i - tables->source_from[s];
    struct mok_route route = {s, source_ints(args, s, args->list_off)[at]};
    int32_t e = find_run(starts, args->num_local, at);
    int64_t row = mok_plan_row_in_expert(tables->counts + e, args->num_local, args->watch.num_ranks, args->watch.rank, s, at - starts[e]);
    args->out.routes[args->out.expert_first[e] + row] = route;
}

/* Expert of a row tile, and rank -1 in its padding rows. One warp. */
MOK_DEVICE void finish_tile(const struct mok_cuda_own_args *args, int32_t tile)
{
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t e = find_run(args->out.expert_first, args->num_local, tile * MOK_TILE_ROWS);
    int32_t end = args->out.expert_first[e] + args->out.expert_rows[e];
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

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS) find_routes(const __grid_constant__ struct mok_cuda_own_args args)
{
    extern __shared__ int32_t shared[];
    struct tables tables = stage_tables(&args, shared);
    int64_t thread = (int64_t)blockIdx.x * ROUTE_THREADS + threadIdx.x, threads = (int64_t)gridDim.x * ROUTE_THREADS;
    int32_t num_routes = tables.source_from[args.watch.num_ranks];
    for (int64_t i = thread; i < num_routes; i += threads) {
        place_route(&args, &tables, (int32_t)i);
    }
    for (int64_t tile = thread / WARP; tile < args.out.head->num_tiles; tile += threads / WARP) {
        finish_tile(&args, (int32_t)tile);
    }
}

struct mok_cuda_kernel mok_cuda_own_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)own_rows, MOK_CUDA_ONE_BLOCK, sizeof(struct mok_cuda_own_args)};
    return kernel;
}

struct mok_cuda_kernel mok_cuda_routes_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)find_routes, ROUTE_THREADS, sizeof(struct mok_cuda_own_args)};
    return kernel;
}
