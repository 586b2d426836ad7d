/*
 * Ranks that agree before they begin: whatever one rank gets wrong or lacks, every rank fails with the same status and a sentence that
 * names field, values and rank; nothing stays behind, and the next group on the same hub works.
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

#include <cmocka.h>

#include "test_api_fake.h"

enum { RANKS = 3, ODD = 2 }; /* ODD is the rank that differs */

struct part {
    mok_group_config config;
    mok_group *group;
    mok_status created, destroyed;
    char sentence[512];
};

static mok_group_config shared_config(mok_hub *hub, int32_t rank)
{
    mok_group_config config;
    if (mok_group_config_init(&config) != MOK_OK) {
        abort();
    }
    config.backend = MOK_BACKEND_CPU;
    config.hub = hub;
    config.rank = rank;
    config.num_ranks = RANKS;
    config.num_saved = 2;
    config.keep_rows = 256;
    config.peer_timeout_ms = 20000;
    config.shape.num_experts = 7;
    config.shape.top_k = 2;
    config.shape.hidden = 24;
    config.shape.intermediate = 16;
    config.shape.shared_intermediate = 8;
    config.shape.max_tokens = 100;
    return config;
}

static void *run_part(void *argument)
{
    struct part *part = argument;
    part->created = mok_api_create(&part->config, &fake_ops, &mok_peer_threads, &part->group);
    snprintf(part->sentence, sizeof part->sentence, "%s", part->created == MOK_OK ? "" : mok_last_error());
    part->destroyed = mok_group_destroy(part->group);
    return NULL;
}

/* Runs the ranks of `mask` to the end. */
static void run_ranks(struct part *parts, unsigned mask)
{
    pthread_t threads[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        if (mask >> rank & 1) {
            assert_int_equal(pthread_create(&threads[rank], NULL, run_part, &parts[rank]), 0);
        }
    }
    for (int rank = 0; rank < RANKS; rank++) {
        if (mask >> rank & 1) {
            pthread_join(threads[rank], NULL);
        }
    }
    assert_int_equal(fake_seen.groups_alive, 0);
    assert_int_equal(fake_seen.regions_alive, 0);
}

static void fill(struct part *parts, mok_hub *hub)
{
    memset(parts, 0, RANKS * sizeof *parts);
    for (int rank = 0; rank < RANKS; rank++) {
        parts[rank].config = shared_config(hub, rank);
    }
}

static void all_work(mok_hub *hub)
{
    struct part parts[RANKS];
    fill(parts, hub);
    run_ranks(parts, 7);
    for (int rank = 0; rank < RANKS; rank++) {
        if (parts[rank].created != MOK_OK || parts[rank].destroyed != MOK_OK) {
            fail_msg("rank %d: %s", rank, parts[rank].sentence);
        }
    }
}

static void all_fail(const struct part *parts, mok_status status, const char *first, const char *second)
{
    for (int rank = 0; rank < RANKS; rank++) {
        const char *text = parts[rank].sentence;
        if (parts[rank].created != status || strstr(text, first) == NULL || strstr(text, second) == NULL) {
            fail_msg("rank %d: %s, '%s' should be %s and say '%s' and '%s'", rank, mok_status_name(parts[rank].created), text,
                     mok_status_name(status), first, second);
        }
        assert_null(strstr(text, ": rank")); /* one beginning, also where it hands on another rank's words */
        assert_null(parts[rank].group);
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

/* ---- fields that must be the same ---------------------------------------------------------------------------------------- */

#define FIELD_ROWS(ROW)                                                                        \
    ROW(experts, config->shape.num_experts = 8, "config.shape.num_experts is 7", "8")           \
    ROW(top_k, config->shape.top_k = 3, "config.shape.top_k is 2", "3")                         \
    ROW(hidden, config->shape.hidden = 32, "config.shape.hidden is 24", "32")                   \
    ROW(inter, config->shape.intermediate = 24, "config.shape.intermediate is 16", "24")        \
    ROW(shared, config->shape.shared_intermediate = 0, "config.shape.shared_intermediate is 8", "0") \
    ROW(tokens, config->shape.max_tokens = 101, "config.shape.max_tokens is 100", "101")        \
    ROW(saved, config->num_saved = 3, "config.num_saved is 2", "3")                             \
    ROW(keep_rows, config->keep_rows = 384, "config.keep_rows comes to 256 rows", "384 rows")    \
    ROW(keep_none, config->keep_rows = 127, "config.keep_rows comes to 256 rows", "0 rows")      \
    ROW(keep_all, config->keep_rows = MOK_KEEP_ALL, "config.keep_rows comes to 256 rows", "896 rows") \
    ROW(path, config->path = MOK_PATH_STAGED, "config.path comes to fused", "staged")

#define FIELD_SPOIL(id, action, first, second) static void spoil_##id(mok_group_config *config) { action; }
FIELD_ROWS(FIELD_SPOIL)
#define FIELD_ROW(id, action, first, second) {spoil_##id, first, second},
static const struct {
    void (*spoil)(mok_group_config *config);
    const char *first, *other;
} field_rows[] = {FIELD_ROWS(FIELD_ROW)};

static void test_fields(void **state)
{
    for (size_t idx = 0; idx < sizeof field_rows / sizeof field_rows[0]; idx++) {
        struct part parts[RANKS];
        char second[64];
        fill(parts, *state);
        field_rows[idx].spoil(&parts[ODD].config);
        run_ranks(parts, 7);
        snprintf(second, sizeof second, " on rank 0 and %s on rank %d: must be the same", field_rows[idx].other, ODD);
        all_fail(parts, MOK_ERR_DISAGREE, field_rows[idx].first, second);
        all_work(*state);
    }
}

/* What may differ: how fast a rank works, and how long it waits. */
static void test_free_fields(void **state)
{
    struct part parts[RANKS];
    fill(parts, *state);
    parts[ODD].config.minibatch_rows = 256;
    parts[ODD].config.ring_minibatches = 2;
    parts[ODD].config.comm_workers = 3;
    parts[ODD].config.compute_workers = 4;
    parts[ODD].config.local_timeout_ms = 77;
    parts[ODD].config.keep_rows = 256 + 127; /* 256 after rounding down */
    run_ranks(parts, 7);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(parts[rank].created, MOK_OK);
        assert_int_equal(parts[rank].destroyed, MOK_OK);
    }
}

/* ---- one rank that cannot ------------------------------------------------------------------------------------------------ */

static void test_no_device(void **state)
{
    struct part parts[RANKS];
    fill(parts, *state);
    fake_wish.probe_fails_on = ODD;
    run_ranks(parts, 7);
    fake_wish.probe_fails_on = -1;
    all_fail(parts, MOK_ERR_NO_DEVICE, "the fake has no device on rank 2", "");
    assert_non_null(strstr(parts[0].sentence, "rank 2 could not create the group"));
    assert_null(strstr(parts[ODD].sentence, "could not create")); /* its own sentence, as it was */
    all_work(*state);
}

static void test_no_memory(void **state)
{
    struct part parts[RANKS];
    fill(parts, *state);
    fake_wish.memory_fails_on = 0;
    run_ranks(parts, 7);
    fake_wish.memory_fails_on = -1;
    all_fail(parts, MOK_ERR_MEMORY, "the fake has no memory", "rank 0");
    all_work(*state);
}

static void test_no_create(void **state)
{
    for (int rank = 0; rank < RANKS; rank++) {
        struct part parts[RANKS];
        fill(parts, *state);
        fake_wish.create_fails_on = rank;
        run_ranks(parts, 7);
        fake_wish.create_fails_on = -1;
        char words[64];
        snprintf(words, sizeof words, "the fake cannot create on rank %d", rank);
        all_fail(parts, MOK_ERR_MEMORY, words, "");
        all_work(*state);
    }
}

/* A rank that never comes: the others wait as long as they said, and name it. */
static void test_missing_rank(void **state)
{
    struct part parts[RANKS];
    fill(parts, *state);
    for (int rank = 0; rank < RANKS; rank++) {
        parts[rank].config.peer_timeout_ms = 150;
    }
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    run_ranks(parts, 3); /* not rank 2 */
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    assert_true(seconds > 0.1 && seconds < 10);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(parts[rank].created, MOK_ERR_TIMEOUT);
        assert_non_null(strstr(parts[rank].sentence, "rank 2"));
    }
    all_work(*state);
}

/* Many groups, one after another: what the arguments break and what the machine breaks leave no trace on the hub. */
static void test_again_and_again(void **state)
{
    for (int turn = 0; turn < 20; turn++) {
        struct part parts[RANKS];
        fill(parts, *state);
        parts[turn % RANKS].config.shape.hidden = 48;
        fake_wish.create_fails_on = turn % 2 ? turn % RANKS : -1;
        run_ranks(parts, 7);
        fake_wish.create_fails_on = -1;
        for (int rank = 0; rank < RANKS; rank++) {
            assert_int_equal(parts[rank].created, MOK_ERR_DISAGREE);
        }
        all_work(*state);
    }
}

int main(void)
{
#define ON_HUB(test) cmocka_unit_test_setup_teardown(test, make_hub, drop_hub)
    const struct CMUnitTest tests[] = {
        ON_HUB(test_fields),    ON_HUB(test_free_fields),  ON_HUB(test_no_device),       ON_HUB(test_no_memory),
        ON_HUB(test_no_create), ON_HUB(test_missing_rank), ON_HUB(test_again_and_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
