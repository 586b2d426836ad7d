/*
 * Timeline as a picture: one lane per worker, grouped by rank; one box per event; a legend with the kinds that occur and their total
 * time.
 *
 *   rank 0  worker 0  |■■ pull ■■|  wait  |■ push ■|
 *           worker 1  |   wait   |■■■ gate+up ■■■■|
 *
 * Work is coloured by kind, waiting is pale. Boxes carry a tooltip with name, index, pass and length. Where that would make a large file, all
 * boxes of one kind in a lane are one stroke with gaps, without tooltips: a sixth of the bytes.
 */
#include "trace/timeline.h"

#include <inttypes.h>

#include "trace/event.h"

enum { MAX_KINDS = 256, MOST_BOXES = 1500 /* 200 KB */ };

static const double left = 150, top = 40, width = 1400, lane_height = 16, rank_gap = 10, legend_width = 280;

struct picture {
    double scale;  /* pixels per nanosecond */
    double y;      /* top of the lane being drawn */
    double height; /* of the whole picture */
    int64_t longest_ns;
    int64_t num_boxes;
    double total_ns[MAX_KINDS];
};

/* Colours far apart for kinds that follow each other: the golden angle, two lightnesses. */
static void print_colour(FILE *out, int32_t kind)
{
    int is_work = kind < mok_event_first_wait();
    if (kind == MOK_EVENT_KERNEL) { /* work lies inside */
        fputs("#bbb", out);
        return;
    }
    fprintf(out, "hsl(%d,%d%%,%d%%)", (int)((int64_t)kind * 1375 / 10 % 360), is_work ? 65 : 35, is_work ? 42 + kind % 2 * 16 : 88);
}

/* One look at all events before anything is drawn: an SVG file states its size first. */
static void measure(const struct mok_timeline_rank *ranks, int32_t num_ranks, struct picture *picture)
{
    int64_t num_lanes = 0;
    int num_kinds = 0;
    for (int32_t idx = 0; idx < num_ranks; idx++) {
        int32_t last = -1;
        picture->num_boxes += ranks[idx].num_events;
        for (int64_t at = 0; at < ranks[idx].num_events; at++) {
            const mok_event *event = &ranks[idx].events[at];
            int64_t end = event->end_ns - ranks[idx].zero_ns;
            picture->longest_ns = end > picture->longest_ns ? end : picture->longest_ns;
            num_lanes += event->worker != last;
            last = event->worker;
            if (event->kind >= 0 && event->kind < MAX_KINDS) {
                num_kinds += picture->total_ns[event->kind] == 0;
                picture->total_ns[event->kind] +=
                    (double)(event->end_ns - event->begin_ns) + 1e-3; /* a kind of length 0 counts once, too */
            }
        }
    }
    int per_line = (int)(width / legend_width);
    picture->scale = width / (double)picture->longest_ns;
    picture->y = top;
    picture->height = top + (double)num_lanes * lane_height + num_ranks * rank_gap +
                      (double)((num_kinds + per_line - 1) / per_line + 2) * (lane_height + 2);
}

static void write_box(FILE *out, const struct picture *picture, const struct mok_timeline_rank *rank, const mok_event *event)
{
    double length = (double)(event->end_ns - event->begin_ns);
    fprintf(out, "<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\" fill=\"",
            left + (double)(event->begin_ns - rank->zero_ns) * picture->scale, picture->y,
            length * picture->scale < 0.2 ? 0.2 : length * picture->scale, lane_height - 3);
    print_colour(out, event->kind);
    fprintf(out, "\"><title>%s %" PRId64 ", pass %" PRId64 ", %.1f us</title></rect>\n", mok_event_name(event->kind), event->index,
            event->pass, length * 1e-3);
}

/* Events [from, to) of one worker that are of this kind, as one stroke; steps from one to the next in tenths of a pixel. */
static void write_stroke(FILE *out, const struct picture *picture, const struct mok_timeline_rank *rank, int64_t from, int64_t to, int32_t kind)
{
    int64_t at = 0;
    int has_any = 0;
    for (int64_t idx = from; idx < to; idx++) {
        const mok_event *event = &rank->events[idx];
        if (event->kind != kind) {
            continue;
        }
        int64_t begin = (int64_t)((left + (double)(event->begin_ns - rank->zero_ns) * picture->scale) * 10.0 + 0.5);
        int64_t length = (int64_t)((double)(event->end_ns - event->begin_ns) * picture->scale * 10.0 + 0.5);
        length = length < 2 ? 2 : length; /* visible */
        if (!has_any) {
            fprintf(out, "<path transform=\"scale(.1)\" stroke-width=\"%.0f\" stroke=\"", (lane_height - 3) * 10.0);
            print_colour(out, kind);
            fprintf(out, "\" d=\"M%" PRId64 " %.0fh%" PRId64, begin, (picture->y + (lane_height - 3) / 2) * 10.0, length);
        } else {
            fprintf(out, "m%" PRId64 " 0h%" PRId64, begin - at, length);
        }
        has_any = 1;
        at = begin + length;
    }
    fputs(has_any ? "\"/>\n" : "", out);
}

/* Long events first: what lies inside another one is seen. Waits are inside work, and kinds of waits have the higher numbers. */
static void write_strokes(FILE *out, const struct picture *picture, const struct mok_timeline_rank *rank, int64_t from, int64_t to)
{
    for (int32_t kind = 0; kind < MAX_KINDS; kind++) {
        if (picture->total_ns[kind] > 0) {
            write_stroke(out, picture, rank, from, to, kind);
        }
    }
}

static void write_rank(FILE *out, struct picture *picture, const struct mok_timeline_rank *rank)
{
    for (int64_t from = 0, to; from < rank->num_events; from = to) {
        int32_t worker = rank->events[from].worker;
        for (to = from; to < rank->num_events && rank->events[to].worker == worker; to++) {
        }
        char name[32];
        mok_timeline_name(rank, worker, name, sizeof name);
        fprintf(out, "<text x=\"4\" y=\"%.0f\">rank %" PRId32 " %s</text>\n", picture->y + lane_height - 5, rank->rank, name);
        if (picture->num_boxes > MOST_BOXES) {
            write_strokes(out, picture, rank, from, to);
        }
        for (int64_t idx = from; idx < to && picture->num_boxes <= MOST_BOXES; idx++) {
            write_box(out, picture, rank, &rank->events[idx]);
        }
        picture->y += lane_height;
    }
    picture->y += rank_gap;
}

static void write_axis(FILE *out, int64_t longest)
{
    for (int tick = 0; tick <= 10; tick++) {
        double x = left + width * tick / 10;
        fprintf(out, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">%.3g ms</text>\n", x, top - 12,
                (double)longest * tick / 10 * 1e-6);
        fprintf(out, "<line x1=\"%.0f\" y1=\"%.0f\" x2=\"%.0f\" y2=\"%.0f\" stroke=\"#999\"/>\n", x, top - 8, x, top);
    }
}

static void write_legend(FILE *out, const struct picture *picture)
{
    double x = left;
    double y = picture->y + lane_height;
    for (int32_t kind = 0; kind < MAX_KINDS; kind++) {
        if (picture->total_ns[kind] == 0) {
            continue;
        }
        if (x + legend_width > left + width + 1) {
            x = left;
            y += lane_height + 2;
        }
        fprintf(out, "<rect x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"12\" fill=\"", x, y);
        print_colour(out, kind);
        fprintf(out, "\"/><text x=\"%.0f\" y=\"%.0f\">%s, %.3g ms</text>\n", x + 16, y + 11, mok_event_name(kind),
                picture->total_ns[kind] * 1e-6);
        x += legend_width;
    }
}

int mok_trace_write_svg(FILE *out, const struct mok_timeline_rank *ranks, int32_t num_ranks)
{
    struct picture picture = {.longest_ns = 1};
    measure(ranks, num_ranks, &picture);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" font-size=\"11\">\n",
            left + width + 20, picture.height);
    write_axis(out, picture.longest_ns);
    for (int32_t idx = 0; idx < num_ranks; idx++) {
        write_rank(out, &picture, &ranks[idx]);
    }
    write_legend(out, &picture);
    fputs("</svg>\n", out);
    return !ferror(out);
}
