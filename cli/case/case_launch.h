/*
 * Starting the ranks of a case: as threads, as processes, or as the one rank that this process is.
 */
#ifndef MOK_CASE_LAUNCH_H
#define MOK_CASE_LAUNCH_H

#include "case/case_rank.h"

/* What a rank is. */
enum mok_case_ranks {
    MOK_CASE_THREADS,   /* a thread; MOK_PEER_THREADS */
    MOK_CASE_EXTERNAL,  /* a thread; MOK_PEER_EXTERNAL over regions that this runner owns; check 3 included */
    MOK_CASE_PROCESSES, /* a forked process; MOK_PEER_EXTERNAL over shared memory (CPU backend only) */
    MOK_CASE_MPI        /* this process is rank `rank` of MPI_COMM_WORLD, which the caller has initialised; MOK_PEER_MPI */
};

struct mok_case_where {
    int32_t backend; /* mok_backend, not AUTO */
    enum mok_case_ranks ranks;
    int32_t rank;             /* MOK_CASE_MPI */
    int64_t peer_timeout_ms;  /* 0 = 60000 */
    int64_t local_timeout_ms; /* 0 = the library's default */
    int in_step;              /* THREADS, EXTERNAL: ranks meet on the host before they enqueue passes, and before they wait for them */
    int32_t path;             /* mok_path of all runs of mok_case_equal but the first; AUTO = what each says */
    /* Fills a group's private workspace with a byte, between passes; NULL = it is not poisoned. The library exports no such function. */
    mok_status (*poison)(mok_group *group, int byte);
};

/* What a rank says when it is done. Shared with the parent where ranks are processes. */
struct mok_case_verdict {
    mok_status status;
    char message[512]; /* of the failure */
    int64_t num_differences;
    char difference[256]; /* the first */
};

/* The work of one rank. It fills verdict->status and may leave the message empty: the library's last error is taken then. */
typedef void mok_case_rank_main(const struct mok_case_join *join, void *context, struct mok_case_verdict *verdict);

/* Runs rank_main on every rank (on one, with MOK_CASE_MPI) and waits for all. `problem` and `knobs` give the sizes of regions that the
 * runner owns. Memory that ranks write and the caller reads must be shared between processes (mok_ref_outputs_alloc makes such).
 * verdict_out: the first failure that is not the echo of another, and the sum of all differences; *rank_out is whose it is. */
void mok_case_launch(const struct mok_case_where *where, const struct mok_ref_problem *problem, const struct mok_ref_knobs *knobs,
                     int32_t num_saved,
                     mok_case_rank_main *rank_main, void *context, struct mok_case_verdict *verdict_out, int32_t *rank_out);

#endif
