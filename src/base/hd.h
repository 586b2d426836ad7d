/*
 * The same source on host and device: functions marked MOK_HD compile as C17 inline functions and as CUDA host+device functions.
 * They may use nothing but their arguments: no libc, no globals.
 */
#ifndef MOK_BASE_HD_H
#define MOK_BASE_HD_H

#include <stdint.h>

#if defined(__CUDACC__)
#define MOK_HD static __host__ __device__ __forceinline__
#else
#define MOK_HD static inline
#endif

#if defined(__cplusplus)
#define MOK_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define MOK_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

MOK_HD int64_t mok_min64(int64_t a, int64_t b) { return a < b ? a : b; }
MOK_HD int64_t mok_max64(int64_t a, int64_t b) { return a > b ? a : b; }
MOK_HD int64_t mok_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
MOK_HD int64_t mok_round_up(int64_t a, int64_t b) { return mok_ceil_div(a, b) * b; }

#endif
