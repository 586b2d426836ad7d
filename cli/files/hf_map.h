/*
 * Hugging Face names of one MoE layer to libmok's matrices.
 *
 * Under a prefix such as "model.layers.2.mlp" stand (e = expert, P = prefix):
 *   experts one by one  P.experts.e.gate_proj.weight [I,H], up_proj.weight [I,H], down_proj.weight [H,I]; Mixtral also w1, w3, w2
 *   or all in one       P.experts.gate_up_proj [E,2I,H] and down_proj [E,H,I], or both transposed, [E,H,2I] and [E,I,H]; gate rows come
 *                       first, but in turn with up rows in gpt-oss, which is always transposed
 *   router              P.gate.weight [E,H] (gpt-oss: P.router.weight and .bias), e_score_correction_bias [E] of the sigmoid routers
 *   shared expert       P.shared_expert.* and P.shared_expert_gate.weight [1,H] (Qwen2-MoE), P.shared_experts.* (DeepSeek, GLM)
 * Matrices are BF16; biases of the router F32 or BF16. gpt-oss's expert biases are accepted when all of them are zero. A missing tensor,
 * a wrong shape or dtype, and any tensor under the prefix that has no place here is refused by name: leaving it out would change the
 * result silently.
 */
#ifndef MOK_CLI_HF_MAP_H
#define MOK_CLI_HF_MAP_H

#include "base/bf16.h"
#include "files/hf_config.h"
#include "files/safetensors.h"

/* One FFN: gate, up [num, width, H], down [num, H, width], dense, 64-byte aligned; NULL when width is 0. */
struct mok_hf_ffn {
    mok_bf16 *gate, *up, *down;
};

struct mok_hf_layer {
    struct mok_hf_config config;
    struct mok_hf_ffn routed; /* num = E, width = I */
    struct mok_hf_ffn shared; /* num = 1, width = Is */
    mok_bf16 *router;         /* [E, H] */
    float *router_bias;       /* [E], added to the logits; NULL = none */
    float *choice_bias;       /* [E], added to the score for choosing only; NULL = none */
    mok_bf16 *shared_gate;    /* [H], sigmoid(x . shared_gate) weights the shared expert; NULL = weight 1 */
};

/* Errors: MOK_ERR_IO (what is wrong with the file), MOK_ERR_MEMORY. */
mok_status mok_hf_layer_load(const struct mok_safetensors *file, const char *prefix, const struct mok_hf_config *config,
                             struct mok_hf_layer *layer_out);
/* Frees what a layer holds; an all-zero layer is accepted. */
void mok_hf_layer_free(struct mok_hf_layer *layer);

#endif
