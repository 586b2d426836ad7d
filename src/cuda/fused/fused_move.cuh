/*
 * The communication worker of a CTA: a warp that walks mok_walk_step and moves rows between this rank's buffers and the memory of their
 * sources.
 *
 *   pull   source's row [T, H] -> x of the padded row: in the saved object where it is kept, else in the ring; zeros in kept padding rows
 *          up to the expert's next multiple of 64 (they are contracted in backward)
 *   push   y of the padded row in the ring -> the source's slot, row tile after row tile behind y_done
 *
 * Rows are cut into chunks, and a batch is a chunk for each of the first `lanes` lanes. Batches go through stages in shared memory: the
 * loads of some are under way, and the stores of others behind them. A lane stores what it loaded, so it waits for its own stores alone:
 *   pairing   load -> landed[stage] (all bytes of the batch) -> every lane stores, commits -> wait_group.read -> the stage is loaded again
 *   end of a step: all stores have landed (wait_group 0) -> fence.proxy.async -> release of pulled or place_free; behind the last step a
 *             fence at system scope
 *
 * Two places for the stages: a small one beside the operand stages, and those themselves, while nothing is multiplied: in communication
 * CTAs that stand apart, and (args->primes) for the first pull: without a shared expert every product waits until all movers are done
 * with it.
 */
#ifndef MOK_CUDA_FUSED_MOVE_CUH
#define MOK_CUDA_FUSED_MOVE_CUH

#include "cuda/fused/fused_counter.cuh"
#include "cuda/fused/fused_shared.cuh"
#include "cuda/hw/bulk.cuh"

enum {
    MOK_FUSED_WARP = 32,
    MOK_FUSED_BEHIND = 1 /* batches whose stores may still read a stage, beside the newest */
};

/* The stages of a mover; equal in all lanes. */
struct mok_fused_pipe {
    const struct mok_fused_cut *cut;
    uint8_t *bytes;         /* [MOVE_STAGES][lanes][chunk_bytes] */
    uint64_t *landed;       /* [MOVE_STAGES] */
    int32_t newest, oldest; /* stages */
    uint32_t parity;        /* of the round that `oldest` is in */
    int32_t in_flight;      /* batches being loaded */
    int alive;
};

/* What a lane copies in a batch; bytes 0 = nothing. */
struct mok_fused_copy {
    const char *from;
    char *to;
    uint32_t bytes;
};

/* Rows of one step, as items: chunk after chunk, row after row. */
struct mok_fused_job {
    int32_t is_pull;
    int32_t first;      /* padded row */
    int32_t ring_first; /* its place in the ring */
    int32_t num_items;
};

MOK_DEVICE struct mok_fused_pipe mok_fused_open_pipe(const struct mok_fused_args *args, mok_fused_shared *shared, int is_wide)
{
    struct mok_fused_pipe pipe = {
        &args->cut[is_wide], is_wide ? (uint8_t *)shared->stage : shared->ring, shared->landed[is_wide], 0, 0, 0, 0, 1};
    return pipe;
}

/* A lane's place of a stage. */
MOK_DEVICE int32_t mok_fused_place(const struct mok_fused_pipe *pipe, int32_t stage)
{
    return stage * pipe->cut->lanes + (int32_t)threadIdx.x % MOK_FUSED_WARP;
}

/* 1: the bytes of the stage are there. */
MOK_DEVICE int mok_fused_wait_landed(const struct mok_fused_args *args, uint64_t *landed, uint32_t parity)
{
    if (mok_hw_mbarrier_try_wait_cta(landed, parity)) {
        return 1;
    }
    uint64_t since = mok_hw_time_ns();
    while (!mok_hw_mbarrier_try_wait_cta(landed, parity)) {
        if (mok_hw_time_ns() - since > args->watch.local_limit_ns) {
            struct mok_cuda_sight sight = {MOK_SITE_COPY, 0, 1, 0};
            mok_cuda_expire(&args->watch, &sight);
            return 0;
        }
    }
    return 1;
}

/* The oldest batch leaves its stage. */
MOK_DEVICE void mok_fused_store_oldest(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pipe *pipe)
{
    int32_t place = mok_fused_place(pipe, pipe->oldest);
    int landed = mok_fused_wait_landed(args, &pipe->landed[pipe->oldest], pipe->parity);
    pipe->alive = __all_sync(0xffffffffu, landed) && pipe->alive;
    if (pipe->alive && (int32_t)threadIdx.x % MOK_FUSED_WARP < pipe->cut->lanes && shared->copy_bytes[place] > 0) {
        mok_hw_bulk_store(shared->copy_to[place], pipe->bytes + place * pipe->cut->chunk_bytes, shared->copy_bytes[place]);
    }
    mok_hw_bulk_commit();
    pipe->in_flight--;
    pipe->oldest++;
    if (pipe->oldest == MOK_FUSED_MOVE_STAGES) {
        pipe->oldest = 0;
        pipe->parity ^= 1;
    }
}

MOK_DEVICE void mok_fused_load_batch(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pipe *pipe,
                                     struct mok_fused_copy copy)
{
    uint32_t bytes = __reduce_add_sync(0xffffffffu, copy.bytes);
    if (pipe->in_flight == MOK_FUSED_MOVE_STAGES - 1 - MOK_FUSED_BEHIND) {
        mok_fused_store_oldest(args, shared, pipe);
    }
    MOK_HW_BULK_WAIT_READ(MOK_FUSED_BEHIND);
    int32_t place = mok_fused_place(pipe, pipe->newest);
    uint64_t *landed = &pipe->landed[pipe->newest];
    if (threadIdx.x % MOK_FUSED_WARP == 0) {
        mok_hw_mbarrier_arrive_expect_cta(landed, bytes);
    }
    __syncwarp();
    if ((int32_t)threadIdx.x % MOK_FUSED_WARP < pipe->cut->lanes) {
        shared->copy_to[place] = copy.to;
        shared->copy_bytes[place] = copy.bytes;
    }
    if (copy.bytes > 0) {
        mok_hw_bulk_load(pipe->bytes + place * pipe->cut->chunk_bytes, copy.from, copy.bytes, landed);
    }
    pipe->in_flight++;
    pipe->newest = pipe->newest + 1 == MOK_FUSED_MOVE_STAGES ? 0 : pipe->newest + 1;
}

/* Everything that is under way lands. */
MOK_DEVICE void mok_fused_drain(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pipe *pipe)
{
    while (pipe->in_flight > 0) {
        mok_fused_store_oldest(args, shared, pipe);
    }
    mok_hw_bulk_commit();
    mok_hw_bulk_wait_0();
    mok_hw_fence_async();
    __syncwarp();
}

/* A padding row that is contracted later. */
MOK_DEVICE int mok_fused_is_contracted(const struct mok_walk *walk, int32_t row)
{
    int32_t expert = walk->schedule.tile_expert[row / MOK_TILE_ROWS];
    int32_t inside = row - walk->schedule.expert_first[expert];
    return inside < (int32_t)mok_round_up(walk->schedule.expert_rows[expert], MOK_CHUNK_ROWS);
}

/* In the bulk copies that the lane commits next. */
MOK_DEVICE void mok_fused_zero(mok_fused_shared *shared, char *to, int32_t bytes)
{
    for (int32_t at = 0; at < bytes; at += MOK_FUSED_ZERO_BYTES) {
        mok_hw_bulk_store(to + at, shared->zeros, (uint32_t)min((int32_t)MOK_FUSED_ZERO_BYTES, bytes - at));
    }
}

/* Item `item` of the job; padding is zeroed on the way where it has to be. */
MOK_DEVICE struct mok_fused_copy mok_fused_find_copy(const struct mok_fused_args *args, mok_fused_shared *shared,
                                                     const struct mok_fused_cut *cut, const struct mok_fused_job *job, int32_t item,
                                                     struct mok_route route)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    struct mok_fused_copy copy = {NULL, NULL, 0};
    int32_t inside = item / cut->row_chunks, at = item % cut->row_chunks * cut->chunk_bytes;
    int32_t row = job->first + inside, bytes = min(cut->chunk_bytes, args->row_bytes - at);
    int is_kept = mok_walk_is_kept(walk, row / MOK_TILE_ROWS);
    int64_t ring_at = (int64_t)(job->ring_first + inside) * args->row_bytes + at;
    char *x = is_kept ? args->x_saved + (int64_t)row * args->row_bytes + at : args->x_ring + ring_at;
    if (route.rank < 0) {
        if (job->is_pull && is_kept && mok_fused_is_contracted(walk, row)) {
            mok_fused_zero(shared, x, bytes);
        }
        return copy;
    }
    char *remote = args->watch.base[route.rank] + at;
    copy.bytes = (uint32_t)bytes;
    if (job->is_pull) {
        copy.from = remote + args->x_off + (int64_t)(route.slot / walk->dims.top_k) * args->row_bytes;
        copy.to = x;
    } else {
        copy.from = args->y_ring + ring_at;
        copy.to = remote + args->slots_off + (int64_t)route.slot * args->row_bytes;
    }
    return copy;
}

/* Row tiles whose y is known to be there: bit i of mask is tile base + i. */
struct mok_fused_ready {
    int32_t base;
    uint32_t mask;
};

/* Push: waits for y of row tile `tile`, and looks at those behind it at the same time, up to `end`. */
MOK_DEVICE int mok_fused_wait_tile(const struct mok_fused_args *args, const struct mok_walk *walk, int32_t tile, int32_t end,
                                   struct mok_fused_lanes *lanes, struct mok_fused_ready *ready)
{
    int32_t lane = (int32_t)threadIdx.x % MOK_FUSED_WARP, mine = min(tile + lane, end - 1);
    if (tile - ready->base < MOK_FUSED_WARP && (ready->mask >> (tile - ready->base) & 1)) {
        return 1;
    }
    struct mok_wait wait = mok_walk_push_wait(walk, mine);
    uint32_t seen = mok_hw_load_acquire_gpu(args->counters + mok_fused_counter_word(args, &wait));
    ready->base = tile;
    ready->mask = __ballot_sync(0xffffffffu, tile + lane < end && seen >= wait.target) | 1;
    int alive = 1;
    if (lane == 0) {
        uint64_t since = mok_fused_trace_now(&args->trace);
        alive = mok_fused_wait_counter(args, &wait);
        mok_fused_trace_add(&args->trace, lanes, MOK_LANE_MOVE, mok_fused_wait_kind(&wait), wait.index, since);
    }
    alive = __shfl_sync(0xffffffffu, alive, 0);
    mok_hw_fence_async();
    return alive;
}

/* Push: y of all row tiles that items [from, end) touch. */
MOK_DEVICE int mok_fused_wait_rows(const struct mok_fused_args *args, const struct mok_walk *walk, const struct mok_fused_job *job,
                                   int32_t row_chunks, int32_t from, int32_t end, struct mok_fused_lanes *lanes,
                                   struct mok_fused_ready *ready)
{
    int32_t first = job->first / MOK_TILE_ROWS, all = first + job->num_items / row_chunks / MOK_TILE_ROWS;
    int32_t last = first + (min(end, job->num_items) - 1) / row_chunks / MOK_TILE_ROWS;
    int alive = 1;
    for (int32_t tile = first + from / row_chunks / MOK_TILE_ROWS; tile <= last && alive; tile++) {
        alive = mok_fused_wait_tile(args, walk, tile, all, lanes, ready);
    }
    return alive;
}

/* This worker's batches of a job: worker, worker + num_comm, ... The routes of a batch are loaded while the one before is on its way. */
MOK_DEVICE void mok_fused_do_job(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pipe *pipe,
                                 const struct mok_fused_job *job, int32_t worker)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    const struct mok_fused_cut *cut = pipe->cut;
    const struct mok_route *routes = walk->schedule.routes + job->first;
    int32_t lane = (int32_t)threadIdx.x % MOK_FUSED_WARP, stride = walk->num_comm * cut->lanes;
    struct mok_fused_ready ready = {0, 0};
    struct mok_route none = {-1, 0}, next = none;
    int32_t item = worker * cut->lanes + lane;
    if (lane < cut->lanes && item < job->num_items) {
        next = routes[item / cut->row_chunks];
    }
    for (int32_t from = worker * cut->lanes; from < job->num_items && pipe->alive; from += stride, item += stride) {
        struct mok_route route = next;
        int is_mine = lane < cut->lanes && item < job->num_items;
        if (lane < cut->lanes && item + stride < job->num_items) {
            next = routes[(item + stride) / cut->row_chunks];
        }
        if (!job->is_pull) {
            pipe->alive = mok_fused_wait_rows(args, walk, job, cut->row_chunks, from, from + cut->lanes, &shared->lanes, &ready);
        }
        if (pipe->alive) {
            struct mok_fused_copy copy = {NULL, NULL, 0};
            if (is_mine) {
                copy = mok_fused_find_copy(args, shared, cut, job, item, route);
            }
            __syncwarp();
            mok_fused_load_batch(args, shared, pipe, copy);
        }
    }
    mok_fused_drain(args, shared, pipe);
}

MOK_DEVICE struct mok_fused_job mok_fused_step_job(const struct mok_walk *walk, const struct mok_step *step,
                                                   const struct mok_fused_cut *cut)
{
    int32_t rows = mok_walk_minibatch_tiles(walk, step->minibatch) * MOK_TILE_ROWS;
    struct mok_fused_job job = {step->kind == MOK_STEP_PULL, step->minibatch * walk->mb_tiles * MOK_TILE_ROWS,
                                step->minibatch % walk->ring.num_places * walk->mb_tiles * MOK_TILE_ROWS, rows * cut->row_chunks};
    return job;
}

/* Before a pull: the place is free. */
MOK_DEVICE int mok_fused_wait_place(const struct mok_fused_args *args, const struct mok_walk *walk, const struct mok_step *step,
                                    struct mok_fused_lanes *lanes)
{
    int alive = 1;
    if (step->kind == MOK_STEP_PULL && mok_walk_pull_num_waits(walk, step->minibatch) > 0) {
        struct mok_wait wait = mok_walk_pull_wait(walk, step->minibatch);
        if (threadIdx.x % MOK_FUSED_WARP == 0) {
            uint64_t since = mok_fused_trace_now(&args->trace);
            alive = mok_fused_wait_counter(args, &wait);
            mok_fused_trace_add(&args->trace, lanes, MOK_LANE_MOVE, mok_fused_wait_kind(&wait), wait.index, since);
        }
        alive = __shfl_sync(0xffffffffu, alive, 0);
        mok_hw_fence_async();
    }
    return alive;
}

/* One warp. */
MOK_DEVICE void mok_fused_move(const struct mok_fused_args *args, mok_fused_shared *shared, int32_t worker)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    struct mok_fused_pipe pipe = mok_fused_open_pipe(args, shared, args->apart || args->primes);
    mok_hw_fence_async(); /* what peers wrote before the ENTRY barrier, for the copy engine */
    for (int32_t idx = 0; pipe.alive; idx++) {
        struct mok_step step = mok_walk_step(walk, idx);
        if (step.kind == MOK_STEP_NONE) {
            break;
        }
        pipe.alive = mok_fused_wait_place(args, walk, &step, &shared->lanes);
        struct mok_fused_job job = mok_fused_step_job(walk, &step, pipe.cut);
        uint64_t since = mok_fused_trace_now(&args->trace);
        mok_fused_do_job(args, shared, &pipe, &job, worker);
        if (pipe.alive && threadIdx.x % MOK_FUSED_WARP == 0) {
            struct mok_wait signal = mok_walk_step_signal(&step);
            mok_fused_announce(args, mok_fused_counter_word(args, &signal));
            mok_fused_trace_add(&args->trace, &shared->lanes, MOK_LANE_MOVE, job.is_pull ? MOK_EVENT_PULL : MOK_EVENT_PUSH, step.minibatch,
                                since);
        }
        if (idx == 0 && args->primes) {
            int alive = pipe.alive;
            pipe = mok_fused_open_pipe(args, shared, 0);
            pipe.alive = alive;
        }
    }
    if (threadIdx.x % MOK_FUSED_WARP == 0) {
        mok_fused_trace_close(&args->trace, &shared->lanes, MOK_LANE_MOVE);
    }
    mok_hw_fence_sys(); /* the EXIT barrier announces the pushed rows */
}

#endif
