/*
 * Where the time of a pass went on one rank: recorded events added up by kind. Plain data, so that it can travel between processes.
 */
#ifndef MOK_CLI_STAGE_TIMES_H
#define MOK_CLI_STAGE_TIMES_H

#include <stdint.h>

#include "seat.h"

enum { MOK_STAGE_KINDS = 128 };

struct mok_stage_times {
    double wall_ms;                   /* host clock, from the call to the end of the wait */
    double total_ms[MOK_STAGE_KINDS]; /* of all workers together */
    int64_t num_events[MOK_STAGE_KINDS];
    int64_t num_dropped; /* events that found no room, or whose kind is not known */
};

/* Events taken from a group, kept for a timeline. */
struct mok_stage_events {
    mok_event *events; /* [num], malloc */
    int64_t num;
};

/* Room for events of one worker and one pass. */
enum { MOK_STAGE_MAX_EVENTS = 1 << 15 };

/* Starts recording on the seat's group. */
mok_status mok_stage_start(struct mok_seat *seat);
/* Takes what was recorded since, adds it to times; the events go to *events_out (caller frees) when it is not NULL. */
mok_status mok_stage_take(struct mok_seat *seat, struct mok_stage_times *times, struct mok_stage_events *events_out);

/* Milliseconds of the monotonic clock. */
double mok_stage_now_ms(void);

#endif
