/*
 * Every refusal of the public calls, as tables: what is spoiled, the status, and the words that the sentence must hold. A refused call
 * reaches no backend and writes nothing; the same call, not spoiled, works right afterwards.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/check.h"
#include "test_api_bed.h"

/* 1 for "1 ranks" and the like. */
static int says_ones(const char *text)
{
    static const char *const wrong[] = {" 1 ranks", " 1 local experts", " 1 experts", " 1 tokens", " 1 values", " 1 bytes"};
    int is_found = 0;
    for (size_t idx = 0; idx < sizeof wrong / sizeof wrong[0]; idx++) {
        is_found |= strstr(text, wrong[idx]) != NULL;
    }
    return is_found;
}

/* Status and words; one sentence, without a line end. */
static void refused(mok_status status, mok_status expected, const char *what, const char *first, const char *second)
{
    const char *text = mok_last_error();
    if (status != expected) {
        fail_msg("%s: %s (%s) instead of %s", what, mok_status_name(status), text, mok_status_name(expected));
    }
    if (strstr(text, first) == NULL || strstr(text, second) == NULL || strchr(text, '\n') != NULL || says_ones(text)) {
        fail_msg("%s: '%s' should say '%s' and '%s'", what, text, first, second);
    }
}

/* ---- config -------------------------------------------------------------------------------------------------------------- */

static void *const odd_base[1] = {(void *)(uintptr_t)0x1010};
static const mok_external no_bases = {sizeof no_bases, NULL, 1 << 20};
static const mok_external odd_bases = {sizeof odd_bases, odd_base, 1 << 20};
static const mok_external small_struct = {8, odd_base, 1 << 20};
static const mok_external no_room = {sizeof no_room, odd_base, 511};
static void *const near_base[2] = {(void *)(uintptr_t)0x300000, (void *)(uintptr_t)0x200100};
static const mok_external near_bases = {sizeof near_bases, near_base, 1 << 20};
static const char nccl_id[128];

#define CONFIG_ROWS(ROW)                                                                                                                  \
    ROW(struct_size, ARGUMENT, "config.struct_size is 16", "must be", config->struct_size = 16)                                           \
    ROW(struct_size_larger, ARGUMENT, "config.struct_size", "must be", config->struct_size++)                                             \
    ROW(backend, ARGUMENT, "config.backend is 7", "auto|cpu|cuda", config->backend = 7)                                                   \
    ROW(peer, ARGUMENT, "config.peer is -1", "threads|mpi", config->peer = -1)                                                            \
    ROW(num_ranks_zero, ARGUMENT, "config.num_ranks is 0", "from 1 to 1024", config->num_ranks = 0)                                       \
    ROW(num_ranks_many, ARGUMENT, "config.num_ranks is 1025", "from 1 to 1024", config->num_ranks = 1025)                                 \
    ROW(rank_negative, ARGUMENT, "config.rank is -1", "from 0 to 0", config->rank = -1)                                                   \
    ROW(rank_past, ARGUMENT, "config.rank is 1", "from 0 to 0", config->rank = 1)                                                         \
    ROW(hub, ARGUMENT, "config.hub is NULL", "num_ranks is 1", config->num_ranks = 2)                                                     \
    ROW(experts_zero, ARGUMENT, "config.shape.num_experts is 0", "from 1", config->shape.num_experts = 0)                                 \
    ROW(experts_many, ARGUMENT, "config.shape.num_experts is 1048577", "to 1048576", config->shape.num_experts = 1048577)                 \
    ROW(top_k_zero, ARGUMENT, "config.shape.top_k is 0", "from 1 to 64", config->shape.top_k = 0)                                         \
    ROW(top_k_many, ARGUMENT, "config.shape.top_k is 65", "from 1 to 64", config->shape.top_k = 65)                                       \
    ROW(hidden_zero, ARGUMENT, "config.shape.hidden is 0", "multiple of 8", config->shape.hidden = 0)                                     \
    ROW(hidden_odd, ARGUMENT, "config.shape.hidden is 36", "multiple of 8", config->shape.hidden = 36)                                    \
    ROW(hidden_large, ARGUMENT, "config.shape.hidden is 1048584", "to 1048576", config->shape.hidden = 1048584)                           \
    ROW(inter_odd, ARGUMENT, "config.shape.intermediate is 17", "multiple of 8", config->shape.intermediate = 17)                         \
    ROW(inter_negative, ARGUMENT, "config.shape.intermediate is -8", "multiple of 8", config->shape.intermediate = -8)                    \
    ROW(shared_odd, ARGUMENT, "config.shape.shared_intermediate is 4", "multiple of 8", config->shape.shared_intermediate = 4)            \
    ROW(shared_negative, ARGUMENT, "config.shape.shared_intermediate is -8", "from 0", config->shape.shared_intermediate = -8)            \
    ROW(format_mxfp8, UNSUPPORTED, "config.shape.format is MOK_FORMAT_MXFP8 (1)", "only MOK_FORMAT_BF16", config->shape.format = 1)       \
    ROW(format_fp8, UNSUPPORTED, "config.shape.format is MOK_FORMAT_FP8_BLOCK (2)", "only MOK_FORMAT_BF16", config->shape.format = 2)     \
    ROW(format_unknown, ARGUMENT, "config.shape.format is 3", "only MOK_FORMAT_BF16", config->shape.format = 3)                           \
    ROW(tokens_zero, ARGUMENT, "config.shape.max_tokens is 0", "from 1", config->shape.max_tokens = 0)                                    \
    ROW(tokens_many, ARGUMENT, "config.shape.max_tokens is 2147483648", "from 1", config->shape.max_tokens = 2147483648)                  \
    ROW(routes_many, ARGUMENT, "config.shape.max_tokens is 715827883", "below 2^31", config->shape.max_tokens = 715827883)                \
    ROW(rows_many, ARGUMENT, "config.shape.max_tokens is 715827882", "with 1 rank and top_k", config->shape.max_tokens = 715827882)                 \
    ROW(saved_negative, ARGUMENT, "config.num_saved is -1", "from 0", config->num_saved = -1)                                             \
    ROW(saved_bytes, ARGUMENT, "config.num_saved is 65536", "2^60",                                                                       \
        (config->num_saved = 65536, config->shape.max_tokens = 100000000, config->shape.hidden = 1 << 20))                                \
    ROW(keep_rows, ARGUMENT, "config.keep_rows is -2", "all (-1)", config->keep_rows = -2)                                                \
    ROW(minibatch_odd, ARGUMENT, "config.minibatch_rows is 129", "multiple of 128", config->minibatch_rows = 129)                         \
    ROW(minibatch_negative, ARGUMENT, "config.minibatch_rows is -128", "from 0", config->minibatch_rows = -128)                           \
    ROW(ring, ARGUMENT, "config.ring_minibatches is -1", "from 0", config->ring_minibatches = -1)                                         \
    ROW(look_ahead, ARGUMENT, "config.look_ahead is -1", "from 0", config->look_ahead = -1)                                               \
    ROW(comm_workers, ARGUMENT, "config.comm_workers is -1", "from 0", config->comm_workers = -1)                                         \
    ROW(compute_workers, ARGUMENT, "config.compute_workers is 4097", "to 4096", config->compute_workers = 4097)                           \
    ROW(reserve_sms, ARGUMENT, "config.reserve_sms is -1", "from 0", config->reserve_sms = -1)                                            \
    ROW(path, ARGUMENT, "config.path is 3", "auto|staged|fused", config->path = 3)                                                        \
    ROW(device, ARGUMENT, "config.device is -2", "from -1", config->device = -2)                                                          \
    ROW(peer_timeout, ARGUMENT, "config.peer_timeout_ms is 0", "from 1", config->peer_timeout_ms = 0)                                     \
    ROW(local_timeout, ARGUMENT, "config.local_timeout_ms is -5", "from 1", config->local_timeout_ms = -5)                                \
    ROW(nccl_id, ARGUMENT, "config.nccl_id is NULL", "must be given", config->peer = MOK_PEER_NCCL)                                       \
    ROW(external, ARGUMENT, "config.external is NULL", "must be given", config->peer = MOK_PEER_EXTERNAL)                                 \
    ROW(external_size, ARGUMENT, "config.external.struct_size is 8", "must be",                                                           \
        (config->peer = MOK_PEER_EXTERNAL, config->external = &small_struct))                                                             \
    ROW(external_bases, ARGUMENT, "config.external.bases is NULL", "must be given",                                                       \
        (config->peer = MOK_PEER_EXTERNAL, config->external = &no_bases))                                                                 \
    ROW(external_align, ARGUMENT, "config.external.bases[0] is 0x1010", "256 bytes",                                                      \
        (config->peer = MOK_PEER_EXTERNAL, config->external = &odd_bases))                                                                \
    ROW(external_room, ARGUMENT, "config.external.bytes is 511", "at least 512 to meet 1 rank",                                           \
        (config->peer = MOK_PEER_EXTERNAL, config->external = &no_room))                                                                  \
    ROW(external_near, ARGUMENT, "config.external.bases[0] and [1]", "nearer to each other than 1048576 bytes",                           \
        (config->peer = MOK_PEER_EXTERNAL, config->external = &near_bases, config->num_ranks = 2))

#define CONFIG_SPOIL(id, status, first, second, action) static void spoil_config_##id(mok_group_config *config) { action; }
CONFIG_ROWS(CONFIG_SPOIL)

#define CONFIG_ROW(id, status, first, second, action) {#id, MOK_ERR_##status, first, second, spoil_config_##id},
static const struct {
    const char *what;
    mok_status status;
    const char *first, *second;
    void (*spoil)(mok_group_config *config);
} config_rows[] = {CONFIG_ROWS(CONFIG_ROW)};

static void test_config(void **state)
{
    (void)state;
    mok_group *const untouched = (mok_group *)(uintptr_t)0x5a5a;
    for (size_t idx = 0; idx < sizeof config_rows / sizeof config_rows[0]; idx++) {
        mok_group_config config = good_config();
        config_rows[idx].spoil(&config);
        mok_group *group = untouched;
        mok_status status = mok_group_create(&config, &group);
        refused(status, config_rows[idx].status, config_rows[idx].what, config_rows[idx].first, config_rows[idx].second);
        assert_ptr_equal(group, untouched);
        /* The check alone finds all of it: neither a backend nor a peer is asked. */
        refused(mok_api_check_config(&config), config_rows[idx].status, config_rows[idx].what, config_rows[idx].first, config_rows[idx].second);
    }
}

/* What only a decided backend can say. */
static void test_config_with_backend(void **state)
{
    (void)state;
    mok_group *group = NULL;
    mok_group_config config = good_config();
    assert_int_equal(mok_group_create(NULL, &group), MOK_ERR_ARGUMENT);
    refused(MOK_ERR_ARGUMENT, MOK_ERR_ARGUMENT, "config", "config is NULL", "must be given");
    refused(mok_group_create(&config, NULL), MOK_ERR_ARGUMENT, "group_out", "group_out is NULL", "must be given");

    config.peer = MOK_PEER_NCCL;
    config.nccl_id = nccl_id;
    refused(mok_api_create(&config, &fake_ops, &mok_peer_threads, &group), MOK_ERR_UNSUPPORTED, "pair", "config.peer is nccl",
            "backend is cpu");

    static char room[256 * 4] __attribute__((aligned(256)));
    void *const bases[1] = {room};
    mok_external external = {sizeof external, bases, sizeof room};
    config = good_config();
    config.peer = MOK_PEER_EXTERNAL;
    config.external = &external;
    refused(mok_api_create(&config, &fake_ops, &mok_peer_external, &group), MOK_ERR_ARGUMENT, "room", "config.external.bytes is 1024",
            "mok_memory.peer_bytes");
    assert_null(group);
    assert_int_equal(fake_seen.groups_alive, 0);
}

static void test_memory(void **state)
{
    (void)state;
    mok_group_config config = good_config();
    mok_memory memory = {.struct_size = sizeof memory};
    refused(mok_group_memory(&config, NULL), MOK_ERR_ARGUMENT, "memory", "memory_out is NULL", "must be given");
    refused(mok_group_memory(NULL, &memory), MOK_ERR_ARGUMENT, "config", "config is NULL", "must be given");
    memory.struct_size = 0;
    refused(mok_group_memory(&config, &memory), MOK_ERR_ARGUMENT, "size", "memory_out.struct_size is 0", "must be");
    memory.struct_size = sizeof memory;
    config.shape.hidden = 12;
    memory.total_bytes = 77;
    refused(mok_group_memory(&config, &memory), MOK_ERR_ARGUMENT, "shape", "config.shape.hidden is 12", "multiple of 8");
    assert_int_equal(memory.total_bytes, 77);
}

static void test_choice(void **state)
{
    const struct bed *bed = *state;
    mok_group_config config = good_config();
    mok_choice choice = {.struct_size = sizeof choice};
    refused(mok_group_choose(&config, NULL), MOK_ERR_ARGUMENT, "choice", "choice_out is NULL", "must be given");
    refused(mok_group_choose(NULL, &choice), MOK_ERR_ARGUMENT, "config", "config is NULL", "must be given");
    refused(mok_group_choice(NULL, &choice), MOK_ERR_ARGUMENT, "group", "group is NULL", "must be given");
    refused(mok_group_choice(bed->group, NULL), MOK_ERR_ARGUMENT, "choice", "choice_out is NULL", "must be given");
    config.look_ahead = -1;
    choice.path = 77;
    refused(mok_group_choose(&config, &choice), MOK_ERR_ARGUMENT, "look-ahead", "config.look_ahead is -1", "must be");
    assert_int_equal(choice.path, 77);
}

/* ---- layer --------------------------------------------------------------------------------------------------------------- */

#define LAYER_ROWS(ROW)                                                                                                                   \
    ROW(struct_size, "config.struct_size is 0", "must be", config->struct_size = 0)                                                       \
    ROW(dtype_none, "config.routed.dtype is 0", "MOK_DTYPE_BF16", config->routed.dtype = MOK_DTYPE_NONE)                                  \
    ROW(dtype_fp32, "config.routed.dtype is 2", "MOK_DTYPE_BF16", config->routed.dtype = MOK_DTYPE_FP32)                                  \
    ROW(shared_dtype, "config.shared.dtype is 9", "MOK_DTYPE_BF16", config->shared.dtype = 9)                                             \
    ROW(reserved, "config.routed.reserved is 1", "must be 0", config->routed.reserved = 1)                                                \
    ROW(gate_null, "config.routed.gate.base is NULL", "4 local experts", config->routed.gate.base = NULL)                                 \
    ROW(up_null, "config.routed.up.base is NULL", "4 local experts", config->routed.up.base = NULL)                                       \
    ROW(down_null, "config.routed.down.base is NULL", "4 local experts", config->routed.down.base = NULL)                                 \
    ROW(shared_gate_null, "config.shared.gate.base is NULL", "for shape.shared_intermediate is 24", config->shared.gate.base = NULL)      \
    ROW(shared_up_null, "config.shared.up.base is NULL", "for shape.shared_intermediate is 24", config->shared.up.base = NULL)            \
    ROW(shared_down_null, "config.shared.down.base is NULL", "for shape.shared_intermediate is 24", config->shared.down.base = NULL)      \
    ROW(align_2, "config.routed.gate.base is 0x", "16 bytes", config->routed.gate.base = (char *)config->routed.gate.base + 2)            \
    ROW(align_8, "config.routed.down.base is 0x", "16 bytes", config->routed.down.base = (char *)config->routed.down.base + 8)            \
    ROW(row_stride_odd, "config.routed.gate.row_stride is 36", "multiple of 8", config->routed.gate.row_stride = 36)                      \
    ROW(row_stride_small, "config.routed.up.row_stride is 24", "at least 32", config->routed.up.row_stride = 24)                          \
    ROW(row_stride_down, "config.routed.down.row_stride is 8", "at least 16", config->routed.down.row_stride = 8)                         \
    ROW(row_stride_negative, "config.routed.gate.row_stride is -32", "at least 32", config->routed.gate.row_stride = -32)                 \
    ROW(expert_stride_odd, "config.routed.gate.expert_stride is 516", "multiple of 8", config->routed.gate.expert_stride = 516)           \
    ROW(expert_stride_small, "config.routed.gate.expert_stride is 480", "experts overlap", config->routed.gate.expert_stride = 480)       \
    ROW(expert_stride_zero, "config.routed.gate.expert_stride is 0", "at least 32", config->routed.gate.expert_stride = 0)                \
    ROW(stride_huge, "config.routed.gate.row_stride is 1152921504606846976", "2^60", config->routed.gate.row_stride = (int64_t)1 << 60)   \
    ROW(limit_zero, "config.activation.limit is 0", "above 0", config->activation.limit = 0)                                              \
    ROW(limit_negative, "config.activation.limit is -1", "above 0", config->activation.limit = -1)                                        \
    ROW(limit_nan, "config.activation.limit is ", "above 0", config->activation.limit = NAN)                                              \
    ROW(alpha_nan, "config.activation.alpha is ", "finite", config->activation.alpha = NAN)                                               \
    ROW(alpha_inf, "config.activation.alpha is inf", "finite", config->activation.alpha = INFINITY)                                       \
    ROW(up_offset_inf, "config.activation.up_offset is -inf", "finite", config->activation.up_offset = -INFINITY)

#define LAYER_SPOIL(id, first, second, action) static void spoil_layer_##id(mok_layer_config *config) { action; }
LAYER_ROWS(LAYER_SPOIL)

#define LAYER_ROW(id, first, second, action) {#id, first, second, spoil_layer_##id},
static const struct {
    const char *what, *first, *second;
    void (*spoil)(mok_layer_config *config);
} layer_rows[] = {LAYER_ROWS(LAYER_ROW)};

static void test_layer(void **state)
{
    const struct bed *bed = *state;
    mok_layer *const untouched = (mok_layer *)(uintptr_t)0x5a5a;
    mok_layer *layer = untouched;
    mok_layer_config config;
    for (size_t idx = 0; idx < sizeof layer_rows / sizeof layer_rows[0]; idx++) {
        config = good_layer(bed);
        layer_rows[idx].spoil(&config);
        refused(mok_layer_create(bed->group, &config, &layer), MOK_ERR_ARGUMENT, layer_rows[idx].what, layer_rows[idx].first,
                layer_rows[idx].second);
        assert_ptr_equal(layer, untouched);
    }
    config = good_layer(bed);
    refused(mok_layer_create(NULL, &config, &layer), MOK_ERR_ARGUMENT, "group", "group is NULL", "must be given");
    refused(mok_layer_create(bed->group, NULL, &layer), MOK_ERR_ARGUMENT, "config", "config is NULL", "must be given");
    refused(mok_layer_create(bed->group, &config, NULL), MOK_ERR_ARGUMENT, "layer_out", "layer_out is NULL", "must be given");
}

/* Layouts of mok.h that are legal: packed gate+up, interleaved rows, experts row by row in turn; limit +inf. */
static void test_legal_layouts(void **state)
{
    const struct bed *bed = *state;
    mok_layer *layer = NULL;
    mok_layer_config packed = good_layer(bed);
    packed.routed.gate.expert_stride = packed.routed.up.expert_stride = 2 * INTER * HIDDEN;
    packed.routed.up.base = (char *)packed.routed.gate.base + INTER * HIDDEN * 2;
    assert_int_equal(mok_layer_create(bed->group, &packed, &layer), MOK_OK);
    mok_layer_destroy(layer);

    mok_layer_config interleaved = good_layer(bed);
    interleaved.routed.gate.row_stride = interleaved.routed.up.row_stride = 2 * HIDDEN;
    interleaved.routed.gate.expert_stride = interleaved.routed.up.expert_stride = 2 * INTER * HIDDEN;
    interleaved.routed.up.base = (char *)interleaved.routed.gate.base + HIDDEN * 2;
    assert_int_equal(mok_layer_create(bed->group, &interleaved, &layer), MOK_OK);
    mok_layer_destroy(layer);

    mok_layer_config turns = good_layer(bed);
    turns.routed.down.expert_stride = INTER;
    turns.routed.down.row_stride = EXPERTS * INTER;
    assert_int_equal(mok_layer_create(bed->group, &turns, &layer), MOK_OK);
    mok_layer_destroy(layer);
}

/* ---- schedule ------------------------------------------------------------------------------------------------------------ */

/* One is said as one. */
static void test_one(void **state)
{
    const mok_ffn none = {.dtype = MOK_DTYPE_BF16};
    mok_router_config router;
    float logit = 0;
    (void)state;
    refused(mok_api_check_ffn("f", &none, 1, HIDDEN, INTER, 0), MOK_ERR_ARGUMENT, "one expert", "f.gate.base is NULL", "must be given for 1 local expert");
    mok_router_config_init(&router);
    router.num_experts = router.top_k = 1;
    refused(mok_router_choose(&router, &logit, 1, NULL, &logit), MOK_ERR_ARGUMENT, "one token", "ids_out is NULL", "must be given with 1 token");
    refused(mok_router_logits(NULL, &logit, NULL, 1, 1, 1, &logit), MOK_ERR_ARGUMENT, "one token", "x is NULL", "must be given with 1 token");
}

static void test_schedule(void **state)
{
    const struct bed *bed = *state;
    const int32_t *ids = (int32_t *)region_of(bed, 0);
    int calls = fake_calls();
    int64_t padded = 77;
    mok_schedule *unbuilt = NULL;
    refused(mok_schedule_create(NULL, &unbuilt), MOK_ERR_ARGUMENT, "group", "group is NULL", "must be given");
    refused(mok_schedule_create(bed->group, NULL), MOK_ERR_ARGUMENT, "out", "schedule_out is NULL", "must be given");
    refused(mok_schedule_build(NULL, ids, TOKENS, NULL), MOK_ERR_ARGUMENT, "schedule", "schedule is NULL", "must be given");
    refused(mok_schedule_build(bed->schedule, NULL, TOKENS, NULL), MOK_ERR_ARGUMENT, "ids", "ids is NULL", "it has 5");
    refused(mok_schedule_build(bed->schedule, ids + 1, TOKENS, NULL), MOK_ERR_ARGUMENT, "align", "ids is 0x", "16 bytes");
    refused(mok_schedule_build(bed->schedule, ids, -1, NULL), MOK_ERR_ARGUMENT, "tokens", "num_tokens is -1", "from 0");
    refused(mok_schedule_build(bed->schedule, ids, MAX_TOKENS + 1, NULL), MOK_ERR_ARGUMENT, "tokens", "num_tokens is 7",
            "max_tokens of the group, 6");
    refused(mok_schedule_build(bed->schedule, ids, TOKENS, bed->memory), MOK_ERR_ARGUMENT, "stream", "stream is 0x",
            "NULL with the CPU backend");
    assert_int_equal(mok_schedule_create(bed->group, &unbuilt), MOK_OK);
    refused(mok_schedule_counts(unbuilt, NULL, NULL, &padded), MOK_ERR_MISMATCH, "unbuilt", "schedule was never built",
            "mok_schedule_build");
    refused(mok_schedule_counts(NULL, NULL, NULL, &padded), MOK_ERR_ARGUMENT, "schedule", "schedule is NULL", "must be given");
    refused(mok_schedule_counts(bed->schedule, NULL, NULL, NULL), MOK_ERR_ARGUMENT, "padded", "padded_out is NULL", "must be given");
    assert_int_equal(padded, 77);
    assert_int_equal(fake_calls(), calls);
    mok_schedule_destroy(unbuilt);
    assert_int_equal(mok_schedule_build(bed->schedule, NULL, 0, NULL), MOK_OK);
    assert_int_equal(mok_schedule_build(bed->schedule, ids, MAX_TOKENS, NULL), MOK_OK);
    assert_int_equal(fake_calls(), calls + 2);
}

/* ---- forward and backward ------------------------------------------------------------------------------------------------ */

#define OFF(pointer, bytes) ((void *)((char *)(uintptr_t)(pointer) + (bytes)))
#define FORWARD_ROWS(ROW)                                                                                                                 \
    ROW(struct_size, "args.struct_size is 4", "must be", args->struct_size = 4)                                                           \
    ROW(x_null, "args.x is NULL", "it has 5", args->x = NULL)                                                                             \
    ROW(w_null, "args.w is NULL", "it has 5", args->w = NULL)                                                                             \
    ROW(y_null, "args.y is NULL", "it has 5", args->y = NULL)                                                                             \
    ROW(x_align, "args.x is 0x", "16 bytes", args->x = OFF(args->x, 2))                                                                   \
    ROW(w_align, "args.w is 0x", "16 bytes", args->w = OFF(args->w, 4))                                                                   \
    ROW(shared_w_align, "args.shared_w is 0x", "16 bytes", args->shared_w = OFF(args->shared_w, 8))                                       \
    ROW(y_align, "args.y is 0x", "16 bytes", args->y = OFF(args->y, 8))                                                                   \
    ROW(y_is_x, "args.y is 0x", "overlap args.x", args->y = (void *)(uintptr_t)args->x)                                                   \
    ROW(y_last_of_x, "args.y is 0x", "overlap args.x", args->y = OFF(args->x, TOKENS * HIDDEN * 2 - 16))                                  \
    ROW(x_last_of_y, "args.y is 0x", "overlap args.x", args->x = OFF(args->y, TOKENS * HIDDEN * 2 - 16))                                  \
    ROW(y_is_w, "args.y is 0x", "overlap args.w", args->w = (float *)args->y)                                                             \
    ROW(y_is_shared_w, "args.y is 0x", "overlap args.shared_w", args->shared_w = (float *)args->y)

#define BACKWARD_ROWS(ROW)                                                                                                                \
    ROW(struct_size, "args.struct_size is 4", "must be", args->struct_size = 4)                                                           \
    ROW(saved_null, "args.saved is NULL", "must be given", args->saved = NULL)                                                            \
    ROW(dy_null, "args.dy is NULL", "it has 5", args->dy = NULL)                                                                          \
    ROW(w_null, "args.w is NULL", "it has 5", args->w = NULL)                                                                             \
    ROW(dx_null, "args.dx is NULL", "it has 5", args->dx = NULL)                                                                          \
    ROW(dw_null, "args.dw is NULL", "it has 5", args->dw = NULL)                                                                          \
    ROW(dy_align, "args.dy is 0x", "16 bytes", args->dy = OFF(args->dy, 2))                                                               \
    ROW(w_align, "args.w is 0x", "16 bytes", args->w = OFF(args->w, 4))                                                                   \
    ROW(dx_align, "args.dx is 0x", "16 bytes", args->dx = OFF(args->dx, 8))                                                               \
    ROW(dw_align, "args.dw is 0x", "16 bytes", args->dw = OFF(args->dw, 4))                                                               \
    ROW(shared_w_align, "args.shared_w is 0x", "16 bytes", args->shared_w = OFF(args->shared_w, 4))                                       \
    ROW(dshared_w_align, "args.dshared_w is 0x", "16 bytes", args->dshared_w = OFF(args->dshared_w, 4))                                   \
    ROW(dx_is_dy, "args.dx is 0x", "overlap args.dy", args->dx = (void *)(uintptr_t)args->dy)                                             \
    ROW(dw_is_w, "args.dw is 0x", "overlap args.w", args->dw = (float *)(uintptr_t)args->w)                                               \
    ROW(dw_is_dx, "args.dx is 0x", "overlap args.dw", args->dw = (float *)args->dx)                                                       \
    ROW(dshared_is_shared, "args.dshared_w is 0x", "overlap args.shared_w", args->dshared_w = (float *)(uintptr_t)args->shared_w)         \
    ROW(grads_dtype, "args.grads.dtype is 0", "MOK_DTYPE_FP32 (2) or MOK_DTYPE_BF16", args->grads.dtype = MOK_DTYPE_NONE)                 \
    ROW(grads_null, "args.grads.up.base is NULL", "4 local experts", args->grads.up.base = NULL)                                          \
    ROW(grads_align, "args.grads.down.base is 0x", "16 bytes", args->grads.down.base = OFF(args->grads.down.base, 4))                     \
    ROW(grads_row_stride, "args.grads.gate.row_stride is 4", "multiple of 8", args->grads.gate.row_stride = 4)                            \
    ROW(grads_overlap, "args.grads.gate.expert_stride is 32", "experts overlap", args->grads.gate.expert_stride = 32)                     \
    ROW(grads_shared_memory, "args.grads.gate.base", "may not share memory", args->grads.up.base = args->grads.gate.base)                 \
    ROW(shared_gate_null, "args.shared_grads.gate.base is NULL", "for shape.shared_intermediate", args->shared_grads.gate.base = NULL)    \
    ROW(shared_up_null, "args.shared_grads.up.base is NULL", "for shape.shared_intermediate", args->shared_grads.up.base = NULL)          \
    ROW(shared_down_null, "args.shared_grads.down.base is NULL", "for shape.shared_intermediate", args->shared_grads.down.base = NULL)    \
    ROW(shared_grads_dtype, "args.shared_grads.dtype is 3", "must be", args->shared_grads.dtype = 3)                                      \
    ROW(grad_mode, "args.grad_mode is 2", "MOK_GRAD_OVERWRITE (0) or MOK_GRAD_ADD (1)", args->grad_mode = 2)                              \
    ROW(reserved, "args.reserved is 1", "must be 0", args->reserved = 1)

#define FORWARD_SPOIL(id, first, second, action) static void spoil_forward_##id(mok_forward_args *args) { action; }
#define BACKWARD_SPOIL(id, first, second, action) static void spoil_backward_##id(mok_backward_args *args) { action; }
FORWARD_ROWS(FORWARD_SPOIL)
BACKWARD_ROWS(BACKWARD_SPOIL)

#define FORWARD_ROW(id, first, second, action) {#id, first, second, spoil_forward_##id},
#define BACKWARD_ROW(id, first, second, action) {#id, first, second, spoil_backward_##id},
static const struct {
    const char *what, *first, *second;
    void (*spoil)(mok_forward_args *args);
} forward_rows[] = {FORWARD_ROWS(FORWARD_ROW)};
static const struct {
    const char *what, *first, *second;
    void (*spoil)(mok_backward_args *args);
} backward_rows[] = {BACKWARD_ROWS(BACKWARD_ROW)};

static void test_forward(void **state)
{
    const struct bed *bed = *state;
    for (size_t idx = 0; idx < sizeof forward_rows / sizeof forward_rows[0]; idx++) {
        mok_forward_args args = good_forward(bed);
        int calls = fake_calls();
        forward_rows[idx].spoil(&args);
        refused(mok_forward(bed->layer, bed->schedule, &args, NULL), MOK_ERR_ARGUMENT, forward_rows[idx].what, forward_rows[idx].first,
                forward_rows[idx].second);
        assert_int_equal(fake_calls(), calls);
        args = good_forward(bed);
        assert_int_equal(mok_forward(bed->layer, bed->schedule, &args, NULL), MOK_OK);
        assert_int_equal(fake_calls(), calls + 1);
    }
    mok_forward_args args = good_forward(bed);
    refused(mok_forward(NULL, bed->schedule, &args, NULL), MOK_ERR_ARGUMENT, "layer", "layer is NULL", "must be given");
    refused(mok_forward(bed->layer, NULL, &args, NULL), MOK_ERR_ARGUMENT, "schedule", "schedule is NULL", "must be given");
    refused(mok_forward(bed->layer, bed->schedule, NULL, NULL), MOK_ERR_ARGUMENT, "args", "args is NULL", "must be given");
    refused(mok_forward(bed->layer, bed->schedule, &args, bed->memory), MOK_ERR_ARGUMENT, "stream", "stream is 0x", "must be NULL");
}

/* The memory of the saved object: x may be exactly it, nothing may lie across it. */
static void test_saved_memory(void **state)
{
    const struct bed *bed = *state;
    void *kept = NULL;
    assert_int_equal(mok_saved_input(bed->saved, &kept), MOK_OK);
    mok_forward_args args = good_forward(bed);
    args.saved = bed->saved;
    args.y = kept;
    refused(mok_forward(bed->layer, bed->schedule, &args, NULL), MOK_ERR_ARGUMENT, "y", "args.y is 0x", "the input of args.saved");
    args = good_forward(bed);
    args.saved = bed->saved;
    args.x = OFF(kept, 16);
    refused(mok_forward(bed->layer, bed->schedule, &args, NULL), MOK_ERR_ARGUMENT, "x", "the input of args.saved is 0x", "overlap args.x");
    args.x = kept;
    assert_int_equal(mok_forward(bed->layer, bed->schedule, &args, NULL), MOK_OK);
    /* While it waits, no other pass writes there either, and its own backward reads it. */
    args = good_forward(bed);
    args.y = OFF(kept, 16);
    refused(mok_forward(bed->layer, bed->schedule, &args, NULL), MOK_ERR_ARGUMENT, "y", "args.y is 0x", "the input of a saved object that waits");
    mok_backward_args backward = good_backward(bed);
    backward.dx = kept;
    refused(mok_backward(bed->layer, bed->schedule, &backward, NULL), MOK_ERR_ARGUMENT, "dx", "args.dx is 0x", "the input of args.saved");
    backward = good_backward(bed);
    backward.grads.gate.base = kept;
    refused(mok_backward(bed->layer, bed->schedule, &backward, NULL), MOK_ERR_ARGUMENT, "gate", "args.grads.gate", "the input of args.saved");
    assert_int_equal(mok_saved_release(bed->saved), MOK_OK);
}

static void test_backward(void **state)
{
    const struct bed *bed = *state;
    for (size_t idx = 0; idx < sizeof backward_rows / sizeof backward_rows[0]; idx++) {
        mok_forward_args forward = good_forward(bed);
        forward.saved = bed->saved;
        assert_int_equal(mok_forward(bed->layer, bed->schedule, &forward, NULL), MOK_OK);
        mok_backward_args args = good_backward(bed);
        int calls = fake_calls();
        backward_rows[idx].spoil(&args);
        refused(mok_backward(bed->layer, bed->schedule, &args, NULL), MOK_ERR_ARGUMENT, backward_rows[idx].what, backward_rows[idx].first,
                backward_rows[idx].second);
        assert_int_equal(fake_calls(), calls);
        args = good_backward(bed);
        assert_int_equal(mok_backward(bed->layer, bed->schedule, &args, NULL), MOK_OK);
        assert_int_equal(fake_calls(), calls + 1);
    }
    mok_backward_args args = good_backward(bed);
    refused(mok_backward(NULL, bed->schedule, &args, NULL), MOK_ERR_ARGUMENT, "layer", "layer is NULL", "must be given");
    refused(mok_backward(bed->layer, NULL, &args, NULL), MOK_ERR_ARGUMENT, "schedule", "schedule is NULL", "must be given");
    refused(mok_backward(bed->layer, bed->schedule, NULL, NULL), MOK_ERR_ARGUMENT, "args", "args is NULL", "must be given");
}

/* A group without a shared expert takes no weights for one; a rank without tokens gives no per-token pointers at all. */
static void test_left_out(void **state)
{
    const struct bed *bed = *state;
    mok_group *group = make_group(0);
    mok_layer_config config = good_layer(bed);
    mok_layer *layer = NULL;
    mok_schedule *schedule = NULL;
    mok_saved *saved = NULL;
    refused(mok_layer_create(group, &config, &layer), MOK_ERR_ARGUMENT, "shared", "config.shared.gate.base is 0x", "no shared expert");
    memset(&config.shared, 0, sizeof config.shared);
    config.shared.down = good_layer(bed).shared.down;
    refused(mok_layer_create(group, &config, &layer), MOK_ERR_ARGUMENT, "shared", "config.shared.down.base is 0x", "no shared expert");
    config.shared.down.base = NULL;
    assert_int_equal(mok_layer_create(group, &config, &layer), MOK_OK);
    assert_int_equal(mok_schedule_create(group, &schedule), MOK_OK);
    assert_int_equal(mok_group_saved(group, 1, &saved), MOK_OK);
    assert_int_equal(mok_schedule_build(schedule, NULL, 0, NULL), MOK_OK);

    mok_forward_args forward;
    mok_forward_args_init(&forward);
    forward.saved = saved;
    assert_int_equal(mok_forward(layer, schedule, &forward, NULL), MOK_OK);
    mok_backward_args backward;
    mok_backward_args_init(&backward);
    backward.saved = saved;
    backward.grads = network(bed, 14, INTER, MOK_DTYPE_FP32);
    backward.shared_grads = network(bed, 17, SHARED, MOK_DTYPE_FP32);
    refused(mok_backward(layer, schedule, &backward, NULL), MOK_ERR_ARGUMENT, "grads", "args.shared_grads.gate.base is 0x", "no shared expert");
    backward.shared_grads.gate.base = NULL;
    refused(mok_backward(layer, schedule, &backward, NULL), MOK_ERR_ARGUMENT, "grads", "args.shared_grads.up.base is 0x", "no shared expert");
    memset(&backward.shared_grads, 0, sizeof backward.shared_grads);
    assert_int_equal(mok_backward(layer, schedule, &backward, NULL), MOK_OK);

    forward = good_forward(bed);
    refused(mok_forward(layer, schedule, &forward, NULL), MOK_ERR_ARGUMENT, "shared_w", "args.shared_w is 0x", "no shared expert");
    mok_layer_destroy(layer);
    mok_schedule_destroy(schedule);
    assert_int_equal(mok_group_destroy(group), MOK_OK);
}

/* ---- the rest ------------------------------------------------------------------------------------------------------------ */

static void test_group_calls(void **state)
{
    const struct bed *bed = *state;
    mok_saved *saved = NULL;
    mok_event event;
    int64_t num = 0;
    void *x = NULL;
    mok_group_state group_state = {.struct_size = 3};
    int calls = fake_calls();
    refused(mok_group_status(NULL, NULL), MOK_ERR_ARGUMENT, "group", "group is NULL", "must be given");
    refused(mok_group_status(bed->group, &group_state), MOK_ERR_ARGUMENT, "size", "state_out.struct_size is 3", "must be");
    refused(mok_group_wait(NULL, NULL, 0), MOK_ERR_ARGUMENT, "group", "group is NULL", "must be given");
    refused(mok_group_wait(bed->group, NULL, -2), MOK_ERR_ARGUMENT, "timeout", "timeout_ms is -2", "or -1");
    refused(mok_group_wait(bed->group, bed->memory, 0), MOK_ERR_ARGUMENT, "stream", "stream is 0x", "must be NULL");
    refused(mok_group_abort(NULL), MOK_ERR_ARGUMENT, "group", "group is NULL", "must be given");
    refused(mok_group_saved(NULL, 0, &saved), MOK_ERR_ARGUMENT, "group", "group is NULL", "must be given");
    refused(mok_group_saved(bed->group, -1, &saved), MOK_ERR_ARGUMENT, "idx", "idx is -1", "num_saved = 2");
    refused(mok_group_saved(bed->group, 2, &saved), MOK_ERR_ARGUMENT, "idx", "idx is 2", "from 0 to 1");
    refused(mok_group_saved(bed->group, 0, NULL), MOK_ERR_ARGUMENT, "out", "saved_out is NULL", "must be given");
    refused(mok_saved_input(NULL, &x), MOK_ERR_ARGUMENT, "saved", "saved is NULL", "must be given");
    refused(mok_saved_input(bed->saved, NULL), MOK_ERR_ARGUMENT, "out", "x_out is NULL", "must be given");
    refused(mok_saved_release(NULL), MOK_ERR_ARGUMENT, "saved", "saved is NULL", "must be given");
    refused(mok_group_trace(NULL, 1), MOK_ERR_ARGUMENT, "group", "group is NULL", "must be given");
    refused(mok_group_trace(bed->group, -1), MOK_ERR_ARGUMENT, "events", "max_events is -1", "0 (stop)");
    refused(mok_group_trace_take(NULL, &event, 1, &num, NULL), MOK_ERR_ARGUMENT, "group", "group is NULL", "must be given");
    refused(mok_group_trace_take(bed->group, &event, 1, NULL, NULL), MOK_ERR_ARGUMENT, "num", "num_out is NULL", "must be given");
    refused(mok_group_trace_take(bed->group, &event, -1, &num, NULL), MOK_ERR_ARGUMENT, "capacity", "capacity is -1", "0 or more");
    refused(mok_group_trace_take(bed->group, NULL, 1, &num, NULL), MOK_ERR_ARGUMENT, "events", "events_out is NULL", "capacity is 0");
    assert_null(saved);
    assert_null(x);
    assert_int_equal(fake_calls(), calls);
}

int main(void)
{
#define IN_BED(test) cmocka_unit_test_setup_teardown(test, make_bed, clear_bed)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config), cmocka_unit_test(test_config_with_backend), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_one), IN_BED(test_choice), IN_BED(test_layer),            IN_BED(test_legal_layouts),                 IN_BED(test_schedule),
        IN_BED(test_forward),          IN_BED(test_saved_memory),                  IN_BED(test_backward),
        IN_BED(test_left_out),         IN_BED(test_group_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
