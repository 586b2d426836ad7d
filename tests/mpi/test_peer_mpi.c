/*
 * Ranks as MPI processes. Run under mpirun; every rank runs every test, in the same order. Without mpirun it is a group of one.
 *
 * The tests of a rank that does not come are last: they leave work in MPI that only MPI_Finalize ends.
 */
#include <mpi.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "test_peer_use.h"

static int32_t world_rank;
static int32_t num_ranks;

static mok_group_config config_of(const MPI_Comm *comm, int64_t timeout_ms)
{
    return (mok_group_config){
        .backend = MOK_BACKEND_CPU, .rank = world_rank, .num_ranks = num_ranks, .mpi_comm = comm, .peer_timeout_ms = timeout_ms};
}

static struct mok_peer *join_or_fail(const MPI_Comm *comm, int64_t timeout_ms)
{
    mok_group_config config = config_of(comm, timeout_ms);
    struct mok_peer *peer = NULL;
    mok_status status = mok_peer_mpi.join(&config, &peer);
    if (status != MOK_OK) {
        fail_msg("rank %d: %s: %s", world_rank, mok_status_name(status), mok_last_error());
    }
    return peer;
}

static void test_use_again_and_again(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        struct mok_peer *peer = join_or_fail(NULL, 60000);
        int num_wrong = 0;
        assert_int_equal(use_peer(peer, REGION_BYTES + (size_t)round, &host_memory, &num_wrong), MOK_OK);
        peer->ops->leave(peer);
        assert_int_equal(num_wrong, 0);
        assert_int_equal(atomic_load(&num_regions), 0); /* the regions are MPI's, not the backend's */
    }
}

static void test_two_groups_side_by_side(void **state)
{
    (void)state;
    struct mok_peer *first = join_or_fail(NULL, 60000);
    struct mok_peer *second = join_or_fail(NULL, 60000);
    int num_wrong = 0;
    assert_int_equal(use_peer(second, REGION_BYTES, &host_memory, &num_wrong), MOK_OK);
    assert_int_equal(use_peer(first, REGION_BYTES, &host_memory, &num_wrong), MOK_OK);
    first->ops->leave(first);
    second->ops->leave(second);
    assert_int_equal(num_wrong, 0);
}

/* A communicator whose ranks are numbered the other way round. */
static void test_own_communicator(void **state)
{
    (void)state;
    MPI_Comm reversed = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &reversed);
    mok_group_config config = config_of(&reversed, 60000);
    struct mok_peer *peer = NULL;
    int num_wrong = 0;
    config.rank = num_ranks - 1 - world_rank;
    assert_int_equal(mok_peer_mpi.join(&config, &peer), MOK_OK);
    assert_int_equal(use_peer(peer, REGION_BYTES, &host_memory, &num_wrong), MOK_OK);
    peer->ops->leave(peer);
    assert_int_equal(num_wrong, 0);
    MPI_Comm_free(&reversed);
}

static void assert_refused(const mok_group_config *config, const char *text)
{
    struct mok_peer *peer = NULL;
    assert_int_equal(mok_peer_mpi.join(config, &peer), MOK_ERR_ARGUMENT);
    if (strstr(mok_last_error(), text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", mok_last_error(), text);
    }
    assert_null(peer);
}

static void test_bad_arguments_are_refused_by_name(void **state)
{
    (void)state;
    mok_group_config config = config_of(NULL, 1000);
    config.num_ranks = num_ranks + 1;
    assert_refused(&config, "must be the number of processes of the communicator, ");
    config = config_of(NULL, 1000);
    config.rank = world_rank + 1;
    assert_refused(&config, "the rank of this process in the communicator");
    MPI_Comm none = MPI_COMM_NULL;
    config = config_of(&none, 1000);
    assert_refused(&config, "MPI_COMM_NULL");
}

/* Every process takes itself for rank 0, as a config says that nobody has filled: all hear of it, and nobody waits. */
static void test_rank_claimed_by_all_is_told_to_all(void **state)
{
    (void)state;
    mok_group_config config = config_of(NULL, 60000);
    int64_t begin = mok_peer_clock_ns();
    config.rank = 0;
    assert_refused(&config, world_rank == 0 ? "process 1 of the communicator has rank 0: must be 1" : "config.rank is 0: must be ");
    assert_in_range((mok_peer_clock_ns() - begin) / 1000000, 0, 20000);
    test_use_again_and_again(NULL);
}

static void *join_in_thread(void *arg)
{
    struct mok_peer *peer = NULL;
    mok_group_config config = config_of(NULL, 1000);
    *(mok_status *)arg = mok_peer_mpi.join(&config, &peer);
    return NULL;
}

static void test_other_thread_is_refused_when_funneled(void **state)
{
    (void)state;
    pthread_t thread;
    mok_status status = MOK_OK;
    assert_int_equal(pthread_create(&thread, NULL, join_in_thread, &status), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(status, MOK_ERR_ARGUMENT);
}

static void test_device_memory_and_other_sizes_are_refused(void **state)
{
    (void)state;
    struct mok_peer *peer = join_or_fail(NULL, 60000);
    struct mok_peer_memory on_device = host_memory;
    on_device.device = world_rank == num_ranks - 1 ? 3 : -1;
    assert_int_equal(peer->ops->map(peer, REGION_BYTES, &on_device), MOK_ERR_UNSUPPORTED);
    assert_non_null(strstr(mok_last_error(), "device 3"));
    if (num_ranks > 1) {
        assert_int_equal(peer->ops->map(peer, REGION_BYTES + (size_t)(world_rank == 0), &host_memory), MOK_ERR_DISAGREE);
    }
    peer->ops->leave(peer);
}

/* More than any machine has: all ranks fail, none waits, and the next group works. */
static void test_too_much_memory_is_refused(void **state)
{
    (void)state;
    struct mok_peer *peer = join_or_fail(NULL, 60000);
    assert_int_equal(peer->ops->map(peer, (size_t)1 << 46, &host_memory), MOK_ERR_MEMORY);
    peer->ops->leave(peer);
    test_use_again_and_again(NULL);
}

static void test_rank_that_leaves_ends_the_wait_of_others(void **state)
{
    (void)state;
    struct mok_peer *peer = join_or_fail(NULL, 60000);
    int64_t begin = mok_peer_clock_ns();
    if (world_rank != 1) {
        assert_int_equal(peer->ops->map(peer, REGION_BYTES, &host_memory), MOK_ERR_ABORTED);
        assert_non_null(strstr(mok_last_error(), "rank 1 of"));
    }
    peer->ops->leave(peer);
    assert_in_range((mok_peer_clock_ns() - begin) / 1000000, 0, 20000);
    test_use_again_and_again(NULL); /* MPI is as good as before */
}

/* A rank that goes, kept or not, takes nothing from those that stay. */
static void test_region_outlives_its_owner(void **state)
{
    (void)state;
    struct mok_peer *peer = join_or_fail(NULL, 60000);
    assert_int_equal(peer->ops->map(peer, REGION_BYTES, &host_memory), MOK_OK);
    if (world_rank > 0 || num_ranks == 1) {
        peer->ops->unmap(peer, world_rank == 1);
        peer->ops->leave(peer);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0 && num_ranks > 1) {
        for (int32_t r = 0; r < num_ranks; r++) {
            peer->base[r][REGION_BYTES - 1] = 1;
        }
        peer->ops->unmap(peer, 1);
        peer->ops->leave(peer);
    }
}

/* Every name that this rank has made or opened. */
static struct {
    char name[64];
} opened[2048];
static int num_opened;

int __real_shm_open(const char *name, int flags, mode_t mode);
int __wrap_shm_open(const char *name, int flags, mode_t mode);
int __wrap_shm_open(const char *name, int flags, mode_t mode)
{
    assert_true(num_opened < (int)(sizeof opened / sizeof opened[0]) && strlen(name) < sizeof opened[0].name);
    strcpy(opened[num_opened++].name, name);
    return __real_shm_open(name, flags, mode);
}

/* How many of them are still there. */
static int count_names(void)
{
    int num_names = 0;
    for (int idx = 0; idx < num_opened; idx++) {
        char path[96];
        struct stat about;
        snprintf(path, sizeof path, "/dev/shm%s", opened[idx].name);
        num_names += stat(path, &about) == 0;
    }
    return num_names;
}

/* Shared objects have no name once they are mapped, and none after a failure. */
static void test_no_names_are_left(void **state)
{
    (void)state;
    assert_true(num_opened > 0);
    MPI_Barrier(MPI_COMM_WORLD); /* every rank has unlinked what it will */
    assert_int_equal(count_names(), 0);
}

static int is_gone; /* this rank unlinks no names any more */

int __real_shm_unlink(const char *name);
int __wrap_shm_unlink(const char *name);
int __wrap_shm_unlink(const char *name) { return is_gone ? 0 : __real_shm_unlink(name); }

/* A rank that is killed when all have opened its names, and before it unlinks them: the others do. */
static void test_names_of_a_killed_rank_go(void **state)
{
    for (int32_t rank = 0; rank < num_ranks; rank += num_ranks - 1) {
        is_gone = world_rank == rank;
        test_use_again_and_again(NULL);
        test_no_names_are_left(state);
    }
    is_gone = 0;
}

/* The same through the public calls: a group of processes builds a schedule, and every rank counts the rows of all. */
static void test_group_of_processes(void **state)
{
    (void)state;
    enum { T = 24, K = 2, E = 8 };
    int32_t ids[T * K];
    int64_t rows[E];
    int64_t padded = 0;
    mok_group *group = NULL;
    mok_schedule *schedule = NULL;
    mok_group_config config;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CPU;
    config.peer = MOK_PEER_MPI;
    config.rank = world_rank;
    config.num_ranks = num_ranks;
    config.comm_workers = 1;
    config.compute_workers = 1;
    config.peer_timeout_ms = 60000;
    config.shape = (mok_shape){.num_experts = E, .top_k = K, .hidden = 64, .intermediate = 32, .max_tokens = T};
    for (int32_t i = 0; i < T * K; i++) {
        ids[i] = (i + world_rank) % E;
    }
    mok_status status = mok_group_create(&config, &group);
    if (status != MOK_OK) {
        fail_msg("rank %d: %s: %s", world_rank, mok_status_name(status), mok_last_error());
    }
    assert_int_equal(mok_schedule_create(group, &schedule), MOK_OK);
    assert_int_equal(mok_schedule_build(schedule, ids, T, NULL), MOK_OK);
    assert_int_equal(mok_schedule_counts(schedule, NULL, rows, &padded), MOK_OK);
    int32_t num_local = (world_rank + 1) * E / num_ranks - world_rank * E / num_ranks;
    for (int32_t e = 0; e < num_local; e++) {
        assert_int_equal(rows[e], num_ranks * T * K / E); /* every rank sends the same number to each expert */
    }
    assert_int_equal(padded, num_local * 128);
    mok_schedule_destroy(schedule);
    assert_int_equal(mok_group_destroy(group), MOK_OK);
}

static void test_rank_missing_in_map_is_named_in_time(void **state)
{
    (void)state;
    struct mok_peer *peer = join_or_fail(NULL, 2000);
    int64_t begin = mok_peer_clock_ns();
    if (world_rank == num_ranks - 1) {
        nap(4000); /* and comes too late */
    }
    assert_int_equal(peer->ops->map(peer, REGION_BYTES, &host_memory), MOK_ERR_TIMEOUT);
    char name[32];
    snprintf(name, sizeof name, world_rank == num_ranks - 1 ? "rank %d came too late" : "for rank %d of", num_ranks - 1);
    if (strstr(mok_last_error(), name) == NULL) {
        fail_msg("rank %d: \"%s\" does not say \"%s\"", world_rank, mok_last_error(), name);
    }
    peer->ops->leave(peer);
    assert_in_range((mok_peer_clock_ns() - begin) / 1000000, 1990, 20000);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Open MPI passes nothing on through other ranks: those that came are heard. */
#ifdef OPEN_MPI
enum { IS_EXACT = 1 };
#else
enum { IS_EXACT = 0 };
#endif

/* One rank comes when the others have given up. They name it, and all can go on with the communicator that they gave. */
static void miss_join(int32_t missing)
{
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    mok_group_config config = config_of(&comm, 400);
    struct mok_peer *peer = NULL;
    int64_t begin = mok_peer_clock_ns();
    if (world_rank != missing) {
        char text[64];
        snprintf(text, sizeof text, IS_EXACT ? "nothing has come from rank %d" : "nothing has come from rank", missing);
        assert_int_equal(mok_peer_mpi.join(&config, &peer), MOK_ERR_TIMEOUT);
        assert_non_null(strstr(mok_last_error(), "waited for its limit, peer_timeout_ms = 400, and not all "));
        const char *said = strstr(mok_last_error(), text);
        if (said == NULL || (IS_EXACT && said[strlen(text)] != '\0')) {
            fail_msg("rank %d: \"%s\" does not end with \"%s\"", world_rank, mok_last_error(), text);
        }
        assert_in_range((mok_peer_clock_ns() - begin) / 1000000, 390, 20000);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == missing) {
        assert_int_equal(mok_peer_mpi.join(&config, &peer), MOK_ERR_TIMEOUT);
    }
    assert_null(peer);
    MPI_Barrier(MPI_COMM_WORLD);
    int32_t sum = 0, mine = 1;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(&mine, &sum, 1, MPI_INT32_T, MPI_SUM, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    assert_int_equal(sum, num_ranks);
    test_use_again_and_again(NULL); /* another communicator is as good as before */
}

static void test_rank_missing_in_join_is_named_in_time(void **state)
{
    (void)state;
    for (int32_t rank = 0; rank < num_ranks; rank += num_ranks - 1) {
        miss_join(rank);
    }
}

/* The report before which this rank stands still, counted from 1; 0 = none. */
static int still_before;

int __real_MPI_Iallgather(const void *mine, int count, MPI_Datatype type, void *all, int all_count, MPI_Datatype all_type, MPI_Comm comm,
                          MPI_Request *request);
int __wrap_MPI_Iallgather(const void *mine, int count, MPI_Datatype type, void *all, int all_count, MPI_Datatype all_type, MPI_Comm comm,
                          MPI_Request *request);

int __wrap_MPI_Iallgather(const void *mine, int count, MPI_Datatype type, void *all, int all_count, MPI_Datatype all_type, MPI_Comm comm,
                          MPI_Request *request)
{
    if (still_before > 0 && --still_before == 0) {
        nap(800);
    }
    return __real_MPI_Iallgather(mine, count, type, all, all_count, all_type, comm, request);
}

/* It has come, and stands still before it has told the name of the boards, or how opening them went. */
static void test_rank_that_stands_still_in_join_is_named(void **state)
{
    (void)state;
    for (int report = 2; report <= 3; report++) {
        for (int32_t still = 0; still < num_ranks; still += num_ranks - 1) {
            mok_group_config config = config_of(NULL, 400);
            struct mok_peer *peer = NULL;
            char text[64];
            snprintf(text, sizeof text, IS_EXACT ? "nothing has come from rank %d" : "nothing has come from rank", still);
            still_before = world_rank == still ? report : 0;
            assert_int_equal(mok_peer_mpi.join(&config, &peer), MOK_ERR_TIMEOUT);
            if (world_rank != still && strstr(mok_last_error(), text) == NULL) {
                fail_msg("rank %d: \"%s\" does not say \"%s\"", world_rank, mok_last_error(), text);
            }
            assert_null(peer);
            MPI_Barrier(MPI_COMM_WORLD);
        }
    }
    test_use_again_and_again(NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_use_again_and_again),
        cmocka_unit_test(test_two_groups_side_by_side),
        cmocka_unit_test(test_own_communicator),
        cmocka_unit_test(test_bad_arguments_are_refused_by_name),
        cmocka_unit_test(test_other_thread_is_refused_when_funneled),
        cmocka_unit_test(test_device_memory_and_other_sizes_are_refused),
        cmocka_unit_test(test_too_much_memory_is_refused),
        cmocka_unit_test(test_region_outlives_its_owner),
        cmocka_unit_test(test_no_names_are_left),
        cmocka_unit_test(test_group_of_processes),
    };
    const struct CMUnitTest tests_of_several[] = { /* what takes a rank that is missing and one that waits for it */
        cmocka_unit_test(test_names_of_a_killed_rank_go),
        cmocka_unit_test(test_rank_claimed_by_all_is_told_to_all),
        cmocka_unit_test(test_rank_that_leaves_ends_the_wait_of_others),
        cmocka_unit_test(test_rank_missing_in_map_is_named_in_time),
        cmocka_unit_test(test_rank_missing_in_join_is_named_in_time),
        cmocka_unit_test(test_rank_that_stands_still_in_join_is_named),
    };
    int level = 0;
    alarm(100); /* a rank never outlives a hanging test */
    mok_group_config config = {.num_ranks = 1, .peer_timeout_ms = 1000};
    struct mok_peer *peer = NULL;
    if (mok_peer_mpi.join(&config, &peer) != MOK_ERR_ARGUMENT || strstr(mok_last_error(), "not initialised") == NULL) {
        fprintf(stderr, "joined without MPI: %s\n", mok_last_error());
        return 1;
    }
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    int num_failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (num_ranks > 1) {
        num_failed += cmocka_run_group_tests(tests_of_several, NULL, NULL);
    }
    MPI_Finalize();
    if (mok_peer_mpi.join(&config, &peer) != MOK_ERR_ARGUMENT || mok_peer_mpi.probe() != MOK_ERR_UNSUPPORTED) {
        fprintf(stderr, "joined after MPI_Finalize\n");
        return 1;
    }
    return num_failed != 0;
}
