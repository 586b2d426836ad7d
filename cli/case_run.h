/*
 * Runs a case of the table, or any problem, through the public API, on a backend and with ranks of any kind, and checks what comes back.
 *
 * A case is run in steps on one group: round 0 with outputs and workspace poisoned with 0xFF, round 0 again with 0x7F (all bits must be
 * equal), then round 1 with new tokens and new routing. With MOK_CASE_EXTERNAL the caller owns the peer regions, so the slots are read
 * back and check 3 of docs/numerics.md is made, too; with a shared expert two more steps, all ids -1, give its s_t and dx alone.
 */
#ifndef MOK_CASE_RUN_H
#define MOK_CASE_RUN_H

#include <mok/mok.h>

#include "case_memory.h"
#include "ref/cases.h"
#include "ref/compare.h"

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
    /* Fills a group's private workspace with a byte, between passes; NULL = it is not poisoned. The library exports no such function. */
    mok_status (*poison)(mok_group *group, int byte);
};

struct mok_case_result {
    mok_status status;     /* the first failure of a library call, or MOK_OK; UNSUPPORTED, NOT_BUILT, NO_DEVICE: cannot run here (a skip) */
    int32_t status_rank;   /* who failed */
    char message[512];     /* its sentence */
    struct mok_ref_report report;
    int64_t num_differences; /* bits that differ between two poisons, guard bytes written, wrong counts of bad ids, wrong known answers */
    char difference[256];    /* the first of them */
    int64_t num_steps;
    double backend_s;
    double oracle_s;
};

/* 1: ran, every check passed. */
int mok_case_passed(const struct mok_case_result *result);

/* Whole case as described above. Never fails but through result_out->status. */
void mok_case_run(const struct mok_ref_case *recipe, const struct mok_case_where *where, struct mok_case_result *result_out);

/* One forward and backward over a problem of the caller, outputs filled with `poison` first; outputs_out is from mok_ref_outputs_alloc.
 * Slots are read back with MOK_CASE_EXTERNAL. The caller compares (mok_ref_compare). Errors: those of the library calls, in result_out, too. */
mok_status mok_case_run_problem(const struct mok_ref_problem *problem, const struct mok_ref_knobs *knobs,
                                const struct mok_case_where *where,
                                int poison, struct mok_ref_outputs *outputs_out, struct mok_case_result *result_out);

#endif
