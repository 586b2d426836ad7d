/*
 * Dense products through OpenBLAS. In: sizes. Out: time.
 */
#include "bench/bench_dense.h"

#ifdef MOK_HAVE_CPU
#include <cblas.h>
#endif
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ref/random.h"
#include "stage_times.h"

static float *make_operand(int64_t count)
{
    float *values = malloc((size_t)count * sizeof *values);
    struct mok_ref_random random = mok_ref_random_open("mok bench dense", 0, MOK_FOR_X, 0);
    for (int64_t idx = 0; idx < count && values != NULL; idx++) {
        values[idx] = (float)mok_ref_random_unit(&random) - 0.5f;
    }
    return values;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

mok_status mok_bench_dense_open(const struct mok_ref_problem *problem, struct mok_bench_dense *dense_out)
{
#ifndef MOK_HAVE_CPU
    return mok_cli_fail(MOK_ERR_NOT_BUILT, "this build has no OpenBLAS, which the dense products need");
#endif
    int64_t rows = 1;
    for (int32_t rank = 0; rank < problem->num_ranks; rank++) {
        rows = larger(rows, problem->tokens[rank] * problem->top_k);
    }
    int64_t width = larger(problem->inter, problem->shared_inter);
    int64_t widest = larger(2 * width, problem->hidden);
    struct mok_bench_dense dense = {.rows = rows, .num_threads = (int32_t)sysconf(_SC_NPROCESSORS_ONLN)};
    dense.wide = make_operand(rows * widest);
    dense.narrow = make_operand(rows * widest);
    dense.weight = make_operand(2 * width * problem->hidden);
    dense.result = make_operand(larger(rows * widest, 2 * width * problem->hidden));
    if (dense.wide == NULL || dense.narrow == NULL || dense.weight == NULL || dense.result == NULL) {
        mok_bench_dense_close(&dense);
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory for the operands of dense products of %lld rows", (long long)rows);
    }
    *dense_out = dense;
    return MOK_OK;
}

void mok_bench_dense_close(struct mok_bench_dense *dense)
{
    free(dense->wide);
    free(dense->narrow);
    free(dense->weight);
    free(dense->result);
    memset(dense, 0, sizeof *dense);
}

#ifdef MOK_HAVE_CPU

/* result [m, n] = a [m, k] (stored [k, m] when is_a_transposed) x b [k, n] (stored [n, k] when is_b_transposed). */
struct product {
    int is_a_transposed, is_b_transposed;
    int64_t m, n, k;
    const float *a, *b;
    float *result;
};

/* Rows [first, first + num) of the result. */
struct piece {
    const struct product *product;
    int64_t first, num;
    pthread_t thread;
    int is_started;
};

static void *multiply_piece(void *argument)
{
    const struct piece *piece = argument;
    const struct product *product = piece->product;
    const float *a = product->a + piece->first * (product->is_a_transposed ? 1 : product->k);
    cblas_sgemm(CblasRowMajor, product->is_a_transposed ? CblasTrans : CblasNoTrans, product->is_b_transposed ? CblasTrans : CblasNoTrans,
                (blasint)piece->num, (blasint)product->n, (blasint)product->k, 1.0f, a,
                (blasint)(product->is_a_transposed ? product->m : product->k), product->b,
                (blasint)(product->is_b_transposed ? product->k : product->n), 0.0f, product->result + piece->first * product->n,
                (blasint)product->n);
    return NULL;
}

/* A piece for each core, each a call on a thread of its own. */
static void multiply_in_pieces(const struct product *product, int32_t num_threads)
{
    enum { MAX_PIECES = 256 };
    struct piece pieces[MAX_PIECES];
    int64_t num = num_threads > MAX_PIECES ? MAX_PIECES : num_threads;
    for (int64_t idx = 0; idx < num; idx++) {
        int64_t first = product->m * idx / num;
        pieces[idx] = (struct piece){.product = product, .first = first, .num = product->m * (idx + 1) / num - first};
        pieces[idx].is_started = idx > 0 && pthread_create(&pieces[idx].thread, NULL, multiply_piece, &pieces[idx]) == 0;
    }
    for (int64_t idx = 0; idx < num; idx++) {
        if (!pieces[idx].is_started) {
            multiply_piece(&pieces[idx]);
        }
    }
    for (int64_t idx = 0; idx < num; idx++) {
        if (pieces[idx].is_started) {
            pthread_join(pieces[idx].thread, NULL);
        }
    }
}

/* 1: this file spreads a product over the cores, 0: OpenBLAS does. ThreadSanitizer does not see OpenBLAS's own waits and would report its
 * threads. */
static int is_cut_here(void)
{
#ifdef __SANITIZE_THREAD__
    return 1;
#else
    return openblas_get_parallel() == OPENBLAS_SEQUENTIAL;
#endif
}

static void multiply(const struct mok_bench_dense *dense, const struct product *product)
{
    if (is_cut_here()) {
        multiply_in_pieces(product, dense->num_threads);
    } else {
        multiply_piece(&(struct piece){.product = product, .first = 0, .num = product->m});
    }
}

/* rows x [H -> 2W -> H] forward; backward also the weight gradients. */
static void run_ffn(const struct mok_bench_dense *dense, int64_t rows, int64_t hidden, int64_t width, int is_backward)
{
    if (rows == 0 || width == 0) {
        return;
    }
    const struct product forward[] = {{0, 1, rows, 2 * width, hidden, dense->wide, dense->weight, dense->result},
                                      {0, 1, rows, hidden, width, dense->narrow, dense->weight, dense->result}};
    const struct product backward[] = {{0, 0, rows, width, hidden, dense->wide, dense->weight, dense->result},
                                       {0, 0, rows, hidden, 2 * width, dense->narrow, dense->weight, dense->result},
                                       {1, 0, 2 * width, hidden, rows, dense->narrow, dense->wide, dense->result},
                                       {1, 0, hidden, width, rows, dense->wide, dense->narrow, dense->result}};
    for (int idx = 0; idx < (is_backward ? 4 : 2); idx++) {
        multiply(dense, is_backward ? &backward[idx] : &forward[idx]);
    }
}

double mok_bench_dense_run(const struct mok_ref_problem *problem, const struct mok_bench_dense *dense, int is_backward)
{
    int before = openblas_get_num_threads();
    openblas_set_num_threads(is_cut_here() ? 1 : dense->num_threads);
    double begin = mok_stage_now_ms();
    for (int32_t rank = 0; rank < problem->num_ranks; rank++) {
        run_ffn(dense, problem->tokens[rank] * problem->top_k, problem->hidden, problem->inter, is_backward);
        run_ffn(dense, problem->tokens[rank], problem->hidden, problem->shared_inter, is_backward);
    }
    double end = mok_stage_now_ms();
    openblas_set_num_threads(before);
    return end - begin;
}

#else

double mok_bench_dense_run(const struct mok_ref_problem *problem, const struct mok_bench_dense *dense, int is_backward)
{
    (void)problem, (void)dense, (void)is_backward;
    return 0.0; /* mok_bench_dense_open has refused */
}

#endif
