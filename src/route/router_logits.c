/*
 * The router helper's logits: x [T, H] bf16 times weight [E, H] bf16, summed in fp32, plus an fp32 bias.
 *
 * A product of two bf16 is exact in fp32 as long as it does not underflow, so only the sum rounds. It runs over LANES strided partial
 * sums, which are then added in pairs: the order depends on H alone. A token's logits are the same bits in every batch.
 */
#include <stddef.h>
#include <stdlib.h>

#include "base/bf16.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/tensor.h"

enum { LANES = 16 };

/* One bf16 row as fp32, filled with zeros to a multiple of LANES. */
static void widen(const mok_bf16 *row, int32_t num, int64_t padded, float *row_out)
{
    for (int32_t i = 0; i < num; i++) {
        row_out[i] = mok_bf16_to_float(row[i]);
    }
    for (int64_t i = num; i < padded; i++) {
        row_out[i] = 0.0f;
    }
}

static float dot(const float *a, const float *b, int64_t padded)
{
    float lane[LANES] = {0.0f};
    for (int64_t i = 0; i < padded; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            lane[j] += a[i + j] * b[i + j];
        }
    }
    for (int width = LANES / 2; width > 0; width /= 2) {
        for (int j = 0; j < width; j++) {
            lane[j] += lane[j + width];
        }
    }
    return lane[0];
}

static mok_status check_arguments(const void *x, const void *weight, const float *bias, int64_t num_tokens, int32_t hidden, int32_t num_experts,
                                  const float *logits_out)
{
    if (num_tokens < 0 || num_tokens > INT32_MAX) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "num_tokens is %lld: must be from 0 to %d", (long long)num_tokens, INT32_MAX);
    }
    if (hidden < 1 || hidden > MOK_MAX_WIDTH) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "hidden is %d: must be from 1 to %d", hidden, MOK_MAX_WIDTH);
    }
    if (num_experts < 1 || num_experts > MOK_MAX_EXPERTS) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "num_experts is %d: must be from 1 to %d", num_experts, MOK_MAX_EXPERTS);
    }
    MOK_TRY(mok_base_check_tensor("x", x, sizeof(mok_bf16), num_tokens, "token"));
    MOK_TRY(mok_base_check_tensor("weight", weight, sizeof(mok_bf16), num_tokens, "token"));
    MOK_TRY(mok_base_check_tensor("bias", bias, sizeof *bias, bias == NULL ? 0 : num_tokens, "token"));
    return mok_base_check_tensor("logits_out", logits_out, sizeof *logits_out, num_tokens, "token");
}

mok_status mok_router_logits(const void *x, const void *weight, const float *bias, int64_t num_tokens, int32_t hidden, int32_t num_experts,
                             float *logits_out)
{
    MOK_TRY(check_arguments(x, weight, bias, num_tokens, hidden, num_experts, logits_out));
    if (num_tokens == 0) {
        return MOK_OK;
    }
    int64_t padded = mok_round_up(hidden, LANES);
    float *wide = malloc(((size_t)num_experts + 1) * (size_t)padded * sizeof *wide); /* the weights, then one token */
    if (wide == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for router weights [%d, %d] in fp32", num_experts, hidden);
    }
    for (int64_t e = 0; e < num_experts; e++) {
        widen((const mok_bf16 *)weight + e * hidden, hidden, padded, wide + e * padded);
    }
    float *token = wide + num_experts * padded;
    for (int64_t t = 0; t < num_tokens; t++) {
        widen((const mok_bf16 *)x + t * hidden, hidden, padded, token);
        for (int64_t e = 0; e < num_experts; e++) {
            float sum = dot(token, wide + e * padded, padded);
            logits_out[t * num_experts + e] = bias == NULL ? sum : sum + bias[e];
        }
    }
    free(wide);
    return MOK_OK;
}
