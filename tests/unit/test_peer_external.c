/*
 * Ranks as processes on memory that the caller mapped: exchange, limits, a rank that never comes, one that is killed, one that comes late;
 * and ranks as threads on such memory.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "peer/notice.h"
#include "test_peer_use.h"

enum { ROOM = 72 * 1024 };

/* What a rank found, in memory that the parent sees. */
struct finding {
    int32_t status;
    int32_t num_wrong;
    int64_t took_ms;
    char error[400];
};

struct scene {
    char *memory; /* num_ranks regions, then the findings */
    void *bases[MAX_RANKS];
    struct finding *findings;
    int32_t num_ranks;
    int64_t timeout_ms;
    mok_external external;
};

/* What a rank does. */
enum act { ACT_USE, ACT_STAY_AWAY, ACT_JOIN_AND_LEAVE, ACT_JOIN_AND_DIE, ACT_COME_LATE, ACT_CLAIM_RANK_0 };

static void open_scene(struct scene *scene, int32_t num_ranks, int64_t timeout_ms)
{
    size_t findings_at = (size_t)num_ranks * ROOM;
    memset(scene, 0, sizeof *scene);
    scene->memory = mmap(NULL, findings_at + MAX_RANKS * sizeof(struct finding), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(scene->memory != MAP_FAILED);
    for (int32_t r = 0; r < num_ranks; r++) {
        scene->bases[r] = scene->memory + (size_t)r * ROOM;
    }
    scene->findings = (struct finding *)(scene->memory + findings_at);
    scene->num_ranks = num_ranks;
    scene->timeout_ms = timeout_ms;
    scene->external = (mok_external){.struct_size = sizeof(mok_external), .bases = scene->bases, .bytes = ROOM};
}

static void close_scene(struct scene *scene)
{
    munmap(scene->memory, (size_t)scene->num_ranks * ROOM + MAX_RANKS * sizeof(struct finding));
}

static mok_group_config config_of(const struct scene *scene, int32_t rank)
{
    return (mok_group_config){.backend = MOK_BACKEND_CPU,
                              .rank = rank,
                              .num_ranks = scene->num_ranks,
                              .external = &scene->external,
                              .peer_timeout_ms = scene->timeout_ms};
}

static void play(const struct scene *scene, int32_t rank, enum act act)
{
    struct finding *finding = &scene->findings[rank];
    mok_group_config config = config_of(scene, rank);
    struct mok_peer *peer = NULL;
    int num_wrong = 0;
    if (act == ACT_STAY_AWAY) {
        return;
    }
    if (act == ACT_CLAIM_RANK_0) {
        config.rank = 0;
        nap(100); /* the others wait by then */
    }
    if (act == ACT_COME_LATE) {
        nap((int32_t)scene->timeout_ms * 2);
    }
    int64_t begin = mok_peer_clock_ns();
    mok_status status = mok_peer_external.join(&config, &peer);
    if (act == ACT_JOIN_AND_DIE) {
        raise(SIGKILL);
    }
    if (status == MOK_OK) {
        if (act != ACT_JOIN_AND_LEAVE) {
            status = use_peer(peer, REGION_BYTES, &host_memory, &num_wrong);
        }
        peer->ops->leave(peer);
    }
    finding->took_ms = (mok_peer_clock_ns() - begin) / 1000000;
    finding->status = (int32_t)status;
    finding->num_wrong = num_wrong;
    snprintf(finding->error, sizeof finding->error, "%s", mok_last_error());
}

/* One process per rank. */
static void play_all(const struct scene *scene, const enum act *acts)
{
    pid_t children[MAX_RANKS];
    memset(scene->findings, 0xff, MAX_RANKS * sizeof(struct finding)); /* a rank that reports nothing has no MOK_OK */
    for (int32_t r = 0; r < scene->num_ranks; r++) {
        children[r] = fork();
        assert_true(children[r] >= 0);
        if (children[r] == 0) {
            alarm(120); /* a child never outlives a hanging test */
            play(scene, r, acts[r]);
            _exit(0);
        }
    }
    for (int32_t r = 0; r < scene->num_ranks; r++) {
        int how = 0;
        assert_int_equal(waitpid(children[r], &how, 0), children[r]);
        int was_killed = WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL;
        assert_int_equal(was_killed, acts[r] == ACT_JOIN_AND_DIE);
        assert_true(was_killed || (WIFEXITED(how) && WEXITSTATUS(how) == 0));
    }
}

static void assert_good(const struct scene *scene, int32_t rank)
{
    const struct finding *finding = &scene->findings[rank];
    if (finding->status != MOK_OK || finding->num_wrong != 0) {
        fail_msg("rank %d: status %d, %d wrong values: %s", rank, finding->status, finding->num_wrong, finding->error);
    }
}

static void test_every_number_of_processes(void **state)
{
    (void)state;
    const enum act acts[MAX_RANKS] = {ACT_USE};
    for (int32_t num_ranks = 1; num_ranks <= MAX_RANKS; num_ranks++) {
        struct scene scene;
        open_scene(&scene, num_ranks, 20000);
        for (int round = 0; round < 2; round++) { /* create, destroy, zero the boards, create */
            for (int32_t r = 0; r < num_ranks; r++) {
                memset(scene.bases[r], round, ROOM); /* the second time a region is dirty behind its boards */
                memset(scene.bases[r], 0, (size_t)num_ranks * MOK_BOARD_BYTES);
            }
            play_all(&scene, acts);
            for (int32_t r = 0; r < num_ranks; r++) {
                assert_good(&scene, r);
            }
        }
        close_scene(&scene);
    }
}

struct thread_role {
    const struct scene *scene;
    int32_t rank;
};

static void *play_thread(void *arg)
{
    const struct thread_role *role = arg;
    play(role->scene, role->rank, ACT_USE);
    return NULL;
}

static void test_threads_on_external_memory(void **state)
{
    (void)state;
    struct scene scene;
    pthread_t threads[5];
    struct thread_role roles[5];
    open_scene(&scene, 5, 20000);
    for (int32_t r = 0; r < 5; r++) {
        roles[r] = (struct thread_role){&scene, r};
        assert_int_equal(pthread_create(&threads[r], NULL, play_thread, &roles[r]), 0);
    }
    for (int32_t r = 0; r < 5; r++) {
        assert_int_equal(pthread_join(threads[r], NULL), 0);
        assert_good(&scene, r);
    }
    close_scene(&scene);
}

static void test_rank_that_never_comes_is_named_in_time(void **state)
{
    (void)state;
    const enum act acts[4] = {ACT_USE, ACT_STAY_AWAY, ACT_USE, ACT_STAY_AWAY};
    struct scene scene;
    open_scene(&scene, 4, 300);
    play_all(&scene, acts);
    for (int32_t r = 0; r < 4; r += 2) {
        assert_int_equal(scene.findings[r].status, MOK_ERR_TIMEOUT);
        assert_in_range(scene.findings[r].took_ms, 290, 5000);
    }
    /* Whoever's limit is over first names them; the other may see that one leave, and then says who gave up. */
    int is_named = strstr(scene.findings[0].error, "ranks 1, 3 of 4") != NULL || strstr(scene.findings[2].error, "ranks 1, 3 of 4") != NULL;
    assert_true(is_named);
    close_scene(&scene);
}

static void test_rank_that_comes_late_fails_too(void **state)
{
    (void)state;
    const enum act acts[3] = {ACT_USE, ACT_COME_LATE, ACT_USE};
    struct scene scene;
    open_scene(&scene, 3, 500);
    play_all(&scene, acts);
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(scene.findings[r].status, MOK_ERR_TIMEOUT);
    }
    assert_non_null(strstr(scene.findings[1].error, "rank 1 came too late"));
    assert_in_range(scene.findings[1].took_ms, 0, 400); /* it is told, and does not wait for its own limit */
    close_scene(&scene);
}

static void test_rank_that_leaves_ends_the_wait_of_others(void **state)
{
    (void)state;
    const enum act acts[3] = {ACT_USE, ACT_JOIN_AND_LEAVE, ACT_USE};
    struct scene scene;
    open_scene(&scene, 3, 60000);
    play_all(&scene, acts);
    for (int32_t r = 0; r < 3; r += 2) {
        assert_int_equal(scene.findings[r].status, MOK_ERR_ABORTED);
        assert_in_range(scene.findings[r].took_ms, 0, 10000);
    }
    assert_non_null(strstr(scene.findings[0].error, "rank 0 gave up, because rank 1 of 3 left"));
    close_scene(&scene);
}

static void test_rank_claimed_twice_ends_the_wait_of_all(void **state)
{
    (void)state;
    const enum act acts[3] = {ACT_USE, ACT_USE, ACT_CLAIM_RANK_0};
    struct scene scene;
    open_scene(&scene, 3, 60000);
    play_all(&scene, acts);
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(scene.findings[r].status, MOK_ERR_ARGUMENT);
        assert_in_range(scene.findings[r].took_ms, 0, 10000);
        assert_non_null(strstr(scene.findings[r].error, "rank 0 of 3 is claimed by two callers"));
        assert_null(strstr(scene.findings[r].error, ": rank"));
    }
    close_scene(&scene);
}

/* Regions that another group has used and left are no second claim: whoever joins there is refused, and those who wait are not disturbed. */
static void test_regions_of_a_group_that_left_are_not_zero(void **state)
{
    (void)state;
    const enum act acts[2] = {ACT_USE, ACT_USE};
    struct scene scene;
    open_scene(&scene, 2, 20000);
    play_all(&scene, acts);
    assert_good(&scene, 0);
    assert_good(&scene, 1);
    play_all(&scene, acts);
    for (int32_t r = 0; r < 2; r++) {
        char text[64];
        snprintf(text, sizeof text, "the region of rank %d is not zero", r);
        assert_int_equal(scene.findings[r].status, MOK_ERR_ARGUMENT);
        assert_non_null(strstr(scene.findings[r].error, text));
    }
    close_scene(&scene);
}

static void test_killed_rank_is_named_in_time(void **state)
{
    (void)state;
    const enum act acts[3] = {ACT_USE, ACT_USE, ACT_JOIN_AND_DIE};
    struct scene scene;
    open_scene(&scene, 3, 400);
    play_all(&scene, acts);
    int is_named = 0;
    for (int32_t r = 0; r < 2; r++) {
        assert_int_equal(scene.findings[r].status, MOK_ERR_TIMEOUT);
        assert_in_range(scene.findings[r].took_ms, 390, 5000);
        is_named |= strstr(scene.findings[r].error, "waited 400 ms (peer_timeout_ms) for rank 2 of 3") != NULL;
    }
    assert_true(is_named);
    close_scene(&scene);
}

static void assert_refused(const struct scene *scene, mok_status expected, const char *text)
{
    struct mok_peer *peer = NULL;
    mok_group_config config = config_of(scene, 1);
    int64_t begin = mok_peer_clock_ns();
    assert_int_equal(mok_peer_external.join(&config, &peer), expected);
    if (strstr(mok_last_error(), text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", mok_last_error(), text);
    }
    assert_null(peer);
    assert_in_range((mok_peer_clock_ns() - begin) / 1000000, 0, 1000); /* without waiting for the others */
}

static void test_regions_that_are_not_zero_are_refused(void **state)
{
    (void)state;
    struct scene scene;
    open_scene(&scene, 2, 5000);
    memset(scene.bases[1], 0x7f, ROOM);
    assert_refused(&scene, MOK_ERR_ARGUMENT, "region of rank 1 is not zero");
    memset(scene.bases[1], 0, ROOM);
    memset(scene.bases[0], 0xff, ROOM);
    assert_refused(&scene, MOK_ERR_ARGUMENT, "region of rank 0 is not zero");
    close_scene(&scene);
}

static void test_map_refuses_what_does_not_fit(void **state)
{
    (void)state;
    struct scene scene;
    open_scene(&scene, 1, 5000);
    mok_group_config config = config_of(&scene, 0);
    struct mok_peer *peer = NULL;
    assert_int_equal(mok_peer_external.join(&config, &peer), MOK_OK);
    assert_int_equal(peer->ops->map(peer, ROOM + 1, &host_memory), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "has 73728 bytes, 73729 are needed"));
    struct mok_peer_memory on_device = host_memory;
    on_device.device = 0;
    assert_int_equal(peer->ops->map(peer, ROOM, &on_device), MOK_ERR_UNSUPPORTED);
    assert_non_null(strstr(mok_last_error(), "host memory"));
    peer->ops->leave(peer);
    config.backend = MOK_BACKEND_CUDA; /* with a GPU: host memory will not do; without: there is none */
    assert_int_not_equal(mok_peer_external.join(&config, &peer), MOK_OK);
    close_scene(&scene);
}

/* ---- boards that the host cannot load from ------------------------------------------------------------------------------------ */

enum { ACCESS_RANKS = 3, ACCESS_ROUNDS = 20 };

static pthread_mutex_t access_lock = PTHREAD_MUTEX_INITIALIZER;

struct access_scene {
    char boards[ACCESS_RANKS][MOK_NOTICE_BYTES];
    char *addresses[ACCESS_RANKS];
    int num_calls_left; /* -1 = any number; 0 = the board cannot be reached */
    int num_wrong[ACCESS_RANKS];
    mok_status status[ACCESS_RANKS];
};

static mok_status count_call(struct access_scene *scene)
{
    if (scene->num_calls_left == 0) {
        return mok_base_fail(MOK_ERR_DEVICE, "the board cannot be reached");
    }
    scene->num_calls_left -= scene->num_calls_left > 0;
    return MOK_OK;
}

static mok_status locked_read(void *context, void *to, const void *from, size_t bytes)
{
    pthread_mutex_lock(&access_lock);
    mok_status status = count_call(context);
    memcpy(to, from, status == MOK_OK ? bytes : 0);
    pthread_mutex_unlock(&access_lock);
    return status;
}

static mok_status locked_swap(void *context, void *word, uint64_t expected, uint64_t desired, uint64_t *found_out)
{
    pthread_mutex_lock(&access_lock);
    mok_status status = count_call(context);
    memcpy(found_out, word, status == MOK_OK ? sizeof *found_out : 0);
    if (status == MOK_OK && *found_out == expected) {
        memcpy(word, &desired, sizeof desired);
    }
    pthread_mutex_unlock(&access_lock);
    return status;
}

struct access_rank {
    struct access_scene *scene;
    int32_t rank;
};

static void *exchange_through_table(void *argument)
{
    struct access_rank *self = argument;
    struct access_scene *scene = self->scene;
    const struct mok_notice_access table = {locked_read, locked_read, locked_swap, scene};
    struct mok_notice notice = {.boards = scene->addresses, .access = &table, .rank = self->rank, .num_ranks = ACCESS_RANKS, .timeout_ms = 5000};
    mok_status status = mok_notice_open(&notice);
    for (int32_t round = 0; round < ACCESS_ROUNDS && status == MOK_OK; round++) {
        int32_t mine = 100 * round + self->rank, all[ACCESS_RANKS];
        status = mok_notice_exchange(&notice, &mine, sizeof mine, all);
        for (int32_t r = 0; r < ACCESS_RANKS && status == MOK_OK; r++) {
            scene->num_wrong[self->rank] += all[r] != 100 * round + r;
        }
    }
    scene->status[self->rank] = status;
    mok_notice_leave(&notice);
    return NULL;
}

static void run_access_scene(struct access_scene *scene, int num_calls)
{
    pthread_t threads[ACCESS_RANKS];
    struct access_rank ranks[ACCESS_RANKS];
    memset(scene, 0, sizeof *scene);
    scene->num_calls_left = num_calls;
    for (int32_t r = 0; r < ACCESS_RANKS; r++) {
        scene->addresses[r] = scene->boards[r];
    }
    for (int32_t r = 0; r < ACCESS_RANKS; r++) {
        ranks[r] = (struct access_rank){scene, r};
        assert_int_equal(pthread_create(&threads[r], NULL, exchange_through_table, &ranks[r]), 0);
    }
    for (int32_t r = 0; r < ACCESS_RANKS; r++) {
        pthread_join(threads[r], NULL);
    }
}

static void test_boards_behind_a_table(void **state)
{
    static struct access_scene scene;
    (void)state;
    run_access_scene(&scene, -1);
    for (int32_t r = 0; r < ACCESS_RANKS; r++) {
        assert_int_equal(scene.status[r], MOK_OK);
        assert_int_equal(scene.num_wrong[r], 0);
    }
    run_access_scene(&scene, 200); /* then the boards are out of reach, for all: each says so, and nobody waits for the limit */
    for (int32_t r = 0; r < ACCESS_RANKS; r++) {
        assert_int_equal(scene.status[r], MOK_ERR_DEVICE);
        assert_int_equal(scene.num_wrong[r], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boards_behind_a_table),
        cmocka_unit_test(test_every_number_of_processes),
        cmocka_unit_test(test_threads_on_external_memory),
        cmocka_unit_test(test_rank_that_never_comes_is_named_in_time),
        cmocka_unit_test(test_rank_that_comes_late_fails_too),
        cmocka_unit_test(test_rank_that_leaves_ends_the_wait_of_others),
        cmocka_unit_test(test_rank_claimed_twice_ends_the_wait_of_all),
        cmocka_unit_test(test_regions_of_a_group_that_left_are_not_zero),
        cmocka_unit_test(test_killed_rank_is_named_in_time),
        cmocka_unit_test(test_regions_that_are_not_zero_are_refused),
        cmocka_unit_test(test_map_refuses_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
