/*
 * Agreement between ranks at creation: each rank shares how it fared and what must be the same; then all succeed or all fail.
 */
#ifndef MOK_API_AGREE_H
#define MOK_API_AGREE_H

#include "pass/pass.h"

/*
 * Collective. `own` is this rank's verdict so far, its sentence that of mok_last_error. Returns MOK_OK when every rank says MOK_OK; own,
 * with its sentence, when that is a failure; else the failure of the lowest failing rank, with the rank and its sentence.
 */
mok_status mok_api_agree_success(struct mok_peer *peer, mok_status own);

/*
 * Collective. The same, and MOK_ERR_DISAGREE on every rank, with field, both values and ranks, when a value that must be the same is not.
 * config->backend is decided, not AUTO; setup is not looked at when own is a failure.
 */
mok_status mok_api_agree_setup(struct mok_peer *peer, const mok_group_config *config, const struct mok_pass_setup *setup,
                               mok_status own);

#endif
