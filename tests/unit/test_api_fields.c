/*
 * Every field of every struct that the caller fills, and every number among the arguments: values just outside what mok.h allows, and far
 * outside, are refused with the field's name. A struct's rows must cover it from end to end, so that a new field cannot be forgotten here.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "test_api_bed.h"

enum kind {
    SIZE,     /* struct_size: this one alone */
    RANGE,    /* whole numbers from least to most that are multiples of `multiple`: counts, choices, flags, reserved fields */
    POSITIVE, /* a float above 0 */
    FINITE,   /* a float */
    POINTER,  /* what stands there is looked at in test_api_refusals.c */
    OUTPUT    /* filled by the call */
};

struct field {
    const char *name;
    size_t offset, size;
    enum kind kind;
    int64_t least, most, multiple;
};

#define MOST_ELEMENTS (INT64_C(1) << 60)
#define MOST_MS INT64_C(10000000000)
#define AT(type, member) #member, offsetof(type, member), sizeof(((type *)0)->member)
#define ONE_OF(type, member, last) {AT(type, member), RANGE, 0, last, 1}
#define NUMBER(type, member, least, most, multiple) {AT(type, member), RANGE, least, most, multiple}
#define NONE(type, member) {AT(type, member), RANGE, 0, 0, 1}
#define OTHER(type, member, kind) {AT(type, member), kind, 0, 0, 0}
/* rows and columns decide how far apart rows and experts stand */
#define MATRICES(type, member, cols)                                                                                                         \
    OTHER(type, member.base, POINTER), NUMBER(type, member.expert_stride, cols, MOST_ELEMENTS, 8),                                           \
        NUMBER(type, member.row_stride, cols, MOST_ELEMENTS, 8)
#define ONE_MATRIX(type, member, cols) /* expert_stride does not count */                                                                    \
    OTHER(type, member.base, POINTER), OTHER(type, member.expert_stride, OUTPUT), NUMBER(type, member.row_stride, cols, MOST_ELEMENTS, 8)

static const struct field config_fields[] = {
    OTHER(mok_group_config, struct_size, SIZE),
    ONE_OF(mok_group_config, backend, MOK_BACKEND_CUDA),
    ONE_OF(mok_group_config, peer, MOK_PEER_EXTERNAL),
    NUMBER(mok_group_config, rank, 0, 0, 1),
    NUMBER(mok_group_config, num_ranks, 1, 1024, 1),
    NUMBER(mok_group_config, shape.num_experts, 1, 1 << 20, 1),
    NUMBER(mok_group_config, shape.top_k, 1, 64, 1),
    NUMBER(mok_group_config, shape.hidden, 8, 1 << 20, 8),
    NUMBER(mok_group_config, shape.intermediate, 8, 1 << 20, 8),
    NUMBER(mok_group_config, shape.shared_intermediate, 0, 1 << 20, 8),
    NUMBER(mok_group_config, shape.format, 0, 0, 1),
    NUMBER(mok_group_config, shape.max_tokens, 1, INT32_MAX / TOP_K, 1),
    OTHER(mok_group_config, hub, POINTER),
    OTHER(mok_group_config, mpi_comm, POINTER),
    OTHER(mok_group_config, nccl_id, POINTER),
    OTHER(mok_group_config, external, POINTER),
    NUMBER(mok_group_config, device, -1, 1023, 1),
    NUMBER(mok_group_config, num_saved, 0, 65536, 1),
    NUMBER(mok_group_config, keep_rows, -1, INT32_MAX, 1),
    ONE_OF(mok_group_config, path, MOK_PATH_FUSED),
    NUMBER(mok_group_config, minibatch_rows, 0, INT32_MAX / 128 * 128, 128),
    NUMBER(mok_group_config, ring_minibatches, 0, 1 << 20, 1),
    NUMBER(mok_group_config, look_ahead, 0, 1 << 20, 1),
    NUMBER(mok_group_config, comm_workers, 0, 4096, 1),
    NUMBER(mok_group_config, compute_workers, 0, 4096, 1),
    NUMBER(mok_group_config, reserve_sms, 0, 4096, 1),
    NUMBER(mok_group_config, peer_timeout_ms, 1, MOST_MS, 1),
    NUMBER(mok_group_config, local_timeout_ms, 1, MOST_MS, 1),
};

/* least of bytes: anything below what the group needs is too little */
static const struct field external_fields[] = {
    OTHER(mok_external, struct_size, SIZE), OTHER(mok_external, bases, POINTER), NUMBER(mok_external, bytes, 1024, INT64_MAX, 1)};

static const struct field memory_fields[] = {
    OTHER(mok_memory, struct_size, SIZE),   OTHER(mok_memory, peer_bytes, OUTPUT),  OTHER(mok_memory, ring_bytes, OUTPUT),
    OTHER(mok_memory, saved_bytes, OUTPUT), OTHER(mok_memory, other_bytes, OUTPUT), OTHER(mok_memory, total_bytes, OUTPUT),
    OTHER(mok_memory, keep_rows, OUTPUT),   OTHER(mok_memory, max_rows, OUTPUT)};

static const struct field choice_fields[] = {
    OTHER(mok_choice, struct_size, SIZE),
    OTHER(mok_choice, backend, OUTPUT),
    OTHER(mok_choice, path, OUTPUT),
    OTHER(mok_choice, comm_workers, OUTPUT),
    OTHER(mok_choice, compute_workers, OUTPUT),
    OTHER(mok_choice, forward, OUTPUT),
    OTHER(mok_choice, backward, OUTPUT),
};

static const struct field now_fields[] = {OTHER(mok_group_state, struct_size, SIZE), OTHER(mok_group_state, fault, OUTPUT),
                                            OTHER(mok_group_state, bad_ids, OUTPUT), OTHER(mok_group_state, passes_done, OUTPUT)};

static const struct field layer_fields[] = {
    OTHER(mok_layer_config, struct_size, SIZE),
    NUMBER(mok_layer_config, routed.dtype, MOK_DTYPE_BF16, MOK_DTYPE_BF16, 1),
    NONE(mok_layer_config, routed.reserved),
    MATRICES(mok_layer_config, routed.gate, HIDDEN),
    MATRICES(mok_layer_config, routed.up, HIDDEN),
    MATRICES(mok_layer_config, routed.down, INTER),
    NUMBER(mok_layer_config, shared.dtype, MOK_DTYPE_BF16, MOK_DTYPE_BF16, 1),
    NONE(mok_layer_config, shared.reserved),
    ONE_MATRIX(mok_layer_config, shared.gate, HIDDEN),
    ONE_MATRIX(mok_layer_config, shared.up, HIDDEN),
    ONE_MATRIX(mok_layer_config, shared.down, SHARED),
    OTHER(mok_layer_config, activation.limit, POSITIVE),
    OTHER(mok_layer_config, activation.alpha, FINITE),
    OTHER(mok_layer_config, activation.up_offset, FINITE),
};

static const struct field forward_fields[] = {OTHER(mok_forward_args, struct_size, SIZE), OTHER(mok_forward_args, x, POINTER),
                                              OTHER(mok_forward_args, w, POINTER),        OTHER(mok_forward_args, shared_w, POINTER),
                                              OTHER(mok_forward_args, y, POINTER),        OTHER(mok_forward_args, saved, POINTER)};

static const struct field backward_fields[] = {
    OTHER(mok_backward_args, struct_size, SIZE),
    OTHER(mok_backward_args, saved, POINTER),
    OTHER(mok_backward_args, dy, POINTER),
    OTHER(mok_backward_args, w, POINTER),
    OTHER(mok_backward_args, shared_w, POINTER),
    OTHER(mok_backward_args, dx, POINTER),
    OTHER(mok_backward_args, dw, POINTER),
    OTHER(mok_backward_args, dshared_w, POINTER),
    NUMBER(mok_backward_args, grads.dtype, MOK_DTYPE_BF16, MOK_DTYPE_FP32, 1),
    NONE(mok_backward_args, grads.reserved),
    MATRICES(mok_backward_args, grads.gate, HIDDEN),
    MATRICES(mok_backward_args, grads.up, HIDDEN),
    MATRICES(mok_backward_args, grads.down, INTER),
    NUMBER(mok_backward_args, shared_grads.dtype, MOK_DTYPE_BF16, MOK_DTYPE_FP32, 1),
    NONE(mok_backward_args, shared_grads.reserved),
    ONE_MATRIX(mok_backward_args, shared_grads.gate, HIDDEN),
    ONE_MATRIX(mok_backward_args, shared_grads.up, HIDDEN),
    ONE_MATRIX(mok_backward_args, shared_grads.down, SHARED),
    ONE_OF(mok_backward_args, grad_mode, MOK_GRAD_ADD),
    NONE(mok_backward_args, reserved),
};

static const struct field router_fields[] = {
    OTHER(mok_router_config, struct_size, SIZE),
    ONE_OF(mok_router_config, score, MOK_SCORE_SIGMOID),
    NUMBER(mok_router_config, top_k, 1, EXPERTS, 1),
    NUMBER(mok_router_config, num_experts, TOP_K, 1 << 20, 1),
    NUMBER(mok_router_config, num_groups, 1, EXPERTS, 1),
    NUMBER(mok_router_config, keep_groups, 1, 1, 1),
    ONE_OF(mok_router_config, normalize, 1),
    ONE_OF(mok_router_config, softmax_after, 1),
    OTHER(mok_router_config, scale, FINITE),
    OTHER(mok_router_config, bias, POINTER),
};

/* ---- calls: each takes a struct that may be spoiled --------------------------------------------------------------------------- */

static mok_status call_create(const struct bed *bed, void *spoiled)
{
    (void)bed;
    mok_group *group = NULL;
    mok_status status = mok_group_create(spoiled, &group);
    return status == MOK_OK ? mok_group_destroy(group) : status;
}

static mok_status call_create_external(const struct bed *bed, void *spoiled)
{
    mok_group_config config = good_config();
    config.peer = MOK_PEER_EXTERNAL;
    config.external = spoiled;
    mok_group *group = NULL;
    memset(bed->memory, 0, 1 << 18);
    mok_status status = mok_group_create(&config, &group);
    return status == MOK_OK ? mok_group_destroy(group) : status;
}

static mok_status call_memory(const struct bed *bed, void *spoiled)
{
    (void)bed;
    mok_group_config config = good_config();
    return mok_group_memory(&config, spoiled);
}

static mok_status call_choose(const struct bed *bed, void *spoiled)
{
    (void)bed;
    mok_group_config config = good_config();
    return mok_group_choose(&config, spoiled);
}

static mok_status call_choice(const struct bed *bed, void *spoiled) { return mok_group_choice(bed->group, spoiled); }

static mok_status call_state(const struct bed *bed, void *spoiled) { return mok_group_status(bed->group, spoiled); }

static mok_status call_layer(const struct bed *bed, void *spoiled)
{
    mok_layer *layer = NULL;
    mok_status status = mok_layer_create(bed->group, spoiled, &layer);
    mok_layer_destroy(layer);
    return status;
}

static mok_status call_forward(const struct bed *bed, void *spoiled) { return mok_forward(bed->layer, bed->schedule, spoiled, NULL); }

static mok_status call_backward(const struct bed *bed, void *spoiled)
{
    mok_forward_args forward = good_forward(bed);
    forward.saved = bed->saved;
    mok_status status = mok_forward(bed->layer, bed->schedule, &forward, NULL);
    assert_int_equal(status, MOK_OK);
    status = mok_backward(bed->layer, bed->schedule, spoiled, NULL);
    mok_status released = mok_saved_release(bed->saved);
    return status != MOK_OK ? status : released;
}

static mok_status call_router(const struct bed *bed, void *spoiled)
{
    (void)bed;
    const float logits[EXPERTS] = {0.5f, 0.25f, 1.0f, 0.0f};
    int32_t ids[64];
    float w[64];
    return mok_router_choose(spoiled, logits, 1, ids, w);
}

/* ---- spoiling ------------------------------------------------------------------------------------------------------------------ */

enum { MOST_VALUES = 8, MOST_BYTES = 1024 };

struct subject {
    const char *type;
    const struct field *fields;
    size_t num_fields, bytes;
    const void *good; /* [bytes] */
    mok_status (*call)(const struct bed *bed, void *spoiled);
};

/* Numbers outside the range that the field can hold. Returns how many. */
static int numbers_outside(const struct field *field, int64_t *values_out)
{
    int64_t lowest = field->size == 4 ? INT32_MIN : INT64_MIN, highest = field->size == 4 ? INT32_MAX : INT64_MAX;
    int num = 0;
    if (field->least > lowest) {
        values_out[num++] = lowest;
        values_out[num++] = field->least - field->multiple;
        values_out[num++] = field->least - 1;
    }
    if (field->most < highest) {
        values_out[num++] = highest;
        values_out[num++] = field->most + field->multiple;
    }
    if (field->multiple > 1) {
        values_out[num++] = field->least + 1;
    }
    return num;
}

static int sizes_outside(size_t size, int64_t *values_out)
{
    const int64_t values[] = {0, 4, (int64_t)size - 1, (int64_t)size + 1, (int64_t)size + 8, -1};
    memcpy(values_out, values, sizeof values);
    return sizeof values / sizeof values[0];
}

static int floats_outside(enum kind kind, float *values_out)
{
    const float positive[] = {NAN, 0.0f, -1.0f, -INFINITY}, finite[] = {NAN, INFINITY, -INFINITY};
    memcpy(values_out, kind == POSITIVE ? positive : finite, kind == POSITIVE ? sizeof positive : sizeof finite);
    return kind == POSITIVE ? 4 : 3;
}

/* The last part of "routed.gate.row_stride", which every sentence has. */
static const char *last_name(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot == NULL ? name : dot + 1;
}

static void expect_refusal(const struct bed *bed, const struct subject *subject, const struct field *field, const void *value, const char *text)
{
    _Alignas(16) char spoiled[MOST_BYTES];
    memcpy(spoiled, subject->good, subject->bytes);
    memcpy(spoiled + field->offset, value, field->size);
    mok_status status = subject->call(bed, spoiled);
    if (status != MOK_ERR_ARGUMENT && status != MOK_ERR_UNSUPPORTED) {
        fail_msg("%s.%s = %s: %s", subject->type, field->name, text, mok_status_name(status));
    }
    if (strstr(mok_last_error(), last_name(field->name)) == NULL) {
        fail_msg("%s.%s = %s: '%s' does not name the field", subject->type, field->name, text, mok_last_error());
    }
}

static int spoil_field(const struct bed *bed, const struct subject *subject, const struct field *field)
{
    int64_t numbers[MOST_VALUES];
    float floats[MOST_VALUES];
    char text[64];
    int is_float = field->kind == POSITIVE || field->kind == FINITE;
    int num = field->kind == RANGE  ? numbers_outside(field, numbers)
              : field->kind == SIZE ? sizes_outside(subject->bytes, numbers)
              : is_float            ? floats_outside(field->kind, floats)
                                    : 0;
    for (int idx = 0; idx < num; idx++) {
        int32_t narrow = (int32_t)(is_float ? 0 : numbers[idx]);
        const void *value = is_float ? (const void *)&floats[idx] : field->size == 4 ? (const void *)&narrow : (const void *)&numbers[idx];
        if (is_float) {
            snprintf(text, sizeof text, "%g", (double)floats[idx]);
        } else {
            snprintf(text, sizeof text, "%" PRId64, numbers[idx]);
        }
        expect_refusal(bed, subject, field, value, text);
    }
    return num;
}

/* From end to end, but for what alignment leaves between the fields. */
static void check_cover(const struct subject *subject)
{
    size_t end = 0, widest = 1;
    for (size_t idx = 0; idx < subject->num_fields; idx++) {
        const struct field *field = &subject->fields[idx];
        size_t align = field->size < 8 ? field->size : 8;
        if (field->offset != (end + align - 1) / align * align) {
            fail_msg("%s has a field before %s that no row stands for", subject->type, field->name);
        }
        end = field->offset + field->size;
        widest = align > widest ? align : widest;
    }
    if ((end + widest - 1) / widest * widest != subject->bytes) {
        fail_msg("%s has a field at its end that no row stands for", subject->type);
    }
}

static void test_fields(void **state)
{
    const struct bed *bed = *state;
    mok_group_config config = good_config();
    void *const bases[1] = {bed->memory};
    const mok_external external = {sizeof external, bases, 1 << 18};
    const mok_memory memory = {.struct_size = sizeof memory};
    const mok_choice choice = {.struct_size = sizeof choice};
    const mok_group_state now = {.struct_size = sizeof now};
    const mok_layer_config layer = good_layer(bed);
    const mok_forward_args forward = good_forward(bed);
    const mok_backward_args backward = good_backward(bed);
    mok_router_config router;
    mok_router_config_init(&router);
    router.top_k = TOP_K;
    router.num_experts = EXPERTS;
#define SUBJECT(type, name, call) {#type, name##_fields, sizeof name##_fields / sizeof name##_fields[0], sizeof name, &name, call}
    const struct subject subjects[] = {
        SUBJECT(mok_group_config, config, call_create),
        SUBJECT(mok_external, external, call_create_external),
        SUBJECT(mok_memory, memory, call_memory),
        SUBJECT(mok_choice, choice, call_choose),
        SUBJECT(mok_choice, choice, call_choice),
        SUBJECT(mok_group_state, now, call_state),
        SUBJECT(mok_layer_config, layer, call_layer),
        SUBJECT(mok_forward_args, forward, call_forward),
        SUBJECT(mok_backward_args, backward, call_backward),
        SUBJECT(mok_router_config, router, call_router),
    };
    int num_values = 0;
    for (size_t idx = 0; idx < sizeof subjects / sizeof subjects[0]; idx++) {
        _Alignas(16) char copy[MOST_BYTES];
        assert_true(subjects[idx].bytes <= sizeof copy);
        check_cover(&subjects[idx]);
        memcpy(copy, subjects[idx].good, subjects[idx].bytes);
        if (subjects[idx].call(bed, copy) != MOK_OK) {
            fail_msg("%s as it should be: %s", subjects[idx].type, mok_last_error());
        }
        for (size_t field = 0; field < subjects[idx].num_fields; field++) {
            num_values += spoil_field(bed, &subjects[idx], &subjects[idx].fields[field]);
        }
    }
    assert_true(num_values > 250);
}

/* ---- numbers among the arguments ----------------------------------------------------------------------------------------------- */

static float some_floats[64];
static int32_t some_ids[64];
static uint8_t some_bytes[64];

static mok_status with_hub(const struct bed *bed, int64_t value)
{
    (void)bed;
    mok_hub *hub = NULL;
    mok_status status = mok_hub_create((int32_t)value, &hub);
    mok_hub_destroy(hub);
    return status;
}

static mok_status with_wait(const struct bed *bed, int64_t value) { return mok_group_wait(bed->group, NULL, value); }

static mok_status with_saved(const struct bed *bed, int64_t value)
{
    mok_saved *saved = NULL;
    return mok_group_saved(bed->group, (int32_t)value, &saved);
}

static mok_status with_build(const struct bed *bed, int64_t value)
{
    return mok_schedule_build(bed->schedule, (int32_t *)region_of(bed, 0), value, NULL);
}

static mok_status with_trace(const struct bed *bed, int64_t value) { return mok_group_trace(bed->group, value); }

static mok_status with_capacity(const struct bed *bed, int64_t value)
{
    mok_event event;
    int64_t num = 0;
    return mok_group_trace_take(bed->group, &event, value, &num, NULL);
}

static mok_status local_experts(int64_t num_experts, int64_t num_ranks, int64_t rank)
{
    int32_t first = 0, num = 0;
    return mok_local_experts((int32_t)num_experts, (int32_t)num_ranks, (int32_t)rank, &first, &num);
}

static mok_status with_experts(const struct bed *bed, int64_t value) { return (void)bed, local_experts(value, 2, 1); }
static mok_status with_ranks(const struct bed *bed, int64_t value) { return (void)bed, local_experts(4, value, 0); }
static mok_status with_rank(const struct bed *bed, int64_t value) { return (void)bed, local_experts(4, 2, value); }

static mok_status with_choose(const struct bed *bed, int64_t value)
{
    (void)bed;
    mok_router_config router;
    mok_router_config_init(&router);
    router.top_k = 1;
    router.num_experts = 2;
    return mok_router_choose(&router, some_floats, value, some_ids, some_floats + 32);
}

static mok_status logits(int64_t num_tokens, int64_t hidden, int64_t num_experts)
{
    return mok_router_logits(some_bytes, some_bytes, NULL, num_tokens, (int32_t)hidden, (int32_t)num_experts, some_floats);
}

static mok_status with_logits_tokens(const struct bed *bed, int64_t value) { return (void)bed, logits(value, 8, 2); }
static mok_status with_logits_hidden(const struct bed *bed, int64_t value) { return (void)bed, logits(0, value, 2); }
static mok_status with_logits_experts(const struct bed *bed, int64_t value) { return (void)bed, logits(0, 8, value); }

static mok_status with_rows(const struct bed *bed, int64_t value)
{
    (void)bed;
    return mok_mxfp8_quantize(some_floats, value, 32, MOK_SCALE_RCEIL, some_bytes, some_bytes);
}

static mok_status with_cols(const struct bed *bed, int64_t value)
{
    (void)bed;
    return mok_mxfp8_dequantize(some_bytes, some_bytes, 1, value, some_floats);
}

static mok_status with_rounding(const struct bed *bed, int64_t value)
{
    (void)bed;
    return mok_mxfp8_quantize(some_floats, 1, 32, (mok_scale_rounding)value, some_bytes, some_bytes);
}

static mok_status with_backend(const struct bed *bed, int64_t value)
{
    (void)bed;
    return mok_backend_available((mok_backend)value) ? MOK_OK : MOK_ERR_ARGUMENT;
}

static mok_status with_peer(const struct bed *bed, int64_t value)
{
    (void)bed;
    return mok_peer_available((mok_peer_kind)value) ? MOK_OK : MOK_ERR_ARGUMENT;
}

static const struct {
    struct field argument; /* its name and range; size: of the number */
    mok_status (*call)(const struct bed *bed, int64_t value);
} arguments[] = {
    {{"num_ranks", 0, 4, RANGE, 1, 1024, 1}, with_hub},
    {{"timeout_ms", 0, 8, RANGE, -1, INT64_MAX, 1}, with_wait},
    {{"idx", 0, 4, RANGE, 0, 1, 1}, with_saved},
    {{"num_tokens", 0, 8, RANGE, 0, MAX_TOKENS, 1}, with_build},
    {{"max_events", 0, 8, RANGE, 0, INT64_MAX, 1}, with_trace},
    {{"capacity", 0, 8, RANGE, 0, INT64_MAX, 1}, with_capacity},
    {{"num_experts", 0, 4, RANGE, 1, 1 << 20, 1}, with_experts},
    {{"num_ranks", 0, 4, RANGE, 1, 1024, 1}, with_ranks},
    {{"rank", 0, 4, RANGE, 0, 1, 1}, with_rank},
    {{"num_tokens", 0, 8, RANGE, 0, INT32_MAX, 1}, with_choose},
    {{"num_tokens", 0, 8, RANGE, 0, INT32_MAX, 1}, with_logits_tokens},
    {{"hidden", 0, 4, RANGE, 1, 1 << 20, 1}, with_logits_hidden},
    {{"num_experts", 0, 4, RANGE, 1, 1 << 20, 1}, with_logits_experts},
    {{"num_rows", 0, 8, RANGE, 0, INT64_MAX / 4 / 32, 1}, with_rows},
    {{"num_cols", 0, 8, RANGE, 0, INT64_MAX / 4 / 32 * 32, 32}, with_cols},
    {{"rounding", 0, 4, RANGE, 0, 1, 1}, with_rounding},
    {{"backend", 0, 4, RANGE, 0, MOK_BACKEND_CUDA, 1}, with_backend},
    {{"peer", 0, 4, RANGE, 0, MOK_PEER_EXTERNAL, 1}, with_peer},
};

static void test_arguments(void **state)
{
    const struct bed *bed = *state;
    for (size_t idx = 0; idx < sizeof arguments / sizeof arguments[0]; idx++) {
        const struct field *argument = &arguments[idx].argument;
        int64_t values[MOST_VALUES];
        int num = numbers_outside(argument, values);
        assert_true(num >= 3);
        for (int at = 0; at < num; at++) {
            mok_status status = arguments[idx].call(bed, values[at]);
            if (status != MOK_ERR_ARGUMENT || strstr(mok_last_error(), argument->name) == NULL) {
                fail_msg("row %zu, %s = %" PRId64 ": %s, '%s'", idx, argument->name, values[at], mok_status_name(status), mok_last_error());
            }
        }
        if (arguments[idx].call(bed, argument->least) != MOK_OK) {
            fail_msg("row %zu, %s = %" PRId64 ": %s", idx, argument->name, argument->least, mok_last_error());
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fields, make_bed, clear_bed),
        cmocka_unit_test_setup_teardown(test_arguments, make_bed, clear_bed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
