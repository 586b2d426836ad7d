/*
 * The workers of a rank: threads in two roles that take every job, and the phases of a pass (the picture is in cpu.h).
 *
 * A communication worker walks its steps. While one is not ready it looks for a task whose inputs are complete and does that instead; such
 * a borrowed task never waits, so a communication worker always comes back to its steps. After its last step it takes tasks like any other.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>

#include "base/status.h"
#include "cpu/cpu.h"

int mok_cpu_is_comm(const struct mok_cpu_worker *worker) { return worker->index < worker->group->setup.comm_workers; }

/* ---- tasks ------------------------------------------------------------------------------------------------------------------- */

static int64_t task_event_index(const struct mok_task *task)
{
    switch (task->kind) {
    case MOK_TASK_WGRAD:
    case MOK_TASK_WGRAD_ZERO:
    case MOK_TASK_SHARED_WGRAD: return task->expert;
    default: return task->row_tile;
    }
}

/* A task whose waits are satisfied. */
static void run_task(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, const struct mok_task *task)
{
    struct mok_pass_group *group = worker->group;
    const struct mok_walk *walk = &group->pass.walk;
    mok_cpu_delay(worker);
    int64_t begin = group->trace != NULL ? mok_trace_now_ns() : 0;
    if (walk->backward) {
        mok_cpu_backward_task(worker, job, task);
    } else {
        mok_cpu_forward_task(worker, job, task);
    }
    if (group->trace != NULL) {
        mok_trace_add(group->trace, worker->index, MOK_EVENT_TASK + task->kind, task_event_index(task), job->ticket, begin,
                      mok_trace_now_ns());
    }
    int32_t num_signals = mok_walk_task_num_signals(walk, task);
    for (int32_t i = 0; i < num_signals; i++) {
        mok_cpu_signal(group, mok_walk_task_signal(walk, task, i));
    }
    mok_cpu_progress(group);
}

static int is_task_ready(const struct mok_pass_group *group, const struct mok_task *task)
{
    const struct mok_walk *walk = &group->pass.walk;
    int32_t num_waits = mok_walk_task_num_waits(walk, task);
    for (int32_t i = 0; i < num_waits; i++) {
        if (!mok_cpu_is_done(group, mok_walk_task_wait(walk, task, i))) {
            return 0;
        }
    }
    return 1;
}

/* The next task, if there is one and its inputs are complete. 1 = one was done. */
static int try_task(struct mok_cpu_worker *worker, const struct mok_cpu_job *job)
{
    struct mok_pass_group *group = worker->group;
    if (mok_cpu_is_aborted(group)) {
        return 0;
    }
    long long idx = atomic_load_explicit(&group->pass.next_task, memory_order_relaxed);
    struct mok_task task = mok_walk_task(&group->pass.walk, idx);
    if (task.kind == MOK_TASK_NONE || !is_task_ready(group, &task) ||
        !atomic_compare_exchange_strong(&group->pass.next_task, &idx, idx + 1)) {
        return 0;
    }
    run_task(worker, job, &task);
    return 1;
}

static int take_tasks(struct mok_cpu_worker *worker, const struct mok_cpu_job *job)
{
    struct mok_pass_group *group = worker->group;
    const struct mok_walk *walk = &group->pass.walk;
    for (;;) {
        struct mok_task task = mok_walk_task(walk, atomic_fetch_add_explicit(&group->pass.next_task, 1, memory_order_relaxed));
        if (task.kind == MOK_TASK_NONE) {
            return 1;
        }
        int32_t num_waits = mok_walk_task_num_waits(walk, &task);
        for (int32_t i = 0; i < num_waits; i++) {
            if (!mok_cpu_wait_for(worker, mok_walk_task_wait(walk, &task, i))) {
                return 0;
            }
        }
        if (mok_cpu_is_aborted(group)) {
            return 0;
        }
        run_task(worker, job, &task);
    }
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------- */

/* As mok_cpu_wait_for, with borrowed tasks instead of idleness. The trace shows what was idle after the last of them. */
static int wait_busily(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, struct mok_wait wait)
{
    const mok_cpu_word *counter = mok_cpu_counter(worker->group, wait);
    int32_t site = mok_site_of_counter(wait.counter);
    if (mok_cpu_is_done(worker->group, wait)) {
        return 1;
    }
    struct mok_cpu_waiting waiting = mok_cpu_wait_begin(worker, site, wait.index, wait.target);
    while (!mok_cpu_is_done(worker->group, wait)) {
        if (try_task(worker, job)) {
            waiting = mok_cpu_wait_begin(worker, site, wait.index, wait.target);
        } else if (!mok_cpu_wait_again(&waiting, atomic_load_explicit(counter, memory_order_relaxed))) {
            return 0;
        }
    }
    mok_cpu_wait_end(&waiting);
    return 1;
}

/* The same at the ENTRY barrier: the shared expert's tasks need no peer. */
static int enter(struct mok_cpu_worker *worker, const struct mok_cpu_job *job)
{
    struct mok_pass_group *group = worker->group;
    uint32_t epoch = group->pass.epoch, seen;
    int32_t missing;
    struct mok_cpu_waiting waiting = mok_cpu_wait_begin(worker, MOK_SITE_ENTRY_BARRIER, 0, epoch);
    while ((missing = mok_cpu_missing_rank(group, MOK_CPU_ENTRY, epoch, &seen)) >= 0) {
        if (try_task(worker, job)) {
            waiting = mok_cpu_wait_begin(worker, MOK_SITE_ENTRY_BARRIER, missing, epoch);
            continue;
        }
        if (!mok_cpu_wait_arrival(&waiting, MOK_CPU_ENTRY, missing, seen)) {
            return 0;
        }
    }
    mok_cpu_wait_end(&waiting);
    if (!mok_cpu_check_entry(worker)) {
        return 0;
    }
    atomic_store_explicit(&group->pass.is_entered, 1, memory_order_relaxed);
    return 1;
}

static void add_step_event(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, int32_t kind, int32_t minibatch, int64_t begin)
{
    if (worker->group->trace != NULL) {
        mok_trace_add(worker->group->trace, worker->index, kind, minibatch, job->ticket, begin, mok_trace_now_ns());
    }
}

/* Pull of own share of a minibatch, when its place is free. */
static int pull_minibatch(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, int32_t minibatch)
{
    const struct mok_walk *walk = &worker->group->pass.walk;
    if (mok_walk_pull_num_waits(walk, minibatch) && !wait_busily(worker, job, mok_walk_pull_wait(walk, minibatch))) {
        return 0;
    }
    int64_t begin = mok_trace_now_ns();
    mok_cpu_pull(worker, job, minibatch);
    add_step_event(worker, job, MOK_EVENT_PULL, minibatch, begin);
    return 1;
}

/* Push of own share of a minibatch: each row tile as soon as it is finished. */
static int push_minibatch(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, int32_t minibatch)
{
    const struct mok_walk *walk = &worker->group->pass.walk;
    int32_t first = minibatch * walk->mb_tiles, end = first + mok_walk_minibatch_tiles(walk, minibatch);
    for (int32_t tile = first; tile < end; tile++) {
        if (!wait_busily(worker, job, mok_walk_push_wait(walk, tile))) {
            return 0;
        }
        int64_t begin = mok_trace_now_ns();
        mok_cpu_push_tile(worker, job, tile);
        add_step_event(worker, job, MOK_EVENT_PUSH, minibatch, begin);
    }
    return 1;
}

static int walk_steps(struct mok_cpu_worker *worker, const struct mok_cpu_job *job)
{
    struct mok_pass_group *group = worker->group;
    mok_cpu_stand_still(worker);
    for (int64_t idx = 0;; idx++) {
        struct mok_step step = mok_walk_step(&group->pass.walk, idx);
        if (step.kind == MOK_STEP_NONE) {
            break;
        }
        mok_cpu_delay(worker);
        int alive = step.kind == MOK_STEP_PULL ? pull_minibatch(worker, job, step.minibatch) : push_minibatch(worker, job, step.minibatch);
        if (!alive) {
            return 0;
        }
        mok_cpu_signal(group, mok_walk_step_signal(&step));
        mok_cpu_progress(group);
    }
    if (atomic_fetch_sub_explicit(&group->pass.steps_left, 1, memory_order_acq_rel) == 1) {
        mok_cpu_arrive(group, MOK_CPU_EXIT, group->pass.epoch);
    }
    return 1;
}

/* ---- a pass ------------------------------------------------------------------------------------------------------------------ */

/* By worker 0, before the first meeting. */
static void open_pass(struct mok_pass_group *group, const struct mok_cpu_job *job)
{
    struct mok_cpu_pass *pass = &group->pass;
    int backward = job->kind == MOK_CPU_JOB_BACKWARD;
    memset(&pass->walk, 0, sizeof pass->walk);
    pass->walk.dims = group->setup.dims;
    pass->walk.ring = backward ? group->setup.ring_backward : group->setup.ring_forward;
    pass->walk.tiles = group->tiles;
    pass->walk.schedule = job->schedule->view;
    pass->walk.backward = backward;
    pass->walk.num_comm = group->setup.comm_workers;
    pass->walk.shared_recompute = backward && group->layout.shared_remade;
    pass->walk.zero_grads = backward && job->backward.grad_mode == MOK_GRAD_OVERWRITE;
    /* All row tiles of a minibatch at one column tile, then the next: widened weights serve as long as they can. */
    pass->walk.row_group = (int32_t)(pass->walk.ring.minibatch_rows / MOK_TILE_ROWS);
    if (!backward && job->saved == NULL) {
        pass->walk.ring.keep_rows = 0;
    }
    mok_walk_init(&pass->walk);
    struct mok_entry entry = {backward, job->saved != NULL ? job->saved->idx : -1, job->schedule->head.build};
    pass->tag = mok_plan_entry_tag(entry);
    pass->epoch = ++group->pass_epoch;
    atomic_store_explicit(&pass->next_task, 0, memory_order_relaxed);
    atomic_store_explicit(&pass->next_sum, 0, memory_order_relaxed);
    atomic_store_explicit(&pass->steps_left, group->setup.comm_workers, memory_order_relaxed);
    atomic_store_explicit(&pass->is_entered, 0, memory_order_relaxed);
}

static void clear_counters(struct mok_cpu_worker *worker)
{
    struct mok_pass_group *group = worker->group;
    int64_t first = group->layout.num_counters * worker->index / group->num_workers;
    int64_t end = group->layout.num_counters * (worker->index + 1) / group->num_workers;
    for (int64_t i = first; i < end; i++) {
        atomic_store_explicit(&group->counters[i], 0, memory_order_relaxed);
    }
}

static int run_pass(struct mok_cpu_worker *worker, const struct mok_cpu_job *job)
{
    struct mok_pass_group *group = worker->group;
    if (worker->index == 0) {
        open_pass(group, job);
    }
    clear_counters(worker);
    mok_cpu_publish(worker, job);
    if (!mok_cpu_meet(worker)) {
        return 0;
    }
    if (worker->index == 0) {
        mok_cpu_enter(group);
    }
    worker->operand_kind = MOK_CPU_NOTHING;
    if (mok_cpu_is_comm(worker) && !(enter(worker, job) && walk_steps(worker, job))) {
        return 0;
    }
    if (!take_tasks(worker, job) || !mok_cpu_wait_barrier(worker, MOK_CPU_EXIT, group->pass.epoch) ||
        !mok_cpu_wait_for(worker, mok_walk_sum_wait(&group->pass.walk))) {
        return 0;
    }
    mok_cpu_sum(worker, job);
    if (!mok_cpu_meet(worker)) {
        return 0;
    }
    if (worker->index == 0) {
        atomic_fetch_add(&group->passes_done, 1);
        if (job->saved != NULL) {
            atomic_store(&job->saved->is_full, job->kind == MOK_CPU_JOB_FORWARD);
        }
    }
    return 1;
}

/* ---- threads ----------------------------------------------------------------------------------------------------------------- */

static void *work(void *argument)
{
    struct mok_cpu_worker *worker = argument;
    struct mok_cpu_queue *queue = &worker->group->queue;
    for (int64_t ticket = 1;; ticket++) {
        struct mok_cpu_job *job = mok_cpu_queue_take(queue, ticket);
        if (job == NULL) {
            return NULL;
        }
        worker->job = job;
        /* On a dead group nothing is touched any more. A job that is given up has been recorded by who gave it up. */
        if (!mok_cpu_is_aborted(worker->group)) {
            (void)(job->kind == MOK_CPU_JOB_BUILD ? mok_cpu_build(worker, job) : run_pass(worker, job));
        }
        mok_cpu_queue_leave(queue, job);
    }
}

mok_status mok_cpu_team_start(struct mok_pass_group *group)
{
    const struct mok_cpu_layout *layout = &group->layout;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are not for workers */
    int error = 0;
    int32_t started = 0;
    for (; started < group->num_workers; started++) {
        struct mok_cpu_worker *worker = &group->workers[started];
        char *scratch = group->other_block + layout->scratch + started * layout->scratch_stride;
        worker->group = group;
        worker->index = started;
        worker->operand_a = (float *)(scratch + layout->operand_a);
        worker->operand_b = (float *)(scratch + layout->operand_b);
        worker->result = (float *)(scratch + layout->result);
        worker->row = (float *)(scratch + layout->row);
        worker->random_state = (uint64_t)group->setup.dims.rank * 4096 + (uint64_t)started + 1;
        error = pthread_create(&worker->thread, NULL, work, worker);
        if (error != 0) {
            break;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        int32_t wanted = group->num_workers;
        group->num_workers = started;
        mok_cpu_team_stop(group);
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: thread %d of %d could not be started: %s", group->setup.dims.rank, started, wanted,
                             strerror(error));
    }
    return MOK_OK;
}

void mok_cpu_team_stop(struct mok_pass_group *group)
{
    mok_cpu_queue_close(&group->queue);
    for (int32_t i = 0; i < group->num_workers; i++) {
        pthread_join(group->workers[i].thread, NULL);
    }
}
