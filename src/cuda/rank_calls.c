/*
 * State of a rank, order of its calls, its launches of a barrier. See rank_calls.h.
 */
#include "cuda/rank_calls.h"

#include <inttypes.h>
#include <string.h>

#include "cuda/device.h"
#include "cuda/rank_pass.h"
#include "pass/site.h"
#include "trace/event.h"

enum {
    WARP = 32,
    ELEMENT_THREADS = 256,
    ELEMENT_BLOCKS = 8 /* of an SM */
};

/* ---- state ------------------------------------------------------------------------------------------------------------------ */

/* is_host_out: the host has found it, the record says nothing of it. */
static mok_status look(const struct mok_pass_group *group, int *is_host_out)
{
    int32_t status = __atomic_load_n(&group->host_fault, __ATOMIC_ACQUIRE);
    *is_host_out = status != MOK_OK;
    return (mok_status)(*is_host_out ? status : __atomic_load_n(&group->record->status, __ATOMIC_ACQUIRE));
}

mok_status mok_cuda_status_now(const struct mok_pass_group *group)
{
    int is_host;
    return look(group, &is_host);
}

/* The first fault stands. Not in the kernels' record: they write that when they see the abort word that follows. */
static void note_on_host(struct mok_pass_group *group, mok_status status)
{
    int32_t none = MOK_OK;
    if (mok_cuda_status_now(group) == MOK_OK) {
        __atomic_compare_exchange_n(&group->host_fault, &none, (int32_t)status, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
}

mok_status mok_cuda_state(struct mok_pass_group *group, mok_group_state *state_out)
{
    const volatile struct mok_cuda_record *record = group->record;
    int is_host;
    mok_status status = look(group, &is_host);
    state_out->bad_ids = record->bad_ids;
    state_out->passes_done = record->passes_done;
    memset(&state_out->fault, 0, sizeof state_out->fault);
    state_out->fault.status = status;
    if (is_host) {
        state_out->fault.rank = group->setup.dims.rank;
    } else if (status != MOK_OK) {
        state_out->fault.site = record->site;
        state_out->fault.rank = record->rank;
        state_out->fault.block = record->block;
        state_out->fault.index = record->index;
        state_out->fault.expected = record->expected;
        state_out->fault.seen = record->seen;
    }
    return status;
}

/* MOK_ERR_DEVICE has a sentence here, because a call that itself meets an error of CUDA has one, too, and src/api keeps it. */
static mok_status check_alive(const struct mok_pass_group *group)
{
    mok_status status = mok_cuda_status_now(group);
    if (status != MOK_ERR_DEVICE) {
        return status;
    }
    return mok_base_fail(status, "rank %" PRId32 ": the group is dead (%s)", group->setup.dims.rank, mok_status_name(status));
}

mok_status mok_cuda_raise(struct mok_pass_group *group, int64_t word_off, uint32_t value)
{
    struct mok_cuda_raise_args args = {.watch = group->watch, .word_off = word_off, .value = value};
    return mok_cuda_launch(MOK_CUDA_RAISE, 1, (int32_t)mok_min64(group->setup.dims.num_ranks, 256), 0, &args, group->own_stream);
}

static void abort_with(struct mok_pass_group *group, mok_status status)
{
    int32_t before = 0;
    note_on_host(group, status);
    if (mok_cuda_enter_device(group->device, &before) == MOK_OK) {
        (void)mok_cuda_raise(group, group->setup.region.abort, 1u + (uint32_t)group->setup.dims.rank);
        mok_cuda_leave_device(group->device, before);
    }
}

void mok_cuda_abort(struct mok_pass_group *group) { abort_with(group, MOK_ERR_ABORTED); }

/* ---- calls ------------------------------------------------------------------------------------------------------------------ */

/* Several ranks on one GPU must not meet on one default stream: the first would wait for what stands behind it. */
static mok_status check_stream(const struct mok_pass_group *group, mok_stream stream)
{
    if (group->ranks_here > 1 && (stream == NULL || (cudaStream_t)stream == cudaStreamLegacy)) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "stream is the default stream: with %" PRId32 " ranks of the group on device %" PRId32
                             " each needs a stream of its own", group->ranks_here, group->device);
    }
    return MOK_OK;
}

static int is_capturing(mok_stream stream)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing((cudaStream_t)stream, &capture);
    (void)cudaGetLastError();
    return error != cudaSuccess || capture != cudaStreamCaptureStatusNone;
}

mok_status mok_cuda_begin_call(struct mok_pass_group *group, mok_stream stream, int32_t *before_out)
{
    MOK_TRY(check_alive(group));
    MOK_TRY(check_stream(group, stream));
    MOK_TRY(mok_cuda_enter_device(group->device, before_out));
    if (group->has_last && !is_capturing(stream)) {
        mok_status status = mok_cuda_check(cudaStreamWaitEvent((cudaStream_t)stream, group->last_done, 0), "order of the group's calls");
        if (status != MOK_OK) {
            mok_cuda_leave_device(group->device, *before_out);
            return status;
        }
    }
    return MOK_OK;
}

mok_status mok_cuda_end_call(struct mok_pass_group *group, mok_stream stream, int32_t before, mok_status status)
{
    if (status == MOK_OK && !is_capturing(stream)) {
        status = mok_cuda_check(cudaEventRecord(group->last_done, (cudaStream_t)stream), "order of the group's calls");
        group->has_last = status == MOK_OK;
    }
    mok_cuda_leave_device(group->device, before);
    if (status != MOK_OK) {
        abort_with(group, status);
    }
    return status;
}

int mok_cuda_is_done(struct mok_pass_group *group, cudaError_t query)
{
    if (query == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return 0;
    }
    if (query != cudaSuccess) {
        (void)mok_cuda_check(query, "work of the group");
        note_on_host(group, MOK_ERR_DEVICE);
    }
    return query == cudaSuccess;
}

int64_t mok_cuda_deadline_after(int64_t limit_ns)
{
    int64_t now = mok_cuda_now_ns();
    return limit_ns < 0 || limit_ns > INT64_MAX - now ? INT64_MAX : now + limit_ns;
}

mok_status mok_cuda_wait_stream(struct mok_pass_group *group, mok_stream stream, int64_t timeout_ms)
{
    int64_t deadline = mok_cuda_deadline_after(timeout_ms < 0 || timeout_ms > INT64_MAX / 1000000 ? -1 : timeout_ms * 1000000);
    int32_t turns = 0, before = 0;
    MOK_TRY(mok_cuda_enter_device(group->device, &before));
    mok_status status = MOK_OK;
    while (!mok_cuda_is_done(group, cudaStreamQuery((cudaStream_t)stream)) && status == MOK_OK) {
        if (mok_cuda_now_ns() >= deadline) {
            status = mok_base_fail(MOK_ERR_TIMEOUT, "rank %" PRId32 ": the stream was not done after %" PRId64 " ms; the group is healthy",
                                   group->setup.dims.rank, timeout_ms);
        }
        mok_status failure = check_alive(group);
        status = failure != MOK_OK ? failure : status;
        mok_cuda_pause(&turns);
    }
    mok_cuda_leave_device(group->device, before);
    return status == MOK_OK ? check_alive(group) : status;
}

/* ---- launches --------------------------------------------------------------------------------------------------------------- */

/* What this rank enters, but for the number of the schedule's build, which the device knows. */
static uint64_t tag_of(const struct mok_cuda_pass *pass)
{
    const struct mok_entry entry = {
        .backward = pass->backward != NULL,
        .saved = pass->saved == NULL ? -1 : (int32_t)(pass->saved - pass->group->saved),
    };
    return mok_plan_entry_tag(entry);
}

mok_status mok_cuda_barrier(const struct mok_cuda_pass *pass, enum mok_cuda_barrier barrier, int parts)
{
    struct mok_pass_group *group = pass->group;
    const struct mok_region *region = &group->setup.region;
    struct mok_cuda_control *control = group->control;
    struct mok_cuda_barrier_args args = {
        .watch = group->watch,
        .arrives = (parts & MOK_CUDA_ARRIVE) != 0,
        .waits = (parts & MOK_CUDA_WAIT) != 0,
    };
    switch (barrier) {
    case MOK_CUDA_ENTRY:
        args.words_off = region->entry;
        args.tags_off = region->entry_tag;
        args.tag = tag_of(pass);
        args.build = &pass->schedule->arrays.head->build;
        args.epoch = &control->pass;
        args.ok = &control->pass_ok;
        args.ahead = 1;
        args.site = MOK_SITE_ENTRY_BARRIER;
        break;
    case MOK_CUDA_EXIT: /* of the pass whose ENTRY completed */
        args.words_off = region->exit;
        args.epoch = &control->pass;
        args.ok = &control->pass_ok;
        args.needs = &control->pass_ok;
        args.site = MOK_SITE_EXIT_BARRIER;
        break;
    }
    int32_t threads = (int32_t)mok_min64(MOK_CUDA_ONE_BLOCK, mok_round_up(group->setup.dims.num_ranks, WARP));
    MOK_TRY(mok_cuda_stage_begin(group, pass->stream));
    MOK_TRY(mok_cuda_launch(MOK_CUDA_BARRIER, 1, threads, 0, &args, pass->stream));
    return mok_cuda_stage_end(group, MOK_EVENT_WAIT + args.site, 0, pass->stream);
}

int32_t mok_cuda_blocks_for(const struct mok_pass_group *group, int64_t num)
{
    int64_t most = mok_max64(group->move_ctas, group->gemm_ctas) * ELEMENT_BLOCKS; /* nothing else runs then */
    return (int32_t)mok_max64(1, mok_min64(most, mok_ceil_div(num, ELEMENT_THREADS)));
}
