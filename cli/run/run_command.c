/*
 * mok run: one layer from files, forward and backward on a group of ranks, everything checked.
 *
 * Every process loads the files; each rank works on its share; rank 0 collects the results, compares and prints.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "group_config.h"
#include "output_file.h"
#include "run/run_report.h"
#include "files/safetensors.h"
#include "seat.h"
#include "team.h"

struct run_settings {
    struct mok_run_files files;
    const char *output;
    const char *json;
    int64_t num_ranks;
    int without_oracle;
};

#define FIELD(member) offsetof(struct run_settings, member)

static const struct mok_cli_option run_options[] = {
    {"weights", MOK_CLI_TEXT, FIELD(files.weights), "FILE", "Safetensors file that holds the layer (required).", 0, 0},
    {"layer", MOK_CLI_TEXT, FIELD(files.layer), "PREFIX",
     "Name of the layer, such as model.layers.2.mlp; may be left out when there is one.", 0, 0},
    {"config", MOK_CLI_TEXT, FIELD(files.config), "FILE", "The model's config.json; by default the one beside the weights.", 0, 0},
    {"input", MOK_CLI_TEXT, FIELD(files.input), "FILE", "Safetensors file with hidden_states, and results to compare with (required).", 0,
     0},
    {"output", MOK_CLI_TEXT, FIELD(output), "FILE", "Write y, dx, ids, weights and their gradients to a safetensors file.", 0, 0},
    {"ranks", MOK_CLI_COUNT, FIELD(num_ranks), "N", "Ranks of the group; default 1, or all processes of mpirun.", 1, MOK_TEAM_MAX_RANKS},
    {"no-oracle", MOK_CLI_FLAG, FIELD(without_oracle), NULL,
     "Compare with stored tensors only; for inputs that are large. Without any the run ends with 77.", 0, 0},
    {"json", MOK_CLI_TEXT, FIELD(json), "FILE", "Write the report as JSON; - is standard output, without the table.", 0, 0},
};

_Static_assert((int)MOK_TEAM_MAX_RANKS <= (int)MOK_REF_MAX_RANKS, "a problem has room for every rank");

static const struct run_settings run_initial = {.num_ranks = 0};

/* ---- one rank ----------------------------------------------------------------------------------------------------------- */

struct run_job {
    struct mok_run_input input;
    struct mok_ref_outputs outputs;
    struct mok_run_rank ranks[MOK_REF_MAX_RANKS];
    const char *backend;
    const struct run_settings *settings;
    const struct mok_team *team;
    enum mok_run_verdict verdict; /* on the process that prints; MOK_RUN_OK on the others */
};

static mok_status count_rows(struct mok_seat *seat, struct mok_run_rank *part)
{
    int64_t *rows = calloc((size_t)seat->num_local + 1, sizeof *rows);
    if (rows == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory for the counts of %" PRId32 " experts", seat->num_local);
    }
    mok_status status = mok_cli_check(mok_schedule_counts(seat->schedule, seat->stream, rows, &part->padded_rows));
    part->num_tokens = seat->num_tokens;
    part->first_expert = seat->first_expert;
    part->num_local = seat->num_local;
    part->busiest = -1;
    for (int32_t expert = 0; expert < seat->num_local; expert++) {
        part->num_rows += rows[expert];
        part->num_without += rows[expert] == 0;
        if (part->busiest < 0 || rows[expert] > part->busiest_rows) {
            part->busiest = seat->first_expert + expert;
            part->busiest_rows = rows[expert];
        }
    }
    free(rows);
    return status;
}

static mok_status run_passes(struct mok_seat *seat, struct mok_run_rank *part, struct mok_ref_outputs *outputs)
{
    MOK_TRY(mok_stage_start(seat));
    double begin = mok_stage_now_ms();
    MOK_TRY(mok_seat_forward(seat));
    part->forward.wall_ms = mok_stage_now_ms() - begin;
    MOK_TRY(mok_stage_take(seat, &part->forward, NULL));
    MOK_TRY(count_rows(seat, part));
    begin = mok_stage_now_ms();
    MOK_TRY(mok_seat_backward(seat));
    part->backward.wall_ms = mok_stage_now_ms() - begin;
    MOK_TRY(mok_stage_take(seat, &part->backward, NULL));
    mok_group_state state = {.struct_size = sizeof state};
    MOK_TRY(mok_cli_check(mok_group_status(seat->group, &state)));
    part->bad_ids = state.bad_ids;
    return mok_seat_read(seat, outputs);
}

static mok_status run_rank(void *context, struct mok_team *team, const mok_group_config *config)
{
    struct run_job *job = context;
    struct mok_seat seat;
    (void)team;
    MOK_TRY(mok_seat_open(&job->input.problem, config, &seat));
    mok_status status = run_passes(&seat, &job->ranks[config->rank], &job->outputs);
    if (status != MOK_OK) {
        mok_seat_abort(&seat);
    }
    mok_status farewell = mok_seat_close(&seat);
    return status != MOK_OK ? status : mok_cli_check(farewell);
}

/* ---- all ranks ---------------------------------------------------------------------------------------------------------- */

/* Results of every rank to rank 0, in places and order that all processes know. */
static void collect(const struct mok_team *team, struct run_job *job)
{
    const struct mok_ref_problem *problem = &job->input.problem;
    struct mok_ref_outputs *outputs = &job->outputs;
    size_t hidden = (size_t)problem->hidden;
    for (int32_t rank = 0; rank < problem->num_ranks; rank++) {
        size_t first = (size_t)mok_ref_first_token(problem, rank);
        size_t tokens = (size_t)problem->tokens[rank];
        size_t first_expert = (size_t)mok_ref_first_expert(problem, rank);
        size_t matrix = (size_t)problem->inter * hidden;
        size_t bytes = ((size_t)mok_ref_first_expert(problem, rank + 1) - first_expert) * matrix * sizeof(float);
        mok_team_collect(team, rank, &job->ranks[rank], sizeof job->ranks[rank]);
        mok_team_collect(team, rank, outputs->y + first * hidden, tokens * hidden * sizeof(mok_bf16));
        mok_team_collect(team, rank, outputs->dx + first * hidden, tokens * hidden * sizeof(mok_bf16));
        mok_team_collect(team, rank, outputs->dw + first * (size_t)problem->top_k, tokens * (size_t)problem->top_k * sizeof(float));
        mok_team_collect(team, rank, outputs->grads.gate + first_expert * matrix, bytes);
        mok_team_collect(team, rank, outputs->grads.up + first_expert * matrix, bytes);
        mok_team_collect(team, rank, outputs->grads.down + first_expert * matrix, bytes);
        if (problem->shared_inter > 0) {
            size_t shared = (size_t)problem->shared_inter * hidden;
            mok_team_collect(team, rank, outputs->dshared_w + first, tokens * sizeof(float));
            mok_team_collect(team, rank, outputs->shared_grads.gate + (size_t)rank * shared, shared * sizeof(float));
            mok_team_collect(team, rank, outputs->shared_grads.up + (size_t)rank * shared, shared * sizeof(float));
            mok_team_collect(team, rank, outputs->shared_grads.down + (size_t)rank * shared, shared * sizeof(float));
        }
    }
}

static mok_status write_output(const struct run_job *job, const char *path)
{
    const struct mok_ref_problem *problem = &job->input.problem;
    int64_t tokens = problem->num_tokens;
    uint64_t rows = (uint64_t)(tokens * problem->hidden) * sizeof(mok_bf16);
    uint64_t routes = (uint64_t)(tokens * problem->top_k) * sizeof(float);
    struct mok_file_tensor tensors[] = {
        {"y", MOK_FILE_BF16, 2, {tokens, problem->hidden}, job->outputs.y, rows},
        {"grad_hidden_states", MOK_FILE_BF16, 2, {tokens, problem->hidden}, job->outputs.dx, rows},
        {"topk_ids", MOK_FILE_I32, 2, {tokens, problem->top_k}, problem->ids, routes},
        {"topk_weights", MOK_FILE_F32, 2, {tokens, problem->top_k}, problem->w, routes},
        {"grad_topk_weights", MOK_FILE_F32, 2, {tokens, problem->top_k}, job->outputs.dw, routes},
    };
    return mok_safetensors_write(path, tensors, sizeof tensors / sizeof tensors[0], "written by mok run");
}

/* On the process that prints. */
static mok_status check_and_report(void *context)
{
    struct run_job *job = context;
    const struct run_settings *settings = job->settings;
    struct mok_run_checks *checks = calloc(1, sizeof *checks);
    if (checks == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory for the checks");
    }
    /* Slots stay inside the library: without them the third check of docs/numerics.md is left to the case runner. */
    struct mok_ref_outputs outputs = job->outputs;
    outputs.y_slots = NULL;
    outputs.dx_slots = NULL;
    outputs.shared_y = NULL;
    outputs.shared_dx = NULL;
    mok_run_check_router(&job->input, checks);
    mok_status status = mok_run_check_results(&job->input, &outputs, !settings->without_oracle, checks);
    mok_cli_progress_end();
    struct mok_run_report report = {.weights = settings->files.weights,
                                    .rows = settings->files.input,
                                    .peer = mok_team_peer_name(job->team),
                                    .backend = job->backend,
                                    .input = &job->input,
                                    .ranks = job->ranks,
                                    .checks = checks};
    if (status == MOK_OK && (settings->json == NULL || strcmp(settings->json, "-") != 0)) {
        mok_run_report_print(&report);
    }
    if (status == MOK_OK && settings->json != NULL) {
        status = mok_run_report_write(&report, settings->json);
    }
    if (status == MOK_OK && settings->output != NULL) {
        status = write_output(job, settings->output);
    }
    job->verdict = mok_run_checks_verdict(checks);
    free(checks);
    return status;
}

/* Before the work: outputs that would overwrite an input or each other are the user's mistake. */
static mok_status check_outputs(const struct run_settings *settings)
{
    char config[4096];
    MOK_TRY(mok_run_config_path(&settings->files, config, sizeof config));
    const struct {
        const char *name, *path;
    } inputs[] = {{"weights", settings->files.weights}, {"input", settings->files.input}, {"config", config}},
      outputs[] = {{"output", settings->output}, {"json", settings->json}};
    for (int out = 0; out < 2; out++) {
        for (int in = 0; in < 3; in++) {
            if (mok_output_overwrites(outputs[out].path, inputs[in].path)) {
                return mok_cli_fail(MOK_ERR_ARGUMENT, "--%s would overwrite the file of --%s, %s", outputs[out].name, inputs[in].name,
                                    inputs[in].path);
            }
        }
    }
    if (mok_output_overwrites(settings->output, settings->json) || mok_output_overwrites(settings->json, settings->output)) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--output and --json are one file, %s", settings->json);
    }
    MOK_TRY(mok_output_check(settings->json));
    return mok_output_check(settings->output);
}

static mok_status run_job(const struct run_settings *settings, struct mok_team *team, struct run_job *job)
{
    job->settings = settings;
    job->team = team;
    mok_status status = mok_run_input_load(&settings->files, team->num_ranks, &job->input);
    MOK_TRY(mok_team_agree(team, status, "load the files"));
    if (mok_ref_outputs_alloc(&job->input.problem, &job->outputs) != MOK_OK) {
        status = mok_cli_fail(MOK_ERR_MEMORY, "no memory for the results");
    }
    MOK_TRY(mok_team_agree(team, status, "make room for results"));
    mok_seat_configure(&job->input.problem, &team->config);
    job->backend = mok_config_backend_name(&team->config);
    if (mok_team_prints(team)) {
        mok_config_warn_workers(&team->config, team->num_ranks);
    }
    mok_cli_progress("forward and backward on %d ranks", (int)team->num_ranks);
    MOK_TRY(mok_team_run(team, run_rank, job));
    collect(team, job);
    return mok_team_lead(team, check_and_report, job);
}

static int run_command(void *given, mok_group_config *config, int num_names, char **names)
{
    const struct run_settings *settings = given;
    struct mok_team team;
    (void)num_names;
    (void)names;
    if (settings->files.weights == NULL || settings->files.input == NULL) {
        return mok_cli_usage(&mok_command_run, "--%s is required", settings->files.weights == NULL ? "weights" : "input");
    }
    if (mok_config_check_saved(config) != MOK_OK) {
        return mok_cli_usage(&mok_command_run, "%s", mok_cli_sentence());
    }
    struct run_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return mok_cli_report(&mok_command_run, mok_cli_fail(MOK_ERR_MEMORY, "no memory"));
    }
    job->verdict = MOK_RUN_OK;
    mok_status status = mok_team_open(config, settings->num_ranks, &team);
    int speaks = mok_team_prints(&team);
    if (status == MOK_OK) {
        status = mok_team_agree(&team, speaks ? check_outputs(settings) : MOK_OK, "look at the outputs' places");
    }
    int code = mok_cli_end(&mok_command_run, status, speaks);
    if (status == MOK_OK) {
        static const int codes[] = {MOK_CLI_EXIT_OK, MOK_CLI_EXIT_MISMATCH, MOK_CLI_EXIT_SKIP}; /* by verdict */
        status = run_job(settings, &team, job);
        code = status == MOK_OK ? codes[job->verdict] : speaks ? mok_cli_report(&mok_command_run, status) : mok_cli_exit_of(status);
    }
    mok_ref_outputs_free(&job->input.problem, &job->outputs);
    mok_run_input_free(&job->input);
    mok_team_close(&team);
    free(job);
    return code;
}

static const struct mok_cli_useless run_useless[] = {{"device", MOK_CLI_WHY_NO_DEVICE}};

const struct mok_cli_command mok_command_run = {
    .name = "run",
    .summary = "run one layer from files, forward and backward, and check every result",
    .about =
        "Loads an MoE layer (Hugging Face names) and input rows, spreads the rows unevenly over the ranks, routes them with the layer's\n"
        "router, runs forward and backward, and compares: ids, weights and output with those that the input file stores, everything\n"
        "with the double-precision oracle.",
    .options = run_options,
    .num_options = sizeof run_options / sizeof run_options[0],
    .settings_bytes = sizeof(struct run_settings),
    .initial = &run_initial,
    .peers = "threads|mpi|nccl",
    .useless = run_useless,
    .num_useless = sizeof run_useless / sizeof run_useless[0],
    .free_options = "ranks output json",
    .makes_ranks = 1,
    .run = run_command,
};
