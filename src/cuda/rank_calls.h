/*
 * What every call of a rank needs: order on its stream, the group's state, the barriers between ranks, sizes of launches, the trace.
 */
#ifndef MOK_CUDA_RANK_CALLS_H
#define MOK_CUDA_RANK_CALLS_H

#include "base/status.h"
#include "cuda/rank_pass.h"

/* ---- calls (rank_calls.c) --------------------------------------------------------------------------------------------------- */

/* Before a call enqueues anything: the group is alive, the stream will do, the rank's device is current, earlier calls come first. */
mok_status mok_cuda_begin_call(struct mok_pass_group *group, mok_stream stream, int32_t *before_out);
/* After it; `status` of what was enqueued. A call that failed half-way aborts the group, because its peers would wait. Returns status. */
mok_status mok_cuda_end_call(struct mok_pass_group *group, mok_stream stream, int32_t before, mok_status status);

mok_status mok_cuda_wait_stream(struct mok_pass_group *group, mok_stream stream, int64_t timeout_ms);

/* ---- state ------------------------------------------------------------------------------------------------------------------ */

mok_status mok_cuda_state(struct mok_pass_group *group, mok_group_state *state_out);
/* The same without the rest. */
mok_status mok_cuda_status_now(const struct mok_pass_group *group);
void mok_cuda_abort(struct mok_pass_group *group);
/* Writes a word of every region, without waiting for the group's work. */
mok_status mok_cuda_raise(struct mok_pass_group *group, int64_t word_off, uint32_t value);

/* Of a query of stream or event. 1 done, 0 not yet; an error of the device ends the group. */
int mok_cuda_is_done(struct mok_pass_group *group, cudaError_t query);
/* limit_ns from now; below 0: never. */
int64_t mok_cuda_deadline_after(int64_t limit_ns);

/* ---- launches --------------------------------------------------------------------------------------------------------------- */

enum mok_cuda_barrier { MOK_CUDA_ENTRY, MOK_CUDA_EXIT }; /* SCHED is part of the schedule's kernels */
enum mok_cuda_barrier_part { MOK_CUDA_ARRIVE = 1, MOK_CUDA_WAIT = 2 };

/* Parts of a barrier of this pass. Ranks that enter different passes (plan/region.h: struct mok_entry) hear of it at ENTRY: each fails with
 * MOK_ERR_DISAGREE. */
mok_status mok_cuda_barrier(const struct mok_cuda_pass *pass, enum mok_cuda_barrier barrier, int parts);

/* Blocks for element-wise work on `num` items, a thread each. */
int32_t mok_cuda_blocks_for(const struct mok_pass_group *group, int64_t num);

/* ---- trace (trace_cuda.c) --------------------------------------------------------------------------------------------------- */

/* Begin or end of a stage; nothing when trace is off. */
mok_status mok_cuda_stage_begin(struct mok_pass_group *group, mok_stream stream);
mok_status mok_cuda_stage_end(struct mok_pass_group *group, int32_t kind, int64_t index, mok_stream stream);

mok_status mok_cuda_trace(struct mok_pass_group *group, int64_t max_events);
mok_status mok_cuda_trace_take(struct mok_pass_group *group, mok_event *events_out, int64_t capacity, int64_t *num_out, int64_t *dropped_out);

#endif
