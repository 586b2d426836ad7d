/*
 * See trace_summary.h. Times are microseconds. What lies inside another event of its worker (a wait inside a push) counts once, as itself.
 */
#include "trace_summary.h"

#include <inttypes.h>
#include <string.h>

#include "trace/event.h"

enum { MAX_KINDS = 256 };

/* What one role did of one kind, over all CTAs. */
struct row {
    int64_t num;
    int64_t own_ns;   /* without what lies inside */
    int64_t whole_ns; /* with it */
    int64_t first_ns, last_ns; /* begins, ends */
};

struct table {
    const struct mok_timeline_rank *rank;
    const mok_event *kernel;
    struct row rows[MOK_LANE_ROLES][MAX_KINDS];
    int32_t num_lanes[MOK_LANE_ROLES];
};

static double us(int64_t ns) { return (double)ns * 1e-3; }

static void print_stream(FILE *out, const struct mok_timeline_rank *rank)
{
    int64_t end = rank->num_events > 0 ? rank->events[0].begin_ns : 0;
    fprintf(out, "rank %" PRId32 "  %-24s %10s %10s %10s\n", rank->rank, "launch", "begin", "length", "gap before");
    for (int64_t idx = 0; idx < rank->num_events && rank->events[idx].worker == 0; idx++) {
        const mok_event *event = &rank->events[idx];
        fprintf(out, "        %-24s %10.1f %10.1f %10.1f\n", mok_event_name(event->kind), us(event->begin_ns - rank->zero_ns),
                us(event->end_ns - event->begin_ns), us(event->begin_ns - end));
        end = event->end_ns;
    }
}

/* Events [from, to) are one worker's, by their beginning. */
static void add_worker(struct table *table, int64_t from, int64_t to)
{
    const mok_event *events = table->rank->events;
    int32_t role = mok_lane_role_of(events[from].worker);
    const mok_event *outer = NULL;
    int has_any = 0;
    for (int64_t idx = from; idx < to; idx++) {
        const mok_event *event = &events[idx];
        if (event->begin_ns < table->kernel->begin_ns || event->end_ns > table->kernel->end_ns || event->kind < 0 ||
            event->kind >= MAX_KINDS) {
            continue;
        }
        struct row *row = &table->rows[role][event->kind];
        int64_t length = event->end_ns - event->begin_ns;
        row->first_ns = row->num == 0 || event->begin_ns < row->first_ns ? event->begin_ns : row->first_ns;
        row->last_ns = row->num == 0 || event->end_ns > row->last_ns ? event->end_ns : row->last_ns;
        row->num++;
        row->own_ns += length;
        row->whole_ns += length;
        if (outer != NULL && event->end_ns <= outer->end_ns) {
            table->rows[role][outer->kind].own_ns -= length;
        } else {
            outer = event;
        }
        has_any = 1;
    }
    table->num_lanes[role] += has_any;
}

static void print_role(FILE *out, const struct table *table, int32_t role)
{
    static const char *const names[MOK_LANE_ROLES] = {"multiply", "load", "scout", "move"};
    int64_t window = table->kernel->end_ns - table->kernel->begin_ns, used = 0;
    int32_t lanes = table->num_lanes[role];
    for (int32_t kind = 0; kind < MAX_KINDS && lanes > 0; kind++) {
        const struct row *row = &table->rows[role][kind];
        if (row->num == 0) {
            continue;
        }
        used += row->own_ns;
        fprintf(out, "        %-9s %-28s %9.1f %6.1f%% %8" PRId64 " %9.2f %9.1f %9.1f\n", names[role], mok_event_name(kind),
                us(row->own_ns) / lanes, 100.0 * (double)row->own_ns / lanes / (double)window, row->num, us(row->whole_ns) / (double)row->num,
                us(row->first_ns - table->kernel->begin_ns), us(row->last_ns - table->kernel->begin_ns));
    }
    if (lanes > 0) {
        double rest = us(window) - us(used) / lanes;
        fprintf(out, "        %-9s %-28s %9.1f %6.1f%%\n", names[role], "nothing recorded", rest, 100.0 * rest / us(window));
    }
}

static void print_kernel(FILE *out, const struct mok_timeline_rank *rank, const mok_event *kernel)
{
    struct table table;
    memset(&table, 0, sizeof table);
    table.rank = rank;
    table.kernel = kernel;
    for (int64_t from = 0, to; from < rank->num_events; from = to) {
        for (to = from; to < rank->num_events && rank->events[to].worker == rank->events[from].worker; to++) {
        }
        if (rank->events[from].worker > 0) {
            add_worker(&table, from, to);
        }
    }
    fprintf(out, "rank %" PRId32 "  kernel of pass %" PRId64 ", %.1f us; us a CTA\n", rank->rank, kernel->pass,
            us(kernel->end_ns - kernel->begin_ns));
    fprintf(out, "        %-9s %-28s %9s %7s %8s %9s %9s %9s\n", "role", "what", "us", "", "events", "mean us", "first", "last");
    for (int32_t role = 0; role < MOK_LANE_ROLES; role++) {
        print_role(out, &table, role);
    }
}

void mok_trace_print_summary(FILE *out, const struct mok_timeline_rank *rank)
{
    print_stream(out, rank);
    for (int64_t idx = 0; idx < rank->num_events && rank->events[idx].worker == 0; idx++) {
        if (rank->events[idx].kind == MOK_EVENT_KERNEL) {
            print_kernel(out, rank, &rank->events[idx]);
        }
    }
}
