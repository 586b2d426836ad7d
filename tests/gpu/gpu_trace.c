/*
 * What is traced of the persistent kernels: every task of the walk by the CTA that ran it, pulls and pushes, waits, and the launches around; in both
 * passes, without a changed bit; no more than there is room for; nothing when it is off.
 */
#include <stdlib.h>
#include <string.h>

#include "api/object.h"
#include "base/status.h"
#include "cuda/rank_memory.h"
#include "gpu_layer.h"
#include "pass/site.h"
#include "plan/walk.h"
#include "trace/event.h"
#include "trace/lane.h"

enum {
    ROOM = 4096,         /* events of a worker */
    FEW = 2,             /* of a worker, when there is too little room */
    MAX_EVENTS = 1 << 20, /* of a rank */
    NUM_KINDS = MOK_TASK_WGRAD_ZERO + 1,
    UNIT_TILES = 2 /* a cluster runs the steps of both of its places, also when the second has no tile */
};

/* What one kernel recorded, or must have recorded. */
struct count {
    int64_t tasks[NUM_KINDS];
    int64_t pulls, pushes; /* steps; recorded: shares */
    int64_t waits; /* the multiplying warps wait for their first tile, at least */
};

struct trace {
    mok_event *events;
    int64_t num, dropped;
};

/* ---- the walk, on the host ------------------------------------------------------------------------------------------------------ */

static mok_status count_walk(const struct gpu_layer *layer, int backward, struct count *count_out)
{
    const struct mok_pass_setup *setup = &layer->group->setup;
    struct mok_ring ring = backward ? setup->ring_backward : setup->ring_forward;
    struct mok_limits limits = mok_plan_limits(&setup->dims, &ring);
    size_t num_local = (size_t)layer->num_local + 1, num_tiles = (size_t)limits.max_tiles + 1;
    struct mok_schedule_head head;
    int32_t *words = calloc(4 * num_local + num_tiles, sizeof *words);
    int32_t *rows = words, *first = words + num_local, *active = words + 2 * num_local, *ordinal = words + 3 * num_local;
    int32_t *tile_expert = words + 4 * num_local;
    struct mok_walk walk = {.dims = setup->dims, .ring = ring, .backward = backward, .num_comm = 1, .row_group = 1, .pushes_rows = !backward,
                            .zero_grads = backward};
    mok_status status = mok_pass_cuda.schedule_dump(layer->schedule->inner, layer->stream, &head, rows, first, tile_expert, active, NULL);
    memset(count_out, 0, sizeof *count_out);
    if (status == MOK_OK) {
        for (int32_t i = 0; i < layer->num_local; i++) {
            ordinal[active[i]] = i;
        }
        walk.tiles = mok_plan_tiles_cuda(&setup->dims);
        walk.ring.keep_rows = limits.max_rows; /* all */
        walk.schedule = (struct mok_schedule_view){.head = &head, .expert_rows = rows, .expert_first = first, .tile_expert = tile_expert,
                                                   .active = active, .ordinal = ordinal};
        mok_walk_init(&walk);
        for (int64_t i = 0; mok_walk_task(&walk, i).kind != MOK_TASK_NONE; i++) {
            count_out->tasks[mok_walk_task(&walk, i).kind]++;
        }
        for (int64_t i = 0; mok_walk_step(&walk, i).kind != MOK_STEP_NONE; i++) {
            count_out->pulls += mok_walk_step(&walk, i).kind == MOK_STEP_PULL;
            count_out->pushes += mok_walk_step(&walk, i).kind == MOK_STEP_PUSH;
        }
    }
    free(words);
    return status;
}

/* ---- what was recorded ------------------------------------------------------------------------------------------------------------ */

static struct count count_events(const struct trace *trace, const mok_event *kernel)
{
    struct count count;
    memset(&count, 0, sizeof count);
    for (int64_t i = 0; i < trace->num; i++) {
        const mok_event *event = &trace->events[i];
        int32_t role = event->worker > 0 ? mok_lane_role_of(event->worker) : -1, task = event->kind - MOK_EVENT_TASK;
        if (role < 0 || event->begin_ns < kernel->begin_ns || event->end_ns > kernel->end_ns) {
            continue;
        }
        if (role == MOK_LANE_MULTIPLY && task > MOK_TASK_NONE && task < NUM_KINDS) {
            count.tasks[task]++;
        }
        count.pulls += role == MOK_LANE_MOVE && event->kind == MOK_EVENT_PULL;
        count.pushes += role == MOK_LANE_MOVE && event->kind == MOK_EVENT_PUSH;
        count.waits += event->kind >= MOK_EVENT_WAIT;
    }
    return count;
}

/* Events of a worker follow each other; what lies inside another (a wait inside a push) does so whole. */
static int64_t count_disorder(const struct trace *trace)
{
    int64_t num = 0;
    for (int64_t i = 0; i < trace->num; i++) {
        const mok_event *event = &trace->events[i], *before = i > 0 ? event - 1 : NULL;
        num += event->end_ns < event->begin_ns;
        num += before != NULL && (before->worker > event->worker || (before->worker == event->worker && before->begin_ns > event->begin_ns));
    }
    return num;
}

/* The idx-th persistent kernel of the stream; NULL = there are fewer. */
static const mok_event *find_kernel(const struct trace *trace, int idx)
{
    for (int64_t i = 0; i < trace->num && trace->events[i].worker == 0; i++) {
        if (trace->events[i].kind == MOK_EVENT_KERNEL && idx-- == 0) {
            return &trace->events[i];
        }
    }
    return NULL;
}

static int64_t check_pass(const struct gpu_layer *layer, const struct trace *trace, int backward)
{
    const mok_event *kernel = find_kernel(trace, backward);
    const char *name = backward ? "backward" : "forward";
    struct count expected;
    if (kernel == NULL || count_walk(layer, backward, &expected) != MOK_OK) {
        return !gpu_check(0, "rank %d: no trace of the %s kernel", layer->rank, name);
    }
    struct count seen = count_events(trace, kernel);
    int64_t num_wrong = 0;
    for (int32_t kind = 0; kind < NUM_KINDS; kind++) {
        if (seen.tasks[kind] < expected.tasks[kind] || seen.tasks[kind] > UNIT_TILES * expected.tasks[kind]) {
            num_wrong += !gpu_check(0, "rank %d, %s: %lld %s recorded, the walk has %lld", layer->rank, name, (long long)seen.tasks[kind],
                                    mok_event_name(MOK_EVENT_TASK + kind), (long long)expected.tasks[kind]);
        }
    }
    if (seen.pulls < expected.pulls || seen.pushes < expected.pushes || seen.waits == 0) {
        num_wrong += !gpu_check(0, "rank %d, %s: %lld pulls, %lld pushes, %lld waits recorded; %lld pulls, %lld pushes in the walk", layer->rank,
                                name, (long long)seen.pulls, (long long)seen.pushes, (long long)seen.waits, (long long)expected.pulls,
                                (long long)expected.pushes);
    }
    return num_wrong;
}

/* ---- runs -------------------------------------------------------------------------------------------------------------------------- */

/* One forward and backward with room for max_events a worker, 0 = off. */
static mok_status run_traced(struct gpu_layer *layer, int64_t max_events, char *outputs, struct trace *trace)
{
    mok_status status = mok_group_wait(layer->group, layer->stream, -1);
    status = status == MOK_OK ? mok_group_trace(layer->group, max_events) : status;
    gpu_layer_poison(layer, 0xab);
    gpu_meet(); /* with or without a failure */
    MOK_TRY(status);
    MOK_TRY(gpu_layer_enqueue(layer));
    MOK_TRY(gpu_layer_outputs(layer, outputs));
    return mok_group_trace_take(layer->group, trace->events, MAX_EVENTS, &trace->num, &trace->dropped);
}

static void trace_work(struct gpu_run *run, struct gpu_layer *layer)
{
    char *plain = malloc(layer->outputs_bytes), *traced = malloc(layer->outputs_bytes);
    struct trace trace = {.events = malloc(MAX_EVENTS * sizeof *trace.events)};
    int64_t *num_wrong = &run->num_wrong[layer->rank];
    gpu_layer_inputs(layer, 8);
    gpu_run_note(run, layer->rank, run_traced(layer, 0, plain, &trace));
    *num_wrong += trace.num != 0 || trace.dropped != 0;
    gpu_run_note(run, layer->rank, run_traced(layer, ROOM, traced, &trace));
    *num_wrong += memcmp(plain, traced, layer->outputs_bytes) != 0;
    if (trace.dropped != 0 || trace.num > MAX_EVENTS || count_disorder(&trace) > 0) {
        *num_wrong += !gpu_check(0, "rank %d: %lld events, %lld dropped, %lld out of order", layer->rank, (long long)trace.num,
                                 (long long)trace.dropped, (long long)count_disorder(&trace));
    } else {
        *num_wrong += check_pass(layer, &trace, 0) + check_pass(layer, &trace, 1);
    }
    gpu_run_note(run, layer->rank, run_traced(layer, FEW, traced, &trace));
    *num_wrong += memcmp(plain, traced, layer->outputs_bytes) != 0 || trace.dropped == 0;
    for (int64_t i = FEW; i < trace.num; i++) {
        *num_wrong += trace.events[i].worker == trace.events[i - FEW].worker;
    }
    gpu_run_note(run, layer->rank, run_traced(layer, 0, traced, &trace));
    *num_wrong += trace.num != 0;
    free(trace.events);
    free(plain);
    free(traced);
}

int main(void)
{
    static const struct {
        int32_t num_ranks, minibatch_rows, ring_minibatches;
    } runs[] = {{1, 0, 0}, {2, 0, 0}, {3, 128, 2}};
    if (gpu_count() == 0) {
        gpu_skip("trace: no GPU");
        return gpu_finish();
    }
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        struct gpu_run run = {.num_ranks = runs[i].num_ranks,
                              .path = MOK_PATH_FUSED,
                              .minibatch_rows = runs[i].minibatch_rows,
                              .ring_minibatches = runs[i].ring_minibatches,
                              .work = trace_work};
        gpu_check(gpu_run_all(&run), "trace of both kernels, %d ranks, minibatch %d: every task, and the same bits", run.num_ranks, run.minibatch_rows);
    }
    return gpu_finish();
}
