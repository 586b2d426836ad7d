/*
 * What a pass writes may not lie on what else it reads or writes: the rule against bytes that are marked one by one, and each tensor of the
 * two passes that must and must not be refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/check.h"
#include "test_api_fake.h"
#include "test_plan_random.h"

/* ---- against marked bytes ---------------------------------------------------------------------------------------------------- */

enum { ARENA = 2048, ROUNDS = 60000 };

static char arena[ARENA];

static struct mok_span draw_span(struct plan_random *random)
{
    struct mok_span span = {.name = "drawn", .is_output = 1};
    span.base = arena + plan_random_in(random, 0, 200);
    if (plan_random_chance(random, 20)) {
        span.bytes = plan_random_in(random, 0, 200);
        return span;
    }
    span.num = plan_random_in(random, 1, 4);
    span.rows = plan_random_in(random, 1, 6);
    span.row_length = plan_random_in(random, 1, 12);
    if (plan_random_chance(random, 50)) { /* one after another */
        span.row_bytes = span.row_length + plan_random_in(random, 0, 14);
        span.expert_bytes = (span.rows - 1) * span.row_bytes + span.row_length + plan_random_in(random, 0, 60);
    } else { /* row by row in turn */
        span.expert_bytes = span.row_length + plan_random_in(random, 0, 8);
        span.row_bytes = (span.num - 1) * span.expert_bytes + span.row_length + plan_random_in(random, 0, 14);
    }
    span.bytes = (span.num - 1) * span.expert_bytes + (span.rows - 1) * span.row_bytes + span.row_length;
    return span;
}

static void mark(const struct mok_span *span, char bit, char *marks)
{
    int64_t first = (const char *)span->base - arena, num = span->num, rows = span->rows, length = span->row_length;
    if (num == 0) {
        num = rows = 1;
        length = span->bytes;
    }
    for (int64_t e = 0; e < num; e++) {
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t i = 0; i < length; i++) {
                marks[first + e * span->expert_bytes + r * span->row_bytes + i] |= bit;
            }
        }
    }
}

/* The second often takes the strides of the first, as gate and up of one network have the same. */
static void test_against_marked_bytes(void **state)
{
    (void)state;
    struct plan_random random = {11};
    int num_refused = 0, num_woven = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct mok_span spans[2] = {draw_span(&random), draw_span(&random)};
        if (plan_random_chance(&random, 50)) {
            spans[1] = spans[0];
            spans[1].base = arena + plan_random_in(&random, 0, 200);
            if (spans[1].num > 1 && plan_random_chance(&random, 30)) {
                spans[1].expert_bytes++;
                spans[1].bytes += spans[1].num - 1;
            }
        } else if (spans[0].num > 0 && spans[1].num > 0 && spans[0].row_bytes >= spans[1].row_length && spans[1].num == 1) {
            spans[1].row_bytes = spans[0].row_bytes;
            spans[1].bytes = (spans[1].rows - 1) * spans[1].row_bytes + spans[1].row_length;
        }
        char marks[ARENA] = {0};
        int is_shared = 0;
        mark(&spans[0], 1, marks);
        mark(&spans[1], 2, marks);
        for (int at = 0; at < ARENA; at++) {
            is_shared |= marks[at] == 3;
        }
        mok_status status = mok_api_check_apart(spans, 2);
        if (status != (is_shared ? MOK_ERR_ARGUMENT : MOK_OK)) {
            fail_msg("round %d: %s, but the bytes are %s", round, mok_status_name(status), is_shared ? "shared" : "apart");
        }
        int64_t distance = (const char *)spans[1].base - (const char *)spans[0].base;
        num_refused += is_shared;
        num_woven += !is_shared && distance < spans[0].bytes && -distance < spans[1].bytes;
    }
    assert_in_range(num_refused, ROUNDS / 10, ROUNDS);
    assert_in_range(num_woven, ROUNDS / 100, ROUNDS);
}

/* Two inputs may be one. */
static void test_inputs_may_share(void **state)
{
    (void)state;
    struct mok_span spans[2] = {{.name = "a", .base = arena, .bytes = 64}, {.name = "b", .base = arena, .bytes = 64}};
    assert_int_equal(mok_api_check_apart(spans, 2), MOK_OK);
    spans[1].is_output = 1;
    assert_int_equal(mok_api_check_apart(spans, 2), MOK_ERR_ARGUMENT);
}

/* ---- the passes -------------------------------------------------------------------------------------------------------------- */

enum { TOKENS = 5, HIDDEN = 32, INTER = 16, SHARED = 24, TOP_K = 3, EXPERTS = 4, PLACE = 65536, NUM_PLACES = 20 };

struct bed {
    mok_group *group;
    mok_layer *layer;
    mok_schedule *schedule;
    mok_saved *saved;
    char *memory;
    mok_forward_args forward;
    mok_backward_args backward;
};

static char *place(const struct bed *bed, int idx) { return bed->memory + (size_t)idx * PLACE; }

static mok_ffn network(const struct bed *bed, int idx, int inter, int32_t dtype)
{
    mok_ffn ffn = {dtype,
                   0,
                   {place(bed, idx), (int64_t)inter * HIDDEN, HIDDEN},
                   {place(bed, idx + 1), (int64_t)inter * HIDDEN, HIDDEN},
                   {place(bed, idx + 2), (int64_t)inter * HIDDEN, inter}};
    return ffn;
}

static void fill_args(struct bed *bed)
{
    mok_forward_args_init(&bed->forward);
    bed->forward.x = place(bed, 6);
    bed->forward.w = (float *)place(bed, 7);
    bed->forward.shared_w = (float *)place(bed, 8);
    bed->forward.y = place(bed, 9);
    mok_backward_args_init(&bed->backward);
    bed->backward.saved = bed->saved;
    bed->backward.dy = place(bed, 10);
    bed->backward.w = (float *)place(bed, 7);
    bed->backward.shared_w = (float *)place(bed, 8);
    bed->backward.dx = place(bed, 11);
    bed->backward.dw = (float *)place(bed, 12);
    bed->backward.dshared_w = (float *)place(bed, 13);
    bed->backward.grads = network(bed, 14, INTER, MOK_DTYPE_FP32);
    bed->backward.shared_grads = network(bed, 17, SHARED, MOK_DTYPE_BF16);
}

static void open_bed(struct bed *bed)
{
    mok_group_config config;
    mok_layer_config layer;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CPU;
    config.num_saved = 1;
    config.shape = (mok_shape){.num_experts = EXPERTS,
                               .top_k = TOP_K,
                               .hidden = HIDDEN,
                               .intermediate = INTER,
                               .shared_intermediate = SHARED,
                               .max_tokens = TOKENS};
    bed->memory = aligned_alloc(4096, (size_t)NUM_PLACES * PLACE);
    memset(bed->memory, 0, (size_t)NUM_PLACES * PLACE);
    assert_int_equal(mok_api_create(&config, &fake_ops, &mok_peer_threads, &bed->group), MOK_OK);
    mok_layer_config_init(&layer);
    layer.routed = network(bed, 0, INTER, MOK_DTYPE_BF16);
    layer.shared = network(bed, 3, SHARED, MOK_DTYPE_BF16);
    assert_int_equal(mok_layer_create(bed->group, &layer, &bed->layer), MOK_OK);
    assert_int_equal(mok_schedule_create(bed->group, &bed->schedule), MOK_OK);
    assert_int_equal(mok_schedule_build(bed->schedule, (int32_t *)place(bed, 6), TOKENS, NULL), MOK_OK);
    assert_int_equal(mok_group_saved(bed->group, 0, &bed->saved), MOK_OK);
    fill_args(bed);
}

static void close_bed(struct bed *bed)
{
    mok_layer_destroy(bed->layer);
    mok_schedule_destroy(bed->schedule);
    assert_int_equal(mok_group_destroy(bed->group), MOK_OK);
    free(bed->memory);
}

/* NULL: accepted. */
static void expect(mok_status status, const char *what, const char *first, const char *second)
{
    if ((status == MOK_OK) != (first == NULL)) {
        fail_msg("%s: %s (%s)", what, mok_status_name(status), mok_last_error());
    }
    const char *text = mok_last_error();
    if (first != NULL && (status != MOK_ERR_ARGUMENT || strstr(text, first) == NULL || strstr(text, second) == NULL)) {
        fail_msg("%s: %s '%s' should say '%s' and '%s'", what, mok_status_name(status), text, first, second);
    }
}

static mok_status pass_backward(struct bed *bed)
{
    mok_forward_args forward = bed->forward;
    forward.saved = bed->saved;
    assert_int_equal(mok_forward(bed->layer, bed->schedule, &forward, NULL), MOK_OK);
    mok_status status = mok_backward(bed->layer, bed->schedule, &bed->backward, NULL);
    assert_int_equal(mok_saved_release(bed->saved), MOK_OK);
    return status;
}

#define AT(pointer, bytes) ((void *)((char *)(uintptr_t)(pointer) + (bytes)))
#define GRADS bed->backward.grads
#define SHARED_GRADS bed->backward.shared_grads
#define ROWS(ROW)                                                                                                                         \
    ROW("args.dx is 0x", "overlap args.grads.gate", GRADS.gate.base = bed->backward.dx)                                                   \
    ROW("args.dw is 0x", "overlap args.grads.up", GRADS.up.base = bed->backward.dw)                                                       \
    ROW("args.dshared_w is 0x", "overlap args.grads.down", GRADS.down.base = bed->backward.dshared_w)                                     \
    ROW("args.dy is 0x", "overlap args.grads.gate", GRADS.gate.base = AT(bed->backward.dy, TOKENS * HIDDEN * 2 - 16))                     \
    ROW("args.w is 0x", "overlap args.shared_grads.down", SHARED_GRADS.down.base = AT(bed->backward.w, 16))                               \
    ROW("args.dx is 0x", "overlap args.shared_grads.up", bed->backward.dx = AT(SHARED_GRADS.up.base, SHARED * HIDDEN * 2 - 16))           \
    ROW("args.grads.gate is 0x", "overlap args.grads.up", GRADS.up.base = AT(GRADS.gate.base, EXPERTS * INTER * HIDDEN * 4 - 16))         \
    ROW("args.grads.up is 0x", "overlap args.grads.down", GRADS.down.base = AT(GRADS.up.base, 64))                                        \
    ROW("args.grads.down is 0x", "overlap args.shared_grads.gate", SHARED_GRADS.gate.base = AT(GRADS.down.base, 32))                      \
    ROW("args.grads.gate is 0x", "overlap layer.routed.gate", GRADS.gate.base = place(bed, 0))                                            \
    ROW("args.grads.down is 0x", "overlap layer.shared.down", GRADS.down.base = AT(place(bed, 5), SHARED * HIDDEN * 2 - 16))              \
    ROW("args.shared_grads.up is 0x", "overlap layer.routed.up", SHARED_GRADS.up.base = place(bed, 1))                                    \
    ROW("args.dx is 0x", "overlap layer.routed.down", bed->backward.dx = AT(place(bed, 2), EXPERTS * INTER * HIDDEN * 2 - 16))            \
    ROW("args.dw is 0x", "overlap layer.shared.gate", bed->backward.dw = (float *)place(bed, 3))                                          \
    ROW(NULL, NULL, GRADS.up.base = AT(GRADS.gate.base, EXPERTS * INTER * HIDDEN * 4))                                                    \
    ROW(NULL, NULL, weave(bed, 0))                                                                                                        \
    ROW("args.grads.gate is 0x", "overlap args.grads.up", weave(bed, -16))                                                                \
    ROW("args.grads.gate is 0x", "overlap args.grads.up", weave(bed, 16))                                                                 \
    ROW(NULL, NULL, pack(bed, 0))                                                                                                         \
    ROW("args.grads.gate is 0x", "overlap args.grads.up", pack(bed, -16))                                                                 \
    ROW("args.grads.gate is 0x", "overlap args.grads.up", pack(bed, 16))                                                                  \
    ROW(NULL, NULL, blob(bed, 0))                                                                                                         \
    ROW("args.grads.up is 0x", "overlap args.grads.down", blob(bed, -16))                                                                 \
    ROW("args.grads.gate is 0x", "overlap args.grads.down", blob(bed, 16))

/* Gate and up rows in turn; `slip` bytes off. */
static void weave(struct bed *bed, int64_t slip)
{
    GRADS.gate.row_stride = GRADS.up.row_stride = 2 * HIDDEN;
    GRADS.gate.expert_stride = GRADS.up.expert_stride = 2 * INTER * HIDDEN;
    GRADS.up.base = AT(GRADS.gate.base, HIDDEN * 4 + slip);
}

/* All gate rows of an expert, then all up rows. */
static void pack(struct bed *bed, int64_t slip)
{
    GRADS.gate.expert_stride = GRADS.up.expert_stride = 2 * INTER * HIDDEN;
    GRADS.up.base = AT(GRADS.gate.base, INTER * HIDDEN * 4 + slip);
}

/* Gate, up and down of an expert, then of the next. */
static void blob(struct bed *bed, int64_t slip)
{
    GRADS.gate.expert_stride = GRADS.up.expert_stride = GRADS.down.expert_stride = 3 * INTER * HIDDEN;
    GRADS.up.base = AT(GRADS.gate.base, INTER * HIDDEN * 4);
    GRADS.down.base = AT(GRADS.gate.base, 2 * INTER * HIDDEN * 4 + slip);
}

static void test_gradients_and_weights(void **state)
{
    (void)state;
    struct bed opened, *bed = &opened;
    open_bed(bed);
#define RUN_ROW(first, second, action)                        \
    action;                                                   \
    expect(pass_backward(bed), #action, first, second);       \
    fill_args(bed);
    ROWS(RUN_ROW)
    bed->forward.y = place(bed, 0);
    expect(mok_forward(bed->layer, bed->schedule, &bed->forward, NULL), "y", "args.y is 0x", "overlap layer.routed.gate");
    bed->forward.y = AT(place(bed, 5), SHARED * HIDDEN * 2 - 16);
    expect(mok_forward(bed->layer, bed->schedule, &bed->forward, NULL), "y", "args.y is 0x", "overlap layer.shared.down");
    bed->forward.y = AT(place(bed, 5), SHARED * HIDDEN * 2);
    expect(mok_forward(bed->layer, bed->schedule, &bed->forward, NULL), "y", NULL, NULL);
    close_bed(bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_marked_bytes),
        cmocka_unit_test(test_inputs_may_share),
        cmocka_unit_test(test_gradients_and_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
