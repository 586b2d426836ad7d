/*
 * Lanes of trace events: an array per worker, filled by that worker alone, read when nobody works (trace/event.h). No lock, no atomics.
 */
#define _GNU_SOURCE
#include "trace/event.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"

struct lane {
    mok_event *events; /* [max_events] */
    int64_t num;
    int64_t dropped;
};

struct mok_trace {
    int32_t num_workers;
    int64_t max_events; /* per worker */
    mok_event *events;  /* [num_workers, max_events] */
    struct lane lanes[];
};

int64_t mok_trace_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

mok_status mok_trace_create(int32_t num_workers, int64_t max_events, struct mok_trace **trace_out)
{
    if (max_events > INT64_MAX / (int64_t)sizeof(mok_event) / num_workers) {
        return mok_base_fail(MOK_ERR_MEMORY, "max_events is %lld: no memory for so many of each of %d workers", (long long)max_events, num_workers);
    }
    struct mok_trace *trace = calloc(1, sizeof *trace + (size_t)num_workers * sizeof(struct lane));
    mok_event *events = calloc((size_t)(num_workers * max_events), sizeof *events);
    if (trace == NULL || events == NULL) {
        free(events);
        free(trace);
        return mok_base_fail(MOK_ERR_MEMORY, "max_events is %lld: no memory for so many of each of %d workers", (long long)max_events, num_workers);
    }
    trace->num_workers = num_workers;
    trace->max_events = max_events;
    trace->events = events;
    for (int32_t worker = 0; worker < num_workers; worker++) {
        trace->lanes[worker].events = events + worker * max_events;
    }
    *trace_out = trace;
    return MOK_OK;
}

void mok_trace_destroy(struct mok_trace *trace)
{
    if (trace != NULL) {
        free(trace->events);
        free(trace);
    }
}

void mok_trace_add(struct mok_trace *trace, int32_t worker, int32_t kind, int64_t index, int64_t pass, int64_t begin_ns, int64_t end_ns)
{
    if (trace == NULL) {
        return;
    }
    struct lane *lane = &trace->lanes[worker];
    if (lane->num == trace->max_events) {
        lane->dropped++;
        return;
    }
    mok_event event = {kind, worker, index, pass, begin_ns, end_ns};
    lane->events[lane->num++] = event;
}

void mok_trace_take(struct mok_trace *trace, mok_event *events_out, int64_t capacity, int64_t *num_out, int64_t *dropped_out)
{
    int64_t num = 0, dropped = 0;
    for (int32_t worker = 0; trace != NULL && worker < trace->num_workers; worker++) {
        struct lane *lane = &trace->lanes[worker];
        int64_t room = capacity > num ? capacity - num : 0;
        int64_t copied = mok_min64(room, lane->num);
        if (copied > 0) {
            memcpy(events_out + num, lane->events, (size_t)copied * sizeof *events_out);
        }
        num += lane->num;
        dropped += lane->dropped;
        lane->num = lane->dropped = 0;
    }
    *num_out = num;
    if (dropped_out != NULL) {
        *dropped_out = dropped;
    }
}
