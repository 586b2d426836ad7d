/*
 * The ranks of a small problem, on the emulated machine: memory as the backend lays it out, arguments of its passes, and the comparison of
 * what the passes leave there.
 */
#ifndef MOK_EMULATE_TABLE_H
#define MOK_EMULATE_TABLE_H

#include "cuda/rank_pass.h"
#include "emulate_world.h"

enum { TABLE_UNTOUCHED = 0xffff };

/* What stands in the way of the pass. */
enum trouble { NO_TROUBLE, NO_ENTRY, ABORTED };

/* One rank: its memory as the backend lays it out, and its schedule. */
struct seat {
    struct mok_pass_group group;
    struct mok_pass_saved saved;
    struct mok_pass_schedule schedule;
    struct mok_pass_layer layer;
    struct mok_pass_forward forward;
    struct mok_pass_backward backward; /* of a rank that keeps something */
    struct mok_cuda_record record;
    int64_t kept_rows;
};

struct table {
    struct world world;
    char *region[WORLD_MAX_RANKS];
    struct seat seats[WORLD_MAX_RANKS];
    int64_t num_wrong;
};

/* The regions first, for all ranks: the ranks' kernels run one after the other, as if all had published. */
void table_open_region(struct table *table, int32_t rank);
void table_open_seat(struct table *table, int32_t rank);
void table_make_trouble(struct table *table, int32_t rank, enum trouble trouble);
void table_close_seat(struct seat *seat);

/* What the launches of a pass share. */
struct mok_cuda_pass table_pass(struct table *table, int32_t rank, int is_backward);

/* Counts what differs, says the first. */
void table_expect(struct table *table, const void *seen, const void *expected, int64_t bytes, const char *what, int32_t rank, int64_t row);
/* count bf16 values of one kind. */
void table_expect_all(struct table *table, const uint16_t *seen, uint16_t expected, int64_t count, const char *what, int32_t rank, int64_t row);

/* A pass was launched with this status, and has ended as it must. */
void table_expect_end(struct table *table, int32_t rank, enum trouble trouble, mok_status status);

/* emulate_backward.c: a backward pass of all ranks behind their forward passes, and all that it must leave. */
void table_run_backward(struct table *table, enum trouble trouble);

#endif
