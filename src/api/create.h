/*
 * Creation with given ops tables: mok_group_create finds them in the config; tests hand in tables that fail on purpose.
 */
#ifndef MOK_API_CREATE_H
#define MOK_API_CREATE_H

#include "pass/pass.h"

/* wanted has passed mok_api_check_config. */
mok_status mok_api_create(const mok_group_config *wanted, const struct mok_pass_ops *ops, const struct mok_peer_ops *peer_ops,
                          mok_group **group_out);

#endif
