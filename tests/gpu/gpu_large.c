/*
 * A pass whose slots, kept rows and ring hold more than 2^31 elements each, on one GPU: y, dx and dw of every token are, bit for bit, those of passes
 * over 1,024 tokens, and weight gradients are near their sum. One wrong row of an expert moves a gradient by a three-hundredth of its norm; the
 * order of fp32 sums by far less than the bound.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/status.h"
#include "gpu_check.h"

enum { EXPERTS = 4, TOP_K = 8, HIDDEN = 7168, INTER = 128, CHUNK = 1024, NUM_CHUNKS = 44, TOKENS = CHUNK * NUM_CHUNKS };
enum { VALUES = 16777213 /* of random data, repeated: no multiple of a row */, NUM_MATRICES = 3 };

#define GRADIENT_BOUND 0x1p-13
#define MATRIX ((int64_t)EXPERTS * INTER * HIDDEN)
#define FREE_BYTES ((size_t)56 << 30)

/* Device memory. */
struct tensors {
    uint16_t *x, *dy, *weights[NUM_MATRICES];
    float *w;
    int32_t *ids;
};

struct results {
    uint16_t *y, *dx; /* [T, H] */
    float *dw;        /* [T, K] */
    float *grads[NUM_MATRICES];
};

static const size_t row_bytes = (size_t)HIDDEN * 2, route_bytes = (size_t)TOP_K * 4;

static int alloc(void *pointer_out, size_t bytes)
{
    void *memory = NULL;
    int ok = cudaMalloc(&memory, bytes) == cudaSuccess && cudaMemset(memory, 0xff, bytes) == cudaSuccess;
    memcpy(pointer_out, &memory, sizeof memory);
    return ok;
}

/* count values of the block, over and over, beginning at `from`. */
static int fill(uint16_t *to, int64_t count, const uint16_t *block, int64_t from)
{
    int ok = 1;
    for (int64_t done = 0; done < count && ok; from = 0) {
        int64_t piece = count - done < VALUES - from ? count - done : VALUES - from;
        ok = cudaMemcpy(to + done, block + from, (size_t)piece * 2, cudaMemcpyDeviceToDevice) == cudaSuccess;
        done += piece;
    }
    return ok;
}

static int make_tensors(struct tensors *tensors)
{
    uint16_t *values = malloc((size_t)VALUES * 2), *block = NULL;
    int32_t *ids = malloc(TOKENS * route_bytes);
    float *w = malloc(TOKENS * route_bytes);
    uint32_t state = 7;
    for (int64_t i = 0; i < VALUES; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = mok_bf16_from_float((float)((int32_t)(state >> 16) - 32768) * 0x1p-17f); /* -0.25 .. 0.25 */
    }
    gpu_random_ids(ids, TOKENS, TOP_K, EXPERTS, 3);
    for (int64_t i = 0; i < (int64_t)TOKENS * TOP_K; i++) {
        w[i] = 0.25f + (float)(i * 7 % 13) * 0x1p-4f;
    }
    int ok = alloc(&block, (size_t)VALUES * 2) && cudaMemcpy(block, values, (size_t)VALUES * 2, cudaMemcpyHostToDevice) == cudaSuccess &&
             alloc(&tensors->x, TOKENS * row_bytes) && fill(tensors->x, (int64_t)TOKENS * HIDDEN, block, 0) &&
             alloc(&tensors->dy, TOKENS * row_bytes) && fill(tensors->dy, (int64_t)TOKENS * HIDDEN, block, 1234567) &&
             alloc(&tensors->ids, TOKENS * route_bytes) && alloc(&tensors->w, TOKENS * route_bytes) &&
             cudaMemcpy(tensors->ids, ids, TOKENS * route_bytes, cudaMemcpyHostToDevice) == cudaSuccess &&
             cudaMemcpy(tensors->w, w, TOKENS * route_bytes, cudaMemcpyHostToDevice) == cudaSuccess;
    for (int m = 0; m < NUM_MATRICES && ok; m++) {
        ok = alloc(&tensors->weights[m], (size_t)MATRIX * 2) && fill(tensors->weights[m], MATRIX, block, 5000000 + m);
    }
    ok = cudaDeviceSynchronize() == cudaSuccess && ok; /* copies within the device, and fills, go on behind the call; the passes' stream waits for none */
    cudaFree(block);
    free(values);
    free(ids);
    free(w);
    return ok;
}

static int make_results(struct results *results)
{
    int ok = alloc(&results->y, TOKENS * row_bytes) && alloc(&results->dx, TOKENS * row_bytes) && alloc(&results->dw, TOKENS * route_bytes);
    for (int m = 0; m < NUM_MATRICES && ok; m++) {
        ok = alloc(&results->grads[m], (size_t)MATRIX * 4) && cudaMemset(results->grads[m], 0, (size_t)MATRIX * 4) == cudaSuccess;
    }
    return cudaDeviceSynchronize() == cudaSuccess && ok;
}

static void free_results(struct results *results)
{
    cudaFree(results->y);
    cudaFree(results->dx);
    cudaFree(results->dw);
    for (int m = 0; m < NUM_MATRICES; m++) {
        cudaFree(results->grads[m]);
    }
}

/* ---- passes --------------------------------------------------------------------------------------------------------------------- */

struct rank {
    mok_group *group;
    mok_layer *layer;
    mok_schedule *schedule;
    mok_saved *saved;
    cudaStream_t stream;
};

static mok_ffn network(int32_t dtype, void *const *bases)
{
    const int64_t matrix = (int64_t)INTER * HIDDEN;
    return (mok_ffn){dtype, 0, {bases[0], matrix, HIDDEN}, {bases[1], matrix, HIDDEN}, {bases[2], matrix, INTER}};
}

static mok_status open_rank(const struct tensors *tensors, int64_t tokens, int32_t path, struct rank *rank)
{
    mok_shape shape = {EXPERTS, TOP_K, HIDDEN, INTER, 0, MOK_FORMAT_BF16, tokens};
    mok_group_config config;
    mok_layer_config layer;
    void *const bases[] = {tensors->weights[0], tensors->weights[1], tensors->weights[2]};
    memset(rank, 0, sizeof *rank);
    MOK_TRY(gpu_config(&shape, 0, 1, NULL, &config));
    config.path = path;
    MOK_TRY(mok_group_create(&config, &rank->group));
    mok_layer_config_init(&layer);
    layer.routed = network(MOK_DTYPE_BF16, bases);
    MOK_TRY(mok_layer_create(rank->group, &layer, &rank->layer));
    MOK_TRY(mok_schedule_create(rank->group, &rank->schedule));
    MOK_TRY(mok_group_saved(rank->group, 0, &rank->saved));
    return cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking) == cudaSuccess ? MOK_OK : mok_base_fail(MOK_ERR_DEVICE, "no stream");
}

static void close_rank(struct rank *rank)
{
    mok_schedule_destroy(rank->schedule);
    mok_layer_destroy(rank->layer);
    (void)mok_group_destroy(rank->group);
    if (rank->stream != NULL) {
        cudaStreamDestroy(rank->stream);
    }
}

static mok_status run_passes(const struct rank *rank, const struct tensors *tensors, int64_t first, int64_t num, const struct results *results)
{
    mok_forward_args forward;
    mok_backward_args backward;
    void *const grads[] = {results->grads[0], results->grads[1], results->grads[2]};
    mok_forward_args_init(&forward);
    forward.x = tensors->x + first * HIDDEN;
    forward.w = tensors->w + first * TOP_K;
    forward.y = results->y + first * HIDDEN;
    forward.saved = rank->saved;
    mok_backward_args_init(&backward);
    backward.saved = rank->saved;
    backward.dy = tensors->dy + first * HIDDEN;
    backward.w = forward.w;
    backward.dx = results->dx + first * HIDDEN;
    backward.dw = results->dw + first * TOP_K;
    backward.grads = network(MOK_DTYPE_FP32, grads);
    backward.grad_mode = MOK_GRAD_ADD;
    MOK_TRY(mok_schedule_build(rank->schedule, tensors->ids + first * TOP_K, num, rank->stream));
    MOK_TRY(mok_forward(rank->layer, rank->schedule, &forward, rank->stream));
    MOK_TRY(mok_backward(rank->layer, rank->schedule, &backward, rank->stream));
    return mok_group_wait(rank->group, rank->stream, -1);
}

static int run(const struct tensors *tensors, int64_t tokens, int32_t path, const struct results *results)
{
    struct rank rank;
    mok_status status = open_rank(tensors, tokens, path, &rank);
    for (int64_t first = 0; first < TOKENS && status == MOK_OK; first += tokens) {
        status = run_passes(&rank, tensors, first, tokens, results);
    }
    if (status != MOK_OK) {
        gpu_check(0, "passes over %lld tokens: %s", (long long)tokens, mok_last_error());
    }
    close_rank(&rank);
    return status == MOK_OK;
}

/* ---- checks --------------------------------------------------------------------------------------------------------------------- */

static void compare_rows(const char *path, const char *what, const void *seen, const void *expected, size_t bytes)
{
    char *a = malloc(CHUNK * bytes), *b = malloc(CHUNK * bytes);
    int64_t first_wrong = -1;
    for (int64_t first = 0; first < TOKENS && first_wrong < 0; first += CHUNK) {
        if (cudaMemcpy(a, (const char *)seen + (size_t)first * bytes, CHUNK * bytes, cudaMemcpyDeviceToHost) != cudaSuccess ||
            cudaMemcpy(b, (const char *)expected + (size_t)first * bytes, CHUNK * bytes, cudaMemcpyDeviceToHost) != cudaSuccess) {
            first_wrong = first;
        }
        for (int64_t at = 0; at < CHUNK && first_wrong < 0; at++) {
            first_wrong = memcmp(a + (size_t)at * bytes, b + (size_t)at * bytes, bytes) == 0 ? -1 : first + at;
        }
    }
    gpu_check(first_wrong < 0, "large, %s: %s of %d tokens, first that differs: %lld", path, what, TOKENS, (long long)first_wrong);
    free(a);
    free(b);
}

/* Expert by expert: the difference's norm against the norm. */
static void compare_gradients(const char *path, const char *what, const float *seen, const float *expected)
{
    float *a = malloc((size_t)MATRIX * 4), *b = malloc((size_t)MATRIX * 4);
    double worst = cudaMemcpy(a, seen, (size_t)MATRIX * 4, cudaMemcpyDeviceToHost) == cudaSuccess &&
                           cudaMemcpy(b, expected, (size_t)MATRIX * 4, cudaMemcpyDeviceToHost) == cudaSuccess
                       ? 0.0
                       : INFINITY;
    for (int64_t expert = 0; expert < EXPERTS; expert++) {
        double off = 0.0, norm = 0.0;
        for (int64_t i = expert * (MATRIX / EXPERTS); i < (expert + 1) * (MATRIX / EXPERTS); i++) {
            off += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            norm += (double)b[i] * b[i];
        }
        double share = norm > 0.0 ? sqrt(off / norm) : INFINITY;
        worst = share <= worst ? worst : share;
    }
    gpu_check(worst <= GRADIENT_BOUND, "large, %s: %s off by %.3g of its norm (bound %.3g)", path, what, worst, GRADIENT_BOUND);
    free(a);
    free(b);
}

static void check_path(const struct tensors *tensors, const struct results *expected, int32_t path, const char *name)
{
    static const char *const matrices[] = {"dWg", "dWu", "dWd"};
    struct results seen = {NULL};
    if (!make_results(&seen)) {
        gpu_check(0, "large, %s: no memory", name);
    } else if (run(tensors, TOKENS, path, &seen)) {
        compare_rows(name, "y", seen.y, expected->y, row_bytes);
        compare_rows(name, "dx", seen.dx, expected->dx, row_bytes);
        compare_rows(name, "dw", seen.dw, expected->dw, route_bytes);
        for (int m = 0; m < NUM_MATRICES; m++) {
            compare_gradients(name, matrices[m], seen.grads[m], expected->grads[m]);
        }
    }
    free_results(&seen);
}

int main(void)
{
    struct tensors tensors = {NULL};
    struct results expected = {NULL};
    size_t free_bytes = 0, total_bytes = 0;
    if (gpu_count() == 0) {
        gpu_skip("large: no GPU");
        return gpu_finish();
    }
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess || free_bytes < FREE_BYTES) {
        gpu_skip("large: %zu of %zu bytes of GPU memory are free, %zu are needed", free_bytes, total_bytes, FREE_BYTES);
        return gpu_finish();
    }
    if (!make_tensors(&tensors) || !make_results(&expected)) {
        gpu_check(0, "large: no memory");
    } else if (run(&tensors, CHUNK, MOK_PATH_STAGED, &expected)) {
        check_path(&tensors, &expected, MOK_PATH_STAGED, "staged");
        check_path(&tensors, &expected, MOK_PATH_FUSED, "fused");
    }
    return gpu_finish();
}
