/*
 * What `mok bench` says of a job on GPUs, as text and as JSON.
 */
#ifndef MOK_CLI_BENCH_REPORT_H
#define MOK_CLI_BENCH_REPORT_H

#include <cjson/cJSON.h>

#include "bench/bench_measure.h"

/* Columns of the runs: the values of one field, and derived ones. Offsets are those of doubles in struct mok_bench_run. */
struct mok_bench_column {
    double values[MOK_BENCH_MAX_REPEATS];
};

/* The field over all runs. */
void mok_bench_take(const struct mok_bench_run *runs, int64_t num, size_t offset, struct mok_bench_column *column_out);
/* One field over another; 0 where the other is 0. */
void mok_bench_divide(const struct mok_bench_run *runs, int64_t num, size_t offset, size_t by_offset,
                      struct mok_bench_column *column_out);

void mok_bench_print(const struct mok_bench_job *job, const struct mok_team *team);
/* Errors: IO, MEMORY. */
mok_status mok_bench_write(const struct mok_bench_job *job, const struct mok_team *team, const char *path);

/* What ran where, as children of root. */
void mok_bench_add_head(cJSON *root, const struct mok_bench_job *job, const struct mok_team *team);

/* Operations of all ranks in one pass. */
double mok_bench_all_operations(const struct mok_bench_job *job, int32_t num_ranks, int is_backward);
/* Tokens of each rank of a balanced run in which every rank owns as many rows as the busiest one here. */
int64_t mok_bench_balanced_tokens(const struct mok_bench_job *job, int32_t num_ranks);
/* "fused" or "staged". */
const char *mok_bench_path_name(int32_t path);
const char *mok_bench_bound_name(double bound);
/* Whether the stage had any work. */
int mok_bench_has_stage(const struct mok_bench_job *job, int stage);

#endif
