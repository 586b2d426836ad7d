/*
 * Ranks as threads or as forked processes. Regions of MOK_PEER_EXTERNAL are made here: from the backend's memory for threads, from shared
 * anonymous memory for processes (made before the fork, so that it has one address in all).
 */
#include "case/case_launch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "case/case_list.h"

/* One launch. */
struct launch {
    const struct mok_case_where *where;
    int32_t num_ranks;
    mok_hub *hub;
    struct mok_case_meeting meeting; /* where->in_step */
    void *regions[MOK_REF_MAX_RANKS];
    size_t region_bytes;
    struct mok_case_verdict *verdicts; /* [num_ranks], shared memory */
    mok_case_rank_main *rank_main;
    void *context;
    struct mok_case_join joins[MOK_REF_MAX_RANKS];
};

/* What a thread gets. */
struct seat {
    struct launch *launch;
    int32_t rank;
};

static void run_rank(struct launch *launch, int32_t rank)
{
    struct mok_case_verdict *verdict = &launch->verdicts[rank];
    launch->rank_main(&launch->joins[rank], launch->context, verdict);
    if (verdict->status != MOK_OK && verdict->message[0] == '\0') {
        snprintf(verdict->message, sizeof verdict->message, "%s", mok_last_error());
    }
}

static void *thread_main(void *argument)
{
    struct seat *seat = argument;
    run_rank(seat->launch, seat->rank);
    return NULL;
}

static void run_threads(struct launch *launch)
{
    pthread_t threads[MOK_REF_MAX_RANKS];
    struct seat seats[MOK_REF_MAX_RANKS];
    int32_t started = 0;
    for (; started < launch->num_ranks; started++) {
        seats[started] = (struct seat){launch, started};
        if (pthread_create(&threads[started], NULL, thread_main, &seats[started]) != 0) {
            launch->verdicts[started].status = MOK_ERR_MEMORY; /* the others find out by their deadline */
            snprintf(launch->verdicts[started].message, sizeof launch->verdicts[started].message, "its thread could not be started");
            break;
        }
    }
    for (int32_t r = 0; r < started; r++) {
        pthread_join(threads[r], NULL);
    }
}

static void run_processes(struct launch *launch)
{
    pid_t children[MOK_REF_MAX_RANKS];
    fflush(NULL);
    for (int32_t r = 0; r < launch->num_ranks; r++) {
        children[r] = fork();
        if (children[r] == 0) {
            run_rank(launch, r);
            fflush(NULL);
            _exit(0);
        }
        if (children[r] < 0) {
            launch->verdicts[r].status = MOK_ERR_MEMORY;
            snprintf(launch->verdicts[r].message, sizeof launch->verdicts[r].message, "its process could not be started");
        }
    }
    for (int32_t r = 0; r < launch->num_ranks; r++) {
        int state = 0;
        if (children[r] > 0 && (waitpid(children[r], &state, 0) < 0 || !WIFEXITED(state) || WEXITSTATUS(state) != 0)) {
            launch->verdicts[r].status = MOK_ERR_INTERNAL;
            snprintf(launch->verdicts[r].message, sizeof launch->verdicts[r].message,
                     "the process of rank %d ended by signal %d, exit code %d", r, WIFSIGNALED(state) ? WTERMSIG(state) : 0,
                     WIFEXITED(state) ? WEXITSTATUS(state) : -1);
        }
    }
}

static void *shared_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Zeroed memory for the region of a rank, on the rank's device. */
static void *region_memory(const struct mok_case_memory *memory, int32_t rank, size_t bytes)
{
    int32_t device;
    mok_stream stream;
    if (memory->open(rank, &device, &stream) != MOK_OK) {
        return NULL;
    }
    void *region = memory->alloc(bytes);
    if (region != NULL && memory->fill(region, 0, bytes) != MOK_OK) {
        memory->free(region);
        region = NULL;
    }
    memory->close(stream);
    return region;
}

static mok_status make_regions(struct launch *launch, const struct mok_ref_problem *problem, const struct mok_ref_knobs *knobs,
                               int32_t num_saved)
{
    const struct mok_case_memory *memory = mok_case_memory_of(launch->where->backend);
    struct mok_case_join join = {.backend = launch->where->backend, .peer = MOK_PEER_EXTERNAL, .num_saved = num_saved};
    mok_memory needed = {.struct_size = sizeof needed};
    mok_group_config config;
    MOK_TRY(mok_case_config(problem, knobs, &join, -1, NULL, &config));
    MOK_TRY(mok_group_memory(&config, &needed));
    launch->region_bytes = needed.peer_bytes;
    for (int32_t r = 0; r < launch->num_ranks; r++) {
        int is_shared = launch->where->ranks == MOK_CASE_PROCESSES;
        launch->regions[r] = is_shared ? shared_memory(needed.peer_bytes) : region_memory(memory, r, needed.peer_bytes);
        if (launch->regions[r] == NULL) {
            return MOK_ERR_MEMORY;
        }
    }
    return MOK_OK;
}

static void free_regions(struct launch *launch)
{
    for (int32_t r = 0; r < launch->num_ranks; r++) {
        if (launch->regions[r] != NULL && launch->where->ranks == MOK_CASE_PROCESSES) {
            munmap(launch->regions[r], launch->region_bytes);
        } else if (launch->regions[r] != NULL) {
            mok_case_memory_of(launch->where->backend)->free(launch->regions[r]);
        }
    }
}

static mok_status prepare(struct launch *launch, const struct mok_ref_problem *problem, const struct mok_ref_knobs *knobs,
                          int32_t num_saved)
{
    enum mok_case_ranks kind = launch->where->ranks;
    int has_regions = kind == MOK_CASE_EXTERNAL || kind == MOK_CASE_PROCESSES;
    if (mok_case_memory_of(launch->where->backend) == NULL) {
        return MOK_ERR_NOT_BUILT;
    }
    if (!mok_case_has_ranks(launch->where->backend, kind)) {
        return MOK_ERR_UNSUPPORTED; /* who looks at the list first does not come here */
    }
    if (kind == MOK_CASE_THREADS) {
        MOK_TRY(mok_hub_create(problem->num_ranks, &launch->hub));
    }
    if (has_regions) {
        MOK_TRY(make_regions(launch, problem, knobs, num_saved));
    }
    for (int32_t r = 0; r < launch->num_ranks; r++) {
        launch->joins[r] = (struct mok_case_join){
            .backend = launch->where->backend,
            .peer = has_regions            ? MOK_PEER_EXTERNAL
                    : kind == MOK_CASE_MPI ? MOK_PEER_MPI
                                           : MOK_PEER_THREADS,
            .rank = r,
            .num_saved = num_saved,
            .hub = launch->hub,
            .regions = has_regions ? launch->regions : NULL,
            .region_bytes = launch->region_bytes,
            .peer_timeout_ms = launch->where->peer_timeout_ms,
            .local_timeout_ms = launch->where->local_timeout_ms,
            .meeting = launch->where->in_step && (kind == MOK_CASE_THREADS || kind == MOK_CASE_EXTERNAL) ? &launch->meeting : NULL,
        };
    }
    return MOK_OK;
}

/* The failure that tells most: one that is not the echo of a peer's, else the first. */
static void judge(const struct launch *launch, struct mok_case_verdict *verdict_out, int32_t *rank_out)
{
    int32_t chosen = -1;
    int64_t num_differences = 0;
    char difference[sizeof verdict_out->difference] = "";
    for (int32_t r = 0; r < launch->num_ranks; r++) {
        const struct mok_case_verdict *verdict = &launch->verdicts[r];
        int is_cause = verdict->status != MOK_OK && verdict->status != MOK_ERR_ABORTED;
        if (verdict->status != MOK_OK && (chosen < 0 || (is_cause && launch->verdicts[chosen].status == MOK_ERR_ABORTED))) {
            chosen = r;
        }
        if (num_differences == 0 && verdict->num_differences > 0) {
            memcpy(difference, verdict->difference, sizeof difference);
        }
        num_differences += verdict->num_differences;
    }
    *verdict_out = launch->verdicts[chosen < 0 ? 0 : chosen];
    verdict_out->num_differences = num_differences;
    memcpy(verdict_out->difference, difference, sizeof difference);
    *rank_out = chosen < 0 ? 0 : chosen;
}

void mok_case_launch(const struct mok_case_where *where, const struct mok_ref_problem *problem, const struct mok_ref_knobs *knobs,
                     int32_t num_saved, mok_case_rank_main *rank_main, void *context, struct mok_case_verdict *verdict_out,
                     int32_t *rank_out)
{
    struct launch launch = {.where = where, .num_ranks = problem->num_ranks, .rank_main = rank_main, .context = context};
    size_t bytes = (size_t)problem->num_ranks * sizeof(struct mok_case_verdict);
    memset(verdict_out, 0, sizeof *verdict_out);
    *rank_out = 0;
    launch.verdicts = shared_memory(bytes);
    if (launch.verdicts == NULL) {
        verdict_out->status = MOK_ERR_MEMORY;
        return;
    }
    mok_case_meeting_open(&launch.meeting, problem->num_ranks);
    verdict_out->status = prepare(&launch, problem, knobs, num_saved);
    if (verdict_out->status == MOK_OK) {
        if (where->ranks == MOK_CASE_MPI) {
            run_rank(&launch, where->rank);
        } else if (where->ranks == MOK_CASE_PROCESSES) {
            run_processes(&launch);
        } else {
            run_threads(&launch);
        }
        judge(&launch, verdict_out, rank_out);
    } else {
        snprintf(verdict_out->message, sizeof verdict_out->message, "%s", mok_last_error());
    }
    free_regions(&launch);
    mok_hub_destroy(launch.hub);
    mok_case_meeting_close(&launch.meeting);
    munmap(launch.verdicts, bytes);
}
