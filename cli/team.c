/*
 * Ranks as threads (a hub, a barrier) or as processes (processes.c). No other part of the tool knows which of the two it is.
 */
#include "team.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef MOK_HAVE_NCCL
#include <nccl.h>
#endif

#include "command_line.h"
#include "group_config.h"
#include "processes.h"
#include "roll_call.h"

/* ---- processes ---------------------------------------------------------------------------------------------------------- */

static mok_status make_nccl_id(struct mok_team *team)
{
#ifdef MOK_HAVE_NCCL
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    int is_made = team->first_rank != 0 || ncclGetUniqueId(&id) == ncclSuccess;
    MOK_TRY(mok_processes_agree(is_made ? MOK_OK : mok_cli_fail(MOK_ERR_UNSUPPORTED, "NCCL gave no unique id"), "start NCCL"));
    mok_processes_share(0, &id, sizeof id, "share NCCL's id");
    memcpy(team->nccl_id, &id, sizeof id);
    return MOK_OK;
#else
    (void)team;
    return mok_cli_fail(MOK_ERR_NOT_BUILT, "this build has no NCCL peer");
#endif
}

/* What a process can know of its own start before it shares anything. */
static mok_status check_start(const mok_group_config *config, int64_t num_ranks, int32_t size)
{
    if (num_ranks != 0 && num_ranks != size) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--ranks is %" PRId64 ", but mpirun has started %" PRId32 " of them: use mpirun -n %" PRId64,
                            num_ranks, size, num_ranks);
    }
    return mok_config_check_backend(config);
}

static mok_status open_processes(struct mok_team *team, int64_t num_ranks)
{
    int32_t size = 0;
    /* first_rank also when the rest fails: rank 0 says why */
    MOK_TRY(mok_processes_start(team->config.peer_timeout_ms, &team->first_rank, &size));
    if (size > MOK_TEAM_MAX_RANKS) { /* seen by all alike: no roll call needed */
        return mok_cli_fail(MOK_ERR_ARGUMENT, "mpirun has started %" PRId32 " processes: must be at most %d", size, MOK_TEAM_MAX_RANKS);
    }
    MOK_TRY(mok_roll_call(&team->config, check_start(&team->config, num_ranks, size), size));
    team->num_ranks = size;
    team->num_here = 1;
    return team->config.peer == MOK_PEER_NCCL ? make_nccl_id(team) : MOK_OK;
}

/* ---- both --------------------------------------------------------------------------------------------------------------- */

mok_status mok_team_open(const mok_group_config *config, int64_t num_ranks, struct mok_team *team_out)
{
    memset(team_out, 0, sizeof *team_out);
    team_out->config = *config;
    if (config->peer == MOK_PEER_EXTERNAL) {
        return mok_cli_fail(MOK_ERR_ARGUMENT,
                            "%s is external, for programs that bring their own memory: must be threads, mpi or nccl here", mok_cli_setter("peer"));
    }
    if (config->peer == MOK_PEER_NCCL && !mok_backend_available(MOK_BACKEND_CUDA)) {
        return mok_cli_fail(MOK_ERR_NO_DEVICE, "no usable GPU: %s is nccl, which needs one for every rank", mok_cli_setter("peer"));
    }
    if (config->peer != MOK_PEER_THREADS) {
        team_out->is_processes = 1;
        return open_processes(team_out, num_ranks);
    }
    team_out->num_ranks = num_ranks == 0 ? 1 : (int32_t)num_ranks;
    team_out->num_here = team_out->num_ranks;
    if (pthread_barrier_init(&team_out->barrier, NULL, (unsigned)team_out->num_ranks) != 0) {
        team_out->num_here = 0;
        return mok_cli_fail(MOK_ERR_MEMORY, "no barrier for %" PRId32 " threads", team_out->num_ranks);
    }
    return MOK_OK;
}

void mok_team_close(struct mok_team *team)
{
    if (team->is_processes) {
        mok_processes_end();
    } else if (team->num_here > 0) {
        pthread_barrier_destroy(&team->barrier);
    }
}

int mok_team_prints(const struct mok_team *team) { return team->first_rank == 0; }

const char *mok_team_peer_name(const struct mok_team *team)
{
    return mok_config_peer_name(&team->config);
}

void mok_team_wait(struct mok_team *team)
{
    if (team->is_processes) {
        mok_processes_meet("come to the next pass");
    } else {
        pthread_barrier_wait(&team->barrier);
    }
}

mok_status mok_team_agree(const struct mok_team *team, mok_status status, const char *what)
{
    return team->is_processes ? mok_processes_agree(status, what) : status;
}

void mok_team_collect(const struct mok_team *team, int32_t rank, void *data, size_t bytes)
{
    if (team->is_processes) {
        mok_processes_collect(rank, data, bytes);
    }
}

mok_status mok_team_lead(const struct mok_team *team, mok_status (*work)(void *context), void *context)
{
    return team->is_processes ? mok_processes_lead(work, context) : work(context);
}

/* ---- running ------------------------------------------------------------------------------------------------------------ */

/* Threads start behind a gate that opens when all of them exist: a rank that is missing would leave the others waiting for their time
 * limit. */
struct gate {
    pthread_mutex_t mutex;
    int is_called_off;
};

struct runner {
    struct mok_team *team;
    mok_team_work work;
    void *context;
    struct gate *gate; /* NULL: no thread */
    mok_group_config config;
    pthread_t thread;
    mok_status status;
    char sentence[1024];
};

static void *run_rank(void *argument)
{
    struct runner *runner = argument;
    int is_called_off = 0;
    if (runner->gate != NULL) {
        pthread_mutex_lock(&runner->gate->mutex);
        is_called_off = runner->gate->is_called_off;
        pthread_mutex_unlock(&runner->gate->mutex);
    }
    if (is_called_off) {
        return NULL;
    }
    runner->status = runner->work(runner->context, runner->team, &runner->config);
    if (runner->status != MOK_OK) {
        snprintf(runner->sentence, sizeof runner->sentence, "%s", mok_cli_sentence());
    }
    return NULL;
}

static mok_status run_threads(struct mok_team *team, struct runner *runners)
{
    struct gate gate = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    int32_t num_started = 0;
    pthread_mutex_lock(&gate.mutex);
    while (num_started < team->num_here) {
        runners[num_started].gate = &gate;
        if (pthread_create(&runners[num_started].thread, NULL, run_rank, &runners[num_started]) != 0) {
            gate.is_called_off = 1;
            break;
        }
        num_started++;
    }
    pthread_mutex_unlock(&gate.mutex);
    for (int32_t idx = 0; idx < num_started; idx++) {
        pthread_join(runners[idx].thread, NULL);
    }
    return gate.is_called_off
               ? mok_cli_fail(MOK_ERR_MEMORY, "thread %" PRId32 " of %" PRId32 " could not be started", num_started, team->num_here)
               : MOK_OK;
}

mok_status mok_team_run(struct mok_team *team, mok_team_work work, void *context)
{
    mok_hub *hub = NULL;
    struct runner *runners = calloc((size_t)team->num_here, sizeof *runners);
    mok_status status = runners == NULL ? mok_cli_fail(MOK_ERR_MEMORY, "no memory for %" PRId32 " ranks", team->num_here) : MOK_OK;
    if (status == MOK_OK && !team->is_processes) {
        status = mok_cli_check(mok_hub_create(team->num_ranks, &hub));
    }
    for (int32_t idx = 0; idx < team->num_here && status == MOK_OK; idx++) {
        runners[idx] = (struct runner){.team = team, .work = work, .context = context, .config = team->config};
        runners[idx].config.rank = team->first_rank + idx;
        runners[idx].config.num_ranks = team->num_ranks;
        runners[idx].config.hub = hub;
        runners[idx].config.nccl_id = team->config.peer == MOK_PEER_NCCL ? team->nccl_id : NULL;
    }
    if (status == MOK_OK && team->is_processes) {
        run_rank(&runners[0]);
    } else if (status == MOK_OK) {
        status = run_threads(team, runners);
    }
    for (int32_t idx = 0; idx < team->num_here && runners != NULL; idx++) {
        int is_cause = status == MOK_OK || (status == MOK_ERR_ABORTED && runners[idx].status != MOK_OK);
        if (runners[idx].status != MOK_OK && is_cause) {
            status = mok_cli_fail(runners[idx].status, "%s", runners[idx].sentence);
        }
    }
    mok_hub_destroy(hub);
    free(runners);
    return mok_team_agree(team, status, "end the passes");
}
