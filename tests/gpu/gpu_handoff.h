/*
 * A hand-off in shared memory, as small as it can be, to find out what racecheck sees (gpu_handoff.c).
 */
#ifndef MOK_GPU_HANDOFF_H
#define MOK_GPU_HANDOFF_H

#include <stdint.h>

struct gpu_handoff {
    int32_t rounds;
    int32_t each_lane;  /* 1: every lane waits and arrives for itself; 0: one lane does so for its warp */
    int32_t early;      /* 1: a fault: the reading warp says that it has read, then reads */
    int32_t matrix;     /* 1: the words are written by stmatrix; not across */
    int32_t across;     /* 1: the writing warp is in another CTA of the cluster than the data and their readers */
};

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a CUDA error. sum_out: of all that was read. */
int gpu_run_handoff(const struct gpu_handoff *how, uint32_t *sum_out);
#ifdef __cplusplus
}
#endif
#endif
