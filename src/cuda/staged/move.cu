/*
 * Dispatch by pull and combine by push: rows between this rank's buffers and the memory of their sources (design.md section 1).
 *
 *   PULL  source's rows [T, H] --> buffer row r       also router weights, and zeros in padding rows where rows are contracted later
 *   PUSH  buffer row r --> source's slot               also the gradient of the router weight: its partial sums, added in tile order
 *
 * A block has two warps. Warp 0 copies rows through a ring of stages in shared memory; a stage holds one copy a lane:
 *
 *   step s    load batch s into stage s % S   |   store batch s - lag from its stage
 *   pairing   load -> full[stage] (bytes land) -> every lane waits -> store, commit -> wait_group.read -> the stage is loaded again
 *
 * so that up to `lag` batches are being loaded and `behind` being stored. Rows of one expert alternate between sources, so a batch
 * keeps all links busy. Warp 1 moves the words. A copy waits for no other rank, only for the memory system; it has a limit all the same.
 */
#include "cuda/hw/bulk.cuh"
#include "cuda/hw/mbarrier.cuh"
#include "cuda/hw/sync.cuh"
#include "cuda/hw/tma.cuh"
#include "cuda/kernel.h"
#include "cuda/watch.cuh"

enum {
    WARP = 32,
    MOVE_THREADS = 2 * WARP,
    MAX_STAGES = 8,
    MAX_CHUNK = 16 * 1024,
    RING_BYTES = 108 * 1024, /* two blocks an SM: about 200 KB in flight a SM, more than the 1 MB a GPU that links need */
    PULL_BEHIND = 1,         /* loads are the slow side */
    PUSH_BEHIND = 3,         /* stores are */
    MIN_STAGES = PUSH_BEHIND + 2
};

struct move_shared {
    uint64_t full[MAX_STAGES];
    /* then the ring: [stages][batch][chunk_bytes] */
};

enum { MOVE_PULL, MOVE_PUSH };

/* One bulk copy of a lane, the way through shared memory left out. */
struct copy {
    char *from;
    char *to;
    uint32_t bytes; /* 0 = nothing */
};

MOK_DEVICE int64_t rows_here(const struct mok_cuda_move_args *args)
{
    int64_t rows = args->head->num_rows - args->first_row;
    return mok_max64(0, mok_min64(rows, args->window_rows));
}

/* What this lane copies in batch `batch`. */
MOK_DEVICE struct copy find_copy(const struct mok_cuda_move_args *args, int64_t batch, int64_t num_items, int direction)
{
    struct copy copy = {NULL, NULL, 0};
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int64_t item = batch * args->batch + lane;
    if (lane >= args->batch || item >= num_items) {
        return copy;
    }
    int64_t row = item / args->row_chunks;
    int32_t at = (int32_t)(item % args->row_chunks) * args->chunk_bytes;
    struct mok_route route = args->routes[args->first_row + row];
    if (route.rank < 0) {
        return copy;
    }
    int64_t place = direction == MOVE_PULL ? route.slot / args->top_k : route.slot;
    char *remote = args->watch.base[route.rank] + args->remote_off + place * args->row_bytes + at;
    char *local = args->local + row * args->row_bytes + at;
    copy.from = direction == MOVE_PULL ? remote : local;
    copy.to = direction == MOVE_PULL ? local : remote;
    copy.bytes = (uint32_t)mok_min64(args->chunk_bytes, args->row_bytes - at);
    return copy;
}

/* Waits for a stage's bytes. 1 = landed. */
MOK_DEVICE int wait_landed(const struct mok_cuda_watch *watch, uint64_t *full, uint32_t parity, int64_t step, int minds_abort)
{
    uint64_t since = mok_hw_time_ns();
    struct mok_cuda_sight sight = {MOK_SITE_COPY, step, 1, 0};
    while (!mok_hw_mbarrier_try_wait_cta(full, parity)) {
        if (minds_abort && mok_cuda_abort_word(watch) != 0) {
            mok_cuda_give_up(watch, &sight);
            return 0;
        }
        if (mok_hw_time_ns() - since > watch->local_limit_ns) {
            mok_cuda_expire(watch, &sight);
            return 0;
        }
    }
    return 1;
}

MOK_DEVICE void load_batch(const struct mok_cuda_move_args *args, uint64_t *full, char *stage, int64_t batch, int64_t num_items, int direction)
{
    int32_t lane = (int32_t)threadIdx.x % WARP;
    struct copy copy = find_copy(args, batch, num_items, direction);
    uint32_t bytes = __reduce_add_sync(0xffffffffu, copy.bytes);
    if (lane == 0) {
        mok_hw_mbarrier_arrive_expect_cta(full, bytes);
    }
    __syncwarp();
    if (copy.bytes > 0) {
        mok_hw_bulk_load(stage + lane * args->chunk_bytes, copy.from, copy.bytes, full);
    }
}

MOK_DEVICE void store_batch(const struct mok_cuda_move_args *args, char *stage, int64_t batch, int64_t num_items, int direction)
{
    struct copy copy = find_copy(args, batch, num_items, direction);
    if (copy.bytes > 0) {
        mok_hw_bulk_store(copy.to, stage + (int32_t)threadIdx.x % WARP * args->chunk_bytes, copy.bytes);
    }
    mok_hw_bulk_commit();
}

/* Warp 0. */
MOK_DEVICE void move_rows(const struct mok_cuda_move_args *args, struct move_shared *shared, int direction)
{
    char *ring = (char *)(shared + 1);
    int32_t stage_bytes = args->batch * args->chunk_bytes;
    int32_t lag = args->stages - 1 - (direction == MOVE_PULL ? PULL_BEHIND : PUSH_BEHIND);
    int64_t num_items = rows_here(args) * args->row_chunks;
    int64_t num_batches = mok_ceil_div(num_items, args->batch);
    int64_t steps = num_batches > blockIdx.x ? mok_ceil_div(num_batches - blockIdx.x, gridDim.x) : 0;
    int64_t step = 0, stored = 0;
    int alive = 1;
    for (; alive && stored < steps; step++) {
        if (step < steps) {
            if (direction == MOVE_PULL) {
                MOK_HW_BULK_WAIT_READ(PULL_BEHIND);
            } else {
                MOK_HW_BULK_WAIT_READ(PUSH_BEHIND);
            }
            __syncwarp();
            int32_t stage = (int32_t)(step % args->stages);
            load_batch(args, &shared->full[stage], ring + stage * stage_bytes, blockIdx.x + step * gridDim.x, num_items, direction);
        }
        if (step >= lag) {
            int32_t stage = (int32_t)(stored % args->stages);
            uint32_t parity = (uint32_t)(stored / args->stages) & 1;
            alive = wait_landed(&args->watch, &shared->full[stage], parity, stored, 1);
            alive = __all_sync(0xffffffffu, alive);
            if (alive) {
                store_batch(args, ring + stage * stage_bytes, blockIdx.x + stored * gridDim.x, num_items, direction);
                stored++;
            }
        }
    }
    for (; !alive && stored < mok_min64(step, steps); stored++) { /* loads under way end before their shared memory does */
        wait_landed(&args->watch, &shared->full[stored % args->stages], (uint32_t)(stored / args->stages) & 1, stored, 0);
    }
    mok_hw_bulk_wait_0();
}

/* PULL, one row tile: router weights, and zeros up to the next multiple of MOK_CHUNK_ROWS. Warp 1. */
MOK_DEVICE void pull_words(const struct mok_cuda_move_args *args, int32_t tile_row)
{
    int32_t lane = (int32_t)threadIdx.x % WARP, tile = (args->first_row + tile_row) / MOK_TILE_ROWS;
    int32_t expert = args->tile_expert[tile], first = args->expert_first[expert], rows = args->expert_rows[expert];
    int32_t end = mok_min64(MOK_TILE_ROWS, first + rows - args->first_row - tile_row);
    for (int32_t r = lane; args->local_w != NULL && r < end; r += WARP) {
        struct mok_route route = args->routes[args->first_row + tile_row + r];
        const uint32_t *w = (const uint32_t *)(args->watch.base[route.rank] + args->word_off) + route.slot;
        args->local_w[tile_row + r] = __uint_as_float(mok_hw_load_relaxed_sys(w));
    }
    int32_t zero_end = mok_min64(MOK_TILE_ROWS, first + mok_round_up(rows, MOK_CHUNK_ROWS) - args->first_row - tile_row);
    uint4 *zeros = (uint4 *)(args->local + (int64_t)(tile_row + end) * args->row_bytes);
    int64_t num_zeros = (int64_t)(zero_end - end) * args->row_bytes / 16;
    for (int64_t i = lane; i < num_zeros; i += WARP) {
        zeros[i] = make_uint4(0, 0, 0, 0);
    }
}

/* PUSH, one row tile: dw of each row. Warp 1. */
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
    if (threadIdx.x < WARP) {
        for (int32_t i = (int32_t)threadIdx.x; i < args->stages; i += WARP) {
            mok_hw_mbarrier_init(&shared->full[i], 1);
        }
        mok_hw_fence_async(); /* the barriers, and what peers wrote before the ENTRY barrier, for the copy engine */
        __syncwarp();
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
    args->row_chunks = (int32_t)mok_ceil_div(args->row_bytes, MAX_CHUNK);
    args->chunk_bytes = (int32_t)mok_round_up(mok_ceil_div(args->row_bytes, args->row_chunks), 16);
    int32_t places = RING_BYTES / args->chunk_bytes;
    args->batch = (int32_t)mok_max64(1, mok_min64(WARP, places / MIN_STAGES));
    args->stages = (int32_t)mok_min64(MAX_STAGES, places / args->batch);
    return sizeof(struct move_shared) + (size_t)args->stages * args->batch * args->chunk_bytes;
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
