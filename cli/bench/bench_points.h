/*
 * Points of a sweep: options of the group that differ from those given, and what was measured there. Pure but for the parsing of options by
 * the library.
 */
#ifndef MOK_CLI_BENCH_POINTS_H
#define MOK_CLI_BENCH_POINTS_H

#include "bench/bench_settings.h"

enum { MOK_BENCH_MAX_POINTS = 256, MOK_BENCH_POINT_TEXT = 256 };

struct mok_bench_point {
    char text[MOK_BENCH_POINT_TEXT];       /* as the user wrote it */
    mok_group_config config;               /* options applied */
    double ms[MOK_BENCH_MAX_REPEATS];      /* of the slowest rank */
    double base_ms[MOK_BENCH_MAX_REPEATS]; /* of the options as given, in turn with those */
    double seconds;                        /* that the point took, its group made and left included */
};

/* text: "name=value,name=value;...", an empty point is the options as given. points [MOK_BENCH_MAX_POINTS]. Errors: ARGUMENT. */
mok_status mok_bench_parse_points(const char *text, const mok_group_config *base, struct mok_bench_point *points, int32_t *num_out);

/* Errors: as above. For a look at the points before any device is touched. */
mok_status mok_bench_check_points(const char *text, const mok_group_config *base);

/* Median of the point over the median of the options as given. */
double mok_bench_point_ratio(const struct mok_bench_point *point, int64_t num_repeats);

/* The fastest points, fastest first, measured by mok_bench_point_ratio; those that change no option do not count. idx_out [most]. Returns how
 * many there are. */
int32_t mok_bench_fastest(const struct mok_bench_point *points, int32_t num_points, const mok_group_config *base, int64_t num_repeats,
                          int32_t most, int32_t *idx_out);

#endif
