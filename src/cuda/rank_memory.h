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

#include "cuda/gemm/gemm.h"
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
    int64_t counters; /* fused path: state and counters of a pass (plan/ring.h) */
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

    mok_event *events;      /* trace, device memory; NULL = off. Launches of the stream */
    mok_event *lane_events; /* [num_lanes, max_events] roles of the persistent kernels' CTAs (trace/lane.h); NULL = there are none */
    uint32_t *lane_num;     /* [num_lanes] */
    int32_t num_lanes;
    int64_t max_events;     /* of the stream, and of a lane */
};

struct mok_cuda_layout mok_cuda_plan_layout(const struct mok_pass_setup *setup);
struct mok_cuda_schedule_layout mok_cuda_plan_schedule(const struct mok_pass_setup *setup);

/* ---- calls (group_cuda.c) --------------------------------------------------------------------------------------------------- */

/* Before a call enqueues anything: the group is alive, the stream will do, the rank's device is current, earlier calls come first. */
mok_status mok_cuda_begin_call(struct mok_pass_group *group, mok_stream stream, int32_t *before_out);
/* After it; `status` of what was enqueued. A call that failed half-way aborts the group, because its peers would wait. Returns status. */
mok_status mok_cuda_end_call(struct mok_pass_group *group, mok_stream stream, int32_t before, mok_status status);

mok_status mok_cuda_wait_stream(struct mok_pass_group *group, mok_stream stream, int64_t timeout_ms);

/* ---- launches that several files need ------------------------------------------------------ */

enum mok_cuda_barrier { MOK_CUDA_ENTRY, MOK_CUDA_EXIT }; /* SCHED is part of the schedule's kernels */
enum mok_cuda_barrier_part { MOK_CUDA_ARRIVE = 1, MOK_CUDA_WAIT = 2 };

mok_status mok_cuda_barrier(struct mok_pass_group *group, enum mok_cuda_barrier barrier, int parts, mok_stream stream);

/* Trace: begin or end of a stage; nothing when trace is off. */
mok_status mok_cuda_stage_begin(struct mok_pass_group *group, mok_stream stream);
mok_status mok_cuda_stage_end(struct mok_pass_group *group, int32_t kind, int64_t index, mok_stream stream);

/* CTAs of a persistent kernel, at most: two clusters of two where a rank has fewer SMs. */
int32_t mok_cuda_max_ctas(const struct mok_pass_group *group);

/* Blocks for element-wise work on `num` items, a thread each. */
int32_t mok_cuda_blocks_for(const struct mok_pass_group *group, int64_t num);

/* ---- ops ------------------------------------------------------------------------------------------------------------------------ */

mok_status mok_cuda_choose(const mok_group_config *config, struct mok_pass_setup *setup);
mok_status mok_cuda_create(const struct mok_pass_setup *setup, struct mok_peer *peer, struct mok_pass_group **group_out);
mok_status mok_cuda_destroy(struct mok_pass_group *group);
mok_status mok_cuda_schedule_create(struct mok_pass_group *group, struct mok_pass_schedule **schedule_out);
void mok_cuda_schedule_destroy(struct mok_pass_schedule *schedule);
mok_status mok_cuda_schedule_build(struct mok_pass_schedule *schedule, const int32_t *ids, int64_t num_tokens, mok_stream stream);
mok_status mok_cuda_schedule_counts(struct mok_pass_schedule *schedule, mok_stream stream, int64_t *rows_out, int64_t *padded_out);
mok_status mok_cuda_schedule_dump(struct mok_pass_schedule *schedule, mok_stream stream, struct mok_schedule_head *head_out,
                                  int32_t *expert_rows_out, int32_t *expert_first_out, int32_t *tile_expert_out, int32_t *active_out,
                                  struct mok_route *routes_out);
/* Frees schedules that were given back. */
void mok_cuda_free_schedules(struct mok_pass_group *group);
mok_status mok_cuda_forward(struct mok_pass_group *group, const struct mok_pass_forward *pass);
mok_status mok_cuda_backward(struct mok_pass_group *group, const struct mok_pass_backward *pass);
mok_status mok_cuda_state(struct mok_pass_group *group, mok_group_state *state_out);
void mok_cuda_abort(struct mok_pass_group *group);
mok_status mok_cuda_trace(struct mok_pass_group *group, int64_t max_events);
mok_status mok_cuda_trace_take(struct mok_pass_group *group, mok_event *events_out, int64_t capacity, int64_t *num_out, int64_t *dropped_out);

/* ---- hooks for tests ------------------------------------------------------------------------------------------------------------ */

/* Fills the ring, own slots, published rows, scratch and every saved object that is free with a byte. Only while nothing is queued. */
mok_status mok_cuda_poison(struct mok_pass_group *group, int byte);

#endif
