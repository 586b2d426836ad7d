/*
 * Arrays of doubles: allocation for both oracles, and a problem widened to doubles (exact).
 */
#include "ref/real.h"

#include <stdlib.h>
#include <string.h>

double *mok_ref_zeroed(int64_t count, int *failed)
{
    double *memory = calloc((size_t)count + 1, sizeof(double));
    *failed |= memory == NULL;
    return memory;
}

void mok_ref_real_weights_alloc(struct mok_ref_real_weights *weights, int64_t num, int64_t width, int64_t hidden, int *failed)
{
    weights->gate = mok_ref_zeroed(num * width * hidden, failed);
    weights->up = mok_ref_zeroed(num * width * hidden, failed);
    weights->down = mok_ref_zeroed(num * width * hidden, failed);
}

void mok_ref_real_weights_free(struct mok_ref_real_weights *weights)
{
    free(weights->gate);
    free(weights->up);
    free(weights->down);
    memset(weights, 0, sizeof *weights);
}

static double *widen_bf16(const mok_bf16 *from, int64_t count, int *failed)
{
    double *to = mok_ref_zeroed(count, failed);
    for (int64_t i = 0; to != NULL && i < count; i++) {
        to[i] = (double)mok_bf16_to_float(from[i]);
    }
    return to;
}

/* NULL stays NULL. */
static double *widen_float(const float *from, int64_t count, int *failed)
{
    double *to = from == NULL ? NULL : mok_ref_zeroed(count, failed);
    for (int64_t i = 0; to != NULL && i < count; i++) {
        to[i] = (double)from[i];
    }
    return to;
}

mok_status mok_ref_real_make(const struct mok_ref_problem *problem, struct mok_ref_real *real_out)
{
    int failed = 0;
    int64_t n = problem->num_tokens, hidden = problem->hidden;
    int64_t routed = (int64_t)problem->num_experts * problem->inter * hidden;
    int64_t shared = (int64_t)problem->shared_inter * hidden;
    struct mok_ref_real real = {0};
    real.of = problem;
    real.x = widen_bf16(problem->x, n * hidden, &failed);
    real.dy = widen_bf16(problem->dy, n * hidden, &failed);
    real.w = widen_float(problem->w, n * problem->top_k, &failed);
    real.shared_w = widen_float(problem->shared_w, n, &failed);
    real.routed =
        (struct mok_ref_real_weights){widen_bf16(problem->routed.gate, routed, &failed), widen_bf16(problem->routed.up, routed, &failed),
                                      widen_bf16(problem->routed.down, routed, &failed)};
    real.start =
        (struct mok_ref_real_weights){widen_float(problem->start.gate, routed, &failed), widen_float(problem->start.up, routed, &failed),
                                      widen_float(problem->start.down, routed, &failed)};
    if (shared > 0) {
        real.shared = (struct mok_ref_real_weights){widen_bf16(problem->shared.gate, shared, &failed),
                                                    widen_bf16(problem->shared.up, shared, &failed),
                                                    widen_bf16(problem->shared.down, shared, &failed)};
        shared *= problem->num_ranks;
        real.shared_start = (struct mok_ref_real_weights){widen_float(problem->shared_start.gate, shared, &failed),
                                                          widen_float(problem->shared_start.up, shared, &failed),
                                                          widen_float(problem->shared_start.down, shared, &failed)};
    }
    *real_out = real;
    if (failed) {
        mok_ref_real_free(real_out);
        return MOK_ERR_MEMORY;
    }
    return MOK_OK;
}

void mok_ref_real_free(struct mok_ref_real *real)
{
    free(real->x);
    free(real->dy);
    free(real->w);
    free(real->shared_w);
    mok_ref_real_weights_free(&real->routed);
    mok_ref_real_weights_free(&real->shared);
    mok_ref_real_weights_free(&real->start);
    mok_ref_real_weights_free(&real->shared_start);
    memset(real, 0, sizeof *real);
}
