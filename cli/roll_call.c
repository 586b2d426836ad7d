/*
 * Records of all processes, compared in the same order by each of them. In: the command line as parsed. Out: one status for all.
 */
#include "roll_call.h"

#include <stdio.h>
#include <string.h>

#include "command_line.h"
#include "group_config.h"
#include "processes.h"
#include "team.h"

struct record {
    struct mok_cli_started started;
    char backend[8];
    int32_t peer;
    int32_t status;     /* mok_status: a failure before anything was shared */
    char sentence[512]; /* of that failure */
};

/* Why `record` does not go with `first`, which is that of rank 0. Rank 0 says it: the names of options are those of its command. */
static mok_status compare(const struct record *first, const struct record *record, int32_t rank)
{
    if (strcmp(first->started.command, record->started.command) != 0) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "rank %d was started as mok %s, but rank 0 as mok %s: must be one command", (int)rank,
                            record->started.command, first->started.command);
    }
    const char *differs = strcmp(first->backend, record->backend) != 0 ? "backend" : first->peer != record->peer ? "peer" : NULL;
    for (int idx = 0; idx < MOK_CLI_MAX_OWN && differs == NULL; idx++) {
        differs = first->started.own[idx] != record->started.own[idx] ? mok_cli_own_name(idx) : NULL;
    }
    if (differs != NULL) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "rank %d was started with another --%s than rank 0: must be equal on all ranks", (int)rank,
                            differs);
    }
    if (first->started.names != record->started.names) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "rank %d was started with other arguments than rank 0: must be equal on all ranks",
                            (int)rank);
    }
    return MOK_OK;
}

mok_status mok_roll_call(const mok_group_config *config, mok_status status, int32_t num_ranks)
{
    struct record mine;
    struct record all[MOK_TEAM_MAX_RANKS];
    memset(&mine, 0, sizeof mine);
    mine.started = *mok_cli_started();
    snprintf(mine.backend, sizeof mine.backend, "%s", mok_config_backend_name(config));
    mine.peer = config->peer;
    mine.status = (int32_t)status;
    snprintf(mine.sentence, sizeof mine.sentence, "%s", status == MOK_OK ? "" : mok_cli_sentence());
    mok_processes_gather(&mine, sizeof mine, all, "tell the command line");
    /* Failures first: what a process lacks also explains why its settings are others. */
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        if (all[rank].status != MOK_OK) {
            char words[sizeof all[rank].sentence + 32];
            mok_cli_say_rank(rank, all[rank].sentence, words, sizeof words);
            return mok_cli_fail((mok_status)all[rank].status, "%s", rank == 0 ? all[rank].sentence : words);
        }
    }
    for (int32_t rank = 1; rank < num_ranks; rank++) {
        MOK_TRY(compare(&all[0], &all[rank], rank));
    }
    return MOK_OK;
}
