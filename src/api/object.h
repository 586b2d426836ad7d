/*
 * The objects behind the handles of mok.h. src/api owns them; the backend's own part hangs below each (`inner`).
 *
 * Rules.
 *  - `lock` serialises every call that enqueues or changes host-side state of a group. mok_group_status, mok_group_wait and
 *    mok_group_abort do not take it, so that they work while another thread is inside a call.
 *  - What belongs together is known on the host: every build of a schedule gets a number of the group's one count, and a saved object
 *    remembers the layer and the build that filled it. Numbers, not pointers: an address may come back after destroy and create.
 */
#ifndef MOK_API_OBJECT_H
#define MOK_API_OBJECT_H

#include <pthread.h>
#include <sys/types.h>

#include "pass/pass.h"

struct mok_saved {
    mok_group *group;
    int32_t idx;
    struct mok_pass_saved *inner;
    int is_waiting;        /* 1 from a forward pass to its backward pass */
    uint64_t layer_number; /* of the last forward pass; 0 = there was none */
    uint64_t build_number;
};

struct mok_layer {
    mok_group *group;
    uint64_t number;
    struct mok_pass_layer inner;
};

struct mok_schedule {
    mok_group *group;
    struct mok_pass_schedule *inner;
    uint64_t build_number; /* of its last build; 0 = never built */
    int64_t num_tokens;    /* of its last build */
};

struct mok_group {
    const struct mok_pass_ops *ops;
    struct mok_peer *peer;
    struct mok_pass_group *inner;
    struct mok_pass_setup setup;
    pid_t process; /* that made it: workers, locks and device are not a forked child's */

    pthread_mutex_t lock;
    struct mok_saved *saved; /* [num_saved] */
    uint64_t last_number;    /* of layers and builds */
    int64_t num_layers;      /* alive */
    int64_t num_schedules;   /* alive */

    pthread_mutex_t fault_lock; /* guards the two below */
    mok_status fault_status;    /* MOK_OK until the first call that saw the group dead */
    char fault_text[512];       /* its sentence */
};

/* MOK_OK in the process that made the group. In a forked child MOK_ERR_ARGUMENT: to be asked before a lock is taken, which somebody may have
 * held when the process forked. */
mok_status mok_api_check_process(const mok_group *group);

/* MOK_OK, or the group's fault with its sentence. Never blocks. state_out is filled in every case. */
mok_status mok_api_group_alive(mok_group *group, mok_group_state *state_out);

/* What a call of the backend returned, with the group's sentence if the group died after mok_api_group_alive had seen it alive. */
mok_status mok_api_end_call(mok_group *group, mok_status status);

#endif
