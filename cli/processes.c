/*
 * Nonblocking messages of MPI, tested until they are done or late. MPI_Init, MPI_Finalize and MPI_Abort have no such form: an alarm stands
 * behind them.
 *
 * Messages from each process to each, not MPI's collectives: those do not say who has not come. There are at most a few dozen processes.
 */
#include "processes.h"

#ifdef MOK_HAVE_MPI

#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stage_times.h"
#include "team.h"

/* Of alarms. A start is the launcher's affair, which no setting of peers says anything about: it brings all processes at once, 64 of them on two cores
 * in 3 s. One that ends before it has started MPI never comes. At the end an alarm may come this much later than the limit. */
enum { START_SECONDS = 30, END_SECONDS = 1, ABORT_SECONDS = 5 };

/* Of messages. Between two processes those of one tag stay in order. */
enum { TAG_RESULTS, TAG_ALL, TAG_SHARE };

/* A rank that leaves a pass late, at its own limit, is still waited for. */
enum { PATIENCE_MS = 8000 };

/* One world per process. */
static int64_t wait_limit_ms;
static char own_failure[1200]; /* of this process, which the others have not heard yet; "" = none */
static int own_rank;
static int num_processes;

/* ---- alarm -------------------------------------------------------------------------------------------------------------- */

static char alarm_sentence[256];

static void give_up(int signal_number)
{
    (void)signal_number;
    ssize_t written = write(STDERR_FILENO, alarm_sentence, strlen(alarm_sentence));
    (void)written; /* nobody is left to be told */
    _exit(MOK_CLI_EXIT_ERROR);
}

/* mpirun ends the other processes when one leaves without MPI_Finalize. */
static void set_alarm(int64_t seconds, const char *call)
{
    struct sigaction action = {.sa_handler = give_up};
    snprintf(alarm_sentence, sizeof alarm_sentence, "mok: waited %lld s in %s: not all processes came\n", (long long)seconds, call);
    sigaction(SIGALRM, &action, NULL);
    alarm(seconds > 1000000 ? 1000000U : (unsigned)seconds);
}

static void clear_alarm(void)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    alarm(0);
    sigaction(SIGALRM, &action, NULL);
}

/* ---- waiting ------------------------------------------------------------------------------------------------------------ */

static void pause_for(long microseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = microseconds * 1000}, NULL);
}

/* A message to or from another process. */
struct message {
    MPI_Request request;
    int rank;
};

/* [2 * num_processes] those of one meeting. */
static struct message *messages;
static int num_messages;

static void expect_from(int rank, int tag, void *data, int bytes)
{
    messages[num_messages].rank = rank;
    MPI_Irecv(data, bytes, MPI_BYTE, rank, tag, MPI_COMM_WORLD, &messages[num_messages++].request);
}

static void send_to(int rank, int tag, const void *data, int bytes)
{
    messages[num_messages].rank = rank;
    MPI_Isend(data, bytes, MPI_BYTE, rank, tag, MPI_COMM_WORLD, &messages[num_messages++].request);
}

static int is_missing(int rank)
{
    for (int idx = 0; idx < num_messages; idx++) {
        if (messages[idx].rank == rank && messages[idx].request != MPI_REQUEST_NULL) {
            return 1;
        }
    }
    return 0;
}

/* "rank 2", "ranks 2, 5". */
static void name_missing(char *text, size_t size)
{
    int num_missing = 0;
    size_t used = 0;
    for (int rank = 0; rank < num_processes; rank++) {
        num_missing += is_missing(rank);
    }
    for (int rank = 0; rank < num_processes && used < size; rank++) {
        if (is_missing(rank)) {
            used += (size_t)snprintf(text + used, size - used, "%s%d", used > 0 ? ", " : num_missing > 1 ? "ranks " : "rank ", rank);
        }
    }
}

/* The cause, while there is time: whoever gives up first ends all processes. */
static void tell_own_failure(void)
{
    if (own_failure[0] != '\0') {
        mok_cli_progress_end();
        fprintf(stderr, "mok: %s\n", own_failure);
        own_failure[0] = '\0';
    }
}

/* Until all messages have come or gone. */
static void finish(const char *what)
{
    enum { SHORTEST_US = 20, LONGEST_US = 1000, TELL_MS = 1000 };
    double begin = mok_stage_now_ms();
    for (long pause = SHORTEST_US;; pause = pause < LONGEST_US ? 2 * pause : LONGEST_US) {
        int is_done = 1;
        double waited_ms = mok_stage_now_ms() - begin;
        int is_late = waited_ms > (double)wait_limit_ms; /* before the tests, so that a late test still counts */
        for (int idx = 0; idx < num_messages; idx++) {
            int is_here = 0;
            MPI_Test(&messages[idx].request, &is_here, MPI_STATUS_IGNORE); /* an error ends the job: MPI_ERRORS_ARE_FATAL */
            is_done &= is_here;
        }
        if (is_done) {
            num_messages = 0;
            return;
        }
        if (is_late) {
            char who[512];
            name_missing(who, sizeof who);
            mok_cli_progress_end();
            fprintf(stderr, "mok: rank %d waited %lld ms (peer-timeout, %lld, and %d more) for %s to %s\n", own_rank, (long long)wait_limit_ms,
                    (long long)wait_limit_ms - PATIENCE_MS, PATIENCE_MS, who, what);
            set_alarm(ABORT_SECONDS, "MPI_Abort");
            MPI_Abort(MPI_COMM_WORLD, MOK_CLI_EXIT_ERROR);
            _exit(MOK_CLI_EXIT_ERROR);
        }
        if (waited_ms > TELL_MS) {
            tell_own_failure();
        }
        pause_for(pause);
    }
}

mok_status mok_processes_start(int64_t peer_timeout_ms, int32_t *rank_out, int32_t *num_out)
{
    int is_started;
    int level;
    wait_limit_ms = peer_timeout_ms + PATIENCE_MS;
    MPI_Initialized(&is_started);
    if (!is_started) {
        set_alarm(START_SECONDS, "MPI_Init_thread");
        int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
        clear_alarm();
        if (error != MPI_SUCCESS) {
            return mok_cli_fail(MOK_ERR_UNSUPPORTED, "MPI could not be started");
        }
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_processes);
    messages = malloc(2 * (size_t)num_processes * sizeof *messages);
    if (messages == NULL) {
        fprintf(stderr, "mok: no memory for messages of %d processes\n", num_processes);
        MPI_Abort(MPI_COMM_WORLD, MOK_CLI_EXIT_ERROR);
    }
    *rank_out = own_rank;
    *num_out = num_processes;
    return MOK_OK;
}

void mok_processes_end(void)
{
    int is_started;
    int is_ended;
    MPI_Initialized(&is_started);
    MPI_Finalized(&is_ended);
    if (!is_started || is_ended) {
        return;
    }
    mok_processes_meet("end");
    set_alarm(wait_limit_ms / 1000 + END_SECONDS, "MPI_Finalize");
    MPI_Finalize();
    clear_alarm();
    free(messages);
}

void mok_processes_meet(const char *what)
{
    for (int rank = 0; rank < num_processes; rank++) {
        if (rank != own_rank) {
            expect_from(rank, TAG_ALL, NULL, 0);
            send_to(rank, TAG_ALL, NULL, 0);
        }
    }
    finish(what);
}

void mok_processes_share(int32_t from, void *data, size_t bytes, const char *what)
{
    if (own_rank != from) {
        expect_from(from, TAG_SHARE, data, (int)bytes);
    }
    for (int rank = 0; rank < num_processes && own_rank == from; rank++) {
        if (rank != own_rank) {
            send_to(rank, TAG_SHARE, data, (int)bytes);
        }
    }
    finish(own_rank == from ? "hear the others" : what);
}

void mok_processes_gather(const void *mine, size_t bytes, void *all_out, const char *what)
{
    for (int rank = 0; rank < num_processes; rank++) {
        if (rank != own_rank) {
            expect_from(rank, TAG_ALL, (char *)all_out + (size_t)rank * bytes, (int)bytes);
            send_to(rank, TAG_ALL, mine, (int)bytes);
        }
    }
    memcpy((char *)all_out + (size_t)own_rank * bytes, mine, bytes);
    finish(what);
}

mok_status mok_processes_agree(mok_status status, const char *what)
{
    int all[MOK_TEAM_MAX_RANKS];
    int worst = 0; /* the lowest of those whose status is largest */
    char sentence[1024];
    /* A rank that was aborted knows only that: any other failure is the cause. */
    int mine = status == MOK_ERR_ABORTED ? 1 : status == MOK_OK ? 0 : (int)status + 1;
    if (mine > 1) {
        mok_cli_say_rank(own_rank, mok_cli_sentence(), sentence, sizeof sentence);
        snprintf(own_failure, sizeof own_failure, "%s (%s)", sentence, mok_status_name(status));
    }
    mok_processes_gather(&mine, sizeof mine, all, what);
    own_failure[0] = '\0';
    for (int rank = 1; rank < num_processes; rank++) {
        worst = all[rank] > all[worst] ? rank : worst;
    }
    if (all[worst] == 0) {
        return MOK_OK;
    }
    snprintf(sentence, sizeof sentence, "%s", mok_cli_sentence());
    mok_processes_share(worst, sentence, sizeof sentence, "say why it failed");
    return mok_cli_fail(all[worst] == 1 ? MOK_ERR_ABORTED : (mok_status)(all[worst] - 1), "%s", sentence);
}

void mok_processes_collect(int32_t rank, void *data, size_t bytes)
{
    enum { MAX_PIECE = 1 << 26 }; /* the limit is one piece's, not that of a large result */
    for (size_t at = 0; at < bytes && rank != 0; at += MAX_PIECE) {
        int count = (int)(bytes - at < MAX_PIECE ? bytes - at : MAX_PIECE);
        if (own_rank == rank) {
            send_to(0, TAG_RESULTS, (char *)data + at, count);
            finish("take results");
        } else if (own_rank == 0) {
            expect_from(rank, TAG_RESULTS, (char *)data + at, count);
            finish("send its results");
        }
    }
}

/* ---- leading ------------------------------------------------------------------------------------------------------------ */

/* The work has a thread of its own, for only the main thread may call MPI. */
struct leader {
    mok_status (*work)(void *context);
    void *context;
    mok_status status;
    char sentence[1024];
    atomic_int is_done;
};

static void *run_leader(void *argument)
{
    struct leader *leader = argument;
    leader->status = leader->work(leader->context);
    snprintf(leader->sentence, sizeof leader->sentence, "%s", leader->status == MOK_OK ? "" : mok_cli_sentence());
    atomic_store(&leader->is_done, 1);
    return NULL;
}

static mok_status lead(mok_status (*work)(void *context), void *context)
{
    enum { BEAT_MS = 500, POLL_US = 2000 };
    struct leader leader = {.work = work, .context = context};
    pthread_t thread;
    int is_done = 0;
    int is_started = pthread_create(&thread, NULL, run_leader, &leader) == 0;
    while (!is_done) {
        double begin = mok_stage_now_ms();
        while (is_started && !atomic_load(&leader.is_done) && mok_stage_now_ms() - begin < BEAT_MS) {
            pause_for(POLL_US);
        }
        is_done = !is_started || atomic_load(&leader.is_done);
        mok_processes_share(0, &is_done, sizeof is_done, "tell that it is alive");
    }
    if (!is_started) {
        return mok_cli_fail(MOK_ERR_MEMORY, "rank 0: the thread that checks and reports could not be started");
    }
    pthread_join(thread, NULL);
    return leader.status == MOK_OK ? MOK_OK : mok_cli_fail(leader.status, "%s", leader.sentence);
}

mok_status mok_processes_lead(mok_status (*work)(void *context), void *context)
{
    mok_status status = MOK_OK;
    int is_done = 0;
    if (own_rank == 0) {
        status = lead(work, context);
    }
    while (own_rank != 0 && !is_done) {
        mok_processes_share(0, &is_done, sizeof is_done, "tell that it is alive");
    }
    return mok_processes_agree(status, "end the report");
}

#else

#include <string.h>

mok_status mok_processes_start(int64_t peer_timeout_ms, int32_t *rank_out, int32_t *num_out)
{
    (void)peer_timeout_ms, (void)rank_out, (void)num_out;
    return mok_cli_fail(MOK_ERR_NOT_BUILT, "this build has no MPI, which the mpi and nccl peers need");
}

void mok_processes_end(void) {}

void mok_processes_meet(const char *what) { (void)what; }

void mok_processes_share(int32_t from, void *data, size_t bytes, const char *what) { (void)from, (void)data, (void)bytes, (void)what; }

void mok_processes_gather(const void *mine, size_t bytes, void *all_out, const char *what)
{
    (void)what;
    memcpy(all_out, mine, bytes);
}

mok_status mok_processes_agree(mok_status status, const char *what)
{
    (void)what;
    return status;
}

void mok_processes_collect(int32_t rank, void *data, size_t bytes) { (void)rank, (void)data, (void)bytes; }

mok_status mok_processes_lead(mok_status (*work)(void *context), void *context) { return work(context); }

#endif
