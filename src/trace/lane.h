/*
 * Numbers of the workers that a GPU's events name (trace/event.h): worker 0 is the rank's stream, whose launches are its work; behind it come
 * the roles of the persistent kernel's CTAs. Plain numbers, for kernels, host and tool alike.
 */
#ifndef MOK_TRACE_LANE_H
#define MOK_TRACE_LANE_H

#include "base/hd.h"

enum mok_lane_role {
    MOK_LANE_MULTIPLY, /* one warp stands for all that multiply: they run the same steps */
    MOK_LANE_LOAD,
    MOK_LANE_SCOUT,
    MOK_LANE_MOVE,
    MOK_LANE_ROLES
};

MOK_HD int32_t mok_lane_worker(int32_t cta, int32_t role) { return 1 + cta * MOK_LANE_ROLES + role; }

/* worker >= 1 */
MOK_HD int32_t mok_lane_cta(int32_t worker) { return (worker - 1) / MOK_LANE_ROLES; }
MOK_HD int32_t mok_lane_role_of(int32_t worker) { return (worker - 1) % MOK_LANE_ROLES; }

#endif
