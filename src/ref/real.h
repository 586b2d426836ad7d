/*
 * Arrays of doubles, as both oracles allocate them.
 */
#ifndef MOK_REF_REAL_H
#define MOK_REF_REAL_H

#include "ref/oracle.h"

/* Zeroed and never NULL for a count of 0. *failed becomes 1 when there is no memory, so that one test after many calls is enough. */
double *mok_ref_zeroed(int64_t count, int *failed);
void mok_ref_real_weights_alloc(struct mok_ref_real_weights *weights, int64_t num, int64_t width, int64_t hidden, int *failed);
void mok_ref_real_weights_free(struct mok_ref_real_weights *weights);

#endif
