/*
 * The communication worker of a CTA: one thread that walks mok_walk_step and moves rows between this rank's buffers and the memory of their sources.
 *
 *   pull   source's row [T, H] -> x of the padded row: in the saved object where it is kept, else in the ring; zeros in kept padding rows up to the
 *          expert's next multiple of 64 (they are contracted in backward)
 *   push   y of the padded row in the ring -> the source's slot, row tile after row tile behind y_done
 *
 * Rows go in chunks through a ring in shared memory; the loads of several chunks are under way, and the stores of some behind them:
 *   pairing   load -> copied[place] (bytes land) -> store, commit -> wait_group.read -> the place is loaded again
 *   end of a step: all stores have landed (wait_group 0) -> fence.proxy.async -> release of pulled or place_free; at the end of all: system scope
 */
#ifndef MOK_CUDA_FUSED_MOVE_CUH
#define MOK_CUDA_FUSED_MOVE_CUH

#include "cuda/fused_counter.cuh"
#include "cuda/fused_shared.cuh"
#include "cuda/hw/bulk.cuh"

enum {
    MOK_FUSED_RUN = 4,    /* neighbouring rows that one worker moves: their routes are two 16-byte loads */
    MOK_FUSED_BEHIND = 2, /* stores that may still read the ring */
    MOK_FUSED_APART_CHUNK = 8 * 1024,
    MOK_FUSED_SHARED_CHUNK = 2 * 1024
};

struct mok_fused_mover {
    uint8_t *ring;
    uint32_t newest, oldest; /* places */
    uint32_t parity;         /* of the round that `oldest` is in */
    int32_t in_flight;       /* chunks being loaded */
    int alive;
};

/* Waits until the oldest chunk has landed and stores it. */
MOK_DEVICE void mok_fused_store_oldest(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_mover *mover)
{
    uint32_t place = mover->oldest;
    uint64_t since = mok_hw_time_ns();
    while (!mok_hw_mbarrier_try_wait_cta(&shared->copied[place], mover->parity)) {
        if (mok_hw_time_ns() - since > args->watch.local_limit_ns) {
            struct mok_cuda_sight sight = {MOK_SITE_COPY, (int64_t)place, 1, 0};
            mok_cuda_expire(&args->watch, &sight);
            mover->alive = 0;
            break;
        }
    }
    if (mover->alive) {
        mok_hw_bulk_store(shared->copy_to[place], mover->ring + place * args->chunk_bytes, shared->copy_bytes[place]);
        mok_hw_bulk_commit();
    }
    mover->in_flight--;
    mover->oldest++;
    if (mover->oldest == (uint32_t)args->num_places) {
        mover->oldest = 0;
        mover->parity ^= 1;
    }
}

MOK_DEVICE void mok_fused_copy(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_mover *mover, const char *from, char *to,
                               uint32_t bytes)
{
    if (mover->in_flight == args->num_places - 1 - MOK_FUSED_BEHIND) {
        mok_fused_store_oldest(args, shared, mover);
    }
    MOK_HW_BULK_WAIT_READ(MOK_FUSED_BEHIND);
    uint32_t place = mover->newest;
    shared->copy_to[place] = to;
    shared->copy_bytes[place] = bytes;
    mok_hw_mbarrier_arrive_expect_cta(&shared->copied[place], bytes);
    mok_hw_bulk_load(mover->ring + place * args->chunk_bytes, from, bytes, &shared->copied[place]);
    mover->in_flight++;
    mover->newest = place + 1 == (uint32_t)args->num_places ? 0 : place + 1;
}

MOK_DEVICE void mok_fused_copy_row(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_mover *mover, const char *from, char *to)
{
    for (int32_t at = 0; at < args->row_bytes; at += args->chunk_bytes) {
        mok_fused_copy(args, shared, mover, from + at, to + at, (uint32_t)min(args->chunk_bytes, args->row_bytes - at));
    }
}

MOK_DEVICE void mok_fused_zero_row(const struct mok_fused_args *args, mok_fused_shared *shared, char *to)
{
    for (int32_t at = 0; at < args->row_bytes; at += MOK_FUSED_ZERO_BYTES) {
        mok_hw_bulk_store(to + at, shared->zeros, (uint32_t)min((int32_t)MOK_FUSED_ZERO_BYTES, args->row_bytes - at));
    }
    mok_hw_bulk_commit();
}

/* Everything that is under way lands. */
MOK_DEVICE void mok_fused_drain(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_mover *mover)
{
    while (mover->in_flight > 0) {
        mok_fused_store_oldest(args, shared, mover);
    }
    mok_hw_bulk_wait_0();
    mok_hw_fence_async();
}

/* A padding row that is contracted later. */
MOK_DEVICE int mok_fused_is_contracted(const struct mok_walk *walk, int32_t row)
{
    int32_t expert = walk->schedule.tile_expert[row / MOK_TILE_ROWS];
    int32_t inside = row - walk->schedule.expert_first[expert];
    return inside < (int32_t)mok_round_up(walk->schedule.expert_rows[expert], MOK_CHUNK_ROWS);
}

/* x of a padded row. */
MOK_DEVICE char *mok_fused_x_row(const struct mok_fused_args *args, int32_t is_kept, int32_t row, int32_t ring_row)
{
    return is_kept ? args->x_saved + (int64_t)row * args->row_bytes : args->x_ring + (int64_t)ring_row * args->row_bytes;
}

/* One row of a step. */
MOK_DEVICE void mok_fused_move_row(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_mover *mover, int32_t kind, int32_t row,
                                   int32_t ring_row, int32_t source, int32_t slot)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    int is_kept = mok_walk_is_kept(walk, row / MOK_TILE_ROWS);
    if (source < 0) {
        if (kind == MOK_STEP_PULL && is_kept && mok_fused_is_contracted(walk, row)) {
            mok_fused_zero_row(args, shared, mok_fused_x_row(args, 1, row, 0));
        }
    } else if (kind == MOK_STEP_PULL) {
        const char *from = args->watch.base[source] + args->x_off + (int64_t)(slot / walk->dims.top_k) * args->row_bytes;
        mok_fused_copy_row(args, shared, mover, from, mok_fused_x_row(args, is_kept, row, ring_row));
    } else {
        char *to = args->watch.base[source] + args->slots_off + (int64_t)slot * args->row_bytes;
        mok_fused_copy_row(args, shared, mover, args->y_ring + (int64_t)ring_row * args->row_bytes, to);
    }
}

/* This worker's runs of a step's rows: worker, worker + num_comm, ... */
MOK_DEVICE void mok_fused_move_minibatch(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_mover *mover,
                                         const struct mok_step *step, int32_t worker)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    int32_t first = step->minibatch * walk->mb_tiles * MOK_TILE_ROWS;
    int32_t ring_first = step->minibatch % walk->ring.num_places * walk->mb_tiles * MOK_TILE_ROWS;
    int32_t rows = mok_walk_minibatch_tiles(walk, step->minibatch) * MOK_TILE_ROWS;
    int32_t stride = walk->num_comm * MOK_FUSED_RUN, ready = -1;
    const int4 *routes = (const int4 *)(walk->schedule.routes + first);
    int4 next[2];
    int32_t row = worker * MOK_FUSED_RUN;
    if (row < rows) {
        next[0] = routes[row / 2];
        next[1] = routes[row / 2 + 1];
    }
    for (; row < rows && mover->alive; row += stride) {
        int4 now[2] = {next[0], next[1]};
        if (row + stride < rows) {
            next[0] = routes[(row + stride) / 2];
            next[1] = routes[(row + stride) / 2 + 1];
        }
        int32_t tile = (first + row) / MOK_TILE_ROWS;
        if (step->kind == MOK_STEP_PUSH && tile != ready) {
            struct mok_wait wait = mok_walk_push_wait(walk, tile);
            mover->alive = mok_fused_wait_counter(args, &wait);
            mok_hw_fence_async();
            ready = tile;
        }
#pragma unroll
        for (int i = 0; i < MOK_FUSED_RUN && mover->alive; i++) {
            int4 two = now[i / 2];
            mok_fused_move_row(args, shared, mover, step->kind, first + row + i, ring_first + row + i, i % 2 ? two.z : two.x, i % 2 ? two.w : two.y);
        }
    }
}

/* One thread. */
MOK_DEVICE void mok_fused_move(const struct mok_fused_args *args, mok_fused_shared *shared, int32_t worker)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    struct mok_fused_mover mover = {args->apart ? (uint8_t *)shared->stage : shared->ring, 0, 0, 0, 0, 1};
    mok_hw_fence_async(); /* what peers wrote before the ENTRY barrier, for the copy engine */
    for (int32_t idx = 0; mover.alive; idx++) {
        struct mok_step step = mok_walk_step(walk, idx);
        if (step.kind == MOK_STEP_NONE) {
            break;
        }
        if (step.kind == MOK_STEP_PULL && mok_walk_pull_num_waits(walk, step.minibatch) > 0) {
            struct mok_wait wait = mok_walk_pull_wait(walk, step.minibatch);
            mover.alive = mok_fused_wait_counter(args, &wait);
        }
        mok_fused_move_minibatch(args, shared, &mover, &step, worker);
        mok_fused_drain(args, shared, &mover);
        struct mok_wait signal = mok_walk_step_signal(&step);
        if (mover.alive) {
            mok_fused_announce(args, mok_fused_counter_word(args, &signal));
        }
    }
    mok_hw_fence_sys(); /* the EXIT barrier announces the pushed rows */
}

#endif
