/*
 * What `mok run` says: a table for people, the same as JSON for programs.
 */
#ifndef MOK_CLI_RUN_REPORT_H
#define MOK_CLI_RUN_REPORT_H

#include "run/run_check.h"
#include "run/run_input.h"
#include "stage_times.h"

/* One rank's part. Plain data, so that it can travel between processes. */
struct mok_run_rank {
    int64_t num_tokens;
    int32_t first_expert;
    int32_t num_local;
    int64_t num_rows; /* received, without padding */
    int64_t padded_rows;
    int32_t num_without; /* local experts without rows */
    int32_t busiest;     /* expert with most rows, -1 without experts */
    int64_t busiest_rows;
    uint64_t bad_ids;
    struct mok_stage_times forward; /* schedule included */
    struct mok_stage_times backward;
};

struct mok_run_report {
    const char *weights, *rows; /* paths */
    const char *peer, *backend; /* as used */
    const struct mok_run_input *input;
    const struct mok_run_rank *ranks; /* [problem.num_ranks] */
    const struct mok_run_checks *checks;
};

void mok_run_report_print(const struct mok_run_report *report);
/* Errors: IO, MEMORY. */
mok_status mok_run_report_write(const struct mok_run_report *report, const char *path);

#endif
