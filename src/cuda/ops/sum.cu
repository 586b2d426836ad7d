/*
 * What a source does with its own memory: copies into the published part before a pass, sums of its slots after it (numerics.md).
 *
 *   PUBLISH  x or dy -> rows, w -> w of the own region; plain stores, announced by the ENTRY barrier
 *   SUM_Y    acc = v * s_t, or 0;  for k ascending, id >= 0: acc = fma(w, slot, acc);  y = bf16(acc)
 *   SUM_DX   acc = shared dx, or 0;  for k ascending, id >= 0: acc += slot;  dx = bf16(acc);  dw, dshared_w
 *
 * The sums run behind the EXIT barrier. A thread owns 8 columns of a token and has the loads of several slots under way. Slots of
 * unrouted ids, and weights of them, are not read: they hold whatever was there.
 */
#include <cuda_bf16.h>

#include "cuda/hw/scope.cuh"
#include "cuda/kernel.h"

enum { SUM_THREADS = 256, COLS = 8, IN_FLIGHT = 4 };

union bf16x8 {
    uint4 bits;
    __nv_bfloat162 pair[COLS / 2];
};

struct sum8 {
    float acc[COLS];
};

MOK_DEVICE void store_sum(void *to, const struct sum8 *sum)
{
    union bf16x8 out;
#pragma unroll
    for (int i = 0; i < COLS / 2; i++) {
        out.pair[i] = __floats2bfloat162_rn(sum->acc[2 * i], sum->acc[2 * i + 1]);
    }
    *(uint4 *)to = out.bits;
}

/* acc = scale * row; scale NULL = 1. */
MOK_DEVICE void start_sum(struct sum8 *sum, const void *row, const float *scale)
{
    union bf16x8 in;
    in.bits = row != NULL ? *(const uint4 *)row : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < COLS / 2; i++) {
        float2 values = __bfloat1622float2(in.pair[i]);
        sum->acc[2 * i] = scale != NULL ? __fmul_rn(*scale, values.x) : values.x;
        sum->acc[2 * i + 1] = scale != NULL ? __fmul_rn(*scale, values.y) : values.y;
    }
}

/* acc = fma(weight, row, acc); weight 1 is a plain addition: the product is exact. */
MOK_DEVICE void add_row(struct sum8 *sum, float weight, uint4 bits)
{
    union bf16x8 in;
    in.bits = bits;
#pragma unroll
    for (int i = 0; i < COLS / 2; i++) {
        float2 values = __bfloat1622float2(in.pair[i]);
        sum->acc[2 * i] = __fmaf_rn(weight, values.x, sum->acc[2 * i]);
        sum->acc[2 * i + 1] = __fmaf_rn(weight, values.y, sum->acc[2 * i + 1]);
    }
}

/* Adds the routed slots of one token at one column group, k ascending. w NULL = 1. */
MOK_DEVICE void add_slots(struct sum8 *sum, const int32_t *ids, const float *w, const char *slots, int32_t top_k, int64_t row_bytes)
{
    for (int32_t first = 0; first < top_k; first += IN_FLIGHT) {
        uint4 bits[IN_FLIGHT];
        float weight[IN_FLIGHT];
        int routed[IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
            routed[i] = first + i < top_k && ids[first + i] >= 0;
            bits[i] = routed[i] ? *(const uint4 *)(slots + (first + i) * row_bytes) : make_uint4(0, 0, 0, 0);
            weight[i] = routed[i] && w != NULL ? w[first + i] : 1.0f;
        }
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
            if (routed[i]) {
                add_row(sum, weight[i], bits[i]);
            }
        }
    }
}

/* The last block of the grid counts the pass as done. */
MOK_DEVICE void finish_pass(const struct mok_cuda_watch *watch)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicInc(&watch->control->sum_blocks, gridDim.x - 1) == gridDim.x - 1) {
            watch->control->passes_done++;
            volatile struct mok_cuda_record *record = watch->record;
            record->passes_done = watch->control->passes_done;
        }
    }
}

extern "C" __global__ void __launch_bounds__(SUM_THREADS) sum_y(const __grid_constant__ struct mok_cuda_sum_y_args args)
{
    if (args.watch.control->pass_ok == 0) {
        return;
    }
    int64_t row_bytes = (int64_t)args.hidden * 2, groups = args.hidden / COLS;
    int64_t num = args.num_tokens * groups, stride = (int64_t)gridDim.x * SUM_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x; i < num; i += stride) {
        int64_t t = i / groups, at = i % groups * 16;
        struct sum8 sum;
        start_sum(&sum, args.shared != NULL ? (const char *)args.shared + t * row_bytes + at : NULL,
                  args.shared_w != NULL ? args.shared_w + t : NULL);
        add_slots(&sum, args.ids + t * args.top_k, args.w + t * args.top_k, (const char *)args.slots + t * args.top_k * row_bytes + at, args.top_k,
                  row_bytes);
        store_sum((char *)args.y + t * row_bytes + at, &sum);
    }
    finish_pass(&args.watch);
}

/* dw = slot_dw, exactly 0 for unrouted ids; dshared_w = partial sums in tile order. */
MOK_DEVICE void sum_weights(const struct mok_cuda_sum_dx_args *args, int64_t thread, int64_t stride)
{
    for (int64_t i = thread; i < (int64_t)args->num_tokens * args->top_k; i += stride) {
        args->dw[i] = args->ids[i] >= 0 ? args->slot_dw[i] : 0.0f;
    }
    for (int64_t t = thread; args->shared_partial != NULL && t < args->num_tokens; t += stride) {
        const float *partial = args->shared_partial + t * args->num_partials;
        float sum = partial[0];
        for (int32_t i = 1; i < args->num_partials; i++) {
            sum = __fadd_rn(sum, partial[i]);
        }
        args->dshared_w[t] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(SUM_THREADS) sum_dx(const __grid_constant__ struct mok_cuda_sum_dx_args args)
{
    if (args.watch.control->pass_ok == 0) {
        return;
    }
    int64_t row_bytes = (int64_t)args.hidden * 2, groups = args.hidden / COLS;
    int64_t thread = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x, stride = (int64_t)gridDim.x * SUM_THREADS;
    for (int64_t i = thread; i < args.num_tokens * groups; i += stride) {
        int64_t t = i / groups, at = i % groups * 16;
        struct sum8 sum;
        start_sum(&sum, args.shared != NULL ? (const char *)args.shared + t * row_bytes + at : NULL, NULL);
        add_slots(&sum, args.ids + t * args.top_k, NULL, (const char *)args.slots + t * args.top_k * row_bytes + at, args.top_k, row_bytes);
        store_sum((char *)args.dx + t * row_bytes + at, &sum);
    }
    sum_weights(&args, thread, stride);
    finish_pass(&args.watch);
}

extern "C" __global__ void __launch_bounds__(SUM_THREADS) publish(const __grid_constant__ struct mok_cuda_publish_args args)
{
    int64_t thread = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x, stride = (int64_t)gridDim.x * SUM_THREADS;
    const uint4 *from = (const uint4 *)args.rows_from;
    uint4 *to = (uint4 *)args.rows_to;
    int64_t num = args.rows_bytes / 16;
    for (int64_t i = thread; i < num; i += IN_FLIGHT * stride) {
        uint4 bits[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            bits[j] = i + j * stride < num ? from[i + j * stride] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            if (i + j * stride < num) {
                to[i + j * stride] = bits[j];
            }
        }
    }
    for (int64_t i = thread; i < args.num_words; i += stride) {
        args.words_to[i] = args.words_from[i];
    }
}

/* Trace: begin and end of a stage on the stream. One thread. */
extern "C" __global__ void stamp(const __grid_constant__ struct mok_cuda_stamp_args args)
{
    uint64_t now = mok_hw_time_ns();
    if (!args.is_end) {
        args.control->trace_begin = now;
        return;
    }
    uint64_t place = args.control->num_events++;
    if (place < args.capacity) {
        mok_event event = {args.kind, 0, args.index, (int64_t)args.control->pass, (int64_t)args.control->trace_begin, (int64_t)now};
        args.events[place] = event;
    }
}

struct mok_cuda_kernel mok_cuda_publish_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)publish, SUM_THREADS, sizeof(struct mok_cuda_publish_args)};
    return kernel;
}

struct mok_cuda_kernel mok_cuda_sum_y_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)sum_y, SUM_THREADS, sizeof(struct mok_cuda_sum_y_args)};
    return kernel;
}

struct mok_cuda_kernel mok_cuda_sum_dx_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)sum_dx, SUM_THREADS, sizeof(struct mok_cuda_sum_dx_args)};
    return kernel;
}

struct mok_cuda_kernel mok_cuda_stamp_kernel(void)
{
    struct mok_cuda_kernel kernel = {(const void *)stamp, 1, sizeof(struct mok_cuda_stamp_args)};
    return kernel;
}
