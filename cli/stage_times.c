/*
 * Recorded events to sums. In: mok_group_trace_take. Out: time and count by kind of event.
 */
#include "stage_times.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

/* Workers of a rank are at most a few hundred; memory that no event fills is never touched. */
#define ROOM ((int64_t)256 * MOK_STAGE_MAX_EVENTS)

double mok_stage_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

mok_status mok_stage_start(struct mok_seat *seat) { return mok_cli_check(mok_group_trace(seat->group, MOK_STAGE_MAX_EVENTS)); }

mok_status mok_stage_take(struct mok_seat *seat, struct mok_stage_times *times, struct mok_stage_events *events_out)
{
    int64_t num = 0;
    int64_t num_dropped = 0;
    mok_event *events = malloc((size_t)ROOM * sizeof *events);
    if (events == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory for %" PRId64 " events", ROOM);
    }
    mok_status status = mok_cli_check(mok_group_trace_take(seat->group, events, ROOM, &num, &num_dropped));
    if (status != MOK_OK) {
        free(events);
        return status;
    }
    times->num_dropped += num_dropped + (num > ROOM ? num - ROOM : 0);
    num = num > ROOM ? ROOM : num;
    for (int64_t idx = 0; idx < num; idx++) {
        const mok_event *event = &events[idx];
        if (event->kind < 0 || event->kind >= MOK_STAGE_KINDS) {
            times->num_dropped++;
            continue;
        }
        times->total_ms[event->kind] += (double)(event->end_ns - event->begin_ns) * 1e-6;
        times->num_events[event->kind]++;
    }
    if (events_out == NULL) {
        free(events);
        return MOK_OK;
    }
    mok_event *shrunk = realloc(events, ((size_t)num + 1) * sizeof *events);
    events_out->events = shrunk == NULL ? events : shrunk;
    events_out->num = num;
    return MOK_OK;
}
