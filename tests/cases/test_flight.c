/*
 * Many passes on one group: several layers and saved objects in flight, ranks delayed at random, T changing with each step, schedules used
 * again, calls that do not belong together.
 *
 * A test is a script: a list of operations that every rank performs. What comes back must have the bits of the same problem run alone, and
 * that run must pass both oracles.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/status.h"
#include "case/case_bits.h"
#include "case/case_run.h"
#include "cpu_hooks.h"
#include "ref/random.h"

enum {
    MAX_BATCHES = 16,
    MAX_OPERATIONS = 2048,
    NUM_LAYERS = 3,
    NUM_SAVED = 6
};

enum kind {
    LOAD,
    BUILD,
    FORWARD,
    INFER, /* forward without a saved object */
    BACKWARD,
    WAIT,
    COLLECT, /* and compare with the reference */
    COLLECT_Y,
    DELAY,                  /* up to `with` microseconds, another number on every rank */
    FORWARD_ON_SCHEDULE_OF, /* of batch `with` */
    FORWARD_INTO_SAVED_OF,
    BACKWARD_ON_SCHEDULE_OF,
    BACKWARD_ON_LAYER_OF,
    BACKWARD_FROM_SAVED_OF
};

struct operation {
    enum kind kind;
    int batch;
    int with;
    mok_status expected;
};

/* Everything of one test; ranks only read it, but for their part of `got`. */
struct script {
    int num_batches;
    int num_operations;
    struct operation operations[MAX_OPERATIONS];
    struct mok_ref_case recipes[MAX_BATCHES];
    struct mok_ref_problem problems[MAX_BATCHES];
    struct mok_ref_outputs got[MAX_BATCHES], expected[MAX_BATCHES];
    int layer_of[MAX_BATCHES]; /* 0 .. NUM_LAYERS-1 */
    int saved_of[MAX_BATCHES]; /* 0 .. NUM_SAVED-1 */
    int ids_of[MAX_BATCHES];   /* whose ids it has; itself unless the test says otherwise */
    struct mok_ref_knobs knobs;
    enum mok_case_ranks ranks;
    mok_status (*poison)(mok_group *, int);
};

static struct script script;

static void add(enum kind kind, int batch, int with, mok_status expected)
{
    assert_true(script.num_operations < MAX_OPERATIONS);
    script.operations[script.num_operations++] = (struct operation){kind, batch, with, expected};
}

/* ---- a rank --------------------------------------------------------------------------------------------------------------- */

struct player {
    struct mok_case_rank rank;
    struct mok_case_layer layers[NUM_LAYERS]; /* [0] stays empty: the rank's own */
    struct mok_case_batch batches[MAX_BATCHES];
    struct mok_ref_random random;
};

static mok_status compare(const struct player *player, const struct operation *op, struct mok_case_verdict *verdict)
{
    const struct mok_ref_problem *p = &script.problems[op->batch];
    int32_t rank = player->rank.rank;
    struct mok_case_bits bits = {0};
    struct mok_ref_outputs got = script.got[op->batch], expected = script.expected[op->batch];
    char what[64];
    snprintf(what, sizeof what, "rank %d, batch %d, in flight and alone", rank, op->batch);
    if (op->kind == COLLECT_Y) { /* only y is there */
        got.dx = expected.dx;
        got.dw = expected.dw;
        got.dshared_w = expected.dshared_w;
    } else {
        mok_case_bits_grads(p, &got, &expected, (struct mok_ref_scope){rank, 1}, NULL, what, &bits);
    }
    mok_case_bits_tokens(p, &got, &expected, mok_ref_first_token(p, rank), p->tokens[rank], NULL, what, &bits);
    if (verdict->num_differences == 0) {
        memcpy(verdict->difference, bits.difference, sizeof verdict->difference);
    }
    verdict->num_differences += bits.num_differences;
    return MOK_OK;
}

static mok_status collect(struct player *player, const struct operation *op, struct mok_case_verdict *verdict)
{
    struct mok_case_batch batch = player->batches[op->batch];
    batch.saved = op->kind == COLLECT_Y ? NULL : batch.saved;
    mok_status status =
        mok_case_batch_collect(&batch, &script.got[op->batch], &verdict->num_differences, verdict->difference, sizeof verdict->difference);
    return status == MOK_OK ? compare(player, op, verdict) : status;
}

static mok_status pause_at_random(struct player *player, int longest_us)
{
    struct timespec pause = {0, 1000 * mok_ref_random_below(&player->random, longest_us + 1)};
    nanosleep(&pause, NULL);
    return MOK_OK;
}

static mok_status perform(struct player *player, const struct operation *op, struct mok_case_verdict *verdict)
{
    struct mok_case_batch *own = &player->batches[op->batch], batch = *own;
    const struct mok_case_batch *other = &player->batches[op->with < MAX_BATCHES ? op->with : 0];
    switch (op->kind) {
    case LOAD: return mok_case_batch_load(own, &script.problems[op->batch], op->with);
    case BUILD: return mok_case_batch_build(own);
    case FORWARD: return mok_case_batch_forward(own);
    case INFER: batch.saved = NULL; return mok_case_batch_forward(&batch);
    case BACKWARD: return mok_case_batch_backward(own);
    case WAIT: return mok_case_batch_wait(&player->rank);
    case COLLECT:
    case COLLECT_Y: return collect(player, op, verdict);
    case DELAY: return pause_at_random(player, op->with);
    case FORWARD_ON_SCHEDULE_OF: batch.schedule = other->schedule; return mok_case_batch_forward(&batch);
    case FORWARD_INTO_SAVED_OF: batch.saved = other->saved; return mok_case_batch_forward(&batch);
    case BACKWARD_ON_SCHEDULE_OF: batch.schedule = other->schedule; return mok_case_batch_backward(&batch);
    case BACKWARD_ON_LAYER_OF: batch.layer = other->layer; return mok_case_batch_backward(&batch);
    case BACKWARD_FROM_SAVED_OF: batch.saved = other->saved; return mok_case_batch_backward(&batch);
    }
    return MOK_ERR_INTERNAL;
}

static mok_status play(struct player *player, struct mok_case_verdict *verdict)
{
    for (int i = 0; i < script.num_operations; i++) {
        const struct operation *op = &script.operations[i];
        mok_status status = perform(player, op, verdict);
        if (status != op->expected) {
            snprintf(verdict->message, sizeof verdict->message, "operation %d (kind %d, batch %d): %s instead of %s: %s", i, op->kind,
                     op->batch, mok_status_name(status), mok_status_name(op->expected), mok_last_error());
            return status == MOK_OK ? MOK_ERR_INTERNAL : status;
        }
    }
    return MOK_OK;
}

static mok_status open_player(struct player *player, const struct mok_case_join *join)
{
    MOK_TRY(mok_case_rank_open(&player->rank, &script.problems[0], &script.knobs, join));
    if (script.poison != NULL) {
        MOK_TRY(script.poison(player->rank.group, 0xff));
    }
    for (int l = 1; l < NUM_LAYERS; l++) {
        for (int b = 0; b < script.num_batches; b++) {
            if (script.layer_of[b] == l && player->layers[l].layer == NULL) {
                MOK_TRY(mok_case_layer_open(&player->rank, &script.problems[b], &player->layers[l]));
            }
        }
    }
    for (int b = 0; b < script.num_batches; b++) {
        MOK_TRY(mok_case_batch_open(&player->batches[b], &player->rank, script.saved_of[b]));
        if (script.layer_of[b] > 0) {
            player->batches[b].layer = player->layers[script.layer_of[b]].layer;
        }
    }
    return MOK_OK;
}

static mok_status close_player(struct player *player)
{
    if (player->rank.group == NULL) {
        return MOK_OK;
    }
    for (int b = 0; b < script.num_batches; b++) {
        mok_case_batch_close(&player->batches[b]);
    }
    for (int l = 1; l < NUM_LAYERS; l++) {
        mok_case_layer_close(&player->rank, &player->layers[l]);
    }
    return mok_case_rank_close(&player->rank);
}

static void rank_main(const struct mok_case_join *join, void *context, struct mok_case_verdict *verdict)
{
    struct player *player = calloc(1, sizeof *player);
    (void)context;
    if (player == NULL) {
        verdict->status = MOK_ERR_MEMORY;
        return;
    }
    player->random = mok_ref_random_open("flight", 0, MOK_FOR_DELAY, (uint64_t)join->rank);
    verdict->status = open_player(player, join);
    if (verdict->status == MOK_OK) {
        verdict->status = play(player, verdict);
    }
    if (verdict->status != MOK_OK && player->rank.group != NULL) {
        if (verdict->message[0] == '\0') {
            snprintf(verdict->message, sizeof verdict->message, "%s", mok_last_error());
        }
        (void)mok_group_abort(player->rank.group);
    }
    mok_status left = close_player(player);
    verdict->status = verdict->status == MOK_OK ? left : verdict->status;
    free(player);
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------ */

/* Every batch alone on a group of its own, against the oracles: what the script must give again. */
static void make_references(void)
{
    struct mok_case_where where = {.backend = MOK_BACKEND_CPU, .ranks = MOK_CASE_THREADS};
    for (int b = 0; b < script.num_batches; b++) {
        struct mok_case_result result;
        struct mok_ref_answer answer;
        struct mok_ref_report report;
        struct mok_ref_problem *p = &script.problems[b];
        assert_int_equal(mok_ref_generate(&script.recipes[b], (uint32_t)b, p), MOK_OK);
        if (script.ids_of[b] != b) {
            memcpy(p->ids, script.problems[script.ids_of[b]].ids, (size_t)(p->num_tokens * p->top_k) * sizeof(int32_t));
        }
        assert_int_equal(mok_ref_outputs_alloc(&script.problems[b], &script.got[b]), MOK_OK);
        assert_int_equal(mok_ref_outputs_alloc(&script.problems[b], &script.expected[b]), MOK_OK);
        if (mok_case_run_problem(&script.problems[b], &script.knobs, &where, 0x7f, &script.expected[b], &result) != MOK_OK) {
            fail_msg("batch %d alone: %s %s", b, mok_status_name(result.status), result.message);
        }
        assert_int_equal(result.num_differences, 0);
        assert_int_equal(mok_ref_answer_make(&script.problems[b], &answer), MOK_OK);
        mok_ref_report_clear(&report);
        mok_ref_compare(&script.problems[b], &answer, &script.expected[b], mok_case_scope(&script.problems[b], &where), &report);
        mok_ref_answer_free(&answer);
        assert_int_equal(mok_ref_report_failures(&report), 0);
    }
}

static void run_script(void)
{
    struct mok_case_where where = {.backend = MOK_BACKEND_CPU, .ranks = script.ranks};
    struct mok_case_verdict verdict;
    int32_t rank;
    mok_case_launch(&where, &script.problems[0], &script.knobs, NUM_SAVED, rank_main, NULL, &verdict, &rank);
    if (verdict.status != MOK_OK || verdict.num_differences != 0) {
        fail_msg("rank %d: %s %s; %lld differences, the first: %s", rank, mok_status_name(verdict.status), verdict.message,
                 (long long)verdict.num_differences, verdict.difference);
    }
    for (int b = 0; b < script.num_batches; b++) {
        mok_ref_outputs_free(&script.problems[b], &script.got[b]);
        mok_ref_outputs_free(&script.problems[b], &script.expected[b]);
        mok_ref_problem_free(&script.problems[b]);
    }
}

/* Four ranks; T moves on by one rank with every batch (K10). Weights follow the name, so batches of one layer have one name. */
static const char *const layer_names[NUM_LAYERS] = {"flight-layer-0", "flight-layer-1", "flight-layer-2"};

static void start_script(int num_batches, enum mok_case_ranks ranks)
{
    static const int64_t tokens[4] = {100, 129, 0, 37};
    memset(&script, 0, sizeof script);
    script.num_batches = num_batches;
    script.ranks = ranks;
    script.poison = poison_workspace;
    script.knobs = (struct mok_ref_knobs){.max_tokens = 131, .keep_rows = 256, .minibatch_rows = 128, .ring_minibatches = 2};
    for (int b = 0; b < num_batches; b++) {
        script.recipes[b] = (struct mok_ref_case){.name = layer_names[b % NUM_LAYERS],
                                                  .num_ranks = 4,
                                                  .num_experts = 6,
                                                  .top_k = 3,
                                                  .hidden = 72,
                                                  .inter = 40,
                                                  .shared_inter = 24,
                                                  .shared_w = 1,
                                                  .ids = MOK_IDS_SKEWED,
                                                  .grad_dtype = MOK_DTYPE_FP32};
        for (int r = 0; r < 4; r++) {
            script.recipes[b].tokens[r] = tokens[(b + r) % 4];
        }
        script.layer_of[b] = b % NUM_LAYERS;
        script.saved_of[b] = b % NUM_SAVED;
        script.ids_of[b] = b;
    }
}

/* Microbatch m = batches 3m .. 3m+2, one a layer. At most two microbatches are in flight, on six saved objects; nothing waits but the end.
 * */
static void test_one_forward_one_backward(void **state)
{
    static const enum mok_case_ranks kinds[] = {MOK_CASE_THREADS, MOK_CASE_PROCESSES};
    (void)state;
    for (int i = 0; i < 2; i++) {
        start_script(15, kinds[i]);
        make_references();
        for (int b = 0; b < 15; b++) {
            add(LOAD, b, b % 2 == 0 ? 0xff : 0x7f, MOK_OK);
        }
        for (int m = 0; m <= 5; m++) {
            for (int l = 0; l < 3 && m < 5; l++) {
                add(BUILD, 3 * m + l, 0, MOK_OK);
                add(FORWARD, 3 * m + l, 0, MOK_OK);
            }
            for (int l = 2; l >= 0 && m > 0; l--) {
                add(BACKWARD, 3 * (m - 1) + l, 0, MOK_OK);
            }
        }
        add(WAIT, 0, 0, MOK_OK);
        for (int b = 0; b < 15; b++) {
            add(COLLECT, b, 0, MOK_OK);
        }
        run_script();
    }
}

/* 200 forward and backward passes; before every call each rank pauses for a time of its own (K3). */
static void test_random_delays(void **state)
{
    (void)state;
    start_script(8, MOK_CASE_THREADS);
    script.poison = poison_and_delay;
    script.knobs.ring_minibatches = 1;
    make_references();
    for (int round = 0; round < 25; round++) {
        for (int b = 0; b < 8; b++) {
            add(LOAD, b, round % 2 == 0 ? 0x7f : 0xff, MOK_OK);
        }
        for (int b = 0; b < 8; b++) {
            add(DELAY, b, 2000, MOK_OK);
            add(BUILD, b, 0, MOK_OK);
            add(FORWARD, b, 0, MOK_OK);
            add(DELAY, b, 500, MOK_OK);
            add(BACKWARD, b, 0, MOK_OK);
        }
        add(WAIT, 0, 0, MOK_OK);
        for (int b = 0; b < 8; b++) {
            add(COLLECT, b, 0, MOK_OK);
        }
    }
    run_script();
}

/* Half of the ranks have no experts in use, 50 times (A3). */
static void test_idle_ranks(void **state)
{
    (void)state;
    start_script(2, MOK_CASE_THREADS);
    script.recipes[0].ids = script.recipes[1].ids = MOK_IDS_FIRST_TWO;
    make_references();
    for (int round = 0; round < 25; round++) {
        for (int b = 0; b < 2; b++) {
            add(LOAD, b, 0xff, MOK_OK);
            add(BUILD, b, 0, MOK_OK);
            add(FORWARD, b, 0, MOK_OK);
            add(BACKWARD, b, 0, MOK_OK);
            add(WAIT, b, 0, MOK_OK);
            add(COLLECT, b, 0, MOK_OK);
        }
    }
    run_script();
}

/* The same ids built twice give the same bits; one build serves many passes, whatever is built in between (K11). Batches 0 and 3 have one
 * layer and, here, one routing for different tokens; batch 1 is a stranger. */
static void test_schedule_again(void **state)
{
    (void)state;
    start_script(4, MOK_CASE_THREADS);
    memcpy(script.recipes[3].tokens, script.recipes[0].tokens, sizeof script.recipes[0].tokens);
    script.ids_of[3] = 0;
    make_references();
    for (int b = 0; b < 4; b++) {
        add(LOAD, b, 0x7f, MOK_OK);
        add(BUILD, b, 0, MOK_OK);
    }
    add(BUILD, 0, 0, MOK_OK);
    for (int round = 0; round < 3; round++) {
        add(FORWARD, 0, 0, MOK_OK);
        add(FORWARD, 1, 0, MOK_OK);
        add(FORWARD_ON_SCHEDULE_OF, 3, 0, MOK_OK);
        add(INFER, 2, 0, MOK_OK);
        add(BACKWARD, 1, 0, MOK_OK);
        add(BUILD, 1, 0, MOK_OK);
        add(BACKWARD, 0, 0, MOK_OK);
        add(BACKWARD_ON_SCHEDULE_OF, 3, 0, MOK_OK);
        add(WAIT, 0, 0, MOK_OK);
        add(COLLECT, 0, 0, MOK_OK);
        add(COLLECT, 1, 0, MOK_OK);
        add(COLLECT_Y, 2, 0, MOK_OK);
        add(COLLECT, 3, 0, MOK_OK);
        for (int b = 0; b < 4; b++) {
            add(LOAD, b, 0xff, MOK_OK);
        }
    }
    run_script();
}

/* What does not belong together is refused on every rank, and the right call still works (K12). */
static void test_mismatches(void **state)
{
    (void)state;
    start_script(3, MOK_CASE_THREADS);
    for (int b = 1; b < 3; b++) { /* so that only what belongs together differs */
        memcpy(script.recipes[b].tokens, script.recipes[0].tokens, sizeof script.recipes[0].tokens);
    }
    make_references();
    for (int b = 0; b < 3; b++) {
        add(LOAD, b, 0xff, MOK_OK);
    }
    add(BUILD, 0, 0, MOK_OK);
    add(BUILD, 1, 0, MOK_OK);
    add(BACKWARD, 0, 0, MOK_ERR_MISMATCH); /* no forward yet */
    add(FORWARD, 0, 0, MOK_OK);
    add(BACKWARD_ON_SCHEDULE_OF, 0, 1, MOK_ERR_MISMATCH);
    add(BACKWARD_ON_LAYER_OF, 0, 1, MOK_ERR_MISMATCH);
    add(BACKWARD_FROM_SAVED_OF, 0, 1, MOK_ERR_MISMATCH);
    add(FORWARD_INTO_SAVED_OF, 1, 0, MOK_ERR_MISMATCH); /* still holds batch 0 */
    add(FORWARD, 1, 0, MOK_OK);
    add(BACKWARD_FROM_SAVED_OF, 1, 0, MOK_ERR_MISMATCH);
    add(BACKWARD, 0, 0, MOK_OK);
    add(BACKWARD, 0, 0, MOK_ERR_MISMATCH); /* its saved object was used up */
    add(BACKWARD, 1, 0, MOK_OK);
    add(BUILD, 2, 0, MOK_OK);
    add(FORWARD, 2, 0, MOK_OK);
    add(BUILD, 2, 0, MOK_OK);
    add(BACKWARD, 2, 0, MOK_ERR_MISMATCH); /* the schedule was built anew */
    add(WAIT, 0, 0, MOK_OK);
    add(COLLECT, 0, 0, MOK_OK);
    add(COLLECT, 1, 0, MOK_OK);
    add(COLLECT_Y, 2, 0, MOK_OK);
    run_script();
}

/* Limits of the activation that have no meaning are refused, +inf means none (H3). */
static void test_limits(void **state)
{
    static const float refused[] = {0.0f, -1.0f, -INFINITY, NAN};
    struct mok_ref_case recipe = {.name = "limits",
                                  .num_ranks = 1,
                                  .tokens = {3},
                                  .num_experts = 2,
                                  .top_k = 1,
                                  .hidden = 16,
                                  .inter = 8,
                                  .ids = MOK_IDS_DISTINCT,
                                  .grad_dtype = MOK_DTYPE_FP32};
    struct mok_case_join join = {.backend = MOK_BACKEND_CPU, .peer = MOK_PEER_THREADS, .num_saved = 1};
    struct mok_ref_problem problem;
    struct mok_case_rank rank;
    struct mok_case_layer layer;
    (void)state;
    assert_int_equal(mok_ref_generate(&recipe, 0, &problem), MOK_OK);
    assert_int_equal(mok_case_rank_open(&rank, &problem, &recipe.knobs, &join), MOK_OK); /* limit +inf */
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        problem.activation.limit = refused[i];
        assert_int_equal(mok_case_layer_open(&rank, &problem, &layer), MOK_ERR_ARGUMENT);
        assert_non_null(strstr(mok_last_error(), "limit"));
    }
    assert_int_equal(mok_case_rank_close(&rank), MOK_OK);
    mok_ref_problem_free(&problem);
}

static mok_status run_once(struct mok_case_batch *batch, const struct mok_ref_problem *problem)
{
    MOK_TRY(mok_case_batch_load(batch, problem, 0xff));
    MOK_TRY(mok_case_batch_build(batch));
    MOK_TRY(mok_case_batch_forward(batch));
    MOK_TRY(mok_case_batch_backward(batch));
    return mok_case_batch_wait(batch->rank);
}

/* Every pass reads the weights as they are: new ones in the place of the old are seen, and the bits are those of a layer that always had
 * them (F13). */
static void test_weights_changed_in_place(void **state)
{
    struct mok_ref_case recipes[2] = {{.name = "weights-before",
                                       .num_ranks = 1,
                                       .tokens = {9},
                                       .num_experts = 3,
                                       .top_k = 2,
                                       .hidden = 24,
                                       .inter = 16,
                                       .ids = MOK_IDS_DISTINCT,
                                       .grad_dtype = MOK_DTYPE_FP32}};
    struct mok_case_join join = {.backend = MOK_BACKEND_CPU, .peer = MOK_PEER_THREADS, .num_saved = 1};
    struct mok_ref_problem problems[2];
    struct mok_ref_outputs outputs[2];
    struct mok_case_rank rank;
    struct mok_case_layer other;
    struct mok_case_batch batch;
    (void)state;
    recipes[1] = recipes[0];
    recipes[1].name = "weights-after";
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mok_ref_generate(&recipes[i], 0, &problems[i]), MOK_OK);
        assert_int_equal(mok_ref_outputs_alloc(&problems[i], &outputs[i]), MOK_OK);
    }
    assert_int_equal(mok_case_rank_open(&rank, &problems[0], &recipes[0].knobs, &join), MOK_OK);
    assert_int_equal(mok_case_layer_open(&rank, &problems[1], &other), MOK_OK);
    assert_int_equal(mok_case_batch_open(&batch, &rank, 0), MOK_OK);
    struct mok_case_place place = mok_case_place_plan(MOK_LAYOUT_SEPARATE, rank.num_local, problems[0].inter, problems[0].hidden);
    size_t bytes = MOK_CASE_WEIGHTS_OFFSET + (size_t)place.elements * sizeof(mok_bf16);
    for (int i = 0; i < 3; i++) { /* the old weights; the other layer; its weights in this layer */
        int64_t num_differences = 0;
        char difference[256] = "";
        if (i == 2) {
            memcpy(rank.layer.weights, other.weights, bytes);
        }
        batch.layer = i == 1 ? other.layer : rank.layer.layer;
        assert_int_equal(run_once(&batch, &problems[1]), MOK_OK);
        assert_int_equal(mok_case_batch_collect(&batch, &outputs[i % 2], &num_differences, difference, sizeof difference), MOK_OK);
        struct mok_case_bits bits = {0};
        mok_case_bits_tokens(&problems[1], &outputs[0], &outputs[1], 0, problems[1].num_tokens, NULL, "weights", &bits);
        mok_case_bits_grads(&problems[1], &outputs[0], &outputs[1], (struct mok_ref_scope){0, 1}, NULL, "weights", &bits);
        assert_int_equal(num_differences, 0);
        assert_int_equal(bits.num_differences != 0, i != 2);
    }
    mok_case_batch_close(&batch);
    mok_case_layer_close(&rank, &other);
    assert_int_equal(mok_case_rank_close(&rank), MOK_OK);
    for (int i = 0; i < 2; i++) {
        mok_ref_outputs_free(&problems[i], &outputs[i]);
        mok_ref_problem_free(&problems[i]);
    }
}

/* The guards of the case runner see one byte: behind an output, before one, between gradient matrices, in an input. */
static void test_guards(void **state)
{
    struct mok_ref_case recipe = {.name = "guards",
                                  .num_ranks = 1,
                                  .tokens = {5},
                                  .num_experts = 2,
                                  .top_k = 2,
                                  .hidden = 24,
                                  .inter = 16,
                                  .ids = MOK_IDS_DISTINCT,
                                  .grad_dtype = MOK_DTYPE_BF16,
                                  .knobs = {.max_tokens = 9, .grad_layout = MOK_LAYOUT_STRIDED}};
    struct mok_case_join join = {.backend = MOK_BACKEND_CPU, .peer = MOK_PEER_THREADS, .num_saved = 1};
    struct mok_ref_problem problem;
    struct mok_ref_outputs outputs;
    struct mok_case_rank rank;
    struct mok_case_batch batch;
    (void)state;
    assert_int_equal(mok_ref_generate(&recipe, 0, &problem), MOK_OK);
    assert_int_equal(mok_ref_outputs_alloc(&problem, &outputs), MOK_OK);
    assert_int_equal(mok_case_rank_open(&rank, &problem, &recipe.knobs, &join), MOK_OK);
    assert_int_equal(mok_case_batch_open(&batch, &rank, 0), MOK_OK);
    for (int fault = 0; fault < 5; fault++) {
        int64_t num_differences = 0;
        char difference[256] = "";
        assert_int_equal(run_once(&batch, &problem), MOK_OK);
        char *places[] = {batch.y.data + batch.y.used, batch.dx.data - 1, batch.grads.data + 2 * problem.hidden, batch.w.data + 3};
        if (fault < 4) {
            *places[fault] ^= 1;
        }
        assert_int_equal(mok_case_batch_collect(&batch, &outputs, &num_differences, difference, sizeof difference), MOK_OK);
        assert_int_equal(num_differences, fault < 4);
        assert_int_equal(difference[0] != '\0', fault < 4);
    }
    assert_int_equal(mok_schedule_build(batch.schedule, (const int32_t *)(const void *)batch.ids.data, 10, NULL),
                     MOK_ERR_ARGUMENT); /* D8 */
    mok_case_batch_close(&batch);
    assert_int_equal(mok_case_rank_close(&rank), MOK_OK);
    mok_ref_outputs_free(&problem, &outputs);
    mok_ref_problem_free(&problem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_forward_one_backward),
        cmocka_unit_test(test_random_delays),
        cmocka_unit_test(test_idle_ranks),
        cmocka_unit_test(test_schedule_again),
        cmocka_unit_test(test_mismatches),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_weights_changed_in_place),
        cmocka_unit_test(test_guards),
    };
    return cmocka_run_group_tests_name("flight", tests, NULL, NULL);
}
