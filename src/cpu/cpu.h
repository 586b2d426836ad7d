/*
 * CPU backend: protocol.md executed by threads. It is what the CUDA kernels are compared with, so each idea has one file:
 *
 *   cpu_choose.c    the ops table; automatic values; sizes
 *   cpu_layout.c    where everything stands in this rank's own memory
 *   cpu_group.c     create, destroy, state
 *   cpu_calls.c     the calls that enqueue; the schedule object
 *   cpu_queue.c     jobs in order: host -> workers
 *   cpu_team.c      the workers of a rank, their roles, and the phases of a pass
 *   cpu_wait.c      bounded waits, standstill, abort, the fault record
 *   cpu_barrier.c   SCHED, ENTRY, EXIT and `left` words in peer-visible memory
 *   cpu_schedule.c  sorting, publishing and reading index lists
 *   cpu_dispatch.c  publish, pull, push, final sum: everything that moves rows
 *   cpu_gemm.c      tiles through BLAS: operands widened to fp32, products
 *   cpu_forward.c, cpu_backward.c   the tasks
 *   cpu_loops.c     rounding, activation, sums: loops over one row
 *   cpu_test.c      hooks for tests: delays, poison
 *
 * Phases of a pass, the same for every worker ("meet" = all workers of the rank):
 *
 *   publish own share, clear counters | meet | communication: ENTRY, steps | last one done: arrive at EXIT | tasks until there are none |
 *                                            | computation:                                                 tasks until there are none |
 *   wait for EXIT and shared rows, sum own tokens | meet
 *
 * Which task, which step, which wait, which announcement: src/plan/walk.h alone. Every function here that returns int says 1 = go on,
 * 0 = the pass is given up (an expired wait or an abort; already recorded).
 *
 * Pairs of release and acquire:
 *   counter add (mok_cpu_signal, acq_rel)        -> counter load (mok_cpu_is_done, acquire)
 *   barrier word store (mok_cpu_arrive, release) -> barrier word load (mok_cpu_missing_rank, acquire)
 *   meet arrival (acq_rel) -> meet opening load (acquire); steps_left (acq_rel) -> the arrival at EXIT by the last communication worker
 *   queue mutex: job fields -> workers; workers' results -> host
 */
#ifndef MOK_CPU_CPU_H
#define MOK_CPU_CPU_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bf16.h"
#include "cpu/cpu_loops.h"
#include "pass/pass.h"
#include "pass/site.h"
#include "trace/event.h"

typedef _Atomic uint32_t mok_cpu_word;

/* ---- BLAS calls (cpu_gemm.c says why) ----------------------------------------------------------------------------------------- */

enum {
    MOK_CPU_PANEL = 256, /* most columns of a call, without its margins; gate+up and D tiles are no wider */
    MOK_CPU_MAX_MARGIN = 8,
    MOK_CPU_MAX_PANEL = MOK_CPU_PANEL + 2 * MOK_CPU_MAX_MARGIN,
    MOK_CPU_MAX_HEIGHT = 132
};

/* The one kind of call that row-wise products are made of. */
struct mok_cpu_call {
    int32_t height; /* rows, >= MOK_TILE_ROWS */
    int32_t margin; /* columns of zeros on both sides */
};

/* ---- memory (cpu_layout.c) ------------------------------------------------------------------------------------------------ */

/* Byte offsets into this rank's own blocks. Rows of a ring are ring rows; forward and backward share the memory of the ring. */
struct mok_cpu_layout {
    /* ring block, forward */
    int64_t x; /* bf16 [ring rows, H] rows that are not kept */
    int64_t h; /* bf16 [ring rows, I] */
    int64_t y; /* bf16 [ring rows, H] */
    /* ring block, backward */
    int64_t dy;      /* bf16 [ring rows, H] */
    int64_t again_x; /* bf16 [ring rows, H] rows that are not kept; likewise g, u */
    int64_t again_g; /* bf16 [ring rows, I] */
    int64_t again_u; /* bf16 [ring rows, I] */
    int64_t dgu;     /* bf16 [ring rows, 2I] dg, then du: the operand of E */
    int64_t wh;      /* bf16 [ring rows, I] bf16(w*h) */
    int64_t dx;      /* bf16 [ring rows, H] */
    int64_t w;       /* fp32 [ring rows] */
    int64_t dw;      /* fp32 [ring rows, D tiles] partial sums */
    int64_t ring_bytes;
    /* saved block, one object after the other */
    int64_t saved_x;        /* bf16 [kept rows, H] */
    int64_t saved_g;        /* bf16 [kept rows, I] */
    int64_t saved_u;        /* bf16 [kept rows, I] */
    int64_t saved_shared_g; /* bf16 [T_max, Is] unless remade */
    int64_t saved_shared_u; /* bf16 [T_max, Is] unless remade */
    int64_t saved_stride;
    int64_t saved_bytes;
    /* other block: shared expert, forward and backward in the same memory */
    int64_t shared_h;   /* bf16 [T_max, Is] */
    int64_t shared_s;   /* bf16 [T_max, H] s_t */
    int64_t shared_g;   /* bf16 [T_max, Is] remade */
    int64_t shared_u;   /* bf16 [T_max, Is] remade */
    int64_t shared_dgu; /* bf16 [T_max, 2Is] */
    int64_t shared_wh;  /* bf16 [T_max, Is] */
    int64_t shared_dx;  /* bf16 [T_max, H] */
    int64_t shared_dw;  /* fp32 [T_max, D tiles] */
    /* other block: the rest */
    int64_t carry[2]; /* fp32 [gate I*H, up I*H, down H*I] accumulator of an expert that spans laps, by lap parity; bf16 gradients only */
    int64_t counters; /* uint32 [num_counters] */
    int64_t num_counters;
    int64_t scratch;   /* per worker: operand_a, operand_b, result */
    int64_t operand_a; /* fp32, offset inside a worker's scratch */
    int64_t operand_b;
    int64_t result;
    int64_t row; /* fp32 [H] one row of a final sum */
    int64_t scratch_stride;
    int64_t other_bytes;
    int64_t kept_rows; /* rows of a saved object here: setup's keep_rows, but no more than this rank can own */
    int32_t dw_tiles;  /* D tiles of a routed row */
    int32_t shared_dw_tiles;
    int32_t shared_remade; /* the shared expert's g, u are made again: where nothing is kept, they are not either */
};

/* Byte offsets into the memory of one schedule. */
struct mok_cpu_schedule_layout {
    int64_t expert_rows, expert_first, tile_expert, active, ordinal, routes, ids, cursor;
    int64_t bytes;
};

struct mok_tiles mok_cpu_tiles(const struct mok_pass_setup *setup);
struct mok_cpu_layout mok_cpu_plan_layout(const struct mok_pass_setup *setup);
struct mok_cpu_schedule_layout mok_cpu_plan_schedule(const struct mok_pass_setup *setup);
/* Aligned memory that is not touched; NULL when there is none. Freed with free(). */
void *mok_cpu_alloc(int64_t bytes);

/* ---- objects -------------------------------------------------------------------------------------------------------------- */

struct mok_pass_schedule {
    struct mok_pass_group *group;
    struct mok_schedule_head head;
    struct mok_schedule_view view; /* of the arrays below */
    char *memory;
    int32_t *expert_rows, *expert_first, *tile_expert, *active, *ordinal;
    struct mok_route *routes;
    int32_t *ids;
    int32_t *cursor; /* [E + 2] scratch of the sort */
    int64_t ticket;   /* job that builds it */
    int64_t last_use; /* last job that reads or writes it */
};

struct mok_pass_saved {
    struct mok_pass_group *group;
    int32_t idx;
    char *own_x;                   /* bf16 [T_max, H] in the peer-visible region */
    int64_t x_off;                 /* its offset in the region of any rank */
    mok_bf16 *x, *g, *u;           /* kept rows */
    mok_bf16 *shared_g, *shared_u; /* NULL when remade */
    atomic_int is_full;            /* forward has filled it and backward has not used it up: for mok_cpu_poison */
};

/* ---- jobs (cpu_queue.c) ----------------------------------------------------------------------------------------------------- */

enum mok_cpu_job_kind { MOK_CPU_JOB_BUILD, MOK_CPU_JOB_FORWARD, MOK_CPU_JOB_BACKWARD };

/* One enqueued call. Arguments are copies; tensors stay the caller's until the job is done. */
struct mok_cpu_job {
    struct mok_cpu_job *next;
    int64_t ticket; /* 1, 2, .. in the order of the calls */
    int32_t kind;
    struct mok_pass_schedule *schedule;
    struct mok_pass_saved *saved; /* NULL = inference */
    struct mok_pass_layer layer;
    union {
        struct {
            const int32_t *ids;
            int64_t num_tokens;
        } build;
        struct mok_pass_forward forward;
        struct mok_pass_backward backward;
    };
    int32_t num_inside; /* workers that have not left the job; under the queue's lock */
};

struct mok_cpu_queue {
    pthread_mutex_t lock;
    pthread_cond_t more;     /* a job came, or the queue is closed */
    pthread_cond_t finished; /* a job is done */
    struct mok_cpu_job *head, *tail;
    int64_t last_ticket; /* enqueued */
    int64_t done_ticket; /* done */
    int is_closed;
};

mok_status mok_cpu_queue_init(struct mok_cpu_queue *queue);
void mok_cpu_queue_destroy(struct mok_cpu_queue *queue);
/* Takes the job over and returns its ticket. */
int64_t mok_cpu_queue_put(struct mok_cpu_queue *queue, struct mok_cpu_job *job, int32_t num_workers);
/* Blocks until there is a job of this ticket. NULL: the queue is closed and everything in it has been taken. */
struct mok_cpu_job *mok_cpu_queue_take(struct mok_cpu_queue *queue, int64_t ticket);
/* A worker leaves the job; the last one ends and frees it. */
void mok_cpu_queue_leave(struct mok_cpu_queue *queue, struct mok_cpu_job *job);
void mok_cpu_queue_close(struct mok_cpu_queue *queue);
/* 1 when every job up to `ticket` is done, 0 when timeout_ms was over first; -1 = no limit of its own. */
int mok_cpu_queue_wait(struct mok_cpu_queue *queue, int64_t ticket, int64_t timeout_ms);
int64_t mok_cpu_queue_last(struct mok_cpu_queue *queue);
int mok_cpu_queue_is_idle(struct mok_cpu_queue *queue);

/* ---- workers (cpu_team.c) --------------------------------------------------------------------------------------------------- */

/* Which weight tile stands in a worker's operand_b, widened. Row tiles of one expert come one after the other, so it serves again. */
enum mok_cpu_operand { MOK_CPU_NOTHING, MOK_CPU_GATE_UP, MOK_CPU_DOWN, MOK_CPU_DGRAD_DOWN, MOK_CPU_DGRAD_GATE_UP };

struct mok_cpu_worker {
    struct mok_pass_group *group;
    pthread_t thread;
    int32_t index; /* communication workers come first */
    struct mok_cpu_job *job;
    /* scratch of the worker's own */
    float *operand_a; /* [height, depth] rows of a tile */
    float *operand_b; /* panels of a weight tile; rows of a tile where rows are contracted */
    float *result;    /* panels of a product; accumulator of a weight gradient */
    float *row;       /* [H] */
    int32_t operand_kind;
    int32_t operand_expert; /* -1 = the shared expert */
    int32_t operand_col;
    uint32_t meets;          /* meetings this worker has come to */
    uint32_t schedule_epoch; /* of SCHED: schedules this worker has taken part in */
    uint64_t random_state;   /* of test delays */
};

/* What the workers of a rank share during a pass. The cells of one group are cleared by worker 0 before the first meeting of the pass. */
struct mok_cpu_pass {
    struct mok_walk walk;
    uint32_t epoch;         /* of ENTRY and EXIT */
    uint64_t tag;           /* which pass this is, for all ranks to compare */
    atomic_llong next_task; /* tasks below it are taken */
    atomic_llong next_sum;  /* blocks of tokens below it are taken */
    atomic_int steps_left;  /* communication workers that have steps to do */
    atomic_int is_entered;  /* this rank has seen ENTRY complete */
};

struct mok_pass_group {
    struct mok_pass_setup setup;
    struct mok_peer *peer;
    struct mok_tiles tiles;
    struct mok_limits limits[2]; /* forward, backward ring */
    struct mok_cpu_layout layout;
    const struct mok_cpu_loops *loops;
    struct mok_cpu_call call;
    char *ring_block, *saved_block, *other_block;
    struct mok_pass_saved *saved; /* [num_saved] */
    mok_cpu_word *counters;

    struct mok_cpu_queue queue;
    struct mok_cpu_worker *workers;
    int32_t num_workers;
    struct mok_cpu_pass pass;
    uint32_t pass_epoch; /* of ENTRY, EXIT; written by worker 0 */

    mok_cpu_word meet_arrived; /* all arrivals so far */
    mok_cpu_word meet_open;    /* meetings that are complete */

    mok_cpu_word progress; /* ends of tasks and copies: the clock of standstill */
    pthread_mutex_t fault_lock;
    mok_fault fault; /* under fault_lock */
    atomic_ullong bad_ids;
    atomic_ullong passes_done;

    struct mok_trace *trace; /* NULL = off */
    int64_t delay_us;        /* test hook: longest random delay before a step or task; 0 = off */
    int32_t is_stuck;        /* test hook: communication workers make no step */
};

/* Starts the workers. On failure none is left. */
mok_status mok_cpu_team_start(struct mok_pass_group *group);
/* Closes the queue and joins the workers, which finish what is in it. */
void mok_cpu_team_stop(struct mok_pass_group *group);
int mok_cpu_is_comm(const struct mok_cpu_worker *worker);

/* ---- waits (cpu_wait.c) ----------------------------------------------------------------------------------------------------- */

/* One bounded wait. Time is counted in polls of limited length, so that a process that was stopped does not wake up to an expired wait. */
struct mok_cpu_waiting {
    struct mok_cpu_worker *worker;
    int32_t site;
    int64_t index;
    int64_t expected;
    uint32_t polls;
    uint32_t progress; /* the progress word when the clock was started */
    int64_t begin_ns, last_ns, waited_ns;
};

struct mok_cpu_waiting mok_cpu_wait_begin(struct mok_cpu_worker *worker, int32_t site, int64_t index, int64_t expected);
/* After a look that was in vain: polls the abort word, the limit, and gives the core away. 0 = give up. */
int mok_cpu_wait_again(struct mok_cpu_waiting *wait, int64_t seen);
void mok_cpu_wait_end(const struct mok_cpu_waiting *wait);

/* Counter waits of the plan. */
int mok_cpu_is_done(const struct mok_pass_group *group, struct mok_wait wait);
int mok_cpu_wait_for(struct mok_cpu_worker *worker, struct mok_wait wait);
void mok_cpu_signal(struct mok_pass_group *group, struct mok_wait signal);
mok_cpu_word *mok_cpu_counter(const struct mok_pass_group *group, struct mok_wait wait);
/* A task or copy of this rank has ended. */
void mok_cpu_progress(struct mok_pass_group *group);

int mok_cpu_is_aborted(const struct mok_pass_group *group);
void mok_cpu_abort_all(struct mok_pass_group *group);
/* Writes the fault record unless the group is dead already, and raises the own abort word, or that of every rank. */
void mok_cpu_record(struct mok_pass_group *group, const mok_fault *fault, int is_for_all);
/* A rank has left whose group was dead: takes over from its region who raised the abort, which may not have reached this rank yet. 0: it
 * was alive when it left. */
int mok_cpu_hear_abort(struct mok_pass_group *group, int32_t rank);
/* Status of the group, and the fault record (fault_out may be NULL). With MOK_ERR_ABORTED its rank is the one that raised the abort, or has left. */
mok_status mok_cpu_status(struct mok_pass_group *group, mok_fault *fault_out);
/* Gives the core away: at first only to who is ready, then for longer and longer. */
void mok_cpu_relax(uint32_t polls);
/* All workers of the rank have come here. 0: it was aborted, or the wait has expired. */
int mok_cpu_meet(struct mok_cpu_worker *worker);

/* ---- barriers (cpu_barrier.c) ----------------------------------------------------------------------------------------------- */

enum mok_cpu_barrier { MOK_CPU_SCHED, MOK_CPU_ENTRY, MOK_CPU_EXIT };

/* Everything this worker has done, and seen others do, is visible to who sees the words. */
void mok_cpu_arrive(struct mok_pass_group *group, int32_t barrier, uint32_t epoch);
/* A rank that has not arrived yet; -1 = all have, and what they did before is visible here. */
int32_t mok_cpu_missing_rank(const struct mok_pass_group *group, int32_t barrier, uint32_t epoch, uint32_t *seen_out);
int mok_cpu_wait_barrier(struct mok_cpu_worker *worker, int32_t barrier, uint32_t epoch);
/* mok_cpu_wait_again for a barrier that `missing` has not come to. A rank that has left is not waited for: the group dies with
 * MOK_ERR_ABORTED, and the record names it twice, as the source and as the rank that gave up. */
int mok_cpu_wait_arrival(struct mok_cpu_waiting *wait, int32_t barrier, int32_t missing, uint32_t seen);
int32_t mok_cpu_barrier_site(int32_t barrier);
/* Arrives at ENTRY of group->pass and says which pass that is. */
void mok_cpu_enter(struct mok_pass_group *group);
/* After ENTRY, before the own EXIT: all ranks have entered the same pass. 0 = not, and the group is dead: every rank finds that out by
 * itself. */
int mok_cpu_check_entry(struct mok_cpu_worker *worker);
/* Says to every peer that this rank will touch their memory no more, and waits (bounded) until all have said so. MOK_ERR_TIMEOUT: one did
 * not. */
void mok_cpu_say_left(struct mok_peer *peer, const struct mok_region *region);
mok_status mok_cpu_wait_left(struct mok_pass_group *group);

/* ---- work ------------------------------------------------------------------------------------------------------------------- */

int mok_cpu_build(struct mok_cpu_worker *worker, struct mok_cpu_job *job);

void mok_cpu_publish(struct mok_cpu_worker *worker, const struct mok_cpu_job *job);
void mok_cpu_pull(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, int32_t minibatch);
/* Own share of one row tile. */
void mok_cpu_push_tile(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, int32_t row_tile);
void mok_cpu_sum(struct mok_cpu_worker *worker, const struct mok_cpu_job *job);

/* One row tile as its tasks see it, routed or shared: pointers to its first row. What a pass does not have is NULL. */
struct mok_cpu_tile {
    const mok_ffn *weights;
    int32_t expert; /* in weights */
    int32_t is_shared;
    int32_t valid;      /* rows before the padding */
    int32_t inter;      /* I or Is */
    const mok_bf16 *x;  /* [.., H] */
    mok_bf16 *g, *u;    /* [.., inter] NULL = not kept */
    mok_bf16 *h;        /* [.., inter] forward */
    mok_bf16 *y;        /* [.., H] forward */
    const mok_bf16 *dy; /* [.., H] backward, as all below */
    const float *w;     /* [..] NULL = 1 */
    mok_bf16 *dgu;      /* [.., 2*inter] */
    mok_bf16 *wh;       /* [.., inter] */
    mok_bf16 *dx;       /* [.., H] */
    float *dw;          /* [.., dw_tiles] */
    int32_t dw_tiles;
};

/* Rows of a row tile before its padding. */
int32_t mok_cpu_valid_rows(const struct mok_walk *walk, int32_t row_tile);
/* x of a padded row in the memory of this rank. */
mok_bf16 *mok_cpu_row_x(const struct mok_pass_group *group, const struct mok_pass_saved *saved, int64_t row);
struct mok_cpu_tile mok_cpu_forward_tile(const struct mok_pass_group *group, const struct mok_cpu_job *job, int32_t row_tile,
                                         int is_shared);
struct mok_cpu_tile mok_cpu_backward_tile(const struct mok_pass_group *group, const struct mok_cpu_job *job, int32_t row_tile,
                                          int is_shared);

/* gate+up of one column tile: stores g, u where the tile keeps them, h where it has one. Forward and recompute. */
void mok_cpu_gate_up(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, const struct mok_cpu_tile *tile, int32_t col_tile);
void mok_cpu_forward_task(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, const struct mok_task *task);
void mok_cpu_backward_task(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, const struct mok_task *task);

/* ---- tiles through BLAS (cpu_gemm.c) ---------------------------------------------------------------------------------------- */

/* Once per process: one BLAS thread; finds the call to make. MOK_ERR_UNSUPPORTED when this BLAS gives a row other bits at another place;
 * MEMORY, which is tried anew at the next call. */
mok_status mok_cpu_gemm_probe(struct mok_cpu_call *call_out);
/* Workers that will call BLAS, and that no longer do. join: MEMORY when there is no room for a buffer of each, together with those of all
 * groups of this process; call it when everything else of the group is allocated. */
mok_status mok_cpu_gemm_join(int32_t rank, int32_t num_workers);
void mok_cpu_gemm_leave(int32_t num_workers);
/* Widens rows [0, valid) and zeroes the rest, up to `rows`. row_stride in elements. */
void mok_cpu_load_rows(const struct mok_cpu_loops *loops, const mok_bf16 *from, int64_t row_stride, int32_t valid, int32_t rows,
                       int32_t num_cols, float *to);
/* Weight tile of a row-wise GEMM in worker->operand_b, panel by panel: gate, up; or MOK_CPU_PANEL columns each. */
void mok_cpu_load_weights(struct mok_cpu_worker *worker, const struct mok_cpu_tile *tile, int32_t operand, int32_t col_tile);
/* One panel of a product: row r begins at rows + r * stride. */
struct mok_cpu_panel {
    const float *rows;
    int64_t stride;
};
/* operand_a [height, depth] * panel [width, depth]^T, or * panel [depth, width] */
struct mok_cpu_panel mok_cpu_multiply_nt(struct mok_cpu_worker *worker, int32_t panel, int32_t width, int32_t depth);
struct mok_cpu_panel mok_cpu_multiply_nn(struct mok_cpu_worker *worker, int32_t panel, int32_t width, int32_t depth);
/* bf16 of rows [0, valid). */
void mok_cpu_narrow_panel(const struct mok_cpu_worker *worker, struct mok_cpu_panel panel, int32_t valid, int32_t width, mok_bf16 *to,
                          int64_t to_stride);
/* to [out_cols, in_cols] += operand_a [MOK_TILE_ROWS, out_cols]^T * operand_b [MOK_TILE_ROWS, in_cols] */
void mok_cpu_contract(struct mok_cpu_worker *worker, int32_t out_cols, int32_t in_cols, float *to, int64_t to_stride);

/* First column and width of a column tile. */
static inline int32_t mok_cpu_tile_width(int32_t total, int32_t tile, int32_t idx)
{
    return (int32_t)mok_min64(tile, total - (int64_t)idx * tile);
}

/* ---- hooks for tests (cpu_test.c) ------------------------------------------------------------------------------------------- */

/* A random delay of at most group->delay_us, when that is set. */
void mok_cpu_delay(struct mok_cpu_worker *worker);
void mok_cpu_read_delay(struct mok_pass_group *group);
/* Before the first call on the group. MOK_TEST_DELAY_US in the environment does the same at creation. */
void mok_cpu_set_delay(struct mok_pass_group *group, int64_t max_us);
/* Between passes only: the communication workers of the group enter passes, then stand still until the group is dead. */
void mok_cpu_set_stuck(struct mok_pass_group *group);
/* Where they do. */
void mok_cpu_stand_still(const struct mok_cpu_worker *worker);
/* Fills the ring, own slots, published rows, scratch, and every saved object that is free with a byte. Only while nothing is queued. */
void mok_cpu_poison(struct mok_pass_group *group, int byte);

#endif
