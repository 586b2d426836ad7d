/*
 * Ranks that do not come, stall, or give up: the others get an error with a name within the limit, and everybody can leave.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu_layer.h"
#include "pass/site.h"

enum { LIMIT_MS = 1500, SLACK_MS = 3000 };

struct run {
    mok_hub *hub;
    int32_t num_ranks;
    int scenario;
    mok_status seen[4], left[4];
    mok_fault fault[4];
    double seconds[4];
};

enum { ABSENT, STALLED, ABORTED, LEAVES, NUM_SCENARIOS };

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void sleep_ms(int64_t ms) { nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL); }

/* What rank 1 does instead of its part. */
static void misbehave(struct run *run, struct gpu_layer *layer)
{
    if (run->scenario == STALLED) {
        sleep_ms(LIMIT_MS + LIMIT_MS / 3); /* the others have given up, and still wait for it to leave */
    } else if (run->scenario == ABORTED) {
        sleep_ms(LIMIT_MS / 3);
        (void)mok_group_abort(layer->group);
    } else if (run->scenario == ABSENT) {
        gpu_meet(); /* the others have seen it */
    }
}

static mok_status play(struct run *run, struct gpu_layer *layer)
{
    char *outputs = malloc(layer->outputs_bytes);
    gpu_layer_inputs(layer, 1);
    mok_status status = gpu_layer_enqueue(layer); /* all ranks: the group works */
    status = status == MOK_OK ? gpu_layer_outputs(layer, outputs) : status;
    gpu_meet();
    double begin = now_s();
    if (layer->rank == 1) {
        misbehave(run, layer);
    }
    if (layer->rank != 1 || run->scenario == STALLED) {
        status = status == MOK_OK ? gpu_layer_enqueue(layer) : status;
        status = status == MOK_OK ? gpu_layer_outputs(layer, outputs) : status;
    } else if (run->scenario == ABORTED) {
        status = gpu_layer_enqueue(layer);
    }
    run->seconds[layer->rank] = now_s() - begin;
    if (layer->rank != 1 && run->scenario == ABSENT) {
        gpu_meet();
    }
    free(outputs);
    return status;
}

static void on_rank(int32_t rank, void *context)
{
    struct run *run = context;
    struct gpu_layer layer;
    mok_group_config config;
    mok_group_state state = {.struct_size = sizeof state};
    mok_status status = gpu_layer_config(rank, run->num_ranks, run->hub, &config);
    config.peer_timeout_ms = LIMIT_MS;
    config.local_timeout_ms = LIMIT_MS;
    if (status != MOK_OK || gpu_layer_open(&layer, &config) != MOK_OK) {
        gpu_check(0, "rank %d: %s", rank, mok_last_error());
        return;
    }
    run->seen[rank] = play(run, &layer);
    mok_status now = mok_group_status(layer.group, &state);
    run->fault[rank] = state.fault;
    if (now == MOK_OK && run->seen[rank] != MOK_OK) {
        gpu_check(0, "rank %d: the group is healthy after %s", rank, mok_status_name(run->seen[rank]));
    }
    run->left[rank] = gpu_layer_close(&layer);
}

static void run_scenario(int32_t num_ranks, int scenario, const char *name)
{
    struct run run = {.num_ranks = num_ranks, .scenario = scenario};
    int ok = mok_hub_create(num_ranks, &run.hub) == MOK_OK;
    mok_status expected = scenario == ABORTED ? MOK_ERR_ABORTED : MOK_ERR_TIMEOUT;
    gpu_run_ranks(num_ranks, on_rank, &run);
    for (int32_t r = 0; r < num_ranks; r++) {
        int is_victim = r != 1;
        int is_expected = run.seen[r] == expected || (num_ranks > 2 && run.seen[r] == MOK_ERR_ABORTED);
        if (is_victim && !is_expected) {
            ok = gpu_check(0, "%s: rank %d got %s", name, r, mok_status_name(run.seen[r]));
        }
        if (is_victim && run.seconds[r] * 1000 > LIMIT_MS + SLACK_MS) {
            ok = gpu_check(0, "%s: rank %d took %.1f s", name, r, run.seconds[r]);
        }
        if (is_victim && run.seen[r] == MOK_ERR_TIMEOUT &&
            (run.fault[r].site != MOK_SITE_SCHED_BARRIER || run.fault[r].index != 1 || run.fault[r].rank != r)) {
            ok = gpu_check(0, "%s: rank %d names site %d (%s), source %lld, rank %d", name, r, run.fault[r].site, mok_site_name(run.fault[r].site),
                           (long long)run.fault[r].index, run.fault[r].rank);
        }
        /* Who leaves in the middle of a pass may have to give up waiting for those who are in it. */
        if (run.left[r] != MOK_OK && !(scenario == LEAVES && r == 1 && run.left[r] == MOK_ERR_TIMEOUT)) {
            ok = gpu_check(0, "%s: rank %d left with %s: %s", name, r, mok_status_name(run.left[r]), mok_last_error());
        }
    }
    mok_hub_destroy(run.hub);
    gpu_check(ok, "%s, %d ranks: rank 0 got %s after %.2f s at %s, all could leave", name, num_ranks, mok_status_name(run.seen[0]), run.seconds[0],
              mok_site_name(run.fault[0].site));
}

/* ---- refusals --------------------------------------------------------------------------------------------------------------- */

static void default_stream_rank(int32_t rank, void *context)
{
    struct run *run = context;
    struct gpu_layer layer;
    mok_group_config config;
    mok_status status = gpu_layer_config(rank, run->num_ranks, run->hub, &config);
    config.device = 0; /* both: with a GPU each there is nothing to refuse */
    if (status != MOK_OK || gpu_layer_open(&layer, &config) != MOK_OK) {
        gpu_check(0, "rank %d: %s", rank, mok_last_error());
        return;
    }
    run->seen[rank] = mok_schedule_build(layer.schedule, layer.ids, layer.num_tokens, NULL);
    run->left[rank] = gpu_layer_close(&layer);
}

static void refuse_default_stream(void)
{
    struct run run = {.num_ranks = 2};
    int ok = mok_hub_create(2, &run.hub) == MOK_OK;
    gpu_run_ranks(2, default_stream_rank, &run);
    for (int r = 0; r < 2; r++) {
        ok = ok && run.seen[r] == MOK_ERR_ARGUMENT && run.left[r] == MOK_OK;
    }
    mok_hub_destroy(run.hub);
    gpu_check(ok, "two ranks on one GPU: the default stream is refused with %s, and the group stays usable", mok_status_name(run.seen[0]));
}

static void do_nothing(struct gpu_run *run, struct gpu_layer *layer) { (void)run, (void)layer; }

int main(void)
{
    static const char *const names[NUM_SCENARIOS] = {"a rank never calls", "a rank stalls", "a rank aborts", "a rank leaves"};
    if (gpu_count() == 0) {
        gpu_skip("faults: no GPU");
        return gpu_finish();
    }
    struct gpu_run start = {.num_ranks = gpu_count() > 1 ? 2 : 1, .work = do_nothing};
    gpu_check(gpu_run_all(&start), "a group is made and destroyed"); /* CUDA starts within longer limits than those below */
    for (int scenario = 0; scenario < NUM_SCENARIOS; scenario++) {
        run_scenario(2, scenario, names[scenario]);
    }
    run_scenario(4, ABSENT, names[ABSENT]);
    refuse_default_stream();
    return gpu_finish();
}
