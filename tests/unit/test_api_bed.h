/*
 * A group of the fake backend with one layer, one built schedule, one saved object, and arguments of every call that are good: a test spoils
 * one thing and looks what the call says.
 */
#ifndef MOK_TEST_API_BED_H
#define MOK_TEST_API_BED_H

#include "test_api_fake.h"

/* T, H, I, Is, K and El differ, so that a mix-up shows. */
enum { TOKENS = 5, MAX_TOKENS = 6, HIDDEN = 32, INTER = 16, SHARED = 24, TOP_K = 3, EXPERTS = 4 };

struct bed {
    mok_group *group;
    mok_layer *layer;
    mok_schedule *schedule;
    mok_saved *saved;
    char *memory; /* 16-byte aligned, room for any tensor of the test */
};

static char *region_of(const struct bed *bed, int idx) { return bed->memory + (size_t)idx * 65536; }

static mok_matrices matrices(const struct bed *bed, int idx, int rows, int cols)
{
    mok_matrices result = {region_of(bed, idx), (int64_t)rows * cols, cols};
    return result;
}

static mok_ffn network(const struct bed *bed, int idx, int inter, int32_t dtype)
{
    mok_ffn ffn = {dtype, 0, matrices(bed, idx, inter, HIDDEN), matrices(bed, idx + 1, inter, HIDDEN),
                   matrices(bed, idx + 2, HIDDEN, inter)};
    return ffn;
}

static mok_group_config good_config(void)
{
    mok_group_config config;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CPU;
    config.num_saved = 2;
    config.shape.num_experts = EXPERTS;
    config.shape.top_k = TOP_K;
    config.shape.hidden = HIDDEN;
    config.shape.intermediate = INTER;
    config.shape.shared_intermediate = SHARED;
    config.shape.max_tokens = MAX_TOKENS;
    return config;
}

static mok_layer_config good_layer(const struct bed *bed)
{
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.routed = network(bed, 0, INTER, MOK_DTYPE_BF16);
    config.shared = network(bed, 3, SHARED, MOK_DTYPE_BF16);
    return config;
}

static mok_forward_args good_forward(const struct bed *bed)
{
    mok_forward_args args;
    mok_forward_args_init(&args);
    args.x = region_of(bed, 6);
    args.w = (float *)region_of(bed, 7);
    args.shared_w = (float *)region_of(bed, 8);
    args.y = region_of(bed, 9);
    return args;
}

static mok_backward_args good_backward(const struct bed *bed)
{
    mok_backward_args args;
    mok_backward_args_init(&args);
    args.saved = bed->saved;
    args.dy = region_of(bed, 10);
    args.w = (float *)region_of(bed, 7);
    args.shared_w = (float *)region_of(bed, 8);
    args.dx = region_of(bed, 11);
    args.dw = (float *)region_of(bed, 12);
    args.dshared_w = (float *)region_of(bed, 13);
    args.grads = network(bed, 14, INTER, MOK_DTYPE_FP32);
    args.shared_grads = network(bed, 17, SHARED, MOK_DTYPE_BF16);
    return args;
}

static mok_group *make_group(int32_t shared_inter)
{
    mok_group_config config = good_config();
    config.shape.shared_intermediate = shared_inter;
    mok_group *group = NULL;
    assert_int_equal(mok_api_create(&config, &fake_ops, &mok_peer_threads, &group), MOK_OK);
    return group;
}

static int make_bed(void **state)
{
    struct bed *bed = calloc(1, sizeof *bed);
    bed->memory = aligned_alloc(4096, 20 * 65536);
    memset(bed->memory, 0x6b, 20 * 65536);
    bed->group = make_group(SHARED);
    mok_layer_config config = good_layer(bed);
    assert_int_equal(mok_layer_create(bed->group, &config, &bed->layer), MOK_OK);
    assert_int_equal(mok_schedule_create(bed->group, &bed->schedule), MOK_OK);
    assert_int_equal(mok_group_saved(bed->group, 0, &bed->saved), MOK_OK);
    assert_int_equal(mok_schedule_build(bed->schedule, (int32_t *)region_of(bed, 0), TOKENS, NULL), MOK_OK);
    *state = bed;
    return 0;
}

static int clear_bed(void **state)
{
    struct bed *bed = *state;
    mok_layer_destroy(bed->layer);
    mok_schedule_destroy(bed->schedule);
    assert_int_equal(mok_group_destroy(bed->group), MOK_OK);
    assert_int_equal(fake_seen.groups_alive, 0);
    assert_int_equal(fake_seen.schedules_alive, 0);
    assert_int_equal(fake_seen.regions_alive, 0);
    free(bed->memory);
    free(bed);
    return 0;
}

#endif
