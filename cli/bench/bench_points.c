/*
 * See bench/bench_points.h.
 */
#include "bench/bench_points.h"

#include <stdlib.h>
#include <string.h>

#include "bench/bench_spread.h"

/* ---- parsing ------------------------------------------------------------------------------------------------------------ */

static mok_status apply_pair(char *pair, mok_group_config *config)
{
    char *value = strchr(pair, '=');
    if (value == NULL) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--sweep: '%s' is not NAME=VALUE", mok_cli_quote(pair));
    }
    *value = '\0';
    static const char *const useless[] = {"backend", "peer", "device"};
    for (size_t idx = 0; idx < sizeof useless / sizeof useless[0]; idx++) {
        if (strcmp(pair, useless[idx]) == 0) {
            return mok_cli_fail(MOK_ERR_ARGUMENT, "--sweep: %s is the same at all points", pair);
        }
    }
    return mok_cli_check(mok_option_set(config, pair, value + 1));
}

static mok_status parse_point(const char *text, size_t length, const mok_group_config *base, struct mok_bench_point *point)
{
    char copy[MOK_BENCH_POINT_TEXT], *rest = copy, *pair;
    if (length >= MOK_BENCH_POINT_TEXT) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--sweep: a point has more than %d characters", MOK_BENCH_POINT_TEXT - 1);
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    memcpy(point->text, copy, length + 1);
    memcpy(&point->config, base, sizeof *base);
    while ((pair = strsep(&rest, ",")) != NULL) {
        if (*pair != '\0') {
            MOK_TRY(apply_pair(pair, &point->config));
        }
    }
    return MOK_OK;
}

mok_status mok_bench_parse_points(const char *text, const mok_group_config *base, struct mok_bench_point *points, int32_t *num_out)
{
    for (int32_t num = 0;;) {
        size_t length = strcspn(text, ";");
        if (num == MOK_BENCH_MAX_POINTS) {
            return mok_cli_fail(MOK_ERR_ARGUMENT, "--sweep has more than %d points", MOK_BENCH_MAX_POINTS);
        }
        MOK_TRY(parse_point(text, length, base, &points[num]));
        num++;
        if (text[length] == '\0') {
            *num_out = num;
            return MOK_OK;
        }
        text += length + 1;
    }
}

mok_status mok_bench_check_points(const char *text, const mok_group_config *base)
{
    int32_t num;
    struct mok_bench_point *points = calloc(MOK_BENCH_MAX_POINTS, sizeof *points);
    mok_status status = points == NULL ? mok_cli_fail(MOK_ERR_MEMORY, "no memory for points") : mok_bench_parse_points(text, base, points, &num);
    free(points);
    return status;
}

/* ---- choosing ----------------------------------------------------------------------------------------------------------- */

double mok_bench_point_ratio(const struct mok_bench_point *point, int64_t num_repeats)
{
    double base = mok_bench_spread_of(point->base_ms, num_repeats).median;
    return base > 0.0 ? mok_bench_spread_of(point->ms, num_repeats).median / base : 0.0;
}

int32_t mok_bench_fastest(const struct mok_bench_point *points, int32_t num_points, const mok_group_config *base, int64_t num_repeats,
                          int32_t most, int32_t *idx_out)
{
    double ratios[MOK_BENCH_MAX_POINTS];
    int32_t num = 0;
    for (int32_t idx = 0; idx < num_points; idx++) {
        if (memcmp(&points[idx].config, base, sizeof *base) == 0) { /* all bytes: the point's began as a copy */
            continue;
        }
        double ratio = mok_bench_point_ratio(&points[idx], num_repeats);
        int32_t place = num < most ? num : most;
        for (; place > 0 && ratios[place - 1] > ratio; place--) {
            if (place < most) {
                ratios[place] = ratios[place - 1];
                idx_out[place] = idx_out[place - 1];
            }
        }
        if (place < most) {
            ratios[place] = ratio;
            idx_out[place] = idx;
            num += num < most;
        }
    }
    return num;
}
