/*
 * The public calls on the real CPU backend: what a refused call leaves alone, ranks without tokens, two threads on one group, a peer that
 * never calls, a group that is aborted, and the memory that was announced.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <mok/mok.h>

enum { EXPERTS = 3, TOP_K = 2, HIDDEN = 40, INTER = 24, TOKENS = 7, MAX_TOKENS = 9, RANKS = 2 };

/* One rank with everything that a pass needs. El <= EXPERTS. */
struct rank_bed {
    mok_group_config config;
    mok_group *group;
    mok_layer *layer;
    mok_schedule *schedule;
    mok_saved *saved;
    uint16_t *weights[3];
    float *grads[3];
    uint16_t *x, *y, *dy, *dx;
    float *w, *dw;
    int32_t *ids;
    mok_status status; /* of a rank that ran in a thread of its own */
    char sentence[512];
    double seconds;
};

static void *aligned(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(memory, 0, (bytes + 63) / 64 * 64);
    return memory;
}

/* Small bf16 values that differ everywhere. */
static void fill_bf16(uint16_t *to, size_t num, uint32_t seed)
{
    for (size_t idx = 0; idx < num; idx++) {
        seed = seed * 1664525u + 1013904223u;
        to[idx] = (uint16_t)(0x3d00 | (seed >> 25) | (seed >> 9 & 0x8000)); /* 2^-5 .. 2^-4, either sign */
    }
}

static void make_tensors(struct rank_bed *bed)
{
    size_t matrix = (size_t)HIDDEN * INTER * EXPERTS;
    for (int idx = 0; idx < 3; idx++) {
        bed->weights[idx] = aligned(matrix * 2);
        bed->grads[idx] = aligned(matrix * 4);
        fill_bf16(bed->weights[idx], matrix, 17u + (uint32_t)idx);
    }
    bed->x = aligned(MAX_TOKENS * HIDDEN * 2);
    bed->y = aligned(MAX_TOKENS * HIDDEN * 2);
    bed->dy = aligned(MAX_TOKENS * HIDDEN * 2);
    bed->dx = aligned(MAX_TOKENS * HIDDEN * 2);
    bed->w = aligned(MAX_TOKENS * TOP_K * 4);
    bed->dw = aligned(MAX_TOKENS * TOP_K * 4);
    bed->ids = aligned(MAX_TOKENS * TOP_K * 4);
    fill_bf16(bed->x, MAX_TOKENS * HIDDEN, 5);
    fill_bf16(bed->dy, MAX_TOKENS * HIDDEN, 6);
    for (int route = 0; route < MAX_TOKENS * TOP_K; route++) {
        bed->ids[route] = route % EXPERTS;
        bed->w[route] = 0.25f + 0.125f * (float)(route % 3);
    }
}

static void free_tensors(struct rank_bed *bed)
{
    for (int idx = 0; idx < 3; idx++) {
        free(bed->weights[idx]);
        free(bed->grads[idx]);
    }
    void *const tensors[] = {bed->x, bed->y, bed->dy, bed->dx, bed->w, bed->dw, bed->ids};
    for (size_t idx = 0; idx < sizeof tensors / sizeof tensors[0]; idx++) {
        free(tensors[idx]);
    }
}

static mok_ffn network(void *const *bases, int32_t dtype)
{
    mok_ffn ffn = {dtype, 0, {bases[0], HIDDEN * INTER, HIDDEN}, {bases[1], HIDDEN * INTER, HIDDEN}, {bases[2], HIDDEN * INTER, INTER}};
    return ffn;
}

static mok_status start(struct rank_bed *bed)
{
    mok_layer_config layer;
    mok_status status = mok_group_create(&bed->config, &bed->group);
    if (status == MOK_OK) {
        mok_layer_config_init(&layer);
        layer.routed = network((void *const *)bed->weights, MOK_DTYPE_BF16);
        status = mok_layer_create(bed->group, &layer, &bed->layer);
    }
    if (status == MOK_OK) {
        status = mok_schedule_create(bed->group, &bed->schedule);
    }
    return status == MOK_OK ? mok_group_saved(bed->group, 0, &bed->saved) : status;
}

static mok_status stop(struct rank_bed *bed)
{
    mok_layer_destroy(bed->layer);
    mok_schedule_destroy(bed->schedule);
    return mok_group_destroy(bed->group);
}

static void configure(struct rank_bed *bed, mok_hub *hub, int32_t rank, int32_t num_ranks)
{
    memset(bed, 0, sizeof *bed);
    assert_int_equal(mok_group_config_init(&bed->config), MOK_OK);
    bed->config.backend = MOK_BACKEND_CPU;
    bed->config.hub = hub;
    bed->config.rank = rank;
    bed->config.num_ranks = num_ranks;
    bed->config.comm_workers = 1;
    bed->config.compute_workers = 1;
    bed->config.peer_timeout_ms = 30000;
    bed->config.shape = (mok_shape){
        .num_experts = EXPERTS, .top_k = TOP_K, .hidden = HIDDEN, .intermediate = INTER, .max_tokens = MAX_TOKENS};
    make_tensors(bed);
}

static mok_status forward(struct rank_bed *bed, mok_schedule *schedule, uint16_t *y, mok_saved *saved)
{
    mok_forward_args args;
    mok_forward_args_init(&args);
    args.x = bed->x;
    args.w = bed->w;
    args.y = y;
    args.saved = saved;
    return mok_forward(bed->layer, schedule, &args, NULL);
}

static mok_backward_args backward_args(const struct rank_bed *bed)
{
    mok_backward_args args;
    mok_backward_args_init(&args);
    args.saved = bed->saved;
    args.dy = bed->dy;
    args.w = bed->w;
    args.dx = bed->dx;
    args.dw = bed->dw;
    args.grads = network((void *const *)bed->grads, MOK_DTYPE_FP32);
    return args;
}

static int is_all(const void *memory, int byte, size_t bytes)
{
    const unsigned char *at = memory;
    for (size_t idx = 0; idx < bytes; idx++) {
        if (at[idx] != byte) {
            return 0;
        }
    }
    return 1;
}

/* ---- one rank ------------------------------------------------------------------------------------------------------------ */

static void test_refused_writes_nothing(void **state)
{
    (void)state;
    struct rank_bed bed;
    configure(&bed, NULL, 0, 1);
    assert_int_equal(start(&bed), MOK_OK);
    assert_int_equal(mok_schedule_build(bed.schedule, bed.ids, TOKENS, NULL), MOK_OK);
    assert_int_equal(forward(&bed, bed.schedule, bed.y, bed.saved), MOK_OK);
    assert_int_equal(mok_group_wait(bed.group, NULL, -1), MOK_OK);
    uint16_t good[TOKENS * HIDDEN];
    memcpy(good, bed.y, sizeof good);

    memset(bed.y, 0x7f, sizeof good);
    memset(bed.dx, 0x7f, sizeof good);
    memset(bed.grads[0], 0x7f, HIDDEN * INTER * EXPERTS * 4);
    mok_backward_args spoiled = backward_args(&bed);
    spoiled.grads.down.row_stride = 20;
    assert_int_equal(mok_backward(bed.layer, bed.schedule, &spoiled, NULL), MOK_ERR_ARGUMENT);
    assert_int_equal(forward(&bed, bed.schedule, bed.y, bed.saved), MOK_ERR_MISMATCH);
    assert_int_equal(forward(&bed, bed.schedule, NULL, NULL), MOK_ERR_ARGUMENT);
    assert_int_equal(mok_group_wait(bed.group, NULL, -1), MOK_OK);
    assert_true(is_all(bed.y, 0x7f, sizeof good));
    assert_true(is_all(bed.dx, 0x7f, sizeof good));
    assert_true(is_all(bed.grads[0], 0x7f, HIDDEN * INTER * EXPERTS * 4));

    mok_backward_args args = backward_args(&bed);
    assert_int_equal(mok_backward(bed.layer, bed.schedule, &args, NULL), MOK_OK);
    assert_int_equal(forward(&bed, bed.schedule, bed.y, bed.saved), MOK_OK);
    assert_int_equal(mok_group_wait(bed.group, NULL, -1), MOK_OK);
    assert_memory_equal(bed.y, good, sizeof good);
    assert_false(is_all(bed.dx, 0x7f, sizeof good));
    assert_int_equal(stop(&bed), MOK_OK);
    free_tensors(&bed);
}

struct caller {
    pthread_t thread;
    struct rank_bed *bed;
    mok_schedule *schedule;
    uint16_t *y;
    int num_wrong;
};

enum { CALLERS = 3, CALLS = 40 };

static void *call_often(void *argument)
{
    struct caller *caller = argument;
    for (int call = 0; call < CALLS; call++) {
        caller->num_wrong += mok_schedule_build(caller->schedule, caller->bed->ids, TOKENS, NULL) != MOK_OK;
        caller->num_wrong += forward(caller->bed, caller->schedule, caller->y, NULL) != MOK_OK;
        caller->num_wrong += mok_group_status(caller->bed->group, NULL) != MOK_OK;
    }
    caller->num_wrong += mok_group_wait(caller->bed->group, NULL, -1) != MOK_OK;
    return NULL;
}

/* Threads that use one group at once are served one after another, and each gets what it would have got alone. */
static void test_threads_on_one_group(void **state)
{
    (void)state;
    struct rank_bed bed;
    struct caller callers[CALLERS];
    configure(&bed, NULL, 0, 1);
    assert_int_equal(start(&bed), MOK_OK);
    assert_int_equal(mok_schedule_build(bed.schedule, bed.ids, TOKENS, NULL), MOK_OK);
    assert_int_equal(forward(&bed, bed.schedule, bed.y, NULL), MOK_OK);
    assert_int_equal(mok_group_wait(bed.group, NULL, -1), MOK_OK);
    for (int idx = 0; idx < CALLERS; idx++) {
        callers[idx] = (struct caller){.bed = &bed, .y = aligned(MAX_TOKENS * HIDDEN * 2)};
        assert_int_equal(mok_schedule_create(bed.group, &callers[idx].schedule), MOK_OK);
    }
    for (int idx = 0; idx < CALLERS; idx++) {
        assert_int_equal(pthread_create(&callers[idx].thread, NULL, call_often, &callers[idx]), 0);
    }
    for (int idx = 0; idx < CALLERS; idx++) {
        pthread_join(callers[idx].thread, NULL);
        assert_int_equal(callers[idx].num_wrong, 0);
        assert_memory_equal(callers[idx].y, bed.y, TOKENS * HIDDEN * 2);
        mok_schedule_destroy(callers[idx].schedule);
        free(callers[idx].y);
    }
    mok_group_state group_state = {.struct_size = sizeof group_state};
    assert_int_equal(mok_group_status(bed.group, &group_state), MOK_OK);
    assert_int_equal(group_state.passes_done, 1 + CALLERS * CALLS);
    assert_int_equal(stop(&bed), MOK_OK);
    free_tensors(&bed);
}

enum { ROUNDS = 10, QUEUED = 30 };

/* A schedule goes while passes that use it are queued: they end first, so its memory is never read after it has gone. */
static void test_schedule_goes_while_work_is_queued(void **state)
{
    (void)state;
    struct rank_bed bed;
    configure(&bed, NULL, 0, 1);
    assert_int_equal(start(&bed), MOK_OK);
    for (int round = 1; round <= ROUNDS; round++) {
        for (int call = 0; call < QUEUED; call++) {
            mok_backward_args args = backward_args(&bed);
            assert_int_equal(mok_schedule_build(bed.schedule, bed.ids, TOKENS, NULL), MOK_OK);
            assert_int_equal(forward(&bed, bed.schedule, bed.y, bed.saved), MOK_OK);
            assert_int_equal(mok_backward(bed.layer, bed.schedule, &args, NULL), MOK_OK);
        }
        mok_schedule_destroy(bed.schedule);
        mok_group_state group_state = {.struct_size = sizeof group_state};
        assert_int_equal(mok_group_status(bed.group, &group_state), MOK_OK);
        assert_int_equal(group_state.passes_done, round * QUEUED * 2);
        assert_int_equal(mok_schedule_create(bed.group, &bed.schedule), MOK_OK);
    }
    assert_int_equal(stop(&bed), MOK_OK);
    free_tensors(&bed);
}

static void test_abort(void **state)
{
    (void)state;
    struct rank_bed bed;
    configure(&bed, NULL, 0, 1);
    assert_int_equal(start(&bed), MOK_OK);
    assert_int_equal(mok_schedule_build(bed.schedule, bed.ids, TOKENS, NULL), MOK_OK);
    assert_int_equal(mok_group_wait(bed.group, NULL, -1), MOK_OK);
    assert_int_equal(mok_group_abort(bed.group), MOK_OK);
    assert_int_equal(forward(&bed, bed.schedule, bed.y, NULL), MOK_ERR_ABORTED);
    assert_non_null(strstr(mok_last_error(), "the group is dead (MOK_ERR_ABORTED)"));
    assert_int_equal(mok_group_status(bed.group, NULL), MOK_ERR_ABORTED);
    assert_int_equal(mok_schedule_build(bed.schedule, bed.ids, TOKENS, NULL), MOK_ERR_ABORTED);
    assert_int_equal(mok_group_wait(bed.group, NULL, -1), MOK_ERR_ABORTED);
    assert_int_equal(stop(&bed), MOK_OK); /* every rank left */
    free_tensors(&bed);
}

/* What MOK_LOG=1 prints while `body` runs, as text; the caller frees it. */
static char *logged(void (*body)(void))
{
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int before = dup(STDERR_FILENO);
    assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
    setenv("MOK_LOG", "1", 1);
    body();
    unsetenv("MOK_LOG");
    fflush(stderr);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    char *text = calloc(1, 4096);
    rewind(file);
    (void)!fread(text, 1, 4095, file);
    fclose(file);
    return text;
}

/* Everything that asks what this machine has, and a group that decides for itself. */
static void ask_and_decide(void)
{
    struct rank_bed bed;
    mok_memory memory = {.struct_size = sizeof memory};
    configure(&bed, NULL, 0, 1);
    bed.config.backend = MOK_BACKEND_AUTO;
    bed.config.comm_workers = bed.config.compute_workers = 0;
    for (int kind = MOK_BACKEND_AUTO; kind <= MOK_BACKEND_CUDA; kind++) {
        (void)mok_backend_available((mok_backend)kind);
    }
    for (int kind = MOK_PEER_THREADS; kind <= MOK_PEER_EXTERNAL; kind++) {
        (void)mok_peer_available((mok_peer_kind)kind);
    }
    assert_non_null(mok_build_info());
    assert_int_equal(mok_group_memory(&bed.config, &memory), MOK_OK);
    assert_int_equal(start(&bed), MOK_OK);
    assert_int_equal(stop(&bed), MOK_OK);
    free_tensors(&bed);
}

static void fail_once(void) { assert_int_equal(mok_group_wait(NULL, NULL, 0), MOK_ERR_ARGUMENT); }

/* MOK_LOG=1 is for failures: that something is not there, asked about or passed over by AUTO, is none. */
static void test_log_is_for_failures(void **state)
{
    (void)state;
    char *asked = logged(ask_and_decide), *failed = logged(fail_once);
    assert_string_equal(asked, "");
    assert_string_equal(failed, "mok: MOK_ERR_ARGUMENT: group is NULL: must be given\n");
    free(asked);
    free(failed);
}

/* What was announced is what is there, and it grows with what it should grow with. */
static void test_memory(void **state)
{
    (void)state;
    struct rank_bed bed;
    configure(&bed, NULL, 0, 1);
    mok_memory few = {.struct_size = sizeof few}, many = {.struct_size = sizeof many};
    bed.config.num_saved = 1;
    bed.config.keep_rows = 0;
    assert_int_equal(mok_group_memory(&bed.config, &few), MOK_OK);
    assert_int_equal(few.total_bytes, few.peer_bytes + few.ring_bytes + few.saved_bytes + few.other_bytes);
    assert_int_equal(few.keep_rows, 0);
    assert_int_equal(few.max_rows, (MAX_TOKENS * TOP_K + 127 * EXPERTS) / 128 * 128);
    bed.config.num_saved = 3;
    bed.config.keep_rows = MOK_KEEP_ALL;
    assert_int_equal(mok_group_memory(&bed.config, &many), MOK_OK);
    assert_int_equal(many.keep_rows, many.max_rows);
    assert_true(many.peer_bytes >= few.peer_bytes + 2 * MAX_TOKENS * HIDDEN * 2);
    assert_true(many.saved_bytes >= few.saved_bytes + 3 * (uint64_t)many.max_rows * (HIDDEN + 2 * INTER) * 2);
    bed.config.keep_rows = 300;
    assert_int_equal(mok_group_memory(&bed.config, &many), MOK_OK);
    assert_int_equal(many.keep_rows, 256);
    free_tensors(&bed);
}

/* ---- two ranks ----------------------------------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void note(struct rank_bed *bed, mok_status status)
{
    if (bed->status == MOK_OK && status != MOK_OK) {
        bed->status = status;
        snprintf(bed->sentence, sizeof bed->sentence, "%s", mok_last_error());
    }
}

static void run_both(mok_hub *hub, struct rank_bed *beds, int32_t peer_timeout_ms, void *(*body)(void *))
{
    pthread_t threads[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        configure(&beds[rank], hub, rank, RANKS);
        beds[rank].config.peer_timeout_ms = peer_timeout_ms;
    }
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(pthread_create(&threads[rank], NULL, body, &beds[rank]), 0);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        pthread_join(threads[rank], NULL);
    }
}

static void *without_tokens(void *argument)
{
    struct rank_bed *bed = argument;
    note(bed, start(bed));
    memset(bed->grads[0], 0x7f, HIDDEN * INTER * EXPERTS * 4);
    note(bed, mok_schedule_build(bed->schedule, NULL, 0, NULL));
    mok_forward_args forward_args;
    mok_forward_args_init(&forward_args);
    forward_args.saved = bed->saved;
    note(bed, mok_forward(bed->layer, bed->schedule, &forward_args, NULL));
    mok_backward_args args = backward_args(bed);
    args.dy = args.dx = NULL;
    args.w = args.dw = NULL;
    note(bed, mok_backward(bed->layer, bed->schedule, &args, NULL));
    int64_t rows[EXPERTS] = {-1, -1, -1}, padded = -1;
    note(bed, mok_schedule_counts(bed->schedule, NULL, rows, &padded));
    note(bed, mok_group_wait(bed->group, NULL, -1));
    if (rows[0] != 0 || padded != 0) {
        bed->status = MOK_ERR_INTERNAL;
    }
    note(bed, stop(bed));
    return NULL;
}

/* No rank has a token and no per-token pointer is given: both passes end, and the weight gradients of local experts are zeros. */
static void test_without_tokens(void **state)
{
    struct rank_bed beds[RANKS];
    run_both(*state, beds, 30000, without_tokens);
    for (int rank = 0; rank < RANKS; rank++) {
        int32_t first, num;
        assert_int_equal(mok_local_experts(EXPERTS, RANKS, rank, &first, &num), MOK_OK);
        if (beds[rank].status != MOK_OK) {
            fail_msg("rank %d: %s", rank, beds[rank].sentence);
        }
        assert_true(is_all(beds[rank].grads[0], 0, (size_t)num * HIDDEN * INTER * 4));
        assert_true(is_all(beds[rank].grads[0] + num * HIDDEN * INTER, 0x7f, (size_t)(EXPERTS - num) * HIDDEN * INTER * 4));
        free_tensors(&beds[rank]);
    }
}

/* Rank 1 makes the group and never calls again until it hears of the end. */
static void *absent(void *argument)
{
    struct rank_bed *bed = argument;
    if (start(bed) != MOK_OK) {
        note(bed, MOK_ERR_INTERNAL);
        return NULL;
    }
    double begin = now();
    if (bed->config.rank == 0) {
        mok_status built = mok_schedule_build(bed->schedule, bed->ids, TOKENS, NULL);
        note(bed, built != MOK_OK ? built : mok_group_wait(bed->group, NULL, -1));
    } else {
        while (mok_group_status(bed->group, NULL) == MOK_OK && now() - begin < 20) {
            struct timespec nap = {0, 5000000};
            nanosleep(&nap, NULL);
        }
        note(bed, mok_group_status(bed->group, NULL));
    }
    mok_layer_destroy(bed->layer);
    mok_schedule_destroy(bed->schedule);
    (void)mok_group_destroy(bed->group);
    bed->seconds = now() - begin;
    return NULL;
}

static void test_absent_peer(void **state)
{
    struct rank_bed beds[RANKS];
    run_both(*state, beds, 400, absent);
    assert_int_equal(beds[0].status, MOK_ERR_TIMEOUT);
    assert_non_null(strstr(beds[0].sentence, "SCHED barrier of source rank 1"));
    assert_int_equal(beds[1].status, MOK_ERR_ABORTED);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_true(beds[rank].seconds > 0.3 && beds[rank].seconds < 15);
        free_tensors(&beds[rank]);
    }
}

/* How rank 1 goes another way than rank 0, and what rank 0 says that it did. */
enum quarrel { OTHER_SAVED, NO_SAVED, OTHER_ORDER_OF_BUILDS, OTHER_PASS, NUM_QUARRELS };

static enum quarrel quarrel;

static const char *const quarrel_words[NUM_QUARRELS][2] = {
    [OTHER_SAVED] = {"this rank runs forward with saved object 0 on build 2 of", "rank 1 runs forward with saved object 1 on build 2"},
    [NO_SAVED] = {"this rank runs forward with saved object 0 on build 2 of", "rank 1 runs forward without a saved object on build 2"},
    [OTHER_ORDER_OF_BUILDS] = {"this rank runs forward with saved object 0 on build 2 of",
                               "rank 1 runs forward with saved object 0 on build 1"},
    [OTHER_PASS] = {"this rank runs backward with saved object 0 on build 2 of", "rank 1 runs forward with saved object 1 on build 2"},
};

static void *disagree(void *argument)
{
    struct rank_bed *bed = argument;
    int is_odd = bed->config.rank == 1;
    mok_schedule *other = NULL;
    mok_saved *saved = NULL;
    bed->config.num_saved = 2;
    note(bed, start(bed));
    note(bed, mok_schedule_create(bed->group, &other));
    note(bed, mok_group_saved(bed->group, is_odd && quarrel == OTHER_SAVED, &saved));
    int is_first = is_odd && quarrel == OTHER_ORDER_OF_BUILDS;
    note(bed, mok_schedule_build(is_first ? bed->schedule : other, bed->ids, TOKENS, NULL));
    note(bed, mok_schedule_build(is_first ? other : bed->schedule, bed->ids, TOKENS, NULL));
    note(bed, forward(bed, bed->schedule, bed->y, is_odd && quarrel == NO_SAVED ? NULL : saved));
    if (quarrel == OTHER_PASS) {
        mok_backward_args args = backward_args(bed);
        note(bed, mok_group_saved(bed->group, 1, &saved));
        note(bed, is_odd ? forward(bed, bed->schedule, bed->y, saved) : mok_backward(bed->layer, bed->schedule, &args, NULL));
    }
    if (bed->status == MOK_OK) {
        note(bed, mok_group_wait(bed->group, NULL, -1));
    }
    mok_schedule_destroy(other);
    mok_status left = stop(bed);
    bed->seconds = left == MOK_OK ? 0 : 1;
    return NULL;
}

/* Ranks that enter different passes hear of it, every one of them, and name the other and both values. */
static void test_ranks_that_disagree(void **state)
{
    struct rank_bed beds[RANKS];
    for (int round = 0; round < 5 * NUM_QUARRELS; round++) {
        quarrel = (enum quarrel)(round % NUM_QUARRELS);
        run_both(*state, beds, 30000, disagree);
        for (int rank = 0; rank < RANKS; rank++) {
            if (beds[rank].status != MOK_ERR_DISAGREE) {
                fail_msg("quarrel %d, rank %d: %s (%s)", quarrel, rank, mok_status_name(beds[rank].status), beds[rank].sentence);
            }
            assert_true(beds[rank].seconds == 0); /* it left in the ordinary way */
            free_tensors(&beds[rank]);
        }
        for (int word = 0; word < 2; word++) {
            if (strstr(beds[0].sentence, quarrel_words[quarrel][word]) == NULL) {
                fail_msg("quarrel %d: '%s' should say '%s'", quarrel, beds[0].sentence, quarrel_words[quarrel][word]);
            }
        }
        assert_non_null(strstr(beds[1].sentence, "rank 0 runs"));
    }
}

static int make_hub(void **state)
{
    mok_hub *hub = NULL;
    assert_int_equal(mok_hub_create(RANKS, &hub), MOK_OK);
    *state = hub;
    return 0;
}

static int drop_hub(void **state)
{
    mok_hub_destroy(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_writes_nothing),
        cmocka_unit_test(test_threads_on_one_group),
        cmocka_unit_test(test_schedule_goes_while_work_is_queued),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_log_is_for_failures),
        cmocka_unit_test_setup_teardown(test_without_tokens, make_hub, drop_hub),
        cmocka_unit_test_setup_teardown(test_absent_peer, make_hub, drop_hub),
        cmocka_unit_test_setup_teardown(test_ranks_that_disagree, make_hub, drop_hub),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
