/*
 * See bench/bench_gpu.h. Values: x and dy normal; weights normal with the deviation that keeps activations of size 1; gradients start at 0.
 */
#include "bench/bench_gpu.h"

#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- devices ------------------------------------------------------------------------------------------------------------ */

int32_t mok_bench_count_gpus(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

mok_status mok_bench_describe_gpu(int32_t device, char *name, size_t name_size, char *bus, size_t bus_size, int32_t *num_sms_out)
{
    struct cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess || cudaDeviceGetPCIBusId(bus, (int)bus_size, device) != cudaSuccess) {
        return mok_cli_fail(MOK_ERR_DEVICE, "properties of device %" PRId32 " cannot be read", device);
    }
    snprintf(name, name_size, "%s", properties.name);
    *num_sms_out = properties.multiProcessorCount;
    return MOK_OK;
}

/* Host and devices use one address: unified addressing, which every 64-bit Linux driver has. */
struct mok_bench_gate *mok_bench_gate_alloc(void)
{
    struct mok_bench_gate *gate = NULL;
    if (cudaHostAlloc((void **)&gate, sizeof *gate, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) {
        return NULL;
    }
    memset(gate, 0, sizeof *gate);
    return gate;
}

void mok_bench_gate_free(struct mok_bench_gate *gate) { (void)cudaFreeHost(gate); }

mok_status mok_bench_check(const struct mok_bench_gpu *gpu, int error, const char *what)
{
    return error == cudaSuccess ? MOK_OK
                                : mok_cli_fail(error == cudaErrorMemoryAllocation ? MOK_ERR_MEMORY : MOK_ERR_DEVICE,
                                               "rank %" PRId32 ": %s: %s", gpu->rank, what, cudaGetErrorString((cudaError_t)error));
}

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

static mok_status allocate(struct mok_bench_gpu *gpu, int64_t bytes, void **memory_out)
{
    *memory_out = gpu->memory->alloc((size_t)(bytes < 16 ? 16 : bytes));
    return *memory_out != NULL
               ? MOK_OK
               : mok_cli_fail(MOK_ERR_MEMORY, "rank %" PRId32 ": no device memory for %" PRId64 " bytes", gpu->rank, bytes);
}

/* A stream of random numbers of its own for every tensor. */
static mok_status make_normal(struct mok_bench_gpu *gpu, int64_t count, double scale, uint64_t tensor, void **memory_out)
{
    MOK_TRY(allocate(gpu, 2 * count, memory_out));
    return mok_bench_check(gpu, mok_bench_fill_normal(*memory_out, count, (float)scale, (uint64_t)gpu->rank << 32 | tensor, gpu->stream),
                           "random data");
}

static mok_status make_bytes(struct mok_bench_gpu *gpu, int64_t bytes, void **memory_out)
{
    MOK_TRY(allocate(gpu, bytes, memory_out));
    return mok_bench_check(gpu, cudaMemsetAsync(*memory_out, 0, (size_t)(bytes < 16 ? 16 : bytes), gpu->stream), "zeros");
}

/* num matrices of an expert's width. */
static mok_status make_weights(struct mok_bench_gpu *gpu, int64_t num, int64_t width, uint64_t tensor, struct mok_bench_ffn *ffn)
{
    int64_t hidden = gpu->settings->shape.hidden, count = num * width * hidden;
    MOK_TRY(make_normal(gpu, count, 1.0 / sqrt((double)hidden), tensor, &ffn->gate));
    MOK_TRY(make_normal(gpu, count, 1.0 / sqrt((double)hidden), tensor + 1, &ffn->up));
    return make_normal(gpu, count, 1.0 / sqrt((double)width), tensor + 2, &ffn->down);
}

static mok_status make_grads(struct mok_bench_gpu *gpu, int64_t num, int64_t width, struct mok_bench_ffn *ffn)
{
    int64_t bytes = 4 * num * width * gpu->settings->shape.hidden;
    MOK_TRY(make_bytes(gpu, bytes, &ffn->gate));
    MOK_TRY(make_bytes(gpu, bytes, &ffn->up));
    return make_bytes(gpu, bytes, &ffn->down);
}

/* Routes, chosen on the host; and how many go to each rank. */
static mok_status make_routes(struct mok_bench_gpu *gpu, const struct mok_bench_router *router, int32_t idx)
{
    struct mok_bench_set *set = &gpu->sets[idx];
    int64_t tokens = gpu->settings->shape.tokens, routes = tokens * gpu->settings->shape.top_k;
    int32_t *ids = malloc((size_t)routes * sizeof *ids);
    float *w = malloc((size_t)routes * sizeof *w);
    mok_status status = ids == NULL || w == NULL
                            ? mok_cli_fail(MOK_ERR_MEMORY, "rank %" PRId32 ": no memory for %" PRId64 " routes", gpu->rank, routes)
                            : mok_bench_route(router, gpu->rank, idx, tokens, ids, w);
    for (int64_t route = 0; status == MOK_OK && route < routes; route++) {
        int32_t rank = 0, first, num;
        do {
            status = mok_cli_check(mok_local_experts(router->num_experts, gpu->num_ranks, rank++, &first, &num));
        } while (status == MOK_OK && ids[route] >= first + num);
        set->routes_to[rank - 1]++;
    }
    if (status == MOK_OK) {
        status = allocate(gpu, routes * 4, (void **)&set->ids);
    }
    if (status == MOK_OK) {
        status = allocate(gpu, routes * 4, (void **)&set->w);
    }
    if (status == MOK_OK && (gpu->memory->upload(set->ids, ids, (size_t)routes * 4) != MOK_OK ||
                             gpu->memory->upload(set->w, w, (size_t)routes * 4) != MOK_OK)) {
        status = mok_cli_fail(MOK_ERR_DEVICE, "rank %" PRId32 ": routes could not be copied", gpu->rank);
    }
    free(ids);
    free(w);
    return status;
}

/* Tensors of the layer. Numbers of tensors: 0.. sets, 100.. weights, 200.. operands of dense products. */
static mok_status make_tensors(struct mok_bench_gpu *gpu, const struct mok_bench_router *router)
{
    const struct mok_shape_settings *shape = &gpu->settings->shape;
    int64_t values = shape->tokens * shape->hidden;
    for (int32_t idx = 0; idx < MOK_BENCH_NUM_SETS; idx++) {
        MOK_TRY(make_normal(gpu, values, 1.0, (uint64_t)(2 * idx), &gpu->sets[idx].x));
        MOK_TRY(make_normal(gpu, values, 1.0, (uint64_t)(2 * idx + 1), &gpu->sets[idx].dy));
        MOK_TRY(make_routes(gpu, router, idx));
    }
    MOK_TRY(make_weights(gpu, gpu->num_local, shape->inter, 100, &gpu->weights));
    if (shape->shared_inter > 0) {
        MOK_TRY(make_weights(gpu, 1, shape->shared_inter, 103, &gpu->shared_weights));
    }
    if (mok_bench_has_backward(gpu->settings)) {
        MOK_TRY(make_grads(gpu, gpu->num_local, shape->inter, &gpu->grads));
        MOK_TRY(make_grads(gpu, shape->shared_inter > 0, shape->shared_inter, &gpu->shared_grads));
    }
    MOK_TRY(make_bytes(gpu, 2 * values, &gpu->y));
    MOK_TRY(make_bytes(gpu, 2 * values, &gpu->dx));
    return make_bytes(gpu, 4 * shape->tokens * shape->top_k, &gpu->dw);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Operands of the dense products, large enough for those of every set. */
static mok_status make_operands(struct mok_bench_gpu *gpu)
{
    const struct mok_shape_settings *shape = &gpu->settings->shape;
    int64_t width = larger(shape->inter, shape->shared_inter), rows = 0;
    for (int32_t idx = 0; idx < MOK_BENCH_NUM_SETS; idx++) {
        rows = larger(rows, mok_bench_gemm_product(&gpu->sets[idx].sizes, MOK_BENCH_GATE_UP).m);
        rows = larger(rows, mok_bench_gemm_product(&gpu->sets[idx].sizes, MOK_BENCH_SHARED_GATE_UP).m);
    }
    int64_t values = rows * larger(2 * width, shape->hidden), weights = 2 * width * shape->hidden;
    MOK_TRY(make_normal(gpu, values, 1.0, 200, &gpu->dense.a));
    MOK_TRY(make_normal(gpu, values, 1.0, 201, &gpu->dense.b));
    MOK_TRY(make_normal(gpu, weights, 1.0 / sqrt((double)shape->hidden), 202, &gpu->dense.weight));
    MOK_TRY(make_bytes(gpu, 4 * weights, &gpu->dense.grad));
    return mok_bench_cublas_open(gpu->cublas, gpu->stream, &gpu->dense, &gpu->cublas_version);
}

static mok_status make_yardsticks(struct mok_bench_gpu *gpu, struct mok_bench_gate *gate)
{
    MOK_TRY(make_normal(gpu, MOK_BENCH_COPY_BYTES, 1.0, 203, (void **)&gpu->copy)); /* 2 bytes a value: both halves */
    for (int idx = 0; idx < MOK_BENCH_NUM_MARKS; idx++) {
        MOK_TRY(mok_bench_check(gpu, cudaEventCreate((cudaEvent_t *)&gpu->marks[idx]), "event"));
    }
    return mok_bench_check(gpu, mok_bench_hold(gate, gpu->rank, 0, 0, gpu->stream), "first launch"); /* open already: loads the kernel */
}

/* ---- objects ------------------------------------------------------------------------------------------------------------ */

static mok_ffn describe(const struct mok_bench_gpu *gpu, int32_t dtype, int64_t width, const struct mok_bench_ffn *ffn)
{
    int64_t hidden = gpu->settings->shape.hidden, count = width * hidden;
    return (mok_ffn){.dtype = dtype,
                     .gate = {.base = ffn->gate, .expert_stride = count, .row_stride = hidden},
                     .up = {.base = ffn->up, .expert_stride = count, .row_stride = hidden},
                     .down = {.base = ffn->down, .expert_stride = count, .row_stride = width}};
}

static mok_status make_objects(struct mok_bench_gpu *gpu, struct mok_bench_lane *lane)
{
    const struct mok_shape_settings *shape = &gpu->settings->shape;
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.routed = describe(gpu, MOK_DTYPE_BF16, shape->inter, &gpu->weights);
    if (shape->shared_inter > 0) {
        config.shared = describe(gpu, MOK_DTYPE_BF16, shape->shared_inter, &gpu->shared_weights);
    }
    MOK_TRY(mok_cli_check(mok_layer_create(lane->group, &config, &lane->layer)));
    MOK_TRY(mok_cli_check(mok_schedule_create(lane->group, &lane->schedule)));
    MOK_TRY(mok_cli_check(mok_group_saved(lane->group, 0, &lane->saved)));
    return mok_cli_check(mok_saved_input(lane->saved, &lane->saved_input));
}

static mok_status create_group(const struct mok_bench_gpu *gpu, const mok_group_config *config, struct mok_bench_lane *lane)
{
    const struct mok_shape_settings *shape = &gpu->settings->shape;
    mok_group_config own = *config;
    own.backend = MOK_BACKEND_CUDA;
    own.device = gpu->device;
    own.num_saved = own.num_saved < 1 ? 1 : own.num_saved;
    own.shape = (mok_shape){.num_experts = (int32_t)shape->experts,
                            .top_k = (int32_t)shape->top_k,
                            .hidden = (int32_t)shape->hidden,
                            .intermediate = (int32_t)shape->inter,
                            .shared_intermediate = (int32_t)shape->shared_inter,
                            .format = MOK_FORMAT_BF16,
                            .max_tokens = shape->tokens};
    lane->path = own.path;
    return mok_cli_check(mok_group_create(&own, &lane->group));
}

mok_status mok_bench_lane_open(struct mok_bench_gpu *gpu, const mok_group_config *config, struct mok_bench_lane *lane)
{
    MOK_TRY(create_group(gpu, config, lane));
    return make_objects(gpu, lane);
}

mok_status mok_bench_lane_close(struct mok_bench_lane *lane)
{
    mok_schedule_destroy(lane->schedule);
    mok_layer_destroy(lane->layer);
    mok_status farewell = mok_group_destroy(lane->group);
    memset(lane, 0, sizeof *lane);
    return mok_cli_check(farewell);
}

static mok_status create_groups(struct mok_bench_gpu *gpu, const mok_group_config *config)
{
    mok_group_config own = *config;
    if (gpu->settings->sweep != NULL) {
        gpu->num_lanes = 1;
        return create_group(gpu, config, &gpu->lanes[0]);
    }
    int32_t paths[MOK_BENCH_MAX_PATHS];
    gpu->num_lanes = mok_bench_paths(config->path, paths);
    for (int32_t idx = 0; idx < gpu->num_lanes; idx++) {
        own.path = paths[idx];
        MOK_TRY(create_group(gpu, &own, &gpu->lanes[idx]));
    }
    return MOK_OK;
}

static mok_status open_objects(struct mok_bench_gpu *gpu, const struct mok_bench_facts *facts, const mok_group_config *config)
{
    MOK_TRY(create_groups(gpu, config));
    MOK_TRY(make_tensors(gpu, facts->router));
    for (int32_t idx = 0; idx < gpu->num_lanes; idx++) {
        MOK_TRY(make_objects(gpu, &gpu->lanes[idx]));
    }
    MOK_TRY(make_yardsticks(gpu, facts->gate));
    return mok_bench_wait(gpu, 0);
}

mok_status mok_bench_gpu_open(const struct mok_bench_facts *facts, const mok_group_config *config, struct mok_bench_gpu *gpu)
{
    memset(gpu, 0, sizeof *gpu);
    gpu->settings = facts->settings;
    gpu->memory = mok_case_memory_of(MOK_BACKEND_CUDA);
    gpu->rank = config->rank;
    gpu->num_ranks = config->num_ranks;
    gpu->num_devices = facts->num_devices;
    gpu->cublas = facts->cublas;
    gpu->is_kept = config->keep_rows == MOK_KEEP_ALL;
    MOK_TRY(mok_cli_check(
        mok_local_experts((int32_t)facts->settings->shape.experts, gpu->num_ranks, gpu->rank, &gpu->first_expert, &gpu->num_local)));
    if (gpu->memory->open(gpu->rank, &gpu->device, &gpu->stream) != MOK_OK) {
        return mok_cli_fail(MOK_ERR_DEVICE, "rank %" PRId32 ": no device could be opened", gpu->rank);
    }
    gpu->is_open = 1;
    mok_status status = open_objects(gpu, facts, config);
    if (status != MOK_OK) {
        mok_bench_gpu_abort(gpu);
    }
    return status;
}

void mok_bench_gpu_abort(struct mok_bench_gpu *gpu)
{
    for (int32_t idx = 0; idx < gpu->num_lanes; idx++) {
        if (gpu->lanes[idx].group != NULL) {
            (void)mok_group_abort(gpu->lanes[idx].group); /* the caller reports its own failure */
        }
    }
}

static void free_ffn(struct mok_bench_gpu *gpu, struct mok_bench_ffn *ffn)
{
    gpu->memory->free(ffn->gate);
    gpu->memory->free(ffn->up);
    gpu->memory->free(ffn->down);
}

static void free_tensors(struct mok_bench_gpu *gpu)
{
    void *others[] = {gpu->y, gpu->dx, gpu->dw, gpu->dense.a, gpu->dense.b, gpu->dense.weight, gpu->dense.grad, gpu->copy};
    for (int idx = 0; idx < MOK_BENCH_NUM_SETS; idx++) {
        gpu->memory->free(gpu->sets[idx].x);
        gpu->memory->free(gpu->sets[idx].dy);
        gpu->memory->free(gpu->sets[idx].ids);
        gpu->memory->free(gpu->sets[idx].w);
    }
    free_ffn(gpu, &gpu->weights);
    free_ffn(gpu, &gpu->shared_weights);
    free_ffn(gpu, &gpu->grads);
    free_ffn(gpu, &gpu->shared_grads);
    for (size_t idx = 0; idx < sizeof others / sizeof others[0]; idx++) {
        gpu->memory->free(others[idx]);
    }
    for (int idx = 0; idx < MOK_BENCH_NUM_MARKS; idx++) {
        if (gpu->marks[idx] != NULL) {
            (void)cudaEventDestroy((cudaEvent_t)gpu->marks[idx]);
        }
    }
}

mok_status mok_bench_gpu_close(struct mok_bench_gpu *gpu)
{
    mok_status status = MOK_OK;
    if (!gpu->is_open) {
        return MOK_OK;
    }
    mok_bench_cublas_close(&gpu->dense);
    for (int32_t idx = 0; idx < gpu->num_lanes; idx++) {
        mok_status farewell = mok_bench_lane_close(&gpu->lanes[idx]);
        status = status == MOK_OK ? farewell : status;
    }
    free_tensors(gpu);
    gpu->memory->close(gpu->stream);
    memset(gpu, 0, sizeof *gpu);
    return status;
}

/* ---- passes ------------------------------------------------------------------------------------------------------------- */

mok_status mok_bench_enqueue_schedule(struct mok_bench_gpu *gpu, int32_t lane, int32_t set)
{
    return mok_cli_check(mok_schedule_build(gpu->lanes[lane].schedule, gpu->sets[set].ids, gpu->settings->shape.tokens, gpu->stream));
}

mok_status mok_bench_enqueue_forward(struct mok_bench_gpu *gpu, int32_t lane, int32_t set, int is_zero_copy)
{
    const struct mok_bench_lane *objects = &gpu->lanes[lane];
    mok_forward_args args;
    mok_forward_args_init(&args);
    args.x = is_zero_copy ? objects->saved_input : gpu->sets[set].x;
    args.w = gpu->sets[set].w;
    args.y = gpu->y;
    args.saved = objects->saved;
    return mok_cli_check(mok_forward(objects->layer, objects->schedule, &args, gpu->stream));
}

mok_status mok_bench_enqueue_backward(struct mok_bench_gpu *gpu, int32_t lane, int32_t set)
{
    const struct mok_shape_settings *shape = &gpu->settings->shape;
    const struct mok_bench_lane *objects = &gpu->lanes[lane];
    mok_backward_args args;
    mok_backward_args_init(&args);
    args.saved = objects->saved;
    args.dy = gpu->sets[set].dy;
    args.w = gpu->sets[set].w;
    args.dx = gpu->dx;
    args.dw = gpu->dw;
    args.grads = describe(gpu, MOK_DTYPE_FP32, shape->inter, &gpu->grads);
    if (shape->shared_inter > 0) {
        args.shared_grads = describe(gpu, MOK_DTYPE_FP32, shape->shared_inter, &gpu->shared_grads);
    }
    args.grad_mode = MOK_GRAD_ADD;
    return mok_cli_check(mok_backward(objects->layer, objects->schedule, &args, gpu->stream));
}

mok_status mok_bench_wait(struct mok_bench_gpu *gpu, int32_t lane)
{
    MOK_TRY(mok_cli_check(mok_group_wait(gpu->lanes[lane].group, gpu->stream, -1)));
    return mok_bench_check(gpu, cudaStreamSynchronize((cudaStream_t)gpu->stream), "work of the stream");
}

/* ---- counting ----------------------------------------------------------------------------------------------------------- */

/* Rows as the library's own schedule has them; they must be what the routes say. */
static mok_status count_rows(struct mok_bench_gpu *gpu, int32_t set, const struct mok_bench_gpu *all, int64_t *rows_of)
{
    struct mok_bench_sizes *sizes = &gpu->sets[set].sizes;
    int64_t padded, expected = 0;
    MOK_TRY(mok_bench_enqueue_schedule(gpu, 0, set));
    MOK_TRY(mok_cli_check(mok_schedule_counts(gpu->lanes[0].schedule, gpu->stream, rows_of, &padded)));
    for (int32_t idx = 0; idx < gpu->num_local; idx++) {
        sizes->rows += rows_of[idx];
        sizes->experts += rows_of[idx] > 0;
    }
    for (int32_t rank = 0; rank < gpu->num_ranks; rank++) {
        expected += all[rank].sets[set].routes_to[gpu->rank];
    }
    return sizes->rows == expected
               ? MOK_OK
               : mok_cli_fail(MOK_ERR_INTERNAL, "rank %" PRId32 ": the schedule has %" PRId64 " rows, the routes %" PRId64, gpu->rank,
                              sizes->rows, expected);
}

mok_status mok_bench_gpu_count(struct mok_bench_gpu *gpu, const struct mok_bench_gpu *all)
{
    const struct mok_shape_settings *shape = &gpu->settings->shape;
    int64_t *rows_of = calloc((size_t)gpu->num_local + 1, sizeof *rows_of);
    mok_status status = rows_of == NULL ? mok_cli_fail(MOK_ERR_MEMORY, "no memory for counts") : MOK_OK;
    for (int32_t set = 0; set < MOK_BENCH_NUM_SETS && status == MOK_OK; set++) {
        struct mok_bench_sizes *sizes = &gpu->sets[set].sizes;
        *sizes = (struct mok_bench_sizes){.hidden = shape->hidden,
                                          .inter = shape->inter,
                                          .shared_inter = shape->shared_inter,
                                          .top_k = shape->top_k,
                                          .tokens = shape->tokens,
                                          .is_kept = gpu->is_kept};
        for (int32_t rank = 0; rank < gpu->num_ranks; rank++) {
            int is_remote = rank % gpu->num_devices != gpu->rank % gpu->num_devices;
            sizes->rows_out += is_remote ? gpu->sets[set].routes_to[rank] : 0;
            sizes->rows_in += is_remote ? all[rank].sets[set].routes_to[gpu->rank] : 0;
        }
        status = count_rows(gpu, set, all, rows_of);
    }
    free(rows_of);
    return status == MOK_OK && gpu->cublas != NULL ? make_operands(gpu) : status;
}
