/*
 * See bench/bench_sweep.h. Lane 0 has the options as given and stays open; lane 1 is opened and closed for each point, lanes 1 .. for the
 * fastest points at the end. Runs of what is open take turns, so that a machine that drifts does not favour a point.
 */
#include "bench/bench_sweep.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_points.h"
#include "bench/bench_report.h"
#include "bench/bench_spread.h"
#include "json_file.h"
#include "output_file.h"
#include "stage_times.h"
#include "trace_summary.h"

enum {
    DENSE_RUNS = 9,    /* odd: the median is one of them */
    DENSE_WARMUPS = 2, /* at least: the first run took 74 to 118 ms */
    EVENTS_OF_WORKER = 4096,
    BASE_LANE = 0,
    SWEPT_LANE = 1,
    NUM_FINALISTS = MOK_BENCH_MAX_LANES - SWEPT_LANE /* points that are run again */
};

/* Room for the events of a pass; only what is filled is touched. */
#define EVENT_ROOM ((int64_t)4 << 20)

struct sweep {
    struct mok_bench_job *job;
    const mok_group_config *base; /* the options as given */
    int is_backward;
    int32_t num_points;
    struct mok_bench_point points[MOK_BENCH_MAX_POINTS];
    double rank_ms[MOK_SHAPE_MAX_RANKS];
    double dense_ms[DENSE_RUNS];
    /* of the end */
    int32_t num_finalists;
    int32_t finalists[NUM_FINALISTS];
    double final_ms[MOK_BENCH_MAX_LANES][MOK_BENCH_MAX_REPEATS];
    /* of the last point, or of each in turn */
    mok_event *events[MOK_SHAPE_MAX_RANKS];
    int64_t num_events[MOK_SHAPE_MAX_RANKS];
};

/* ---- measuring ---------------------------------------------------------------------------------------------------------- */

static mok_status run_forward(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status, int32_t lane, int32_t set)
{
    return mok_bench_run_pass(seat, status, seat->gpu->settings->is_zero_copy ? MOK_BENCH_ZERO_COPY : MOK_BENCH_FORWARD, lane, set,
                              &sweep->rank_ms[seat->gpu->rank]);
}

/* What a backward pass needs, and is no part of its time. */
static mok_status run_before(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status, int32_t lane, int32_t set)
{
    return sweep->is_backward ? run_forward(seat, sweep, status, lane, set) : status;
}

/* The pass, behind run_before. Out, on rank 0: the slowest rank's time. */
static mok_status run_once(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status, int32_t lane, int32_t set, double *ms_out)
{
    if (sweep->is_backward) {
        status = mok_bench_run_pass(seat, status, MOK_BENCH_BACKWARD, lane, set, &sweep->rank_ms[seat->gpu->rank]);
    } else {
        status = run_forward(seat, sweep, status, lane, set);
        if (status == MOK_OK) {
            status = mok_cli_check(mok_saved_release(seat->gpu->lanes[lane].saved));
        }
    }
    mok_team_wait(seat->team);
    for (int32_t rank = 0; rank < seat->gpu->num_ranks && seat->gpu->rank == 0; rank++) {
        *ms_out = rank == 0 || sweep->rank_ms[rank] > *ms_out ? sweep->rank_ms[rank] : *ms_out;
    }
    mok_team_wait(seat->team);
    return status;
}

/* Runs of all open lanes in turn; who comes first changes from run to run. values [num_lanes], each with room for num_repeats. */
static mok_status run_turns(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status, int64_t num_repeats, double *const *values)
{
    int64_t num_warmups = sweep->job->facts.settings->num_warmups;
    int32_t num_lanes = seat->gpu->num_lanes;
    for (int64_t run = 0; run < num_warmups + num_repeats; run++) {
        for (int32_t place = 0; place < num_lanes; place++) {
            double ms = 0.0;
            int32_t lane = (int32_t)((place + run) % num_lanes), set = (int32_t)(run % MOK_BENCH_NUM_SETS);
            status = run_before(seat, sweep, status, lane, set);
            status = run_once(seat, sweep, status, lane, set, &ms);
            if (seat->gpu->rank == 0 && run >= num_warmups) {
                values[lane][run - num_warmups] = ms;
            }
        }
    }
    return status;
}

/* Collective: a group with these options in the lane behind the last open one. */
static mok_status open_lane(struct mok_bench_seat *seat, mok_status status, const mok_group_config *options, const mok_group_config *own)
{
    mok_group_config config = *options;
    config.rank = own->rank;
    config.num_ranks = own->num_ranks;
    config.hub = own->hub;
    struct mok_bench_lane *lane = &seat->gpu->lanes[seat->gpu->num_lanes++];
    if (status == MOK_OK) {
        status = mok_bench_lane_open(seat->gpu, &config, lane);
    }
    if (status != MOK_OK) {
        mok_bench_gpu_abort(seat->gpu);
    }
    mok_team_wait(seat->team);
    return status;
}

/* Collective: all lanes but that of the options as given. */
static mok_status close_lanes(struct mok_bench_seat *seat, mok_status status)
{
    mok_team_wait(seat->team);
    while (seat->gpu->num_lanes > SWEPT_LANE) {
        mok_status farewell = mok_bench_lane_close(&seat->gpu->lanes[--seat->gpu->num_lanes]);
        status = status == MOK_OK ? farewell : status;
    }
    return status;
}

static mok_status take_trace(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status)
{
    int32_t rank = seat->gpu->rank;
    int64_t num_dropped = 0, *num = &sweep->num_events[rank];
    double ms = 0.0;
    mok_group *group = seat->gpu->lanes[SWEPT_LANE].group;
    status = run_before(seat, sweep, status, SWEPT_LANE, 0);
    if (status == MOK_OK && sweep->events[rank] == NULL) {
        sweep->events[rank] = malloc((size_t)EVENT_ROOM * sizeof(mok_event));
        status = sweep->events[rank] == NULL ? mok_cli_fail(MOK_ERR_MEMORY, "no memory for events") : MOK_OK;
    }
    if (status == MOK_OK) {
        status = mok_cli_check(mok_group_trace(group, EVENTS_OF_WORKER));
    }
    if (status != MOK_OK) {
        mok_bench_gpu_abort(seat->gpu);
    }
    mok_team_wait(seat->team);
    status = run_once(seat, sweep, status, SWEPT_LANE, 0, &ms);
    if (status == MOK_OK) {
        status = mok_cli_check(mok_group_trace_take(group, sweep->events[rank], EVENT_ROOM, num, &num_dropped));
        *num = *num > EVENT_ROOM ? EVENT_ROOM : *num;
    }
    if (status == MOK_OK) {
        status = mok_cli_check(mok_group_trace(group, 0));
    }
    return status;
}

static struct mok_timeline_rank timeline_of(const struct sweep *sweep, int32_t rank)
{
    struct mok_timeline_rank timeline = {
        .rank = rank, .events = sweep->events[rank], .num_events = sweep->num_events[rank], .zero_ns = INT64_MAX, .is_gpu = 1};
    for (int64_t idx = 0; idx < timeline.num_events; idx++) {
        timeline.zero_ns = timeline.events[idx].begin_ns < timeline.zero_ns ? timeline.events[idx].begin_ns : timeline.zero_ns;
    }
    return timeline;
}

/* One line. ratio: to the options as given, in turn with it. */
static void print_line(const struct mok_bench_seat *seat, const struct sweep *sweep, const char *text, const double *values, int64_t num,
                       double ratio)
{
    const struct mok_bench_job *job = sweep->job;
    struct mok_bench_spread spread = mok_bench_spread_of(values, num), dense = mok_bench_spread_of(sweep->dense_ms, DENSE_RUNS);
    double operations = mok_bench_all_operations(job, seat->gpu->num_ranks, sweep->is_backward);
    printf("%-44s %9.4f ms (%9.4f %9.4f) %6.1f TFLOP/s a GPU, dense/layer %.3f, of as given %.3f\n", text[0] == '\0' ? "(as given)" : text,
           spread.median, spread.least, spread.most, operations / job->facts.num_devices / spread.median * 1e-9, dense.median / spread.median,
           ratio);
    fflush(stdout);
}

static mok_status run_point(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status, struct mok_bench_point *point,
                            const mok_group_config *own)
{
    const struct mok_bench_settings *settings = sweep->job->facts.settings;
    double since = mok_stage_now_ms(), *values[] = {point->base_ms, point->ms};
    status = open_lane(seat, status, &point->config, own);
    status = run_turns(seat, sweep, status, settings->num_repeats, values);
    if (seat->gpu->rank == 0 && status == MOK_OK && mok_bench_prints_text(settings)) {
        print_line(seat, sweep, point->text, point->ms, settings->num_repeats, mok_bench_point_ratio(point, settings->num_repeats));
    }
    int is_last = point == &sweep->points[sweep->num_points - 1];
    if (settings->is_traced || (settings->timeline != NULL && is_last)) {
        status = take_trace(seat, sweep, status);
        mok_team_wait(seat->team);
        for (int32_t rank = 0; rank < seat->gpu->num_ranks && seat->gpu->rank == 0 && status == MOK_OK && settings->is_traced; rank++) {
            struct mok_timeline_rank timeline = timeline_of(sweep, rank);
            mok_trace_print_summary(stdout, &timeline);
        }
    }
    status = close_lanes(seat, status);
    if (seat->gpu->rank == 0) {
        point->seconds = (mok_stage_now_ms() - since) * 1e-3;
    }
    return status;
}

/* The fastest points again, all of them and the options as given in turn: the fastest of many points owes a part of its lead to chance. */
static mok_status confirm(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status, const mok_group_config *own)
{
    const struct mok_bench_settings *settings = sweep->job->facts.settings;
    double *values[MOK_BENCH_MAX_LANES];
    if (seat->gpu->rank == 0) {
        sweep->num_finalists =
            mok_bench_fastest(sweep->points, sweep->num_points, sweep->base, settings->num_repeats, NUM_FINALISTS, sweep->finalists);
    }
    mok_team_wait(seat->team);
    for (int32_t lane = 0; lane < MOK_BENCH_MAX_LANES; lane++) {
        values[lane] = sweep->final_ms[lane];
    }
    for (int32_t idx = 0; idx < sweep->num_finalists; idx++) {
        status = open_lane(seat, status, &sweep->points[sweep->finalists[idx]].config, own);
    }
    status = run_turns(seat, sweep, status, settings->num_confirms, values);
    for (int32_t lane = 0; lane <= sweep->num_finalists && seat->gpu->rank == 0 && status == MOK_OK && mok_bench_prints_text(settings);
         lane++) {
        double base = mok_bench_spread_of(values[BASE_LANE], settings->num_confirms).median;
        double median = mok_bench_spread_of(values[lane], settings->num_confirms).median;
        char text[MOK_BENCH_POINT_TEXT + 16];
        snprintf(text, sizeof text, "again: %s", lane == BASE_LANE ? "as given" : sweep->points[sweep->finalists[lane - 1]].text);
        print_line(seat, sweep, text, values[lane], settings->num_confirms, median / base);
    }
    return close_lanes(seat, status);
}

/* The dense products, with as many runs before them that are not timed as the passes have. */
static mok_status run_dense(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status)
{
    struct mok_bench_job *job = sweep->job;
    int64_t given = job->facts.settings->num_warmups, num_warmups = given > DENSE_WARMUPS ? given : DENSE_WARMUPS;
    for (int64_t run = -num_warmups; run < DENSE_RUNS; run++) {
        int32_t set = (int32_t)((run + num_warmups) % MOK_BENCH_NUM_SETS);
        status = mok_bench_run_yardsticks(seat, status, set);
        if (seat->gpu->rank == 0 && run >= 0) {
            mok_bench_fold(job, seat->gpu->num_ranks, set, &job->layer_runs[0]);
            sweep->dense_ms[run] = job->layer_runs[0].dense_ms[sweep->is_backward];
        }
        mok_team_wait(seat->team);
    }
    return status;
}

static mok_status sweep_rank(void *context, struct mok_team *team, const mok_group_config *config)
{
    struct sweep *sweep = context;
    struct mok_bench_job *job = sweep->job;
    struct mok_bench_seat seat = {.job = job, .team = team, .gpu = &job->gpus[config->rank], .times = &job->times[config->rank]};
    mok_status status = mok_bench_gpu_open(&job->facts, config, seat.gpu);
    mok_team_wait(team);
    if (status == MOK_OK) {
        status = mok_bench_gpu_count(seat.gpu, job->gpus);
    }
    if (status != MOK_OK) {
        mok_bench_gpu_abort(seat.gpu);
    }
    job->sizes[seat.gpu->rank] = seat.gpu->sets[MOK_BENCH_NUM_SETS - 1].sizes;
    mok_team_wait(team);
    status = run_dense(&seat, sweep, status);
    for (int32_t idx = 0; idx < sweep->num_points; idx++) {
        status = run_point(&seat, sweep, status, &sweep->points[idx], config);
    }
    if (job->facts.settings->num_confirms > 0) {
        status = confirm(&seat, sweep, status, config);
    }
    mok_team_wait(team);
    mok_status farewell = mok_bench_gpu_close(seat.gpu);
    return status != MOK_OK ? status : farewell;
}

/* ---- writing ------------------------------------------------------------------------------------------------------------ */

static mok_status write_json(const struct sweep *sweep, const struct mok_team *team)
{
    const struct mok_bench_job *job = sweep->job;
    const struct mok_bench_settings *settings = job->facts.settings;
    cJSON *root = cJSON_CreateObject();
    mok_bench_add_head(root, job, team);
    cJSON_AddStringToObject(root, "pass", sweep->is_backward ? "backward" : "forward");
    cJSON_AddNumberToObject(root, "operations", mok_bench_all_operations(job, team->num_ranks, sweep->is_backward));
    mok_bench_add_spread(root, "dense_ms", sweep->dense_ms, DENSE_RUNS);
    cJSON *points = cJSON_AddArrayToObject(root, "points");
    for (int32_t idx = 0; idx < sweep->num_points; idx++) {
        const struct mok_bench_point *point = &sweep->points[idx];
        cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "options", point->text);
        mok_bench_add_spread(json, "layer_ms", point->ms, settings->num_repeats);
        mok_bench_add_spread(json, "as_given_ms", point->base_ms, settings->num_repeats);
        cJSON_AddNumberToObject(json, "over_as_given", mok_bench_point_ratio(point, settings->num_repeats));
        cJSON_AddNumberToObject(json, "seconds", point->seconds);
        cJSON_AddItemToArray(points, json);
    }
    cJSON *again = settings->num_confirms > 0 ? cJSON_AddArrayToObject(root, "again") : NULL;
    for (int32_t lane = 0; lane <= sweep->num_finalists && again != NULL; lane++) {
        cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "options", lane == BASE_LANE ? "" : sweep->points[sweep->finalists[lane - 1]].text);
        mok_bench_add_spread(json, "layer_ms", sweep->final_ms[lane], settings->num_confirms);
        cJSON_AddItemToArray(again, json);
    }
    return mok_json_write(root, settings->json);
}

static mok_status write_timeline(struct sweep *sweep, const struct mok_team *team)
{
    struct mok_timeline_rank ranks[MOK_SHAPE_MAX_RANKS];
    const char *path = sweep->job->facts.settings->timeline;
    size_t length = strlen(path);
    int is_svg = length > 4 && strcmp(path + length - 4, ".svg") == 0;
    for (int32_t rank = 0; rank < team->num_ranks; rank++) {
        sweep->num_events[rank] = mok_timeline_thin(sweep->events[rank], sweep->num_events[rank], sweep->job->facts.settings->cta_step);
        ranks[rank] = timeline_of(sweep, rank);
    }
    struct mok_output output;
    MOK_TRY(mok_output_open(path, &output));
    int is_good = (is_svg ? mok_trace_write_svg : mok_trace_write_perfetto)(output.file, ranks, team->num_ranks);
    return mok_output_close(&output, is_good);
}

mok_status mok_bench_sweep(struct mok_bench_job *job, struct mok_team *team)
{
    const struct mok_bench_settings *settings = job->facts.settings;
    struct sweep *sweep = calloc(1, sizeof *sweep);
    if (sweep == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory");
    }
    sweep->job = job;
    sweep->base = &team->config;
    sweep->is_backward = strcmp(settings->pass_word, "backward") == 0;
    mok_status status = mok_bench_parse_points(settings->sweep, &team->config, sweep->points, &sweep->num_points);
    if (status == MOK_OK) {
        status = mok_team_run(team, sweep_rank, sweep);
    }
    if (status == MOK_OK && settings->json != NULL) {
        status = write_json(sweep, team);
    }
    if (status == MOK_OK && settings->timeline != NULL) {
        status = write_timeline(sweep, team);
    }
    for (int32_t rank = 0; rank < MOK_SHAPE_MAX_RANKS; rank++) {
        free(sweep->events[rank]);
    }
    free(sweep);
    return status;
}
