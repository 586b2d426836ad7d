/*
 * The config.json of a Hugging Face model, as far as one MoE layer needs it: which family, sizes, router, activation.
 *
 * A value that changes the arithmetic and that libmok does not implement is refused by name, never ignored. A key that a family may leave
 * out has the default that the `transformers` package gives it.
 */
#ifndef MOK_CLI_HF_CONFIG_H
#define MOK_CLI_HF_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "message.h"

enum mok_hf_family {
    MOK_HF_QWEN3_MOE,
    MOK_HF_QWEN2_MOE,
    MOK_HF_MIXTRAL,
    MOK_HF_DEEPSEEK_V3,
    MOK_HF_OLMOE,
    MOK_HF_GLM4_MOE,
    MOK_HF_GPT_OSS,
    MOK_HF_NUM_FAMILIES
};

struct mok_hf_config {
    enum mok_hf_family family;
    int32_t num_experts;
    int32_t top_k;
    int32_t hidden;
    int32_t inter;        /* width of a routed expert */
    int32_t shared_inter; /* width of the shared expert, all shared experts of a DeepSeek side by side; 0 = none */
    int32_t score;        /* mok_score */
    int32_t num_groups;
    int32_t keep_groups;
    int32_t normalize;
    int32_t softmax_after;
    float scale;
    mok_activation activation;
};

/* "qwen3_moe", the model_type of a family. */
const char *mok_hf_family_name(enum mok_hf_family family);

/* text [size]: the JSON; label stands for the file in sentences. Errors: MOK_ERR_IO. */
mok_status mok_hf_config_parse(const char *text, size_t size, const char *label, struct mok_hf_config *config_out);
mok_status mok_hf_config_read(const char *path, struct mok_hf_config *config_out);

#endif
