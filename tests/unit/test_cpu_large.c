/*
 * Places past 2^31 elements, computed for real on the CPU backend: slots of one pass, and strides of weights and gradients. What a 32-bit product
 * would make of them is far from where they are, so rows come out wrong, or not at all.
 *
 * Two tokens are routed, and all slots of the last one lie past 2^31. A token's K routes go to three experts, so a row is one of three, which a
 * group of ordinary size computes too: a row's bits do not depend on where it stands (docs/numerics.md). Router weights are powers of two: they
 * scale a row of dx without rounding it. The slots of the tokens between share one piece of memory: nobody reads them, and 4 GiB of pages, which
 * the library fills with zeros, would be most of this test's time.
 */
#define _GNU_SOURCE /* memfd_create */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include <mok/mok.h>

#include "base/bf16.h"
#include "plan/region.h"

enum { EXPERTS = 3 };

/* One rank, its tensors, and the objects of one pass. */
struct bed {
    mok_shape shape;
    mok_group *group;
    mok_layer *layer;
    mok_schedule *schedule;
    mok_saved *saved;
    mok_ffn weights, grads;
    void *region; /* peer-visible memory */
    size_t region_bytes;
    mok_bf16 *x, *dy, *y, *dx; /* [T, H] */
    float *w, *dw;             /* [T, K] */
    int32_t *ids;
};

/* Pages that nobody touches cost nothing. advice: MADV_HUGEPAGE; MADV_NOHUGEPAGE where only a little of each large page is touched. */
static void *reserve_pages(size_t bytes, int advice)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memory != MAP_FAILED);
    (void)madvise(memory, bytes, advice);
    return memory;
}

static void *reserve(size_t bytes) { return reserve_pages(bytes, MADV_HUGEPAGE); }

static size_t rows_of(const struct bed *bed) { return (size_t)bed->shape.max_tokens; }

/* Values of a place do not depend on the number of rows before it. */
static mok_bf16 value(uint32_t seed, int64_t row, int64_t column)
{
    uint32_t hash = seed * 0x9e3779b9u ^ (uint32_t)row * 0x85ebca6bu ^ (uint32_t)column * 0xc2b2ae35u;
    hash ^= hash >> 15;
    hash *= 0x2c1b3c6du;
    hash ^= hash >> 13;
    return (mok_bf16)(0x3d00 | (hash >> 25) | (hash & 0x8000)); /* 2^-5 .. 2^-4, either sign */
}

static void fill_row(mok_bf16 *to, uint32_t seed, int64_t row, int64_t columns)
{
    for (int64_t column = 0; column < columns; column++) {
        to[column] = value(seed, row, column);
    }
}

static void fill_matrices(const mok_matrices *matrices, uint32_t seed, int64_t rows, int64_t columns)
{
    for (int64_t row = 0; row < EXPERTS * rows; row++) {
        fill_row((mok_bf16 *)matrices->base + row / rows * matrices->expert_stride + row % rows * matrices->row_stride, seed, row, columns);
    }
}

static void fill_weights(const struct bed *bed)
{
    fill_matrices(&bed->weights.gate, 1, bed->shape.intermediate, bed->shape.hidden);
    fill_matrices(&bed->weights.up, 2, bed->shape.intermediate, bed->shape.hidden);
    fill_matrices(&bed->weights.down, 3, bed->shape.hidden, bed->shape.intermediate);
}

static mok_ffn dense(const mok_shape *shape, int32_t dtype)
{
    int64_t matrix = (int64_t)shape->hidden * shape->intermediate;
    size_t bytes = (size_t)(EXPERTS * matrix) * (dtype == MOK_DTYPE_FP32 ? 4 : 2);
    return (mok_ffn){dtype,
                     0,
                     {reserve(bytes), matrix, shape->hidden},
                     {reserve(bytes), matrix, shape->hidden},
                     {reserve(bytes), matrix, shape->intermediate}};
}

static void drop(const mok_ffn *ffn, size_t bytes)
{
    munmap(ffn->gate.base, bytes);
    munmap(ffn->up.base, bytes);
    munmap(ffn->down.base, bytes);
}

static size_t dense_bytes(const mok_shape *shape, size_t size)
{
    return (size_t)EXPERTS * (size_t)shape->hidden * (size_t)shape->intermediate * size;
}

/* The slots of all tokens but the first and the last lie in one piece of memory, again and again. Only where they are large. */
static void fold_slots(const struct bed *bed)
{
    const mok_shape *shape = &bed->shape;
    const struct mok_dims dims = {.num_ranks = 1,
                                  .num_experts = shape->num_experts,
                                  .top_k = shape->top_k,
                                  .hidden = shape->hidden,
                                  .inter = shape->intermediate,
                                  .max_tokens = shape->max_tokens};
    const int64_t piece = (int64_t)4 << 20, token = (int64_t)shape->top_k * shape->hidden * 2;
    int64_t slots = mok_plan_region(&dims, 1).slots;
    int64_t first = mok_round_up(slots + token, piece), end = (slots + token * (shape->max_tokens - 1)) / piece * piece;
    int file = memfd_create("slots", 0);
    assert_true(file >= 0 && ftruncate(file, piece) == 0);
    for (int64_t at = first; at < end; at += piece) {
        assert_true(mmap((char *)bed->region + at, (size_t)piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, 0) !=
                    MAP_FAILED);
    }
    close(file);
}

/* weights and grads are set. */
static void open_bed(struct bed *bed, int64_t keep_rows)
{
    mok_group_config config;
    mok_layer_config layer;
    size_t row_bytes = rows_of(bed) * (size_t)bed->shape.hidden * 2, route_bytes = rows_of(bed) * (size_t)bed->shape.top_k * 4;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CPU;
    config.shape = bed->shape;
    config.keep_rows = keep_rows;
    config.minibatch_rows = 128;
    config.ring_minibatches = 1;
    config.local_timeout_ms = 60000;
    mok_memory memory = {.struct_size = sizeof memory};
    assert_int_equal(mok_group_memory(&config, &memory), MOK_OK);
    bed->region_bytes = memory.peer_bytes;
    bed->region = reserve(bed->region_bytes);
    fold_slots(bed);
    const mok_external external = {sizeof external, &bed->region, bed->region_bytes};
    config.peer = MOK_PEER_EXTERNAL;
    config.external = &external;
    mok_status status = mok_group_create(&config, &bed->group);
    if (status != MOK_OK) {
        fail_msg("%s", mok_last_error());
    }
    mok_layer_config_init(&layer);
    layer.routed = bed->weights;
    assert_int_equal(mok_layer_create(bed->group, &layer, &bed->layer), MOK_OK);
    assert_int_equal(mok_schedule_create(bed->group, &bed->schedule), MOK_OK);
    assert_int_equal(mok_group_saved(bed->group, 0, &bed->saved), MOK_OK);
    mok_bf16 **rows[] = {&bed->x, &bed->dy, &bed->y, &bed->dx};
    for (size_t idx = 0; idx < sizeof rows / sizeof rows[0]; idx++) {
        *rows[idx] = reserve(row_bytes);
    }
    bed->w = reserve(route_bytes);
    bed->dw = reserve(route_bytes);
    bed->ids = reserve(route_bytes);
}

static void close_bed(struct bed *bed)
{
    size_t row_bytes = rows_of(bed) * (size_t)bed->shape.hidden * 2, route_bytes = rows_of(bed) * (size_t)bed->shape.top_k * 4;
    mok_layer_destroy(bed->layer);
    mok_schedule_destroy(bed->schedule);
    assert_int_equal(mok_group_destroy(bed->group), MOK_OK);
    munmap(bed->region, bed->region_bytes);
    munmap(bed->x, row_bytes);
    munmap(bed->dy, row_bytes);
    munmap(bed->y, row_bytes);
    munmap(bed->dx, row_bytes);
    munmap(bed->w, route_bytes);
    munmap(bed->dw, route_bytes);
    munmap(bed->ids, route_bytes);
}

/* x and dy of the token in the place `at` are those of `token`, wherever it stands. */
static void fill_token(struct bed *bed, int64_t at, int64_t token)
{
    fill_row(bed->x + at * bed->shape.hidden, 4, token, bed->shape.hidden);
    fill_row(bed->dy + at * bed->shape.hidden, 5, token, bed->shape.hidden);
}

static void run_passes(struct bed *bed)
{
    mok_forward_args forward;
    mok_backward_args backward;
    mok_forward_args_init(&forward);
    forward.x = bed->x;
    forward.w = bed->w;
    forward.y = bed->y;
    forward.saved = bed->saved;
    mok_backward_args_init(&backward);
    backward.saved = bed->saved;
    backward.dy = bed->dy;
    backward.w = bed->w;
    backward.dx = bed->dx;
    backward.dw = bed->dw;
    backward.grads = bed->grads;
    assert_int_equal(mok_schedule_build(bed->schedule, bed->ids, bed->shape.max_tokens, NULL), MOK_OK);
    assert_int_equal(mok_forward(bed->layer, bed->schedule, &forward, NULL), MOK_OK);
    assert_int_equal(mok_backward(bed->layer, bed->schedule, &backward, NULL), MOK_OK);
    if (mok_group_wait(bed->group, NULL, -1) != MOK_OK) {
        fail_msg("%s", mok_last_error());
    }
}

/* ---- slots ---------------------------------------------------------------------------------------------------------------------- */

enum { TOKENS = 513, TOP_K = 64, HIDDEN = 1 << 16, INTER = 8 };

static const int64_t routed_tokens[] = {0, TOKENS - 1};
enum { NUM_ROUTED = sizeof routed_tokens / sizeof routed_tokens[0] };

static int32_t expert_of(int64_t token, int64_t k) { return (int32_t)((token * 5 + k) % EXPERTS); }

static float weight_of(int64_t token, int64_t k) { return ldexpf(k % 2 == 0 ? 1.0f : -1.0f, -(int)((token + k / 2) % 4) - 1); }

/* The rows of each token, unscaled, by expert: one pass for each with K = 1 and w = 1. */
struct parts {
    mok_bf16 *y[EXPERTS], *dx[EXPERTS]; /* [NUM_ROUTED, H] */
    float dw[EXPERTS][NUM_ROUTED];
};

static void find_parts(const struct bed *large, struct parts *parts)
{
    struct bed bed = {.shape = large->shape, .weights = large->weights, .grads = dense(&large->shape, MOK_DTYPE_BF16)};
    size_t bytes = (size_t)NUM_ROUTED * HIDDEN * 2;
    bed.shape.top_k = 1;
    bed.shape.max_tokens = NUM_ROUTED;
    open_bed(&bed, 0);
    for (int64_t at = 0; at < NUM_ROUTED; at++) {
        fill_token(&bed, at, routed_tokens[at]);
        bed.w[at] = 1.0f;
    }
    for (int32_t expert = 0; expert < EXPERTS; expert++) {
        for (int64_t at = 0; at < NUM_ROUTED; at++) {
            bed.ids[at] = expert;
        }
        run_passes(&bed);
        parts->y[expert] = reserve(bytes);
        parts->dx[expert] = reserve(bytes);
        memcpy(parts->y[expert], bed.y, bytes);
        memcpy(parts->dx[expert], bed.dx, bytes);
        memcpy(parts->dw[expert], bed.dw, sizeof parts->dw[expert]);
    }
    close_bed(&bed);
    drop(&bed.grads, dense_bytes(&bed.shape, 2));
}

static void check_token(const struct bed *bed, const struct parts *parts, int64_t at)
{
    int64_t token = routed_tokens[at];
    for (int64_t column = 0; column < HIDDEN; column++) {
        float y = 0.0f, dx = 0.0f;
        for (int64_t k = 0; k < TOP_K; k++) {
            int32_t expert = expert_of(token, k);
            y = fmaf(weight_of(token, k), mok_bf16_to_float(parts->y[expert][at * HIDDEN + column]), y);
            dx += weight_of(token, k) * mok_bf16_to_float(parts->dx[expert][at * HIDDEN + column]);
        }
        mok_bf16 seen_y = bed->y[token * HIDDEN + column], seen_dx = bed->dx[token * HIDDEN + column];
        if (seen_y != mok_bf16_from_float(y) || seen_dx != mok_bf16_from_float(dx)) {
            fail_msg("token %lld, column %lld: y %g instead of %g, dx %g instead of %g", (long long)token, (long long)column,
                     (double)mok_bf16_to_float(seen_y), (double)y, (double)mok_bf16_to_float(seen_dx), (double)dx);
        }
    }
    for (int64_t k = 0; k < TOP_K; k++) {
        assert_memory_equal(&bed->dw[token * TOP_K + k], &parts->dw[expert_of(token, k)][at], sizeof(float));
    }
}

static void test_slots_past_2_to_the_31(void **state)
{
    (void)state;
    struct bed bed = {.shape = {.num_experts = EXPERTS, .top_k = TOP_K, .hidden = HIDDEN, .intermediate = INTER, .max_tokens = TOKENS}};
    struct parts parts;
    assert_true((int64_t)(TOKENS - 1) * TOP_K * HIDDEN > INT32_MAX); /* every slot of the last token */
    bed.weights = dense(&bed.shape, MOK_DTYPE_BF16);
    bed.grads = dense(&bed.shape, MOK_DTYPE_BF16);
    fill_weights(&bed);
    find_parts(&bed, &parts);
    open_bed(&bed, 0);
    memset(bed.ids, 0xff, (size_t)TOKENS * TOP_K * sizeof *bed.ids);
    for (int64_t idx = 0; idx < NUM_ROUTED * TOP_K; idx++) {
        int64_t token = routed_tokens[idx / TOP_K], route = token * TOP_K + idx % TOP_K;
        bed.ids[route] = expert_of(token, idx % TOP_K);
        bed.w[route] = weight_of(token, idx % TOP_K);
    }
    for (int64_t at = 0; at < NUM_ROUTED; at++) {
        fill_token(&bed, routed_tokens[at], routed_tokens[at]);
    }
    run_passes(&bed);
    for (int64_t at = 0; at < NUM_ROUTED; at++) {
        check_token(&bed, &parts, at);
    }
    close_bed(&bed);
    drop(&bed.weights, dense_bytes(&bed.shape, 2));
    drop(&bed.grads, dense_bytes(&bed.shape, 2));
    for (int32_t expert = 0; expert < EXPERTS; expert++) {
        munmap(parts.y[expert], (size_t)NUM_ROUTED * HIDDEN * 2);
        munmap(parts.dx[expert], (size_t)NUM_ROUTED * HIDDEN * 2);
    }
}

/* ---- strides ------------------------------------------------------------------------------------------------------------------- */

/* Rows 2^26 elements apart, experts so far that the second begins past 2^31; the three matrices lie between each other's rows. */
static mok_ffn far_apart(const mok_shape *shape, int32_t dtype, void **memory_out, size_t *bytes_out)
{
    const int64_t row_stride = (int64_t)1 << 26, between = (int64_t)1 << 22;
    int64_t rows = shape->hidden > shape->intermediate ? shape->hidden : shape->intermediate, expert_stride = rows * row_stride;
    assert_true(expert_stride > INT32_MAX);
    *bytes_out = (size_t)(EXPERTS * expert_stride) * (dtype == MOK_DTYPE_FP32 ? 4 : 2);
    *memory_out = reserve_pages(*bytes_out, MADV_NOHUGEPAGE);
    int64_t size = dtype == MOK_DTYPE_FP32 ? 4 : 2;
    char *base = *memory_out;
    return (mok_ffn){dtype,
                     0,
                     {base, expert_stride, row_stride},
                     {base + between * size, expert_stride, row_stride},
                     {base + 2 * between * size, expert_stride, row_stride}};
}

static void expect_matrices(const mok_matrices *far, const mok_matrices *near, int64_t rows, int64_t columns, const char *name)
{
    for (int64_t row = 0; row < EXPERTS * rows; row++) {
        const float *a = (const float *)far->base + row / rows * far->expert_stride + row % rows * far->row_stride;
        const float *b = (const float *)near->base + row / rows * near->expert_stride + row % rows * near->row_stride;
        if (memcmp(a, b, (size_t)columns * sizeof *a) != 0) {
            fail_msg("%s: row %lld of expert %lld", name, (long long)(row % rows), (long long)(row / rows));
        }
    }
}

/* What stands in gradients that are to be overwritten. */
static void spoil(const mok_matrices *matrices, int64_t rows, int64_t columns)
{
    for (int64_t row = 0; row < EXPERTS * rows; row++) {
        float *to = (float *)matrices->base + row / rows * matrices->expert_stride + row % rows * matrices->row_stride;
        for (int64_t column = 0; column < columns; column++) {
            to[column] = 1.0f;
        }
    }
}

static void test_strides_past_2_to_the_31(void **state)
{
    (void)state;
    const mok_shape shape = {.num_experts = EXPERTS, .top_k = 2, .hidden = 72, .intermediate = 40, .max_tokens = 50};
    struct bed near = {.shape = shape, .weights = dense(&shape, MOK_DTYPE_BF16), .grads = dense(&shape, MOK_DTYPE_FP32)}, far = {.shape = shape};
    struct bed *beds[] = {&near, &far};
    void *memory[2];
    size_t bytes[2];
    far.weights = far_apart(&shape, MOK_DTYPE_BF16, &memory[0], &bytes[0]);
    far.grads = far_apart(&shape, MOK_DTYPE_FP32, &memory[1], &bytes[1]);
    for (int idx = 0; idx < 2; idx++) {
        fill_weights(beds[idx]);
        spoil(&beds[idx]->grads.gate, shape.intermediate, shape.hidden);
        spoil(&beds[idx]->grads.up, shape.intermediate, shape.hidden);
        spoil(&beds[idx]->grads.down, shape.hidden, shape.intermediate);
        open_bed(beds[idx], MOK_KEEP_ALL);
        for (int64_t token = 0; token < shape.max_tokens; token++) {
            fill_token(beds[idx], token, token);
        }
        for (int64_t route = 0; route < shape.max_tokens * shape.top_k; route++) {
            beds[idx]->ids[route] = (int32_t)(route % EXPERTS);
            beds[idx]->w[route] = weight_of(route, 0);
        }
        run_passes(beds[idx]);
    }
    size_t row_bytes = rows_of(&near) * (size_t)shape.hidden * 2;
    assert_memory_equal(far.y, near.y, row_bytes);
    assert_memory_equal(far.dx, near.dx, row_bytes);
    expect_matrices(&far.grads.gate, &near.grads.gate, shape.intermediate, shape.hidden, "dWg");
    expect_matrices(&far.grads.up, &near.grads.up, shape.intermediate, shape.hidden, "dWu");
    expect_matrices(&far.grads.down, &near.grads.down, shape.hidden, shape.intermediate, "dWd");
    for (int idx = 0; idx < 2; idx++) {
        close_bed(beds[idx]);
        munmap(memory[idx], bytes[idx]);
    }
    drop(&near.weights, dense_bytes(&shape, 2));
    drop(&near.grads, dense_bytes(&shape, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_strides_past_2_to_the_31), cmocka_unit_test(test_slots_past_2_to_the_31)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
