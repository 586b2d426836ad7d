/*
 * Dispatch by pull and combine by push: rows between this rank's buffers and the memory of their sources (design.md section 2).
 *
 *   PULL  source's rows [T, H] --> buffer row r       also router weights, and zeros in padding rows where rows are contracted later
 *   PUSH  buffer row r --> source's slot               also the gradient of the router weight: its partial sums, added in tile order
 *
 * A block has MOVERS warps that copy rows through places in shared memory, and one that moves the words. A lane has one place and goes its own
 * way, so that a row that comes late holds up nobody else:
 *
 *   FREE     takes the next item of the warp, load -> landed[lane] (bytes)      the next: items are given out by lane, in order
 *   LOADING  looks; landed -> store, commit
 *   STORING  wait_group.read: the store has read the place -> FREE
 *
 * With the loads and stores of 32 lanes in batches, in order, every batch waited for its slowest copy, and the links were used to 0.7 and 0.8 of
 * what the copy engine gets (bench/move). Four warps issue from a CTA, because one cannot ask for more than 25 GB/s.
 * Rows of one expert alternate between sources, so the items of a warp, runs of consecutive rows, keep all links busy.
 * A copy waits for no other rank, only for the memory system; it has a limit all the same.
 */
#include "cuda/hw/bulk.cuh"
#include "cuda/hw/mbarrier.cuh"
#include "cuda/hw/sync.cuh"
#include "cuda/hw/tma.cuh"
#include "cuda/kernel.h"
#include "cuda/watch.cuh"

enum {
    WARP = 32,
    MOVERS = 4,                    /* warps that issue */
    MOVE_THREADS = (MOVERS + 1) * WARP,
    PLACES_BYTES = 192 * 1024,     /* of a block, one a SM */
    MAX_CHUNK = 4 * 1024,
    CHUNK_STEP = 128,              /* copies that begin inside a line cost a third of the link */
    RUN = 8,                       /* consecutive items that a warp takes */
    PATIENCE = 256                 /* looks without success until the clock and the abort word are read */
};

struct move_shared {
    uint64_t landed[MOVERS * WARP];
    /* then the places: [MOVERS][lanes][chunk_bytes] */
};

enum { MOVE_PULL, MOVE_PUSH };
enum { FREE, LOADING, STORING, DONE };

/* A lane and its place. */
struct carrier {
    char *place;
    uint64_t *landed;
    uint32_t parity;
    int32_t state;
    char *to;
    uint32_t bytes;
};

/* What the lanes of a mover share. */
struct mover {
    int64_t num_items;
    int64_t next; /* in the warp's own count */
    int32_t idx, num;
    int32_t num_looks; /* in vain, one after another */
    uint64_t since;
};

MOK_DEVICE int64_t rows_here(const struct mok_cuda_move_args *args)
{
    int64_t rows = args->head->num_rows - args->first_row;
    return mok_max64(0, mok_min64(rows, args->window_rows));
}

/* The at-th item of a mover. */
MOK_DEVICE int64_t item_at(const struct mover *mover, int64_t at) { return (at / RUN * mover->num + mover->idx) * RUN + at % RUN; }

/* Loads an item, or passes over it: a padding row. */
MOK_DEVICE void load_item(const struct mok_cuda_move_args *args, struct carrier *carrier, int64_t item, int direction)
{
    int64_t row = item / args->row_chunks;
    int32_t at = (int32_t)(item - row * args->row_chunks) * args->chunk_bytes;
    struct mok_route route = args->routes[args->first_row + row];
    if (route.rank < 0) {
        return;
    }
    int64_t slot = direction == MOVE_PULL ? route.slot / args->top_k : route.slot;
    char *remote = args->watch.base[route.rank] + args->remote_off + slot * args->row_bytes + at;
    char *local = args->local + row * args->row_bytes + at;
    carrier->to = direction == MOVE_PULL ? local : remote;
    carrier->bytes = (uint32_t)min(args->chunk_bytes, args->row_bytes - at);
    mok_hw_mbarrier_arrive_expect_cta(carrier->landed, carrier->bytes);
    mok_hw_bulk_load(carrier->place, direction == MOVE_PULL ? remote : local, carrier->bytes, carrier->landed);
    carrier->state = LOADING;
}

/* Gives the next items to the lanes that are free. All lanes call it. */
MOK_DEVICE void give_items(const struct mok_cuda_move_args *args, struct mover *mover, struct carrier *carrier, int direction)
{
    uint32_t free_lanes = __ballot_sync(0xffffffffu, carrier->state == FREE);
    if (carrier->state == FREE) {
        uint32_t before = free_lanes & ((1u << threadIdx.x % WARP) - 1);
        int64_t item = item_at(mover, mover->next + __popc(before));
        if (item < mover->num_items) {
            load_item(args, carrier, item, direction);
        } else {
            carrier->state = DONE;
        }
    }
    mover->next += __popc(free_lanes);
    __syncwarp();
}

/* 1 while the mover may go on waiting. */
MOK_DEVICE int may_wait(const struct mok_cuda_watch *watch, struct mover *mover)
{
    uint32_t raised = mok_cuda_abort_word(watch);
    if (raised != 0) {
        mok_cuda_give_up(watch, raised);
        return 0;
    }
    uint64_t now = mok_hw_time_ns();
    mover->since = mover->num_looks == PATIENCE ? now : mover->since;
    if (now - mover->since > watch->local_limit_ns) {
        struct mok_cuda_sight sight = {MOK_SITE_COPY, mover->next, 1, 0};
        mok_cuda_expire(watch, &sight);
        return 0;
    }
    return 1;
}

/* A place must outlive the load into it, also when nobody wants the row any more. */
MOK_DEVICE void let_land(const struct mok_cuda_watch *watch, const struct carrier *carrier)
{
    uint64_t since = mok_hw_time_ns();
    while (carrier->state == LOADING && !mok_hw_mbarrier_try_wait_cta(carrier->landed, carrier->parity) &&
           mok_hw_time_ns() - since <= watch->local_limit_ns) {
    }
}

/* The movers. */
MOK_DEVICE void move_rows(const struct mok_cuda_move_args *args, struct move_shared *shared, int direction)
{
    int32_t lane = (int32_t)threadIdx.x % WARP, warp = (int32_t)threadIdx.x / WARP;
    char *places = (char *)(shared + 1);
    struct mover mover = {rows_here(args) * args->row_chunks, 0, (int32_t)blockIdx.x * MOVERS + warp, (int32_t)gridDim.x * MOVERS, 0, 0};
    struct carrier carrier = {
        places + (warp * args->lanes + lane) * args->chunk_bytes, &shared->landed[threadIdx.x], 0, lane < args->lanes ? FREE : DONE, NULL, 0};
    int alive = 1;
    mok_hw_mbarrier_init(carrier.landed, 1);
    mok_hw_fence_async(); /* the barriers, and what peers wrote before the ENTRY barrier, for the copy engine */
    while (alive && __any_sync(0xffffffffu, carrier.state != DONE)) {
        if (carrier.state == STORING) {
            mok_hw_bulk_wait_read_0();
            carrier.state = FREE;
        }
        __syncwarp();
        give_items(args, &mover, &carrier, direction);
        if (carrier.state == LOADING && mok_hw_mbarrier_test_wait_cta(carrier.landed, carrier.parity)) {
            mok_hw_bulk_store(carrier.to, carrier.place, carrier.bytes);
            mok_hw_bulk_commit();
            carrier.parity ^= 1;
            carrier.state = STORING;
        }
        __syncwarp();
        mover.num_looks = __any_sync(0xffffffffu, carrier.state == STORING) ? 0 : mover.num_looks + 1;
        if (mover.num_looks > 0 && mover.num_looks % PATIENCE == 0) {
            alive = __all_sync(0xffffffffu, may_wait(&args->watch, &mover));
        }
    }
    let_land(&args->watch, &carrier);
    mok_hw_bulk_wait_0();
}

/* Router weights of `num` rows of a tile. All loads first: each takes as long as the rows that are on their way before it. */
MOK_DEVICE void pull_weights(const struct mok_cuda_move_args *args, int32_t tile_row, int32_t num)
{
    int32_t lane = (int32_t)threadIdx.x % WARP;
    uint32_t w[MOK_TILE_ROWS / WARP];
#pragma unroll
    for (int i = 0; i < MOK_TILE_ROWS / WARP; i++) {
        w[i] = 0;
        if (lane + i * WARP < num) {
            struct mok_route route = args->routes[args->first_row + tile_row + lane + i * WARP];
            w[i] = mok_hw_load_relaxed_sys((const uint32_t *)(args->watch.base[route.rank] + args->word_off) + route.slot);
        }
    }
#pragma unroll
    for (int i = 0; i < MOK_TILE_ROWS / WARP; i++) {
        if (lane + i * WARP < num) {
            args->local_w[tile_row + lane + i * WARP] = __uint_as_float(w[i]);
        }
    }
}

/* PULL, one row tile: router weights, and zeros up to the next multiple of MOK_CHUNK_ROWS. The last warp. */
MOK_DEVICE void pull_words(const struct mok_cuda_move_args *args, int32_t tile_row)
{
    int32_t lane = (int32_t)threadIdx.x % WARP, tile = (args->first_row + tile_row) / MOK_TILE_ROWS;
    int32_t expert = args->tile_expert[tile], first = args->expert_first[expert], rows = args->expert_rows[expert];
    int32_t end = mok_min64(MOK_TILE_ROWS, first + rows - args->first_row - tile_row);
    if (args->local_w != NULL) {
        pull_weights(args, tile_row, end);
    }
    int32_t zero_end = mok_min64(MOK_TILE_ROWS, first + mok_round_up(rows, MOK_CHUNK_ROWS) - args->first_row - tile_row);
    uint4 *zeros = (uint4 *)(args->local + (int64_t)(tile_row + end) * args->row_bytes);
    int64_t num_zeros = (int64_t)(zero_end - end) * args->row_bytes / 16;
    for (int64_t i = lane; i < num_zeros; i += WARP) {
        zeros[i] = make_uint4(0, 0, 0, 0);
    }
}

/* PUSH, one row tile: dw of each row. The last warp. */
MOK_DEVICE void push_words(const struct mok_cuda_move_args *args, int32_t tile_row)
{
    int32_t lane = (int32_t)threadIdx.x % WARP;
    for (int32_t r = tile_row + lane; r < tile_row + MOK_TILE_ROWS; r += WARP) {
        struct mok_route route = args->routes[args->first_row + r];
        if (route.rank >= 0) {
            const float *partial = args->dw_partial + (int64_t)r * args->num_partials;
            float sum = partial[0];
            for (int32_t i = 1; i < args->num_partials; i++) {
                sum = __fadd_rn(sum, partial[i]);
            }
            mok_hw_store_relaxed_sys((uint32_t *)(args->watch.base[route.rank] + args->word_off) + route.slot, __float_as_uint(sum));
        }
    }
}

MOK_DEVICE void move_block(const struct mok_cuda_move_args *args, struct move_shared *shared, int direction)
{
    if (*args->ok == 0) {
        return;
    }
    if (threadIdx.x < MOVERS * WARP) {
        move_rows(args, shared, direction);
    } else {
        int32_t rows = (int32_t)rows_here(args);
        for (int64_t row = (int64_t)blockIdx.x * MOK_TILE_ROWS; row < rows; row += (int64_t)gridDim.x * MOK_TILE_ROWS) {
            if (direction == MOVE_PULL) {
                pull_words(args, (int32_t)row);
            } else if (args->dw_partial != NULL) {
                push_words(args, (int32_t)row);
            }
        }
    }
    mok_hw_fence_async();
    mok_hw_fence_sys(); /* EXIT, or the next kernel's TMA loads, announce these writes */
}

extern "C" __global__ void __launch_bounds__(MOVE_THREADS) pull_rows(const __grid_constant__ struct mok_cuda_move_args args)
{
    extern __shared__ __align__(128) struct move_shared pull_shared[];
    move_block(&args, pull_shared, MOVE_PULL);
}

extern "C" __global__ void __launch_bounds__(MOVE_THREADS) push_rows(const __grid_constant__ struct mok_cuda_move_args args)
{
    extern __shared__ __align__(128) struct move_shared push_shared[];
    move_block(&args, push_shared, MOVE_PUSH);
}

size_t mok_cuda_cut_rows(struct mok_cuda_move_args *args)
{
    int64_t most_chunks = mok_ceil_div(args->row_bytes, MAX_CHUNK);
    args->chunk_bytes = (int32_t)mok_round_up(mok_ceil_div(args->row_bytes, most_chunks), CHUNK_STEP);
    args->row_chunks = (int32_t)mok_ceil_div(args->row_bytes, args->chunk_bytes);
    args->lanes = (int32_t)mok_min64(WARP, PLACES_BYTES / MOVERS / args->chunk_bytes);
    return sizeof(struct move_shared) + (size_t)MOVERS * args->lanes * args->chunk_bytes;
}

struct mok_cuda_kernel mok_cuda_pull_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)pull_rows, MOVE_THREADS, sizeof(struct mok_cuda_move_args)};
    return kernel;
}

struct mok_cuda_kernel mok_cuda_push_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)push_rows, MOVE_THREADS, sizeof(struct mok_cuda_move_args)};
    return kernel;
}
