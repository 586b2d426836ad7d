/*
 * The timeline writers: every event is in both files, at its time, in its lane; the writers say so when the file cannot take it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trace/event.h"
#include "trace/timeline.h"

static const mok_event first_rank[] = {
    {MOK_EVENT_PULL, 0, 3, 7, 1000, 2500},
    {MOK_EVENT_WAIT + 1, 0, 1, 7, 2500, 4500},
    {MOK_EVENT_TASK + 3, 1, 5, 7, 1200, 1200},
};
static const mok_event second_rank[] = {{MOK_EVENT_SUM, 2, 0, 8, 9000, 11000}};

static const struct mok_timeline_rank ranks[] = {
    {.rank = 0, .events = first_rank, .num_events = 3, .zero_ns = 1000},
    {.rank = 1, .events = second_rank, .num_events = 1, .zero_ns = 8000},
    {.rank = 2, .events = NULL, .num_events = 0, .zero_ns = 0},
};

static int count(const char *text, const char *word)
{
    int num = 0;
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        num++;
    }
    return num;
}

/* What a writer writes, as text (malloc). */
static char *written(int (*write)(FILE *, const struct mok_timeline_rank *, int32_t))
{
    enum { ROOM = 1 << 16 };
    char *text = calloc(ROOM, 1);
    FILE *out = tmpfile();
    assert_non_null(text);
    assert_non_null(out);
    assert_int_equal(write(out, ranks, 3), 1);
    rewind(out);
    assert_in_range(fread(text, 1, ROOM - 1, out), 1, ROOM - 2);
    fclose(out);
    return text;
}

static void test_perfetto(void **state)
{
    (void)state;
    char *text = written(mok_trace_write_perfetto);
    assert_int_equal(count(text, "\"ph\":\"X\""), 4);
    assert_int_equal(count(text, "\"process_name\""), 3);
    assert_int_equal(count(text, "\"thread_name\""), 3);
    assert_int_equal(count(text, "\"cat\":\"wait\""), 1);
    assert_non_null(strstr(text, "\"name\":\"pull\",\"pid\":0,\"tid\":0,\"ts\":0.000,\"dur\":1.500,\"args\":{\"index\":3,\"pass\":7}}"));
    assert_non_null(strstr(text, "\"name\":\"sum\",\"pid\":1,\"tid\":2,\"ts\":1.000,\"dur\":2.000"));
    assert_int_equal(count(text, "{"), count(text, "}"));
    assert_int_equal(count(text, "}\n{"), 0); /* a comma between any two */
    assert_string_equal(text + strlen(text) - 4, "\n]}\n");
    free(text);
}

static void test_svg(void **state)
{
    (void)state;
    char *text = written(mok_trace_write_svg);
    assert_int_equal(strncmp(text, "<svg ", 5), 0);
    assert_int_equal(count(text, "<title>"), 4);
    assert_non_null(strstr(text, "<title>pull 3, pass 7, 1.5 us</title>"));
    assert_int_equal(count(text, "rank 0 worker 0") + count(text, "rank 0 worker 1") + count(text, "rank 1 worker 2"), 3);
    assert_int_equal(count(text, "<rect "), 4 + 4); /* boxes, and a legend of four kinds */
    assert_string_equal(text + strlen(text) - 7, "</svg>\n");
    free(text);
}

/* More events than boxes pay for: one stroke a lane and kind, each event at its place in it. */
static void test_svg_of_many(void **state)
{
    (void)state;
    enum { NUM = 2000, ROOM = 1 << 18 };
    mok_event *events = calloc(NUM, sizeof *events);
    char *text = calloc(ROOM, 1);
    FILE *out = tmpfile();
    assert_non_null(events);
    assert_non_null(text);
    assert_non_null(out);
    for (int idx = 0; idx < NUM; idx++) { /* two lanes; in each, work of 600 ns and a wait of 400 in turn: 1400 pixels are 1 ms */
        int at = idx % (NUM / 2);
        events[idx] = (mok_event){at % 2 == 0 ? MOK_EVENT_PULL : MOK_EVENT_WAIT + 1, idx / (NUM / 2), at, 0, at / 2 * 2000 + at % 2 * 600,
                                  at / 2 * 2000 + at % 2 * 1400 + 600};
    }
    const struct mok_timeline_rank rank = {.rank = 0, .events = events, .num_events = NUM, .zero_ns = 0};
    assert_int_equal(mok_trace_write_svg(out, &rank, 1), 1);
    rewind(out);
    assert_in_range(fread(text, 1, ROOM - 1, out), 1, 40 * NUM);
    assert_int_equal(count(text, "<path "), 4);
    assert_int_equal(count(text, "<title>"), 0);
    assert_int_equal(count(text, "h8"), NUM / 2);  /* 600 ns: 0.84 pixels, in tenths */
    assert_int_equal(count(text, "h20"), NUM / 2); /* 1400 ns */
    assert_non_null(strstr(text, "d=\"M1500 465h8m20 0h8m20 0h8"));
    fclose(out);
    free(text);
    free(events);
}

static void test_thinning(void **state)
{
    (void)state;
    mok_event events[1 + 5 * MOK_LANE_ROLES];
    memset(events, 0, sizeof events);
    for (int32_t idx = 1; idx < 1 + 5 * MOK_LANE_ROLES; idx++) {
        events[idx].worker = mok_lane_worker((idx - 1) / MOK_LANE_ROLES, (idx - 1) % MOK_LANE_ROLES);
    }
    assert_int_equal(mok_timeline_thin(events, 1 + 5 * MOK_LANE_ROLES, 1), 1 + 5 * MOK_LANE_ROLES);
    assert_int_equal(mok_timeline_thin(events, 1 + 5 * MOK_LANE_ROLES, 4), 1 + 2 * MOK_LANE_ROLES); /* the stream, CTAs 0 and 4 */
    assert_int_equal(events[0].worker, 0);
    assert_int_equal(events[1].worker, mok_lane_worker(0, 0));
    assert_int_equal(events[1 + MOK_LANE_ROLES].worker, mok_lane_worker(4, 0));
}

static void test_full_disk(void **state)
{
    (void)state;
    FILE *out = fopen("/dev/full", "w");
    if (out == NULL) {
        skip();
    }
    setvbuf(out, NULL, _IONBF, 0);
    assert_int_equal(mok_trace_write_perfetto(out, ranks, 3), 0);
    clearerr(out);
    assert_int_equal(mok_trace_write_svg(out, ranks, 3), 0);
    fclose(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_perfetto), cmocka_unit_test(test_svg), cmocka_unit_test(test_svg_of_many),
                                       cmocka_unit_test(test_thinning), cmocka_unit_test(test_full_disk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
