/*
 * mok trace: one forward and backward pass of a shape as a timeline, for Perfetto (.json) or as a picture (.svg).
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "group_config.h"
#include "output_file.h"
#include "seat.h"
#include "shape_settings.h"
#include "stage_times.h"
#include "team.h"
#include "trace/timeline.h"
#include "trace_summary.h"

struct trace_settings {
    struct mok_shape_settings shape;
    const char *out;
    int64_t cta_step;
    int is_summed;
};

static const struct mok_cli_option trace_options[] = {
    {"out", MOK_CLI_TEXT, offsetof(struct trace_settings, out), "FILE", "Where to write: a name that ends in .json or .svg (required).",
     0, 0},
    {"ctas", MOK_CLI_COUNT, offsetof(struct trace_settings, cta_step), "N",
     "CUDA: only every N-th CTA of a persistent kernel in the timeline.", 1, 1 << 16},
    {"summary", MOK_CLI_FLAG, offsetof(struct trace_settings, is_summed), NULL,
     "CUDA: print what launches and roles of persistent kernels did and waited for.", 0, 0},
    MOK_SHAPE_OPTIONS(struct trace_settings, MOK_SHAPE_MAX_RANKS),
    {"skewed", MOK_CLI_FLAG, offsetof(struct trace_settings, shape.is_skewed), NULL,
     "Spread tokens over experts as a trained router does.", 0, 0},
};

static const struct trace_settings trace_initial = {
    .shape = {.experts = 16, .top_k = 4, .hidden = 256, .inter = 128, .tokens = 1024},
    .cta_step = 0, /* not given: all */
};

struct trace_job {
    const struct mok_team *team;
    const struct trace_settings *settings;
    const char *path;
    int is_svg;
    struct mok_ref_problem problem;
    struct mok_stage_events events[MOK_SHAPE_MAX_RANKS];
    struct mok_stage_times times[MOK_SHAPE_MAX_RANKS];
};

/* The first pass of a group pays for pages and caches: it is run, and not recorded. */
static mok_status trace_passes(struct mok_seat *seat, struct mok_team *team, struct trace_job *job)
{
    mok_status status = mok_seat_forward(seat);
    if (status == MOK_OK) {
        status = mok_seat_backward(seat);
    }
    if (status == MOK_OK) {
        status = mok_stage_start(seat);
    }
    mok_team_wait(team); /* every rank, also one that failed */
    if (status == MOK_OK) {
        status = mok_seat_forward(seat);
    }
    if (status == MOK_OK) {
        status = mok_seat_backward(seat);
    }
    if (status == MOK_OK) {
        status = mok_stage_take(seat, &job->times[seat->rank], &job->events[seat->rank]);
    }
    return status;
}

static mok_status trace_rank(void *context, struct mok_team *team, const mok_group_config *config)
{
    struct trace_job *job = context;
    struct mok_seat seat;
    mok_status status = mok_seat_open(&job->problem, config, &seat);
    if (status != MOK_OK) {
        mok_team_wait(team);
        return status;
    }
    status = trace_passes(&seat, team, job);
    if (status != MOK_OK) {
        mok_seat_abort(&seat);
    }
    mok_status farewell = mok_seat_close(&seat);
    return status != MOK_OK ? status : mok_cli_check(farewell);
}

/* Events of other processes to the one that writes. */
static mok_status collect(const struct mok_team *team, struct trace_job *job)
{
    for (int32_t rank = 0; rank < team->num_ranks; rank++) {
        mok_team_collect(team, rank, &job->events[rank].num, sizeof job->events[rank].num);
        if (job->events[rank].events == NULL && mok_team_prints(team)) {
            job->events[rank].events = malloc((size_t)job->events[rank].num * sizeof(mok_event) + 1);
        }
        int is_missing = mok_team_prints(team) && job->events[rank].events == NULL;
        MOK_TRY(mok_team_agree(team, is_missing ? mok_cli_fail(MOK_ERR_MEMORY, "no memory for the events of rank %" PRId32, rank) : MOK_OK,
                               "make room for events"));
        mok_team_collect(team, rank, &job->times[rank], sizeof job->times[rank]);
        mok_team_collect(team, rank, job->events[rank].events, (size_t)job->events[rank].num * sizeof(mok_event));
    }
    return MOK_OK;
}

/* CPU ranks share the clock of their host; every GPU has its own, so each of its ranks starts at zero. */
static void set_zeros(struct mok_timeline_rank *ranks, int32_t num_ranks, int is_one_clock)
{
    int64_t first_of_all = INT64_MAX;
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        int64_t first = ranks[rank].num_events == 0 ? 0 : INT64_MAX;
        for (int64_t idx = 0; idx < ranks[rank].num_events; idx++) {
            first = ranks[rank].events[idx].begin_ns < first ? ranks[rank].events[idx].begin_ns : first;
        }
        ranks[rank].zero_ns = first;
        first_of_all = ranks[rank].num_events > 0 && first < first_of_all ? first : first_of_all;
    }
    for (int32_t rank = 0; rank < num_ranks && is_one_clock && first_of_all != INT64_MAX; rank++) {
        ranks[rank].zero_ns = first_of_all;
    }
}

static mok_status write_timeline(void *context)
{
    struct trace_job *job = context;
    int is_gpu = mok_config_is_cuda(&job->team->config);
    const struct mok_team *team = job->team;
    const char *path = job->path;
    struct mok_timeline_rank ranks[MOK_SHAPE_MAX_RANKS];
    int64_t num_events = 0;
    int64_t num_dropped = 0;
    for (int32_t rank = 0; rank < team->num_ranks; rank++) {
        ranks[rank] = (struct mok_timeline_rank){
            .rank = rank, .events = job->events[rank].events, .num_events = job->events[rank].num, .is_gpu = is_gpu};
        num_events += job->events[rank].num;
        num_dropped += job->times[rank].num_dropped;
    }
    set_zeros(ranks, team->num_ranks, !is_gpu);
    for (int32_t rank = 0; rank < team->num_ranks && is_gpu; rank++) {
        if (job->settings->is_summed) {
            mok_trace_print_summary(stdout, &ranks[rank]);
        }
        ranks[rank].num_events =
            mok_timeline_thin(job->events[rank].events, job->events[rank].num, job->settings->cta_step == 0 ? 1 : job->settings->cta_step);
    }
    struct mok_output output;
    MOK_TRY(mok_output_open(path, &output));
    int is_good = (job->is_svg ? mok_trace_write_svg : mok_trace_write_perfetto)(output.file, ranks, team->num_ranks);
    MOK_TRY(mok_output_close(&output, is_good));
    mok_cli_progress_end();
    printf("%s: %" PRId64 " events of %" PRId32 " rank%s, %" PRId64 " dropped\n", path, num_events, team->num_ranks,
           team->num_ranks == 1 ? "" : "s", num_dropped);
    return MOK_OK;
}

/* 1 when text ends in tail. */
static int has_ending(const char *text, const char *tail)
{
    return strlen(text) > strlen(tail) && strcmp(text + strlen(text) - strlen(tail), tail) == 0;
}

static mok_status run_job(const struct trace_settings *settings, struct mok_team *team, struct trace_job *job)
{
    job->team = team;
    job->settings = settings;
    job->path = settings->out;
    job->is_svg = has_ending(settings->out, ".svg");
    MOK_TRY(mok_team_agree(team, mok_team_prints(team) ? mok_output_check(settings->out) : MOK_OK, "look at the output's place"));
    mok_status status = mok_shape_problem(&settings->shape, team->num_ranks, "mok trace", &job->problem);
    MOK_TRY(mok_team_agree(team, status, "make the data"));
    mok_seat_configure(&job->problem, &team->config);
    if (mok_team_prints(team)) {
        mok_config_warn_workers(&team->config, team->num_ranks);
    }
    mok_cli_progress("forward and backward");
    MOK_TRY(mok_team_run(team, trace_rank, job));
    MOK_TRY(collect(team, job));
    return mok_team_lead(team, write_timeline, job);
}

static int trace_command(void *given, mok_group_config *config, int num_names, char **names)
{
    const struct trace_settings *settings = given;
    struct mok_team team;
    struct trace_job job = {.problem = {.num_ranks = 0}};
    (void)num_names;
    (void)names;
    if (settings->out == NULL) {
        return mok_cli_usage(&mok_command_trace, "--out is required, a name that ends in .json or .svg");
    }
    if (!has_ending(settings->out, ".json") && !has_ending(settings->out, ".svg")) {
        return mok_cli_usage(&mok_command_trace, "--out is '%s': must be a name that ends in .json or .svg", mok_cli_quote(settings->out));
    }
    if ((settings->cta_step != 0 || settings->is_summed) && !mok_config_is_cuda(config)) {
        return mok_cli_usage(&mok_command_trace, "--%s needs the cuda backend", settings->is_summed ? "summary" : "ctas");
    }
    if (mok_config_check_saved(config) != MOK_OK || mok_shape_check(&settings->shape, config) == MOK_ERR_ARGUMENT) {
        return mok_cli_usage(&mok_command_trace, "%s", mok_cli_sentence());
    }
    mok_status status = mok_team_open(config, settings->shape.num_ranks, &team);
    if (status == MOK_OK) {
        status = run_job(settings, &team, &job);
    }
    int code = mok_cli_end(&mok_command_trace, status, mok_team_prints(&team));
    for (int32_t rank = 0; rank < MOK_SHAPE_MAX_RANKS; rank++) {
        free(job.events[rank].events);
    }
    mok_ref_problem_free(&job.problem);
    mok_team_close(&team);
    return code;
}

static const struct mok_cli_useless trace_useless[] = {{"device", MOK_CLI_WHY_NO_DEVICE}};

const struct mok_cli_command mok_command_trace = {
    .name = "trace",
    .summary = "run one forward and backward pass of a shape and write its timeline",
    .about =
        "Runs forward and backward of a layer with random data and writes what every worker did when: JSON for ui.perfetto.dev, or SVG.\n"
        "Defaults: 16 experts, top 4, hidden 256, intermediate 128, 1024 tokens on one rank.",
    .options = trace_options,
    .num_options = sizeof trace_options / sizeof trace_options[0],
    .settings_bytes = sizeof(struct trace_settings),
    .initial = &trace_initial,
    .peers = "threads|mpi|nccl",
    .useless = trace_useless,
    .num_useless = sizeof trace_useless / sizeof trace_useless[0],
    .free_options = "ranks out",
    .makes_ranks = 1,
    .run = trace_command,
};
