/*
 * y and dx of a token from its slots.
 */
#include "ref/sum.h"

#include <math.h>

void mok_ref_sum_y(const struct mok_ref_problem *problem, const mok_bf16 *slots, const mok_bf16 *shared_y, int64_t token, mok_bf16 *y_out)
{
    int64_t hidden = problem->hidden;
    for (int64_t j = 0; j < hidden; j++) {
        float v = problem->shared_w == NULL ? 1.0f : problem->shared_w[token];
        float acc = shared_y == NULL ? 0.0f : v * mok_bf16_to_float(shared_y[token * hidden + j]);
        for (int64_t route = token * problem->top_k; route < (token + 1) * problem->top_k; route++) {
            if (mok_ref_is_routed(problem, route)) {
                acc = fmaf(problem->w[route], mok_bf16_to_float(slots[route * hidden + j]), acc);
            }
        }
        y_out[j] = mok_bf16_from_float(acc);
    }
}

void mok_ref_sum_dx(const struct mok_ref_problem *problem, const mok_bf16 *slots, const mok_bf16 *shared_dx, int64_t token,
                    mok_bf16 *dx_out)
{
    int64_t hidden = problem->hidden;
    for (int64_t j = 0; j < hidden; j++) {
        float acc = shared_dx == NULL ? 0.0f : mok_bf16_to_float(shared_dx[token * hidden + j]);
        for (int64_t route = token * problem->top_k; route < (token + 1) * problem->top_k; route++) {
            if (mok_ref_is_routed(problem, route)) {
                acc += mok_bf16_to_float(slots[route * hidden + j]);
            }
        }
        dx_out[j] = mok_bf16_from_float(acc);
    }
}
