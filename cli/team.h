/*
 * The ranks that a command works with. With the threads peer all ranks are threads of this process; with the mpi and nccl peers every
 * process is one rank, started by mpirun, and rank 0 prints. A process that does not come ends the job of all (processes.h).
 */
#ifndef MOK_CLI_TEAM_H
#define MOK_CLI_TEAM_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "message.h"

enum { MOK_TEAM_MAX_RANKS = 64 };

struct mok_team {
    mok_group_config config; /* rank, num_ranks, hub and nccl_id are set for each rank by mok_team_run */
    int32_t num_ranks;
    int32_t first_rank; /* ranks [first_rank, first_rank + num_here) are in this process */
    int32_t num_here;
    int is_processes;
    unsigned char nccl_id[128];
    pthread_barrier_t barrier; /* threads */
};

/* num_ranks: 0 = not given: all processes, or 1 thread. With processes all return the same. Errors: ARGUMENT (number does not fit the
 * processes, or they were started with different commands or settings; a usage error), NO_DEVICE, NOT_BUILT. */
mok_status mok_team_open(const mok_group_config *config, int64_t num_ranks, struct mok_team *team_out);
void mok_team_close(struct mok_team *team);

/* 1 in the process that holds rank 0. */
int mok_team_prints(const struct mok_team *team);

/* "threads", "mpi", "nccl". */
const char *mok_team_peer_name(const struct mok_team *team);

/* What one rank does; config is complete. A rank that leaves with an error must abort its group first, if it has one. */
typedef mok_status (*mok_team_work)(void *context, struct mok_team *team, const mok_group_config *config);

/* Runs work for every rank of this process and waits for all. Returns the failure that came first (not the MOK_ERR_ABORTED that it caused
 * on others) and its sentence; with processes all of them return a failure when one failed. */
mok_status mok_team_run(struct mok_team *team, mok_team_work work, void *context);

/* Inside work: waits until all ranks have come. */
void mok_team_wait(struct mok_team *team);

/* Makes the failure of one process one of all: the largest status, with the sentence of its process. Threads: returns `status`.
 * what: completes "waited for all ranks to ...". */
mok_status mok_team_agree(const struct mok_team *team, mok_status status, const char *what);

/* Runs work once, on the process that prints, for as long as it takes; all processes return its status. */
mok_status mok_team_lead(const struct mok_team *team, mok_status (*work)(void *context), void *context);

/* Piece of memory that the process of `rank` has filled, to the same place in the process of rank 0. Call on all processes, in the same
 * order. Threads: nothing to do. */
void mok_team_collect(const struct mok_team *team, int32_t rank, void *data, size_t bytes);

#endif
