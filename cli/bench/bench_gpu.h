/*
 * One rank of `mok bench` on its GPU: groups, tensors with random data that is made on the device, operands of the dense products,
 * events.
 *
 * Lanes. A lane is a group with its objects: the staged path, or the fused one and the staged one behind it; of a sweep, the options as given
 * and points of it. All lanes share tensors.
 * Sets. Inputs exist MOK_BENCH_NUM_SETS times, each with values and routes of its own; runs take them in turn.
 */
#ifndef MOK_CLI_BENCH_GPU_H
#define MOK_CLI_BENCH_GPU_H

#include "bench/bench_cublas.h"
#include "bench/bench_kernels.h"
#include "bench/bench_routes.h"
#include "bench/bench_work.h"
#include "case/case_memory.h"

enum {
    MOK_BENCH_NUM_SETS = 4,
    MOK_BENCH_MAX_LANES = 4,
    MOK_BENCH_NUM_MARKS = MOK_BENCH_NUM_GEMMS + 1,
    MOK_BENCH_COPY_BYTES = 512 << 20 /* of each half of the copy buffer: ten times the L2 of an H200 */
};

struct mok_bench_ffn {
    void *gate, *up, *down;
};

struct mok_bench_lane {
    int32_t path;
    mok_group *group;
    mok_layer *layer;
    mok_schedule *schedule;
    mok_saved *saved;
    void *saved_input;
};

struct mok_bench_set {
    void *x, *dy;                           /* bf16 [T, H] */
    int32_t *ids;                           /* [T, K] */
    float *w;                               /* [T, K] */
    int64_t routes_to[MOK_SHAPE_MAX_RANKS]; /* routes of this rank to each rank's experts */
    struct mok_bench_sizes sizes;           /* complete after mok_bench_gpu_count */
};

struct mok_bench_gpu {
    const struct mok_bench_settings *settings;
    const struct mok_case_memory *memory;
    int is_open; /* memory->open was done */
    int32_t rank, num_ranks, num_devices, device;
    int32_t first_expert, num_local;
    int is_kept; /* every row's x, g, u */
    mok_stream stream;

    struct mok_bench_lane lanes[MOK_BENCH_MAX_LANES];
    int32_t num_lanes;
    struct mok_bench_set sets[MOK_BENCH_NUM_SETS];
    struct mok_bench_ffn weights, shared_weights; /* bf16 */
    struct mok_bench_ffn grads, shared_grads;     /* fp32 */
    void *y, *dx, *dw;

    const struct mok_bench_cublas *cublas; /* NULL = no dense products */
    struct mok_bench_dense_gpu dense;
    int cublas_version;
    char *copy;                       /* two halves: random values, and what is overwritten */
    void *marks[MOK_BENCH_NUM_MARKS]; /* cudaEvent_t */
};

/* What all ranks share. */
struct mok_bench_facts {
    const struct mok_bench_settings *settings;
    const struct mok_bench_router *router;
    const struct mok_bench_cublas *cublas; /* NULL = no dense products */
    struct mok_bench_gate *gate;
    int32_t num_devices;
};

/* GPUs that this process sees; 0 = none, or no driver. */
int32_t mok_bench_count_gpus(void);
/* Name, bus address and number of SMs of a GPU. Errors: DEVICE. */
mok_status mok_bench_describe_gpu(int32_t device, char *name, size_t name_size, char *bus, size_t bus_size, int32_t *num_sms_out);
/* One gate for all GPUs of the process, all zero; NULL = no memory. */
struct mok_bench_gate *mok_bench_gate_alloc(void);
void mok_bench_gate_free(struct mok_bench_gate *gate);

/* Collective. config: of this rank. On failure the groups that exist are aborted; mok_bench_gpu_close frees what there is. */
mok_status mok_bench_gpu_open(const struct mok_bench_facts *facts, const mok_group_config *config, struct mok_bench_gpu *gpu);
/* Collective. Returns the groups' farewell. */
mok_status mok_bench_gpu_close(struct mok_bench_gpu *gpu);
/* Tells the other ranks that this one cannot go on. */
void mok_bench_gpu_abort(struct mok_bench_gpu *gpu);

/* Collective, after every rank has opened (all [num_ranks]): builds each set's schedule, fills sets[].sizes, makes operands of dense
 * products. */
mok_status mok_bench_gpu_count(struct mok_bench_gpu *gpu, const struct mok_bench_gpu *all);

/* Collective. A lane with the group that config describes beyond shape and device (path, minibatch, workers, ...), and its objects; it
 * shares the tensors of all lanes. */
mok_status mok_bench_lane_open(struct mok_bench_gpu *gpu, const mok_group_config *config, struct mok_bench_lane *lane);
/* Collective. Returns the group's farewell. */
mok_status mok_bench_lane_close(struct mok_bench_lane *lane);

/* Status of a CUDA call. */
mok_status mok_bench_check(const struct mok_bench_gpu *gpu, int error, const char *what);
/* Enqueues a set's pass. */
mok_status mok_bench_enqueue_schedule(struct mok_bench_gpu *gpu, int32_t lane, int32_t set);
/* is_zero_copy: x stands in the lane's saved object; else it is one of the set's tensors. */
mok_status mok_bench_enqueue_forward(struct mok_bench_gpu *gpu, int32_t lane, int32_t set, int is_zero_copy);
mok_status mok_bench_enqueue_backward(struct mok_bench_gpu *gpu, int32_t lane, int32_t set);
/* Waits for the stream; the lane's group ends a wait that a dead peer would make endless. */
mok_status mok_bench_wait(struct mok_bench_gpu *gpu, int32_t lane);

#endif
