/*
 * Ranks as processes of one MPI world, for team.c alone. Nothing here waits without a limit: MPI's own calls wait for ever for a process
 * that was stopped or has died without a word. A wait that is given up is the end of the job: one sentence, then all processes are ended
 * with the code of an error, so these functions do not return from it.
 *
 * Called by the main thread only (MPI_THREAD_FUNNELED), by all processes in the same order.
 */
#ifndef MOK_CLI_PROCESSES_H
#define MOK_CLI_PROCESSES_H

#include <stddef.h>
#include <stdint.h>

#include "message.h"

/* Longest wait for another process from now on: peer_timeout_ms and 8 seconds, for a rank that leaves a pass at its own limit. Errors:
 * UNSUPPORTED, NOT_BUILT. */
mok_status mok_processes_start(int64_t peer_timeout_ms, int32_t *rank_out, int32_t *num_out);
/* Harmless when MPI was not started. */
void mok_processes_end(void);

/* `what` completes "rank 0 waited 9000 ms (..) for rank 2 to ...", or for ranks 2, 5: who has not come is named. What this process itself has
 * failed with, and cannot tell them yet, it says after a second. */
void mok_processes_meet(const char *what);
/* data [bytes] of rank `from` to all. */
void mok_processes_share(int32_t from, void *data, size_t bytes, const char *what);
/* mine [bytes] of every rank to all_out [num_ranks * bytes] of all. Every process must come with the same number of bytes. */
void mok_processes_gather(const void *mine, size_t bytes, void *all_out, const char *what);
/* The largest status, with the sentence of its process; a failure wins over the MOK_ERR_ABORTED that it caused. */
mok_status mok_processes_agree(mok_status status, const char *what);
/* data [bytes] of `rank` to the same place on rank 0. */
void mok_processes_collect(int32_t rank, void *data, size_t bytes);
/* Runs work on rank 0, for as long as it takes; the others wait for as long as they hear that rank 0 is alive. */
mok_status mok_processes_lead(mok_status (*work)(void *context), void *context);

#endif
