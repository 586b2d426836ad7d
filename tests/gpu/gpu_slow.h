/*
 * Kernels of the tests: one that takes its time, to make a stream late; one that holds SMs; one that compares bits where they are.
 */
#ifndef MOK_GPU_SLOW_H
#define MOK_GPU_SLOW_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Loads these kernels on the current device: a first launch may wait for a kernel that waits. */
int gpu_load_kernels(void);

/* The others enqueue on `stream` (cudaStream_t) and return a cudaError_t. */

/* Does nothing for `ns` nanoseconds. */
int gpu_slow(void *stream, uint64_t ns);

/* Takes half the threads and all shared memory of num_sms SMs until words[1] is not 0, or the limit is over. words[0] counts the SMs it has. words:
 * device address of pinned host memory, zeroed. */
int gpu_hold(void *stream, int32_t num_sms, uint32_t *words, uint64_t limit_ns);

/* Adds the number of 16-byte words in which a and b differ to *count (device memory). bytes: a multiple of 16. */
int gpu_count_differences(void *stream, const void *a, const void *b, size_t bytes, uint32_t *count);

/* What cudaMemcpyAsync and cudaMemsetAsync do, by a kernel. to, from: multiples of 16 bytes, bytes too. */
int gpu_copy(void *stream, void *to, const void *from, size_t bytes);
int gpu_fill(void *stream, void *to, int byte, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
