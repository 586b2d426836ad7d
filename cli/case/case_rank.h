/*
 * One rank of a group with its layer, and its batches: the tensors of one forward and backward. Everything goes through the public API; the
 * pieces are apart so that tests can have several batches in flight.
 *
 * Every output buffer is guarded: bytes outside what the call may write hold a pattern, which is looked at afterwards; inputs must come
 * back unchanged.
 */
#ifndef MOK_CASE_RANK_H
#define MOK_CASE_RANK_H

#include "case/case_layout.h"
#include "case/case_meeting.h"
#include "case/case_memory.h"
#include "ref/cases.h"

/* How a rank joins: the same for all ranks but for `rank`. */
struct mok_case_join {
    int32_t backend;
    int32_t peer; /* mok_peer_kind */
    int32_t rank;
    int32_t num_saved;
    mok_hub *hub;
    void *const *regions; /* [num_ranks] MOK_PEER_EXTERNAL */
    size_t region_bytes;
    int64_t peer_timeout_ms;  /* 0 = 60000 */
    int64_t local_timeout_ms; /* 0 = the library's default */
    struct mok_case_meeting *meeting; /* NULL = ranks meet on the device alone */
};

/* Weights begin here in their block: on a multiple of 16 bytes, which is all that the API asks for. */
enum {
    MOK_CASE_WEIGHTS_OFFSET = 16
};

/* A layer with weights of its own, in the layout of the knobs. */
struct mok_case_layer {
    mok_layer *layer;
    void *weights, *shared_weights; /* blocks in the backend's memory */
};

struct mok_case_rank {
    const struct mok_case_memory *memory;
    const struct mok_ref_problem *problem; /* whose sizes the group, and whose weights `layer` has */
    struct mok_ref_knobs knobs;
    int32_t rank;
    int32_t num_saved;
    int64_t max_tokens; /* T_max */
    int32_t num_local;  /* El */
    int is_open;        /* memory->open was called */
    mok_stream stream;
    mok_group *group;
    struct mok_case_layer layer;
    char *region;                   /* own peer region, NULL when the library made it */
};

/* The group configuration of this problem; hub and regions as in join. */
mok_status mok_case_config(const struct mok_ref_problem *problem, const struct mok_ref_knobs *knobs, const struct mok_case_join *join,
                           int32_t device,
                           mok_external *external, mok_group_config *config_out);

/* Collective. On failure *rank is closed. The problem must outlive the rank. */
mok_status mok_case_rank_open(struct mok_case_rank *rank, const struct mok_ref_problem *problem, const struct mok_ref_knobs *knobs,
                              const struct mok_case_join *join);
/* Batches first. Returns what mok_group_destroy says. */
mok_status mok_case_rank_close(struct mok_case_rank *rank);

/* Another layer of the rank's group, with the weights and the activation of `problem`. Not collective. */
mok_status mok_case_layer_open(struct mok_case_rank *rank, const struct mok_ref_problem *problem, struct mok_case_layer *layer_out);
void mok_case_layer_close(struct mok_case_rank *rank, struct mok_case_layer *layer);

/* Fills lists, published rows, slots and saved x of the own region with a byte; only when no batch is in flight. Nothing without `region`.
 * */
mok_status mok_case_rank_poison(struct mok_case_rank *rank, int byte);

/* Guarded memory: `used` bytes at `data`, pattern before and behind. */
struct mok_case_buffer {
    char *block;
    char *data;
    size_t bytes; /* room at data */
    size_t used;  /* of the batch at hand */
};

struct mok_case_batch {
    struct mok_case_rank *rank;
    const struct mok_ref_problem *problem; /* of the last load: tokens, routes, start of gradients */
    mok_layer *layer; /* the rank's own, unless the caller puts another here */
    mok_schedule *schedule;
    mok_saved *saved; /* NULL = forward only */
    int64_t num_tokens;
    void *saved_x; /* knobs.saved_input: x goes here */
    struct mok_case_buffer x, dy, ids, w, shared_w;          /* in */
    struct mok_case_buffer y, dx, dw, dshared_w;             /* out */
    struct mok_case_buffer grads, shared_grads;              /* in, out: FFN blocks */
    struct mok_case_place grads_place, shared_grads_place;
    char *grads_before, *shared_grads_before; /* host images of what was loaded */
};

/* Local. saved_idx: which saved object; -1 = none. */
mok_status mok_case_batch_open(struct mok_case_batch *batch, struct mok_case_rank *rank, int32_t saved_idx);
void mok_case_batch_close(struct mok_case_batch *batch);

/* Copies this rank's share of the problem in, and fills outputs with `poison`. problem: sizes as those of the rank's own problem. */
mok_status mok_case_batch_load(struct mok_case_batch *batch, const struct mok_ref_problem *problem, int poison);
/* Collective, enqueue only. Forward does not build the schedule. */
mok_status mok_case_batch_build(struct mok_case_batch *batch);
mok_status mok_case_batch_forward(struct mok_case_batch *batch);
mok_status mok_case_batch_backward(struct mok_case_batch *batch);
mok_status mok_case_batch_wait(struct mok_case_rank *rank);

/* After the batch is done. Copies this rank's share of the outputs out; adds to *num_differences bytes that should not have changed, and
 * names the first in `difference` [size]. */
mok_status mok_case_batch_collect(struct mok_case_batch *batch, struct mok_ref_outputs *outputs, int64_t *num_differences,
                                  char *difference, size_t size);

/* Copies the slots of the own region; to[N * K, H] of all ranks, this rank's part is filled. Nothing without rank->region. */
mok_status mok_case_batch_slots(struct mok_case_batch *batch, mok_bf16 *to);

#endif
