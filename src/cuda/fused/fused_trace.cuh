/*
 * Events of a persistent kernel, by the device's clock: each role of a CTA appends to a lane of its own (trace/lane.h), so nothing is shared
 * and nothing waits. Without a buffer (events == NULL) a role pays one comparison of a kernel argument for each task, and none inside the
 * steps of a product.
 *
 * How many events a lane has so far stands in shared memory while the kernel runs and in global memory between kernels.
 */
#ifndef MOK_CUDA_FUSED_TRACE_CUH
#define MOK_CUDA_FUSED_TRACE_CUH

#include <mok/mok.h>

#include "cuda/fused/fused_args.h"
#include "cuda/hw/address.cuh"
#include "pass/site.h"
#include "trace/event.h"

enum { MOK_FUSED_SHORTEST_WAIT_NS = 100 /* shorter ones are not recorded: the clock ticks coarsely */ };

/* In shared memory; each role touches its own entries. */
struct mok_fused_lanes {
    uint32_t num[MOK_LANE_ROLES];
    int64_t pass;
    /* the multiplying warps have no register left for what they are at */
    uint64_t task_begin;
    int32_t task_kind; /* -1 = none */
    int32_t task_idx;
};

MOK_DEVICE int64_t mok_fused_lane_of(int32_t role) { return (int64_t)blockIdx.x * MOK_LANE_ROLES + role; }

/* By one thread, in front of a CTA-wide meeting. */
MOK_DEVICE void mok_fused_trace_open(const struct mok_fused_trace *trace, const struct mok_cuda_watch *watch, struct mok_fused_lanes *lanes)
{
    if (trace->events != NULL) {
        for (int32_t role = 0; role < MOK_LANE_ROLES; role++) {
            lanes->num[role] = trace->num[mok_fused_lane_of(role)];
        }
        lanes->pass = watch->control->pass;
        lanes->task_begin = mok_hw_time_ns();
        lanes->task_kind = -1;
    }
}

/* By the role, at its end. */
MOK_DEVICE void mok_fused_trace_close(const struct mok_fused_trace *trace, const struct mok_fused_lanes *lanes, int32_t role)
{
    if (trace->events != NULL) {
        trace->num[mok_fused_lane_of(role)] = lanes->num[role];
    }
}

/* 0 when nothing is recorded. */
MOK_DEVICE uint64_t mok_fused_trace_now(const struct mok_fused_trace *trace) { return trace->events != NULL ? mok_hw_time_ns() : 0; }

MOK_DEVICE void mok_fused_trace_add(const struct mok_fused_trace *trace, struct mok_fused_lanes *lanes, int32_t role, int32_t kind,
                                    int64_t index, uint64_t begin)
{
    if (trace->events == NULL) {
        return;
    }
    uint64_t now = mok_hw_time_ns();
    if (kind >= MOK_EVENT_WAIT && now - begin < MOK_FUSED_SHORTEST_WAIT_NS) {
        return;
    }
    uint32_t place = lanes->num[role]++;
    if (place < trace->max_events) {
        int64_t lane = mok_fused_lane_of(role);
        mok_event *event = trace->events + lane * trace->max_events + place;
        event->kind = kind;
        event->worker = (int32_t)lane + 1;
        event->index = index;
        event->pass = lanes->pass;
        event->begin_ns = (int64_t)begin;
        event->end_ns = (int64_t)now;
    }
}

MOK_DEVICE int32_t mok_fused_wait_kind(const struct mok_wait *wait) { return MOK_EVENT_WAIT + mok_site_of_counter(wait->counter); }

#endif
