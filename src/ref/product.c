/*
 * C += op(A) * op(B) in double. A block of B is copied so that it lies as [k][8 columns]; four rows of A then run along it, with 4 x 8 sums
 * in registers (pairs of doubles, which every x86-64 and arm64 machine has). All three forms differ only in the strides of A and B.
 */
#include "ref/product.h"

#include <string.h>

enum {
    ROWS = 4,    /* rows of C at a time */
    COLUMNS = 8, /* columns of C at a time */
    PAIRS = COLUMNS / 2,
    DEPTH = 256 /* of k at a time: a block of B is 16 KiB, and stays in the first cache */
};

typedef double pair __attribute__((vector_size(16)));

/* c[4, 8] += a[4, depth] * block[depth, 8]; rows of a that do not exist repeat the last one, and are not stored. */
static void add_block(int64_t depth, const double *const a[ROWS], int64_t a_step, const pair *block, double *c, int64_t c_stride, int rows,
                      int columns)
{
    pair sum[ROWS][PAIRS];
    memset(sum, 0, sizeof sum);
    for (int64_t p = 0; p < depth; p++) {
        const pair *b = block + p * PAIRS;
        for (int r = 0; r < ROWS; r++) {
            double value = a[r][p * a_step];
            pair twice = {value, value};
            sum[r][0] += twice * b[0];
            sum[r][1] += twice * b[1];
            sum[r][2] += twice * b[2];
            sum[r][3] += twice * b[3];
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int j = 0; j < columns; j++) {
            c[r * c_stride + j] += sum[r][j / 2][j % 2];
        }
    }
}

/* Element (i, p) of op(A) is a[i * a_row + p * a_step], element (p, j) of op(B) is b[p * b_row + j * b_step]. */
static void multiply(int64_t m, int64_t n, int64_t k, const double *a, int64_t a_row, int64_t a_step, const double *b, int64_t b_row,
                     int64_t b_step, double *c)
{
    pair block[DEPTH * PAIRS];
    for (int64_t k0 = 0; k0 < k; k0 += DEPTH) {
        int64_t depth = k - k0 < DEPTH ? k - k0 : DEPTH;
        for (int64_t j0 = 0; j0 < n; j0 += COLUMNS) {
            int columns = n - j0 < COLUMNS ? (int)(n - j0) : COLUMNS;
            for (int64_t p = 0; p < depth; p++) {
                for (int j = 0; j < COLUMNS; j++) {
                    block[p * PAIRS + j / 2][j % 2] = j < columns ? b[(k0 + p) * b_row + (j0 + j) * b_step] : 0.0;
                }
            }
            for (int64_t i0 = 0; i0 < m; i0 += ROWS) {
                int rows = m - i0 < ROWS ? (int)(m - i0) : ROWS;
                const double *rows_of_a[ROWS];
                for (int r = 0; r < ROWS; r++) {
                    rows_of_a[r] = a + (i0 + (r < rows ? r : rows - 1)) * a_row + k0 * a_step;
                }
                add_block(depth, rows_of_a, a_step, block, c + i0 * n + j0, n, rows, columns);
            }
        }
    }
}

void mok_ref_product_nt(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c)
{
    multiply(m, n, k, a, k, 1, b, 1, k, c);
}

void mok_ref_product_nn(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c)
{
    multiply(m, n, k, a, k, 1, b, n, 1, c);
}

void mok_ref_product_tn(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c)
{
    multiply(m, n, k, a, 1, m, b, n, 1, c);
}
