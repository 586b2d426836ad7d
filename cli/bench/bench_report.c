/*
 * Runs to columns, columns to a table.
 */
#include "bench/bench_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench_spread.h"

#define FIELD(member) offsetof(struct mok_bench_run, member)

/* ---- columns ------------------------------------------------------------------------------------------------------------ */

static double field_of(const struct mok_bench_run *run, size_t offset)
{
    double value;
    memcpy(&value, (const char *)run + offset, sizeof value);
    return value;
}

void mok_bench_take(const struct mok_bench_run *runs, int64_t num, size_t offset, struct mok_bench_column *column_out)
{
    for (int64_t idx = 0; idx < num; idx++) {
        column_out->values[idx] = field_of(&runs[idx], offset);
    }
}

void mok_bench_divide(const struct mok_bench_run *runs, int64_t num, size_t offset, size_t by_offset, struct mok_bench_column *column_out)
{
    for (int64_t idx = 0; idx < num; idx++) {
        double by = field_of(&runs[idx], by_offset);
        column_out->values[idx] = by > 0.0 ? field_of(&runs[idx], offset) / by : 0.0;
    }
}

static struct mok_bench_spread spread_of(const struct mok_bench_job *job, const struct mok_bench_run *runs, size_t offset)
{
    struct mok_bench_column column;
    mok_bench_take(runs, job->facts.settings->num_repeats, offset, &column);
    return mok_bench_spread_of(column.values, job->facts.settings->num_repeats);
}

static struct mok_bench_spread ratio_of(const struct mok_bench_job *job, const struct mok_bench_run *runs, size_t offset,
                                        size_t by_offset)
{
    struct mok_bench_column column;
    mok_bench_divide(runs, job->facts.settings->num_repeats, offset, by_offset, &column);
    return mok_bench_spread_of(column.values, job->facts.settings->num_repeats);
}

/* ---- facts -------------------------------------------------------------------------------------------------------------- */

double mok_bench_all_operations(const struct mok_bench_job *job, int32_t num_ranks, int is_backward)
{
    double sum = 0.0;
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        sum += mok_bench_operations(&job->sizes[rank], is_backward);
    }
    return sum;
}

static int64_t most_rows(const struct mok_bench_job *job, int32_t num_ranks)
{
    int64_t most = 0;
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        most = job->sizes[rank].rows > most ? job->sizes[rank].rows : most;
    }
    return most;
}

int64_t mok_bench_balanced_tokens(const struct mok_bench_job *job, int32_t num_ranks)
{
    int64_t top_k = job->facts.settings->shape.top_k;
    return (most_rows(job, num_ranks) + top_k - 1) / top_k;
}

const char *mok_bench_path_name(int32_t path) { return path == MOK_PATH_FUSED ? "fused" : "staged"; }

const char *mok_bench_bound_name(double bound)
{
    return bound == MOK_BENCH_BY_LINK ? "link" : bound == MOK_BENCH_BY_MEMORY ? "memory" : "dense";
}

int mok_bench_has_stage(const struct mok_bench_job *job, int stage)
{
    return spread_of(job, job->stage_runs, FIELD(stage_ms) + (size_t)stage * sizeof(double)).most > 0.0;
}

/* ---- text --------------------------------------------------------------------------------------------------------------- */

static void print_setting(const struct mok_bench_job *job, const struct mok_team *team)
{
    const struct mok_bench_settings *settings = job->facts.settings;
    const struct mok_shape_settings *shape = &settings->shape;
    printf("shape       %s: %" PRId64 " experts, top %" PRId64 ", hidden %" PRId64 ", intermediate %" PRId64 ", shared %" PRId64
           "; %" PRId64 " tokens on each of %" PRId32 " rank%s, %s\n",
           settings->shape_name == NULL ? "unnamed" : settings->shape_name, shape->experts, shape->top_k, shape->hidden, shape->inter,
           shape->shared_inter, shape->tokens, team->num_ranks, team->num_ranks == 1 ? "" : "s", mok_bench_skew_name(settings->skew));
    printf("group       peer %s, %" PRId32 " GPU%s; x %s; %s rows kept; fp32 gradients, added\n", mok_team_peer_name(team),
           job->facts.num_devices, job->facts.num_devices == 1 ? "" : "s",
           settings->is_zero_copy ? "published by the pass, and again handed in zero-copy" : "published by the pass",
           team->config.keep_rows == MOK_KEEP_ALL ? "all" : "not all");
    printf("runs        %" PRId64 " after %" PRId64
           ", %d sets of random inputs in turn, caches overwritten, gate before each; device events; "
           "largest over ranks; forward with its schedule\n",
           settings->num_repeats, settings->num_warmups, MOK_BENCH_NUM_SETS);
    printf("rows        %" PRId64 " on the busiest rank, from other GPUs %" PRId64 " on rank 0 (last set)",
           most_rows(job, team->num_ranks), job->sizes[0].rows_in);
    if (settings->skew != MOK_BENCH_BALANCED) {
        printf("; balanced with as many: --tokens %" PRId64, mok_bench_balanced_tokens(job, team->num_ranks));
    }
    printf("\n");
}

static void print_machine(const struct mok_bench_job *job)
{
    struct mok_bench_spread memory = spread_of(job, job->layer_runs, FIELD(memory_rate));
    struct mok_bench_spread link = spread_of(job, job->layer_runs, FIELD(link_rate));
    printf("machine     driver %s, power limit %.0f W; under the dense products SM %.0f MHz, memory %.0f MHz, %.0f W, %.0f C\n",
           job->machine.driver, job->machine.power_limit_watts, spread_of(job, job->layer_runs, FIELD(sample.sm_mhz)).median,
           spread_of(job, job->layer_runs, FIELD(sample.memory_mhz)).median, spread_of(job, job->layer_runs, FIELD(sample.watts)).median,
           spread_of(job, job->layer_runs, FIELD(sample.celsius)).median);
    printf("yardsticks  copy %.0f GB/s (read and written)", memory.median * 1e-6);
    if (link.median > 0.0) {
        printf(", link %.0f GB/s each way, all GPUs at once", link.median * 1e-6);
    }
    if (job->facts.cublas != NULL) {
        printf("; dense by cuBLAS %d\n", job->cublas_version);
    } else {
        printf("; NO DENSE TIMES: libcublas.so was not found; MOK_CUBLAS names a file\n");
    }
}

/* The lane's forward pass once more, with x handed in zero-copy; its floors are those of the pass that publishes x. */
static void print_zero_copy(const struct mok_bench_job *job, const struct mok_team *team, int32_t lane)
{
    size_t at = FIELD(zero_copy_ms) + (size_t)lane * sizeof(double), forward_at = FIELD(layer_ms) + (size_t)(2 * lane) * sizeof(double);
    struct mok_bench_spread layer = spread_of(job, job->layer_runs, at);
    struct mok_bench_spread share = ratio_of(job, job->layer_runs, FIELD(dense_ms), at);
    double rate = mok_bench_all_operations(job, team->num_ranks, 0) / job->facts.num_devices / layer.median * 1e-9;
    printf("  zero-copy x    %9.4f %8.4f %8.4f %8.1f %9s %7.3f %5.3f %5.3f   %.3f of forward\n", layer.least, layer.median, layer.most, rate, "",
           share.least, share.median, share.most, ratio_of(job, job->layer_runs, at, forward_at).median);
}

static void print_pass(const struct mok_bench_job *job, const struct mok_team *team, int32_t lane, int is_backward)
{
    size_t at = FIELD(layer_ms) + (size_t)(2 * lane + is_backward) * sizeof(double), pass = (size_t)is_backward * sizeof(double);
    struct mok_bench_spread layer = spread_of(job, job->layer_runs, at);
    struct mok_bench_spread dense = spread_of(job, job->layer_runs, FIELD(dense_ms) + pass);
    struct mok_bench_spread share = ratio_of(job, job->layer_runs, FIELD(dense_ms) + pass, at);
    struct mok_bench_spread floor = ratio_of(job, job->layer_runs, at, FIELD(floor_ms) + pass);
    struct mok_bench_spread stages = ratio_of(job, job->layer_runs, at, FIELD(stage_floors_ms) + pass);
    double rate = mok_bench_all_operations(job, team->num_ranks, is_backward) / job->facts.num_devices / layer.median * 1e-9;
    printf("%-6s %-9s %9.4f %8.4f %8.4f %8.1f %9.4f %7.3f %5.3f %5.3f %8.3f %8.3f\n", mok_bench_path_name(job->paths[lane]),
           is_backward ? "backward" : "forward", layer.least, layer.median, layer.most, rate, dense.median, share.least, share.median,
           share.most, floor.median, stages.median);
    if (!is_backward) {
        size_t schedule_at = FIELD(schedule_ms) + (size_t)lane * sizeof(double);
        struct mok_bench_spread schedule = spread_of(job, job->layer_runs, schedule_at);
        printf("  schedule       %9.4f %8.4f %8.4f   %.1f%% of forward\n", schedule.least, schedule.median, schedule.most,
               100.0 * ratio_of(job, job->layer_runs, schedule_at, at).median);
        if (job->facts.settings->is_zero_copy) {
            print_zero_copy(job, team, lane);
        }
    }
}

static void print_stages(const struct mok_bench_job *job)
{
    printf("\n%-31s %8s %8s %8s %8s %-6s %7s\n", "stage, alone (trace)", "ms least", "median", "most", "floor", "by", "x floor");
    for (int stage = 0; stage < MOK_BENCH_NUM_STAGES; stage++) {
        const struct mok_bench_stage *what = mok_bench_stage_at(stage);
        size_t skip = (size_t)stage * sizeof(double);
        if (!mok_bench_has_stage(job, stage)) {
            continue;
        }
        struct mok_bench_spread time = spread_of(job, job->stage_runs, FIELD(stage_ms) + skip);
        struct mok_bench_spread floor = spread_of(job, job->stage_runs, FIELD(stage_floor_ms) + skip);
        printf("%-8s %-22s %8.4f %8.4f %8.4f %8.4f %-6s %7.2f\n", what->is_backward ? "backward" : "forward", mok_event_name(what->kind),
               time.least, time.median, time.most, floor.median, mok_bench_bound_name(job->stage_runs[0].bound[stage]),
               ratio_of(job, job->stage_runs, FIELD(stage_ms) + skip, FIELD(stage_floor_ms) + skip).median);
    }
}

void mok_bench_print(const struct mok_bench_job *job, const struct mok_team *team)
{
    print_setting(job, team);
    print_machine(job);
    printf("operations  forward %.6g, backward %.6g on all ranks: 6TKHI + 6THIs, twice that; no padding\n",
           mok_bench_all_operations(job, team->num_ranks, 0), mok_bench_all_operations(job, team->num_ranks, 1));
    printf("\n%-16s %9s %8s %8s %8s %9s %7s %5s %5s %8s %8s\n", "layer", "ms least", "median", "most", "TF/s/GPU", "dense ms", "share l.",
           "med.", "most", "x floor", "x stages");
    for (int32_t lane = 0; lane < job->num_lanes; lane++) {
        print_pass(job, team, lane, 0);
        print_pass(job, team, lane, 1);
    }
    if (job->num_lanes > 1) {
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            size_t skip = (size_t)is_backward * sizeof(double);
            printf("staged / fused  %-9s %.3f\n", is_backward ? "backward" : "forward",
                   ratio_of(job, job->layer_runs, FIELD(layer_ms[1]) + skip, FIELD(layer_ms[0]) + skip).median);
        }
    }
    print_stages(job);
}
