/*
 * The router helper's choice: from logits [T, E] to expert ids and weights [T, K]. Each token on its own, everything in fp32.
 *
 *   score     softmax over all E, or sigmoid; with softmax_after the logit itself
 *   choosing  score + bias; the bias decides who is chosen and nothing else
 *   groups    experts in num_groups equal runs of ids. A group counts as the sum of its two best choosing scores (its only one, in groups
 *             of one); the keep_groups best stay, and nobody outside them is a candidate, however low the scores inside are
 *   choice    the K best candidates, best first; equal scores: the lower id (equal groups: the lower group)
 *   weight    the score without the bias: never (score + bias) - bias, which loses small scores. With softmax_after: softmax over the
 *             K chosen logits, which normalize does not touch
 *   normalize softmax: divided by the sum, unless that is 0; sigmoid: divided by sum + 1e-20. So weights that underflow stay finite
 *   scale     multiplied in last
 *
 * NaN: a score that is NaN ranks below every number, -inf included, and is chosen only when candidates run out. Ids are valid and
 * distinct whatever the logits are. A NaN among the logits shows in the weights by plain arithmetic: in all of its token's weights where
 * they share a sum (softmax over all E; normalize and softmax_after if it is chosen), else in its own; never in another token's. An
 * infinite logit is a NaN in the same way under softmax.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/hd.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/tensor.h"

enum { GROUP_BEST = 2 };

/* Added to a sum of sigmoids before it divides (DeepSeek-V3). */
static const float sigmoid_floor = 1e-20f;

void mok_router_config_init(mok_router_config *config_out)
{
    if (config_out != NULL) {
        *config_out = (mok_router_config){.struct_size = sizeof *config_out,
                                          .score = MOK_SCORE_SOFTMAX,
                                          .num_groups = 1,
                                          .keep_groups = 1,
                                          .normalize = 1,
                                          .scale = 1.0f};
    }
}

/* ---- checks ------------------------------------------------------------------------------------------------------------- */

static mok_status check_groups(const mok_router_config *config)
{
    if (config->num_groups < 1 || config->num_experts % config->num_groups != 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.num_groups is %d: must be at least 1 and divide num_experts (%d)", config->num_groups,
                             config->num_experts);
    }
    if (config->keep_groups < 1 || config->keep_groups > config->num_groups) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.keep_groups is %d: must be from 1 to num_groups (%d)", config->keep_groups, config->num_groups);
    }
    int64_t num_candidates = (int64_t)config->keep_groups * (config->num_experts / config->num_groups);
    if (config->top_k > num_candidates) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.top_k is %d: must be at most the %lld experts (of %d) that %d of %d groups hold", config->top_k,
                             (long long)num_candidates, config->num_experts, config->keep_groups, config->num_groups);
    }
    return MOK_OK;
}

static mok_status check_flag(const char *name, int32_t flag)
{
    return flag == 0 || flag == 1 ? MOK_OK : mok_base_fail(MOK_ERR_ARGUMENT, "%s is %d: must be 0 or 1", name, flag);
}

static mok_status check_config(const mok_router_config *config)
{
    if (config == NULL) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config is NULL: must be given");
    }
    if (config->struct_size != sizeof *config) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.struct_size is %zu: must be %zu, fill it with mok_router_config_init",
                             config->struct_size, sizeof *config);
    }
    if (config->score != MOK_SCORE_SOFTMAX && config->score != MOK_SCORE_SIGMOID) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.score is %d: must be a mok_score (0..1)", config->score);
    }
    if (config->num_experts < 1 || config->num_experts > MOK_MAX_EXPERTS) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.num_experts is %d: must be from 1 to %d", config->num_experts, MOK_MAX_EXPERTS);
    }
    if (config->top_k < 1 || config->top_k > MOK_MAX_TOP_K || config->top_k > config->num_experts) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.top_k is %d: must be from 1 to %d (num_experts is %d; at most %d)", config->top_k,
                             config->num_experts < MOK_MAX_TOP_K ? config->num_experts : MOK_MAX_TOP_K, config->num_experts, MOK_MAX_TOP_K);
    }
    MOK_TRY(check_flag("config.normalize", config->normalize));
    MOK_TRY(check_flag("config.softmax_after", config->softmax_after));
    if (config->softmax_after && config->score != MOK_SCORE_SOFTMAX) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.softmax_after is 1 with config.score %d: must be 0, but for MOK_SCORE_SOFTMAX (0)",
                             config->score);
    }
    if (!isfinite(config->scale)) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.scale is %g: must be finite", (double)config->scale);
    }
    if ((uintptr_t)config->bias % sizeof *config->bias != 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.bias is %p: must be a multiple of %zu bytes", (const void *)config->bias, sizeof *config->bias);
    }
    return check_groups(config);
}

static mok_status check_tensors(const float *logits, int64_t num_tokens, const int32_t *ids_out, const float *w_out)
{
    if (num_tokens < 0 || num_tokens > INT32_MAX) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "num_tokens is %lld: must be from 0 to %d", (long long)num_tokens, INT32_MAX);
    }
    MOK_TRY(mok_base_check_tensor("logits", logits, sizeof *logits, num_tokens, "token"));
    MOK_TRY(mok_base_check_tensor("ids_out", ids_out, sizeof *ids_out, num_tokens, "token"));
    return mok_base_check_tensor("w_out", w_out, sizeof *w_out, num_tokens, "token");
}

/* ---- the best of a list ------------------------------------------------------------------------------------------------- */

static int is_better(float a, float b) { return !isnan(a) && (isnan(b) || a > b); }

/* The best few seen so far, best first. Offered in ascending order of id, so that equal ones keep the lower id in front. */
struct ranking {
    int32_t room;
    int32_t num_ranked;
    int32_t *ids;  /* [room] */
    float *scores; /* [room] */
};

static void offer(struct ranking *ranking, int32_t id, float score)
{
    int32_t place = ranking->num_ranked;
    while (place > 0 && is_better(score, ranking->scores[place - 1])) {
        place--;
    }
    if (place == ranking->room) {
        return;
    }
    if (ranking->num_ranked < ranking->room) {
        ranking->num_ranked++;
    }
    for (int32_t i = ranking->num_ranked - 1; i > place; i--) {
        ranking->ids[i] = ranking->ids[i - 1];
        ranking->scores[i] = ranking->scores[i - 1];
    }
    ranking->ids[place] = id;
    ranking->scores[place] = score;
}

/* ---- one token ---------------------------------------------------------------------------------------------------------- */

/* Room for one token's work. */
struct bench {
    float *scores;       /* [E] without bias */
    float *choosing;     /* [E] with bias */
    int32_t *kept;       /* [keep_groups] */
    float *group_scores; /* [keep_groups] */
};

/* In two forms, so that neither overflows and small scores keep their digits. */
static float sigmoid(float z)
{
    float e = expf(-fabsf(z));
    return z < 0.0f ? e / (1.0f + e) : 1.0f / (1.0f + e);
}

static void softmax(const float *logits, int32_t num, float *scores_out)
{
    float top = logits[0];
    float sum = 0.0f;
    for (int32_t e = 1; e < num; e++) {
        top = is_better(logits[e], top) ? logits[e] : top;
    }
    for (int32_t e = 0; e < num; e++) {
        scores_out[e] = expf(logits[e] - top);
        sum += scores_out[e];
    }
    for (int32_t e = 0; e < num; e++) {
        scores_out[e] /= sum;
    }
}

static void score_experts(const mok_router_config *config, const float *logits, struct bench *bench)
{
    int32_t num_experts = config->num_experts;
    if (config->score == MOK_SCORE_SOFTMAX && !config->softmax_after) {
        softmax(logits, num_experts, bench->scores);
    }
    for (int32_t e = 0; e < num_experts; e++) {
        if (config->score == MOK_SCORE_SIGMOID) {
            bench->scores[e] = sigmoid(logits[e]);
        } else if (config->softmax_after) {
            bench->scores[e] = logits[e];
        }
        bench->choosing[e] = config->bias == NULL ? bench->scores[e] : bench->scores[e] + config->bias[e];
    }
}

static float score_group(const float *choosing, int32_t size)
{
    int32_t ids[GROUP_BEST];
    float best[GROUP_BEST];
    struct ranking ranking = {.room = GROUP_BEST, .ids = ids, .scores = best};
    for (int32_t e = 0; e < size; e++) {
        offer(&ranking, e, choosing[e]);
    }
    return ranking.num_ranked == 1 ? best[0] : best[0] + best[1];
}

static int compare_ids(const void *a, const void *b)
{
    int32_t left = *(const int32_t *)a;
    int32_t right = *(const int32_t *)b;
    return (left > right) - (left < right);
}

/* Fills bench->kept, ascending, so that candidates are offered in order of id. */
static void keep_best_groups(const mok_router_config *config, struct bench *bench)
{
    int32_t size = config->num_experts / config->num_groups;
    if (config->keep_groups == config->num_groups) {
        for (int32_t g = 0; g < config->num_groups; g++) {
            bench->kept[g] = g;
        }
        return;
    }
    struct ranking ranking = {.room = config->keep_groups, .ids = bench->kept, .scores = bench->group_scores};
    for (int32_t g = 0; g < config->num_groups; g++) {
        offer(&ranking, g, score_group(bench->choosing + (int64_t)g * size, size));
    }
    qsort(bench->kept, (size_t)config->keep_groups, sizeof *bench->kept, compare_ids);
}

static void weigh(const mok_router_config *config, const float *logits, const struct bench *bench, const int32_t *ids, float *w_out)
{
    int32_t top_k = config->top_k;
    float chosen[MOK_MAX_TOP_K];
    float sum = 0.0f;
    for (int32_t k = 0; k < top_k; k++) {
        chosen[k] = config->softmax_after ? logits[ids[k]] : bench->scores[ids[k]];
        sum += chosen[k];
    }
    if (config->softmax_after) {
        softmax(chosen, top_k, w_out);
    }
    float divisor = config->score == MOK_SCORE_SIGMOID ? sum + sigmoid_floor : sum;
    int divides = config->normalize && !config->softmax_after && divisor != 0.0f;
    for (int32_t k = 0; k < top_k; k++) {
        float weight = config->softmax_after ? w_out[k] : divides ? chosen[k] / divisor : chosen[k];
        w_out[k] = weight * config->scale;
    }
}

static void choose_token(const mok_router_config *config, const float *logits, struct bench *bench, int32_t *ids_out, float *w_out)
{
    int32_t size = config->num_experts / config->num_groups;
    float best[MOK_MAX_TOP_K];
    struct ranking ranking = {.room = config->top_k, .ids = ids_out, .scores = best};
    score_experts(config, logits, bench);
    keep_best_groups(config, bench);
    for (int32_t i = 0; i < config->keep_groups; i++) {
        int32_t first = bench->kept[i] * size;
        for (int32_t e = first; e < first + size; e++) {
            offer(&ranking, e, bench->choosing[e]);
        }
    }
    weigh(config, logits, bench, ids_out, w_out);
}

mok_status mok_router_choose(const mok_router_config *config, const float *logits, int64_t num_tokens, int32_t *ids_out, float *w_out)
{
    MOK_TRY(check_config(config));
    MOK_TRY(check_tensors(logits, num_tokens, ids_out, w_out));
    size_t num_experts = (size_t)config->num_experts;
    size_t num_kept = (size_t)config->keep_groups;
    float *memory = malloc((2 * num_experts + num_kept) * sizeof(float) + num_kept * sizeof(int32_t));
    if (memory == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for the scores of %d experts", config->num_experts);
    }
    struct bench bench = {.scores = memory, .choosing = memory + num_experts, .group_scores = memory + 2 * num_experts};
    bench.kept = (int32_t *)(bench.group_scores + num_kept);
    for (int64_t t = 0; t < num_tokens; t++) {
        choose_token(config, logits + t * config->num_experts, &bench, ids_out + t * config->top_k, w_out + t * config->top_k);
    }
    free(memory);
    return MOK_OK;
}
