/*
 * Timeline in the trace event format (JSON) that Perfetto and chrome://tracing read. Rank = process, worker = thread, event = complete
 * event
 * ("X") with times in microseconds. Names are the library's own constants and need no escaping.
 */
#include "trace/timeline.h"

#include <inttypes.h>

static void write_rank_name(FILE *out, const struct mok_timeline_rank *rank)
{
    fprintf(out, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%" PRId32 ",\"args\":{\"name\":\"rank %" PRId32 "\"}}", rank->rank,
            rank->rank);
    int32_t last = -1;
    for (int64_t idx = 0; idx < rank->num_events; idx++) {
        int32_t worker = rank->events[idx].worker;
        if (worker != last) {
            char name[32];
            mok_timeline_name(rank, worker, name, sizeof name);
            fprintf(out,
                    ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%" PRId32 ",\"tid\":%" PRId32
                    ",\"args\":{\"name\":\"%s\"}}",
                    rank->rank, worker, name);
            last = worker;
        }
    }
}

static void write_event(FILE *out, const struct mok_timeline_rank *rank, const mok_event *event)
{
    const char *category = event->kind < mok_event_first_wait() ? "work" : "wait";
    fprintf(out, ",\n{\"ph\":\"X\",\"cat\":\"%s\",\"name\":\"%s\",\"pid\":%" PRId32 ",\"tid\":%" PRId32 ",\"ts\":%.3f,\"dur\":%.3f",
            category, mok_event_name(event->kind), rank->rank, event->worker, (double)(event->begin_ns - rank->zero_ns) * 1e-3,
            (double)(event->end_ns - event->begin_ns) * 1e-3);
    fprintf(out, ",\"args\":{\"index\":%" PRId64 ",\"pass\":%" PRId64 "}}", event->index, event->pass);
}

int mok_trace_write_perfetto(FILE *out, const struct mok_timeline_rank *ranks, int32_t num_ranks)
{
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n", out);
    for (int32_t idx = 0; idx < num_ranks; idx++) {
        fputs(idx == 0 ? "" : ",\n", out);
        write_rank_name(out, &ranks[idx]);
        for (int64_t event = 0; event < ranks[idx].num_events; event++) {
            write_event(out, &ranks[idx], &ranks[idx].events[event]);
        }
    }
    fputs("\n]}\n", out);
    return !ferror(out);
}
