/*
 * What belongs together and in which order: the life of a saved object, objects of two groups, a schedule built anew, a group that has
 * failed, and what must go before a group may. Checked on the host alone, with a backend that only counts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "pass/site.h"
#include "test_api_fake.h"
#include "trace/event.h"

enum { HIDDEN = 16, INTER = 8, TOKENS = 4 };

struct family {
    mok_group *group;
    mok_layer *layer, *other_layer;
    mok_schedule *schedule, *other_schedule;
    mok_saved *saved[2];
};

static _Alignas(16) char memory[8][4096];
static _Alignas(16) float grads[3][HIDDEN * INTER];

static mok_matrices matrices(void *base, int cols)
{
    mok_matrices result = {base, 0, cols};
    return result;
}

static void make_family(struct family *family)
{
    mok_group_config config;
    mok_layer_config layer;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.num_saved = 2;
    config.shape = (mok_shape){.num_experts = 1, .top_k = 1, .hidden = HIDDEN, .intermediate = INTER, .max_tokens = TOKENS};
    assert_int_equal(mok_api_create(&config, &fake_ops, &mok_peer_threads, &family->group), MOK_OK);
    mok_layer_config_init(&layer);
    layer.routed.gate = matrices(memory[0], HIDDEN);
    layer.routed.up = matrices(memory[1], HIDDEN);
    layer.routed.down = matrices(memory[2], INTER);
    assert_int_equal(mok_layer_create(family->group, &layer, &family->layer), MOK_OK);
    assert_int_equal(mok_layer_create(family->group, &layer, &family->other_layer), MOK_OK);
    assert_int_equal(mok_schedule_create(family->group, &family->schedule), MOK_OK);
    assert_int_equal(mok_schedule_create(family->group, &family->other_schedule), MOK_OK);
    for (int idx = 0; idx < 2; idx++) {
        assert_int_equal(mok_group_saved(family->group, idx, &family->saved[idx]), MOK_OK);
    }
}

static void clear_family(struct family *family)
{
    mok_layer_destroy(family->layer);
    mok_layer_destroy(family->other_layer);
    mok_schedule_destroy(family->schedule);
    mok_schedule_destroy(family->other_schedule);
    assert_int_equal(mok_group_destroy(family->group), MOK_OK);
}

static mok_status build(mok_schedule *schedule) { return mok_schedule_build(schedule, (int32_t *)memory[3], TOKENS, NULL); }

static mok_status forward(mok_layer *layer, mok_schedule *schedule, mok_saved *saved)
{
    mok_forward_args args;
    mok_forward_args_init(&args);
    args.x = memory[4];
    args.w = (float *)memory[5];
    args.y = memory[6];
    args.saved = saved;
    return mok_forward(layer, schedule, &args, NULL);
}

static mok_status backward(mok_layer *layer, mok_schedule *schedule, mok_saved *saved)
{
    mok_backward_args args;
    mok_backward_args_init(&args);
    args.saved = saved;
    args.dy = memory[4];
    args.w = (float *)memory[5];
    args.dx = memory[6];
    args.dw = (float *)memory[7];
    args.grads.gate = matrices(grads[0], HIDDEN);
    args.grads.up = matrices(grads[1], HIDDEN);
    args.grads.down = matrices(grads[2], INTER);
    return mok_backward(layer, schedule, &args, NULL);
}

static void mismatch(mok_status status, const char *words)
{
    if (status != MOK_ERR_MISMATCH || strstr(mok_last_error(), words) == NULL) {
        fail_msg("%s, '%s' should be MOK_ERR_MISMATCH and say '%s'", mok_status_name(status), mok_last_error(), words);
    }
}

static int setup(void **state)
{
    struct family *family = calloc(1, sizeof *family);
    make_family(family);
    *state = family;
    return 0;
}

static int teardown(void **state)
{
    clear_family(*state);
    free(*state);
    return 0;
}

static void test_saved_life(void **state)
{
    struct family *f = *state;
    mismatch(forward(f->layer, f->schedule, NULL), "never built");
    assert_int_equal(build(f->schedule), MOK_OK);
    mismatch(backward(f->layer, f->schedule, f->saved[0]), "object 0, which was never filled");
    assert_int_equal(forward(f->layer, f->schedule, NULL), MOK_OK); /* inference fills nothing */
    mismatch(backward(f->layer, f->schedule, f->saved[0]), "never filled");
    assert_int_equal(forward(f->layer, f->schedule, f->saved[0]), MOK_OK);
    mismatch(backward(f->layer, f->schedule, f->saved[1]), "object 1, which was never filled");
    mismatch(forward(f->layer, f->schedule, f->saved[0]), "waits for the backward pass");
    assert_int_equal(backward(f->layer, f->schedule, f->saved[0]), MOK_OK);
    mismatch(backward(f->layer, f->schedule, f->saved[0]), "already used");
    assert_int_equal(forward(f->layer, f->schedule, f->saved[0]), MOK_OK);
    assert_int_equal(backward(f->layer, f->schedule, f->saved[0]), MOK_OK);
}

static void test_no_saved(void **state)
{
    (void)state;
    mok_group_config config;
    mok_group *group = NULL;
    mok_saved *saved = NULL;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.num_saved = 0;
    config.shape = (mok_shape){.num_experts = 1, .top_k = 1, .hidden = HIDDEN, .intermediate = INTER, .max_tokens = TOKENS};
    assert_int_equal(mok_api_create(&config, &fake_ops, &mok_peer_threads, &group), MOK_OK);
    assert_int_equal(mok_group_saved(group, 0, &saved), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "idx is 0: the group has no saved objects"));
    assert_int_equal(mok_group_destroy(group), MOK_OK);
}

/* A caller that drops a step. */
static void test_release(void **state)
{
    struct family *f = *state;
    assert_int_equal(build(f->schedule), MOK_OK);
    assert_int_equal(mok_saved_release(f->saved[0]), MOK_OK); /* nothing to give up */
    assert_int_equal(forward(f->layer, f->schedule, f->saved[0]), MOK_OK);
    assert_int_equal(mok_saved_release(f->saved[0]), MOK_OK);
    mismatch(backward(f->layer, f->schedule, f->saved[0]), "released");
    assert_int_equal(forward(f->layer, f->schedule, f->saved[0]), MOK_OK);
    assert_int_equal(backward(f->layer, f->schedule, f->saved[0]), MOK_OK);
}

static void test_wrong_partner(void **state)
{
    struct family *f = *state;
    assert_int_equal(build(f->schedule), MOK_OK);
    assert_int_equal(build(f->other_schedule), MOK_OK);
    assert_int_equal(forward(f->layer, f->schedule, f->saved[0]), MOK_OK);
    mismatch(backward(f->other_layer, f->schedule, f->saved[0]), "layer is not the one");
    mismatch(backward(f->layer, f->other_schedule, f->saved[0]), "schedule is not the one");
    assert_int_equal(build(f->schedule), MOK_OK); /* the same ids, yet another build */
    mismatch(backward(f->layer, f->schedule, f->saved[0]), "built anew");
    assert_int_equal(mok_saved_release(f->saved[0]), MOK_OK);
}

/* Two forward passes in flight, finished in the other order. */
static void test_two_in_flight(void **state)
{
    struct family *f = *state;
    assert_int_equal(build(f->schedule), MOK_OK);
    assert_int_equal(forward(f->layer, f->schedule, f->saved[0]), MOK_OK);
    assert_int_equal(build(f->other_schedule), MOK_OK);
    assert_int_equal(forward(f->other_layer, f->other_schedule, f->saved[1]), MOK_OK);
    assert_int_equal(backward(f->other_layer, f->other_schedule, f->saved[1]), MOK_OK);
    assert_int_equal(backward(f->layer, f->schedule, f->saved[0]), MOK_OK);
}

static void test_two_groups(void **state)
{
    struct family *f = *state, other;
    make_family(&other);
    assert_int_equal(build(f->schedule), MOK_OK);
    assert_int_equal(build(other.schedule), MOK_OK);
    int calls = fake_calls();
    mismatch(forward(f->layer, other.schedule, NULL), "schedule belongs to another group");
    mismatch(forward(f->layer, f->schedule, other.saved[0]), "saved belongs to another group");
    assert_int_equal(forward(f->layer, f->schedule, f->saved[0]), MOK_OK);
    mismatch(backward(other.layer, f->schedule, f->saved[0]), "another group");
    mismatch(backward(f->layer, f->schedule, other.saved[0]), "another group");
    assert_int_equal(backward(f->layer, f->schedule, f->saved[0]), MOK_OK);
    assert_int_equal(fake_calls(), calls + 2);
    clear_family(&other);
}

/* A layer that takes the address of a destroyed one is another layer. */
static void test_address_again(void **state)
{
    struct family *f = *state;
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.routed.gate = matrices(memory[0], HIDDEN);
    config.routed.up = matrices(memory[1], HIDDEN);
    config.routed.down = matrices(memory[2], INTER);
    assert_int_equal(build(f->schedule), MOK_OK);
    assert_int_equal(forward(f->layer, f->schedule, f->saved[0]), MOK_OK);
    mok_layer_destroy(f->layer);
    assert_int_equal(mok_layer_create(f->group, &config, &f->layer), MOK_OK);
    mismatch(backward(f->layer, f->schedule, f->saved[0]), "layer is not the one");
    assert_int_equal(mok_saved_release(f->saved[0]), MOK_OK);
}

/* ---- a group that has failed --------------------------------------------------------------------------------------------- */

static void dead(mok_status status)
{
    const char *text = mok_last_error();
    if (status != MOK_ERR_TIMEOUT || strstr(text, "ENTRY barrier of source rank 7") == NULL ||
        strstr(text, "expected 12, saw 11") == NULL || strstr(text, "longer than its limit, peer_timeout_ms = 600000;") == NULL) {
        fail_msg("%s: '%s'", mok_status_name(status), text);
    }
}

static void test_dead_group(void **state)
{
    struct family *f = *state;
    mok_layer *layer = NULL;
    mok_schedule *schedule = NULL;
    int64_t padded;
    mok_group_state group_state = {.struct_size = sizeof group_state};
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.routed.gate = matrices(memory[0], HIDDEN);
    config.routed.up = matrices(memory[1], HIDDEN);
    config.routed.down = matrices(memory[2], INTER);
    assert_int_equal(build(f->schedule), MOK_OK);
    assert_int_equal(mok_group_status(f->group, &group_state), MOK_OK);
    fake_wish.group_status = MOK_ERR_TIMEOUT;
    fake_wish.fault = (mok_fault){MOK_ERR_TIMEOUT, MOK_SITE_ENTRY_BARRIER, 0, 3, 7, 12, 11};
    int calls = fake_calls();
    dead(build(f->schedule));
    dead(forward(f->layer, f->schedule, NULL));
    dead(backward(f->layer, f->schedule, f->saved[0]));
    dead(mok_layer_create(f->group, &config, &layer));
    dead(mok_schedule_create(f->group, &schedule));
    dead(mok_schedule_counts(f->schedule, NULL, NULL, &padded));
    dead(mok_group_trace(f->group, 10));
    assert_int_equal(fake_calls(), calls);
    dead(mok_group_status(f->group, NULL));
    dead(mok_group_status(f->group, &group_state));
    dead(mok_group_wait(f->group, NULL, -1));
    assert_int_equal(group_state.fault.site, MOK_SITE_ENTRY_BARRIER);
    assert_int_equal(group_state.fault.expected, 12);
    assert_null(layer);
    assert_null(schedule);
    fake_wish.group_status = MOK_OK;
    memset(&fake_wish.fault, 0, sizeof fake_wish.fault);
}

/* A standstill between own workers has the other limit, and says so. */
static void test_dead_group_names_local_limit(void **state)
{
    struct family *f = *state;
    mok_group_config config; /* the limit is the default, which the environment may have set */
    char expected[160];
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    snprintf(expected, sizeof expected, "longer than its limit, local_timeout_ms = %lld (and peer_timeout_ms = %lld more before all ranks have entered a pass);",
             (long long)config.local_timeout_ms, (long long)config.peer_timeout_ms);
    fake_wish.group_status = MOK_ERR_TIMEOUT;
    fake_wish.fault = (mok_fault){MOK_ERR_TIMEOUT, MOK_SITE_COUNTER, 0, 3, 7, 12, 11};
    assert_int_equal(mok_group_status(f->group, NULL), MOK_ERR_TIMEOUT);
    assert_non_null(strstr(mok_last_error(), expected));
    fake_wish.group_status = MOK_OK;
    memset(&fake_wish.fault, 0, sizeof fake_wish.fault);
}

/* Whoever ended the group is named: fault, what the sentence says. */
static void test_dead_group_names_who_aborted(void **state)
{
    (void)state;
    static const struct {
        mok_fault fault;
        const char *words;
    } cases[] = {
        {{MOK_ERR_ABORTED, MOK_SITE_NONE, 0, 0, 0, 0, 0}, "destroy it: mok_group_abort was called on this rank"},
        {{MOK_ERR_ABORTED, MOK_SITE_NONE, 2, 0, 0, 0, 0}, "destroy it: rank 2 gave up first, or aborted the group: its message says why"},
        {{MOK_ERR_ABORTED, MOK_SITE_SCHED_BARRIER, 2, 1, 2, 4, 3},
         "destroy it: rank 2 has left the group; worker 1 waited for SCHED barrier of source rank 2, expected 4, saw 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct family family;
        make_family(&family);
        fake_wish.group_status = MOK_ERR_ABORTED;
        fake_wish.fault = cases[i].fault;
        assert_int_equal(mok_group_status(family.group, NULL), MOK_ERR_ABORTED);
        if (strstr(mok_last_error(), cases[i].words) == NULL) {
            fail_msg("'%s' does not say '%s'", mok_last_error(), cases[i].words);
        }
        fake_wish.group_status = MOK_OK;
        memset(&fake_wish.fault, 0, sizeof fake_wish.fault);
        clear_family(&family);
    }
}

/* The group dies under a call that had seen it alive: the call says what every later one says, and not what the backend or an earlier call said. */
static mok_status dying_build(struct family *f) { return build(f->schedule); }
static mok_status dying_forward(struct family *f) { return forward(f->layer, f->schedule, NULL); }
static mok_status dying_backward(struct family *f) { return backward(f->layer, f->schedule, f->saved[0]); }
static mok_status dying_wait(struct family *f) { return mok_group_wait(f->group, NULL, -1); }
static mok_status dying_counts(struct family *f)
{
    int64_t padded;
    return mok_schedule_counts(f->schedule, NULL, NULL, &padded);
}

static void test_group_dies_under_a_call(void **state)
{
    static mok_status (*const calls[])(struct family *) = {dying_build, dying_forward, dying_backward, dying_wait, dying_counts};
    static const mok_status deaths[] = {MOK_ERR_TIMEOUT, MOK_ERR_ABORTED, MOK_ERR_DISAGREE};
    (void)state;
    for (size_t call = 0; call < sizeof calls / sizeof calls[0]; call++) {
        for (size_t death = 0; death < sizeof deaths / sizeof deaths[0]; death++) {
            struct family family;
            char first[512];
            make_family(&family);
            assert_int_equal(build(family.schedule), MOK_OK);
            assert_int_equal(forward(family.layer, family.schedule, family.saved[0]), MOK_OK);
            assert_int_equal(mok_group_wait(NULL, NULL, 0), MOK_ERR_ARGUMENT); /* a sentence of something else */
            fake_wish.fault = (mok_fault){deaths[death], MOK_SITE_NONE, 1, 0, 0, 0, 0};
            fake_wish.dies_with = deaths[death];
            assert_int_equal(calls[call](&family), deaths[death]);
            snprintf(first, sizeof first, "%s", mok_last_error());
            assert_non_null(strstr(first, "the group is dead"));
            assert_int_equal(mok_group_status(family.group, NULL), deaths[death]);
            assert_string_equal(first, mok_last_error());
            fake_wish.group_status = MOK_OK;
            memset(&fake_wish.fault, 0, sizeof fake_wish.fault);
            clear_family(&family);
        }
    }
}

/* Layers and schedules go before their group; a group that is refused to go is still there. */
static void test_destroy_order(void **state)
{
    struct family *f = *state;
    assert_int_equal(mok_group_destroy(f->group), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "2 layers and 2 schedules"));
    assert_int_equal(build(f->schedule), MOK_OK);
    assert_int_equal(forward(f->layer, f->schedule, NULL), MOK_OK);
}

static void test_nothing(void **state)
{
    (void)state;
    assert_int_equal(mok_group_destroy(NULL), MOK_OK);
    mok_layer_destroy(NULL);
    mok_schedule_destroy(NULL);
    mok_hub_destroy(NULL);
    mok_layer_config_init(NULL);
    mok_forward_args_init(NULL);
    mok_backward_args_init(NULL);
}

/* ---- names --------------------------------------------------------------------------------------------------------------- */

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(mok_site_name(MOK_SITE_ENTRY_BARRIER), "ENTRY barrier");
    assert_string_equal(mok_site_name(mok_site_of_counter(MOK_COUNT_PULLED)), "rows pulled");
    assert_string_equal(mok_event_name(MOK_EVENT_PULL), "pull");
    assert_string_equal(mok_event_name(MOK_EVENT_TASK + MOK_TASK_GATE_UP), "gate+up");
    assert_string_equal(mok_event_name(MOK_EVENT_WAIT + mok_site_of_counter(MOK_COUNT_PULLED)), "wait rows pulled");
    assert_int_equal(mok_event_first_wait(), MOK_EVENT_WAIT);
    /* Every kind that there is has a name of its own; what there is not, has none, and never NULL. */
    for (int32_t site = 0; site < MOK_NUM_SITES; site++) {
        assert_null(strstr(mok_site_name(site), "unknown"));
        assert_int_equal(strncmp(mok_event_name(MOK_EVENT_WAIT + site), "wait ", 5), 0);
        assert_string_equal(mok_event_name(MOK_EVENT_WAIT + site) + 5, mok_site_name(site));
        for (int32_t other = 0; other < site; other++) {
            assert_string_not_equal(mok_site_name(site), mok_site_name(other));
        }
    }
    for (int32_t kind = 0; kind <= MOK_EVENT_TASK + MOK_TASK_WGRAD_ZERO; kind++) {
        assert_null(strstr(mok_event_name(kind), "unknown"));
    }
    assert_string_equal(mok_site_name(-1), "unknown site");
    assert_string_equal(mok_site_name(1000), "unknown site");
    assert_string_equal(mok_event_name(-1), "unknown work");
    assert_string_equal(mok_event_name(63), "unknown work");
    assert_string_equal(mok_event_name(1000), "unknown wait");
    assert_string_equal(mok_status_name(MOK_ERR_DISAGREE), "MOK_ERR_DISAGREE");
    assert_string_equal(mok_status_name((mok_status)59), "MOK_ERR_UNKNOWN");
}

static void test_build(void **state)
{
    (void)state;
    assert_int_equal(mok_version(), MOK_VERSION);
    assert_non_null(strstr(mok_build_info(), "libmok 0."));
    assert_non_null(strstr(mok_build_info(), "OpenBLAS"));
    assert_non_null(strstr(mok_build_info(), "backend cuda: "));
    assert_ptr_equal(mok_build_info(), mok_build_info());
    assert_int_equal(mok_backend_available(MOK_BACKEND_CPU), 1);
    assert_int_equal(mok_backend_available((mok_backend)9), 0);
    assert_non_null(strstr(mok_last_error(), "backend is 9: must be a mok_backend (0..2)"));
    assert_int_equal(mok_peer_available(MOK_PEER_THREADS), 1);
    assert_int_equal(mok_peer_available((mok_peer_kind)9), 0);
}

static void test_local_experts(void **state)
{
    (void)state;
    int32_t first = 77, num = 77;
    assert_int_equal(mok_local_experts(0, 1, 0, &first, &num), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "num_experts is 0"));
    assert_int_equal(mok_local_experts(4, 0, 0, &first, &num), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "num_ranks is 0"));
    assert_int_equal(mok_local_experts((1 << 20) + 1, 1, 0, &first, &num), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "num_experts is 1048577"));
    assert_int_equal(mok_local_experts(4, 1025, 0, &first, &num), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "num_ranks is 1025"));
    assert_int_equal(mok_local_experts(4, 2, 2, &first, &num), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "rank is 2"));
    assert_int_equal(mok_local_experts(4, 2, -1, &first, &num), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "rank is -1"));
    assert_int_equal(mok_local_experts(4, 2, 0, NULL, &num), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "first_out is NULL"));
    assert_int_equal(mok_local_experts(4, 2, 0, &first, NULL), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "num_out is NULL"));
    assert_int_equal(first, 77);
    assert_int_equal(num, 77);
    assert_int_equal(mok_local_experts(256, 3, 1, &first, &num), MOK_OK);
    assert_int_equal(first, 85);
    assert_int_equal(num, 85);
    assert_int_equal(mok_local_experts(2, 4, 0, &first, &num), MOK_OK);
    assert_int_equal(num, 0);
}

int main(void)
{
#define IN_FAMILY(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        IN_FAMILY(test_saved_life), IN_FAMILY(test_release),        IN_FAMILY(test_wrong_partner), IN_FAMILY(test_two_in_flight),
        IN_FAMILY(test_two_groups), IN_FAMILY(test_address_again),  IN_FAMILY(test_dead_group),    IN_FAMILY(test_destroy_order),
        IN_FAMILY(test_dead_group_names_local_limit), cmocka_unit_test(test_dead_group_names_who_aborted), cmocka_unit_test(test_group_dies_under_a_call),
        cmocka_unit_test(test_no_saved), cmocka_unit_test(test_nothing), cmocka_unit_test(test_names), cmocka_unit_test(test_build),
        cmocka_unit_test(test_local_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
