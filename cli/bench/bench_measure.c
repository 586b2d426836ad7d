/*
 * See bench/bench_measure.h.
 *
 * Meetings. Every rank comes to every meeting, also after a failure of its own: the others would wait for it. A function that takes
 * `status` and returns it does its part only while it is MOK_OK.
 */
#include "bench/bench_measure.h"

#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "stage_times.h"

enum { HOLD_LIMIT_MS = 20000, MAX_EVENTS = 4096, MARK_BEGIN = 0, MARK_SCHEDULED = 1, MARK_END = 2 };

/* ---- marks -------------------------------------------------------------------------------------------------------------- */

static mok_status mark(struct mok_bench_gpu *gpu, int idx)
{
    return mok_bench_check(gpu, cudaEventRecord((cudaEvent_t)gpu->marks[idx], (cudaStream_t)gpu->stream), "mark");
}

static mok_status time_between(struct mok_bench_gpu *gpu, int from, int to, double *ms_out)
{
    float ms = 0.0f;
    MOK_TRY(mok_bench_check(gpu, cudaEventElapsedTime(&ms, (cudaEvent_t)gpu->marks[from], (cudaEvent_t)gpu->marks[to]), "time"));
    *ms_out = ms;
    return MOK_OK;
}

/* Overwrites what earlier work left in the caches. */
static mok_status scrub(struct mok_bench_gpu *gpu)
{
    return mok_bench_check(gpu, cudaMemsetAsync(gpu->copy + MOK_BENCH_COPY_BYTES, 0, MOK_BENCH_COPY_BYTES, (cudaStream_t)gpu->stream),
                           "scrub");
}

/* ---- behind the gate ---------------------------------------------------------------------------------------------------- */

/* What is timed, with its marks. */
static mok_status enqueue_timed(struct mok_bench_gpu *gpu, enum mok_bench_pass pass, int32_t lane, int32_t set)
{
    int is_backward = pass == MOK_BENCH_BACKWARD;
    MOK_TRY(mark(gpu, MARK_BEGIN));
    if (!is_backward) {
        MOK_TRY(mok_bench_enqueue_schedule(gpu, lane, set));
    }
    MOK_TRY(mark(gpu, MARK_SCHEDULED));
    MOK_TRY(is_backward ? mok_bench_enqueue_backward(gpu, lane, set)
                        : mok_bench_enqueue_forward(gpu, lane, set, pass == MOK_BENCH_ZERO_COPY));
    return mark(gpu, MARK_END);
}

static mok_status enqueue_held(struct mok_bench_seat *seat, enum mok_bench_pass pass, int32_t lane, int32_t set)
{
    struct mok_bench_gpu *gpu = seat->gpu;
    if (pass == MOK_BENCH_ZERO_COPY) {
        size_t bytes = 2 * (size_t)gpu->settings->shape.tokens * (size_t)gpu->settings->shape.hidden;
        MOK_TRY(mok_bench_check(
            gpu,
            cudaMemcpyAsync(gpu->lanes[lane].saved_input, gpu->sets[set].x, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)gpu->stream),
            "copy of x"));
    }
    MOK_TRY(scrub(gpu));
    MOK_TRY(mok_bench_check(
        gpu, mok_bench_hold(seat->job->facts.gate, gpu->rank, seat->round, (uint64_t)HOLD_LIMIT_MS * 1000000, gpu->stream), "gate"));
    return enqueue_timed(gpu, pass, lane, set);
}

/* Waits on the host until this rank's GPU stands at the gate. */
static mok_status wait_arrival(struct mok_bench_seat *seat)
{
    const uint32_t *arrived = &seat->job->facts.gate->arrived[seat->gpu->rank];
    double limit = mok_stage_now_ms() + HOLD_LIMIT_MS;
    while (__atomic_load_n(arrived, __ATOMIC_ACQUIRE) != seat->round) {
        if (mok_stage_now_ms() > limit) {
            return mok_cli_fail(MOK_ERR_TIMEOUT, "rank %" PRId32 ": its GPU did not come to the gate in %d ms", seat->gpu->rank,
                                HOLD_LIMIT_MS);
        }
    }
    return MOK_OK;
}

static mok_status check_gate(struct mok_bench_seat *seat)
{
    int has_given_up = __atomic_load_n(&seat->job->facts.gate->given_up[seat->gpu->rank], __ATOMIC_ACQUIRE) != 0;
    return has_given_up ? mok_cli_fail(MOK_ERR_TIMEOUT, "rank %" PRId32 ": the gate stayed shut for %d ms: a call waited for the device",
                                       seat->gpu->rank, HOLD_LIMIT_MS)
                        : MOK_OK;
}

/* Runs a pass on all ranks at once, started by one word. */
static mok_status run_held(struct mok_bench_seat *seat, mok_status status, enum mok_bench_pass pass, int32_t lane, int32_t set)
{
    struct mok_bench_gpu *gpu = seat->gpu;
    seat->round++;
    if (status == MOK_OK) {
        status = enqueue_held(seat, pass, lane, set);
    }
    if (status == MOK_OK) {
        status = wait_arrival(seat);
    }
    mok_team_wait(seat->team);
    if (gpu->rank == 0) {
        __atomic_store_n(&seat->job->facts.gate->go, seat->round, __ATOMIC_RELEASE);
    }
    if (status == MOK_OK) {
        status = mok_bench_wait(gpu, lane);
    }
    if (status == MOK_OK) {
        status = check_gate(seat);
    }
    if (status != MOK_OK) {
        mok_bench_gpu_abort(gpu);
    }
    mok_team_wait(seat->team);
    return status;
}

mok_status mok_bench_run_pass(struct mok_bench_seat *seat, mok_status status, enum mok_bench_pass pass, int32_t lane, int32_t set,
                              double *ms_out)
{
    status = run_held(seat, status, pass, lane, set);
    return status == MOK_OK ? time_between(seat->gpu, MARK_BEGIN, MARK_END, ms_out) : status;
}

/* ---- yardsticks --------------------------------------------------------------------------------------------------------- */

/* The dense products of the rank, one behind the other. A sample of the machine is taken while they run. */
static mok_status run_dense(struct mok_bench_seat *seat, int32_t set)
{
    struct mok_bench_gpu *gpu = seat->gpu;
    MOK_TRY(scrub(gpu));
    MOK_TRY(mark(gpu, 0));
    for (int gemm = 0; gemm < MOK_BENCH_NUM_GEMMS; gemm++) {
        struct mok_bench_product product = mok_bench_gemm_product(&gpu->sets[set].sizes, (enum mok_bench_gemm)gemm);
        MOK_TRY(mok_bench_cublas_multiply(&gpu->dense, &product));
        MOK_TRY(mark(gpu, gemm + 1));
    }
    if (gpu->rank == 0) {
        seat->job->sample = mok_bench_machine_sample(&seat->job->machine);
    }
    MOK_TRY(mok_bench_wait(gpu, 0));
    for (int gemm = 0; gemm < MOK_BENCH_NUM_GEMMS; gemm++) {
        struct mok_bench_product product = mok_bench_gemm_product(&gpu->sets[set].sizes, (enum mok_bench_gemm)gemm);
        MOK_TRY(time_between(gpu, gemm, gemm + 1, &seat->times->gemm_ms[gemm]));
        if (product.m == 0 || product.n == 0 || product.k == 0) {
            seat->times->gemm_ms[gemm] = 0.0; /* two marks, nothing between */
        }
    }
    return MOK_OK;
}

/* from device's random half to device to's other half. */
static mok_status time_copy(struct mok_bench_gpu *gpu, char *to, int32_t to_device, double *ms_out)
{
    MOK_TRY(mark(gpu, MARK_BEGIN));
    MOK_TRY(mok_bench_check(gpu,
                            cudaMemcpyPeerAsync(to + MOK_BENCH_COPY_BYTES, to_device, gpu->copy, gpu->device, MOK_BENCH_COPY_BYTES,
                                                (cudaStream_t)gpu->stream),
                            "copy"));
    MOK_TRY(mark(gpu, MARK_END));
    MOK_TRY(mok_bench_wait(gpu, 0));
    return time_between(gpu, MARK_BEGIN, MARK_END, ms_out);
}

/* Ranks that share a GPU take turns with the dense products; its first rank copies, all GPUs at once, each to the next one. */
mok_status mok_bench_run_yardsticks(struct mok_bench_seat *seat, mok_status status, int32_t set)
{
    struct mok_bench_gpu *gpu = seat->gpu;
    int32_t num_turns = (gpu->num_ranks + gpu->num_devices - 1) / gpu->num_devices;
    for (int32_t turn = 0; turn < num_turns; turn++) {
        if (status == MOK_OK && gpu->cublas != NULL && gpu->rank / gpu->num_devices == turn) {
            status = run_dense(seat, set);
        }
        mok_team_wait(seat->team);
    }
    int is_first = gpu->rank < gpu->num_devices;
    if (status == MOK_OK && is_first) {
        status = time_copy(gpu, gpu->copy, gpu->device, &seat->times->copy_ms);
    }
    mok_team_wait(seat->team);
    if (status == MOK_OK && is_first && gpu->num_devices > 1) {
        const struct mok_bench_gpu *next = &seat->job->gpus[(gpu->rank + 1) % gpu->num_devices];
        status = time_copy(gpu, next->copy, next->device, &seat->times->link_ms);
    }
    if (status != MOK_OK) {
        mok_bench_gpu_abort(gpu);
    }
    mok_team_wait(seat->team);
    return status;
}

/* ---- stages ------------------------------------------------------------------------------------------------------------- */

/* Adds what the trace has of the pass that is over. */
static mok_status take_stages(struct mok_bench_seat *seat, int32_t lane, int is_backward)
{
    const mok_event *events = seat->events;
    int64_t num = 0, num_dropped = 0;
    MOK_TRY(mok_cli_check(mok_group_trace_take(seat->gpu->lanes[lane].group, seat->events, MAX_EVENTS, &num, &num_dropped)));
    if (num_dropped > 0 || num > MAX_EVENTS) {
        return mok_cli_fail(MOK_ERR_MEMORY, "rank %" PRId32 ": a pass has more than %d stages", seat->gpu->rank, MAX_EVENTS);
    }
    for (int64_t idx = 0; idx < num; idx++) {
        int stage = mok_bench_find_stage(events[idx].kind, is_backward);
        if (stage >= 0) {
            seat->times->stage_ms[stage] += (double)(events[idx].end_ns - events[idx].begin_ns) * 1e-6;
        }
    }
    return MOK_OK;
}

/* The staged lane stands last. */
static mok_status run_stages(struct mok_bench_seat *seat, mok_status status, int32_t set)
{
    int32_t lane = seat->gpu->num_lanes - 1;
    memset(seat->times->stage_ms, 0, sizeof seat->times->stage_ms);
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        status = run_held(seat, status, is_backward ? MOK_BENCH_BACKWARD : MOK_BENCH_FORWARD, lane, set);
        if (status == MOK_OK) {
            status = take_stages(seat, lane, is_backward);
        }
    }
    return status;
}

/* ---- rounds ------------------------------------------------------------------------------------------------------------- */

static mok_status run_layer(struct mok_bench_seat *seat, mok_status status, int32_t set)
{
    struct mok_bench_gpu *gpu = seat->gpu;
    for (int32_t lane = 0; lane < seat->job->num_lanes; lane++) {
        if (gpu->settings->is_zero_copy) {
            status = mok_bench_run_pass(seat, status, MOK_BENCH_ZERO_COPY, lane, set, &seat->times->zero_copy_ms[lane]);
            if (status == MOK_OK) {
                status = mok_cli_check(mok_saved_release(gpu->lanes[lane].saved));
            }
        }
        status = mok_bench_run_pass(seat, status, MOK_BENCH_FORWARD, lane, set, &seat->times->layer_ms[lane][0]);
        if (status == MOK_OK) {
            status = time_between(gpu, MARK_BEGIN, MARK_SCHEDULED, &seat->times->schedule_ms[lane]);
        }
        status = mok_bench_run_pass(seat, status, MOK_BENCH_BACKWARD, lane, set, &seat->times->layer_ms[lane][1]);
    }
    return status;
}

/* The layer, or its stages. Runs that are not timed come first. */
static mok_status run_round(struct mok_bench_seat *seat, mok_status status, int64_t num_warmups, int is_stages)
{
    struct mok_bench_run *runs = is_stages ? seat->job->stage_runs : seat->job->layer_runs;
    int64_t num_repeats = seat->job->facts.settings->num_repeats;
    for (int64_t run = -num_warmups; run < num_repeats; run++) {
        int32_t set = (int32_t)((run + num_warmups) % MOK_BENCH_NUM_SETS);
        status = is_stages ? run_stages(seat, status, set) : run_layer(seat, status, set);
        status = mok_bench_run_yardsticks(seat, status, set);
        if (status == MOK_OK && seat->gpu->rank == 0 && run >= 0) {
            mok_bench_fold(seat->job, seat->gpu->num_ranks, set, &runs[run]);
            mok_cli_progress("%s: run %" PRId64 " of %" PRId64, is_stages ? "stages" : "layer", run + 1, num_repeats);
        }
        mok_team_wait(seat->team);
    }
    return status;
}

/* Stages are timed behind the layer: the GPU is warm. */
static mok_status run_stage_round(struct mok_bench_seat *seat, mok_status status)
{
    enum { WARMUPS = 2 };
    int32_t lane = seat->gpu->num_lanes - 1;
    seat->events = malloc(MAX_EVENTS * sizeof *seat->events);
    if (status == MOK_OK) {
        status = seat->events == NULL ? mok_cli_fail(MOK_ERR_MEMORY, "no memory for events")
                                      : mok_cli_check(mok_group_trace(seat->gpu->lanes[lane].group, MAX_EVENTS));
    }
    if (status != MOK_OK) {
        mok_bench_gpu_abort(seat->gpu);
    }
    mok_team_wait(seat->team);
    status = run_round(seat, status, WARMUPS, 1);
    if (status == MOK_OK) {
        status = mok_cli_check(mok_group_trace(seat->gpu->lanes[lane].group, 0));
    }
    free(seat->events);
    return status;
}

static void keep_for_report(struct mok_bench_job *job, const struct mok_bench_gpu *gpu)
{
    job->sizes[gpu->rank] = gpu->sets[MOK_BENCH_NUM_SETS - 1].sizes;
    if (gpu->rank == 0) {
        job->num_lanes = gpu->num_lanes;
        job->cublas_version = gpu->cublas_version;
        for (int32_t lane = 0; lane < gpu->num_lanes; lane++) {
            job->paths[lane] = gpu->lanes[lane].path;
        }
    }
}

mok_status mok_bench_measure(void *context, struct mok_team *team, const mok_group_config *config)
{
    struct mok_bench_job *job = context;
    struct mok_bench_seat seat = {.job = job, .team = team, .gpu = &job->gpus[config->rank], .times = &job->times[config->rank]};
    mok_status status = mok_bench_gpu_open(&job->facts, config, seat.gpu);
    mok_team_wait(team);
    if (status == MOK_OK) {
        status = mok_bench_gpu_count(seat.gpu, job->gpus);
    }
    if (status == MOK_OK) {
        keep_for_report(job, seat.gpu);
    } else {
        mok_bench_gpu_abort(seat.gpu);
    }
    mok_team_wait(team);
    status = run_round(&seat, status, job->facts.settings->num_warmups, 0);
    if (!job->facts.settings->has_no_stages) {
        status = run_stage_round(&seat, status);
    }
    mok_team_wait(team); /* tensors of a GPU are read by others until here */
    mok_status farewell = mok_bench_gpu_close(seat.gpu);
    return status != MOK_OK ? status : farewell;
}
