/*
 * The first thing that processes do together: each tells what it was started with and whether it can begin. mpirun may start each with
 * another command line; what they do afterwards fits together only when these agree.
 *
 * A record has the same size whatever the command and its options, so that any two processes can exchange it.
 */
#ifndef MOK_CLI_ROLL_CALL_H
#define MOK_CLI_ROLL_CALL_H

#include <stdint.h>

#include "message.h"

/* Collective, called by every process that has started MPI, also by one that cannot begin: `status` is how that one failed, with its
 * sentence. All processes return the same, by the first process that failed, else by the first that differs from rank 0.
 * Errors: status of the process that failed; ARGUMENT when commands or settings differ. */
mok_status mok_roll_call(const mok_group_config *config, mok_status status, int32_t num_ranks);

#endif
