/*
 * A child of fork with its parent's group: it has neither the workers nor, perhaps, a lock that is free. Every call with one of the objects
 * is refused, the two that return nothing return, nothing reaches the parent's group, and the child may have a group of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <mok/mok.h>

#include "api/object.h"

enum { HIDDEN = 16, INTER = 8, TOKENS = 4, LIMIT_S = 60 };

static _Alignas(64) char weights[3][HIDDEN * INTER * 2], x[TOKENS * HIDDEN * 2], y[TOKENS * HIDDEN * 2], dx[TOKENS * HIDDEN * 2];
static _Alignas(64) float w[TOKENS], dw[TOKENS], grads[3][HIDDEN * INTER];
static _Alignas(64) int32_t ids[TOKENS];

struct family {
    mok_group *group;
    mok_layer *layer;
    mok_schedule *schedule;
    mok_saved *saved;
    mok_layer_config layer_config;
    mok_forward_args forward;
    mok_backward_args backward;
};

static mok_status make_family(struct family *family)
{
    mok_group_config config;
    mok_status status = mok_group_config_init(&config);
    config.backend = MOK_BACKEND_CPU;
    config.comm_workers = config.compute_workers = 1;
    config.shape = (mok_shape){.num_experts = 1, .top_k = 1, .hidden = HIDDEN, .intermediate = INTER, .max_tokens = TOKENS};
    mok_layer_config_init(&family->layer_config);
    family->layer_config.routed.gate = (mok_matrices){weights[0], 0, HIDDEN};
    family->layer_config.routed.up = (mok_matrices){weights[1], 0, HIDDEN};
    family->layer_config.routed.down = (mok_matrices){weights[2], 0, INTER};
    mok_forward_args_init(&family->forward);
    mok_backward_args_init(&family->backward);
    status = status == MOK_OK ? mok_group_create(&config, &family->group) : status;
    status = status == MOK_OK ? mok_layer_create(family->group, &family->layer_config, &family->layer) : status;
    status = status == MOK_OK ? mok_schedule_create(family->group, &family->schedule) : status;
    status = status == MOK_OK ? mok_group_saved(family->group, 0, &family->saved) : status;
    family->forward.x = x;
    family->forward.w = w;
    family->forward.y = y;
    family->forward.saved = family->backward.saved = family->saved;
    family->backward.dy = x;
    family->backward.w = w;
    family->backward.dx = dx;
    family->backward.dw = dw;
    family->backward.grads.gate = (mok_matrices){grads[0], 0, HIDDEN};
    family->backward.grads.up = (mok_matrices){grads[1], 0, HIDDEN};
    family->backward.grads.down = (mok_matrices){grads[2], 0, INTER};
    return status;
}

/* Build, forward and backward, and their end. */
static mok_status work(struct family *family)
{
    mok_status status = mok_schedule_build(family->schedule, ids, TOKENS, NULL);
    status = status == MOK_OK ? mok_forward(family->layer, family->schedule, &family->forward, NULL) : status;
    status = status == MOK_OK ? mok_backward(family->layer, family->schedule, &family->backward, NULL) : status;
    return status == MOK_OK ? mok_group_wait(family->group, NULL, -1) : status;
}

static mok_status clear_family(struct family *family)
{
    mok_layer_destroy(family->layer);
    mok_schedule_destroy(family->schedule);
    return mok_group_destroy(family->group);
}

static int num_wrong;

static void refused(const char *call, mok_status status)
{
    char words[96];
    snprintf(words, sizeof words, "group belongs to process %ld, this is process %ld", (long)getppid(), (long)getpid());
    if (status != MOK_ERR_ARGUMENT || strstr(mok_last_error(), words) == NULL) {
        fprintf(stderr, "%s: %s, '%s' does not say '%s'\n", call, mok_status_name(status), mok_last_error(), words);
        num_wrong++;
    }
}

#define REFUSED(call) refused(#call, call)

/* Every call that takes a group or something made from one. */
static void call_everything(struct family *f)
{
    mok_group_state state = {.struct_size = sizeof state};
    mok_choice choice = {.struct_size = sizeof choice};
    mok_layer *layer = NULL;
    mok_schedule *schedule = NULL;
    mok_saved *saved = NULL;
    void *input = NULL;
    int64_t num = 0;
    REFUSED(mok_group_status(f->group, NULL));
    REFUSED(mok_group_status(f->group, &state));
    REFUSED(mok_group_wait(f->group, NULL, -1));
    REFUSED(mok_group_abort(f->group));
    REFUSED(mok_group_choice(f->group, &choice));
    REFUSED(mok_layer_create(f->group, &f->layer_config, &layer));
    REFUSED(mok_schedule_create(f->group, &schedule));
    REFUSED(mok_schedule_build(f->schedule, ids, TOKENS, NULL));
    REFUSED(mok_schedule_counts(f->schedule, NULL, NULL, &num));
    REFUSED(mok_group_saved(f->group, 0, &saved));
    REFUSED(mok_saved_input(f->saved, &input));
    REFUSED(mok_saved_release(f->saved));
    REFUSED(mok_forward(f->layer, f->schedule, &f->forward, NULL));
    REFUSED(mok_backward(f->layer, f->schedule, &f->backward, NULL));
    REFUSED(mok_group_trace(f->group, 10));
    REFUSED(mok_group_trace_take(f->group, NULL, 0, &num, &num));
    REFUSED(mok_group_destroy(f->group));
    mok_layer_destroy(f->layer);
    mok_schedule_destroy(f->schedule);
    REFUSED(mok_group_destroy(f->group));
}

static mok_status make_own_group(void)
{
#if defined(__SANITIZE_THREAD__)
    return MOK_OK; /* under which a child of several threads may start none */
#else
    struct family own;
    memset(&own, 0, sizeof own);
    mok_status status = make_family(&own);
    status = status == MOK_OK ? work(&own) : status;
    return status == MOK_OK ? clear_family(&own) : status;
#endif
}

static void be_child(struct family *family)
{
    alarm(LIMIT_S); /* a call that hangs ends the child with a signal */
    call_everything(family);
    mok_status status = make_own_group();
    if (status != MOK_OK) {
        fprintf(stderr, "own group of the child: %s: %s\n", mok_status_name(status), mok_last_error());
    }
    _exit(num_wrong > 0 || status != MOK_OK);
}

static void expect_good_child(struct family *family)
{
    int ended = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        be_child(family);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
}

static void child_of_an_idle_group(void **state)
{
    struct family family;
    (void)state;
    memset(&family, 0, sizeof family);
    assert_int_equal(make_family(&family), MOK_OK);
    assert_int_equal(work(&family), MOK_OK);
    expect_good_child(&family);
    assert_int_equal(work(&family), MOK_OK); /* the child has not aborted it */
    assert_int_equal(clear_family(&family), MOK_OK);
}

/* Another thread is inside a call: the child's copy of the lock is never given back. */
static void child_of_a_group_whose_lock_is_held(void **state)
{
    struct family family;
    (void)state;
    memset(&family, 0, sizeof family);
    assert_int_equal(make_family(&family), MOK_OK);
    pthread_mutex_lock(&family.group->lock);
    expect_good_child(&family);
    pthread_mutex_unlock(&family.group->lock);
    assert_int_equal(work(&family), MOK_OK);
    assert_int_equal(clear_family(&family), MOK_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(child_of_an_idle_group),
        cmocka_unit_test(child_of_a_group_whose_lock_is_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
