/*
 * The kernels that move rows, alone, between GPUs of this process that all move at the same time: dispatch by pull and combine by push, with few CTAs
 * and with all, beside the copy engine; pull against push of the same rows under skew; and how long an owner waits for its rows, over the number of
 * sources. Every row is checked before a time counts.
 *
 *   move_bench [RANKS [rows | until]]      default: a rank on each GPU, at most 8; both parts. More ranks than GPUs share them: only the checks say
 *                                          something then
 *
 * GB/s is what crosses the link in one direction, of the GPU with most. *of all* is the rate beside that of one CTA an SM.
 * MOVE_JSON: a file for the same; COMMIT: for that file.
 */
#include "move_ranks.h"

#include <string.h>

static const char *const pattern_names[NUM_PATTERNS] = {"remote", "mixed", "zipf", "hot"};
static const char *const direction_names[NUM_DIRECTIONS] = {"pull", "push", "send"};

static struct timing time_runs(enum direction direction, int32_t row_bytes, int32_t num_ctas)
{
    float ms[RUNS];
    for (int i = -WARM_UP; i < RUNS; i++) {
        float one = run_all(direction, row_bytes, num_ctas);
        if (i >= 0) {
            ms[i] = one;
        }
    }
    return timing_of(ms);
}

static void report(FILE *json, enum direction direction, enum pattern pattern, int32_t row_bytes, int32_t num_ctas, struct timing time,
                   double rate, double share)
{
    static const char *before = "";
    char ctas[16];
    snprintf(ctas, sizeof ctas, num_ctas > 0 ? "%d" : "engine", num_ctas);
    printf("%-5s %-7s %6d %7s %9.4f %9.4f %9.4f %7.1f %7.3f\n", direction_names[direction], num_ctas > 0 ? pattern_names[pattern] : "-",
           row_bytes, ctas, time.least, time.median, time.most, rate, share);
    if (json != NULL) {
        fprintf(json,
                "%s  {\"direction\": \"%s\", \"rows\": \"%s\", \"row_bytes\": %d, \"ctas\": %d, \"ms_min\": %.5f, \"ms\": %.5f, \"ms_max\": %.5f, "
                "\"link_gb_s\": %.2f, \"of_all\": %.4f, \"runs\": %d}",
                before, direction_names[direction], pattern_names[pattern], row_bytes, num_ctas, time.least, time.median, time.most, rate, share, RUNS);
        before = ",\n";
    }
}

/* All counts of CTAs, the largest first; of skewed rows, and of rows that are sent, two. Returns 1 when a row was wrong. */
static int measure(FILE *json, enum direction direction, enum pattern pattern, int32_t row_bytes, int32_t num_sms, int64_t most)
{
    const int32_t counts[] = {num_sms, 16, 64, 32, 8, 4, 0};
    int is_short = pattern >= ZIPF || direction == SEND;
    double all = 0;
    for (size_t i = 0; i < (is_short ? 2 : sizeof counts / sizeof counts[0]); i++) {
        unsigned long long bad = counts[i] > 0 ? count_bad(direction, row_bytes, counts[i]) : 0;
        if (bad > 0) {
            printf("%s, %s, %d CTAs: %llu wrong words\n", direction_names[direction], pattern_names[pattern], counts[i], bad);
            return 1;
        }
        if (counts[i] == 0 && pattern != MIXED) {
            continue;
        }
        struct timing time = time_runs(direction, row_bytes, counts[i]);
        double rate = (double)(counts[i] > 0 ? most : ROUTES / 2) * row_bytes / time.median * 1e-6;
        all = i == 0 ? rate : all;
        report(json, direction, pattern, row_bytes, counts[i], time, rate, all > 0 ? rate / all : 0);
    }
    fflush(stdout);
    return 0;
}

static int measure_rows(FILE *json, int32_t num_sms)
{
    static const int32_t row_bytes[] = {14336, 4096};
    int failed = 0;
    printf("%-5s %-7s %6s %7s %9s %9s %9s %7s %7s\n", "", "rows", "bytes", "CTAs", "ms least", "median", "most", "GB/s", "of all");
    for (int pattern = 0; pattern < NUM_PATTERNS; pattern++) {
        int64_t most = 0;
        make_traffic((enum pattern)pattern, &most);
        for (size_t i = 0; i < sizeof row_bytes / sizeof row_bytes[0]; i++) {
            fill_tokens(row_bytes[i]);
            for (int direction = 0; direction < NUM_DIRECTIONS; direction++) {
                failed |= measure(json, (enum direction)direction, (enum pattern)pattern, row_bytes[i], num_sms, most);
            }
        }
    }
    return failed;
}

static void write_head(FILE *json, int32_t num_gpus, int driver)
{
    struct cudaDeviceProp properties;
    const char *commit = getenv("COMMIT");
    CHECK(cudaGetDeviceProperties(&properties, 0));
    fprintf(json, "{\n \"what\": \"kernels that move rows, alone: all ranks move at the same time, every row checked before; send = what pull moves, written by"
                  " the sources; ctas 0 = copy engine; link_gb_s = of the GPU with most, in one direction; of_all = rate beside that of one CTA an SM\",\n");
    fprintf(json, " \"device\": \"%s\",\n \"num_gpus\": %d,\n \"num_ranks\": %d,\n \"cuda_driver\": %d,\n \"commit\": \"%s\",\n", properties.name, num_gpus,
            num_ranks, driver, commit == NULL ? "" : commit);
    fprintf(json, " \"warm_up_runs\": %d,\n \"results\": [\n", WARM_UP);
}

int main(int argc, char **argv)
{
    const char *json_name = getenv("MOVE_JSON");
    int num_gpus = 0, num_sms = 0, driver = 0;
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* ranks may share a GPU */
    CHECK(cudaGetDeviceCount(&num_gpus));
    int num = argc > 1 ? atoi(argv[1]) : num_gpus < MAX_RANKS ? num_gpus : MAX_RANKS;
    int has_rows = argc <= 2 || strcmp(argv[2], "rows") == 0, has_until = argc <= 2 || strcmp(argv[2], "until") == 0;
    if (num < 2 || num > MAX_RANKS || !(has_rows || has_until)) {
        fprintf(stderr, "usage: move_bench [RANKS [rows | until]], 2 to %d ranks; without a number two GPUs are needed, there are %d\n", MAX_RANKS, num_gpus);
        return 2;
    }
    FILE *json = json_name == NULL ? NULL : fopen(json_name, "w");
    num_gpus = open_ranks(num);
    CHECK(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0));
    CHECK(cudaDriverGetVersion(&driver));
    printf("%d ranks on %d GPUs%s\n", num, num_gpus, num > num_gpus ? ": what they share is no link" : "");
    if (json != NULL) {
        write_head(json, num_gpus, driver);
    }
    int failed = has_rows && measure_rows(json, num_sms);
    if (json != NULL) {
        fprintf(json, "\n ],\n \"until_there\": [\n");
    }
    failed |= has_until && measure_latency(json, num_sms);
    if (json != NULL) {
        fprintf(json, "\n ]\n}\n");
        fclose(json);
    }
    return failed;
}
