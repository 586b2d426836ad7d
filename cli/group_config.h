/*
 * What the tool asks of a group's config before there is a group: what it runs on, and whether this machine and the command can do with it.
 */
#ifndef MOK_CLI_GROUP_CONFIG_H
#define MOK_CLI_GROUP_CONFIG_H

#include "message.h"

/* What this config runs on, AUTO resolved: the tool must know where tensors live. */
int mok_config_is_cuda(const mok_group_config *config);
/* "cpu" or "cuda". */
const char *mok_config_backend_name(const mok_group_config *config);

/* "threads", "mpi", "nccl" or "external". */
const char *mok_config_peer_name(const mok_group_config *config);

/* MOK_OK when this build and this machine have the backend; else NOT_BUILT, NO_DEVICE, or MEMORY. */
mok_status mok_config_check_backend(const mok_group_config *config);

/* Whether a forward pass can be followed by a backward pass. Errors: ARGUMENT. */
mok_status mok_config_check_saved(const mok_group_config *config);

/* One line to standard error when the CPU workers that were asked for, of num_ranks ranks together, are far more than the machine has
 * CPUs: they would hinder each other, up to time-outs. */
void mok_config_warn_workers(const mok_group_config *config, int32_t num_ranks);

#endif
