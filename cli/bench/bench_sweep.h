/*
 * `mok bench --sweep`: one pass at several points of the group's options (bench/bench_points.h), on one set of tensors in one run. Each point is run
 * in turn with the options as given; with --confirm the fastest ones once more, all together.
 */
#ifndef MOK_CLI_BENCH_SWEEP_H
#define MOK_CLI_BENCH_SWEEP_H

#include "bench/bench_measure.h"

/* Parses the points, measures, prints, writes JSON. Errors: those of the library, and ARGUMENT. */
mok_status mok_bench_sweep(struct mok_bench_job *job, struct mok_team *team);

#endif
