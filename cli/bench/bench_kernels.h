/*
 * Kernels of `mok bench` itself: a gate that holds a stream until everything behind it is enqueued, and random data.
 *
 * The gate. Each rank enqueues HOLD, then the work to be timed. HOLD says that it has arrived and waits for the host's word. The host
 * opens the gate when every rank has enqueued its work and every HOLD has arrived: then all GPUs start within a few microseconds, and
 * none waits for its host.
 */
#ifndef MOK_CLI_BENCH_KERNELS_H
#define MOK_CLI_BENCH_KERNELS_H

#include <stdint.h>

#include "shape_settings.h"

/* In pinned host memory that every GPU of the process addresses. Words are numbers of rounds, ascending from 1. */
struct mok_bench_gate {
    uint32_t go;                            /* host writes, HOLD reads */
    uint32_t arrived[MOK_SHAPE_MAX_RANKS];  /* HOLD of the rank writes, host reads */
    uint32_t given_up[MOK_SHAPE_MAX_RANKS]; /* HOLD of the rank writes 1 when its limit was over before the gate opened */
};

#ifdef __cplusplus
extern "C" {
#endif

/* All enqueue on `stream` (cudaStream_t) and return a cudaError_t. Each kernel must have run once before a HOLD waits: the first launch
 * of a kernel loads it, which waits for the device. */
int mok_bench_hold(struct mok_bench_gate *gate, int32_t rank, uint32_t round, uint64_t limit_ns, void *stream);
/* out [count] bf16: normal values, mean 0, standard deviation `scale`; a pure function of seed and place. */
int mok_bench_fill_normal(void *out, int64_t count, float scale, uint64_t seed, void *stream);

#ifdef __cplusplus
}
#endif
#endif
