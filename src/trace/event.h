/*
 * Trace: one event record that both backends fill. A worker (CPU thread, CTA) appends to its own lane, so nothing is shared and nothing waits.
 * Event kinds: work first, named after steps and tasks; then one kind per wait site.
 */
#ifndef MOK_TRACE_EVENT_H
#define MOK_TRACE_EVENT_H

#include <mok/mok.h>

#include "base/hd.h"

enum mok_event_kind {
    MOK_EVENT_SCHEDULE, /* counting, sorting, reading the parts of the other ranks */
    MOK_EVENT_PUBLISH,  /* copying x or dy, w into peer-visible memory */
    MOK_EVENT_PULL,     /* index = minibatch */
    MOK_EVENT_PUSH,     /* index = minibatch */
    MOK_EVENT_SUM,      /* final sum of the slots */
    MOK_EVENT_TASK,     /* MOK_EVENT_TASK + mok_task_kind; index = row tile, or the expert for weight gradients (on the GPU for all tasks of backward) */
    MOK_EVENT_KERNEL = 48, /* a persistent kernel, whole; index 0 */
    MOK_EVENT_WAIT = 64 /* MOK_EVENT_WAIT + mok_site; index as in the fault record */
};

/* Lanes of all workers of a group. All functions are local and cheap; a lane that is full counts what it drops. */
struct mok_trace;

mok_status mok_trace_create(int32_t num_workers, int64_t max_events, struct mok_trace **trace_out);
void mok_trace_destroy(struct mok_trace *trace);
/* NULL trace: does nothing. Only the worker itself may append to its lane. */
void mok_trace_add(struct mok_trace *trace, int32_t worker, int32_t kind, int64_t index, int64_t pass, int64_t begin_ns, int64_t end_ns);
/* See mok_group_trace_take. */
void mok_trace_take(struct mok_trace *trace, mok_event *events_out, int64_t capacity, int64_t *num_out, int64_t *dropped_out);

/* Monotonic clock, nanoseconds. */
int64_t mok_trace_now_ns(void);

#endif
