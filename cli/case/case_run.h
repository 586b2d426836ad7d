/*
 * Runs a case of the table, or any problem, through the public API, on a backend and with ranks of any kind, and checks what comes back.
 *
 * A case is run in steps on one group:
 *   1, 2  round 0, outputs and workspace poisoned with 0xFF, then with 0x7F: all bits must be equal
 *   3     round 1: new tokens and new routing, on the same objects
 *   4     cases with NaN tokens: round 0 with zeros in their place; every row that no NaN belongs to must have the same bits
 *   5, 6  with slots and a shared expert: all ids -1, which gives s_t and the dx of the shared expert alone
 * Slots are read where the runner owns the peer regions (MOK_CASE_EXTERNAL, MOK_CASE_PROCESSES); check 3 of docs/numerics.md is made then.
 * In every step: counts of rows per expert, guard bytes, unchanged inputs; at the end the count of bad ids.
 */
#ifndef MOK_CASE_RUN_H
#define MOK_CASE_RUN_H

#include "case/case_launch.h"
#include "ref/cases.h"
#include "ref/compare.h"

struct mok_case_result {
    mok_status status;     /* the first failure of a library call, or MOK_OK; NOT_BUILT, NO_DEVICE: cannot run here (a skip) */
    int32_t status_rank;   /* who failed */
    char message[512];     /* its sentence */
    struct mok_ref_report report;
    int64_t num_differences; /* values that differ between steps, bytes written out of range, wrong counts, wrong known answers */
    char difference[256];    /* the first of them */
    int64_t num_steps;
    double backend_s;
    double oracle_s;
};

/* Ranks whose outputs this process has. */
struct mok_ref_scope mok_case_scope(const struct mok_ref_problem *problem, const struct mok_case_where *where);

/* 1: it could not run here (no GPU, or a build without the backend or peer): neither passed nor failed. What a backend does not have by
 * design is no skip: see case/case_list.h. */
int mok_case_skipped(const struct mok_case_result *result);

/* 1: ran, every check passed. */
int mok_case_passed(const struct mok_case_result *result);

/* Whole case as described above. Never fails but through result_out->status. */
void mok_case_run(const struct mok_ref_case *recipe, const struct mok_case_where *where, struct mok_case_result *result_out);

/* One step: a whole forward and backward. */
struct mok_case_step {
    const struct mok_ref_problem *problem; /* sizes and weights as in the first step */
    struct mok_ref_outputs *outputs;
    int poison;
};

/* Runs steps one after the other on one group. */
void mok_case_run_steps(const struct mok_case_step *steps, int num_steps, const struct mok_ref_knobs *knobs,
                        const struct mok_case_where *where, struct mok_case_result *result_out);

/* One forward and backward over a problem of the caller, outputs filled with `poison` first; outputs_out is from
 * mok_ref_outputs_alloc; its slots become NULL where they cannot be read, its shared_y and shared_dx are not filled. The caller compares
 * (mok_ref_compare). Status, message, differences and time are in result_out. Returns its status. */
mok_status mok_case_run_problem(const struct mok_ref_problem *problem, const struct mok_ref_knobs *knobs,
                                const struct mok_case_where *where, int poison, struct mok_ref_outputs *outputs_out,
                                struct mok_case_result *result_out);

#endif
