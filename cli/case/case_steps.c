/*
 * Steps of a case on one group: the work of one rank.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "case/case_run.h"

/* What every rank's thread or process reads. */
struct job {
    const struct mok_case_step *steps;
    int num_steps;
    const struct mok_ref_knobs *knobs;
    const struct mok_case_where *where;
};

static void note(struct mok_case_verdict *verdict, const char *text)
{
    if (verdict->num_differences == 0) {
        snprintf(verdict->difference, sizeof verdict->difference, "%s", text);
    }
    verdict->num_differences++;
}

/* Rows of each local expert, and all with padding, against a count on the host. */
static mok_status check_counts(struct mok_case_batch *batch, struct mok_case_verdict *verdict)
{
    const struct mok_ref_problem *p = batch->problem;
    int32_t first = mok_ref_first_expert(p, batch->rank->rank), num_local = batch->rank->num_local;
    int64_t padded = -1, expected_padded = 0;
    char text[160];
    int64_t *rows = calloc((size_t)num_local + 1, sizeof(int64_t)), *expected = calloc((size_t)num_local + 1, sizeof(int64_t));
    mok_status status =
        rows == NULL || expected == NULL ? MOK_ERR_MEMORY : mok_schedule_counts(batch->schedule, batch->rank->stream, rows, &padded);
    for (int64_t route = 0; status == MOK_OK && route < p->num_tokens * p->top_k; route++) {
        int32_t local = p->ids[route] - first; /* ids are small or far off: the test below holds in both cases */
        if (mok_ref_is_routed(p, route) && local >= 0 && local < num_local) {
            expected[local]++;
        }
    }
    for (int32_t e = 0; status == MOK_OK && e < num_local; e++) {
        expected_padded += (expected[e] + 127) / 128 * 128;
        if (rows[e] != expected[e]) {
            snprintf(text, sizeof text, "rank %d: expert %d has %lld rows, not %lld", batch->rank->rank, first + e, (long long)rows[e],
                     (long long)expected[e]);
            note(verdict, text);
        }
    }
    if (status == MOK_OK && padded != expected_padded) {
        snprintf(text, sizeof text, "rank %d: %lld padded rows, not %lld", batch->rank->rank, (long long)padded,
                 (long long)expected_padded);
        note(verdict, text);
    }
    free(rows);
    free(expected);
    return status;
}

/* In step (meeting not NULL), a rank enqueues when the others' copies are done, and waits when their passes are enqueued. */
static mok_status run_step(const struct job *job, const struct mok_case_step *step, struct mok_case_meeting *meeting,
                           struct mok_case_batch *batch, struct mok_case_verdict *verdict)
{
    struct mok_case_rank *rank = batch->rank;
    MOK_TRY(mok_case_rank_poison(rank, step->poison));
    if (job->where->poison != NULL) {
        MOK_TRY(job->where->poison(rank->group, step->poison));
    }
    MOK_TRY(mok_case_batch_load(batch, step->problem, step->poison));
    mok_case_meet(meeting);
    MOK_TRY(mok_case_batch_build(batch));
    MOK_TRY(mok_case_batch_forward(batch));
    if (rank->region != NULL) { /* backward overwrites the slots */
        mok_case_meet(meeting);
        MOK_TRY(mok_case_batch_wait(rank));
        MOK_TRY(mok_case_batch_slots(batch, step->outputs->y_slots));
        mok_case_meet(meeting);
    }
    MOK_TRY(mok_case_batch_backward(batch));
    mok_case_meet(meeting);
    MOK_TRY(mok_case_batch_wait(rank));
    MOK_TRY(mok_case_batch_slots(batch, step->outputs->dx_slots));
    MOK_TRY(check_counts(batch, verdict));
    return mok_case_batch_collect(batch, step->outputs, &verdict->num_differences, verdict->difference, sizeof verdict->difference);
}

/* Bad ids on all ranks over all steps, and passes. */
static mok_status check_state(const struct job *job, const struct mok_case_rank *rank, struct mok_case_verdict *verdict)
{
    mok_group_state state = {.struct_size = sizeof state};
    uint64_t bad = 0;
    for (int s = 0; s < job->num_steps; s++) {
        const struct mok_ref_problem *p = job->steps[s].problem;
        for (int64_t route = 0; route < p->num_tokens * p->top_k; route++) {
            bad += p->ids[route] < -1 || p->ids[route] >= p->num_experts;
        }
    }
    MOK_TRY(mok_group_status(rank->group, &state));
    if (state.bad_ids != bad || state.passes_done != 2 * (uint64_t)job->num_steps) {
        char text[160];
        snprintf(text, sizeof text, "rank %d: %llu bad ids, not %llu; %llu passes, not %d", rank->rank, (unsigned long long)state.bad_ids,
                 (unsigned long long)bad, (unsigned long long)state.passes_done, 2 * job->num_steps);
        note(verdict, text);
    }
    return MOK_OK;
}

static mok_status run_all_steps(const struct job *job, struct mok_case_meeting *meeting, struct mok_case_rank *rank,
                                struct mok_case_verdict *verdict)
{
    struct mok_case_batch batch;
    MOK_TRY(mok_case_batch_open(&batch, rank, 0));
    mok_status status = MOK_OK;
    for (int s = 0; s < job->num_steps && status == MOK_OK; s++) {
        status = run_step(job, &job->steps[s], meeting, &batch, verdict);
    }
    status = status == MOK_OK ? check_state(job, rank, verdict) : status;
    mok_case_batch_close(&batch);
    return status;
}

static void rank_main(const struct mok_case_join *join, void *context, struct mok_case_verdict *verdict)
{
    const struct job *job = context;
    struct mok_case_rank rank;
    verdict->status = mok_case_rank_open(&rank, job->steps[0].problem, job->knobs, join);
    if (verdict->status != MOK_OK) {
        mok_case_meet_no_more(join->meeting);
        return;
    }
    verdict->status = run_all_steps(job, join->meeting, &rank, verdict);
    mok_case_meet_no_more(join->meeting);
    if (verdict->status != MOK_OK) {
        snprintf(verdict->message, sizeof verdict->message, "%s", mok_last_error());
        (void)mok_group_abort(rank.group);
    }
    mok_status left = mok_case_rank_close(&rank);
    verdict->status = verdict->status == MOK_OK ? left : verdict->status;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct mok_ref_scope mok_case_scope(const struct mok_ref_problem *problem, const struct mok_case_where *where)
{
    return where->ranks == MOK_CASE_MPI ? (struct mok_ref_scope){where->rank, 1} : (struct mok_ref_scope){0, problem->num_ranks};
}

void mok_case_run_steps(const struct mok_case_step *steps, int num_steps, const struct mok_ref_knobs *knobs,
                        const struct mok_case_where *where, struct mok_case_result *result_out)
{
    struct job job = {steps, num_steps, knobs, where};
    struct mok_case_verdict verdict;
    double began = seconds();
    int has_slots = where->ranks == MOK_CASE_EXTERNAL || where->ranks == MOK_CASE_PROCESSES;
    for (int s = 0; s < num_steps && !has_slots; s++) {
        steps[s].outputs->y_slots = NULL;
        steps[s].outputs->dx_slots = NULL;
    }
    mok_case_launch(where, steps[0].problem, knobs, knobs->saved_input == 2 ? 2 : 1, rank_main, &job, &verdict, &result_out->status_rank);
    result_out->status = verdict.status;
    memcpy(result_out->message, verdict.message, sizeof result_out->message);
    if (result_out->num_differences == 0) {
        memcpy(result_out->difference, verdict.difference, sizeof result_out->difference);
    }
    result_out->num_differences += verdict.num_differences;
    result_out->num_steps += num_steps;
    result_out->backend_s += seconds() - began;
}

mok_status mok_case_run_problem(const struct mok_ref_problem *problem, const struct mok_ref_knobs *knobs,
                                const struct mok_case_where *where, int poison, struct mok_ref_outputs *outputs_out,
                                struct mok_case_result *result_out)
{
    struct mok_case_step step = {problem, outputs_out, poison};
    memset(result_out, 0, sizeof *result_out);
    mok_case_run_steps(&step, 1, knobs, where, result_out);
    return result_out->status;
}
