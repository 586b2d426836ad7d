/*
 * See gpu_pool.h.
 */
#include "gpu_pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "gpu_slow.h"

enum { SEED = 4711, ONE_EXPERT = 3, NOTHING = 5 };

uint32_t gpu_draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static int64_t tokens_of(int32_t set, int32_t rank)
{
    uint32_t state = (uint32_t)(set * 131 + rank * 17 + 1);
    if (set % 2 == 0) {
        return gpu_layer_tokens(rank);
    }
    (void)gpu_draw(&state);
    return gpu_draw(&state) % 4 == 0 ? 0 : gpu_draw(&state) % (GPU_LAYER_TOKENS + 1);
}

/* ids are the first of the inputs. */
static void choose_ids(int32_t set, int32_t rank, int32_t *ids)
{
    for (int64_t i = 0; i < (int64_t)GPU_LAYER_TOKENS * GPU_LAYER_TOP_K; i++) {
        if (set % 8 == ONE_EXPERT) {
            ids[i] = set % GPU_LAYER_EXPERTS;
        } else if (set % 8 == NOTHING && (rank + set / 8) % 2 == 0) {
            ids[i] = -1;
        }
    }
}

static mok_status make_inputs(struct gpu_pool *pool, const struct gpu_layer *layer)
{
    char *image = calloc(GPU_POOL_SETS, layer->inputs_bytes);
    if (image == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: images of the inputs", layer->rank);
    }
    for (int32_t set = 0; set < GPU_POOL_SETS; set++) {
        char *inputs = image + (size_t)set * layer->inputs_bytes;
        gpu_layer_image(layer, (uint32_t)(SEED + set), inputs);
        choose_ids(set, layer->rank, (int32_t *)(inputs + ((char *)layer->ids - layer->inputs)));
        pool->tokens[set] = tokens_of(set, layer->rank);
    }
    cudaError_t error = cudaMemcpyAsync(pool->inputs, image, GPU_POOL_SETS * layer->inputs_bytes, cudaMemcpyHostToDevice, layer->stream);
    error = error == cudaSuccess ? cudaStreamSynchronize(layer->stream) : error;
    free(image);
    return error == cudaSuccess ? MOK_OK : mok_base_fail(MOK_ERR_DEVICE, "rank %d: inputs cannot be copied", layer->rank);
}

static char *expected_of(const struct gpu_pool *pool, int32_t layer_idx, int32_t set)
{
    return pool->expected + (size_t)(layer_idx * GPU_POOL_SETS + set) * pool->outputs_bytes;
}

mok_status gpu_pool_open(struct gpu_pool *pool, struct gpu_layer *layers, int32_t num_layers)
{
    memset(pool, 0, sizeof *pool);
    pool->num_layers = num_layers;
    pool->inputs_bytes = layers[0].inputs_bytes;
    pool->outputs_bytes = layers[0].outputs_bytes;
    if (cudaMalloc((void **)&pool->inputs, GPU_POOL_SETS * pool->inputs_bytes) != cudaSuccess ||
        cudaMalloc((void **)&pool->expected, (size_t)num_layers * GPU_POOL_SETS * pool->outputs_bytes) != cudaSuccess ||
        cudaMalloc((void **)&pool->poison, pool->outputs_bytes) != cudaSuccess ||
        cudaMemsetAsync(pool->poison, GPU_POOL_POISON, pool->outputs_bytes, layers[0].stream) != cudaSuccess ||
        cudaMalloc((void **)&pool->num_differences, sizeof *pool->num_differences) != cudaSuccess ||
        cudaMemsetAsync(pool->num_differences, 0, sizeof *pool->num_differences, layers[0].stream) != cudaSuccess) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: memory of a pool", layers[0].rank);
    }
    MOK_TRY(make_inputs(pool, &layers[0]));
    gpu_meet();
    for (int32_t i = 0; i < num_layers * GPU_POOL_SETS; i++) {
        struct gpu_layer *layer = &layers[i / GPU_POOL_SETS];
        int32_t set = i % GPU_POOL_SETS;
        gpu_pool_load(pool, layer, set);
        MOK_TRY(gpu_layer_enqueue(layer));
        if (cudaMemcpyAsync(expected_of(pool, layer->idx, set), layer->outputs, pool->outputs_bytes, cudaMemcpyDeviceToDevice, layer->stream) !=
            cudaSuccess) {
            return mok_base_fail(MOK_ERR_DEVICE, "rank %d: expected outputs", layer->rank);
        }
        MOK_TRY(mok_group_wait(layer->group, layer->stream, -1));
    }
    return MOK_OK;
}

void gpu_pool_close(struct gpu_pool *pool)
{
    cudaFree(pool->inputs);
    cudaFree(pool->expected);
    cudaFree(pool->poison);
    cudaFree(pool->num_differences);
    memset(pool, 0, sizeof *pool);
}

void gpu_pool_forget(const struct gpu_pool *pool, const struct gpu_layer *layer)
{
    cudaMemsetAsync(pool->num_differences, 0, sizeof *pool->num_differences, layer->stream);
}

void gpu_pool_load(const struct gpu_pool *pool, struct gpu_layer *layer, int32_t set)
{
    gpu_copy(layer->stream, layer->inputs, pool->inputs + (size_t)set * pool->inputs_bytes, pool->inputs_bytes);
    gpu_fill(layer->stream, layer->outputs, GPU_POOL_POISON, layer->outputs_bytes);
    layer->num_tokens = pool->tokens[set];
}

void gpu_pool_compare(const struct gpu_pool *pool, const struct gpu_layer *layer, int32_t set)
{
    gpu_count_differences(layer->stream, layer->outputs, expected_of(pool, layer->idx, set), pool->outputs_bytes, pool->num_differences);
}

void gpu_pool_compare_y(const struct gpu_pool *pool, const struct gpu_layer *layer, int32_t set)
{
    const char *y = layer->forward.y, *rest = layer->backward.dx; /* y is the first of the outputs, dx the second */
    size_t bytes = (size_t)(rest - y);
    gpu_count_differences(layer->stream, y, expected_of(pool, layer->idx, set), bytes, pool->num_differences);
    gpu_count_differences(layer->stream, rest, pool->poison, pool->outputs_bytes - bytes, pool->num_differences);
}

mok_status gpu_pool_wait(const struct gpu_pool *pool, const struct gpu_layer *layer, uint32_t *num_out)
{
    MOK_TRY(mok_group_wait(layer->group, layer->stream, -1));
    if (cudaMemcpyAsync(num_out, pool->num_differences, sizeof *num_out, cudaMemcpyDeviceToHost, layer->stream) != cudaSuccess ||
        cudaStreamSynchronize(layer->stream) != cudaSuccess) {
        return mok_base_fail(MOK_ERR_DEVICE, "rank %d: differences", layer->rank);
    }
    return MOK_OK;
}
