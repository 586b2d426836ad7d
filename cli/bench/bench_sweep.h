/*
 * `mok bench --sweep`: one pass at several points of the group's options, on one set of tensors in one run.
 *
 * A point is "name=value,name=value" of the library's options table; points are joined by ';'; an empty point is the options as given.
 */
#ifndef MOK_CLI_BENCH_SWEEP_H
#define MOK_CLI_BENCH_SWEEP_H

#include "bench/bench_measure.h"

/* Whether the points can be read, before there is anything to measure. Errors: ARGUMENT, MEMORY. */
mok_status mok_bench_check_points(const char *text, const mok_group_config *base);

/* Parses the points, measures, prints, writes JSON. Errors: those of the library, and ARGUMENT. */
mok_status mok_bench_sweep(struct mok_bench_job *job, struct mok_team *team);

#endif
