/*
 * The router helper's choice: rules of routing that were got wrong elsewhere, one test each, and an independent choice to compare with.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bf16.h"
#include "mok/mok.h"

static mok_router_config make_config(int32_t score, int32_t top_k, int32_t num_experts)
{
    mok_router_config config;
    mok_router_config_init(&config);
    config.score = score;
    config.top_k = top_k;
    config.num_experts = num_experts;
    return config;
}

static void choose(const mok_router_config *config, const float *logits, int64_t num_tokens, int32_t *ids, float *w)
{
    mok_status status = mok_router_choose(config, logits, num_tokens, ids, w);
    if (status != MOK_OK) {
        fail_msg("%s: %s", mok_status_name(status), mok_last_error());
    }
}

static void assert_ids(const int32_t *ids, const int32_t *expected, int32_t num)
{
    for (int32_t k = 0; k < num; k++) {
        if (ids[k] != expected[k]) {
            fail_msg("choice %d is expert %d, expected %d", k, ids[k], expected[k]);
        }
    }
}

static void assert_close(float value, double expected, double relative)
{
    if (!(fabs(value - expected) <= relative * fabs(expected))) {
        fail_msg("%.9g is not within %g of %.9g", (double)value, relative, expected);
    }
}

/* ---- scores and weights ------------------------------------------------------------------------------------------------- */

static void test_softmax_is_what_it_says(void **state)
{
    (void)state;
    const float logits[4] = {1.0f, 3.0f, -2.0f, 2.5f};
    double sum = exp(1.0) + exp(3.0) + exp(-2.0) + exp(2.5);
    int32_t ids[2];
    float w[2];
    mok_router_config config = make_config(MOK_SCORE_SOFTMAX, 2, 4);
    config.normalize = 0;
    choose(&config, logits, 1, ids, w);
    assert_ids(ids, (const int32_t[]){1, 3}, 2);
    assert_close(w[0], exp(3.0) / sum, 1e-6);
    assert_close(w[1], exp(2.5) / sum, 1e-6);
    config.normalize = 1;
    choose(&config, logits, 1, ids, w);
    assert_close(w[0], exp(3.0) / (exp(3.0) + exp(2.5)), 1e-6);
    config.softmax_after = 1; /* gpt-oss: the same numbers here, another way to them */
    config.normalize = 0;
    choose(&config, logits, 1, ids, w);
    assert_ids(ids, (const int32_t[]){1, 3}, 2);
    assert_close(w[0], exp(3.0) / (exp(3.0) + exp(2.5)), 1e-6);
    assert_close(w[1], exp(2.5) / (exp(3.0) + exp(2.5)), 1e-6);
}

static void test_softmax_survives_large_logits(void **state)
{
    (void)state;
    const float logits[3] = {3e38f, 2.9e38f, -3e38f};
    int32_t ids[3];
    float w[3];
    mok_router_config config = make_config(MOK_SCORE_SOFTMAX, 3, 3);
    for (int32_t after = 0; after < 2; after++) {
        config.softmax_after = after;
        choose(&config, logits, 1, ids, w);
        assert_ids(ids, (const int32_t[]){0, 1, 2}, 3);
        assert_true(w[0] == 1.0f && w[1] == 0.0f && w[2] == 0.0f);
    }
}

static void test_sigmoid_is_what_it_says(void **state)
{
    (void)state;
    const float logits[4] = {-3.0f, 4.0f, -100.0f, 0.5f};
    int32_t ids[4];
    float w[4];
    mok_router_config config = make_config(MOK_SCORE_SIGMOID, 4, 4);
    config.normalize = 0;
    choose(&config, logits, 1, ids, w);
    assert_ids(ids, (const int32_t[]){1, 3, 0, 2}, 4);
    assert_close(w[0], 1.0 / (1.0 + exp(-4.0)), 1e-6);
    assert_close(w[1], 1.0 / (1.0 + exp(-0.5)), 1e-6);
    assert_close(w[2], 1.0 / (1.0 + exp(3.0)), 1e-6);
    assert_close(w[3], exp(-100.0), 0.05); /* an fp32 subnormal: exp(100) would have overflowed to give 0 */
}

/* G2 */
static void test_sigmoids_that_all_underflow_give_finite_weights(void **state)
{
    (void)state;
    float logits[16];
    int32_t ids[8];
    float w[8];
    for (int32_t e = 0; e < 16; e++) {
        logits[e] = -110.0f;
    }
    mok_router_config config = make_config(MOK_SCORE_SIGMOID, 8, 16);
    choose(&config, logits, 1, ids, w);
    for (int32_t k = 0; k < 8; k++) {
        assert_int_equal(ids[k], k);
        assert_true(w[k] == 0.0f);
    }
    /* The same for a softmax whose chosen scores are all 0, which needs a bias that picks them. */
    float bias[16];
    for (int32_t e = 0; e < 16; e++) {
        logits[e] = e == 15 ? 200.0f : 0.0f;
        bias[e] = e == 15 ? -5.0f : 0.0f;
    }
    config = make_config(MOK_SCORE_SOFTMAX, 8, 16);
    config.bias = bias;
    choose(&config, logits, 1, ids, w);
    for (int32_t k = 0; k < 8; k++) {
        assert_int_equal(ids[k], k);
        assert_true(w[k] == 0.0f);
    }
}

/* G3 */
static void test_weight_is_the_unbiased_score(void **state)
{
    (void)state;
    const float logits[3] = {-18.420681f, 2.0f, 1.0f}; /* sigmoid of the first: 1e-8 */
    const float bias[3] = {12.0f, 0.0f, 0.0f};
    int32_t ids[2];
    float w[2];
    mok_router_config config = make_config(MOK_SCORE_SIGMOID, 2, 3);
    config.bias = bias;
    config.normalize = 0;
    choose(&config, logits, 1, ids, w);
    assert_ids(ids, (const int32_t[]){0, 1}, 2);
    assert_close(w[0], 1e-8, 1e-5);
    /* With softmax_after the bias chooses on logits, and the weights come from the logits without it. */
    const float few[3] = {1.0f, 2.0f, 3.0f};
    config = make_config(MOK_SCORE_SOFTMAX, 2, 3);
    config.softmax_after = 1;
    config.bias = bias;
    choose(&config, few, 1, ids, w);
    assert_ids(ids, (const int32_t[]){0, 2}, 2);
    assert_close(w[0], 1.0 / (1.0 + exp(2.0)), 1e-6);
}

/* As mok.h says: under softmax -inf weighs nothing and +inf is NaN for its token; under sigmoid they are 0 and 1. */
static void test_weights_of_infinite_logits(void **state)
{
    (void)state;
    const float logits[3][3] = {{-INFINITY, 1.0f, -INFINITY}, {INFINITY, 1.0f, 0.0f}, {-INFINITY, -INFINITY, -INFINITY}};
    int32_t ids[6];
    float w[6];
    for (int32_t softmax_after = 0; softmax_after < 2; softmax_after++) {
        mok_router_config config = make_config(MOK_SCORE_SOFTMAX, 2, 3);
        config.softmax_after = softmax_after;
        choose(&config, logits[0], 3, ids, w);
        assert_ids(ids, (const int32_t[]){1, 0}, 2);
        assert_true(w[0] == 1.0f && w[1] == 0.0f);
        for (int32_t k = 2; k < 6; k++) {
            assert_true(isnan(w[k]));
        }
    }
    mok_router_config config = make_config(MOK_SCORE_SIGMOID, 2, 3);
    config.normalize = 0;
    choose(&config, logits[1], 2, ids, w);
    assert_ids(ids, (const int32_t[]){0, 1}, 2);
    assert_true(w[0] == 1.0f && w[2] == 0.0f && w[3] == 0.0f);
}

/* G6: the routed part is scaled once, last. */
static void test_scale_is_last(void **state)
{
    (void)state;
    const float logits[4] = {0.0f, 1.0f, 2.0f, 3.0f};
    int32_t ids[2];
    float plain[2];
    float scaled[2];
    for (int32_t kind = 0; kind < 3; kind++) {
        mok_router_config config = make_config(kind == 1 ? MOK_SCORE_SIGMOID : MOK_SCORE_SOFTMAX, 2, 4);
        config.softmax_after = kind == 2;
        choose(&config, logits, 1, ids, plain);
        config.scale = 2.5f;
        choose(&config, logits, 1, ids, scaled);
        assert_true(scaled[0] == 2.5f * plain[0] && scaled[1] == 2.5f * plain[1]);
        assert_close(scaled[0] + scaled[1], 2.5, 1e-6);
    }
}

/* G7: what bf16 would tie, fp32 tells apart; what is equal goes to the lower id. */
static void test_ties_and_near_ties(void **state)
{
    (void)state;
    const float near[4] = {0.4999f, 0.5001f, 0.4999f, 0.5f};
    const float equal[5] = {1.0f, 2.0f, 2.0f, 1.0f, 2.0f};
    int32_t ids[4];
    float w[4];
    for (int32_t kind = 0; kind < 3; kind++) {
        mok_router_config config = make_config(kind == 1 ? MOK_SCORE_SIGMOID : MOK_SCORE_SOFTMAX, 4, 4);
        config.softmax_after = kind == 2;
        choose(&config, near, 1, ids, w);
        assert_ids(ids, (const int32_t[]){1, 3, 0, 2}, 4);
        config.num_experts = 5;
        choose(&config, equal, 1, ids, w);
        assert_ids(ids, (const int32_t[]){1, 2, 4, 0}, 4);
    }
}

/* ---- groups ------------------------------------------------------------------------------------------------------------- */

/* G1: all choosing scores are negative; a masked expert with score 0 would win. */
static void test_masked_groups_are_never_chosen(void **state)
{
    (void)state;
    const float bias[8] = {-2.0f, -1.95f, -1.9f, -1.85f, -1.5f, -1.55f, -1.7f, -1.75f};
    float logits[8];
    int32_t ids[4];
    float w[4];
    for (int32_t e = 0; e < 8; e++) {
        logits[e] = -20.0f; /* scores near 0: the bias decides */
    }
    mok_router_config config = make_config(MOK_SCORE_SIGMOID, 2, 8);
    config.num_groups = 4;
    config.keep_groups = 2;
    config.bias = bias;
    choose(&config, logits, 1, ids, w);
    assert_ids(ids, (const int32_t[]){4, 5}, 2);
    config.top_k = 4; /* everybody in the kept groups 2 and 3 */
    choose(&config, logits, 1, ids, w);
    assert_ids(ids, (const int32_t[]){4, 5, 6, 7}, 4);
}

/* A group counts as the sum of its two best, not as its best. */
static void test_group_score_is_the_sum_of_two(void **state)
{
    (void)state;
    const float logits[9] = {5.0f, -9.0f, -9.0f, 1.0f, 1.5f, -9.0f, 0.0f, 0.1f, 0.2f};
    int32_t ids[2];
    float w[2];
    mok_router_config config = make_config(MOK_SCORE_SIGMOID, 2, 9);
    config.num_groups = 3;
    config.keep_groups = 1;
    choose(&config, logits, 1, ids, w); /* sums near 0.99, 1.55, 1.07 */
    assert_ids(ids, (const int32_t[]){4, 3}, 2);
    config.keep_groups = 2;
    choose(&config, logits, 1, ids, w);
    assert_ids(ids, (const int32_t[]){4, 3}, 2);
    config.num_groups = 9; /* groups of one: the groups are the experts */
    choose(&config, logits, 1, ids, w);
    assert_ids(ids, (const int32_t[]){0, 4}, 2);
}

static void test_equal_groups_keep_the_lower(void **state)
{
    (void)state;
    const float logits[8] = {0.0f, 0.0f, 1.0f, 0.0f, 0.0f, 1.0f, 0.0f, 1.0f};
    int32_t ids[4];
    float w[4];
    mok_router_config config = make_config(MOK_SCORE_SIGMOID, 4, 8);
    config.num_groups = 4;
    config.keep_groups = 2;
    choose(&config, logits, 1, ids, w); /* groups 1, 2, 3 are equal */
    assert_ids(ids, (const int32_t[]){2, 5, 3, 4}, 4);
}

/* ---- NaN and infinities ------------------------------------------------------------------------------------------------- */

static void assert_valid(const int32_t *ids, int32_t num, int32_t num_experts)
{
    for (int32_t k = 0; k < num; k++) {
        assert_in_range(ids[k], 0, num_experts - 1);
        for (int32_t j = 0; j < k; j++) {
            assert_int_not_equal(ids[j], ids[k]);
        }
    }
}

static void test_nan_is_chosen_last_and_stays_with_its_token(void **state)
{
    (void)state;
    const float logits[2][4] = {{NAN, 1.0f, -INFINITY, NAN}, {0.0f, 1.0f, 2.0f, 3.0f}};
    int32_t ids[2][3];
    float w[2][3];
    mok_router_config config = make_config(MOK_SCORE_SIGMOID, 3, 4);
    config.normalize = 0;
    choose(&config, logits[0], 2, ids[0], w[0]);
    assert_ids(ids[0], (const int32_t[]){1, 2, 0}, 3);
    assert_true(w[0][0] > 0.7f && w[0][1] == 0.0f && isnan(w[0][2]));
    assert_ids(ids[1], (const int32_t[]){3, 2, 1}, 3);
    assert_true(isfinite(w[1][0]) && isfinite(w[1][1]) && isfinite(w[1][2]));
    config = make_config(MOK_SCORE_SOFTMAX, 3, 4);
    choose(&config, logits[0], 2, ids[0], w[0]);
    assert_valid(ids[0], 3, 4);
    assert_true(isnan(w[0][0]) && isnan(w[0][1]) && isnan(w[0][2]));
    assert_close(w[1][0] + w[1][1] + w[1][2], 1.0, 1e-6);
    config.softmax_after = 1;
    config.top_k = 2;
    choose(&config, logits[0], 1, ids[0], w[0]);
    assert_ids(ids[0], (const int32_t[]){1, 2}, 2);
    assert_true(w[0][0] == 1.0f && w[0][1] == 0.0f);
}

/* A group of NaN ranks last; and where NaN fills the kept groups, masked experts still stay out. */
static void test_nan_in_groups(void **state)
{
    (void)state;
    const float logits[6] = {NAN, NAN, 1.0f, NAN, -1.0f, -1.0f};
    int32_t ids[4];
    float w[4];
    mok_router_config config = make_config(MOK_SCORE_SIGMOID, 2, 6);
    config.num_groups = 3;
    config.keep_groups = 1;
    config.normalize = 0;
    choose(&config, logits, 1, ids, w);
    assert_ids(ids, (const int32_t[]){4, 5}, 2);
    config.keep_groups = 2;
    config.top_k = 4;
    choose(&config, logits, 1, ids, w);
    assert_ids(ids, (const int32_t[]){4, 5, 0, 1}, 4); /* the sums of groups 0 and 1 are both NaN: the lower one is kept */
}

static void test_any_bits_give_valid_ids(void **state)
{
    (void)state;
    enum { E = 24, T = 64 };
    const float special[6] = {NAN, INFINITY, -INFINITY, 3.4e38f, -3.4e38f, 1e-45f};
    float logits[T * E];
    float bias[E];
    int32_t ids[T * E];
    float w[T * E];
    srand(7);
    for (int32_t i = 0; i < T * E; i++) {
        logits[i] = rand() % 3 == 0 ? special[rand() % 6] : (float)(rand() % 2000 - 1000) * 0.01f;
    }
    for (int32_t e = 0; e < E; e++) {
        bias[e] = e % 5 == 0 ? special[e % 6] : 0.5f;
    }
    for (int32_t variant = 0; variant < 24; variant++) {
        mok_router_config config = make_config(variant % 3 == 0, 6, E);
        config.softmax_after = variant % 3 == 2;
        config.bias = variant & 4 ? bias : NULL;
        config.num_groups = variant & 8 ? 6 : 1;
        config.keep_groups = variant & 8 ? 3 : 1;
        config.top_k = variant & 16 ? (variant & 8 ? 12 : E) : 6;
        choose(&config, logits, T, ids, w);
        for (int32_t t = 0; t < T; t++) {
            assert_valid(ids + t * config.top_k, config.top_k, E);
        }
    }
}

/* ---- against a choice made another way ---------------------------------------------------------------------------------- */

/* Sorts all experts by the rules, in double from the fp32 scores' inputs; the logits are far enough apart for both to agree. */
static void choose_slowly(const mok_router_config *config, const float *logits, int32_t *ids_out)
{
    double score[64];
    int is_out[64] = {0};
    int32_t size = config->num_experts / config->num_groups;
    for (int32_t e = 0; e < config->num_experts; e++) {
        score[e] = 1.0 / (1.0 + exp(-(double)logits[e])) + (double)config->bias[e];
    }
    for (int32_t g = 0; g < config->num_groups; g++) {
        int32_t num_ahead = 0; /* groups with a larger sum of two */
        double sums[64];
        for (int32_t h = 0; h < config->num_groups; h++) {
            double first = -1e9;
            double second = -1e9;
            for (int32_t e = h * size; e < (h + 1) * size; e++) {
                second = score[e] > first ? first : score[e] > second ? score[e] : second;
                first = score[e] > first ? score[e] : first;
            }
            sums[h] = first + second;
        }
        for (int32_t h = 0; h < config->num_groups; h++) {
            num_ahead += sums[h] > sums[g];
        }
        for (int32_t e = g * size; e < (g + 1) * size; e++) {
            is_out[e] = num_ahead >= config->keep_groups;
        }
    }
    for (int32_t k = 0; k < config->top_k; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < config->num_experts; e++) {
            best = !is_out[e] && (best < 0 || score[e] > score[best]) ? e : best;
        }
        ids_out[k] = best;
        is_out[best] = 1;
    }
}

static void test_groups_against_a_slow_choice(void **state)
{
    (void)state;
    float logits[64];
    float bias[64];
    int32_t ids[8];
    int32_t expected[8];
    float w[8];
    srand(11);
    mok_router_config config = make_config(MOK_SCORE_SIGMOID, 8, 64);
    config.num_groups = 8;
    config.keep_groups = 4;
    config.bias = bias;
    for (int32_t trial = 0; trial < 500; trial++) {
        for (int32_t e = 0; e < 64; e++) {
            logits[e] = (float)rand() / (float)RAND_MAX * 6.0f - 3.0f;
            bias[e] = (float)rand() / (float)RAND_MAX - 0.5f;
        }
        choose(&config, logits, 1, ids, w);
        choose_slowly(&config, logits, expected);
        assert_ids(ids, expected, 8);
        double sum = 0.0;
        for (int32_t k = 0; k < 8; k++) {
            sum += 1.0 / (1.0 + exp(-(double)logits[expected[k]]));
        }
        for (int32_t k = 0; k < 8; k++) {
            assert_close(w[k], 1.0 / (1.0 + exp(-(double)logits[expected[k]])) / sum, 1e-6);
        }
    }
}

/* ---- refusals ----------------------------------------------------------------------------------------------------------- */

static void assert_refused(const mok_router_config *config, const char *text)
{
    float logits[8] = {0};
    int32_t ids[8] = {-7};
    float w[8] = {-7.0f};
    assert_int_equal(mok_router_choose(config, logits, 1, ids, w), MOK_ERR_ARGUMENT);
    /* Argument, value and rule, as the refusals of a group's calls. */
    if (strstr(mok_last_error(), text) == NULL || strncmp(mok_last_error(), "config", 6) != 0 || strstr(mok_last_error(), ": must be ") == NULL) {
        fail_msg("\"%s\" does not say \"%s\", or not: config.field is VALUE: must be RULE", mok_last_error(), text);
    }
    assert_true(ids[0] == -7 && w[0] == -7.0f);
}

static void test_bad_configs_are_refused_by_name(void **state)
{
    (void)state;
    mok_router_config config;
    mok_router_config_init(NULL); /* does nothing, as the other _init functions */
    mok_router_config_init(&config);
    assert_refused(&config, "num_experts is 0");
    assert_refused(NULL, "config is NULL: must be given");
    config = make_config(MOK_SCORE_SOFTMAX, 9, 8);
    assert_refused(&config, "top_k is 9");
    config = make_config(MOK_SCORE_SOFTMAX, 65, 128);
    assert_refused(&config, "top_k is 65");
    config = make_config(2, 2, 8);
    assert_refused(&config, "score is 2");
    config = make_config(MOK_SCORE_SIGMOID, 2, 8);
    config.softmax_after = 1;
    assert_refused(&config, "softmax_after");
    config = make_config(MOK_SCORE_SIGMOID, 2, 8);
    config.num_groups = 3;
    assert_refused(&config, "num_groups is 3");
    config.num_groups = 4;
    config.keep_groups = 5;
    assert_refused(&config, "keep_groups is 5");
    config.keep_groups = 1;
    config.top_k = 3;
    assert_refused(&config, "config.top_k is 3: must be at most the 2 experts (of 8) that 1 of 4 groups hold");
    config = make_config(MOK_SCORE_SIGMOID, 2, 8);
    config.scale = NAN;
    assert_refused(&config, "scale is nan");
    config.struct_size = 4;
    assert_refused(&config, "struct_size is 4");
}

static void test_bad_tensors_are_refused_by_name(void **state)
{
    (void)state;
    mok_router_config config = make_config(MOK_SCORE_SOFTMAX, 1, 4);
    float logits[4] = {0};
    mok_bf16 x[4] = {0};
    int32_t id = 0;
    float w = 0.0f;
    assert_int_equal(mok_router_choose(&config, logits, -1, &id, &w), MOK_ERR_ARGUMENT);
    assert_int_equal(mok_router_choose(&config, NULL, 1, &id, &w), MOK_ERR_ARGUMENT);
    assert_int_equal(mok_router_choose(&config, logits, 1, NULL, &w), MOK_ERR_ARGUMENT);
    assert_int_equal(mok_router_choose(&config, logits, 1, &id, NULL), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "w_out is NULL: must be given with 1 token"));
    assert_int_equal(mok_router_choose(&config, NULL, 0, NULL, NULL), MOK_OK);
    assert_int_equal(mok_router_logits(x, x, NULL, 1, 0, 1, logits), MOK_ERR_ARGUMENT);
    assert_string_equal(mok_last_error(), "hidden is 0: must be from 1 to 1048576");
    assert_int_equal(mok_router_logits(x, x, NULL, 1, 4, 0, logits), MOK_ERR_ARGUMENT);
    assert_string_equal(mok_last_error(), "num_experts is 0: must be from 1 to 1048576");
    assert_int_equal(mok_router_logits(x, NULL, NULL, 1, 4, 1, logits), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "weight is NULL: must be given with 1 token"));
    assert_int_equal(mok_router_logits(NULL, NULL, NULL, 0, 4, 1, NULL), MOK_OK);
}

/* The last sentence: a tensor is off the alignment of its elements. */
static void is_off(mok_status status, const char *name, int bytes)
{
    char first[64], second[64];
    snprintf(first, sizeof first, "%s is 0x", name);
    snprintf(second, sizeof second, ": must be a multiple of %d bytes", bytes);
    assert_int_equal(status, MOK_ERR_ARGUMENT);
    assert_ptr_equal(strstr(mok_last_error(), first), mok_last_error());
    assert_non_null(strstr(mok_last_error(), second));
}

#define OFF(pointer, bytes) ((void *)((uintptr_t)(pointer) + (bytes)))

/* Tensors of the helpers need the alignment of their elements, and no more. */
static void test_tensors_between_elements_are_refused(void **state)
{
    (void)state;
    mok_router_config config = make_config(MOK_SCORE_SOFTMAX, 1, 4);
    float logits[6] = {0}, bias[6] = {0}, w[3];
    mok_bf16 x[6] = {0};
    int32_t ids[3];
    is_off(mok_router_choose(&config, OFF(logits, 2), 1, ids, w), "logits", 4);
    is_off(mok_router_choose(&config, logits, 1, OFF(ids, 1), w), "ids_out", 4);
    is_off(mok_router_choose(&config, logits, 1, ids, OFF(w, 2)), "w_out", 4);
    config.bias = OFF(bias, 2);
    is_off(mok_router_choose(&config, logits, 1, ids, w), "config.bias", 4);
    config.bias = OFF(bias, 4);
    assert_int_equal(mok_router_choose(&config, OFF(logits, 4), 1, OFF(ids, 4), OFF(w, 4)), MOK_OK);
    is_off(mok_router_logits(OFF(x, 1), x, NULL, 1, 4, 1, logits), "x", 2);
    is_off(mok_router_logits(x, OFF(x, 1), NULL, 1, 4, 1, logits), "weight", 2);
    is_off(mok_router_logits(x, x, OFF(bias, 2), 1, 4, 1, logits), "bias", 4);
    is_off(mok_router_logits(x, x, NULL, 1, 4, 1, OFF(logits, 2)), "logits_out", 4);
    assert_int_equal(mok_router_logits(OFF(x, 2), OFF(x, 2), OFF(bias, 4), 1, 4, 1, OFF(logits, 4)), MOK_OK);
    assert_int_equal(mok_router_logits(OFF(x, 1), OFF(x, 1), OFF(bias, 1), 0, 4, 1, OFF(logits, 1)), MOK_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softmax_is_what_it_says),
        cmocka_unit_test(test_softmax_survives_large_logits),
        cmocka_unit_test(test_sigmoid_is_what_it_says),
        cmocka_unit_test(test_sigmoids_that_all_underflow_give_finite_weights),
        cmocka_unit_test(test_weight_is_the_unbiased_score),
        cmocka_unit_test(test_weights_of_infinite_logits),
        cmocka_unit_test(test_scale_is_last),
        cmocka_unit_test(test_ties_and_near_ties),
        cmocka_unit_test(test_masked_groups_are_never_chosen),
        cmocka_unit_test(test_group_score_is_the_sum_of_two),
        cmocka_unit_test(test_equal_groups_keep_the_lower),
        cmocka_unit_test(test_nan_is_chosen_last_and_stays_with_its_token),
        cmocka_unit_test(test_nan_in_groups),
        cmocka_unit_test(test_any_bits_give_valid_ids),
        cmocka_unit_test(test_groups_against_a_slow_choice),
        cmocka_unit_test(test_bad_configs_are_refused_by_name),
        cmocka_unit_test(test_bad_tensors_are_refused_by_name),
        cmocka_unit_test(test_tensors_between_elements_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
