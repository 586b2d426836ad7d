/*
 * Both passes on the CPU backend, beside the same products as dense ones, in the same run.
 *
 * Each repeat: all ranks meet, run forward (schedule included), meet, run backward; then rank 0 times the dense products while the others
 * wait. A layer's time is the largest over its ranks. Clock: host, from the call to the end of the wait.
 */
#include "bench/bench_host.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_dense.h"
#include "bench/bench_routes.h"
#include "bench/bench_spread.h"
#include "group_config.h"
#include "json_file.h"
#include "seat.h"
#include "stage_times.h"

/* Times of one pass, one entry a repeat, milliseconds. */
struct bench_pass {
    double layer[MOK_BENCH_MAX_REPEATS];
    double dense[MOK_BENCH_MAX_REPEATS];
    double ratio[MOK_BENCH_MAX_REPEATS]; /* dense / layer */
    double operations;
};

struct bench_job {
    const struct mok_bench_settings *settings;
    struct mok_ref_problem problem;
    struct mok_bench_dense dense;
    double last_ms[2][MOK_SHAPE_MAX_RANKS]; /* of this repeat: [is_backward][rank] */
    struct bench_pass passes[2];            /* [is_backward] */
    double weight_bytes;
    double link_rows; /* rows whose expert lives on another rank */
    double all_rows;
};

/* ---- measuring ---------------------------------------------------------------------------------------------------------- */

/* Rank 0, while the others wait. */
static void note_repeat(struct bench_job *job, int64_t repeat)
{
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        struct bench_pass *pass = &job->passes[is_backward];
        double dense = mok_bench_dense_run(&job->problem, &job->dense, is_backward);
        double layer = 0.0;
        for (int32_t rank = 0; rank < job->problem.num_ranks; rank++) {
            layer = job->last_ms[is_backward][rank] > layer ? job->last_ms[is_backward][rank] : layer;
        }
        if (repeat >= 0) {
            pass->layer[repeat] = layer;
            pass->dense[repeat] = dense;
            pass->ratio[repeat] = dense / layer;
        }
    }
}

/* Every rank comes to every meeting, also after a failure: the others would wait for it. */
static mok_status bench_repeats(struct mok_seat *seat, struct mok_team *team, struct bench_job *job, mok_status status)
{
    const struct mok_bench_settings *settings = job->settings;
    for (int64_t repeat = -settings->num_warmups; repeat < settings->num_repeats; repeat++) {
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            mok_team_wait(team);
            double begin = mok_stage_now_ms();
            if (status == MOK_OK) {
                status = is_backward ? mok_seat_backward(seat) : mok_seat_forward(seat);
                job->last_ms[is_backward][seat->rank] = mok_stage_now_ms() - begin;
            }
            if (status != MOK_OK) {
                mok_seat_abort(seat);
            }
        }
        mok_team_wait(team);
        if (status == MOK_OK && seat->rank == 0) {
            mok_cli_progress("repeat %" PRId64 " of %" PRId64, repeat + 1, settings->num_repeats);
            note_repeat(job, repeat);
        }
    }
    return status;
}

static mok_status bench_rank(void *context, struct mok_team *team, const mok_group_config *config)
{
    struct bench_job *job = context;
    struct mok_seat seat;
    memset(&seat, 0, sizeof seat);
    mok_status status = bench_repeats(&seat, team, job, mok_seat_open(&job->problem, config, &seat));
    mok_status farewell = mok_seat_close(&seat);
    return status != MOK_OK ? status : mok_cli_check(farewell);
}

static void count_work(struct bench_job *job)
{
    const struct mok_ref_problem *problem = &job->problem;
    double hidden = problem->hidden;
    double routed = 0.0;
    for (int64_t token = 0; token < problem->num_tokens; token++) {
        int32_t rank = mok_ref_rank_of_token(problem, token);
        for (int64_t route = token * problem->top_k; route < (token + 1) * problem->top_k; route++) {
            int is_local = problem->ids[route] >= mok_ref_first_expert(problem, rank) &&
                           problem->ids[route] < mok_ref_first_expert(problem, rank + 1);
            routed += 1;
            job->link_rows += !is_local;
        }
    }
    job->all_rows = routed;
    job->weight_bytes =
        ((double)problem->num_experts * problem->inter + (double)problem->num_ranks * problem->shared_inter) * 3 * hidden * 2;
    job->passes[0].operations = 6 * hidden * (routed * problem->inter + (double)problem->num_tokens * problem->shared_inter);
    job->passes[1].operations = 2 * job->passes[0].operations;
}

/* ---- saying ------------------------------------------------------------------------------------------------------------- */

static void print_text(const struct bench_job *job, const struct mok_team *team)
{
    const struct mok_shape_settings *shape = &job->settings->shape;
    int64_t num = job->settings->num_repeats;
    printf("shape       %" PRId64 " experts, top %" PRId64 ", hidden %" PRId64 ", intermediate %" PRId64 ", shared %" PRId64 ", %" PRId64
           " tokens on each of %" PRId32 " rank%s, %s\n",
           shape->experts, shape->top_k, shape->hidden, shape->inter, shape->shared_inter, shape->tokens, team->num_ranks,
           team->num_ranks == 1 ? "" : "s", mok_bench_skew_name(job->settings->skew));
    printf("group       peer %s, backend %s; fp32 gradients, added\n", mok_team_peer_name(team), mok_config_backend_name(&team->config));
    printf("repeats     %" PRId64 " after %" PRId64 " not timed; host clock; largest over ranks; forward with its schedule\n", num,
           job->settings->num_warmups);
    printf("dense       the same products with cblas_sgemm, fp32, %" PRId32 " threads, in turn with the layer\n", job->dense.num_threads);
    printf("rows        %.0f, of these %.0f between ranks; %.1f MB of rows each way, %.1f MB of weights (bf16)\n", job->all_rows,
           job->link_rows, job->link_rows * job->problem.hidden * 2e-6, job->weight_bytes * 1e-6);
    printf("\n%-10s %14s %28s %28s %24s %10s\n", "", "operations", "layer ms: least median most", "dense ms: least median most",
           "dense / layer", "GFLOP/s");
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        const struct bench_pass *pass = &job->passes[is_backward];
        struct mok_bench_spread layer = mok_bench_spread_of(pass->layer, num);
        struct mok_bench_spread dense = mok_bench_spread_of(pass->dense, num);
        struct mok_bench_spread ratio = mok_bench_spread_of(pass->ratio, num);
        printf("%-10s %14.6g %10.2f %8.2f %8.2f %10.2f %8.2f %8.2f %9.3f %6.3f %6.3f %10.2f\n", is_backward ? "backward" : "forward",
               pass->operations, layer.least, layer.median, layer.most, dense.least, dense.median, dense.most, ratio.least, ratio.median,
               ratio.most, pass->operations / layer.median * 1e-6);
    }
}

static mok_status write_json(const struct bench_job *job, const struct mok_team *team, const char *path)
{
    const struct mok_shape_settings *shape = &job->settings->shape;
    int64_t num = job->settings->num_repeats;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "command", "bench");
    cJSON_AddStringToObject(root, "build", mok_build_info());
    cJSON *json = cJSON_AddObjectToObject(root, "shape");
    cJSON_AddNumberToObject(json, "experts", (double)shape->experts);
    cJSON_AddNumberToObject(json, "top_k", (double)shape->top_k);
    cJSON_AddNumberToObject(json, "hidden", (double)shape->hidden);
    cJSON_AddNumberToObject(json, "intermediate", (double)shape->inter);
    cJSON_AddNumberToObject(json, "shared_intermediate", (double)shape->shared_inter);
    cJSON_AddNumberToObject(json, "tokens", (double)shape->tokens);
    cJSON_AddNumberToObject(json, "num_ranks", team->num_ranks);
    cJSON_AddStringToObject(json, "skew", mok_bench_skew_name(job->settings->skew));
    cJSON_AddStringToObject(root, "peer", mok_team_peer_name(team));
    cJSON_AddStringToObject(root, "backend", mok_config_backend_name(&team->config));
    cJSON_AddNumberToObject(root, "num_repeats", (double)num);
    cJSON_AddNumberToObject(root, "num_warmups", (double)job->settings->num_warmups);
    cJSON_AddNumberToObject(root, "dense_threads", job->dense.num_threads);
    cJSON_AddNumberToObject(root, "rows", job->all_rows);
    cJSON_AddNumberToObject(root, "rows_between_ranks", job->link_rows);
    cJSON_AddNumberToObject(root, "link_bytes_each_way", job->link_rows * job->problem.hidden * 2);
    cJSON_AddNumberToObject(root, "weight_bytes", job->weight_bytes);
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        const struct bench_pass *pass = &job->passes[is_backward];
        cJSON *child = cJSON_AddObjectToObject(root, is_backward ? "backward" : "forward");
        cJSON_AddNumberToObject(child, "operations", pass->operations);
        mok_bench_add_spread(child, "layer_ms", pass->layer, num);
        mok_bench_add_spread(child, "dense_ms", pass->dense, num);
        mok_bench_add_spread(child, "dense_over_layer", pass->ratio, num);
    }
    return mok_json_write(root, path);
}

/* ---- the job ------------------------------------------------------------------------------------------------------------ */

/* Random data of the case generator, routes of the bench. */
static mok_status make_problem(const struct mok_bench_settings *settings, int32_t num_ranks, struct mok_ref_problem *problem)
{
    struct mok_bench_router router;
    MOK_TRY(mok_bench_router_open(settings, &router));
    mok_status status = mok_shape_problem(&settings->shape, num_ranks, "mok bench", problem);
    for (int32_t rank = 0; rank < num_ranks && status == MOK_OK; rank++) {
        int64_t first = mok_ref_first_token(problem, rank) * problem->top_k;
        status = mok_bench_route(&router, rank, 0, problem->tokens[rank], problem->ids + first, problem->w + first);
    }
    mok_bench_router_close(&router);
    problem->grad_mode = MOK_GRAD_ADD;
    return status;
}

static mok_status run_job(struct mok_team *team, struct bench_job *job)
{
    const struct mok_bench_settings *settings = job->settings;
    MOK_TRY(make_problem(settings, team->num_ranks, &job->problem));
    MOK_TRY(mok_bench_dense_open(&job->problem, &job->dense));
    mok_seat_configure(&job->problem, &team->config);
    count_work(job);
    MOK_TRY(mok_team_run(team, bench_rank, job));
    mok_cli_progress_end();
    if (mok_bench_prints_text(settings)) {
        print_text(job, team);
    }
    return settings->json == NULL ? MOK_OK : write_json(job, team, settings->json);
}

mok_status mok_bench_host(const struct mok_bench_settings *settings, struct mok_team *team)
{
    struct bench_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory");
    }
    job->settings = settings;
    mok_status status = run_job(team, job);
    mok_bench_dense_close(&job->dense);
    mok_ref_problem_free(&job->problem);
    free(job);
    return status;
}
