/*
 * The ranks of the bench of moved rows: their GPUs and memory, who needs which rows, and one run on all of them, begun by one word.
 *
 * A rank has a GPU of its own where there are as many; else ranks share GPUs, which moves and checks the same rows and says nothing of links.
 *
 *   PULL   dispatch: an owner reads its rows from the sources' tokens
 *   PUSH   combine: an owner writes its rows into the sources' slots
 *   SEND   dispatch the other way round: a source writes its rows to the owners; the same bytes between the same GPUs as PULL
 */
#ifndef MOK_BENCH_MOVE_RANKS_H
#define MOK_BENCH_MOVE_RANKS_H

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/kernel.h"

#define CHECK(call)                                                                                                                        \
    do {                                                                                                                                   \
        cudaError_t error_ = (call);                                                                                                       \
        if (error_ != cudaSuccess) {                                                                                                       \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));                                     \
            exit(3);                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

enum {
    MAX_RANKS = 8,
    TOKENS = 8192,
    TOP_K = 8,
    EXPERTS = 128,
    ROUTES = TOKENS * TOP_K,
    MAX_ROWS = 2 * ROUTES + 128 * EXPERTS / 2, /* of one rank, padding included: an owner may have twice its share (make_traffic looks) */
    MAX_ROW_BYTES = 14336,
    WARM_UP = 10,
    RUNS = 30,
    HEAD_BYTES = 4096, /* of a region, before its tokens: the abort word stands there, and what sources signal with */
    FLAGS_AT = 1024    /* bytes into the head: uint32 [MAX_RANKS] */
};

enum direction { PULL, PUSH, SEND, NUM_DIRECTIONS };

/* remote: every row has its source on another rank, all of them alike   mixed: random routes   zipf, hot: as in `mok bench --skew` */
enum pattern { REMOTE, MIXED, ZIPF, HOT, NUM_PATTERNS };

/* Rows of a rank for one direction of the kernels, and where they must be found afterwards. */
struct moves {
    struct mok_route *routes;       /* [MAX_ROWS] device: rank and slot (SEND: row) that each local row is moved from or to */
    struct mok_schedule_head *head; /* device */
    int64_t num_rows;
};

/* A region: head, [TOKENS] rows, [MAX_ROWS] rows that are written by others: slots (PUSH), rows of the owner (SEND). */
struct rank {
    int32_t device;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    char *region, *rows;           /* rows: [MAX_ROWS] of this rank */
    struct moves owned, sent;      /* PULL, PUSH; SEND */
    struct mok_route *slot_origin; /* [ROUTES] of a slot: owner's rank and row */
    struct mok_route *row_origin;  /* [MAX_ROWS] of an owner's row: source's rank and its local row */
    int64_t num_received;          /* rows that SEND brings here, padding included */
    int32_t *tables;               /* tile_expert [MAX_ROWS / 128], expert_first [EXPERTS + 1], expert_rows [EXPERTS] */
    struct mok_cuda_control *control;
    char **base;
    uint32_t *ok;
    unsigned long long *num_bad;
};

extern struct rank ranks[MAX_RANKS];
extern int32_t num_ranks;

/* Opens num ranks on the GPUs that there are. Returns the number of GPUs used. */
int32_t open_ranks(int32_t num);

/* Fills all ranks' moves. most_out: rows that cross the link in one direction, of the rank where they are most. */
void make_traffic(enum pattern pattern, int64_t *most_out);
/* `rows` rows of rank 0, in equal parts from ranks 1 .. num_sources, in turns; and what each of these sends. */
void make_minibatch(int32_t rows, int32_t num_sources);

/* Tokens of all ranks. */
void fill_tokens(int32_t row_bytes);
/* Moves once from fresh rows to fresh memory. Returns the number of wrong words. */
unsigned long long count_bad(enum direction direction, int32_t row_bytes, int32_t num_ctas);

/* Enqueues a rank's part. num_ctas 0: the copy engine takes ROUTES / 2 rows to the next rank. */
void enqueue_move(int32_t r, enum direction direction, int32_t row_bytes, int32_t num_ctas);
/* Holds a rank's stream until open_gate. */
void enqueue_gate(int32_t r);
void open_gate(void);
/* One run on all ranks; the slowest one's time, ms. */
float run_all(enum direction direction, int32_t row_bytes, int32_t num_ctas);

struct timing {
    float least, median, most;
};

/* Of RUNS values. */
struct timing timing_of(float *ms);

/* move_latency.cu: rows of one owner until they are known to be there, over the number of sources. Lines of json, which may be NULL. 1: a row was wrong. */
int measure_latency(FILE *json, int32_t num_sms);

#endif
