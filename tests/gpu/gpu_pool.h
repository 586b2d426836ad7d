/*
 * Sets of inputs with the outputs that belong to them, all on the device, so that a test can check every one of thousands of calls without waiting
 * for any: load a set, enqueue the call, compare, in stream order.
 *
 * The expected outputs are those of the group that the pool was opened on, call by call with nothing else under way; they hold for every group with
 * as many ranks. A set says how many tokens this rank brings and where all ranks' tokens go, so all ranks take the same sets in the same order.
 *
 *   set % 2    0: the natural number of tokens of the rank      1: any number, one in four none
 *   set % 8    3: all to one expert      5: nothing is routed on this rank or the next      else random
 */
#ifndef MOK_GPU_POOL_H
#define MOK_GPU_POOL_H

#include "gpu_layer.h"

enum { GPU_POOL_SETS = 16, GPU_POOL_LAYERS = 4, GPU_POOL_POISON = 0xab };

struct gpu_pool {
    int64_t tokens[GPU_POOL_SETS];
    int32_t num_layers;
    size_t inputs_bytes, outputs_bytes; /* of one set */
    char *inputs;                       /* device memory [sets] */
    char *expected;                     /* device memory [layers][sets] */
    char *poison;                       /* device memory [outputs_bytes]: outputs that nobody has written */
    uint32_t *num_differences;          /* device memory, in 16-byte words */
};

/* Collective: runs every set through every layer. layers [num_layers], with idx 0, 1, ... */
mok_status gpu_pool_open(struct gpu_pool *pool, struct gpu_layer *layers, int32_t num_layers);
void gpu_pool_close(struct gpu_pool *pool);
/* Enqueue: forgets the differences so far, those of a run that has failed. */
void gpu_pool_forget(const struct gpu_pool *pool, const struct gpu_layer *layer);

/* Enqueue: the set's inputs into the layer, poison into its outputs. Sets layer->num_tokens. By kernels: ranks that share a GPU share its copy
 * engines, too, and a copy that waits behind a pass could stand in front of one that this pass waits for. */
void gpu_pool_load(const struct gpu_pool *pool, struct gpu_layer *layer, int32_t set);
/* Enqueue: counts where the layer's outputs are not those of the set. */
void gpu_pool_compare(const struct gpu_pool *pool, const struct gpu_layer *layer, int32_t set);
/* The same behind a forward pass alone: y, and that nothing else was written. */
void gpu_pool_compare_y(const struct gpu_pool *pool, const struct gpu_layer *layer, int32_t set);
/* Waits for the stream. *num_out: differences so far. */
mok_status gpu_pool_wait(const struct gpu_pool *pool, const struct gpu_layer *layer, uint32_t *num_out);

/* A stream of numbers. */
uint32_t gpu_draw(uint32_t *state);

#endif
