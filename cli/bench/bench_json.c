/*
 * A job on GPUs as one JSON tree: what ran where, and every figure with all its runs.
 */
#include "bench/bench_report.h"

#include <inttypes.h>
#include <stdio.h>

#include "bench/bench_spread.h"
#include "json_file.h"

#define FIELD(member) offsetof(struct mok_bench_run, member)

/* ---- where it ran ------------------------------------------------------------------------------------------------------- */

static void add_machine(cJSON *root, const struct mok_bench_job *job)
{
    cJSON *json = cJSON_AddObjectToObject(root, "machine");
    cJSON *devices = cJSON_AddArrayToObject(json, "devices");
    for (int32_t device = 0; device < job->facts.num_devices; device++) {
        char name[256], bus[32];
        int32_t num_sms;
        cJSON *child = cJSON_CreateObject();
        if (mok_bench_describe_gpu(device, name, sizeof name, bus, sizeof bus, &num_sms) == MOK_OK) {
            cJSON_AddStringToObject(child, "name", name);
            cJSON_AddNumberToObject(child, "sms", num_sms);
        }
        cJSON_AddItemToArray(devices, child);
    }
    cJSON_AddStringToObject(json, "driver", job->machine.driver);
    cJSON_AddNumberToObject(json, "power_limit_watts", job->machine.power_limit_watts);
    cJSON_AddNumberToObject(json, "cublas_version", job->cublas_version);
}

static void add_origin(cJSON *root, const struct mok_bench_job *job)
{
    char line[4096], commit[128];
    mok_bench_command_line(line, sizeof line);
    mok_bench_commit(commit, sizeof commit);
    cJSON_AddStringToObject(root, "command", line);
    cJSON_AddStringToObject(root, "commit", job->facts.settings->commit != NULL ? job->facts.settings->commit : commit);
    cJSON_AddStringToObject(root, "build", mok_build_info());
    add_machine(root, job);
}

static void add_setting(cJSON *root, const struct mok_bench_job *job, const struct mok_team *team)
{
    const struct mok_bench_settings *settings = job->facts.settings;
    cJSON *json = cJSON_AddObjectToObject(root, "shape");
    cJSON_AddStringToObject(json, "name", settings->shape_name == NULL ? "" : settings->shape_name);
    cJSON_AddNumberToObject(json, "experts", (double)settings->shape.experts);
    cJSON_AddNumberToObject(json, "top_k", (double)settings->shape.top_k);
    cJSON_AddNumberToObject(json, "hidden", (double)settings->shape.hidden);
    cJSON_AddNumberToObject(json, "intermediate", (double)settings->shape.inter);
    cJSON_AddNumberToObject(json, "shared_intermediate", (double)settings->shape.shared_inter);
    cJSON_AddNumberToObject(json, "tokens", (double)settings->shape.tokens);
    cJSON_AddNumberToObject(json, "num_ranks", team->num_ranks);
    cJSON_AddStringToObject(json, "skew", mok_bench_skew_name(settings->skew));
    cJSON_AddNumberToObject(json, "balanced_tokens", (double)mok_bench_balanced_tokens(job, team->num_ranks));
    cJSON_AddStringToObject(root, "backend", "cuda");
    cJSON_AddStringToObject(root, "peer", mok_team_peer_name(team));
    cJSON_AddBoolToObject(root, "zero_copy", settings->is_zero_copy);
    cJSON_AddNumberToObject(root, "keep_rows", (double)team->config.keep_rows);
    cJSON_AddStringToObject(root, "gradients", "fp32, added");
    cJSON_AddNumberToObject(root, "num_repeats", (double)settings->num_repeats);
    cJSON_AddNumberToObject(root, "num_warmups", (double)settings->num_warmups);
    cJSON_AddNumberToObject(root, "num_sets", MOK_BENCH_NUM_SETS);
    cJSON *rows = cJSON_AddArrayToObject(root, "rows");
    cJSON *rows_in = cJSON_AddArrayToObject(root, "rows_from_other_gpus");
    cJSON *rows_out = cJSON_AddArrayToObject(root, "rows_to_other_gpus");
    for (int32_t rank = 0; rank < team->num_ranks; rank++) {
        cJSON_AddItemToArray(rows, cJSON_CreateNumber((double)job->sizes[rank].rows));
        cJSON_AddItemToArray(rows_in, cJSON_CreateNumber((double)job->sizes[rank].rows_in));
        cJSON_AddItemToArray(rows_out, cJSON_CreateNumber((double)job->sizes[rank].rows_out));
    }
}

void mok_bench_add_head(cJSON *root, const struct mok_bench_job *job, const struct mok_team *team)
{
    add_origin(root, job);
    add_setting(root, job, team);
}

/* ---- figures ------------------------------------------------------------------------------------------------------------ */

static void add_field(cJSON *json, const char *name, const struct mok_bench_job *job, const struct mok_bench_run *runs, size_t offset)
{
    struct mok_bench_column column;
    mok_bench_take(runs, job->facts.settings->num_repeats, offset, &column);
    mok_bench_add_spread(json, name, column.values, job->facts.settings->num_repeats);
}

static void add_ratio(cJSON *json, const char *name, const struct mok_bench_job *job, const struct mok_bench_run *runs, size_t offset,
                      size_t by_offset)
{
    struct mok_bench_column column;
    mok_bench_divide(runs, job->facts.settings->num_repeats, offset, by_offset, &column);
    mok_bench_add_spread(json, name, column.values, job->facts.settings->num_repeats);
}

static void add_pass(cJSON *lane_json, const struct mok_bench_job *job, const struct mok_team *team, int32_t lane, int is_backward)
{
    size_t at = FIELD(layer_ms) + (size_t)(2 * lane + is_backward) * sizeof(double), pass = (size_t)is_backward * sizeof(double);
    const struct mok_bench_run *runs = job->layer_runs;
    struct mok_bench_column column;
    cJSON *json = cJSON_AddObjectToObject(lane_json, is_backward ? "backward" : "forward");
    double operations = mok_bench_all_operations(job, team->num_ranks, is_backward);
    mok_bench_take(runs, job->facts.settings->num_repeats, at, &column);
    double median = mok_bench_spread_of(column.values, job->facts.settings->num_repeats).median;
    cJSON_AddNumberToObject(json, "operations", operations);
    cJSON_AddNumberToObject(json, "tflops_per_gpu", operations / job->facts.num_devices / median * 1e-9);
    add_field(json, "layer_ms", job, runs, at);
    add_ratio(json, "dense_over_layer", job, runs, FIELD(dense_ms) + pass, at);
    add_ratio(json, "layer_over_floor", job, runs, at, FIELD(floor_ms) + pass);
    add_ratio(json, "layer_over_stage_floors", job, runs, at, FIELD(stage_floors_ms) + pass);
    if (!is_backward) {
        add_field(json, "schedule_ms", job, runs, FIELD(schedule_ms) + (size_t)lane * sizeof(double));
    }
}

static void add_zero_copy(cJSON *lane_json, const struct mok_bench_job *job, const struct mok_team *team, int32_t lane)
{
    size_t at = FIELD(zero_copy_ms) + (size_t)lane * sizeof(double);
    struct mok_bench_column column;
    cJSON *json = cJSON_AddObjectToObject(lane_json, "forward_zero_copy");
    mok_bench_take(job->layer_runs, job->facts.settings->num_repeats, at, &column);
    double median = mok_bench_spread_of(column.values, job->facts.settings->num_repeats).median;
    cJSON_AddNumberToObject(json, "tflops_per_gpu",
                            mok_bench_all_operations(job, team->num_ranks, 0) / job->facts.num_devices / median * 1e-9);
    add_field(json, "layer_ms", job, job->layer_runs, at);
    add_ratio(json, "dense_over_layer", job, job->layer_runs, FIELD(dense_ms), at);
    add_ratio(json, "over_published", job, job->layer_runs, at, FIELD(layer_ms) + (size_t)(2 * lane) * sizeof(double));
}

static void add_yardsticks(cJSON *root, const struct mok_bench_job *job)
{
    const struct mok_bench_run *runs = job->layer_runs;
    cJSON *json = cJSON_AddObjectToObject(root, "yardsticks");
    add_field(json, "dense_forward_ms", job, runs, FIELD(dense_ms));
    add_field(json, "dense_backward_ms", job, runs, FIELD(dense_ms) + sizeof(double));
    add_field(json, "copy_bytes_per_ms", job, runs, FIELD(memory_rate));
    add_field(json, "link_bytes_per_ms", job, runs, FIELD(link_rate));
    add_field(json, "sm_mhz", job, runs, FIELD(sample.sm_mhz));
    add_field(json, "memory_mhz", job, runs, FIELD(sample.memory_mhz));
    add_field(json, "watts", job, runs, FIELD(sample.watts));
    add_field(json, "celsius", job, runs, FIELD(sample.celsius));
    cJSON *gemms = cJSON_AddObjectToObject(json, "gemm_ms");
    for (int gemm = 0; gemm < MOK_BENCH_NUM_GEMMS; gemm++) {
        add_field(gemms, mok_bench_gemm_name((enum mok_bench_gemm)gemm), job, runs, FIELD(gemm_ms) + (size_t)gemm * sizeof(double));
    }
}

static void add_stages(cJSON *root, const struct mok_bench_job *job)
{
    cJSON *list = cJSON_AddArrayToObject(root, "stages");
    for (int stage = 0; stage < MOK_BENCH_NUM_STAGES; stage++) {
        const struct mok_bench_stage *what = mok_bench_stage_at(stage);
        size_t skip = (size_t)stage * sizeof(double);
        if (!mok_bench_has_stage(job, stage)) {
            continue;
        }
        cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "pass", what->is_backward ? "backward" : "forward");
        cJSON_AddStringToObject(json, "stage", mok_event_name(what->kind));
        cJSON_AddStringToObject(json, "bound", mok_bench_bound_name(job->stage_runs[0].bound[stage]));
        add_field(json, "ms", job, job->stage_runs, FIELD(stage_ms) + skip);
        add_field(json, "floor_ms", job, job->stage_runs, FIELD(stage_floor_ms) + skip);
        add_ratio(json, "over_floor", job, job->stage_runs, FIELD(stage_ms) + skip, FIELD(stage_floor_ms) + skip);
        cJSON_AddItemToArray(list, json);
    }
}

mok_status mok_bench_write(const struct mok_bench_job *job, const struct mok_team *team, const char *path)
{
    cJSON *root = cJSON_CreateObject();
    mok_bench_add_head(root, job, team);
    cJSON *paths = cJSON_AddObjectToObject(root, "paths");
    for (int32_t lane = 0; lane < job->num_lanes; lane++) {
        cJSON *json = cJSON_AddObjectToObject(paths, mok_bench_path_name(job->paths[lane]));
        add_pass(json, job, team, lane, 0);
        add_pass(json, job, team, lane, 1);
        if (job->facts.settings->is_zero_copy) {
            add_zero_copy(json, job, team, lane);
        }
    }
    add_yardsticks(root, job);
    add_stages(root, job);
    return mok_json_write(root, path);
}
