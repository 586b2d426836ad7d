/*
 * What one call asks of a backend: arguments after all checks, and the ops table that src/cpu and src/cuda fill. src/api checks, then calls
 * down; a backend trusts what it gets.
 */
#ifndef MOK_PASS_PASS_H
#define MOK_PASS_PASS_H

#include "peer/peer.h"
#include "plan/region.h"
#include "plan/walk.h"

/* Everything that is fixed at creation. Automatic values are filled in by the backend's `choose`. */
struct mok_pass_setup {
    struct mok_dims dims;
    struct mok_ring ring_forward;
    struct mok_ring ring_backward; /* same memory, own minibatch; keep_rows equal in both */
    struct mok_region region;
    int32_t num_saved;
    int32_t num_local;    /* El */
    int32_t first_expert; /* global id of local expert 0 */
    int32_t path;         /* mok_path, never AUTO */
    int32_t comm_workers;
    int32_t compute_workers;
    int32_t device; /* CUDA ordinal, -1 = current */
    int64_t peer_timeout_ns;
    int64_t local_timeout_ns;
};

/* How long a rank that leaves waits for its peers to leave, and the setting that says so. Decided once, when that wait begins: a peer that
 * gives up later has not had its time yet. A group that is dead then has waited already. */
struct mok_leave_limit {
    int64_t ns;
    const char *setting; /* field of mok_group_config */
};

static inline struct mok_leave_limit mok_pass_leave_limit(const struct mok_pass_setup *setup, int is_dead)
{
    int is_short = is_dead && setup->local_timeout_ns < setup->peer_timeout_ns;
    struct mok_leave_limit limit = {is_short ? setup->local_timeout_ns : setup->peer_timeout_ns,
                                    is_short ? "local_timeout_ms" : "peer_timeout_ms"};
    return limit;
}

/* Opaque to src/api: each backend defines its own. */
struct mok_pass_group;
struct mok_pass_schedule;
struct mok_pass_saved;

struct mok_pass_layer {
    mok_ffn routed;
    mok_ffn shared;
    mok_activation activation;
};

struct mok_pass_forward {
    const struct mok_pass_layer *layer; /* copied by the call */
    struct mok_pass_schedule *schedule;
    struct mok_pass_saved *saved; /* NULL = inference: nothing is kept */
    const void *x;                /* [T, H] bf16; may be the saved object's own peer-visible x */
    const float *w;               /* [T, K] */
    const float *shared_w;        /* [T] or NULL */
    void *y;                      /* [T, H] bf16 */
    mok_stream stream;
};

struct mok_pass_backward {
    const struct mok_pass_layer *layer; /* copied by the call */
    struct mok_pass_schedule *schedule;
    struct mok_pass_saved *saved;
    const void *dy;        /* [T, H] bf16 */
    const float *w;        /* [T, K] */
    const float *shared_w; /* [T] or NULL */
    void *dx;              /* [T, H] bf16 */
    float *dw;             /* [T, K] */
    float *dshared_w;      /* [T] or NULL */
    mok_ffn grads;
    mok_ffn shared_grads;
    int32_t grad_mode;
    mok_stream stream;
};

/* Threads: src/api serialises the calls of one group, but for state, wait and abort: any thread may make them while another is inside a
 * call. A call that finds its group dead returns the group's status and makes no sentence (but with
 * MOK_ERR_DEVICE): src/api makes one, the same for all calls. */
struct mok_pass_ops {
    const char *name;
    int32_t backend; /* MOK_BACKEND_CPU or MOK_BACKEND_CUDA */

    /* Local. MOK_OK, or why this backend cannot be used on this machine. */
    mok_status (*probe)(void);

    /* Local, touches no device memory. Fills automatic values of setup (workers, rings, path) from dims and config. Deterministic: equal on
     * all ranks of equal machines; src/api checks that what must agree does. */
    mok_status (*choose)(const mok_group_config *config, struct mok_pass_setup *setup);

    /* Local. Bytes that create will take, beside the peer region: ring_bytes, saved_bytes, other_bytes. */
    void (*memory)(const struct mok_pass_setup *setup, mok_memory *memory_out);

    /* Where the peer region of this backend lives, for peer->ops->map. */
    mok_status (*peer_memory)(const struct mok_pass_setup *setup, struct mok_peer_memory *memory_out);

    /* After peer->ops->map. Does not own the peer. */
    mok_status (*create)(const struct mok_pass_setup *setup, struct mok_peer *peer, struct mok_pass_group **group_out);
    /* Waits (bounded) for queued work and for every peer's `left` word, then frees all but the region.
     * MOK_ERR_TIMEOUT or MOK_ERR_ABORTED: a peer did not leave, the region must be kept. */
    mok_status (*destroy)(struct mok_pass_group *group);

    mok_status (*schedule_create)(struct mok_pass_group *group, struct mok_pass_schedule **schedule_out);
    /* Work that uses it may be queued: waits for it, or keeps the memory until it is done. */
    void (*schedule_destroy)(struct mok_pass_schedule *schedule);
    mok_status (*schedule_build)(struct mok_pass_schedule *schedule, const int32_t *ids, int64_t num_tokens, mok_stream stream);
    /* Blocks until built; host copies. rows_out [El] may be NULL. */
    mok_status (*schedule_counts)(struct mok_pass_schedule *schedule, mok_stream stream, int64_t *rows_out, int64_t *padded_out);
    /* Blocks until built; copies the whole schedule into host arrays (tests: both backends must agree bit for bit).
     * routes_out has room for max_rows, tile_expert_out for max_tiles of mok_plan_limits, the others as in plan/schedule.h; any may be
     * NULL. */
    mok_status (*schedule_dump)(struct mok_pass_schedule *schedule, mok_stream stream, struct mok_schedule_head *head_out,
                                int32_t *expert_rows_out, int32_t *expert_first_out, int32_t *tile_expert_out, int32_t *active_out,
                                struct mok_route *routes_out);

    /* The idx-th saved object, made by create. Never fails. */
    struct mok_pass_saved *(*saved)(struct mok_pass_group *group, int32_t idx);
    void *(*saved_input)(struct mok_pass_saved *saved);

    mok_status (*forward)(struct mok_pass_group *group, const struct mok_pass_forward *pass);
    mok_status (*backward)(struct mok_pass_group *group, const struct mok_pass_backward *pass);

    /* Never blocks. */
    mok_status (*state)(struct mok_pass_group *group, mok_group_state *state_out);
    mok_status (*wait)(struct mok_pass_group *group, mok_stream stream, int64_t timeout_ms);
    void (*abort)(struct mok_pass_group *group);

    /* Only between passes. See mok_group_trace, mok_group_trace_take. */
    mok_status (*trace)(struct mok_pass_group *group, int64_t max_events);
    mok_status (*trace_take)(struct mok_pass_group *group, mok_event *events_out, int64_t capacity, int64_t *num_out, int64_t *dropped_out);
};

extern const struct mok_pass_ops mok_pass_cpu;
extern const struct mok_pass_ops mok_pass_cuda; /* only in builds with CUDA (MOK_HAVE_CUDA) */

#endif
