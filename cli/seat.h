/*
 * One rank at work: its group, its share of a problem's weights and tokens in the backend's memory, and the two passes over them.
 *
 * Order: open, forward, backward, read, close. Every function is called by the rank's own thread. Errors: those of the library.
 */
#ifndef MOK_CLI_SEAT_H
#define MOK_CLI_SEAT_H

#include "case/case_memory.h"
#include "message.h"
#include "ref/problem.h"

/* gate, up, down in the backend's memory. */
struct mok_seat_ffn {
    void *gate, *up, *down;
};

struct mok_seat {
    const struct mok_ref_problem *problem;
    const struct mok_case_memory *memory;
    int is_open; /* memory->open was done */
    int32_t rank;
    int32_t first_expert;
    int32_t num_local;
    int64_t first_token;
    int64_t num_tokens;

    mok_stream stream;
    mok_group *group;
    mok_layer *layer;
    mok_schedule *schedule;
    mok_saved *saved;

    struct mok_seat_ffn weights, shared_weights;
    struct mok_seat_ffn grads, shared_grads;
    void *x, *dy, *y, *dx;
    void *ids;                  /* int32 */
    void *w, *dw;               /* fp32 */
    void *shared_w, *dshared_w; /* fp32; NULL without */
};

/* The config that a problem needs, from the options in `config`: shape, T_max, one saved object. */
void mok_seat_configure(const struct mok_ref_problem *problem, mok_group_config *config);

/* config: as mok_seat_configure left it, with rank, num_ranks and hub. Collective. On failure nothing is left behind, and a group that
 * had been created is aborted, so that the other ranks do not wait. Outputs are filled with 0xFF: what a pass does not write is seen. */
mok_status mok_seat_open(const struct mok_ref_problem *problem, const mok_group_config *config, struct mok_seat *seat_out);
/* Frees everything; an all-zero seat is accepted. Returns the group's farewell. */
mok_status mok_seat_close(struct mok_seat *seat);

/* Schedule and forward pass, enqueued; then waits for both. */
mok_status mok_seat_forward(struct mok_seat *seat);
mok_status mok_seat_backward(struct mok_seat *seat);

/* Copies this rank's results to their places in outputs. */
mok_status mok_seat_read(const struct mok_seat *seat, struct mok_ref_outputs *outputs);

/* For a rank that cannot go on: tells the others. */
void mok_seat_abort(struct mok_seat *seat);

#endif
