/*
 * What a rank's kernels and its host share: the control block (device memory), the record (pinned host memory), and the watch that every
 * kernel with a wait takes along.
 *
 * Rules.
 *  - The control block is zeroed once, at creation. Counts of builds and passes live here and not on the host, so that a captured graph
 *    replays with the right ones.
 *  - The record is written by the device, once, and read by the host without synchronising.
 *    What the host finds first it keeps to itself (rank_calls.c).
 *  - After an ENTRY or EXIT barrier that did not complete, `pass_ok` is 0; after a SCHED barrier the schedule has no rows. The kernels behind it then touch no peer.
 */
#ifndef MOK_CUDA_CONTROL_H
#define MOK_CUDA_CONTROL_H

#include <stdint.h>

struct mok_cuda_control {
    uint32_t sched;       /* schedules whose SCHED barrier this rank has seen complete: n of the last one */
    uint32_t pass;        /* passes whose ENTRY barrier this rank has seen complete */
    uint32_t pass_ok;     /* 1: the last ENTRY (then EXIT) barrier completed */
    uint32_t fault_claim; /* 0 until somebody writes the fault into the record */
    uint32_t sum_blocks;  /* blocks of the final sum that are done; back to 0 with the last */
    uint32_t scatter_blocks; /* the same of SCATTER */
    uint32_t routes_blocks;  /* the same of ROUTES; in the upper 16 bits, how many of them did not see SCHED complete */
    uint64_t bad_ids;     /* over all schedules built */
    uint64_t passes_done;
    uint64_t trace_begin; /* of the stage that is being traced, ns */
    uint64_t num_events;  /* traced so far, those without room included */
};

struct mok_cuda_record {
    int32_t status; /* mok_status; written last */
    int32_t site;
    int32_t rank;
    int32_t block;
    int64_t index;
    int64_t expected;
    int64_t seen;
    uint64_t bad_ids;
    uint64_t passes_done;
};

struct mok_cuda_watch {
    char *const *base;                /* [num_ranks] regions, device memory */
    char *own;                        /* region of this rank: base[rank], without a load */
    struct mok_cuda_control *control; /* of this rank, device memory */
    struct mok_cuda_record *record;   /* of this rank, device address of pinned host memory */
    int64_t abort_off;                /* of the abort word in a region */
    int64_t left_off;                 /* of the `left` words [num_ranks] in a region */
    uint64_t peer_limit_ns;
    uint64_t local_limit_ns;
    int32_t rank;
    int32_t num_ranks;
};

#endif
