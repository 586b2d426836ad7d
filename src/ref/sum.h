/*
 * The last step of each pass, as docs/numerics.md writes it: fp32, in the order of k, one rounding. Check 3 takes these sums over a
 * backend's own slots; oracle 2 over its own rows.
 */
#ifndef MOK_REF_SUM_H
#define MOK_REF_SUM_H

#include "ref/problem.h"

/* y_out [H] of one token from slots [N * K, H]; shared_y [N, H] or NULL. Routes that are not routed are not read. */
void mok_ref_sum_y(const struct mok_ref_problem *problem, const mok_bf16 *slots, const mok_bf16 *shared_y, int64_t token, mok_bf16 *y_out);
/* dx_out [H] of one token; shared_dx [N, H] or NULL. */
void mok_ref_sum_dx(const struct mok_ref_problem *problem, const mok_bf16 *slots, const mok_bf16 *shared_dx, int64_t token,
                    mok_bf16 *dx_out);

#endif
