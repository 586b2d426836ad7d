/*
 * See bench/bench_spread.h.
 */
#include "bench/bench_spread.h"

#include <stdlib.h>
#include <string.h>

#include "bench/bench_settings.h"

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return left < right ? -1 : left > right;
}

struct mok_bench_spread mok_bench_spread_of(const double *values, int64_t num)
{
    double sorted[MOK_BENCH_MAX_REPEATS];
    if (num == 0) {
        return (struct mok_bench_spread){0.0, 0.0, 0.0};
    }
    memcpy(sorted, values, (size_t)num * sizeof *values);
    qsort(sorted, (size_t)num, sizeof *sorted, by_value);
    double median = num % 2 == 1 ? sorted[num / 2] : 0.5 * (sorted[num / 2 - 1] + sorted[num / 2]);
    return (struct mok_bench_spread){.least = sorted[0], .median = median, .most = sorted[num - 1]};
}

void mok_bench_add_spread(cJSON *json, const char *name, const double *values, int64_t num)
{
    struct mok_bench_spread spread = mok_bench_spread_of(values, num);
    cJSON *child = cJSON_AddObjectToObject(json, name);
    cJSON_AddNumberToObject(child, "least", spread.least);
    cJSON_AddNumberToObject(child, "median", spread.median);
    cJSON_AddNumberToObject(child, "most", spread.most);
    cJSON_AddItemToObject(child, "all", cJSON_CreateDoubleArray(values, (int)num));
}
