/*
 * See gpu_layer.h.
 */
#include "gpu_layer.h"

#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/status.h"
#include "gpu_slow.h"

static size_t take(size_t *cursor, size_t bytes)
{
    size_t at = *cursor;
    *cursor = (at + bytes + 255) / 256 * 256;
    return at;
}

int64_t gpu_layer_tokens(int32_t rank) { return rank == 3 ? 0 : GPU_LAYER_TOKENS - 71 * (rank % 4); }

mok_status gpu_layer_config(int32_t rank, int32_t num_ranks, mok_hub *hub, mok_group_config *config_out)
{
    mok_shape shape = {GPU_LAYER_EXPERTS, GPU_LAYER_TOP_K, GPU_LAYER_HIDDEN, GPU_LAYER_INTER, GPU_LAYER_SHARED, MOK_FORMAT_BF16, GPU_LAYER_TOKENS};
    MOK_TRY(gpu_config(&shape, rank, num_ranks, hub, config_out));
    config_out->num_saved = 1;
    config_out->keep_rows = MOK_KEEP_ALL;
    return MOK_OK;
}

static float random_value(uint32_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 1664525u + 1013904223u;
        sum += (float)(*state >> 8) / (float)(1 << 24) - 0.5f;
    }
    return sum * 1.7f; /* about normal */
}

static void fill_bf16(mok_bf16 *to, int64_t count, float scale, uint32_t seed)
{
    uint32_t state = seed * 747796405u + 1u;
    for (int64_t i = 0; i < count; i++) {
        to[i] = mok_bf16_from_float(scale * random_value(&state));
    }
}

static void fill_float(float *to, int64_t count, uint32_t seed)
{
    uint32_t state = seed * 747796405u + 7u;
    for (int64_t i = 0; i < count; i++) {
        to[i] = random_value(&state);
    }
}

/* Gate, up, down of `num` experts of width `inter`, behind one another. */
static mok_ffn place_ffn(char *base, int64_t num, int64_t inter, mok_dtype dtype)
{
    int64_t matrix = inter * GPU_LAYER_HIDDEN, bytes = num * matrix * (dtype == MOK_DTYPE_FP32 ? 4 : 2);
    mok_ffn ffn = {.dtype = dtype};
    ffn.gate = (mok_matrices){base, matrix, GPU_LAYER_HIDDEN};
    ffn.up = (mok_matrices){base + bytes, matrix, GPU_LAYER_HIDDEN};
    ffn.down = (mok_matrices){base + 2 * bytes, matrix, inter};
    return ffn;
}

static mok_status open_weights(struct gpu_layer *layer)
{
    int64_t routed = 3LL * GPU_LAYER_EXPERTS * GPU_LAYER_INTER * GPU_LAYER_HIDDEN, shared = 3LL * GPU_LAYER_SHARED * GPU_LAYER_HIDDEN;
    int64_t local = 3LL * layer->num_local * GPU_LAYER_INTER * GPU_LAYER_HIDDEN;
    int32_t first = 0;
    size_t bytes = (size_t)(local + shared) * 2;
    mok_bf16 *image = malloc((size_t)(routed + shared) * 2 + bytes);
    mok_bf16 *own = image + routed + shared;
    mok_layer_config config;
    MOK_TRY(mok_local_experts(GPU_LAYER_EXPERTS, layer->num_ranks, layer->rank, &first, &layer->num_local));
    fill_bf16(image, routed + shared, 0.1f, 99 + (uint32_t)layer->idx);
    for (int m = 0; m < 3; m++) { /* the local experts of each kind of matrix */
        int64_t matrix = GPU_LAYER_INTER * GPU_LAYER_HIDDEN;
        memcpy(own + m * layer->num_local * matrix, image + (m * GPU_LAYER_EXPERTS + first) * matrix, (size_t)(layer->num_local * matrix) * 2);
    }
    memcpy(own + local, image + routed, (size_t)shared * 2);
    if (cudaMalloc((void **)&layer->weights, bytes) != cudaSuccess ||
        cudaMemcpyAsync(layer->weights, own, bytes, cudaMemcpyHostToDevice, layer->stream) != cudaSuccess ||
        cudaStreamSynchronize(layer->stream) != cudaSuccess) {
        free(image);
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: weights", layer->rank);
    }
    free(image);
    mok_layer_config_init(&config);
    config.routed = place_ffn(layer->weights, layer->num_local, GPU_LAYER_INTER, MOK_DTYPE_BF16);
    config.shared = place_ffn(layer->weights + local * 2, 1, GPU_LAYER_SHARED, MOK_DTYPE_BF16);
    return mok_layer_create(layer->group, &config, &layer->layer);
}

struct offsets {
    size_t ids, x, w, shared_w, dy; /* inputs */
    size_t y, dx, dw, dshared_w, grads, shared_grads; /* outputs */
    size_t inputs_bytes, outputs_bytes;
};

/* Sizes for T_max, the same on every rank. */
static struct offsets plan(const struct gpu_layer *layer)
{
    struct offsets at;
    size_t tokens = GPU_LAYER_TOKENS, rows = tokens * GPU_LAYER_HIDDEN * 2, cursor = 0;
    at.ids = take(&cursor, tokens * GPU_LAYER_TOP_K * 4);
    at.x = take(&cursor, rows);
    at.w = take(&cursor, tokens * GPU_LAYER_TOP_K * 4);
    at.shared_w = take(&cursor, tokens * 4);
    at.dy = take(&cursor, rows);
    at.inputs_bytes = cursor;
    cursor = 0;
    at.y = take(&cursor, rows);
    at.dx = take(&cursor, rows);
    at.dw = take(&cursor, tokens * GPU_LAYER_TOP_K * 4);
    at.dshared_w = take(&cursor, tokens * 4);
    at.grads = take(&cursor, (size_t)(3 * layer->num_local * GPU_LAYER_INTER * GPU_LAYER_HIDDEN) * 4);
    at.shared_grads = take(&cursor, (size_t)(3 * GPU_LAYER_SHARED * GPU_LAYER_HIDDEN) * 4);
    at.outputs_bytes = cursor;
    return at;
}

static mok_status open_tensors(struct gpu_layer *layer)
{
    struct offsets at = plan(layer);
    layer->inputs_bytes = at.inputs_bytes;
    layer->outputs_bytes = at.outputs_bytes;
    if (cudaMalloc((void **)&layer->inputs, at.inputs_bytes) != cudaSuccess || cudaMalloc((void **)&layer->outputs, at.outputs_bytes) != cudaSuccess) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: tensors", layer->rank);
    }
    char *in = layer->inputs, *out = layer->outputs;
    layer->ids = (int32_t *)(in + at.ids);
    mok_forward_args_init(&layer->forward);
    layer->forward.x = in + at.x;
    layer->forward.w = (const float *)(in + at.w);
    layer->forward.shared_w = (const float *)(in + at.shared_w);
    layer->forward.y = out + at.y;
    layer->forward.saved = layer->saved;
    mok_backward_args_init(&layer->backward);
    layer->backward.saved = layer->saved;
    layer->backward.dy = in + at.dy;
    layer->backward.w = layer->forward.w;
    layer->backward.shared_w = layer->forward.shared_w;
    layer->backward.dx = out + at.dx;
    layer->backward.dw = (float *)(out + at.dw);
    layer->backward.dshared_w = (float *)(out + at.dshared_w);
    layer->backward.grads = place_ffn(out + at.grads, layer->num_local, GPU_LAYER_INTER, MOK_DTYPE_FP32);
    layer->backward.shared_grads = place_ffn(out + at.shared_grads, 1, GPU_LAYER_SHARED, MOK_DTYPE_FP32);
    layer->backward.grad_mode = MOK_GRAD_OVERWRITE;
    return MOK_OK;
}

/* Everything but group and stream. */
static mok_status open_objects(struct gpu_layer *layer)
{
    MOK_TRY(open_weights(layer));
    MOK_TRY(mok_schedule_create(layer->group, &layer->schedule));
    MOK_TRY(mok_group_saved(layer->group, layer->idx, &layer->saved));
    return open_tensors(layer);
}

mok_status gpu_layer_open_beside(struct gpu_layer *layer, const struct gpu_layer *first, int32_t idx)
{
    memset(layer, 0, sizeof *layer);
    layer->rank = first->rank;
    layer->num_ranks = first->num_ranks;
    layer->idx = idx;
    layer->num_tokens = first->num_tokens;
    layer->num_local = first->num_local;
    layer->stream = first->stream;
    layer->group = first->group;
    return open_objects(layer);
}

mok_status gpu_layer_open(struct gpu_layer *layer, const mok_group_config *config)
{
    int32_t first = 0;
    memset(layer, 0, sizeof *layer);
    layer->rank = config->rank;
    layer->num_ranks = config->num_ranks;
    layer->num_tokens = gpu_layer_tokens(config->rank);
    MOK_TRY(mok_local_experts(GPU_LAYER_EXPERTS, layer->num_ranks, layer->rank, &first, &layer->num_local));
    if (cudaSetDevice(config->device) != cudaSuccess || cudaStreamCreateWithFlags(&layer->stream, cudaStreamNonBlocking) != cudaSuccess) {
        return mok_base_fail(MOK_ERR_DEVICE, "rank %d: device %d", layer->rank, config->device);
    }
    MOK_TRY(mok_group_create(config, &layer->group));
    return open_objects(layer);
}

mok_status gpu_layer_close(struct gpu_layer *layer)
{
    mok_schedule_destroy(layer->schedule);
    mok_layer_destroy(layer->layer);
    mok_status status = layer->idx > 0 ? MOK_OK : mok_group_destroy(layer->group);
    cudaFree(layer->weights);
    cudaFree(layer->inputs);
    cudaFree(layer->outputs);
    if (layer->stream != NULL && layer->idx == 0) {
        cudaStreamDestroy(layer->stream);
    }
    memset(layer, 0, sizeof *layer);
    return status;
}

void gpu_layer_image(const struct gpu_layer *layer, uint32_t seed, char *to)
{
    struct offsets at = plan(layer);
    uint32_t own = seed * 31u + (uint32_t)layer->rank;
    int64_t rows = (int64_t)GPU_LAYER_TOKENS * GPU_LAYER_HIDDEN, routes = (int64_t)GPU_LAYER_TOKENS * GPU_LAYER_TOP_K;
    gpu_random_ids((int32_t *)(to + at.ids), GPU_LAYER_TOKENS, GPU_LAYER_TOP_K, GPU_LAYER_EXPERTS, own);
    fill_bf16((mok_bf16 *)(to + at.x), rows, 1.0f, own + 1000);
    fill_float((float *)(to + at.w), routes, own + 2000);
    fill_float((float *)(to + at.shared_w), GPU_LAYER_TOKENS, own + 3000);
    fill_bf16((mok_bf16 *)(to + at.dy), rows, 1.0f, own + 4000);
}

void gpu_layer_inputs(struct gpu_layer *layer, uint32_t seed)
{
    char *image = calloc(1, layer->inputs_bytes);
    gpu_layer_image(layer, seed, image);
    if (cudaMemcpyAsync(layer->inputs, image, layer->inputs_bytes, cudaMemcpyHostToDevice, layer->stream) != cudaSuccess ||
        cudaStreamSynchronize(layer->stream) != cudaSuccess) {
        gpu_check(0, "rank %d: inputs cannot be copied", layer->rank);
    }
    free(image);
}

mok_status gpu_layer_enqueue(struct gpu_layer *layer)
{
    MOK_TRY(mok_schedule_build(layer->schedule, layer->ids, layer->num_tokens, layer->stream));
    MOK_TRY(mok_forward(layer->layer, layer->schedule, &layer->forward, layer->stream));
    return mok_backward(layer->layer, layer->schedule, &layer->backward, layer->stream);
}

void gpu_layer_poison(struct gpu_layer *layer, int byte) { cudaMemsetAsync(layer->outputs, byte, layer->outputs_bytes, layer->stream); }

mok_status gpu_layer_outputs(struct gpu_layer *layer, char *to)
{
    MOK_TRY(mok_group_wait(layer->group, layer->stream, -1));
    if (cudaMemcpyAsync(to, layer->outputs, layer->outputs_bytes, cudaMemcpyDeviceToHost, layer->stream) != cudaSuccess ||
        cudaStreamSynchronize(layer->stream) != cudaSuccess) {
        return mok_base_fail(MOK_ERR_DEVICE, "rank %d: outputs", layer->rank);
    }
    return MOK_OK;
}

/* ---- the same work on every rank --------------------------------------------------------------------------------------------- */

void gpu_run_note(struct gpu_run *run, int32_t rank, mok_status status)
{
    if (status != MOK_OK && run->status[rank] == MOK_OK) {
        run->status[rank] = status;
        gpu_check(0, "rank %d: %s: %s", rank, mok_status_name(status), mok_last_error());
    }
}

static void run_on_rank(int32_t rank, void *context)
{
    struct gpu_run *run = context;
    struct gpu_layer layer;
    mok_group_config config;
    mok_status status = gpu_layer_config(rank, run->num_ranks, run->hub, &config);
    memset(&layer, 0, sizeof layer);
    config.path = run->path != MOK_PATH_AUTO ? run->path : config.path;
    config.num_saved = run->num_saved > 0 ? run->num_saved : 1;
    config.device = run->num_devices > 0 ? rank % run->num_devices : config.device;
    config.local_timeout_ms = run->local_timeout_ms > 0 ? run->local_timeout_ms : config.local_timeout_ms;
    config.minibatch_rows = run->minibatch_rows > 0 ? run->minibatch_rows : config.minibatch_rows;
    config.ring_minibatches = run->ring_minibatches > 0 ? run->ring_minibatches : config.ring_minibatches;
    if (status == MOK_OK) {
        status = gpu_layer_open(&layer, &config);
    }
    if (status == MOK_OK && gpu_load_kernels() != (int)cudaSuccess) {
        status = mok_base_fail(MOK_ERR_DEVICE, "rank %d: kernels of the tests", rank);
    }
    gpu_run_note(run, rank, status);
    gpu_meet();
    int all_open = 1;
    for (int32_t r = 0; r < run->num_ranks; r++) {
        all_open = all_open && run->status[r] == MOK_OK;
    }
    gpu_meet();
    if (all_open) {
        run->work(run, &layer);
    }
    gpu_run_note(run, rank, gpu_layer_close(&layer));
}

int gpu_run_all(struct gpu_run *run)
{
    int ok = mok_hub_create(run->num_ranks, &run->hub) == MOK_OK;
    if (ok) {
        gpu_run_ranks(run->num_ranks, run_on_rank, run);
    }
    for (int32_t r = 0; r < run->num_ranks; r++) {
        ok = ok && run->status[r] == MOK_OK && run->num_wrong[r] == 0;
    }
    mok_hub_destroy(run->hub);
    run->hub = NULL;
    return ok;
}
