/*
 * Least, median and most of a few values.
 */
#ifndef MOK_CLI_BENCH_SPREAD_H
#define MOK_CLI_BENCH_SPREAD_H

#include <cjson/cJSON.h>
#include <stdint.h>

struct mok_bench_spread {
    double least, median, most;
};

/* num <= MOK_BENCH_MAX_REPEATS; of no values all are 0. */
struct mok_bench_spread mok_bench_spread_of(const double *values, int64_t num);

/* {"least", "median", "most", "all": [...]} as a child of json. */
void mok_bench_add_spread(cJSON *json, const char *name, const double *values, int64_t num);

#endif
