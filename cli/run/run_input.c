/*
 * Files to a problem. In: paths. Out: mok_run_input, which owns everything; the files are closed again.
 *
 * Routing is computed here, by the library's router helper, from the layer's own router weights: ids and weights that the input file
 * stores are for comparison alone.
 */
#include "run/run_input.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/hf_map.h"
#include "ref/random.h"
#include "files/safetensors.h"

/* ---- input rows and stored results -------------------------------------------------------------------------------------- */

/* A tensor of the input file: exact type and shape (cols 0: a vector). */
static mok_status check_tensor(const struct mok_safetensors *file, const struct mok_file_tensor *tensor, enum mok_file_type type,
                               int64_t rows, int64_t cols)
{
    struct mok_file_tensor wanted = {.num_dims = cols == 0 ? 1 : 2, .dims = {rows, cols}};
    char got_text[128];
    char wanted_text[128];
    if (tensor->type != type) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\" has dtype %s: must be %s", mok_safetensors_label(file),
                            mok_cli_quote(tensor->name), mok_file_type_name(tensor->type), mok_file_type_name(type));
    }
    if (tensor->num_dims != wanted.num_dims || memcmp(tensor->dims, wanted.dims, (size_t)wanted.num_dims * sizeof wanted.dims[0]) != 0) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\" has shape %s: must be %s", mok_safetensors_label(file),
                            mok_cli_quote(tensor->name), mok_file_shape_text(tensor, got_text, sizeof got_text),
                            mok_file_shape_text(&wanted, wanted_text, sizeof wanted_text));
    }
    return MOK_OK;
}

static mok_status no_memory(const struct mok_safetensors *file, const char *name)
{
    return mok_cli_fail(MOK_ERR_MEMORY, "%s: no memory for tensor \"%s\"", mok_safetensors_label(file), name);
}

/* F32 tensor that may be missing; then *values_out stays NULL. */
static mok_status load_floats(const struct mok_safetensors *file, const char *name, int64_t rows, int64_t cols, float **values_out)
{
    const struct mok_file_tensor *tensor = mok_safetensors_find(file, name);
    if (tensor == NULL) {
        return MOK_OK;
    }
    MOK_TRY(check_tensor(file, tensor, MOK_FILE_F32, rows, cols));
    *values_out = malloc(tensor->bytes + 1);
    if (*values_out == NULL) {
        return no_memory(file, name);
    }
    memcpy(*values_out, tensor->data, tensor->bytes);
    return MOK_OK;
}

/* Ids are I32 or I64, by what the file says; the values are converted one by one. */
static mok_status load_ids(const struct mok_safetensors *file, int64_t rows, int64_t cols, int64_t **ids_out)
{
    const struct mok_file_tensor *tensor = mok_safetensors_find(file, "topk_ids");
    if (tensor == NULL) {
        return MOK_OK;
    }
    if (tensor->type != MOK_FILE_I32 && tensor->type != MOK_FILE_I64) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"topk_ids\" has dtype %s: must be I32 or I64", mok_safetensors_label(file),
                            mok_file_type_name(tensor->type));
    }
    MOK_TRY(check_tensor(file, tensor, tensor->type, rows, cols));
    *ids_out = malloc((size_t)(rows * cols) * sizeof **ids_out + 1);
    if (*ids_out == NULL) {
        return no_memory(file, "topk_ids");
    }
    for (int64_t idx = 0; idx < rows * cols; idx++) {
        int32_t narrow;
        if (tensor->type == MOK_FILE_I32) {
            memcpy(&narrow, (const unsigned char *)tensor->data + (size_t)idx * sizeof narrow, sizeof narrow);
            (*ids_out)[idx] = narrow;
        } else {
            memcpy(&(*ids_out)[idx], (const unsigned char *)tensor->data + (size_t)idx * sizeof **ids_out, sizeof **ids_out);
        }
    }
    return MOK_OK;
}

static mok_status load_stored(const struct mok_safetensors *file, const struct mok_ref_problem *problem, struct mok_run_stored *stored)
{
    int64_t tokens = problem->num_tokens;
    MOK_TRY(load_floats(file, "output", tokens, problem->hidden, &stored->output));
    MOK_TRY(load_ids(file, tokens, problem->top_k, &stored->ids));
    MOK_TRY(load_floats(file, "topk_weights", tokens, problem->top_k, &stored->w));
    stored->has_dy = mok_safetensors_find(file, "grad_output") != NULL;
    if (!stored->has_dy) {
        return MOK_OK; /* gradients for another dy are of no use */
    }
    MOK_TRY(load_floats(file, "grad_hidden_states", tokens, problem->hidden, &stored->dx));
    MOK_TRY(load_floats(file, "grad_topk_weights", tokens, problem->top_k, &stored->dw));
    return problem->shared_w == NULL ? MOK_OK : load_floats(file, "grad_shared_weights", tokens, 0, &stored->dshared_w);
}

/* x and dy of the problem. */
static mok_status load_rows(const struct mok_safetensors *file, struct mok_ref_problem *problem)
{
    const struct mok_file_tensor *x = mok_safetensors_find(file, "hidden_states");
    const struct mok_file_tensor *dy = mok_safetensors_find(file, "grad_output");
    memcpy(problem->x, x->data, x->bytes); /* checked by find_num_tokens */
    if (dy != NULL) {
        MOK_TRY(check_tensor(file, dy, MOK_FILE_BF16, problem->num_tokens, problem->hidden));
        memcpy(problem->dy, dy->data, dy->bytes);
        return MOK_OK;
    }
    struct mok_ref_random random = mok_ref_random_open("mok run", 0, MOK_FOR_DY, 0);
    for (int64_t idx = 0; idx < problem->num_tokens * problem->hidden; idx++) {
        problem->dy[idx] = mok_bf16_from_float((float)mok_ref_random_normal(&random));
    }
    return MOK_OK;
}

static mok_status find_num_tokens(const struct mok_safetensors *file, int32_t hidden, int64_t *num_out)
{
    const struct mok_file_tensor *x = mok_safetensors_find(file, "hidden_states");
    if (x == NULL) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"hidden_states\" is missing", mok_safetensors_label(file));
    }
    if (x->num_dims != 2) {
        char text[128];
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"hidden_states\" has shape %s: must be [tokens, %" PRId32 "]", mok_safetensors_label(file),
                            mok_file_shape_text(x, text, sizeof text), hidden);
    }
    *num_out = x->dims[0];
    return check_tensor(file, x, MOK_FILE_BF16, *num_out, hidden);
}

/* ---- routing ------------------------------------------------------------------------------------------------------------ */

/* The shared expert's weight per token (Qwen2-MoE): a sigmoid router with one expert. */
static mok_status weigh_shared(const struct mok_hf_layer *layer, struct mok_ref_problem *problem)
{
    MOK_TRY(mok_cli_check(
        mok_router_logits(problem->x, layer->shared_gate, NULL, problem->num_tokens, problem->hidden, 1, problem->shared_w)));
    for (int64_t token = 0; token < problem->num_tokens; token++) {
        problem->shared_w[token] = 1.0f / (1.0f + expf(-problem->shared_w[token]));
    }
    return MOK_OK;
}

static mok_status choose_experts(const struct mok_hf_layer *layer, struct mok_ref_problem *problem)
{
    const struct mok_hf_config *config = &layer->config;
    mok_router_config router;
    mok_router_config_init(&router);
    router.score = config->score;
    router.top_k = config->top_k;
    router.num_experts = config->num_experts;
    router.num_groups = config->num_groups;
    router.keep_groups = config->keep_groups;
    router.normalize = config->normalize;
    router.softmax_after = config->softmax_after;
    router.scale = config->scale;
    router.bias = layer->choice_bias;
    float *logits = malloc((size_t)problem->num_tokens * (size_t)config->num_experts * sizeof *logits + 1);
    if (logits == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory for the router logits of %" PRId64 " tokens", problem->num_tokens);
    }
    mok_status status = mok_cli_check(mok_router_logits(problem->x, layer->router, layer->router_bias, problem->num_tokens,
                                                        config->hidden, config->num_experts, logits));
    if (status == MOK_OK) {
        status = mok_cli_check(mok_router_choose(&router, logits, problem->num_tokens, problem->ids, problem->w));
    }
    free(logits);
    return status == MOK_OK && problem->shared_w != NULL ? weigh_shared(layer, problem) : status;
}

/* ---- the problem -------------------------------------------------------------------------------------------------------- */

int64_t mok_run_share(int64_t num_tokens, int32_t num_ranks, int32_t rank)
{
    int64_t before = 0;
    int64_t mine = 0;
    int64_t all = 0;
    for (int32_t idx = 0; idx < num_ranks; idx++) {
        int64_t part = num_ranks >= 4 && idx == 1 ? 0 : 1 + idx * 3 % 5;
        before += idx < rank ? part : 0;
        mine = idx == rank ? part : mine;
        all += part;
    }
    return num_tokens * (before + mine) / all - num_tokens * before / all;
}

static void copy_weights(const struct mok_hf_ffn *from, int64_t num, int64_t width, int64_t hidden, struct mok_ref_weights *to)
{
    size_t bytes = (size_t)(num * width * hidden) * sizeof(mok_bf16);
    memcpy(to->gate, from->gate, bytes);
    memcpy(to->up, from->up, bytes);
    memcpy(to->down, from->down, bytes);
}

static mok_status make_problem(const struct mok_hf_layer *layer, const struct mok_safetensors *file, int32_t num_ranks,
                               struct mok_ref_problem *problem)
{
    const struct mok_hf_config *config = &layer->config;
    struct mok_ref_optional with = {.shared_w = layer->shared_gate != NULL};
    int64_t num_tokens = 0;
    MOK_TRY(find_num_tokens(file, config->hidden, &num_tokens));
    *problem = (struct mok_ref_problem){.num_ranks = num_ranks,
                                        .num_experts = config->num_experts,
                                        .top_k = config->top_k,
                                        .hidden = config->hidden,
                                        .inter = config->inter,
                                        .shared_inter = config->shared_inter,
                                        .activation = config->activation,
                                        .grad_dtype = MOK_DTYPE_FP32,
                                        .grad_mode = MOK_GRAD_OVERWRITE};
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        problem->tokens[rank] = mok_run_share(num_tokens, num_ranks, rank);
    }
    if (mok_ref_problem_alloc(problem, with) != MOK_OK) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory for %" PRId64 " tokens and %d experts", num_tokens, (int)config->num_experts);
    }
    copy_weights(&layer->routed, config->num_experts, config->inter, config->hidden, &problem->routed);
    if (config->shared_inter > 0) {
        copy_weights(&layer->shared, 1, config->shared_inter, config->hidden, &problem->shared);
    }
    MOK_TRY(load_rows(file, problem));
    return choose_experts(layer, problem);
}

/* ---- files -------------------------------------------------------------------------------------------------------------- */

/* The idx-th prefix P of a tensor "P.gate.weight" or "P.router.weight"; 0 past the last one. */
static int layer_at(const struct mok_safetensors *file, int idx, char *layer, size_t size)
{
    static const char *const leaves[] = {".gate.weight", ".router.weight"};
    for (int64_t at = 0; at < mok_safetensors_count(file); at++) {
        const char *name = mok_safetensors_at(file, at)->name;
        for (int leaf = 0; leaf < 2; leaf++) {
            size_t length = strlen(name);
            size_t tail = strlen(leaves[leaf]);
            if (length > tail && strcmp(name + length - tail, leaves[leaf]) == 0 && idx-- == 0) {
                snprintf(layer, size, "%.*s", (int)(length - tail), name);
                return 1;
            }
        }
    }
    return 0;
}

/* The layers that there are, the first few by name. */
static void name_layers(const struct mok_safetensors *file, int num, char *text, size_t size)
{
    enum { MOST_NAMES = 4 };
    size_t used = 0;
    text[0] = '\0';
    for (int idx = 0; idx < num && idx < MOST_NAMES && used < size; idx++) {
        char layer[MOK_RUN_LAYER_ROOM];
        (void)layer_at(file, idx, layer, sizeof layer);
        used += (size_t)snprintf(text + used, size - used, "%s%s", idx == 0 ? "" : ", ", mok_cli_quote(layer));
    }
    if (num > MOST_NAMES && used < size) {
        snprintf(text + used, size - used, " and %d more", num - MOST_NAMES);
    }
}

/* The layer that was asked for, or the only one. */
static mok_status find_layer(const struct mok_safetensors *file, const char *asked, char *layer, size_t size)
{
    char names[512];
    int num = 0;
    while (layer_at(file, num, layer, size)) {
        if (asked != NULL && strcmp(layer, asked) == 0) {
            return MOK_OK;
        }
        num++;
    }
    name_layers(file, num, names, sizeof names);
    if (num == 0) {
        return mok_cli_fail(MOK_ERR_IO, "%s: holds no MoE layer: no tensor's name ends in .gate.weight or .router.weight",
                            mok_safetensors_label(file));
    }
    if (asked != NULL) {
        return mok_cli_fail(MOK_ERR_IO, "%s: holds no layer \"%s\": --layer must be one of %s", mok_safetensors_label(file),
                            mok_cli_quote(asked), names);
    }
    return num == 1 ? MOK_OK
                    : mok_cli_fail(MOK_ERR_IO, "%s: holds %d MoE layers: --layer must be one of %s", mok_safetensors_label(file), num,
                                   names);
}

mok_status mok_run_config_path(const struct mok_run_files *files, char *path, size_t size)
{
    const char *slash = strrchr(files->weights, '/');
    int folder = slash == NULL ? 0 : (int)(slash - files->weights + 1);
    int length = files->config != NULL ? snprintf(path, size, "%s", files->config)
                                       : snprintf(path, size, "%.*sconfig.json", folder, files->weights);
    return length < (int)size ? MOK_OK : mok_cli_fail(MOK_ERR_IO, "%s: the path is too long", files->weights);
}

static mok_status read_config(const struct mok_run_files *files, struct mok_hf_config *config)
{
    char path[4096];
    MOK_TRY(mok_run_config_path(files, path, sizeof path));
    return mok_hf_config_read(path, config);
}

static mok_status load_from(const struct mok_run_files *files, int32_t num_ranks, struct mok_safetensors *weights,
                            struct mok_safetensors *rows, struct mok_run_input *input)
{
    struct mok_hf_layer layer;
    MOK_TRY(read_config(files, &input->config));
    MOK_TRY(find_layer(weights, files->layer, input->layer, sizeof input->layer));
    mok_cli_progress("loading %s", mok_cli_quote(input->layer));
    MOK_TRY(mok_hf_layer_load(weights, input->layer, &input->config, &layer));
    mok_cli_progress("routing");
    mok_status status = make_problem(&layer, rows, num_ranks, &input->problem);
    mok_hf_layer_free(&layer);
    return status == MOK_OK ? load_stored(rows, &input->problem, &input->stored) : status;
}

mok_status mok_run_input_load(const struct mok_run_files *files, int32_t num_ranks, struct mok_run_input *input_out)
{
    struct mok_safetensors *weights = NULL;
    struct mok_safetensors *rows = NULL;
    struct mok_run_input input;
    memset(&input, 0, sizeof input);
    mok_status status = mok_safetensors_open(files->weights, &weights);
    if (status == MOK_OK) {
        status = mok_safetensors_open(files->input, &rows);
    }
    if (status == MOK_OK) {
        status = load_from(files, num_ranks, weights, rows, &input);
    }
    mok_safetensors_close(weights);
    mok_safetensors_close(rows);
    if (status != MOK_OK) {
        mok_run_input_free(&input);
        return status;
    }
    *input_out = input;
    return MOK_OK;
}

void mok_run_input_free(struct mok_run_input *input)
{
    mok_ref_problem_free(&input->problem);
    free(input->stored.output);
    free(input->stored.ids);
    free(input->stored.w);
    free(input->stored.dx);
    free(input->stored.dw);
    free(input->stored.dshared_w);
    memset(input, 0, sizeof *input);
}
