/*
 * A kernel that takes its time, to make a stream late.
 */
#ifndef MOK_GPU_SLOW_H
#define MOK_GPU_SLOW_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues a kernel on `stream` (cudaStream_t) that does nothing for `ns` nanoseconds. Returns a cudaError_t. */
int gpu_slow(void *stream, uint64_t ns);

#ifdef __cplusplus
}
#endif
#endif
