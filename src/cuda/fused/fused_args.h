/*
 * What a fused kernel takes: all of it in a forward pass (filled by fused/forward/fused_forward.c), a part of it in a backward pass. T, K, H, I,
 * Is as in mok.h; rows are padded rows of this rank.
 */
#ifndef MOK_CUDA_FUSED_ARGS_H
#define MOK_CUDA_FUSED_ARGS_H

#include <cuda.h>
#include <mok/mok.h>

#include "cuda/control.h"
#include "cuda/gemm/gemm_args.h"
#include "plan/walk.h"
#include "trace/lane.h"

/* The products of a forward pass; a backward pass makes g and u again with the two of gate+up. */
enum { MOK_FUSED_GATE_UP, MOK_FUSED_DOWN, MOK_FUSED_SHARED_GATE_UP, MOK_FUSED_SHARED_DOWN, MOK_FUSED_NUM_GEMMS };

struct mok_fused_gemm {
    CUtensorMap a;              /* [rows, contraction], box 64 x 128: x (in the ring, or own tokens), or h */
    CUtensorMap b[2];           /* [El, columns, contraction], box 64 x 128 x 1: gate and up, or twice down */
    struct mok_gemm_out out[3]; /* h, g, u; or y */
    int32_t num_steps;          /* contraction / 64, rounded up */
    int32_t tile_cols;          /* columns of an output tile */
    int32_t half_cols;          /* where the second half of B begins: 0 (up stands beside gate), or half a tile */
};

/* All words zero before the kernel. */
struct mok_fused_state {
    uint32_t next_unit;  /* number of the next unit that nobody has taken */
    uint32_t next_share; /* likewise of the shares of communication steps (fused/fused_move.cuh) */
    uint32_t progress;   /* grows whenever a task or a step of this rank ends */
};

/* Bytes of a CTA's shared memory that rows pass through (fused/fused_move.cuh). */
enum { MOK_FUSED_RING_BYTES = 16 * 1024, MOK_FUSED_STAGE_BYTES = 4 * 48 * 1024 };

/* How a mover cuts rows (fused/fused_move.cuh). */
struct mok_fused_cut {
    int32_t chunk_bytes; /* at most; of one bulk copy, whole lines of 128 bytes: others are slow over a link */
    int32_t row_chunks;  /* copies of a row */
    int32_t lanes;       /* copies under way */
};

/* Where the roles of the CTAs record what they do (fused/fused_trace.cuh); a lane for each. */
struct mok_fused_trace {
    mok_event *events; /* [lanes, max_events] out; NULL = nothing is recorded */
    uint32_t *num;     /* [lanes] events so far, those without room included; in and out */
    uint32_t max_events;
};

struct mok_fused_args {
    struct mok_cuda_watch watch;
    const uint32_t *ok; /* [1] in: 0 = the ENTRY barrier did not complete, nothing is done */
    struct mok_fused_state *state;
    uint32_t *counters;                     /* mok_plan_counter_base words, all zero before the kernel */
    int32_t counter_base[MOK_NUM_COUNTERS]; /* first word of each kind */
    struct mok_walk walk;                   /* given fields */
    struct mok_gemm_activation activation;
    struct mok_fused_gemm gemm[MOK_FUSED_NUM_GEMMS];
    CUtensorMap x_kept;   /* [kept rows, H], box 64 x 128 */
    int32_t keeps_shared; /* g and u of the shared expert are stored */
    /* moving rows */
    char *x_ring, *x_saved, *y_ring; /* [ring rows, H], [kept rows, H], [ring rows, H] bf16; y_ring: backward alone, dx */
    int64_t x_off;                   /* in a source's region: [T, H] bf16, read */
    int64_t slots_off;               /* in a source's region: [T * K, H] bf16, written */
    int32_t row_bytes;
    struct mok_fused_cut cut[2]; /* through the small stages, through the operand stages */
    int32_t apart;               /* 1: communication CTAs multiply nothing and copy through the operand stages */
    int32_t primes;              /* 1: so does the first pull of communication CTAs that do multiply */
    struct mok_fused_trace trace;
    uint64_t wait_limit_ns;      /* of waits that depend on the own CTA's (cluster's) copies and products alone */
};

#endif
