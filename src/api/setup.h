/*
 * From a checked config to what a backend is created with.
 */
#ifndef MOK_API_SETUP_H
#define MOK_API_SETUP_H

#include "pass/pass.h"

/* The backend of a config. AUTO is CUDA where it can be used, else CPU. Errors: MOK_ERR_NOT_BUILT. */
mok_status mok_api_find_backend(int32_t backend, const struct mok_pass_ops **ops_out);

/* Fills what follows from the config, then lets the backend choose the rest. */
mok_status mok_api_setup(const mok_group_config *config, const struct mok_pass_ops *ops, struct mok_pass_setup *setup_out);

#endif
