/*
 * Checks of `mok run`: the router against stored ids and weights, results against stored tensors, and everything against the two oracles.
 */
#ifndef MOK_CLI_RUN_CHECK_H
#define MOK_CLI_RUN_CHECK_H

#include "ref/compare.h"
#include "run/run_input.h"

/* One line of the report. */
struct mok_run_check {
    char name[64];
    int64_t num_checked;
    int64_t num_failed;
    int64_t num_left_out;
    double ratio;    /* largest error / its bound */
    char where[256]; /* the worst one, in words */
};

/* Bounds of numerics.md for a bf16 row against double: L2 norm of the error, and its largest element in bf16 ulp of the row's largest. */
#define MOK_RUN_ROW_L2 0x1p-6
#define MOK_RUN_ROW_ULP 4.0

struct mok_run_row_error {
    int64_t token; /* the row with the largest ratio; -1 = none was checked */
    int32_t rank;
    double l2;  /* error norm / row norm of that row */
    double ulp; /* largest error of that row in bf16 ulp of its largest element */
};

enum { MOK_RUN_MAX_CHECKS = 8 + MOK_CHECK_COUNT };

struct mok_run_checks {
    struct mok_run_check checks[MOK_RUN_MAX_CHECKS];
    int num;
    struct mok_run_row_error output_error; /* against the stored output, or oracle 1 where none is stored */
    double oracle_ms;
};

/* Ids and weights of the router helper against what the input file stores; needs no pass. */
void mok_run_check_router(const struct mok_run_input *input, struct mok_run_checks *checks);
/* Results of both passes. with_oracle 0: stored tensors only. Errors: MEMORY. */
mok_status mok_run_check_results(const struct mok_run_input *input, const struct mok_ref_outputs *outputs, int with_oracle,
                                 struct mok_run_checks *checks);

enum mok_run_verdict { MOK_RUN_OK, MOK_RUN_MISMATCH, MOK_RUN_UNCHECKED /* nothing was compared, so nothing is shown */ };

enum mok_run_verdict mok_run_checks_verdict(const struct mok_run_checks *checks);
/* Its word in reports. */
const char *mok_run_verdict_word(enum mok_run_verdict verdict);

#endif
