/*
 * One rank on its GPU: where everything stands in its memory, and the objects behind the ops of src/pass.
 *
 * Memory. Four blocks: the peer-visible region (src/peer owns it), the ring, the saved objects, the rest. Sizes that mok_group_memory reports and
 * offsets that the launches use come from the same lines (rank_memory.c).
 *
 * Streams. Calls of a group that come on different streams are ordered by an event (`last_done`), unless they are captured: then the graph
 * orders them. `own_stream` carries what must not wait behind a pass: abort, left, looking at words.
 */
#ifndef MOK_CUDA_RANK_MEMORY_H
#define MOK_CUDA_RANK_MEMORY_H

#include <cuda_runtime_api.h>

#include "cuda/kernel.h"
#include "pass/pass.h"

/* Byte offsets, by block. */
struct mok_cuda_layout {
    /* ring: rows of the larger of both rings; forward and backward share what has the same shape */
    int64_t x;  /* bf16 [rows, H] rows that are not kept */
    int64_t y;  /* bf16 [rows, H] y; dx */
    int64_t dy; /* bf16 [rows, H] */
    int64_t h;  /* bf16 [rows, I] h; w*h */
    int64_t dg, du; /* bf16 [rows, I] first g and u of rows that are made again, then dg and du in their place */
    int64_t w;  /* fp32 [rows] */
    int64_t dw; /* fp32 [rows, dw_tiles] partial sums */
    int64_t ring_bytes;
    int64_t kept_rows; /* of a saved object here: no more than this rank can own */
    /* one saved object */
    int64_t saved_x, saved_g, saved_u;
    int64_t saved_shared_g, saved_shared_u; /* bf16 [T_max, Is], unless they are made again */
    int64_t saved_stride, saved_bytes;
    /* the rest */
    int64_t control, base;
    int64_t histogram, block_bad; /* schedule scratch */
    int64_t shared_h, shared_y, shared_dg, shared_du, shared_dw;     /* shared expert: as in the ring, rows are tokens */
    int64_t ones;   /* fp32 [T_max] weights of the shared expert where there are none */
    int64_t zeros;  /* int32 [token tiles] tile_expert, expert_first of the shared expert */
    int64_t carry[2]; /* fp32 [3, I, H] of an expert that spans windows, bf16 gradients */
    int64_t counters; /* fused path: MOK_CUDA_STATE_WORDS of state, then the counters of a pass (plan/ring.h); zeroed before each pass */
    int64_t counter_bytes;
    int64_t other_bytes;
    int32_t dw_tiles, shared_dw_tiles;
    int32_t shared_remade; /* the shared expert's g, u are made again: where nothing is kept, they are not either */
    int32_t spans_windows; /* an expert's rows may lie in several windows of a backward pass */
};

struct mok_cuda_schedule_layout {
    int64_t head, expert_rows, expert_first, tile_expert, active, ordinal, routes, ids, token_tiles, token_rows;
    int64_t bytes;
};

enum {
    MOK_CUDA_STATE_WORDS = 32,  /* of the fused path's state: a cache line of its own in front of the counters */
    MOK_CUDA_SORT_CHUNK = 2048, /* routes of a block, at least */
    MOK_CUDA_MAX_SORT_BLOCKS = 256
};

struct mok_pass_schedule {
    struct mok_pass_group *group;
    struct mok_pass_schedule *next; /* in the group's list of those that are free */
    char *memory;
    struct mok_cuda_schedule_arrays arrays;
    int64_t num_tokens; /* of the last build */
};

struct mok_pass_saved {
    struct mok_pass_group *group;
    char *own_x;   /* bf16 [T_max, H] in the region */
    int64_t x_off; /* its offset in the region of any rank */
    char *x, *g, *u;
    char *shared_g, *shared_u; /* NULL when remade */
    int32_t is_full;           /* forward has filled it, backward has not used it up */
};

struct mok_pass_group {
    struct mok_pass_setup setup;
    struct mok_peer *peer;
    struct mok_cuda_layout layout;
    int32_t device;
    int32_t ranks_here; /* ranks of the group on this GPU */
    int32_t move_ctas;  /* SMs of this rank for moving rows and sums */
    int32_t gemm_ctas;  /* and for GEMMs */
    int32_t fused_apart; /* fused path: 1 = communication CTAs multiply nothing; for measurements */

    char *ring, *saved_block, *other;
    struct mok_cuda_control *control;
    struct mok_cuda_record *record; /* pinned host memory */
    void *staging;                  /* pinned host memory for small copies */
    size_t staging_bytes;
    struct mok_cuda_watch watch;
    struct mok_pass_saved *saved; /* [num_saved] */
    struct mok_pass_schedule *free_schedules;

    cudaStream_t own_stream;
    cudaEvent_t last_done;
    int32_t has_last;
    int32_t host_fault; /* mok_status that this rank's host found when nothing else had ended the group; atomic, written once */

    mok_event *events;      /* trace, device memory; NULL = off. Launches of the stream */
    mok_event *lane_events; /* [num_lanes, max_events] roles of the persistent kernels' CTAs (trace/lane.h); NULL = there are none */
    uint32_t *lane_num;     /* [num_lanes] */
    int32_t num_lanes;
    int64_t max_events;     /* of the stream, and of a lane */
};

struct mok_cuda_layout mok_cuda_plan_layout(const struct mok_pass_setup *setup);
struct mok_cuda_schedule_layout mok_cuda_plan_schedule(const struct mok_pass_setup *setup);

/* Bytes of the ring, for each of its rows. */
int64_t mok_cuda_ring_row_bytes(const struct mok_dims *dims, int has_backward);

#endif
