/*
 * Names and layouts of checkpoints to dense matrices. In: a checked safetensors file, a checked config. Out: a mok_hf_layer that owns
 * copies.
 *
 * Every tensor that is read is marked; at the end one that is not marked and stands under the prefix is refused.
 */
#include "files/hf_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 512 };

struct loader {
    const struct mok_safetensors *file;
    const char *prefix;
    const struct mok_hf_config *config;
    unsigned char *used; /* [tensors of the file] */
};

/* ---- finding tensors ---------------------------------------------------------------------------------------------------- */

/* "<prefix>.<name>"; NULL when the file has no such tensor. */
static const struct mok_file_tensor *look(const struct loader *loader, const char *name)
{
    char full[MAX_NAME];
    int length = snprintf(full, sizeof full, "%s.%s", loader->prefix, name);
    return length < (int)sizeof full ? mok_safetensors_find(loader->file, full) : NULL;
}

static void mark(const struct loader *loader, const struct mok_file_tensor *tensor)
{
    loader->used[tensor - mok_safetensors_at(loader->file, 0)] = 1;
}

static mok_status missing(const struct loader *loader, const char *name)
{
    return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s.%s\" is missing", mok_safetensors_label(loader->file), mok_cli_quote(loader->prefix),
                        name);
}

/* 1 when the tensor has these dims; a dim of 0 ends the list. */
static int has_shape(const struct mok_file_tensor *tensor, int64_t d0, int64_t d1, int64_t d2)
{
    int64_t dims[3] = {d0, d1, d2};
    int32_t num = d1 == 0 ? 1 : d2 == 0 ? 2 : 3;
    return tensor->num_dims == num && memcmp(tensor->dims, dims, (size_t)num * sizeof dims[0]) == 0;
}

static mok_status wrong_shape(const struct loader *loader, const struct mok_file_tensor *tensor, int64_t d0, int64_t d1, int64_t d2)
{
    struct mok_file_tensor wanted = {.num_dims = d1 == 0 ? 1 : d2 == 0 ? 2 : 3, .dims = {d0, d1, d2}};
    char got_text[128];
    char wanted_text[128];
    return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\" has shape %s: the config says %s", mok_safetensors_label(loader->file),
                        mok_cli_quote(tensor->name), mok_file_shape_text(tensor, got_text, sizeof got_text),
                        mok_file_shape_text(&wanted, wanted_text, sizeof wanted_text));
}

static mok_status check_type(const struct loader *loader, const struct mok_file_tensor *tensor, enum mok_file_type type)
{
    if (tensor->type != type) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\" has dtype %s: must be %s", mok_safetensors_label(loader->file),
                            mok_cli_quote(tensor->name), mok_file_type_name(tensor->type), mok_file_type_name(type));
    }
    return MOK_OK;
}

/* A BF16 tensor of this shape, marked. */
static mok_status take(const struct loader *loader, const char *name, int64_t d0, int64_t d1, int64_t d2,
                       const struct mok_file_tensor **tensor_out)
{
    const struct mok_file_tensor *tensor = look(loader, name);
    if (tensor == NULL) {
        return missing(loader, name);
    }
    MOK_TRY(check_type(loader, tensor, MOK_FILE_BF16));
    if (!has_shape(tensor, d0, d1, d2)) {
        return wrong_shape(loader, tensor, d0, d1, d2);
    }
    mark(loader, tensor);
    *tensor_out = tensor;
    return MOK_OK;
}

/* ---- copies ------------------------------------------------------------------------------------------------------------- */

/* num elements of `bytes` bytes, 64-byte aligned; NULL when there are none left. */
static void *allocate(int64_t num, size_t bytes)
{
    size_t size = ((size_t)num * bytes + 63) / 64 * 64;
    return aligned_alloc(64, size == 0 ? 64 : size);
}

static mok_status no_memory(const struct loader *loader)
{
    return mok_cli_fail(MOK_ERR_MEMORY, "%s: no memory for the layer's matrices", mok_safetensors_label(loader->file));
}

static mok_status allocate_ffn(const struct loader *loader, int64_t num, int64_t width, struct mok_hf_ffn *ffn)
{
    int64_t count = num * width * loader->config->hidden;
    ffn->gate = allocate(count, sizeof(mok_bf16));
    ffn->up = allocate(count, sizeof(mok_bf16));
    ffn->down = allocate(count, sizeof(mok_bf16));
    return ffn->gate == NULL || ffn->up == NULL || ffn->down == NULL ? no_memory(loader) : MOK_OK;
}

/* to [rows, cols] = from, read at from[row * row_stride + col * col_stride]; `from` is not aligned. */
static void copy_matrix(mok_bf16 *to, const void *from, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride)
{
    const unsigned char *bytes = from;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t col = 0; col < cols; col++) {
            memcpy(&to[row * cols + col], bytes + (size_t)(row * row_stride + col * col_stride) * sizeof *to, sizeof *to);
        }
    }
}

/* A BF16 matrix [rows, cols] of its own. */
static mok_status load_copy(const struct loader *loader, const char *name, int64_t rows, int64_t cols, mok_bf16 **copy_out)
{
    const struct mok_file_tensor *tensor = NULL;
    MOK_TRY(take(loader, name, rows, cols, 0, &tensor));
    mok_bf16 *copy = allocate(rows * cols, sizeof *copy);
    if (copy == NULL) {
        return no_memory(loader);
    }
    memcpy(copy, tensor->data, tensor->bytes);
    *copy_out = copy;
    return MOK_OK;
}

/* A vector [num] of F32 or BF16 as fp32. */
static mok_status load_vector(const struct loader *loader, const char *name, int64_t num, float **vector_out)
{
    const struct mok_file_tensor *tensor = look(loader, name);
    if (tensor == NULL) {
        return missing(loader, name);
    }
    if (tensor->type != MOK_FILE_F32 && tensor->type != MOK_FILE_BF16) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\" has dtype %s: must be F32 or BF16", mok_safetensors_label(loader->file),
                            mok_cli_quote(tensor->name), mok_file_type_name(tensor->type));
    }
    if (!has_shape(tensor, num, 0, 0)) {
        return wrong_shape(loader, tensor, num, 0, 0);
    }
    float *vector = allocate(num, sizeof *vector);
    if (vector == NULL) {
        return no_memory(loader);
    }
    for (int64_t idx = 0; idx < num; idx++) {
        mok_bf16 narrow;
        if (tensor->type == MOK_FILE_F32) {
            memcpy(&vector[idx], (const unsigned char *)tensor->data + (size_t)idx * sizeof *vector, sizeof *vector);
        } else {
            memcpy(&narrow, (const unsigned char *)tensor->data + (size_t)idx * sizeof narrow, sizeof narrow);
            vector[idx] = mok_bf16_to_float(narrow);
        }
    }
    mark(loader, tensor);
    *vector_out = vector;
    return MOK_OK;
}

/* ---- FFNs --------------------------------------------------------------------------------------------------------------- */

/* "<base>.<leaf>.weight" [rows, cols] to dense memory. */
static mok_status load_matrix(const struct loader *loader, const char *base, const char *leaf, int64_t rows, int64_t cols, mok_bf16 *to)
{
    char name[MAX_NAME];
    const struct mok_file_tensor *tensor = NULL;
    snprintf(name, sizeof name, "%s.%s.weight", base, leaf);
    MOK_TRY(take(loader, name, rows, cols, 0, &tensor));
    memcpy(to, tensor->data, tensor->bytes);
    return MOK_OK;
}

static mok_status load_one_by_one(const struct loader *loader, struct mok_hf_ffn *routed)
{
    static const char *const long_names[] = {"gate_proj", "up_proj", "down_proj"};
    static const char *const short_names[] = {"w1", "w3", "w2"};
    const struct mok_hf_config *config = loader->config;
    int is_short = config->family == MOK_HF_MIXTRAL && look(loader, "experts.0.gate_proj.weight") == NULL;
    const char *const *names = is_short ? short_names : long_names;
    for (int64_t expert = 0; expert < config->num_experts; expert++) {
        char base[64];
        int64_t first = expert * config->inter * config->hidden;
        snprintf(base, sizeof base, "experts.%" PRId64, expert);
        MOK_TRY(load_matrix(loader, base, names[0], config->inter, config->hidden, routed->gate + first));
        MOK_TRY(load_matrix(loader, base, names[1], config->inter, config->hidden, routed->up + first));
        MOK_TRY(load_matrix(loader, base, names[2], config->hidden, config->inter, routed->down + first));
    }
    return MOK_OK;
}

/* Where gate, up and down of an expert stand inside its two fused blocks, in elements. */
struct fused_layout {
    int64_t up_first;
    int64_t gate_row, gate_col; /* strides of gate and up alike */
    int64_t down_row, down_col;
};

/* Both tensors stand as [rows, cols] of the product x W^T, or both transposed: the two shapes together decide, since one alone fits both
 * ways when H = 2I or H = I. */
static mok_status take_fused(const struct loader *loader, const struct mok_file_tensor **up_out, const struct mok_file_tensor **down_out,
                             struct fused_layout *layout_out)
{
    const struct mok_hf_config *config = loader->config;
    int64_t experts = config->num_experts;
    int64_t hidden = config->hidden;
    int64_t inter = config->inter;
    const struct mok_file_tensor *up = look(loader, "experts.gate_up_proj");
    const struct mok_file_tensor *down = look(loader, "experts.down_proj");
    if (up == NULL || down == NULL) {
        return missing(loader, up == NULL ? "experts.gate_up_proj" : "experts.down_proj");
    }
    if (config->family == MOK_HF_GPT_OSS) {
        *layout_out = (struct fused_layout){.up_first = 1, .gate_row = 2, .gate_col = 2 * inter, .down_row = 1, .down_col = hidden};
    } else if (has_shape(up, experts, hidden, 2 * inter) && has_shape(down, experts, inter, hidden)) {
        *layout_out = (struct fused_layout){.up_first = inter, .gate_row = 1, .gate_col = 2 * inter, .down_row = 1, .down_col = hidden};
    } else {
        *layout_out =
            (struct fused_layout){.up_first = inter * hidden, .gate_row = hidden, .gate_col = 1, .down_row = inter, .down_col = 1};
        MOK_TRY(take(loader, "experts.gate_up_proj", experts, 2 * inter, hidden, up_out));
        return take(loader, "experts.down_proj", experts, hidden, inter, down_out);
    }
    MOK_TRY(take(loader, "experts.gate_up_proj", experts, hidden, 2 * inter, up_out));
    return take(loader, "experts.down_proj", experts, inter, hidden, down_out);
}

static mok_status load_fused(const struct loader *loader, struct mok_hf_ffn *routed)
{
    const struct mok_hf_config *config = loader->config;
    const struct mok_file_tensor *up = NULL;
    const struct mok_file_tensor *down = NULL;
    struct fused_layout layout = {0};
    MOK_TRY(take_fused(loader, &up, &down, &layout));
    int64_t count = (int64_t)config->inter * config->hidden;
    for (int64_t expert = 0; expert < config->num_experts; expert++) {
        const unsigned char *gate_block = (const unsigned char *)up->data + (size_t)(2 * expert * count) * sizeof(mok_bf16);
        const unsigned char *up_block = gate_block + (size_t)layout.up_first * sizeof(mok_bf16);
        const unsigned char *down_block = (const unsigned char *)down->data + (size_t)(expert * count) * sizeof(mok_bf16);
        copy_matrix(routed->gate + expert * count, gate_block, config->inter, config->hidden, layout.gate_row, layout.gate_col);
        copy_matrix(routed->up + expert * count, up_block, config->inter, config->hidden, layout.gate_row, layout.gate_col);
        copy_matrix(routed->down + expert * count, down_block, config->hidden, config->inter, layout.down_row, layout.down_col);
    }
    return MOK_OK;
}

/* A bias that may be in the file only if it does nothing. */
static mok_status check_zero(const struct loader *loader, const char *name)
{
    const struct mok_file_tensor *tensor = look(loader, name);
    if (tensor == NULL) {
        return MOK_OK;
    }
    MOK_TRY(check_type(loader, tensor, MOK_FILE_BF16));
    for (uint64_t at = 0; at < tensor->bytes; at += sizeof(mok_bf16)) {
        mok_bf16 value;
        memcpy(&value, (const unsigned char *)tensor->data + at, sizeof value);
        if ((value & 0x7FFF) != 0) {
            return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\" is not zero at element %" PRIu64 ": biases of experts are not supported",
                                mok_safetensors_label(loader->file), mok_cli_quote(tensor->name), at / sizeof value);
        }
    }
    mark(loader, tensor);
    return MOK_OK;
}

static mok_status load_routed(const struct loader *loader, struct mok_hf_ffn *routed)
{
    if (look(loader, "experts.gate_up_proj_blocks") != NULL) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s.experts.gate_up_proj_blocks\" is in MXFP4: must be converted to BF16 first",
                            mok_safetensors_label(loader->file), mok_cli_quote(loader->prefix));
    }
    MOK_TRY(allocate_ffn(loader, loader->config->num_experts, loader->config->inter, routed));
    if (look(loader, "experts.gate_up_proj") == NULL && loader->config->family != MOK_HF_GPT_OSS) {
        return load_one_by_one(loader, routed);
    }
    MOK_TRY(load_fused(loader, routed));
    MOK_TRY(check_zero(loader, "experts.gate_up_proj_bias"));
    return check_zero(loader, "experts.down_proj_bias");
}

static mok_status load_shared(const struct loader *loader, struct mok_hf_layer *layer)
{
    const struct mok_hf_config *config = loader->config;
    int is_gated = config->family == MOK_HF_QWEN2_MOE;
    const char *base = is_gated ? "shared_expert" : "shared_experts";
    if (config->shared_inter == 0) {
        return MOK_OK;
    }
    MOK_TRY(allocate_ffn(loader, 1, config->shared_inter, &layer->shared));
    MOK_TRY(load_matrix(loader, base, "gate_proj", config->shared_inter, config->hidden, layer->shared.gate));
    MOK_TRY(load_matrix(loader, base, "up_proj", config->shared_inter, config->hidden, layer->shared.up));
    MOK_TRY(load_matrix(loader, base, "down_proj", config->hidden, config->shared_inter, layer->shared.down));
    if (!is_gated) {
        return MOK_OK;
    }
    return load_copy(loader, "shared_expert_gate.weight", 1, config->hidden, &layer->shared_gate);
}

/* ---- router and the whole layer ----------------------------------------------------------------------------------------- */

static mok_status load_router(const struct loader *loader, struct mok_hf_layer *layer)
{
    const struct mok_hf_config *config = loader->config;
    int is_gpt_oss = config->family == MOK_HF_GPT_OSS;
    MOK_TRY(load_copy(loader, is_gpt_oss ? "router.weight" : "gate.weight", config->num_experts, config->hidden, &layer->router));
    if (is_gpt_oss) {
        MOK_TRY(load_vector(loader, "router.bias", config->num_experts, &layer->router_bias));
    }
    if (config->score == MOK_SCORE_SIGMOID) {
        MOK_TRY(load_vector(loader, "gate.e_score_correction_bias", config->num_experts, &layer->choice_bias));
    }
    return MOK_OK;
}

/* Nothing of the layer may be left over. */
static mok_status check_all_used(const struct loader *loader)
{
    size_t length = strlen(loader->prefix);
    for (int64_t idx = 0; idx < mok_safetensors_count(loader->file); idx++) {
        const char *name = mok_safetensors_at(loader->file, idx)->name;
        if (!loader->used[idx] && strncmp(name, loader->prefix, length) == 0 && name[length] == '.') {
            return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\" has no place in a %s layer", mok_safetensors_label(loader->file),
                                mok_cli_quote(name), mok_hf_family_name(loader->config->family));
        }
    }
    return MOK_OK;
}

mok_status mok_hf_layer_load(const struct mok_safetensors *file, const char *prefix, const struct mok_hf_config *config,
                             struct mok_hf_layer *layer_out)
{
    struct loader loader = {.file = file, .prefix = prefix, .config = config};
    struct mok_hf_layer layer = {.config = *config};
    if (strlen(prefix) > MAX_NAME / 2) {
        return mok_cli_fail(MOK_ERR_IO, "%s: the layer's prefix is longer than %d bytes", mok_safetensors_label(file), MAX_NAME / 2);
    }
    loader.used = calloc((size_t)mok_safetensors_count(file) + 1, 1);
    mok_status status = loader.used == NULL ? no_memory(&loader) : MOK_OK;
    if (status == MOK_OK) {
        status = load_router(&loader, &layer);
    }
    if (status == MOK_OK) {
        status = load_routed(&loader, &layer.routed);
    }
    if (status == MOK_OK) {
        status = load_shared(&loader, &layer);
    }
    if (status == MOK_OK) {
        status = check_all_used(&loader);
    }
    free(loader.used);
    if (status != MOK_OK) {
        mok_hf_layer_free(&layer);
        return status;
    }
    *layer_out = layer;
    return MOK_OK;
}

static void free_ffn(struct mok_hf_ffn *ffn)
{
    free(ffn->gate);
    free(ffn->up);
    free(ffn->down);
}

void mok_hf_layer_free(struct mok_hf_layer *layer)
{
    free_ffn(&layer->routed);
    free_ffn(&layer->shared);
    free(layer->router);
    free(layer->router_bias);
    free(layer->choice_bias);
    free(layer->shared_gate);
    memset(layer, 0, sizeof *layer);
}
