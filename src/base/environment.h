/*
 * The MOK_* names of the environment, looked at when a group's config is filled: which ones the library, its tool and its tests read.
 */
#ifndef MOK_BASE_ENVIRONMENT_H
#define MOK_BASE_ENVIRONMENT_H

#include <mok/mok.h>

/* MOK_ERR_ARGUMENT when MOK_LOG is not what the log understands, or MOK_TEST_DELAY_US not what the CPU backend does. */
mok_status mok_base_environment_check(void);

/* Once in a process: a warning in the log for each MOK_* name that nobody reads, with the known name nearest to it. One that is near enough to be
 * a typing error, has words added to a known one, or is a rank's or a size's, is told unless MOK_LOG=0, others from MOK_LOG=1 on: they may belong to
 * somebody else. variable_at: the idx-th option's variable, NULL past the end. */
void mok_base_environment_warn(const char *(*variable_at)(int32_t idx));

#endif
