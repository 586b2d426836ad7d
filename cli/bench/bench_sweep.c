/*
 * See bench/bench_sweep.h. Lane 0 is the staged path, which stands as a point of its own; lane 1 is opened and closed for each point.
 */
#include "bench/bench_sweep.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_report.h"
#include "bench/bench_spread.h"
#include "json_file.h"
#include "output_file.h"
#include "trace_summary.h"

enum { MAX_POINTS = 256, MAX_TEXT = 256, DENSE_RUNS = 5, EVENTS_OF_WORKER = 4096, SWEPT_LANE = 1 };

/* Room for the events of a pass; only what is filled is touched. */
#define EVENT_ROOM ((int64_t)4 << 20)

struct point {
    char text[MAX_TEXT];
    mok_group_config config; /* options applied */
    double ms[MOK_BENCH_MAX_REPEATS];
};

struct sweep {
    struct mok_bench_job *job;
    int is_backward;
    int32_t num_points;
    struct point points[MAX_POINTS];
    double rank_ms[MOK_SHAPE_MAX_RANKS];
    double dense_ms[DENSE_RUNS];
    /* of the last point, or of each in turn */
    mok_event *events[MOK_SHAPE_MAX_RANKS];
    int64_t num_events[MOK_SHAPE_MAX_RANKS];
};

/* ---- points ------------------------------------------------------------------------------------------------------------- */

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

static mok_status parse_point(const char *text, size_t length, const mok_group_config *base, struct point *point)
{
    char copy[MAX_TEXT], *rest = copy, *pair;
    if (length >= MAX_TEXT) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--sweep: a point has more than %d characters", MAX_TEXT - 1);
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    memcpy(point->text, copy, length + 1);
    point->config = *base;
    while ((pair = strsep(&rest, ",")) != NULL) {
        if (*pair != '\0') {
            MOK_TRY(apply_pair(pair, &point->config));
        }
    }
    return MOK_OK;
}

static mok_status parse_points(const char *text, const mok_group_config *base, struct sweep *sweep)
{
    for (;;) {
        size_t length = strcspn(text, ";");
        if (sweep->num_points == MAX_POINTS) {
            return mok_cli_fail(MOK_ERR_ARGUMENT, "--sweep has more than %d points", MAX_POINTS);
        }
        MOK_TRY(parse_point(text, length, base, &sweep->points[sweep->num_points]));
        sweep->num_points++;
        if (text[length] == '\0') {
            return MOK_OK;
        }
        text += length + 1;
    }
}

mok_status mok_bench_check_points(const char *text, const mok_group_config *base)
{
    struct sweep *sweep = calloc(1, sizeof *sweep);
    mok_status status = sweep == NULL ? mok_cli_fail(MOK_ERR_MEMORY, "no memory for points") : parse_points(text, base, sweep);
    free(sweep);
    return status;
}

/* ---- measuring ---------------------------------------------------------------------------------------------------------- */

/* One run of the pass; a backward pass has its forward pass before it, which is not timed. Out, on rank 0: the slowest rank's time. */
static mok_status run_once(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status, int32_t lane, int32_t set, double *ms_out)
{
    double *mine = &sweep->rank_ms[seat->gpu->rank];
    status = mok_bench_run_pass(seat, status, seat->gpu->settings->is_zero_copy ? MOK_BENCH_ZERO_COPY : MOK_BENCH_FORWARD, lane, set, mine);
    if (sweep->is_backward) {
        status = mok_bench_run_pass(seat, status, MOK_BENCH_BACKWARD, lane, set, mine);
    } else if (status == MOK_OK) {
        status = mok_cli_check(mok_saved_release(seat->gpu->lanes[lane].saved));
    }
    mok_team_wait(seat->team);
    for (int32_t rank = 0; rank < seat->gpu->num_ranks && seat->gpu->rank == 0; rank++) {
        *ms_out = rank == 0 || sweep->rank_ms[rank] > *ms_out ? sweep->rank_ms[rank] : *ms_out;
    }
    mok_team_wait(seat->team);
    return status;
}

static mok_status run_lane(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status, int32_t lane, double *values)
{
    const struct mok_bench_settings *settings = sweep->job->facts.settings;
    for (int64_t run = -settings->num_warmups; run < settings->num_repeats; run++) {
        double ms = 0.0;
        int32_t set = (int32_t)((run + settings->num_warmups) % MOK_BENCH_NUM_SETS);
        status = run_once(seat, sweep, status, lane, set, &ms);
        if (seat->gpu->rank == 0 && run >= 0) {
            values[run] = ms;
        }
    }
    return status;
}

static mok_status take_trace(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status)
{
    int32_t rank = seat->gpu->rank;
    int64_t num_dropped = 0, *num = &sweep->num_events[rank];
    double ms = 0.0;
    mok_group *group = seat->gpu->lanes[SWEPT_LANE].group;
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

static void print_point(const struct mok_bench_seat *seat, const struct sweep *sweep, const char *text, const double *values)
{
    const struct mok_bench_job *job = sweep->job;
    int64_t num = job->facts.settings->num_repeats;
    struct mok_bench_spread spread = mok_bench_spread_of(values, num), dense = mok_bench_spread_of(sweep->dense_ms, DENSE_RUNS);
    double operations = mok_bench_all_operations(job, seat->gpu->num_ranks, sweep->is_backward);
    printf("%-44s %9.4f ms (%9.4f %9.4f) %6.1f TFLOP/s a GPU, dense/layer %.3f\n", text[0] == '\0' ? "(as given)" : text, spread.median,
           spread.least, spread.most, operations / job->facts.num_devices / spread.median * 1e-9, dense.median / spread.median);
    fflush(stdout);
}

static mok_status run_point(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status, struct point *point,
                            const mok_group_config *own)
{
    const struct mok_bench_settings *settings = sweep->job->facts.settings;
    struct mok_bench_lane *lane = &seat->gpu->lanes[SWEPT_LANE];
    mok_group_config config = point->config;
    config.rank = own->rank;
    config.num_ranks = own->num_ranks;
    config.hub = own->hub;
    seat->gpu->num_lanes = SWEPT_LANE + 1;
    if (status == MOK_OK) {
        status = mok_bench_lane_open(seat->gpu, &config, lane);
    }
    if (status != MOK_OK) {
        mok_bench_gpu_abort(seat->gpu);
    }
    mok_team_wait(seat->team);
    status = run_lane(seat, sweep, status, SWEPT_LANE, point->ms);
    if (seat->gpu->rank == 0 && status == MOK_OK && mok_bench_prints_text(settings)) {
        print_point(seat, sweep, point->text, point->ms);
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
    mok_team_wait(seat->team);
    mok_status farewell = mok_bench_lane_close(lane);
    seat->gpu->num_lanes = SWEPT_LANE;
    return status == MOK_OK ? farewell : status;
}

/* The staged path first, and the dense products. */
static mok_status run_base(struct mok_bench_seat *seat, struct sweep *sweep, mok_status status)
{
    struct mok_bench_job *job = sweep->job;
    double values[MOK_BENCH_MAX_REPEATS];
    for (int run = 0; run < DENSE_RUNS; run++) {
        status = mok_bench_run_yardsticks(seat, status, run % MOK_BENCH_NUM_SETS);
        if (seat->gpu->rank == 0) {
            mok_bench_fold(job, seat->gpu->num_ranks, run % MOK_BENCH_NUM_SETS, &job->layer_runs[0]);
            sweep->dense_ms[run] = job->layer_runs[0].dense_ms[sweep->is_backward];
        }
        mok_team_wait(seat->team);
    }
    status = run_lane(seat, sweep, status, 0, values);
    if (seat->gpu->rank == 0 && status == MOK_OK && mok_bench_prints_text(job->facts.settings)) {
        print_point(seat, sweep, "staged", values);
    }
    return status;
}

static mok_status sweep_rank(void *context, struct mok_team *team, const mok_group_config *config)
{
    struct sweep *sweep = context;
    struct mok_bench_job *job = sweep->job;
    struct mok_bench_seat seat = {.job = job, .team = team, .gpu = &job->gpus[config->rank], .times = &job->times[config->rank]};
    mok_group_config staged = *config;
    staged.path = MOK_PATH_STAGED;
    mok_status status = mok_bench_gpu_open(&job->facts, &staged, seat.gpu);
    mok_team_wait(team);
    if (status == MOK_OK) {
        status = mok_bench_gpu_count(seat.gpu, job->gpus);
    }
    if (status != MOK_OK) {
        mok_bench_gpu_abort(seat.gpu);
    }
    job->sizes[seat.gpu->rank] = seat.gpu->sets[MOK_BENCH_NUM_SETS - 1].sizes;
    mok_team_wait(team);
    status = run_base(&seat, sweep, status);
    for (int32_t idx = 0; idx < sweep->num_points; idx++) {
        status = run_point(&seat, sweep, status, &sweep->points[idx], config);
    }
    mok_team_wait(team);
    mok_status farewell = mok_bench_gpu_close(seat.gpu);
    return status != MOK_OK ? status : farewell;
}

/* ---- writing ------------------------------------------------------------------------------------------------------------ */

static mok_status write_json(const struct sweep *sweep, const struct mok_team *team)
{
    const struct mok_bench_job *job = sweep->job;
    cJSON *root = cJSON_CreateObject();
    mok_bench_add_head(root, job, team);
    cJSON_AddStringToObject(root, "pass", sweep->is_backward ? "backward" : "forward");
    cJSON_AddNumberToObject(root, "operations", mok_bench_all_operations(job, team->num_ranks, sweep->is_backward));
    mok_bench_add_spread(root, "dense_ms", sweep->dense_ms, DENSE_RUNS);
    cJSON *points = cJSON_AddArrayToObject(root, "points");
    for (int32_t idx = 0; idx < sweep->num_points; idx++) {
        cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "options", sweep->points[idx].text);
        mok_bench_add_spread(json, "layer_ms", sweep->points[idx].ms, job->facts.settings->num_repeats);
        cJSON_AddItemToArray(points, json);
    }
    return mok_json_write(root, job->facts.settings->json);
}

static mok_status write_timeline(const struct sweep *sweep, const struct mok_team *team)
{
    struct mok_timeline_rank ranks[MOK_SHAPE_MAX_RANKS];
    const char *path = sweep->job->facts.settings->timeline;
    size_t length = strlen(path);
    int is_svg = length > 4 && strcmp(path + length - 4, ".svg") == 0;
    for (int32_t rank = 0; rank < team->num_ranks; rank++) {
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
    sweep->is_backward = strcmp(settings->pass_word, "backward") == 0;
    mok_status status = parse_points(settings->sweep, &team->config, sweep);
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
