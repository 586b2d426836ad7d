/*
 * Matrix products in double, plain loops: C += op(A) * op(B), dense row-major, sums in an order of their own. Both oracles stand on them;
 * no BLAS, so that a fault of the BLAS under a backend shows.
 */
#ifndef MOK_REF_PRODUCT_H
#define MOK_REF_PRODUCT_H

#include <stdint.h>

/* c[m, n] += a[m, k] * b[n, k]^T */
void mok_ref_product_nt(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c);
/* c[m, n] += a[m, k] * b[k, n] */
void mok_ref_product_nn(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c);
/* c[m, n] += a[k, m]^T * b[k, n] */
void mok_ref_product_tn(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c);

#endif
