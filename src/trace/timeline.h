/*
 * Writers of recorded events: a timeline for Perfetto (ui.perfetto.dev, chrome://tracing) and one as a picture (SVG).
 *
 * They use public types alone, so that the command-line tool, which links the shared library, can compile them in.
 */
#ifndef MOK_TRACE_TIMELINE_H
#define MOK_TRACE_TIMELINE_H

#include <stdint.h>
#include <stdio.h>

#include <mok/mok.h>

#include "trace/lane.h"

/* The events of one rank, ordered by worker, then time, as mok_group_trace_take gives them. */
struct mok_timeline_rank {
    int32_t rank;
    const mok_event *events; /* [num_events] */
    int64_t num_events;
    int64_t zero_ns; /* the rank's clock at the timeline's zero */
    int is_gpu;      /* workers are numbered as trace/lane.h says */
};

/* "worker 3", "stream" or "cta 12 move". */
static inline void mok_timeline_name(const struct mok_timeline_rank *rank, int32_t worker, char *text, size_t size)
{
    static const char *const roles[MOK_LANE_ROLES] = {"multiply", "load", "scout", "move"};
    if (!rank->is_gpu) {
        snprintf(text, size, "worker %d", (int)worker);
    } else if (worker == 0) {
        snprintf(text, size, "stream");
    } else {
        snprintf(text, size, "cta %d %s", (int)mok_lane_cta(worker), roles[mok_lane_role_of(worker)]);
    }
}

/* GPU: leaves out the CTAs whose number cta_step does not divide, in place. Returns how many events stay. */
static inline int64_t mok_timeline_thin(mok_event *events, int64_t num_events, int64_t cta_step)
{
    int64_t num = 0;
    for (int64_t idx = 0; idx < num_events; idx++) {
        if (events[idx].worker == 0 || mok_lane_cta(events[idx].worker) % cta_step == 0) {
            events[num++] = events[idx];
        }
    }
    return num;
}

/* Both return 1 when everything was written, 0 on a write error (errno). */
int mok_trace_write_perfetto(FILE *out, const struct mok_timeline_rank *ranks, int32_t num_ranks);
int mok_trace_write_svg(FILE *out, const struct mok_timeline_rank *ranks, int32_t num_ranks);

#endif
