/*
 * config.json to sizes and rules. In: JSON that anybody may have written. Out: a checked mok_hf_config.
 *
 * One table says what is fixed for a family and where its sizes stand; the rest is reading keys with their ranges.
 */
#include "files/hf_config.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files/input_file.h"

#define MAX_CONFIG_BYTES (16 << 20)

enum shared_kind {
    SHARED_NONE,
    SHARED_WIDTH, /* shared_expert_intermediate_size, weighted by a gate of its own (Qwen2-MoE) */
    SHARED_COUNT  /* n_shared_experts of the routed width, side by side (DeepSeek) */
};

struct family {
    const char *model_type;
    const char *inter_key;
    enum shared_kind shared;
    int32_t score;
    int32_t has_groups;
    int32_t softmax_after;
    int32_t has_norm_key;      /* norm_topk_prob is read; else `normalize` is fixed */
    int32_t normalize;         /* value, or default where the key may be missing */
    int32_t scale_key;         /* routed_scaling_factor is read */
    double scale;              /* its default */
    mok_activation activation; /* limit 0: none */
};

#define PLAIN   \
    {           \
        0, 1, 0 \
    }

static const struct family families[MOK_HF_NUM_FAMILIES] = {
    [MOK_HF_QWEN3_MOE] = {"qwen3_moe", "moe_intermediate_size", SHARED_NONE, MOK_SCORE_SOFTMAX, 0, 0, 1, 0, 0, 1.0, PLAIN},
    [MOK_HF_QWEN2_MOE] = {"qwen2_moe", "moe_intermediate_size", SHARED_WIDTH, MOK_SCORE_SOFTMAX, 0, 0, 1, 0, 0, 1.0, PLAIN},
    [MOK_HF_MIXTRAL] = {"mixtral", "intermediate_size", SHARED_NONE, MOK_SCORE_SOFTMAX, 0, 0, 0, 1, 0, 1.0, PLAIN},
    [MOK_HF_DEEPSEEK_V3] = {"deepseek_v3", "moe_intermediate_size", SHARED_COUNT, MOK_SCORE_SIGMOID, 1, 0, 1, 1, 1, 2.5, PLAIN},
    [MOK_HF_OLMOE] = {"olmoe", "intermediate_size", SHARED_NONE, MOK_SCORE_SOFTMAX, 0, 0, 1, 0, 0, 1.0, PLAIN},
    [MOK_HF_GLM4_MOE] = {"glm4_moe", "moe_intermediate_size", SHARED_COUNT, MOK_SCORE_SIGMOID, 1, 0, 1, 1, 1, 1.0, PLAIN},
    [MOK_HF_GPT_OSS] = {"gpt_oss", "intermediate_size", SHARED_NONE, MOK_SCORE_SOFTMAX, 0, 1, 0, 0, 0, 1.0, {7.0f, 1.702f, 1.0f}},
};

const char *mok_hf_family_name(enum mok_hf_family family) { return families[family].model_type; }

struct reader {
    const char *label;
    const cJSON *root;
};

/* Value of a key; NULL when it is missing or null. */
static const cJSON *find(const struct reader *reader, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(reader->root, key);
    return item == NULL || cJSON_IsNull(item) ? NULL : item;
}

/* A whole number in [least, most]; missing: `missing`, or refused when that is negative. */
static mok_status read_count(const struct reader *reader, const char *key, int32_t least, int32_t most, int32_t missing,
                             int32_t *value_out)
{
    const cJSON *item = find(reader, key);
    if (item == NULL) {
        if (missing < 0) {
            return mok_cli_fail(MOK_ERR_IO, "%s: key \"%s\" is missing", reader->label, key);
        }
        *value_out = missing;
        return MOK_OK;
    }
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1.0;
    if (!(value >= least && value <= most && value == floor(value))) {
        return mok_cli_fail(MOK_ERR_IO, "%s: key \"%s\" must be a whole number from %d to %d", reader->label, key, least, most);
    }
    *value_out = (int32_t)value;
    return MOK_OK;
}

static mok_status read_flag(const struct reader *reader, const char *key, int32_t missing, int32_t *value_out)
{
    const cJSON *item = find(reader, key);
    if (item != NULL && !cJSON_IsBool(item)) {
        return mok_cli_fail(MOK_ERR_IO, "%s: key \"%s\" must be true or false", reader->label, key);
    }
    *value_out = item == NULL ? missing : cJSON_IsTrue(item) != 0;
    return MOK_OK;
}

/* Finite and > 0. */
static mok_status read_factor(const struct reader *reader, const char *key, double missing, float *value_out)
{
    const cJSON *item = find(reader, key);
    double value = item == NULL ? missing : cJSON_IsNumber(item) ? item->valuedouble : -1.0;
    if (!(value > 0.0 && (float)value > 0.0f && isfinite((float)value))) {
        return mok_cli_fail(MOK_ERR_IO, "%s: key \"%s\" must be a number above 0 that fits fp32", reader->label, key);
    }
    *value_out = (float)value;
    return MOK_OK;
}

/* A key that may be missing but can have one value only: any other would change the arithmetic. */
static mok_status expect_word(const struct reader *reader, const char *key, const char *word)
{
    const cJSON *item = find(reader, key);
    if (item != NULL && (!cJSON_IsString(item) || strcmp(item->valuestring, word) != 0)) {
        return cJSON_IsString(item)
                   ? mok_cli_fail(MOK_ERR_IO, "%s: key \"%s\" is \"%s\": only \"%s\" is supported", reader->label, key,
                                  mok_cli_quote(item->valuestring), word)
                   : mok_cli_fail(MOK_ERR_IO, "%s: key \"%s\" is no string: only \"%s\" is supported", reader->label, key, word);
    }
    return MOK_OK;
}

static mok_status find_family(const struct reader *reader, enum mok_hf_family *family_out)
{
    const cJSON *item = find(reader, "model_type");
    for (int family = 0; cJSON_IsString(item) && family < MOK_HF_NUM_FAMILIES; family++) {
        if (strcmp(item->valuestring, families[family].model_type) == 0) {
            *family_out = (enum mok_hf_family)family;
            return MOK_OK;
        }
    }
    char known[160] = "";
    for (int family = 0; family < MOK_HF_NUM_FAMILIES; family++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", family == 0 ? "" : ", ", families[family].model_type);
    }
    if (!cJSON_IsString(item)) {
        return mok_cli_fail(MOK_ERR_IO, "%s: key \"model_type\" is %s: must be one of %s", reader->label, item == NULL ? "missing" : "no string",
                            known);
    }
    return mok_cli_fail(MOK_ERR_IO, "%s: model_type is \"%s\": must be one of %s", reader->label, mok_cli_quote(item->valuestring), known);
}

/* The number of experts has three names, by family and by version of the package; two that differ are refused. */
static mok_status read_num_experts(const struct reader *reader, int32_t *value_out)
{
    static const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    int32_t found = 0;
    for (size_t idx = 0; idx < sizeof keys / sizeof keys[0]; idx++) {
        int32_t value;
        MOK_TRY(read_count(reader, keys[idx], 1, 1 << 20, 0, &value));
        if (value != 0 && found != 0 && value != found) {
            return mok_cli_fail(MOK_ERR_IO, "%s: key \"%s\" is %d, but another name of it says %d", reader->label, keys[idx], value,
                                found);
        }
        found = value != 0 ? value : found;
    }
    if (found == 0) {
        return mok_cli_fail(MOK_ERR_IO, "%s: key \"num_experts\" (or num_local_experts, n_routed_experts) is missing", reader->label);
    }
    *value_out = found;
    return MOK_OK;
}

static mok_status read_sizes(const struct reader *reader, const struct family *family, struct mok_hf_config *config)
{
    MOK_TRY(read_num_experts(reader, &config->num_experts));
    MOK_TRY(read_count(reader, "num_experts_per_tok", 1, 64, -1, &config->top_k));
    MOK_TRY(read_count(reader, "hidden_size", 1, 1 << 24, -1, &config->hidden));
    MOK_TRY(read_count(reader, family->inter_key, 1, 1 << 24, -1, &config->inter));
    if (config->top_k > config->num_experts) {
        return mok_cli_fail(MOK_ERR_IO, "%s: num_experts_per_tok is %d, more than the %d experts", reader->label, config->top_k,
                            config->num_experts);
    }
    config->shared_inter = 0;
    if (family->shared == SHARED_WIDTH) {
        return read_count(reader, "shared_expert_intermediate_size", 1, 1 << 24, -1, &config->shared_inter);
    }
    if (family->shared == SHARED_COUNT) {
        int32_t count;
        MOK_TRY(read_count(reader, "n_shared_experts", 0, 1 << 6, 1, &count));
        if ((int64_t)count * config->inter > 1 << 24) {
            return mok_cli_fail(MOK_ERR_IO, "%s: %d shared experts of width %d are wider than %d together", reader->label, count,
                                config->inter, 1 << 24);
        }
        config->shared_inter = count * config->inter;
    }
    return MOK_OK;
}

static mok_status read_router(const struct reader *reader, const struct family *family, struct mok_hf_config *config)
{
    config->score = family->score;
    config->softmax_after = family->softmax_after;
    config->normalize = family->normalize;
    config->num_groups = 1;
    config->keep_groups = 1;
    config->scale = (float)family->scale;
    if (family->has_norm_key) {
        MOK_TRY(read_flag(reader, "norm_topk_prob", family->normalize, &config->normalize));
    }
    if (family->has_groups) {
        MOK_TRY(read_count(reader, "n_group", 1, config->num_experts, -1, &config->num_groups));
        MOK_TRY(read_count(reader, "topk_group", 1, config->num_groups, -1, &config->keep_groups));
    }
    if (family->scale_key) {
        MOK_TRY(read_factor(reader, "routed_scaling_factor", family->scale, &config->scale));
    }
    MOK_TRY(expect_word(reader, "scoring_func", family->score == MOK_SCORE_SIGMOID ? "sigmoid" : "softmax"));
    if (family->has_groups) {
        MOK_TRY(expect_word(reader, "topk_method", "noaux_tc"));
    }
    return MOK_OK;
}

static mok_status read_activation(const struct reader *reader, const struct family *family, struct mok_hf_config *config)
{
    MOK_TRY(expect_word(reader, "hidden_act", "silu"));
    config->activation = family->activation;
    if (family->activation.limit == 0.0f) {
        config->activation.limit = INFINITY;
        if (find(reader, "swiglu_limit") != NULL) {
            return mok_cli_fail(MOK_ERR_IO, "%s: key \"swiglu_limit\" is not supported for %s", reader->label, family->model_type);
        }
        return MOK_OK;
    }
    return read_factor(reader, "swiglu_limit", (double)family->activation.limit, &config->activation.limit);
}

mok_status mok_hf_config_parse(const char *text, size_t size, const char *label, struct mok_hf_config *config_out)
{
    cJSON *root = cJSON_ParseWithLength(text, size);
    struct reader reader = {label, root};
    struct mok_hf_config config = {0};
    mok_status status = MOK_OK;
    if (!cJSON_IsObject(root)) {
        status = mok_cli_fail(MOK_ERR_IO, "%s: is no JSON object", label);
    }
    if (status == MOK_OK) {
        status = find_family(&reader, &config.family);
    }
    const struct family *family = &families[config.family];
    if (status == MOK_OK) {
        status = read_sizes(&reader, family, &config);
    }
    if (status == MOK_OK) {
        status = read_router(&reader, family, &config);
    }
    if (status == MOK_OK) {
        status = read_activation(&reader, family, &config);
    }
    cJSON_Delete(root);
    if (status == MOK_OK) {
        *config_out = config;
    }
    return status;
}

/* Exactly `size` bytes. */
static mok_status read_all(const char *path, int file, char *text, size_t size)
{
    for (size_t used = 0; used < size;) {
        ssize_t got = read(file, text + used, size - used);
        if (got <= 0) {
            return mok_cli_fail(MOK_ERR_IO, "%s: cannot be read: %s", path, got == 0 ? "it has become shorter" : strerror(errno));
        }
        used += (size_t)got;
    }
    return MOK_OK;
}

mok_status mok_hf_config_read(const char *path, struct mok_hf_config *config_out)
{
    int file;
    size_t size;
    MOK_TRY(mok_input_open(path, &file, &size));
    if (size > MAX_CONFIG_BYTES) {
        close(file);
        return mok_cli_fail(MOK_ERR_IO, "%s: is larger than %d bytes", path, MAX_CONFIG_BYTES);
    }
    char *text = malloc(size + 1);
    mok_status status = text == NULL ? mok_cli_fail(MOK_ERR_MEMORY, "%s: no memory", path) : read_all(path, file, text, size);
    close(file);
    if (status == MOK_OK) {
        status = mok_hf_config_parse(text, size, path, config_out);
    }
    free(text);
    return status;
}
