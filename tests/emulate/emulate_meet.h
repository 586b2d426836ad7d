/*
 * The barrier between ranks on the emulated machine.
 */
#ifndef MOK_EMULATE_MEET_H
#define MOK_EMULATE_MEET_H

#include "cuda/kernel.h"
#include "emulate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs one rank's barrier; deed(context), when it is not NULL, happens at a random moment of it. */
void emulate_barrier(const struct mok_cuda_barrier_args *args, void (*deed)(void *context), void *context, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
