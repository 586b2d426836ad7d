/*
 * Recorded events of a GPU rank as a table: the stream's launches with the gaps between them, then for each persistent kernel what each role
 * of its CTAs did, waited for, and how long it had nothing to do.
 */
#ifndef MOK_CLI_TRACE_SUMMARY_H
#define MOK_CLI_TRACE_SUMMARY_H

#include <stdio.h>

#include "trace/timeline.h"

/* rank: workers numbered as trace/lane.h says, events ordered by worker, then beginning. */
void mok_trace_print_summary(FILE *out, const struct mok_timeline_rank *rank);

#endif
