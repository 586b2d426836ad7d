/*
 * Nonblocking calls of MPI, tested until they are done or late. MPI_Init, MPI_Finalize and MPI_Abort have no such form: an alarm stands
 * behind them.
 */
#include "processes.h"

#ifdef MOK_HAVE_MPI

#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stage_times.h"

/* An alarm may come this much later than the limit: processes of a loaded machine start and end slowly. */
enum { START_SECONDS = 20, END_SECONDS = 1, ABORT_SECONDS = 5 };

/* One world per process. */
static int64_t wait_limit_ms;
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

static void finish(MPI_Request *request, const char *who, const char *what)
{
    enum { SHORTEST_US = 20, LONGEST_US = 1000 };
    double begin = mok_stage_now_ms();
    for (long pause = SHORTEST_US;; pause = pause < LONGEST_US ? 2 * pause : LONGEST_US) {
        int is_done = 0;
        int is_late = mok_stage_now_ms() - begin > (double)wait_limit_ms; /* before the test, so that a late test still counts */
        MPI_Test(request, &is_done, MPI_STATUS_IGNORE); /* an error ends the job: MPI_ERRORS_ARE_FATAL */
        if (is_done) {
            return;
        }
        if (is_late) {
            mok_cli_progress_end();
            fprintf(stderr, "mok: rank %d waited %lld ms for %s to %s\n", own_rank, (long long)wait_limit_ms, who, what);
            set_alarm(ABORT_SECONDS, "MPI_Abort");
            MPI_Abort(MPI_COMM_WORLD, MOK_CLI_EXIT_ERROR);
            _exit(MOK_CLI_EXIT_ERROR);
        }
        pause_for(pause);
    }
}

mok_status mok_processes_start(int64_t limit_ms, int32_t *rank_out, int32_t *num_out)
{
    int is_started;
    int level;
    wait_limit_ms = limit_ms;
    MPI_Initialized(&is_started);
    if (!is_started) {
        set_alarm(limit_ms / 1000 + START_SECONDS, "MPI_Init_thread");
        int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
        clear_alarm();
        if (error != MPI_SUCCESS) {
            return mok_cli_fail(MOK_ERR_UNSUPPORTED, "MPI could not be started");
        }
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_processes);
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
}

void mok_processes_meet(const char *what)
{
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    finish(&request, "all ranks", what);
}

void mok_processes_share(int32_t from, void *data, size_t bytes, const char *what)
{
    MPI_Request request;
    char who[32];
    snprintf(who, sizeof who, "rank %d", (int)from);
    MPI_Ibcast(data, (int)bytes, MPI_BYTE, from, MPI_COMM_WORLD, &request);
    finish(&request, who, what);
}

void mok_processes_gather(const void *mine, size_t bytes, void *all_out, const char *what)
{
    MPI_Request request;
    MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all_out, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, &request);
    finish(&request, "all ranks", what);
}

mok_status mok_processes_agree(mok_status status, const char *what)
{
    struct {
        int status;
        int rank;
    } mine = {.rank = own_rank}, worst;
    char sentence[1024];
    MPI_Request request;
    /* A rank that was aborted knows only that: any other failure is the cause. */
    mine.status = status == MOK_ERR_ABORTED ? 1 : status == MOK_OK ? 0 : (int)status + 1;
    MPI_Iallreduce(&mine, &worst, 1, MPI_2INT, MPI_MAXLOC, MPI_COMM_WORLD, &request);
    finish(&request, "all ranks", what);
    if (worst.status == 0) {
        return MOK_OK;
    }
    snprintf(sentence, sizeof sentence, "%s", mok_cli_sentence());
    mok_processes_share(worst.rank, sentence, sizeof sentence, "say why it failed");
    return mok_cli_fail(worst.status == 1 ? MOK_ERR_ABORTED : (mok_status)(worst.status - 1), "%s", sentence);
}

void mok_processes_collect(int32_t rank, void *data, size_t bytes)
{
    enum { MAX_PIECE = 1 << 26 }; /* the limit is one piece's, not that of a large result */
    for (size_t at = 0; at < bytes && rank != 0; at += MAX_PIECE) {
        int count = (int)(bytes - at < MAX_PIECE ? bytes - at : MAX_PIECE);
        MPI_Request request;
        char who[32];
        if (own_rank == rank) {
            MPI_Isend((char *)data + at, count, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &request);
            finish(&request, "rank 0", "take results");
        } else if (own_rank == 0) {
            snprintf(who, sizeof who, "rank %d", (int)rank);
            MPI_Irecv((char *)data + at, count, MPI_BYTE, rank, 0, MPI_COMM_WORLD, &request);
            finish(&request, who, "send its results");
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

mok_status mok_processes_start(int64_t limit_ms, int32_t *rank_out, int32_t *num_out)
{
    (void)limit_ms, (void)rank_out, (void)num_out;
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
