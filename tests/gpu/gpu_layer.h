/*
 * A small layer with all its tensors on one rank's GPU, for tests that are about streams, graphs, faults and life rather than numbers: what comes out is
 * compared bit for bit with what came out another way.
 */
#ifndef MOK_GPU_LAYER_H
#define MOK_GPU_LAYER_H

#include <cuda_runtime_api.h>

#include "gpu_check.h"

enum {
    GPU_LAYER_EXPERTS = 8,
    GPU_LAYER_TOP_K = 3,
    GPU_LAYER_HIDDEN = 136,
    GPU_LAYER_INTER = 200,
    GPU_LAYER_SHARED = 88,
    GPU_LAYER_TOKENS = 300 /* T_max; rank r brings gpu_layer_tokens(r) */
};

struct gpu_layer {
    int32_t rank, num_ranks;
    int32_t idx; /* which of the layers of a group: its weights, its saved object */
    int64_t num_tokens;
    int32_t num_local;
    cudaStream_t stream;
    mok_group *group;
    mok_layer *layer;
    mok_schedule *schedule;
    mok_saved *saved;
    char *weights; /* device memory, all matrices */
    char *inputs;  /* device memory: ids, x, w, shared_w, dy */
    char *outputs; /* device memory: y, dx, dw, dshared_w, gradients */
    size_t inputs_bytes, outputs_bytes;
    mok_forward_args forward;
    mok_backward_args backward;
    int32_t *ids; /* in inputs */
};

int64_t gpu_layer_tokens(int32_t rank);

/* The config that gpu_layer_open starts from. */
mok_status gpu_layer_config(int32_t rank, int32_t num_ranks, mok_hub *hub, mok_group_config *config_out);

/* Collective. config: from gpu_layer_config, changed as wanted. */
mok_status gpu_layer_open(struct gpu_layer *layer, const mok_group_config *config);
/* Another layer of the group of `first`, on its stream: own weights, schedule, tensors, and the idx-th saved object, idx > 0. Not collective. */
mok_status gpu_layer_open_beside(struct gpu_layer *layer, const struct gpu_layer *first, int32_t idx);
/* Bounded as mok_group_destroy is; returns what it says. Layers beside go before the first one. */
mok_status gpu_layer_close(struct gpu_layer *layer);

/* Host image of the inputs of a seed, to[inputs_bytes]. */
void gpu_layer_image(const struct gpu_layer *layer, uint32_t seed, char *to);
/* Copies the inputs of a seed in, done when it returns. */
void gpu_layer_inputs(struct gpu_layer *layer, uint32_t seed);
/* Enqueues build, forward and backward. */
mok_status gpu_layer_enqueue(struct gpu_layer *layer);
/* Fills the outputs with a byte, in stream order. */
void gpu_layer_poison(struct gpu_layer *layer, int byte);
/* Waits for the stream (bounded by the group's deadlines) and copies the outputs out, to[outputs_bytes]. */
mok_status gpu_layer_outputs(struct gpu_layer *layer, char *to);

/* ---- the same work on every rank --------------------------------------------------------------------------------------------- */

enum { GPU_RUN_RANKS = 8 };

struct gpu_run {
    int32_t num_ranks;
    int32_t path;             /* mok_path; AUTO = what the environment says */
    int32_t num_saved;        /* 0 = 1 */
    int32_t num_devices;      /* ranks are spread over so many; 0 = all there are */
    int64_t local_timeout_ms; /* 0 = that of gpu_config */
    int32_t minibatch_rows, ring_minibatches; /* 0 = that of gpu_config */
    void (*work)(struct gpu_run *run, struct gpu_layer *layer); /* on each rank, its group open */
    const void *context; /* for work */
    /* filled in */
    mok_hub *hub;
    mok_status status[GPU_RUN_RANKS]; /* the first failure */
    int64_t num_wrong[GPU_RUN_RANKS];
};

/* Opens the group, does the work, closes. 1 = no rank failed, nothing was wrong. */
int gpu_run_all(struct gpu_run *run);
/* Keeps a rank's first failure, and prints it. */
void gpu_run_note(struct gpu_run *run, int32_t rank, mok_status status);

#endif
