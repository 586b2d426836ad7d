/*
 * Thousands of calls with the host far ahead, every one of them compared on the device with the outputs that the staged path gave for the same
 * inputs when nothing else was under way:
 *
 *   stress    random sets (routing, number of tokens down to 0), random delays of each rank on the device and on the host: forward and backward; then
 *             forward alone, in half of the calls for a backward pass that is given up
 *   replay    build + forward + backward captured as one graph; new ids and tokens with each replay; then build + forward alone, without
 *             and with a saved object
 *   flight    several layers and saved objects on one stream, in the order 1F1B: some forward passes ahead of their backward passes, eager, and
 *             the whole sequence as one graph
 *
 * Each on the staged path, on the fused one in both passes, on that once more with the smallest ring there is, and on what auto takes.
 *
 *   gpu_stress [--ranks N] [--only WORD] [--limit SECONDS]
 *     --ranks   this number of ranks alone, instead of 1, 2, 4 and 8
 *     --only    staged, fused, fused-ring or auto alone (outputs to compare with still come from the staged path)
 *     --limit   of the whole run, 600 s: behind it the program says where it was and ends with 1
 * Lines that begin with .. say how far it is.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "gpu_pool.h"
#include "gpu_slow.h"

enum {
    NUM_CALLS = 2000,
    NUM_REPLAYS = 1000,
    NUM_BATCHES = 400, /* of flight */
    GRAPH_BATCHES = 8,  /* captured */
    GRAPH_REPLAYS = 50,
    LIMIT_MS = 8000,
    LONGEST_NS = 200000, /* of a delay on the device */
    PROGRESS_S = 5,      /* between two lines that say how far it is */
    LIMIT_S = 600
};

/* What the four runs of a number of ranks use. */
static const struct variant {
    const char *word;
    int32_t path, minibatch_rows, ring_minibatches;
} variants[] = {
    {"staged", MOK_PATH_STAGED, 0, 0},
    {"fused", MOK_PATH_FUSED, 0, 0},
    {"fused-ring", MOK_PATH_FUSED, 128, 2},
    {"auto", MOK_PATH_AUTO, 0, 0},
};

struct options {
    int32_t num_ranks;  /* 0 = 1, 2, 4 and 8 */
    const char *only;   /* NULL = all variants */
};

struct plan {
    struct gpu_pool *pools; /* [ranks]; made by the first run, the staged one */
    int is_first;
    int num_calls, num_replays, num_batches;
};

/* ---- how far it is ---------------------------------------------------------------------------------------------------------- */

static char where[160] = "the beginning"; /* for the limit */
static struct timespec begin;
static int64_t last_line_s;

static int64_t seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec - begin.tv_sec;
}

/* Rank 0 alone. */
static void say(const struct gpu_layer *layer, const char *part, int done, int all)
{
    int64_t now = seconds();
    if (layer->rank != 0 || now < last_line_s + PROGRESS_S) {
        return;
    }
    last_line_s = now;
    printf(".. %d s: %s, %s: %d of %d enqueued\n", (int)now, where, part, done, all);
    fflush(stdout);
}

/* The limit of the whole run is over. Only calls that a signal handler may make. */
static void end_run(int signal_number)
{
    static const char sentence[] = "FAILED the limit of the run is over at: ";
    (void)signal_number;
    (void)!write(STDOUT_FILENO, sentence, sizeof sentence - 1);
    (void)!write(STDOUT_FILENO, where, strlen(where));
    (void)!write(STDOUT_FILENO, "\n0 passed, 1 failed, 0 skipped\n", 31);
    _exit(1);
}

static mok_status check_cuda(cudaError_t error) { return error == cudaSuccess ? MOK_OK : MOK_ERR_DEVICE; }

/* A rank is late now and then: on the device in every other call, on the host in one of 64. */
static void be_late(const struct gpu_layer *layer, uint32_t *own)
{
    if (gpu_draw(own) % 2 == 0) {
        gpu_slow(layer->stream, gpu_draw(own) % LONGEST_NS);
    }
    if (gpu_draw(own) % 64 == 0) {
        usleep(gpu_draw(own) % 2000);
    }
}

/* ---- stress ----------------------------------------------------------------------------------------------------------------- */

/* Which calls a part makes. */
enum kind { BOTH, ALONE };

static const char *const call_words[] = {"calls", "forward calls"}, *const replay_words[] = {"replays", "forward replays"};

/* Build and forward, without a saved object, or with one that is given up at once. */
static mok_status enqueue_alone(struct gpu_layer *layer, int is_kept)
{
    mok_forward_args forward = layer->forward;
    forward.saved = is_kept ? forward.saved : NULL;
    MOK_TRY(mok_schedule_build(layer->schedule, layer->ids, layer->num_tokens, layer->stream));
    MOK_TRY(mok_forward(layer->layer, layer->schedule, &forward, layer->stream));
    return is_kept ? mok_saved_release(forward.saved) : MOK_OK;
}

static void stress(struct gpu_run *run, const struct plan *plan, struct gpu_layer *layer, enum kind kind)
{
    struct gpu_pool *pool = &plan->pools[layer->rank];
    uint32_t shared = 99u + kind, own = (uint32_t)layer->rank * 977u + 5u, num = 0;
    for (int i = 0; i < plan->num_calls && run->status[layer->rank] == MOK_OK; i++) {
        int32_t set = (int32_t)(gpu_draw(&shared) % GPU_POOL_SETS);
        int is_kept = gpu_draw(&shared) % 2 == 0; /* all ranks alike */
        say(layer, call_words[kind], i, plan->num_calls);
        be_late(layer, &own);
        gpu_pool_load(pool, layer, set);
        gpu_run_note(run, layer->rank, kind == BOTH ? gpu_layer_enqueue(layer) : enqueue_alone(layer, is_kept));
        (kind == BOTH ? gpu_pool_compare : gpu_pool_compare_y)(pool, layer, set);
        if (gpu_draw(&own) % 256 == 0) { /* this rank alone catches up */
            gpu_run_note(run, layer->rank, mok_group_wait(layer->group, layer->stream, -1));
        }
    }
    gpu_run_note(run, layer->rank, gpu_pool_wait(pool, layer, &num));
    run->num_wrong[layer->rank] += num;
}

/* ---- replay ----------------------------------------------------------------------------------------------------------------- */

static void replay(struct gpu_run *run, const struct plan *plan, struct gpu_layer *layer, enum kind kind)
{
    struct gpu_pool *pool = &plan->pools[layer->rank];
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    uint32_t shared = 7u + kind, num = 0;
    gpu_pool_load(pool, layer, 0);
    gpu_run_note(run, layer->rank, check_cuda(cudaStreamBeginCapture(layer->stream, cudaStreamCaptureModeThreadLocal)));
    if (kind == BOTH) {
        gpu_run_note(run, layer->rank, gpu_layer_enqueue(layer));
    } else { /* each replay fills the saved object anew */
        gpu_run_note(run, layer->rank, enqueue_alone(layer, 0));
        gpu_run_note(run, layer->rank, enqueue_alone(layer, 1));
    }
    gpu_run_note(run, layer->rank, check_cuda(cudaStreamEndCapture(layer->stream, &graph)));
    gpu_run_note(run, layer->rank, check_cuda(cudaGraphInstantiate(&exec, graph, 0)));
    gpu_meet();
    for (int i = 0; i < plan->num_replays && run->status[layer->rank] == MOK_OK; i++) {
        int32_t set = (int32_t)(gpu_draw(&shared) % (GPU_POOL_SETS / 2)) * 2; /* the number of tokens is part of the graph */
        say(layer, replay_words[kind], i, plan->num_replays);
        gpu_pool_load(pool, layer, set);
        gpu_run_note(run, layer->rank, check_cuda(cudaGraphLaunch(exec, layer->stream)));
        (kind == BOTH ? gpu_pool_compare : gpu_pool_compare_y)(pool, layer, set);
    }
    gpu_run_note(run, layer->rank, gpu_pool_wait(pool, layer, &num));
    run->num_wrong[layer->rank] += num;
    gpu_meet();
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
}

/* ---- flight ----------------------------------------------------------------------------------------------------------------- */

static mok_status fly_forward(const struct gpu_pool *pool, struct gpu_layer *layer, int32_t set)
{
    gpu_pool_load(pool, layer, set);
    mok_status status = mok_schedule_build(layer->schedule, layer->ids, layer->num_tokens, layer->stream);
    return status == MOK_OK ? mok_forward(layer->layer, layer->schedule, &layer->forward, layer->stream) : status;
}

static mok_status fly_backward(const struct gpu_pool *pool, struct gpu_layer *layer, int32_t set)
{
    mok_status status = mok_backward(layer->layer, layer->schedule, &layer->backward, layer->stream);
    gpu_pool_compare(pool, layer, set);
    return status;
}

/* Batches 0 .. num-1, each with layer batch % GPU_POOL_LAYERS; GPU_POOL_LAYERS - 1 forward passes are ahead. own: delays, NULL = none. */
static mok_status fly(const struct gpu_pool *pool, struct gpu_layer *layers, int num, uint32_t seed, uint32_t *own)
{
    int32_t sets[GPU_POOL_LAYERS];
    mok_status status = MOK_OK;
    for (int i = 0; i < num + GPU_POOL_LAYERS - 1 && status == MOK_OK; i++) {
        int back = i - (GPU_POOL_LAYERS - 1);
        if (own != NULL) {
            be_late(&layers[0], own);
        }
        if (i < num) {
            say(&layers[0], "batches", i, num);
            sets[i % GPU_POOL_LAYERS] = (int32_t)(gpu_draw(&seed) % GPU_POOL_SETS);
            status = fly_forward(pool, &layers[i % GPU_POOL_LAYERS], sets[i % GPU_POOL_LAYERS]);
        }
        if (back >= 0 && status == MOK_OK) {
            status = fly_backward(pool, &layers[back % GPU_POOL_LAYERS], sets[back % GPU_POOL_LAYERS]);
        }
    }
    return status;
}

static void fly_as_graph(struct gpu_run *run, const struct gpu_pool *pool, struct gpu_layer *layers)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    int32_t rank = layers[0].rank;
    uint32_t num = 0;
    gpu_run_note(run, rank, check_cuda(cudaStreamBeginCapture(layers[0].stream, cudaStreamCaptureModeThreadLocal)));
    gpu_run_note(run, rank, fly(pool, layers, GRAPH_BATCHES, 31, NULL));
    gpu_run_note(run, rank, check_cuda(cudaStreamEndCapture(layers[0].stream, &graph)));
    gpu_run_note(run, rank, check_cuda(cudaGraphInstantiate(&exec, graph, 0)));
    gpu_meet();
    for (int i = 0; i < GRAPH_REPLAYS && run->status[rank] == MOK_OK; i++) {
        gpu_run_note(run, rank, check_cuda(cudaGraphLaunch(exec, layers[0].stream)));
    }
    gpu_run_note(run, rank, gpu_pool_wait(pool, &layers[0], &num));
    run->num_wrong[rank] += num;
    gpu_meet();
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
}

static void flight(struct gpu_run *run, const struct plan *plan, struct gpu_layer *layers)
{
    const struct gpu_pool *pool = &plan->pools[layers[0].rank];
    uint32_t own = (uint32_t)layers[0].rank * 91u + 3u, num = 0;
    gpu_run_note(run, layers[0].rank, fly(pool, layers, plan->num_batches, 17, &own));
    gpu_run_note(run, layers[0].rank, gpu_pool_wait(pool, &layers[0], &num));
    run->num_wrong[layers[0].rank] += num;
    gpu_meet();
    fly_as_graph(run, pool, layers);
}

/* ---- one rank --------------------------------------------------------------------------------------------------------------- */

static void work(struct gpu_run *run, struct gpu_layer *first)
{
    const struct plan *plan = run->context;
    struct gpu_layer layers[GPU_POOL_LAYERS];
    int32_t rank = first->rank;
    layers[0] = *first;
    for (int32_t i = 1; i < GPU_POOL_LAYERS; i++) {
        gpu_run_note(run, rank, gpu_layer_open_beside(&layers[i], first, i));
    }
    if (plan->is_first) {
        gpu_run_note(run, rank, gpu_pool_open(&plan->pools[rank], layers, GPU_POOL_LAYERS));
    }
    gpu_meet(); /* memory is made: nothing below allocates */
    if (plan->num_calls == 0) { /* only outputs to compare with were wanted */
        for (int32_t i = GPU_POOL_LAYERS - 1; i > 0; i--) {
            gpu_run_note(run, rank, gpu_layer_close(&layers[i]));
        }
        return;
    }
    gpu_pool_forget(&plan->pools[rank], &layers[0]);
    for (enum kind kind = BOTH; kind <= ALONE; kind++) {
        stress(run, plan, &layers[0], kind);
        gpu_meet();
        replay(run, plan, &layers[0], kind);
        gpu_meet();
    }
    flight(run, plan, layers);
    gpu_meet();
    for (int32_t i = GPU_POOL_LAYERS - 1; i > 0; i--) {
        gpu_run_note(run, rank, gpu_layer_close(&layers[i]));
    }
}

static void free_pool(struct gpu_run *run, struct gpu_layer *layer)
{
    const struct plan *plan = run->context;
    gpu_pool_close(&plan->pools[layer->rank]);
}

/* pools: made by the first variant, the staged one. */
static void try_variant(int32_t num_ranks, const struct options *options, const struct variant *variant, struct gpu_pool *pools)
{
    int is_first = variant == &variants[0], is_wanted = options->only == NULL || strcmp(options->only, variant->word) == 0;
    struct plan plan = {.pools = pools, .is_first = is_first};
    struct gpu_run run = {.num_ranks = num_ranks,
                          .path = variant->path,
                          .minibatch_rows = variant->minibatch_rows,
                          .ring_minibatches = variant->ring_minibatches,
                          .num_saved = GPU_POOL_LAYERS,
                          .local_timeout_ms = LIMIT_MS,
                          .work = work,
                          .context = &plan};
    if (is_wanted) {
        plan.num_calls = NUM_CALLS;
        plan.num_replays = NUM_REPLAYS;
        plan.num_batches = NUM_BATCHES;
    }
    if (!is_wanted && !is_first) {
        return;
    }
    snprintf(where, sizeof where, "%s, %d ranks", variant->word, num_ranks);
    int64_t since = seconds();
    int ok = gpu_run_all(&run);
    if (is_wanted) {
        gpu_check(ok,
                  "%s, %d ranks: %d random calls, %d replays, as many of forward alone, %d batches in 1F1B order, %d times %d of them as a graph: every "
                  "bit (%d s)",
                  variant->word, num_ranks, plan.num_calls, plan.num_replays, plan.num_batches, GRAPH_REPLAYS, GRAPH_BATCHES,
                  (int)(seconds() - since));
    } else {
        gpu_check(ok, "staged, %d ranks: outputs to compare with", num_ranks);
    }
}

static void try_ranks(int32_t num_ranks, const struct options *options)
{
    struct gpu_pool pools[GPU_RUN_RANKS];
    memset(pools, 0, sizeof pools);
    for (size_t v = 0; v < sizeof variants / sizeof variants[0] && (v == 0 || pools[0].expected != NULL); v++) {
        try_variant(num_ranks, options, &variants[v], pools);
    }
    struct plan plan = {.pools = pools};
    struct gpu_run last = {.num_ranks = num_ranks, .work = free_pool, .context = &plan};
    gpu_check(gpu_run_all(&last), "%d ranks leave", num_ranks);
}

/* Returns the limit in seconds; 0 = the arguments are wrong. */
static int parse(int argc, char **argv, struct options *options)
{
    int limit = LIMIT_S;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--ranks") == 0) {
            options->num_ranks = atoi(value);
            limit = options->num_ranks < 1 || options->num_ranks > GPU_RUN_RANKS ? 0 : limit;
        } else if (strcmp(argv[i], "--limit") == 0) {
            limit = limit > 0 ? atoi(value) : 0;
        } else if (strcmp(argv[i], "--only") == 0) {
            int is_known = 0;
            for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
                is_known = is_known || strcmp(value, variants[v].word) == 0;
            }
            options->only = value;
            limit = is_known ? limit : 0;
        } else {
            return 0;
        }
        i++;
    }
    return limit;
}

int main(int argc, char **argv)
{
    static const int32_t ranks[] = {1, 2, 4, 8};
    struct options options = {0, NULL};
    int limit = parse(argc, argv, &options);
    if (limit <= 0) {
        fprintf(stderr, "usage: gpu_stress [--ranks 1..%d] [--only staged|fused|fused-ring|auto] [--limit SECONDS]\n", GPU_RUN_RANKS);
        return 2;
    }
    if (gpu_count() == 0) {
        gpu_skip("stress: no GPU");
        return gpu_finish();
    }
    (void)unsetenv("MOK_PATH"); /* auto is what the library takes by itself */
    clock_gettime(CLOCK_MONOTONIC, &begin);
    signal(SIGALRM, end_run);
    alarm((unsigned)limit);
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0] && options.num_ranks == 0; i++) {
        try_ranks(ranks[i], &options);
    }
    if (options.num_ranks > 0) {
        try_ranks(options.num_ranks, &options);
    }
    return gpu_finish();
}
