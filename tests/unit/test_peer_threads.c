/*
 * Ranks as threads: exchange, mapping, limits, and the hub's state after each kind of failure.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "test_peer_use.h"

static void *alloc_nothing(void *context, size_t bytes)
{
    (void)context;
    (void)bytes;
    return NULL;
}

static const struct mok_peer_memory no_memory = {.alloc = alloc_nothing, .free = free_region, .device = -1};

/* One rank of a test. Threads must not call cmocka's asserts: they record, the main thread asserts. */
struct member {
    pthread_t thread;
    mok_group_config config;
    int32_t num_groups;
    int32_t delay_ms;
    const struct mok_peer_memory *memory;
    int leaves_early; /* joins, then leaves without mapping */
    size_t bytes;
    mok_status status;
    int num_wrong;
    char error[512];
};

static void *run_member(void *arg)
{
    struct member *member = arg;
    nap(member->delay_ms);
    for (int32_t i = 0; i < member->num_groups && member->status == MOK_OK; i++) {
        struct mok_peer *peer = NULL;
        member->status = mok_peer_threads.join(&member->config, &peer);
        if (member->status == MOK_OK) {
            if (!member->leaves_early) {
                member->status = use_peer(peer, member->bytes, member->memory, &member->num_wrong);
            }
            peer->ops->leave(peer);
        }
    }
    snprintf(member->error, sizeof member->error, "%s", mok_last_error());
    return NULL;
}

static void fill_members(struct member *members, int32_t num_ranks, mok_hub *hub, int64_t timeout_ms)
{
    memset(members, 0, (size_t)num_ranks * sizeof *members);
    for (int32_t r = 0; r < num_ranks; r++) {
        members[r].config.rank = r;
        members[r].config.num_ranks = num_ranks;
        members[r].config.hub = hub;
        members[r].config.peer_timeout_ms = timeout_ms;
        members[r].num_groups = 1;
        members[r].memory = &host_memory;
        members[r].bytes = REGION_BYTES;
    }
}

static void start(struct member *member) { assert_int_equal(pthread_create(&member->thread, NULL, run_member, member), 0); }
static void finish(struct member *member) { assert_int_equal(pthread_join(member->thread, NULL), 0); }

static void run_all(struct member *members, int32_t num_ranks)
{
    for (int32_t r = 0; r < num_ranks; r++) {
        start(&members[r]);
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        finish(&members[r]);
    }
}

static void assert_all_good(const struct member *members, int32_t num_ranks)
{
    for (int32_t r = 0; r < num_ranks; r++) {
        if (members[r].status != MOK_OK) {
            fail_msg("rank %d: %s: %s", r, mok_status_name(members[r].status), members[r].error);
        }
        assert_int_equal(members[r].num_wrong, 0);
    }
    assert_int_equal(atomic_load(&num_regions), 0);
}

/* The sentence of a rank begins with that rank, once, and goes on as a sentence: what another rank saw is no second beginning. */
static void assert_named_once(const struct member *member)
{
    char own[32];
    int length = snprintf(own, sizeof own, "rank %d", member->config.rank);
    assert_int_equal(strncmp(member->error, own, (size_t)length), 0);
    if (strncmp(member->error + length, ": rank", 6) == 0) {
        fail_msg("\"%s\" begins twice", member->error);
    }
}

static void test_every_number_of_ranks(void **state)
{
    (void)state;
    struct member members[MAX_RANKS];
    for (int32_t num_ranks = 1; num_ranks <= MAX_RANKS; num_ranks++) {
        mok_hub *hub = NULL;
        assert_int_equal(mok_hub_create(num_ranks, &hub), MOK_OK);
        fill_members(members, num_ranks, hub, 20000);
        for (int32_t r = 0; r < num_ranks; r++) {
            members[r].num_groups = 3; /* create, destroy, create on one hub */
            members[r].delay_ms = (r * 5) % 7;
        }
        run_all(members, num_ranks);
        assert_all_good(members, num_ranks);
        mok_hub_destroy(hub);
    }
}

static void test_one_rank_needs_no_hub(void **state)
{
    (void)state;
    struct member member;
    fill_members(&member, 1, NULL, 1000);
    run_all(&member, 1);
    assert_all_good(&member, 1);
}

static void test_two_hubs_side_by_side(void **state)
{
    (void)state;
    struct member left[3];
    struct member right[4];
    mok_hub *hubs[2] = {NULL, NULL};
    assert_int_equal(mok_hub_create(3, &hubs[0]), MOK_OK);
    assert_int_equal(mok_hub_create(4, &hubs[1]), MOK_OK);
    fill_members(left, 3, hubs[0], 20000);
    fill_members(right, 4, hubs[1], 20000);
    for (int32_t r = 0; r < 3; r++) {
        start(&left[r]);
        start(&right[r]);
    }
    start(&right[3]);
    for (int32_t r = 0; r < 3; r++) {
        finish(&left[r]);
        finish(&right[r]);
    }
    finish(&right[3]);
    assert_all_good(left, 3);
    assert_all_good(right, 4);
    mok_hub_destroy(hubs[0]);
    mok_hub_destroy(hubs[1]);
}

/* Two groups of one hub alive at once: rank 0's n-th group meets rank 1's n-th. */
static void *join_two(void *arg)
{
    struct member *member = arg;
    struct mok_peer *peers[2] = {NULL, NULL};
    int32_t all[2];
    for (int32_t i = 0; i < 2 && member->status == MOK_OK; i++) {
        member->status = mok_peer_threads.join(&member->config, &peers[i]);
    }
    for (int32_t i = 1; i >= 0 && member->status == MOK_OK; i--) { /* used in the other order */
        int32_t mine = i * 10 + member->config.rank;
        member->status = peers[i]->ops->allgather(peers[i], &mine, sizeof mine, all);
        member->num_wrong += all[0] != i * 10 || all[1] != i * 10 + 1;
    }
    for (int32_t i = 0; i < 2; i++) {
        if (peers[i] != NULL) {
            peers[i]->ops->leave(peers[i]);
        }
    }
    return NULL;
}

static void test_groups_side_by_side_match_by_order(void **state)
{
    (void)state;
    struct member members[2];
    mok_hub *hub = NULL;
    assert_int_equal(mok_hub_create(2, &hub), MOK_OK);
    fill_members(members, 2, hub, 20000);
    for (int32_t r = 0; r < 2; r++) {
        assert_int_equal(pthread_create(&members[r].thread, NULL, join_two, &members[r]), 0);
    }
    finish(&members[0]);
    finish(&members[1]);
    assert_all_good(members, 2);
    mok_hub_destroy(hub);
}

static void test_hub_destroyed_early_lives_until_its_peers_leave(void **state)
{
    (void)state;
    struct member member;
    mok_hub *hub = NULL;
    assert_int_equal(mok_hub_create(1, &hub), MOK_OK);
    fill_members(&member, 1, hub, 1000);
    struct mok_peer *peer = NULL;
    assert_int_equal(mok_peer_threads.join(&member.config, &peer), MOK_OK);
    mok_hub_destroy(hub);
    assert_int_equal(use_peer(peer, member.bytes, member.memory, &member.num_wrong), MOK_OK);
    peer->ops->leave(peer);
    assert_int_equal(member.num_wrong, 0);
}

static void test_missing_rank_times_out_and_is_named(void **state)
{
    (void)state;
    struct member members[4];
    mok_hub *hub = NULL;
    assert_int_equal(mok_hub_create(4, &hub), MOK_OK);
    fill_members(members, 4, hub, 200);
    int64_t begin = mok_peer_clock_ns();
    start(&members[0]);
    start(&members[2]);
    finish(&members[0]);
    finish(&members[2]);
    int64_t took_ms = (mok_peer_clock_ns() - begin) / 1000000;
    assert_in_range(took_ms, 199, 5000);
    for (int32_t r = 0; r <= 2; r += 2) {
        assert_int_equal(members[r].status, MOK_ERR_TIMEOUT);
        assert_non_null(strstr(members[r].error, "ms (peer_timeout_ms) for ranks 1, 3 of 4"));
        assert_named_once(&members[r]);
    }
    /* The hub is as good as before: the late ranks meet whoever comes next. */
    fill_members(members, 4, hub, 20000);
    run_all(members, 4);
    assert_all_good(members, 4);
    mok_hub_destroy(hub);
}

static void test_rank_that_leaves_ends_the_wait_of_others(void **state)
{
    (void)state;
    struct member members[3];
    mok_hub *hub = NULL;
    assert_int_equal(mok_hub_create(3, &hub), MOK_OK);
    fill_members(members, 3, hub, 60000);
    members[1].leaves_early = 1;
    int64_t begin = mok_peer_clock_ns();
    run_all(members, 3);
    assert_in_range((mok_peer_clock_ns() - begin) / 1000000, 0, 10000);
    assert_int_equal(members[0].status, MOK_ERR_ABORTED);
    assert_int_equal(members[1].status, MOK_OK);
    assert_int_equal(members[2].status, MOK_ERR_ABORTED);
    assert_non_null(strstr(members[0].error, "rank 1 of 3 left"));
    fill_members(members, 3, hub, 20000);
    run_all(members, 3);
    assert_all_good(members, 3);
    mok_hub_destroy(hub);
}

/* Two callers claim rank 1: nobody is rank 2, and all are told at once. */
static void test_rank_claimed_twice_fails_all(void **state)
{
    (void)state;
    struct member members[3];
    mok_hub *hub = NULL;
    assert_int_equal(mok_hub_create(3, &hub), MOK_OK);
    fill_members(members, 3, hub, 60000);
    members[2].config.rank = 1;
    members[2].delay_ms = 100; /* the others wait by then */
    int64_t begin = mok_peer_clock_ns();
    run_all(members, 3);
    assert_in_range((mok_peer_clock_ns() - begin) / 1000000, 99, 10000);
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(members[r].status, MOK_ERR_ARGUMENT);
        assert_non_null(strstr(members[r].error, "rank 1 of 3 is claimed by two callers"));
        assert_named_once(&members[r]);
    }
    fill_members(members, 3, hub, 20000);
    run_all(members, 3);
    assert_all_good(members, 3);
    mok_hub_destroy(hub);
}

static void test_rank_without_memory_fails_all(void **state)
{
    (void)state;
    struct member members[3];
    mok_hub *hub = NULL;
    assert_int_equal(mok_hub_create(3, &hub), MOK_OK);
    fill_members(members, 3, hub, 20000);
    members[2].memory = &no_memory;
    run_all(members, 3);
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(members[r].status, MOK_ERR_MEMORY);
        assert_non_null(strstr(members[r].error, "rank 2"));
    }
    assert_int_equal(atomic_load(&num_regions), 0);
    mok_hub_destroy(hub);
}

static void test_ranks_that_disagree_on_bytes_fail(void **state)
{
    (void)state;
    struct member members[2];
    mok_hub *hub = NULL;
    assert_int_equal(mok_hub_create(2, &hub), MOK_OK);
    fill_members(members, 2, hub, 20000);
    members[1].bytes = REGION_BYTES + 256;
    run_all(members, 2);
    for (int32_t r = 0; r < 2; r++) {
        assert_int_equal(members[r].status, MOK_ERR_DISAGREE);
        assert_non_null(strstr(members[r].error, "70256"));
    }
    assert_int_equal(atomic_load(&num_regions), 0);
    mok_hub_destroy(hub);
}

static void test_kept_region_is_not_freed(void **state)
{
    (void)state;
    struct member member;
    fill_members(&member, 1, NULL, 1000);
    struct mok_peer *peer = NULL;
    assert_int_equal(mok_peer_threads.join(&member.config, &peer), MOK_OK);
    assert_int_equal(peer->ops->map(peer, 1024, &host_memory), MOK_OK);
    char *region = peer->base[0];
    peer->ops->unmap(peer, 1);
    peer->ops->leave(peer);
    assert_int_equal(atomic_load(&num_regions), 1);
    region[1023] = 1; /* a peer may still touch it */
    free_region(NULL, region);
}

static void test_bad_arguments_are_refused_by_name(void **state)
{
    (void)state;
    mok_hub *hub = NULL;
    assert_int_equal(mok_hub_create(0, &hub), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "num_ranks is 0"));
    assert_int_equal(mok_hub_create(1025, &hub), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "num_ranks is 1025: must be from 1 to 1024"));
    assert_int_equal(mok_hub_create(2, NULL), MOK_ERR_ARGUMENT);
    assert_null(hub);
    mok_hub_destroy(NULL);

    assert_int_equal(mok_hub_create(2, &hub), MOK_OK);
    struct member member;
    struct mok_peer *peer = NULL;
    fill_members(&member, 1, hub, 50);
    assert_int_equal(mok_peer_threads.join(&member.config, &peer), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "num_ranks is 1, but the hub was made for 2"));
    assert_null(peer);
    mok_hub_destroy(hub);
}

static void test_list_of_ranks(void **state)
{
    (void)state;
    uint8_t is_named[40] = {0};
    char text[128];
    is_named[3] = 1;
    mok_peer_list_ranks(is_named, 40, text, sizeof text);
    assert_string_equal(text, "rank 3");
    is_named[39] = 1;
    mok_peer_list_ranks(is_named, 40, text, sizeof text);
    assert_string_equal(text, "ranks 3, 39");
    memset(is_named, 1, sizeof is_named);
    mok_peer_list_ranks(is_named, 40, text, sizeof text);
    assert_string_equal(text, "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 28 more");
    mok_peer_list_ranks(is_named, 40, text, 12); /* cut, but terminated */
    assert_int_equal(strlen(text), 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_number_of_ranks),
        cmocka_unit_test(test_one_rank_needs_no_hub),
        cmocka_unit_test(test_two_hubs_side_by_side),
        cmocka_unit_test(test_groups_side_by_side_match_by_order),
        cmocka_unit_test(test_hub_destroyed_early_lives_until_its_peers_leave),
        cmocka_unit_test(test_missing_rank_times_out_and_is_named),
        cmocka_unit_test(test_rank_that_leaves_ends_the_wait_of_others),
        cmocka_unit_test(test_rank_claimed_twice_fails_all),
        cmocka_unit_test(test_rank_without_memory_fails_all),
        cmocka_unit_test(test_ranks_that_disagree_on_bytes_fail),
        cmocka_unit_test(test_kept_region_is_not_freed),
        cmocka_unit_test(test_bad_arguments_are_refused_by_name),
        cmocka_unit_test(test_list_of_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
