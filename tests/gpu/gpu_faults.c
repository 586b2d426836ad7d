/*
 * Ranks that do not come, stall, give up or leave, in front of a schedule build, a forward or a backward pass: the others get an error with a name
 * within the limit (of a rank that gives up or leaves: at once), and everybody can leave. Ranks that enter different passes: each is told so.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "gpu_layer.h"
#include "pass/site.h"

enum { LIMIT_MS = 1500, SLACK_MS = 3000 };

struct run {
    mok_hub *hub;
    int32_t num_ranks;
    int scenario;
    int place; /* the call that rank 1 does not make, or not in time */
    mok_status seen[GPU_RUN_RANKS], left[GPU_RUN_RANKS];
    mok_fault fault[GPU_RUN_RANKS];
    double seconds[GPU_RUN_RANKS];
};

enum { ABSENT, STALLED, ABORTED, LEAVES, NUM_SCENARIOS };
enum { BUILD, FORWARD, BACKWARD, NUM_PLACES };

static const char *const place_names[NUM_PLACES] = {"schedule build", "forward", "backward"};
static const int32_t place_sites[NUM_PLACES] = {MOK_SITE_SCHED_BARRIER, MOK_SITE_ENTRY_BARRIER, MOK_SITE_ENTRY_BARRIER};

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

/* Enqueues the calls from one place up to another. */
static mok_status enqueue(struct gpu_layer *layer, int from, int end)
{
    mok_status status = MOK_OK;
    for (int place = from; place < end && status == MOK_OK; place++) {
        status = place == BUILD     ? mok_schedule_build(layer->schedule, layer->ids, layer->num_tokens, layer->stream)
                 : place == FORWARD ? mok_forward(layer->layer, layer->schedule, &layer->forward, layer->stream)
                                    : mok_backward(layer->layer, layer->schedule, &layer->backward, layer->stream);
    }
    return status;
}

static mok_status play(struct run *run, struct gpu_layer *layer)
{
    char *outputs = malloc(layer->outputs_bytes);
    int from = BUILD, is_bad = layer->rank == 1;
    gpu_layer_inputs(layer, 1);
    mok_status status = gpu_layer_enqueue(layer); /* all ranks: the group works */
    status = status == MOK_OK ? gpu_layer_outputs(layer, outputs) : status;
    gpu_meet();
    double begin = now_s();
    if (is_bad) {
        status = status == MOK_OK ? enqueue(layer, BUILD, run->place) : status;
        from = run->place;
        misbehave(run, layer);
    }
    if (!is_bad || run->scenario == STALLED) {
        status = status == MOK_OK ? enqueue(layer, from, NUM_PLACES) : status;
        status = status == MOK_OK ? gpu_layer_outputs(layer, outputs) : status;
    } else if (run->scenario == ABORTED) {
        status = enqueue(layer, from, NUM_PLACES);
    }
    run->seconds[layer->rank] = now_s() - begin;
    if (!is_bad && run->scenario == ABSENT) {
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

/* Rank r is a victim of rank 1. Returns 1 if it has found out by itself, 0 if another victim or rank 1 has told it, -1 if it knows something else. */
static int how_it_knows(const struct run *run, int32_t r)
{
    const mok_fault *fault = &run->fault[r];
    int is_named = fault->site == place_sites[run->place] && fault->index == 1 && fault->expected == fault->seen + 1;
    if (run->seen[r] == MOK_ERR_TIMEOUT) {
        return run->scenario != ABORTED && run->scenario != LEAVES && is_named && fault->rank == r ? 1 : -1;
    }
    if (run->seen[r] != MOK_ERR_ABORTED || fault->status != MOK_ERR_ABORTED) {
        return -1;
    }
    if (run->scenario == LEAVES && is_named && fault->rank == 1) {
        return 1;
    }
    int is_raiser = run->scenario == ABORTED ? fault->rank == 1 : fault->rank != 1 && fault->rank != r;
    return fault->site == MOK_SITE_NONE && fault->rank >= 0 && fault->rank < run->num_ranks && is_raiser ? 0 : -1;
}

static void run_scenario(int32_t num_ranks, int scenario, int place, const char *name)
{
    struct run run = {.num_ranks = num_ranks, .scenario = scenario, .place = place};
    int ok = mok_hub_create(num_ranks, &run.hub) == MOK_OK, num_by_themselves = 0;
    double most_ms = scenario == ABORTED || scenario == LEAVES ? LIMIT_MS : LIMIT_MS + SLACK_MS;
    gpu_run_ranks(num_ranks, on_rank, &run);
    for (int32_t r = 0; r < num_ranks; r++) {
        int how = r == 1 ? 0 : how_it_knows(&run, r);
        num_by_themselves += how > 0;
        if (how < 0) {
            ok = gpu_check(0, "%s: rank %d got %s, fault of rank %d at site %d (%s), source %lld", name, r, mok_status_name(run.seen[r]),
                           run.fault[r].rank, run.fault[r].site, mok_site_name(run.fault[r].site), (long long)run.fault[r].index);
        }
        if (r != 1 && run.seconds[r] * 1000 > most_ms) {
            ok = gpu_check(0, "%s: rank %d took %.1f s", name, r, run.seconds[r]);
        }
        if (run.left[r] != MOK_OK) {
            ok = gpu_check(0, "%s: rank %d left with %s", name, r, mok_status_name(run.left[r]));
        }
    }
    if (scenario == ABORTED && (run.fault[1].status != MOK_ERR_ABORTED || run.fault[1].rank != 1)) {
        ok = gpu_check(0, "%s: rank 1 itself has status %d of rank %d", name, run.fault[1].status, run.fault[1].rank);
    }
    mok_hub_destroy(run.hub);
    gpu_check(ok && (scenario == ABORTED || num_by_themselves > 0), "%s before %s, %d ranks: rank 0 got %s after %.2f s, of rank %d at %s, all could leave", name,
              place_names[place], num_ranks, mok_status_name(run.seen[0]), run.seconds[0], run.fault[0].rank, mok_site_name(run.fault[0].site));
}

/* ---- different passes --------------------------------------------------------------------------------------------------------- */

/* How rank 1 goes another way than rank 0, and what rank 0 says of it. */
enum quarrel { OTHER_SAVED, NO_SAVED, OTHER_ORDER_OF_BUILDS, OTHER_PASS, NUM_QUARRELS };

static const char *const quarrel_words[NUM_QUARRELS][2] = {
    [OTHER_SAVED] = {"this rank runs forward with saved object 0 on build 2 of", "rank 1 runs forward with saved object 1 on build 2"},
    [NO_SAVED] = {"this rank runs forward with saved object 0 on build 2 of", "rank 1 runs forward without a saved object on build 2"},
    [OTHER_ORDER_OF_BUILDS] = {"this rank runs forward with saved object 0 on build 2 of", "rank 1 runs forward with saved object 0 on build 1"},
    [OTHER_PASS] = {"this rank runs backward with saved object 0 on build 2 of", "rank 1 runs forward without a saved object on build 2"},
};

/* Two builds and a forward pass; then, where that was the same on both ranks, a pass that is not. */
static mok_status disagree(struct gpu_layer *layer, enum quarrel quarrel, mok_schedule *other)
{
    int is_odd = layer->rank == 1, is_first = is_odd && quarrel == OTHER_ORDER_OF_BUILDS;
    mok_forward_args forward = layer->forward;
    if (is_odd && quarrel == OTHER_SAVED) {
        MOK_TRY(mok_group_saved(layer->group, 1, &forward.saved));
    } else if (is_odd && quarrel == NO_SAVED) {
        forward.saved = NULL;
    }
    MOK_TRY(mok_schedule_build(is_first ? layer->schedule : other, layer->ids, layer->num_tokens, layer->stream));
    MOK_TRY(mok_schedule_build(is_first ? other : layer->schedule, layer->ids, layer->num_tokens, layer->stream));
    MOK_TRY(mok_forward(layer->layer, layer->schedule, &forward, layer->stream));
    if (quarrel == OTHER_PASS) {
        forward.saved = NULL;
        MOK_TRY(is_odd ? mok_forward(layer->layer, layer->schedule, &forward, layer->stream)
                       : mok_backward(layer->layer, layer->schedule, &layer->backward, layer->stream));
    }
    return mok_group_wait(layer->group, layer->stream, -1);
}

static void quarrel_rank(int32_t rank, void *context)
{
    struct run *run = context;
    struct gpu_layer layer;
    mok_group_config config;
    mok_schedule *other = NULL;
    mok_status status = gpu_layer_config(rank, run->num_ranks, run->hub, &config);
    config.num_saved = 2;
    if (status != MOK_OK || gpu_layer_open(&layer, &config) != MOK_OK || mok_schedule_create(layer.group, &other) != MOK_OK) {
        gpu_check(0, "rank %d: %s", rank, mok_last_error());
        return;
    }
    gpu_layer_inputs(&layer, 1);
    gpu_meet();
    run->seen[rank] = disagree(&layer, (enum quarrel)run->scenario, other);
    const char *words = mok_last_error();
    int is_named = rank == 0 ? strstr(words, quarrel_words[run->scenario][0]) != NULL && strstr(words, quarrel_words[run->scenario][1]) != NULL
                             : strstr(words, "rank 0 runs") != NULL;
    if (!is_named) {
        run->seen[rank] = MOK_ERR_INTERNAL;
        gpu_check(0, "rank %d: the sentence does not name both passes: %s", rank, words);
    }
    mok_schedule_destroy(other);
    run->left[rank] = gpu_layer_close(&layer);
}

static void run_quarrel(int quarrel)
{
    static const char *const names[NUM_QUARRELS] = {"another saved object", "no saved object", "another order of builds", "forward beside backward"};
    struct run run = {.num_ranks = 2, .scenario = quarrel};
    int ok = mok_hub_create(2, &run.hub) == MOK_OK;
    gpu_run_ranks(2, quarrel_rank, &run);
    for (int r = 0; r < 2; r++) {
        ok = ok && run.seen[r] == MOK_ERR_DISAGREE && run.left[r] == MOK_OK;
    }
    mok_hub_destroy(run.hub);
    gpu_check(ok, "ranks in different passes, %s: got %s and %s, left with %s and %s", names[quarrel], mok_status_name(run.seen[0]),
              mok_status_name(run.seen[1]), mok_status_name(run.left[0]), mok_status_name(run.left[1]));
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
    struct gpu_run start = {.num_ranks = gpu_count() < GPU_RUN_RANKS ? gpu_count() : GPU_RUN_RANKS, .work = do_nothing};
    gpu_check(gpu_run_all(&start), "a group with a rank on each GPU is made and destroyed"); /* CUDA starts there within longer limits than those below */
    for (int i = 0; i < NUM_SCENARIOS * NUM_PLACES; i++) {
        run_scenario(2, i % NUM_SCENARIOS, i / NUM_SCENARIOS, names[i % NUM_SCENARIOS]);
    }
    for (int place = BUILD; place <= BACKWARD; place += BACKWARD - BUILD) {
        run_scenario(4, ABSENT, place, names[ABSENT]);
        run_scenario(GPU_RUN_RANKS, ABSENT, place, names[ABSENT]);
        run_scenario(GPU_RUN_RANKS, ABORTED, place, names[ABORTED]);
        run_scenario(4, LEAVES, place, names[LEAVES]);
        run_scenario(GPU_RUN_RANKS, LEAVES, place, names[LEAVES]);
    }
    for (int quarrel = 0; quarrel < NUM_QUARRELS; quarrel++) {
        run_quarrel(quarrel);
    }
    refuse_default_stream();
    return gpu_finish();
}
