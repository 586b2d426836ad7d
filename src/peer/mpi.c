/*
 * CPU ranks as processes of one host that find each other through MPI: regions are POSIX shared memory, one object per rank.
 *
 * MPI only brings the ranks together, in join, with nonblocking collectives that are given up after peer_timeout; it carries the name of a
 * small shared object with notice boards. Everything after that goes over the boards, where a wait has a limit and a missing rank a name.
 *
 * Not MPI shared windows: MPI_Win_allocate_shared leaves the other ranks waiting for ever when one finds no room (seen with Open MPI
 * 4.1), and MPI_Win_free waits for ranks that may be dead. Here each rank maps and unmaps for itself. Memory that a peer has mapped
 * outlives its owner, so nothing needs to be kept for a peer that did not leave. Names are unlinked as soon as all have mapped, by every rank that
 * knows them: one may be killed in between. Where all are, files stay in /dev/shm.
 *
 * join    report to all three times: that one has come, and which rank the config names (one that is not the communicator's fails on all, who would
 *         else wait for a process that is not coming); the name of the boards, which rank 0 has made; how opening them went. While the first
 *         reports are on their way the communicator is copied: so every rank that comes has begun the same calls on it, also when another does not
 * map     agree on sizes; make the own region, agree; open the others' regions, agree; unlink all names
 *
 * After a time-out inside MPI the copy of the communicator and the buffers of the pending call are left to MPI, which cannot cancel it.
 *
 * Thread rule: MPI is called only inside mok_group_create. With MPI_THREAD_FUNNELED that must be the main thread, with SERIALIZED the
 * caller keeps its own MPI calls out of the way, with MULTIPLE any thread will do.
 */
#include <stddef.h>

#include "peer/peer.h"

#ifdef MOK_HAVE_MPI

#include <mpi.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/status.h"
#include "peer/member.h"
#include "peer/notice.h"

enum { STEM_BYTES = 48, NAME_BYTES = 64 };

/* What a process tells of itself when all meet. */
struct report {
    int32_t is_here; /* 1. MPI may pass reports on from rank to rank: 0 does not prove that a rank is missing */
    int32_t error;   /* errno: 0, or why it has no boards */
    int32_t rank;    /* as its config has it */
    char stem[STEM_BYTES]; /* of rank 0: begins the names of all shared objects of this group; empty = none, because it failed */
};

struct mpi_peer {
    struct mok_peer peer;  /* first, so that a peer is one of these; its rank is the communicator's */
    MPI_Comm comm;         /* own copy, until all have met */
    char stem[STEM_BYTES]; /* as rank 0 has reported it */
    struct report report;
    struct report *reports; /* [num_ranks] as far as they have come */
    char *board_memory;    /* num_ranks boards */
    char **boards;         /* [num_ranks] into board_memory */
    struct mok_notice notice;
};

/* ---- shared memory objects; these return an errno ----------------------------------------------------------------------- */

static int map_object(int file, size_t bytes, char **memory_out)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        return errno;
    }
    *memory_out = memory;
    return 0;
}

/* Zeroed memory under a name that nobody has. */
static int make_object(const char *name, size_t bytes, char **memory_out)
{
    int file = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0) {
        return errno;
    }
    int error = posix_fallocate(file, 0, (off_t)bytes); /* pages exist from now on: no fault on a full file system later */
    if (error == 0) {
        error = map_object(file, bytes, memory_out);
    }
    close(file);
    if (error != 0) {
        shm_unlink(name);
    }
    return error;
}

static int open_object(const char *name, size_t bytes, char **memory_out)
{
    struct stat about;
    int file = shm_open(name, O_RDWR, 0);
    if (file < 0) {
        return errno;
    }
    int error = fstat(file, &about) != 0 ? errno : about.st_size < (off_t)bytes ? EINVAL : map_object(file, bytes, memory_out);
    close(file);
    return error;
}

static void board_name(const char *stem, char *name_out)
{
    snprintf(name_out, NAME_BYTES, "%s-boards", stem);
}

static void region_name(const struct mpi_peer *self, int32_t rank, char *name_out)
{
    snprintf(name_out, NAME_BYTES, "%s-%d", self->stem, rank);
}

/* Nobody needs them any more: all have opened them, or creation has failed. */
static void unlink_regions(const struct mpi_peer *self)
{
    for (int32_t r = 0; r < self->peer.num_ranks; r++) {
        char name[NAME_BYTES];
        region_name(self, r, name);
        shm_unlink(name);
    }
}

/* ---- meeting through MPI ------------------------------------------------------------------------------------------------ */

/* An MPI error as a status. `what` is the function that failed. */
static mok_status check_mpi(int error, int32_t rank, const char *what)
{
    if (error == MPI_SUCCESS) {
        return MOK_OK;
    }
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    return mok_base_fail(MOK_ERR_UNSUPPORTED, "rank %d: %s failed: %s", rank, what, text);
}

/* Whether the calling thread may call MPI. */
static mok_status check_thread(void)
{
    int is_initialized = 0;
    int is_finalized = 0;
    MPI_Initialized(&is_initialized);
    MPI_Finalized(&is_finalized);
    if (!is_initialized || is_finalized) {
        return mok_base_fail(MOK_ERR_ARGUMENT,
                             "peer is mpi, but MPI is %s: mok_group_create belongs between MPI_Init_thread and MPI_Finalize",
                             is_finalized ? "already finalised" : "not initialised");
    }
    int level = MPI_THREAD_SINGLE;
    int is_main = 0;
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&is_main);
    if (level < MPI_THREAD_FUNNELED) {
        return mok_base_fail(MOK_ERR_ARGUMENT,
                             "peer is mpi, but MPI was initialised with MPI_THREAD_SINGLE; it must be at least MPI_THREAD_FUNNELED");
    }
    if (level == MPI_THREAD_FUNNELED && !is_main) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "peer is mpi with MPI_THREAD_FUNNELED, but this is not the thread that initialised MPI");
    }
    return MOK_OK;
}

static mok_status check_comm(const mok_group_config *config, MPI_Comm comm)
{
    if (comm == MPI_COMM_NULL) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.mpi_comm points to MPI_COMM_NULL: must be a communicator");
    }
    int size = 0;
    MPI_Comm_size(comm, &size);
    if (size != config->num_ranks) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.num_ranks is %d: must be the number of processes of the communicator, %d",
                             config->num_ranks, size);
    }
    return MOK_OK;
}

static mok_status check_rank(const struct mpi_peer *self)
{
    if (self->report.rank != self->peer.rank) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.rank is %d: must be %d, the rank of this process in the communicator", self->report.rank,
                             self->peer.rank);
    }
    return MOK_OK;
}

/* Who is missing, as far as this rank has heard: "nothing has come from rank 3". */
static void say_missing(const struct mpi_peer *self, char *text, size_t size)
{
    char list[128];
    uint8_t is_unheard[MOK_MAX_RANKS];
    for (int32_t r = 0; r < self->peer.num_ranks; r++) {
        is_unheard[r] = self->reports[r].is_here == 0;
    }
    mok_peer_list_ranks(is_unheard, self->peer.num_ranks, list, sizeof list);
    snprintf(text, size, list[0] != '\0' ? "nothing has come from %s" : "all have reported, and MPI does not tell who is missing", list);
}

/* Waits for the nonblocking collective that was just started with result `error`. */
static mok_status finish(struct mpi_peer *self, int error, MPI_Request *request, const char *what)
{
    int64_t deadline = mok_peer_deadline_ns(self->peer.timeout_ms);
    int32_t turns = 0;
    MOK_TRY(check_mpi(error, self->peer.rank, what));
    for (;;) {
        int is_done = 0;
        int is_late = mok_peer_clock_ns() >= deadline; /* looked at before the test, so that a late test still counts */
        MOK_TRY(check_mpi(MPI_Test(request, &is_done, MPI_STATUS_IGNORE), self->peer.rank, what));
        if (is_done) {
            return MOK_OK;
        }
        if (is_late) {
            char missing[192];
            say_missing(self, missing, sizeof missing);
            return mok_base_fail(MOK_ERR_TIMEOUT, "rank %d waited for its limit, peer_timeout_ms = %lld, and not all %d ranks came to mok_group_create "
                                 "(%s): %s", self->peer.rank, (long long)self->peer.timeout_ms, self->peer.num_ranks, what, missing);
        }
        mok_peer_pause(&turns);
    }
}

/* Begins to tell all, and to hear from all. */
static int start_reports(struct mpi_peer *self, MPI_Comm comm, MPI_Request *request_out)
{
    memset(self->reports, 0, (size_t)self->peer.num_ranks * sizeof *self->reports);
    self->reports[self->peer.rank].is_here = 1;
    return MPI_Iallgather(&self->report, sizeof self->report, MPI_BYTE, self->reports, sizeof self->report, MPI_BYTE, comm, request_out);
}

static mok_status exchange_reports(struct mpi_peer *self)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int error = start_reports(self, self->comm, &request);
    return finish(self, error, &request, "MPI_Iallgather");
}

/* Rank 0 makes the boards. A name that cannot be guessed also tells another host, where nobody has it. */
static void make_boards(struct mpi_peer *self)
{
    uint64_t chance[2] = {0, 0};
    char name[NAME_BYTES];
    if (getrandom(chance, sizeof chance, 0) != (ssize_t)sizeof chance) {
        self->report.error = EIO;
        return;
    }
    snprintf(self->report.stem, sizeof self->report.stem, "/mok-%016llx%016llx", (unsigned long long)chance[0], (unsigned long long)chance[1]);
    board_name(self->report.stem, name);
    self->report.error = make_object(name, (size_t)self->peer.num_ranks * MOK_NOTICE_BYTES, &self->board_memory);
    if (self->report.error != 0) {
        self->report.stem[0] = '\0';
    }
}

static mok_status exchange_boards(struct mpi_peer *self)
{
    char name[NAME_BYTES];
    MOK_TRY(exchange_reports(self));
    memcpy(self->stem, self->reports[0].stem, sizeof self->stem);
    if (self->peer.rank != 0 && self->stem[0] != '\0') {
        board_name(self->stem, name);
        self->report.error = open_object(name, (size_t)self->peer.num_ranks * MOK_NOTICE_BYTES, &self->board_memory);
    }
    return exchange_reports(self);
}

/* Copies the communicator and brings all ranks to the same boards. On failure MPI may still write to *self. */
static mok_status meet(struct mpi_peer *self, MPI_Comm comm)
{
    MPI_Request copied = MPI_REQUEST_NULL, reported = MPI_REQUEST_NULL;
    char name[NAME_BYTES];
    int report_error = start_reports(self, comm, &reported);
    MOK_TRY(finish(self, MPI_Comm_idup(comm, &self->comm, &copied), &copied, "MPI_Comm_idup"));
    MOK_TRY(finish(self, report_error, &reported, "MPI_Iallgather"));
    MPI_Comm_set_errhandler(self->comm, MPI_ERRORS_RETURN);
    if (self->peer.rank == 0) {
        make_boards(self);
    }
    mok_status status = exchange_boards(self);
    const char *stem = self->peer.rank == 0 ? self->report.stem : self->stem;
    if (stem[0] != '\0') {
        board_name(stem, name);
        shm_unlink(name);
    }
    MOK_TRY(status);
    return check_mpi(MPI_Comm_free(&self->comm), self->peer.rank, "MPI_Comm_free"); /* every rank comes here, and all transfers are over */
}

/* The own mistake first: nobody knows it better. */
static mok_status check_reports(const struct mpi_peer *self)
{
    MOK_TRY(check_rank(self));
    for (int32_t r = 0; r < self->peer.num_ranks; r++) {
        if (self->reports[r].rank != r) {
            return mok_base_fail(MOK_ERR_ARGUMENT, "rank %d: process %d of the communicator has rank %d: must be %d", self->peer.rank, r,
                                 self->reports[r].rank, r);
        }
    }
    for (int32_t r = 0; r < self->peer.num_ranks; r++) {
        errno = self->reports[r].error;
        if (errno != 0 && r == 0) {
            return mok_base_fail(MOK_ERR_MEMORY, "rank 0 cannot make shared memory to meet %d ranks: %m", self->peer.num_ranks);
        }
        if (errno != 0) {
            return mok_base_fail(MOK_ERR_UNSUPPORTED,
                                 "rank %d cannot open the shared memory of rank 0 (%m): peer mpi needs all ranks on one host", r);
        }
    }
    return MOK_OK;
}

/* ---- ops ---------------------------------------------------------------------------------------------------------------- */

static mok_status mpi_allgather(struct mok_peer *peer, const void *mine, size_t bytes, void *all_out)
{
    return mok_notice_exchange(&((struct mpi_peer *)peer)->notice, mine, bytes, all_out);
}

static void forget(struct mpi_peer *self)
{
    if (self->board_memory != NULL) {
        munmap(self->board_memory, (size_t)self->peer.num_ranks * MOK_NOTICE_BYTES);
    }
    free(self->reports);
    free(self->boards);
    mok_peer_destroy(&self->peer);
}

static void mpi_leave(struct mok_peer *peer)
{
    struct mpi_peer *self = (struct mpi_peer *)peer;
    mok_notice_leave(&self->notice);
    forget(self);
}

/* The communicator decides which rank this process is: all meet, also when a config says something else, and hear of it. */
static mok_status make_peer(const mok_group_config *wanted, MPI_Comm comm, struct mpi_peer **self_out)
{
    mok_group_config known = *wanted, *config = &known;
    MPI_Comm_rank(comm, &config->rank);

    struct mok_peer *peer = NULL;
    MOK_TRY(mok_peer_create(sizeof(struct mpi_peer), &mok_peer_mpi, config, &peer));
    struct mpi_peer *self = (struct mpi_peer *)peer;
    self->report.is_here = 1;
    self->report.rank = wanted->rank;
    self->boards = calloc((size_t)config->num_ranks, sizeof *self->boards);
    self->reports = calloc((size_t)config->num_ranks, sizeof *self->reports);
    if (self->boards == NULL || self->reports == NULL) {
        forget(self);
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory for the addresses of %d ranks", config->rank, config->num_ranks);
    }
    self->comm = MPI_COMM_NULL;
    *self_out = self;
    return MOK_OK;
}

static mok_status open_boards(struct mpi_peer *self)
{
    MOK_TRY(check_reports(self));
    for (int32_t r = 0; r < self->peer.num_ranks; r++) {
        self->boards[r] = self->board_memory + (size_t)r * MOK_NOTICE_BYTES;
    }
    self->notice = (struct mok_notice){
        .boards = self->boards, .rank = self->peer.rank, .num_ranks = self->peer.num_ranks, .timeout_ms = self->peer.timeout_ms};
    MOK_TRY(mok_notice_open(&self->notice));
    return mok_notice_exchange(&self->notice, NULL, 0, NULL);
}

static mok_status mpi_join(const mok_group_config *config, struct mok_peer **peer_out)
{
    MOK_TRY(check_thread());
    MPI_Comm comm = config->mpi_comm != NULL ? *(const MPI_Comm *)config->mpi_comm : MPI_COMM_WORLD;
    MOK_TRY(check_comm(config, comm));
    struct mpi_peer *self = NULL;
    MOK_TRY(make_peer(config, comm, &self));
    mok_status status = meet(self, comm);
    if (status != MOK_OK) {
        mok_status own = check_rank(self);
        return own != MOK_OK ? own : status; /* *self is left to MPI, as the head of this file says */
    }
    status = open_boards(self);
    if (status != MOK_OK) {
        forget(self);
        return status;
    }
    *peer_out = &self->peer;
    return MOK_OK;
}

/* How one step of map went on a rank. */
struct outcome {
    int32_t error; /* errno */
    int32_t at;    /* rank whose region it was about */
};

/* Collective. Fails on every rank when the step failed on one. */
static mok_status agree(struct mpi_peer *self, struct outcome mine, size_t bytes)
{
    struct outcome *all = malloc((size_t)self->peer.num_ranks * sizeof *all);
    if (all == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory to hear from %d ranks", self->peer.rank, self->peer.num_ranks);
    }
    mok_status status = mok_notice_exchange(&self->notice, &mine, sizeof mine, all);
    for (int32_t r = 0; r < self->peer.num_ranks && status == MOK_OK; r++) {
        errno = all[r].error;
        if (errno != 0) {
            status = mok_base_fail(MOK_ERR_MEMORY, "rank %d cannot map the region of rank %d, %zu bytes of shared memory: %m", r, all[r].at,
                                   bytes);
        }
    }
    free(all);
    return status;
}

static struct outcome open_regions(struct mpi_peer *self, size_t bytes)
{
    struct outcome outcome = {0, 0};
    for (int32_t r = 0; r < self->peer.num_ranks && outcome.error == 0; r++) {
        if (r != self->peer.rank) {
            char name[NAME_BYTES];
            region_name(self, r, name);
            outcome = (struct outcome){open_object(name, bytes, &self->peer.base[r]), r};
        }
    }
    return outcome;
}

static void unmap_regions(struct mok_peer *peer, size_t bytes)
{
    for (int32_t r = 0; r < peer->num_ranks; r++) {
        if (peer->base[r] != NULL) {
            munmap(peer->base[r], bytes);
            peer->base[r] = NULL;
        }
    }
}

static mok_status mpi_map(struct mok_peer *peer, size_t bytes, const struct mok_peer_memory *memory)
{
    struct mpi_peer *self = (struct mpi_peer *)peer;
    struct mok_peer_offer mine = {.bytes = bytes, .room = bytes, .device = memory->device};
    char name[NAME_BYTES];
    mine.status = memory->device >= 0 ? MOK_ERR_UNSUPPORTED : MOK_OK;
    MOK_TRY(mok_peer_exchange_offers(peer, &mine));
    region_name(self, peer->rank, name);
    int error = make_object(name, bytes, &peer->base[peer->rank]);
    mok_status status = agree(self, (struct outcome){error, peer->rank}, bytes);
    if (status == MOK_OK) {
        status = agree(self, open_regions(self, bytes), bytes);
    }
    unlink_regions(self);
    if (status != MOK_OK) {
        unmap_regions(peer, bytes);
        return status;
    }
    peer->bytes = bytes;
    return MOK_OK;
}

/* Kept or not: what a peer has mapped stays its own. */
static void mpi_unmap(struct mok_peer *peer, int keep)
{
    (void)keep;
    unmap_regions(peer, peer->bytes);
    peer->bytes = 0;
}

/* A program may ask before it initialises MPI; only a finalised MPI never comes back. */
static mok_status mpi_probe(void)
{
    int is_finalized = 0;
    MPI_Finalized(&is_finalized);
    return is_finalized ? mok_base_fail(MOK_ERR_UNSUPPORTED, "MPI is already finalised in this process") : MOK_OK;
}

const struct mok_peer_ops mok_peer_mpi = {
    .name = "mpi",
    .probe = mpi_probe,
    .join = mpi_join,
    .allgather = mpi_allgather,
    .map = mpi_map,
    .unmap = mpi_unmap,
    .leave = mpi_leave,
};

#endif
