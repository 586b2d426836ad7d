/*
 * Shared memory of a CTA of a fused kernel, its barriers, and the queue that hands tiles on.
 *
 * Data in: struct mok_fused_args. Data out: what lies here between the roles, and nothing of it outlives the kernel.
 *
 * Roles of a CTA (384 threads), each in a file of fused/forward and of fused/backward: warpgroups 0 and 1 multiply; of warpgroup 2
 *   load      (warp 8)    loads operands of the tile in the queue, step by step
 *   scout     (warp 9)    first CTA of a cluster only: takes the next unit, waits for its inputs, posts a tile to each CTA. Forward: a lane for each
 *                         CTA; backward: one thread
 *   move      (warp 10)   communication CTAs only: pulls rows; in a backward pass it pushes them, too
 *   push      (warp 11)   forward: takes finished panels of y from the multiplying warps to the slots of their rows
 *   announce  (warp 11)   backward, one thread: counts up what a tile that is stored is counted in
 *
 * Queue of one tile. It is posted only when its inputs are complete, so loader and multiplying warps never wait for another CTA's work but
 * in the queue itself. The loader gives the place free a few steps before it has issued its last load: late enough that units stay with
 * whoever is free first, early enough that the scout's way through L2 is hidden.
 *
 *   barrier         arrivals                                           waits
 *   full[s]         the own loader + 48 KB from either loader          the own multiplying warps
 *   empty[s]        8 multiplying warps of each CTA                    the own loader
 *   tile_full       the scout, tile written                            the own loader, multiplying warps and (forward) pusher
 *   tile_empty      loader, 8 multiplying warps and (forward) pusher   the scout; stands in the first CTA of the cluster
 *                   of each CTA
 *   landed[w][l]    lane l of the mover + the bytes of its item        that lane; w: through the small places, or the wide ones
 *  forward
 *   panel_full[w]   multiplying warp w, panel written                  the own pusher
 *   panel_empty[w]  the pusher, panel read                             multiplying warp w
 *  backward, the same words (fused/backward/fused_backward_finish.cuh)
 *   panel_full[t]   8 multiplying warps, the tile of turn t stored     warp 11
 *   panel_empty[0]  warp 11, a tile announced                          multiplying warp 0
 *
 * Orders of memory that go with the queue: docs/protocol.md, section 7.
 */
#ifndef MOK_CUDA_FUSED_SHARED_CUH
#define MOK_CUDA_FUSED_SHARED_CUH

#include "cuda/fused/fused_args.h"
#include "cuda/fused/fused_trace.cuh"
#include "cuda/fused/fused_walk.h"
#include "cuda/gemm/gemm_multiply.cuh"
#include "cuda/hw/cluster.cuh"
#include "cuda/hw/counter.cuh"

#ifndef MOK_FUSED_CLUSTER
#define MOK_FUSED_CLUSTER 2
#endif

enum {
    MOK_FUSED_MULTIPLY_WARPS = 8,
    /* Warps of warpgroup 2. */
    MOK_FUSED_LOAD_WARP = 8,
    MOK_FUSED_SCOUT_WARP = 9,
    MOK_FUSED_MOVE_WARP = 10,
    MOK_FUSED_PUSH_WARP = 11,
    /* Registers a thread: 2 * 128 * 216 + 128 * 72 = 64,512 of 65,536. */
    MOK_FUSED_REGISTERS_MULTIPLY = 216,
    MOK_FUSED_REGISTERS_HELP = 72,
    /* A warp that announces tile i has all others at tile i - 1 at least, so with i - 2 announced or about to be: three tiles may be
     * counted at one time. Two turns were too few where tiles have fewer steps than there are stages. */
    MOK_FUSED_TURNS = 4,
    MOK_FUSED_SCOUT_AHEAD = 10, /* steps that are still to be loaded when the scout may go for the next unit: about 7 us of products */
    MOK_FUSED_ZERO_BYTES = 512 /* of a bulk copy of zeros, which padding rows alone need */
};

/* TILE of the fused kernels. Major orders and DEFERRED (pieces of the finishing of a tile, fused/forward/fused_forward_finish.cuh) are the forward kernel's:
 * in a backward pass they differ from tile to tile. */
struct mok_tile_fused {
    enum {
        A_MAJOR = MOK_HW_K_MAJOR,
        B_MAJOR = MOK_HW_K_MAJOR,
        FINISH = MOK_FINISH_OWN,
        DEFERRED = 20,
        STAGES = 4,
        CLUSTER = MOK_FUSED_CLUSTER
    };
};

/* A tile of a forward pass in the queue: int32 words only, the scout writes them one by one. */
struct mok_fused_tile {
    int32_t valid; /* 0: there are no more */
    int32_t gemm;  /* MOK_FUSED_GATE_UP .. */
    int32_t row;   /* of the output: in the ring; shared expert: token */
    int32_t rows;  /* real rows, 0 .. 128; 0 also for the empty place of a unit */
    int32_t col;   /* of the output */
    int32_t expert;
    int32_t shares_b; /* both CTAs of the cluster need the same B operand */
    int32_t keep_row; /* where g, u of its first row go; -1 = they are not kept. For routed gate+up x stands there, too */
    int32_t counter;  /* word to count up when the tile is stored; -1 = none */
    int32_t row_tile; /* padded row tile; shared expert: token tile */
};
enum { MOK_FUSED_TILE_WORDS = sizeof(struct mok_fused_tile) / 4 };

/* Kind of the event that a tile's products are. */
MOK_DEVICE int32_t mok_fused_task_kind(int32_t gemm)
{
    return MOK_EVENT_TASK + (gemm < MOK_FUSED_SHARED_GATE_UP ? MOK_TASK_GATE_UP + gemm
                                                             : MOK_TASK_SHARED_GATE_UP + gemm - MOK_FUSED_SHARED_GATE_UP);
}

/* The panel that a multiplying warp has given to the pusher. */
struct mok_fused_sent {
    int32_t rows; /* real ones of its 16 */
    int32_t col;
    uint32_t num; /* panels that the warp has given to it so far */
};

/* Rows of one step between a ring buffer and the sources' regions. */
struct mok_fused_job {
    int32_t first;      /* padded row */
    int32_t ring_first; /* its place in the ring */
    int32_t num_rows;
    char *ring;         /* [ring rows, row_bytes] */
    char *kept;         /* pull: [kept rows, row_bytes], where rows go that are kept; NULL = none are */
    int64_t remote_off; /* in a source's region: pull [T, row_bytes], push [T * K, row_bytes] */
    int32_t zeroes_ring; /* pull: padding rows in the ring that are contracted later become zero, too */
};

/* A tile of a backward pass; it stays where it is until MOK_FUSED_TURNS - 1 tiles later, so that nobody has to remember it. Row-wise
 * products: row in the ring (shared expert: token). Weight gradients: row of the matrix, contracted rows in the ring (tokens). */
struct mok_fused_backward_tile {
    struct mok_gemm_tile gemm;
    int32_t kind;          /* mok_task_kind */
    int32_t is_down;       /* of weight gradients: dWd */
    int32_t keep_row;      /* D: where g, u of its first row are kept; -1 = they stand in the ring. Weight gradients: the first padded row */
    int32_t counter;       /* word to count up when the tile is stored; -1 = none */
    int32_t num_counters;  /* that many words from there on */
    int32_t carry_counter; /* one more; -1 = none */
};

/* Row tiles (tokens' tiles) below these have been seen done by D. */
struct mok_fused_known {
    int32_t routed, shared;
};

template <> struct mok_gemm_shared<struct mok_tile_fused> {
    struct mok_stage stage[mok_tile_fused::STAGES];
    uint8_t panel[MOK_FUSED_MULTIPLY_WARPS][MOK_GEMM_PANEL_BYTES]; /* output on its way to global memory */
    uint8_t ring[MOK_FUSED_RING_BYTES];                            /* rows on their way: small stages of the mover */
    uint8_t zeros[MOK_FUSED_ZERO_BYTES];
    uint64_t full[mok_tile_fused::STAGES];
    uint64_t empty[mok_tile_fused::STAGES];
    uint64_t tile_full;
    uint64_t tile_empty;
    uint64_t landed[2][32]; /* of the mover's lanes, for the small places and the wide ones */
    uint64_t panel_full[MOK_FUSED_MULTIPLY_WARPS]; /* these two have other uses in a backward pass: see above */
    uint64_t panel_empty[MOK_FUSED_MULTIPLY_WARPS];
    struct mok_fused_sent sent[MOK_FUSED_MULTIPLY_WARPS]; /* forward */
    union {
        char *slot[MOK_TILE_ROWS];                            /* forward: of the rows of the tile that is being pushed; NULL = padding */
        struct {
            struct mok_fused_backward_tile back[MOK_FUSED_TURNS]; /* backward: tiles by turns */
            struct mok_fused_unit unit;                           /* of the scout, which has no registers for these */
            struct mok_fused_known known;
        };
    };
    struct mok_fused_tile tile; /* of a forward pass */
    uint32_t finished[MOK_FUSED_TURNS]; /* warps that have stored their part of a tile, by the tile's turn */
    struct mok_fused_walk walk;
    struct mok_fused_lanes lanes;
    struct mok_fused_job job; /* of the mover, which has no registers for it */
};

typedef struct mok_gemm_shared<struct mok_tile_fused> mok_fused_shared;
typedef struct mok_worker<struct mok_tile_fused> mok_fused_worker;
static_assert(sizeof(((mok_fused_shared *)NULL)->stage) == MOK_FUSED_STAGE_BYTES, "places of the mover");
static_assert(sizeof(mok_fused_shared) <= 227 * 1024, "what a CTA of sm_90 may have");

/* One thread for all that multiply: the tile before is through; what follows is waiting. */
MOK_DEVICE void mok_fused_trace_end_task(const struct mok_fused_trace *trace, struct mok_fused_lanes *lanes)
{
    if (lanes->task_kind >= 0) {
        mok_fused_trace_add(trace, lanes, MOK_LANE_MULTIPLY, lanes->task_kind, lanes->task_idx, lanes->task_begin);
        lanes->task_begin = mok_hw_time_ns();
        lanes->task_kind = -1;
    }
}

/* Called by all threads, before the roles part. */
MOK_DEVICE void mok_fused_open(const struct mok_fused_args *args, mok_fused_shared *shared)
{
    const int span = mok_tile_fused::CLUSTER;
    if (threadIdx.x == 0) {
        for (int s = 0; s < mok_tile_fused::STAGES; s++) {
            mok_hw_mbarrier_init(&shared->full[s], 1);
            mok_hw_mbarrier_init(&shared->empty[s], MOK_FUSED_MULTIPLY_WARPS * span * MOK_GEMM_ARRIVALS);
        }
        mok_hw_mbarrier_init(&shared->tile_full, 1);
        /* A backward pass has no pusher. */
        mok_hw_mbarrier_init(&shared->tile_empty, (MOK_FUSED_MULTIPLY_WARPS + (args->walk.backward ? 1 : 2)) * span * MOK_GEMM_ARRIVALS);
        for (int lane = 0; lane < 32; lane++) {
            mok_hw_mbarrier_init(&shared->landed[0][lane], 1);
            mok_hw_mbarrier_init(&shared->landed[1][lane], 1);
        }
        for (int warp = 0; warp < MOK_FUSED_MULTIPLY_WARPS; warp++) {
            mok_hw_mbarrier_init(&shared->panel_full[warp], args->walk.backward ? MOK_FUSED_MULTIPLY_WARPS : MOK_GEMM_ARRIVALS);
            mok_hw_mbarrier_init(&shared->panel_empty[warp], args->walk.backward ? 1 : MOK_GEMM_ARRIVALS);
            shared->sent[warp].num = 0;
        }
        for (int turn = 0; turn < MOK_FUSED_TURNS; turn++) {
            shared->finished[turn] = 0;
        }
        mok_hw_fence_mbarrier_init_cluster();
    } else if (threadIdx.x == 32) {
        shared->walk.tiles = args->walk;
        shared->walk.span = span;
        mok_fused_walk_init(&shared->walk);
        mok_fused_trace_open(&args->trace, &args->watch, &shared->lanes);
    } else if (threadIdx.x >= 64 && threadIdx.x < 64 + MOK_FUSED_ZERO_BYTES / 4) {
        ((uint32_t *)shared->zeros)[threadIdx.x - 64] = 0;
        mok_hw_fence_async_shared_cta();
    }
    __syncthreads();
    if (span > 1) {
        mok_hw_cluster_arrive();
        mok_hw_cluster_wait();
    }
}

/*
 * Waits inside a CTA or cluster: the other side ends by itself, within the limits of the waits for other CTAs (fused/fused_counter.cuh), and says so. So a
 * standstill of this rank of twice that limit and wait_limit_ns (three times local_timeout, which the host sets both to) is a bug, and the host sees a
 * device error. What a wait remembers:
 */
struct mok_fused_standstill {
    uint64_t since;
    uint32_t progress;
};

MOK_DEVICE void mok_fused_check_standstill(const struct mok_fused_args *args, struct mok_fused_standstill *still)
{
    uint32_t now = mok_hw_load_relaxed_gpu(&args->state->progress);
    if (now != still->progress) {
        still->progress = now;
        still->since = mok_hw_time_ns();
    }
    if (mok_hw_time_ns() - still->since > 2 * args->watch.local_limit_ns + args->wait_limit_ns) {
        mok_hw_raise_device_error();
    }
}

/* Waits in the queue. */
MOK_DEVICE void mok_fused_wait_queue(const struct mok_fused_args *args, uint64_t *bar, uint32_t parity)
{
    if (mok_hw_mbarrier_try_wait_acquire_cluster(bar, parity)) {
        return;
    }
    struct mok_fused_standstill still = {mok_hw_time_ns(), 0};
    while (!mok_hw_mbarrier_try_wait_acquire_cluster(bar, parity)) {
        mok_fused_check_standstill(args, &still);
    }
}

/* A reader has taken what it needs from the tile in the queue. Its loads from its own shared memory were issued before its arrival, in the same order of the
 * same pipe, and the scout's next tile comes over from the other side of the barrier: a release at the scope of the CTA is enough on this machine, though by
 * the letter of PTX it should be the cluster's, which holds a warp up for a microsecond. Backward: the tile stays where it is for some turns more. */
MOK_DEVICE void mok_fused_release_tile(mok_fused_shared *shared) { mok_hw_mbarrier_arrive_cluster(&shared->tile_empty, 0); }

/* The tile's rows go to their slots by the pusher. */
MOK_DEVICE int mok_fused_pushes(int32_t gemm) { return gemm == MOK_FUSED_DOWN; }

#endif
