/*
 * The yardstick of `mok bench`: the products of a layer as dense ones, one cblas_sgemm after another on all cores, operands already fp32.
 * An OpenBLAS that was built without threads gets them here: each product is then cut along its rows, one piece a core.
 *
 * Forward: [TK,H]x[H,2I] and [TK,I]x[I,H] for each rank (and the shared expert's with T rows and width Is). Backward: [TK,H]x[H,I] and
 * [TK,2I]x[2I,H] for the rows, [2I,TK]x[TK,H] and [H,TK]x[TK,I] for the weights.
 */
#ifndef MOK_CLI_BENCH_DENSE_H
#define MOK_CLI_BENCH_DENSE_H

#include <stdint.h>

#include "message.h"
#include "ref/problem.h"

struct mok_bench_dense {
    int64_t rows; /* TK of the rank with most tokens: operands are made once and used for all ranks */
    int32_t num_threads;
    float *wide, *narrow, *weight, *result; /* shared by all products: contents do not matter, sizes do */
};

/* Errors: MEMORY, NOT_BUILT (no OpenBLAS). */
mok_status mok_bench_dense_open(const struct mok_ref_problem *problem, struct mok_bench_dense *dense_out);
void mok_bench_dense_close(struct mok_bench_dense *dense);

/* Runs all products of a pass; milliseconds. The number of BLAS threads is put back afterwards. */
double mok_bench_dense_run(const struct mok_ref_problem *problem, const struct mok_bench_dense *dense, int is_backward);

#endif
