/*
 * The mover of a CTA: a warp that carries out shares of the steps of mok_walk_step and moves rows between this rank's buffers and the memory
 * of their sources. Here how rows move, in either pass; which rows those of a step are: fused/forward/fused_forward_move.cuh,
 * fused/backward/fused_backward_move.cuh.
 *
 * Rows are cut into chunks, one chunk of one row is an item, and a lane has one place in shared memory through which its items go, one
 * after the other and independent of the other lanes:
 *   FREE      takes the share's next item, load -> landed[lane] (bytes of the item)
 *   LOADING   landed -> store, commit -> STORING
 *   STORING   at the next look: wait_group.read (the place is read, not yet written elsewhere) -> FREE
 *   end of a share: all stores have landed (wait_group 0) -> fence.proxy.async -> release of pulled or (backward, pushes) place_free
 * A forward pass has pulls alone, its down tiles push (fused/forward/fused_forward_push.cuh). A backward pass has both, and its mover ends with a
 * fence at system scope.
 * A step has num_comm shares, and a mover takes the next share that nobody has taken, like a task: those of a step before those of the
 * next. So a mover that does not run, because something else holds its SM, owes nothing to those that do; the lowest share that is not done
 * is always under way, and all it waits for are shares and tasks below it. A share is made of turns of a few rows, in the order of the
 * rows. A turn of a push begins when its row tile's dx is there; until then the lanes go on with what they have.
 *
 * Two homes for the places: a small one beside the operand stages, and those themselves, while nothing is multiplied: in communication
 * CTAs that stand apart, and (args->primes) for shares of the first pull: without a shared expert every product waits until all of them
 * are done.
 */
#ifndef MOK_CUDA_FUSED_MOVE_CUH
#define MOK_CUDA_FUSED_MOVE_CUH

#include "cuda/fused/fused_counter.cuh"
#include "cuda/fused/fused_shared.cuh"
#include "cuda/hw/bulk.cuh"

enum {
    MOK_FUSED_WARP = 32,
    MOK_FUSED_TURN_ROWS = 4,   /* divides a row tile */
    MOK_FUSED_LOOKS = 1 << 12 /* looks in vain at all lanes between two at the clock */
};

/* What a lane is at. */
enum { MOK_FUSED_FREE, MOK_FUSED_LOADING, MOK_FUSED_STORING };

/* A lane's place. */
struct mok_fused_pipe {
    const struct mok_fused_cut *cut;
    uint8_t *bytes;   /* [chunk_bytes] */
    uint64_t *landed;
    uint32_t parity;
    int alive; /* equal in all lanes */
};

/* What a lane copies; bytes 0 = nothing. */
struct mok_fused_copy {
    const char *from;
    char *to;
    uint32_t bytes;
};

MOK_DEVICE int32_t mok_fused_lane(void) { return (int32_t)threadIdx.x % MOK_FUSED_WARP; }

MOK_DEVICE struct mok_fused_pipe mok_fused_open_pipe(const struct mok_fused_args *args, mok_fused_shared *shared, int is_wide)
{
    const struct mok_fused_cut *cut = &args->cut[is_wide];
    uint8_t *places = is_wide ? (uint8_t *)shared->stage : shared->ring;
    struct mok_fused_pipe pipe = {cut, places + mok_fused_lane() * cut->chunk_bytes, &shared->landed[is_wide][mok_fused_lane()], 0, 1};
    return pipe;
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
#pragma unroll 1
    for (int32_t at = 0; at < bytes; at += MOK_FUSED_ZERO_BYTES) {
        mok_hw_bulk_store(to + at, shared->zeros, (uint32_t)min((int32_t)MOK_FUSED_ZERO_BYTES, bytes - at));
    }
}

/* Chunk `chunk` of row first + inside of the job; padding is zeroed on the way where it has to be. */
MOK_DEVICE struct mok_fused_copy mok_fused_find_copy(const struct mok_fused_args *args, mok_fused_shared *shared,
                                                     const struct mok_fused_cut *cut, const struct mok_fused_job *job, int kind,
                                                     int32_t inside, int32_t chunk, struct mok_route route)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    struct mok_fused_copy copy = {NULL, NULL, 0};
    int32_t row = job->first + inside, at = chunk * cut->chunk_bytes, bytes = min(cut->chunk_bytes, args->row_bytes - at);
    int is_kept = job->kept != NULL && mok_walk_is_kept(walk, row / MOK_TILE_ROWS);
    char *local = (is_kept ? job->kept + (int64_t)row * args->row_bytes : job->ring + (int64_t)(job->ring_first + inside) * args->row_bytes) + at;
    if (route.rank < 0) {
        if (kind == MOK_STEP_PULL && (is_kept || job->zeroes_ring) && mok_fused_is_contracted(walk, row)) {
            mok_fused_zero(shared, local, bytes);
        }
        return copy;
    }
    char *remote = args->watch.base[route.rank] + job->remote_off + at;
    copy.bytes = (uint32_t)bytes;
    if (kind == MOK_STEP_PULL) {
        copy.from = remote + (int64_t)(route.slot / walk->dims.top_k) * args->row_bytes;
        copy.to = local;
    } else {
        copy.from = local;
        copy.to = remote + (int64_t)route.slot * args->row_bytes;
    }
    return copy;
}

/* Row tiles whose dx is known to be there: bit i of mask is tile base + i. */
struct mok_fused_ready {
    int32_t base;
    uint32_t mask;
};

/* Push: whether dx of row tile `tile` is there. Looks at the tiles that follow at the same time, up to `end`. */
MOK_DEVICE int mok_fused_has_tile(const struct mok_fused_args *args, const struct mok_walk *walk, int32_t tile, int32_t end,
                                  struct mok_fused_ready *ready)
{
    int32_t lane = mok_fused_lane(), mine = min(tile + lane, end - 1);
    if (tile - ready->base < MOK_FUSED_WARP && (ready->mask >> (tile - ready->base) & 1)) {
        return 1;
    }
    struct mok_wait wait = mok_walk_push_wait(walk, mine);
    uint32_t seen = mok_hw_load_acquire_gpu(args->counters + mok_fused_counter_word(args, &wait));
    ready->base = tile;
    ready->mask = __ballot_sync(0xffffffffu, tile + lane < end && seen >= wait.target);
    mok_hw_fence_async();
    return (int)(ready->mask & 1);
}

/* The same, until it is. 0: the pass is over for this rank. */
MOK_DEVICE int mok_fused_wait_tile(const struct mok_fused_args *args, const struct mok_walk *walk, int32_t tile, int32_t end,
                                   struct mok_fused_lanes *lanes, struct mok_fused_ready *ready)
{
    int32_t lane = mok_fused_lane();
    int alive = 1;
    if (mok_fused_has_tile(args, walk, tile, end, ready)) {
        return 1;
    }
    struct mok_wait wait = mok_walk_push_wait(walk, tile);
    ready->mask |= 1;
    if (lane == 0) {
        uint64_t since = mok_fused_trace_now(&args->trace);
        alive = mok_fused_wait_counter(args, &wait);
        mok_fused_trace_add(&args->trace, lanes, MOK_LANE_MOVE, mok_fused_wait_kind(&wait), wait.index, since);
    }
    alive = __shfl_sync(0xffffffffu, alive, 0);
    mok_hw_fence_async();
    return alive;
}

/* A mover's way through a share of a job. Equal in all lanes but for what is called a lane's own. */
struct mok_fused_trip {
    int32_t worker;      /* which share of the step's */
    int32_t turn_items;  /* items of a turn */
    int32_t num_items;   /* of all the share's turns */
    int32_t next;        /* the next item that nobody has taken */
    int32_t known;       /* items below this are there to be taken */
    int32_t state;       /* a lane's own */
    char *to;            /* a lane's own, while loading */
    uint32_t bytes;      /* likewise */
    struct mok_fused_ready ready;
};

/* Row inside the job of turn `turn` of the share. */
MOK_DEVICE int32_t mok_fused_turn_row(const struct mok_walk *walk, const struct mok_fused_trip *trip, int32_t turn)
{
    return (trip->worker + turn * walk->num_comm) * MOK_FUSED_TURN_ROWS;
}

MOK_DEVICE struct mok_fused_trip mok_fused_begin_trip(const struct mok_walk *walk, const struct mok_fused_job *job,
                                                      const struct mok_fused_cut *cut, int kind, int32_t worker)
{
    int32_t all_turns = job->num_rows / MOK_FUSED_TURN_ROWS;
    int32_t turns = worker < all_turns ? (all_turns - worker + walk->num_comm - 1) / walk->num_comm : 0;
    struct mok_fused_trip trip = {worker, MOK_FUSED_TURN_ROWS * cut->row_chunks, 0, 0, 0, MOK_FUSED_FREE, NULL, 0, {0, 0}};
    trip.num_items = turns * trip.turn_items;
    trip.known = kind == MOK_STEP_PULL ? trip.num_items : 0;
    return trip;
}

/* Push: goes on to the next turns as far as their rows are there. Waits for it when no lane has anything under way. Returns whether alive. */
MOK_DEVICE int mok_fused_look_ahead(const struct mok_fused_args *args, const struct mok_walk *walk, const struct mok_fused_job *job,
                                    struct mok_fused_lanes *lanes, int is_idle, struct mok_fused_trip *trip)
{
    int32_t end = (job->first + job->num_rows) / MOK_TILE_ROWS;
    int alive = 1, is_there = 1;
    while (alive && is_there && trip->known < min(trip->next + MOK_FUSED_WARP, trip->num_items)) {
        int32_t tile = (job->first + mok_fused_turn_row(walk, trip, trip->known / trip->turn_items)) / MOK_TILE_ROWS;
        if (is_idle && trip->known == trip->next) {
            alive = mok_fused_wait_tile(args, walk, tile, end, lanes, &trip->ready);
        } else {
            is_there = mok_fused_has_tile(args, walk, tile, end, &trip->ready);
        }
        trip->known += alive && is_there ? trip->turn_items : 0;
    }
    return alive;
}

/* Lanes that are free take the next items. */
MOK_DEVICE void mok_fused_take_items(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pipe *pipe,
                                     const struct mok_fused_job *job, int kind, struct mok_fused_trip *trip)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    int is_free = trip->state == MOK_FUSED_FREE && mok_fused_lane() < pipe->cut->lanes;
    uint32_t free = __ballot_sync(0xffffffffu, is_free);
    int32_t item = trip->next + __popc(free & ((1u << mok_fused_lane()) - 1));
    if (is_free && item < trip->known) {
        int32_t turn = item / trip->turn_items, in_turn = item % trip->turn_items;
        int32_t inside = mok_fused_turn_row(walk, trip, turn) + in_turn / pipe->cut->row_chunks;
        struct mok_route route = walk->schedule.routes[job->first + inside];
        struct mok_fused_copy copy = mok_fused_find_copy(args, shared, pipe->cut, job, kind, inside, in_turn % pipe->cut->row_chunks, route);
        if (copy.bytes > 0) {
            mok_hw_mbarrier_arrive_expect_cta(pipe->landed, copy.bytes);
            mok_hw_bulk_load(pipe->bytes, copy.from, copy.bytes, pipe->landed);
            trip->to = copy.to;
            trip->bytes = copy.bytes;
            trip->state = MOK_FUSED_LOADING;
        } else {
            mok_hw_bulk_commit(); /* zeros */
        }
    }
    trip->next = min(trip->next + __popc(free), trip->known);
    __syncwarp();
}

/* A look at every lane that is loading or storing. Returns whether any went on. */
MOK_DEVICE int mok_fused_look(struct mok_fused_pipe *pipe, struct mok_fused_trip *trip)
{
    int went_on = 0;
    if (trip->state == MOK_FUSED_STORING) {
        mok_hw_bulk_wait_read_0();
        trip->state = MOK_FUSED_FREE;
        went_on = 1;
    } else if (trip->state == MOK_FUSED_LOADING && mok_hw_mbarrier_test_wait_cta(pipe->landed, pipe->parity)) {
        mok_hw_bulk_store(trip->to, pipe->bytes, trip->bytes);
        mok_hw_bulk_commit();
        pipe->parity ^= 1;
        trip->state = MOK_FUSED_STORING;
        went_on = 1;
    }
    return __ballot_sync(0xffffffffu, went_on) != 0;
}

/* Nothing has landed for many looks: returns whether there is time left. since 0: it begins to count here. */
MOK_DEVICE int mok_fused_has_time(const struct mok_fused_args *args, uint64_t *since)
{
    uint64_t now = mok_hw_time_ns();
    if (*since == 0) {
        *since = now;
    } else if (now - *since > args->watch.local_limit_ns) {
        if (mok_fused_lane() == 0) {
            struct mok_cuda_sight sight = {MOK_SITE_COPY, 0, 1, 0};
            mok_cuda_expire(&args->watch, &sight);
        }
        return 0;
    }
    return 1;
}

/* A pull whose stores are all on their way, and that is still to be announced. */
struct mok_fused_landing {
    int32_t counter; /* word to count up; -1 = none */
    int32_t minibatch;
    uint64_t since;
};

/* All stores of this warp have landed, also those before `landing`; which is announced. */
MOK_DEVICE void mok_fused_land(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_landing *landing)
{
    mok_hw_bulk_commit();
    mok_hw_bulk_wait_0();
    mok_hw_fence_async();
    __syncwarp();
    if (landing->counter >= 0 && mok_fused_lane() == 0) {
        mok_fused_announce(args, landing->counter);
        mok_fused_trace_add(&args->trace, &shared->lanes, MOK_LANE_MOVE, MOK_EVENT_PULL, landing->minibatch, landing->since);
    }
    landing->counter = -1;
}

/* Share `worker` of shared->job: all that is loaded is stored when it returns, but it may not have landed. The step before lands once
 * the first loads of this one are under way. kind: MOK_STEP_PULL or MOK_STEP_PUSH, a constant: forward has no code for pushes. */
MOK_DEVICE void mok_fused_carry_job(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pipe *pipe, int kind,
                                    int32_t worker, struct mok_fused_landing *before)
{
    const struct mok_fused_job *job = &shared->job;
    struct mok_fused_trip trip = mok_fused_begin_trip(&shared->walk.tiles, job, pipe->cut, kind, worker);
    uint32_t looks = 0;
    uint64_t since = 0;
    for (;;) {
        uint32_t busy = __ballot_sync(0xffffffffu, trip.state != MOK_FUSED_FREE);
        if (pipe->alive && trip.next < trip.num_items) {
            if (kind == MOK_STEP_PUSH && trip.known < trip.num_items) {
                pipe->alive = mok_fused_look_ahead(args, &shared->walk.tiles, job, &shared->lanes, busy == 0, &trip);
            }
            mok_fused_take_items(args, shared, pipe, job, kind, &trip);
            if (before->counter >= 0) {
                mok_fused_land(args, shared, before);
            }
        } else if (busy == 0) {
            break;
        }
        if (mok_fused_look(pipe, &trip)) {
            looks = 0;
            since = 0;
        } else if (++looks % MOK_FUSED_LOOKS == 0 && !__shfl_sync(0xffffffffu, mok_fused_has_time(args, &since), 0)) {
            pipe->alive = 0;
            break;
        }
    }
    if (before->counter >= 0) { /* no rows in this share */
        mok_fused_land(args, shared, before);
    }
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

/* A share of a communication step. step.kind MOK_STEP_NONE: there are no more. */
struct mok_fused_share {
    struct mok_step step;
    int32_t worker;   /* 0 .. num_comm - 1: which one of the step's */
    int32_t is_first; /* of the first step */
};

MOK_DEVICE struct mok_fused_share mok_fused_take_share(const struct mok_fused_args *args, const struct mok_walk *walk)
{
    uint32_t number = 0;
    if (mok_fused_lane() == 0) {
        number = mok_hw_take_relaxed_gpu(&args->state->next_share, 1);
    }
    number = __shfl_sync(0xffffffffu, number, 0);
    uint32_t idx = number / (uint32_t)walk->num_comm;
    struct mok_fused_share share = {mok_walk_step(walk, (int32_t)idx), (int32_t)(number - idx * (uint32_t)walk->num_comm), idx == 0};
    return share;
}

/* The pipe that the share goes through; what went through another one must have landed. */
MOK_DEVICE int mok_fused_is_wide(const struct mok_fused_args *args, const struct mok_fused_share *share)
{
    return args->apart || (args->primes && share->is_first);
}

#endif
