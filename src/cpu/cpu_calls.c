/*
 * The calls that enqueue: each copies its arguments into a job, puts it behind the others and returns. And the schedule object, with the
 * two calls that read one back.
 */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cpu/cpu.h"
#include "cpu/cpu_calls.h"

static mok_status new_job(struct mok_pass_group *group, int32_t kind, struct mok_cpu_job **job_out)
{
    MOK_TRY(mok_cpu_status(group, NULL));
    struct mok_cpu_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory for a job of %zu bytes", group->setup.dims.rank, sizeof *job);
    }
    job->kind = kind;
    *job_out = job;
    return MOK_OK;
}

mok_status mok_cpu_forward(struct mok_pass_group *group, const struct mok_pass_forward *pass)
{
    struct mok_cpu_job *job = NULL;
    MOK_TRY(new_job(group, MOK_CPU_JOB_FORWARD, &job));
    job->forward = *pass;
    job->layer = *pass->layer;
    job->schedule = pass->schedule;
    job->saved = pass->saved;
    pass->schedule->last_use = mok_cpu_queue_put(&group->queue, job, group->num_workers);
    return MOK_OK;
}

mok_status mok_cpu_backward(struct mok_pass_group *group, const struct mok_pass_backward *pass)
{
    struct mok_cpu_job *job = NULL;
    MOK_TRY(new_job(group, MOK_CPU_JOB_BACKWARD, &job));
    job->backward = *pass;
    job->layer = *pass->layer;
    job->schedule = pass->schedule;
    job->saved = pass->saved;
    pass->schedule->last_use = mok_cpu_queue_put(&group->queue, job, group->num_workers);
    return MOK_OK;
}

/* ---- schedule ------------------------------------------------------------------------------------------------------------------ */

mok_status mok_cpu_schedule_create(struct mok_pass_group *group, struct mok_pass_schedule **schedule_out)
{
    struct mok_cpu_schedule_layout layout = mok_cpu_plan_schedule(&group->setup);
    struct mok_pass_schedule *schedule = calloc(1, sizeof *schedule);
    char *memory = mok_cpu_alloc(layout.bytes);
    if (schedule == NULL || memory == NULL) {
        free(memory);
        free(schedule);
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory for a schedule of %lld bytes", group->setup.dims.rank,
                             (long long)layout.bytes);
    }
    schedule->group = group;
    schedule->memory = memory;
    schedule->expert_rows = (int32_t *)(memory + layout.expert_rows);
    schedule->expert_first = (int32_t *)(memory + layout.expert_first);
    schedule->tile_expert = (int32_t *)(memory + layout.tile_expert);
    schedule->active = (int32_t *)(memory + layout.active);
    schedule->ordinal = (int32_t *)(memory + layout.ordinal);
    schedule->routes = (struct mok_route *)(memory + layout.routes);
    schedule->ids = (int32_t *)(memory + layout.ids);
    schedule->cursor = (int32_t *)(memory + layout.cursor);
    struct mok_schedule_view view = {&schedule->head,  schedule->expert_rows, schedule->expert_first, schedule->tile_expert,
                                     schedule->active, schedule->ordinal,     schedule->routes,       schedule->ids};
    schedule->view = view;
    *schedule_out = schedule;
    return MOK_OK;
}

/* Queued work that uses it ends by itself or by its deadlines; on a dead group the workers let go of it at once. */
void mok_cpu_schedule_destroy(struct mok_pass_schedule *schedule)
{
    if (schedule != NULL) {
        mok_cpu_queue_wait(&schedule->group->queue, schedule->last_use, -1);
        free(schedule->memory);
        free(schedule);
    }
}

mok_status mok_cpu_schedule_build(struct mok_pass_schedule *schedule, const int32_t *ids, int64_t num_tokens, mok_stream stream)
{
    (void)stream;
    struct mok_pass_group *group = schedule->group;
    struct mok_cpu_job *job = NULL;
    MOK_TRY(new_job(group, MOK_CPU_JOB_BUILD, &job));
    job->schedule = schedule;
    job->build.ids = ids;
    job->build.num_tokens = num_tokens;
    schedule->ticket = mok_cpu_queue_put(&group->queue, job, group->num_workers);
    schedule->last_use = schedule->ticket;
    return MOK_OK;
}

/* Blocks until the last build of the schedule is done, or the group is dead. */
static mok_status wait_built(struct mok_pass_schedule *schedule)
{
    mok_cpu_queue_wait(&schedule->group->queue, schedule->ticket, -1);
    return mok_cpu_status(schedule->group, NULL);
}

mok_status mok_cpu_schedule_counts(struct mok_pass_schedule *schedule, mok_stream stream, int64_t *rows_out, int64_t *padded_out)
{
    (void)stream;
    MOK_TRY(wait_built(schedule));
    for (int32_t e = 0; rows_out != NULL && e < schedule->group->setup.num_local; e++) {
        rows_out[e] = schedule->expert_rows[e];
    }
    if (padded_out != NULL) {
        *padded_out = schedule->head.num_rows;
    }
    return MOK_OK;
}

static void copy_out(void *to, const void *from, int64_t bytes)
{
    if (to != NULL && bytes > 0) {
        memcpy(to, from, (size_t)bytes);
    }
}

mok_status mok_cpu_schedule_dump(struct mok_pass_schedule *schedule, mok_stream stream, struct mok_schedule_head *head_out,
                                 int32_t *expert_rows_out, int32_t *expert_first_out, int32_t *tile_expert_out, int32_t *active_out,
                                 struct mok_route *routes_out)
{
    (void)stream;
    MOK_TRY(wait_built(schedule));
    int64_t num_local = schedule->group->setup.num_local;
    copy_out(head_out, &schedule->head, sizeof schedule->head);
    copy_out(expert_rows_out, schedule->expert_rows, num_local * 4);
    copy_out(expert_first_out, schedule->expert_first, (num_local + 1) * 4);
    copy_out(tile_expert_out, schedule->tile_expert, (int64_t)schedule->head.num_tiles * 4);
    copy_out(active_out, schedule->active, num_local * 4);
    copy_out(routes_out, schedule->routes, schedule->head.num_rows * (int64_t)sizeof(struct mok_route));
    return MOK_OK;
}
