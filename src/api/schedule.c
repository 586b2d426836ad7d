/*
 * Schedules: made once, built from ids again and again. The host knows of a build only its number and its token count.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "api/check.h"
#include "api/object.h"
#include "base/status.h"

mok_status mok_schedule_create(mok_group *group, mok_schedule **schedule_out)
{
    MOK_TRY(mok_api_check_given("group", group));
    MOK_TRY(mok_api_check_given("schedule_out", schedule_out));
    mok_group_state state;
    MOK_TRY(mok_api_group_alive(group, &state));
    mok_schedule *schedule = calloc(1, sizeof *schedule);
    if (schedule == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for a schedule: %zu bytes", sizeof *schedule);
    }
    schedule->group = group;
    pthread_mutex_lock(&group->lock);
    mok_status status = group->ops->schedule_create(group->inner, &schedule->inner);
    group->num_schedules += status == MOK_OK;
    pthread_mutex_unlock(&group->lock);
    if (status != MOK_OK) {
        free(schedule);
        return status;
    }
    *schedule_out = schedule;
    return MOK_OK;
}

void mok_schedule_destroy(mok_schedule *schedule)
{
    if (schedule != NULL && mok_api_check_process(schedule->group) == MOK_OK) {
        mok_group *group = schedule->group;
        pthread_mutex_lock(&group->lock);
        group->ops->schedule_destroy(schedule->inner);
        group->num_schedules--;
        pthread_mutex_unlock(&group->lock);
        free(schedule);
    }
}

mok_status mok_schedule_build(mok_schedule *schedule, const int32_t *ids, int64_t num_tokens, mok_stream stream)
{
    MOK_TRY(mok_api_check_given("schedule", schedule));
    mok_group *group = schedule->group;
    if (num_tokens < 0 || num_tokens > group->setup.dims.max_tokens) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "num_tokens is %" PRId64 ": must be from 0 to max_tokens of the group, %" PRId64, num_tokens,
                             group->setup.dims.max_tokens);
    }
    MOK_TRY(mok_api_check_tensor("ids", ids, num_tokens));
    MOK_TRY(mok_api_check_stream(group->ops, stream));
    mok_group_state state;
    MOK_TRY(mok_api_group_alive(group, &state));
    pthread_mutex_lock(&group->lock);
    mok_status status = mok_api_end_call(group, group->ops->schedule_build(schedule->inner, ids, num_tokens, stream));
    if (status == MOK_OK) {
        schedule->build_number = ++group->last_number;
        schedule->num_tokens = num_tokens;
    }
    pthread_mutex_unlock(&group->lock);
    return status;
}

mok_status mok_schedule_counts(mok_schedule *schedule, mok_stream stream, int64_t *rows_out, int64_t *padded_out)
{
    MOK_TRY(mok_api_check_given("schedule", schedule));
    MOK_TRY(mok_api_check_given("padded_out", padded_out));
    mok_group *group = schedule->group;
    MOK_TRY(mok_api_check_stream(group->ops, stream));
    MOK_TRY(mok_api_check_process(group));
    pthread_mutex_lock(&group->lock);
    mok_group_state state;
    mok_status status = mok_api_group_alive(group, &state);
    if (status == MOK_OK && schedule->build_number == 0) {
        status = mok_base_fail(MOK_ERR_MISMATCH, "schedule was never built: mok_schedule_build must come before");
    }
    if (status == MOK_OK) {
        status = mok_api_end_call(group, group->ops->schedule_counts(schedule->inner, stream, rows_out, padded_out));
    }
    pthread_mutex_unlock(&group->lock);
    return status;
}
