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

/* The events of one rank, ordered by worker, then time, as mok_group_trace_take gives them. */
struct mok_timeline_rank {
    int32_t rank;
    const mok_event *events; /* [num_events] */
    int64_t num_events;
    int64_t zero_ns; /* the rank's clock at the timeline's zero */
};

/* Both return 1 when everything was written, 0 on a write error (errno). */
int mok_trace_write_perfetto(FILE *out, const struct mok_timeline_rank *ranks, int32_t num_ranks);
int mok_trace_write_svg(FILE *out, const struct mok_timeline_rank *ranks, int32_t num_ranks);

#endif
