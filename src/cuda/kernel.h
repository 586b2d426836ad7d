/*
 * The kernels but for the GEMMs and the fused passes: one argument struct a kernel (by value, so that a call may be captured), and the one
 * way to load and launch them. Plain C; the .cu files give each kernel to the table of kernel.c by an accessor.
 *
 * In the structs: "in" and "out" as the kernel sees it. T, K, H, E, R, El as in mok.h. Rows are padded rows of this rank.
 */
#ifndef MOK_CUDA_KERNEL_H
#define MOK_CUDA_KERNEL_H

#include <mok/mok.h>

#include "cuda/control.h"
#include "plan/schedule.h"

enum mok_cuda_kernel_id {
    MOK_CUDA_COUNT,   /* own routes by expert, block by block */
    MOK_CUDA_SCATTER, /* own routes sorted by expert, stable; SCHED arrives */
    MOK_CUDA_ROUTES,  /* SCHED waits; which rows this rank owns, and where each comes from */
    MOK_CUDA_BARRIER, /* ENTRY and EXIT: arrival and wait */
    MOK_CUDA_PUBLISH, /* copies into peer-visible memory */
    MOK_CUDA_PULL,    /* rows from their sources */
    MOK_CUDA_PUSH,    /* rows to their sources */
    MOK_CUDA_SUM_Y,   /* final sum of a forward pass */
    MOK_CUDA_SUM_DX,  /* final sums of a backward pass */
    MOK_CUDA_RAISE,   /* one word to every peer: abort, left */
    MOK_CUDA_STAMP,   /* trace */
    MOK_CUDA_NUM_KERNELS
};

enum {
    MOK_CUDA_ONE_BLOCK = 1024, /* threads of kernels that are one block, at most */
    MOK_CUDA_ROUTE_THREADS = 256, /* of a block of ROUTES */
    MOK_CUDA_MAX_SHARED = 200 * 1024,
    MOK_CUDA_MAX_EXPERTS = MOK_CUDA_MAX_SHARED / 4 / 3 - 8 /* three histograms, and the tables of ROUTES, fit in shared memory */
};

/* Arrays of struct mok_schedule_view, writable. */
struct mok_cuda_schedule_arrays {
    struct mok_schedule_head *head; /* [1] */
    int32_t *expert_rows;           /* [El] */
    int32_t *expert_first;          /* [El + 1] */
    int32_t *tile_expert;           /* [max tiles] */
    int32_t *active;                /* [El] */
    int32_t *ordinal;               /* [El] */
    struct mok_route *routes;       /* [max rows] */
    int32_t *ids;                   /* [T, K] */
    int32_t *token_tiles;           /* [1] shared expert: row tiles */
    int32_t *token_rows;            /* [1] shared expert: T */
};

/* COUNT, SCATTER: the source side of a schedule. Block b has the routes [b * chunk, (b + 1) * chunk). */
struct mok_cuda_sort_args {
    struct mok_cuda_watch watch;
    const int32_t *ids;             /* [T, K], in */
    struct mok_schedule_head *head; /* zeroed by COUNT */
    int32_t *clean_ids;             /* [T, K], out of COUNT: bad ids made -1; in of SCATTER */
    int32_t *histogram;             /* [num_blocks, E] out of COUNT */
    int32_t *block_bad;             /* [num_blocks] bad ids, out of COUNT */
    char *region;                   /* own region */
    int64_t sched_off;              /* uint32 [R] in every region */
    int64_t offset_off[2];          /* int32 [E + 2], out of SCATTER, by parity of the build */
    int64_t list_off[2];            /* int32 [T * K], out of SCATTER */
    int64_t num_routes;             /* T * K */
    int64_t chunk;
    int32_t num_blocks;
    int32_t num_experts;
};

/* ROUTES: the owner side. */
struct mok_cuda_own_args {
    struct mok_cuda_watch watch;
    struct mok_cuda_schedule_arrays out;
    int64_t sched_off;
    int64_t offset_off[2];
    int64_t list_off[2];
    int32_t num_experts;
    int32_t first_expert;
    int32_t num_local;
    int32_t num_tokens;
};

/* BARRIER. Thread s minds rank s. */
struct mok_cuda_barrier_args {
    struct mok_cuda_watch watch;
    int64_t words_off;  /* uint32 [R] in every region: word s is written by rank s */
    uint32_t *epoch;    /* n of the last barrier of this kind that completed */
    uint32_t *ok;       /* out, when it waits: 1 = complete */
    const uint32_t *needs; /* NULL, or a word that must be 1: else neither arrival nor wait */
    int64_t tags_off;   /* uint64 [R] in every region, beside the words: what the ranks meet for; 0 = they need no tag */
    uint64_t tag;       /* of this rank, without the number of the build */
    const uint32_t *build; /* that number: a replay may have built anew */
    int32_t ahead;      /* the barrier is number *epoch + ahead */
    int32_t arrives;
    int32_t waits;
    int32_t site;
};

/* PUBLISH. Copies bytes, then words. */
struct mok_cuda_publish_args {
    const void *rows_from; /* multiple of 16 bytes */
    void *rows_to;
    int64_t rows_bytes;
    const float *words_from;
    float *words_to;
    int64_t num_words;
};

/* PULL, PUSH: rows first_row .. first_row + window_rows - 1, as far as there are. */
struct mok_cuda_move_args {
    struct mok_cuda_watch watch;
    const uint32_t *ok; /* 0: do nothing */
    const struct mok_schedule_head *head;
    const struct mok_route *routes;
    const int32_t *tile_expert, *expert_first, *expert_rows; /* PULL: which padding rows to zero */
    char *local;             /* row first_row of the buffer: PULL out, PUSH in */
    int64_t remote_off;      /* in a source's region: PULL [T, H] rows, in; PUSH [T * K, H] slots, out */
    float *local_w;          /* PULL [window_rows] out, NULL = no weights */
    const float *dw_partial; /* PUSH [window_rows, num_partials] in, NULL = no dw */
    int64_t word_off;        /* in a source's region, fp32 [T, K]: PULL w, in; PUSH dw, out */
    int32_t num_partials;
    int32_t first_row;
    int32_t window_rows;
    int32_t row_bytes;
    int32_t top_k;
    /* how the copies are cut, mok_cuda_cut_rows */
    int32_t chunk_bytes; /* at most; of one bulk copy */
    int32_t row_chunks;  /* copies of a row */
    int32_t lanes;       /* of a warp that copy, <= 32 */
};

/* SUM_Y */
struct mok_cuda_sum_y_args {
    struct mok_cuda_watch watch;
    const int32_t *ids;    /* [T, K] in */
    const float *w;        /* [T, K] in */
    const void *slots;     /* [T * K, H] bf16, in */
    const void *shared;    /* [T, H] bf16, in; NULL = none */
    const float *shared_w; /* [T] in; NULL = 1 */
    void *y;               /* [T, H] bf16, out */
    int32_t num_tokens, top_k, hidden;
};

/* SUM_DX */
struct mok_cuda_sum_dx_args {
    struct mok_cuda_watch watch;
    const int32_t *ids;          /* [T, K] in */
    const void *slots;           /* [T * K, H] bf16, in */
    const float *slot_dw;        /* [T * K] in */
    const void *shared;          /* [T, H] bf16, in; NULL = none */
    const float *shared_partial; /* [T, num_partials] in; NULL = dshared_w is not wanted */
    void *dx;                    /* [T, H] bf16, out */
    float *dw;                   /* [T, K] out */
    float *dshared_w;            /* [T] out */
    int32_t num_tokens, top_k, hidden;
    int32_t num_partials;
};

/* RAISE: writes `value` to the word of every region. */
struct mok_cuda_raise_args {
    struct mok_cuda_watch watch;
    int64_t word_off;
    uint32_t value;
};

/* STAMP */
struct mok_cuda_stamp_args {
    struct mok_cuda_control *control;
    mok_event *events; /* [capacity] */
    uint64_t capacity;
    int64_t index;
    int32_t kind;
    int32_t is_end;
};

/* A kernel as the host knows it. */
struct mok_cuda_kernel {
    const void *function;
    int32_t threads;    /* of a block; 0 = the launch says */
    size_t args_bytes;  /* as nvcc sees the struct */
};

#ifdef __cplusplus
extern "C" {
#endif

struct mok_cuda_kernel mok_cuda_count_kernel(void);
struct mok_cuda_kernel mok_cuda_scatter_kernel(void);
struct mok_cuda_kernel mok_cuda_barrier_kernel(void);
struct mok_cuda_kernel mok_cuda_routes_kernel(void);
struct mok_cuda_kernel mok_cuda_publish_kernel(void);
struct mok_cuda_kernel mok_cuda_pull_kernel(void);
struct mok_cuda_kernel mok_cuda_push_kernel(void);
struct mok_cuda_kernel mok_cuda_sum_y_kernel(void);
struct mok_cuda_kernel mok_cuda_sum_dx_kernel(void);
struct mok_cuda_kernel mok_cuda_raise_kernel(void);
struct mok_cuda_kernel mok_cuda_stamp_kernel(void);

/* Loads every kernel of this file on the current device, and checks that host and device agree on the structs. Not while capturing. */
MOK_MUST_USE mok_status mok_cuda_load_kernels(void);

/* Enqueues a kernel. threads: only for kernels whose table entry says 0. args: the struct of the kernel, copied. */
MOK_MUST_USE mok_status mok_cuda_launch(enum mok_cuda_kernel_id id, int32_t blocks, int32_t threads, size_t shared_bytes, const void *args,
                                        mok_stream stream);

/* Shared memory of ROUTES. */
size_t mok_cuda_routes_shared_bytes(int64_t num_ranks, int64_t num_local);
/* Cuts rows into bulk copies for PULL and PUSH, by bytes in flight and not by rows; fills the last three fields of args. Returns shared memory. */
size_t mok_cuda_cut_rows(struct mok_cuda_move_args *args);

#ifdef __cplusplus
}
#endif
#endif
