/*
 * The yardstick of `mok bench` on GPUs: the layer's products as dense ones through cuBLAS. The library is looked for when the tool runs;
 * neither libmok nor the tool links it.
 */
#ifndef MOK_CLI_BENCH_CUBLAS_H
#define MOK_CLI_BENCH_CUBLAS_H

#include "bench/bench_work.h"
#include "message.h"

/* Where libcublas stands in this process; found once. */
struct mok_bench_cublas;

/* $MOK_CUBLAS names the file; without it, where the linker looks, then beside CUDA. Errors: UNSUPPORTED (there is none), ARGUMENT (MOK_CUBLAS names
 * what cannot be loaded). */
mok_status mok_bench_cublas_find(const struct mok_bench_cublas **cublas_out);

/* One rank's handle. */
struct mok_bench_dense_gpu {
    const struct mok_bench_cublas *cublas; /* NULL = not open */
    void *handle;
    void *a, *b, *weight; /* bf16: rows, rows, one expert's matrices */
    void *grad;           /* fp32, as large as weight */
};

/* On the current device; work goes to `stream` (cudaStream_t). version_out: as cuBLAS counts, 130000 = 13.0. Errors: DEVICE. */
mok_status mok_bench_cublas_open(const struct mok_bench_cublas *cublas, void *stream, struct mok_bench_dense_gpu *dense_out,
                                 int *version_out);
void mok_bench_cublas_close(struct mok_bench_dense_gpu *dense);

/* Enqueues one product; nothing for a product that is none. The operands' contents do not matter, their sizes do: a is [m, k] or [k, m],
 * b takes the result or is [k, n]. Errors: DEVICE. */
mok_status mok_bench_cublas_multiply(const struct mok_bench_dense_gpu *dense, const struct mok_bench_product *product);

#endif
