/*
 * How the next launch of a fused kernel runs on the emulated machine.
 */
#ifndef MOK_EMULATE_BACKEND_H
#define MOK_EMULATE_BACKEND_H

#include <stdint.h>

struct emulate_launch {
    int32_t resident; /* CTAs that are there at one time; 0 = all */
    uint64_t seed;
};

extern struct emulate_launch emulate_next;

/* Runs the kernel with a struct mok_fused_args. */
void emulate_fused(const void *args, int32_t num_ctas, int32_t cluster, int32_t resident, uint64_t seed);
/* The same of a backward pass, with a struct mok_fused_backward_args. */
void emulate_fused_backward(const void *args, int32_t num_ctas, int32_t cluster, int32_t resident, uint64_t seed);
/* The next forward pass loses a panel on its way from a multiplying warp to the pusher. */
void emulate_fused_lose_panel(void);

#endif
