/*
 * Runs a problem through the ops of the CPU backend, ranks as threads, and reads everything back: outputs, slots, the shared expert's rows.
 * Workspace and outputs are poisoned before each pass, so whatever is read without having been written shows.
 */
#ifndef MOK_TEST_CPU_RUN_H
#define MOK_TEST_CPU_RUN_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/setup.h"
#include "cpu/cpu.h"
#include "ref/cases.h"
#include "ref/compare.h"

struct cpu_run {
    int32_t minibatch_rows, ring_minibatches, look_ahead; /* 0 = automatic */
    int64_t keep_rows;                                    /* MOK_KEEP_ALL for all */
    int32_t comm_workers, compute_workers;                /* 0 = automatic */
    int32_t poison;                                       /* byte */
    int64_t delay_us;                                     /* test hook */
    int32_t is_inference;                                 /* forward keeps nothing; no backward */
    int32_t is_zero_copy;                                 /* x is handed in in the saved object's memory */
    int32_t num_repeats; /* forward and backward so many times on one schedule, passes enqueued without waiting; 0 = once */
    int64_t max_tokens;  /* T_max; 0 = the largest T */
};

struct cpu_rank {
    const struct cpu_run *run;
    const struct mok_ref_problem *problem;
    struct mok_ref_outputs *outputs;
    mok_hub *hub;
    int32_t rank;
    mok_status status;
    char message[512];
    uint64_t bad_ids, passes_done;
    /* between the calls */
    mok_group_config config;
    struct mok_pass_setup setup;
    struct mok_peer *peer;
    struct mok_pass_group *group;
    struct mok_pass_schedule *schedule;
    struct mok_pass_layer layer;
    mok_ffn grads, shared_grads; /* of dtype problem->grad_dtype */
};

static mok_matrices dense(void *base, int64_t rows, int64_t cols)
{
    mok_matrices matrices = {base, rows * cols, cols};
    return matrices;
}

static mok_ffn dense_ffn(int32_t dtype, char *gate, char *up, char *down, int64_t inter, int64_t hidden)
{
    mok_ffn ffn;
    memset(&ffn, 0, sizeof ffn);
    ffn.dtype = dtype;
    ffn.gate = dense(gate, inter, hidden);
    ffn.up = dense(up, inter, hidden);
    ffn.down = dense(down, hidden, inter);
    return ffn;
}

static struct mok_pass_layer layer_of(const struct cpu_rank *rank)
{
    const struct mok_ref_problem *problem = rank->problem;
    int64_t matrix = (int64_t)problem->inter * problem->hidden, first = rank->setup.first_expert * matrix;
    struct mok_pass_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.activation = problem->activation;
    layer.routed = dense_ffn(MOK_DTYPE_BF16, (char *)(problem->routed.gate + first), (char *)(problem->routed.up + first),
                             (char *)(problem->routed.down + first), problem->inter, problem->hidden);
    if (problem->shared_inter > 0) {
        layer.shared = dense_ffn(MOK_DTYPE_BF16, (char *)problem->shared.gate, (char *)problem->shared.up, (char *)problem->shared.down,
                                 problem->shared_inter, problem->hidden);
    }
    return layer;
}

/* ---- gradients: the backend's own memory, then copied to the outputs as fp32 ------------------------------------------------- */

static void *new_gradient(const struct cpu_rank *rank, const float *start, int64_t num)
{
    int is_bf16 = rank->problem->grad_dtype == MOK_DTYPE_BF16;
    size_t bytes = (size_t)num * (is_bf16 ? 2 : 4);
    char *gradient = aligned_alloc(64, (bytes / 64 + 1) * 64);
    memset(gradient, rank->run->poison, bytes);
    for (int64_t i = 0; start != NULL && i < num; i++) {
        if (is_bf16) {
            ((mok_bf16 *)gradient)[i] = mok_bf16_from_float(start[i]);
        } else {
            ((float *)gradient)[i] = start[i];
        }
    }
    return gradient;
}

static void make_grads(struct cpu_rank *rank)
{
    const struct mok_ref_problem *problem = rank->problem;
    int64_t matrix = (int64_t)problem->inter * problem->hidden, first = rank->setup.first_expert * matrix,
            num = rank->setup.num_local * matrix;
    int64_t shared = (int64_t)problem->shared_inter * problem->hidden, shared_first = rank->rank * shared;
    int is_add = problem->grad_mode == MOK_GRAD_ADD;
    rank->grads = dense_ffn(problem->grad_dtype, new_gradient(rank, is_add ? problem->start.gate + first : NULL, num),
                            new_gradient(rank, is_add ? problem->start.up + first : NULL, num),
                            new_gradient(rank, is_add ? problem->start.down + first : NULL, num), problem->inter, problem->hidden);
    if (shared > 0) {
        rank->shared_grads = dense_ffn(
            problem->grad_dtype, new_gradient(rank, is_add ? problem->shared_start.gate + shared_first : NULL, shared),
            new_gradient(rank, is_add ? problem->shared_start.up + shared_first : NULL, shared),
            new_gradient(rank, is_add ? problem->shared_start.down + shared_first : NULL, shared), problem->shared_inter, problem->hidden);
    }
}

static void copy_gradient(int32_t dtype, void *gradient, int64_t num, float *to)
{
    for (int64_t i = 0; to != NULL && i < num; i++) {
        to[i] = dtype == MOK_DTYPE_BF16 ? mok_bf16_to_float(((mok_bf16 *)gradient)[i]) : ((float *)gradient)[i];
    }
    free(gradient);
}

static void take_grads(struct cpu_rank *rank)
{
    const struct mok_ref_problem *problem = rank->problem;
    struct mok_ref_outputs *outputs = rank->outputs;
    int64_t matrix = (int64_t)problem->inter * problem->hidden, first = rank->setup.first_expert * matrix,
            num = rank->setup.num_local * matrix;
    copy_gradient(problem->grad_dtype, rank->grads.gate.base, num, outputs->grads.gate + first);
    copy_gradient(problem->grad_dtype, rank->grads.up.base, num, outputs->grads.up + first);
    copy_gradient(problem->grad_dtype, rank->grads.down.base, num, outputs->grads.down + first);
    if (problem->shared_inter > 0) {
        int64_t shared = (int64_t)problem->shared_inter * problem->hidden, at = rank->rank * shared;
        copy_gradient(problem->grad_dtype, rank->shared_grads.gate.base, shared, outputs->shared_grads.gate + at);
        copy_gradient(problem->grad_dtype, rank->shared_grads.up.base, shared, outputs->shared_grads.up + at);
        copy_gradient(problem->grad_dtype, rank->shared_grads.down.base, shared, outputs->shared_grads.down + at);
    }
}

/* ---- passes -------------------------------------------------------------------------------------------------------------------- */

/* Slots of this rank as the pass left them; those of routes with id -1 hold what they like and are not copied. */
static void copy_slots(const struct cpu_rank *rank, mok_bf16 *to)
{
    const struct mok_ref_problem *problem = rank->problem;
    int64_t first = mok_ref_first_token(problem, rank->rank) * problem->top_k, hidden = problem->hidden;
    const mok_bf16 *slots = (const mok_bf16 *)(rank->peer->base[rank->rank] + rank->setup.region.slots);
    for (int64_t slot = 0; slot < problem->tokens[rank->rank] * problem->top_k; slot++) {
        if (mok_ref_is_routed(problem, first + slot)) {
            memcpy(to + (first + slot) * hidden, slots + slot * hidden, (size_t)hidden * 2);
        }
    }
}

static void copy_shared(const struct cpu_rank *rank, int64_t offset, mok_bf16 *to)
{
    int64_t hidden = rank->problem->hidden, first = mok_ref_first_token(rank->problem, rank->rank);
    if (rank->problem->shared_inter > 0) {
        memcpy(to + first * hidden, rank->group->other_block + offset, (size_t)(rank->problem->tokens[rank->rank] * hidden) * 2);
    }
}

static mok_status run_forward(struct cpu_rank *rank)
{
    const struct mok_ref_problem *problem = rank->problem;
    int64_t first = mok_ref_first_token(problem, rank->rank), hidden = problem->hidden, num = problem->tokens[rank->rank];
    struct mok_pass_saved *saved = rank->run->is_inference ? NULL : mok_pass_cpu.saved(rank->group, 0);
    mok_cpu_poison(rank->group, rank->run->poison);
    const void *x = problem->x + first * hidden;
    if (rank->run->is_zero_copy && saved != NULL) {
        memcpy(mok_pass_cpu.saved_input(saved), x, (size_t)(num * hidden) * 2);
        x = mok_pass_cpu.saved_input(saved);
    }
    memset(rank->outputs->y + first * hidden, rank->run->poison, (size_t)(num * hidden) * 2);
    struct mok_pass_forward pass = {
        .layer = &rank->layer,
        .schedule = rank->schedule,
        .saved = saved,
        .x = x,
        .w = problem->w + first * problem->top_k,
        .shared_w = problem->shared_w != NULL ? problem->shared_w + first : NULL,
        .y = rank->outputs->y + first * hidden,
    };
    MOK_TRY(mok_pass_cpu.forward(rank->group, &pass));
    MOK_TRY(mok_pass_cpu.wait(rank->group, NULL, -1));
    copy_slots(rank, rank->outputs->y_slots);
    copy_shared(rank, rank->group->layout.shared_s, rank->outputs->shared_y);
    return MOK_OK;
}

static mok_status run_backward(struct cpu_rank *rank)
{
    const struct mok_ref_problem *problem = rank->problem;
    int64_t first = mok_ref_first_token(problem, rank->rank), hidden = problem->hidden, num = problem->tokens[rank->rank];
    mok_cpu_poison(rank->group, rank->run->poison);
    memset(rank->outputs->dx + first * hidden, rank->run->poison, (size_t)(num * hidden) * 2);
    memset(rank->outputs->dw + first * problem->top_k, rank->run->poison, (size_t)(num * problem->top_k) * 4);
    struct mok_pass_backward pass = {
        .layer = &rank->layer,
        .schedule = rank->schedule,
        .saved = mok_pass_cpu.saved(rank->group, 0),
        .dy = problem->dy + first * hidden,
        .w = problem->w + first * problem->top_k,
        .shared_w = problem->shared_w != NULL ? problem->shared_w + first : NULL,
        .dx = rank->outputs->dx + first * hidden,
        .dw = rank->outputs->dw + first * problem->top_k,
        .dshared_w = problem->shared_inter > 0 ? rank->outputs->dshared_w + first : NULL,
        .grads = rank->grads,
        .shared_grads = rank->shared_grads,
        .grad_mode = problem->grad_mode,
    };
    MOK_TRY(mok_pass_cpu.backward(rank->group, &pass));
    MOK_TRY(mok_pass_cpu.wait(rank->group, NULL, -1));
    copy_slots(rank, rank->outputs->dx_slots);
    copy_shared(rank, rank->group->layout.shared_dx, rank->outputs->shared_dx);
    return MOK_OK;
}

static mok_status run_passes(struct cpu_rank *rank)
{
    const struct mok_ref_problem *problem = rank->problem;
    mok_group_state state;
    MOK_TRY(mok_pass_cpu.schedule_build(rank->schedule, problem->ids + mok_ref_first_token(problem, rank->rank) * problem->top_k,
                                        problem->tokens[rank->rank], NULL));
    MOK_TRY(mok_pass_cpu.wait(rank->group, NULL, -1));
    int32_t repeats = rank->run->num_repeats > 0 ? rank->run->num_repeats : 1;
    for (int32_t i = 0; i < repeats; i++) {
        make_grads(rank);
        mok_status status = run_forward(rank);
        if (status == MOK_OK && !rank->run->is_inference) {
            status = run_backward(rank);
        }
        take_grads(rank);
        MOK_TRY(status);
    }
    MOK_TRY(mok_pass_cpu.state(rank->group, &state));
    rank->bad_ids = state.bad_ids;
    rank->passes_done = state.passes_done;
    return MOK_OK;
}

/* ---- ranks --------------------------------------------------------------------------------------------------------------------- */

static mok_status configure(struct cpu_rank *rank)
{
    const struct cpu_run *run = rank->run;
    const struct mok_ref_problem *problem = rank->problem;
    MOK_TRY(mok_group_config_init(&rank->config));
    mok_group_config *config = &rank->config;
    config->backend = MOK_BACKEND_CPU;
    config->rank = rank->rank;
    config->num_ranks = problem->num_ranks;
    config->hub = rank->hub;
    config->num_saved = 1;
    config->keep_rows = run->keep_rows;
    config->minibatch_rows = run->minibatch_rows;
    config->ring_minibatches = run->ring_minibatches;
    config->look_ahead = run->look_ahead;
    config->comm_workers = run->comm_workers;
    config->compute_workers = run->compute_workers;
    config->shape.num_experts = problem->num_experts;
    config->shape.top_k = problem->top_k;
    config->shape.hidden = problem->hidden;
    config->shape.intermediate = problem->inter;
    config->shape.shared_intermediate = problem->shared_inter;
    config->shape.max_tokens = mok_max64(run->max_tokens, 1);
    for (int32_t r = 0; r < problem->num_ranks; r++) {
        config->shape.max_tokens = mok_max64(config->shape.max_tokens, problem->tokens[r]);
    }
    return mok_api_setup(config, &mok_pass_cpu, &rank->setup);
}

static mok_status open_rank(struct cpu_rank *rank)
{
    struct mok_peer_memory memory;
    MOK_TRY(configure(rank));
    MOK_TRY(mok_peer_threads.join(&rank->config, &rank->peer));
    MOK_TRY(mok_pass_cpu.peer_memory(&rank->setup, &memory));
    MOK_TRY(rank->peer->ops->map(rank->peer, (size_t)rank->setup.region.bytes, &memory));
    MOK_TRY(mok_pass_cpu.create(&rank->setup, rank->peer, &rank->group));
    mok_cpu_set_delay(rank->group, rank->run->delay_us);
    rank->layer = layer_of(rank);
    return mok_pass_cpu.schedule_create(rank->group, &rank->schedule);
}

static void close_rank(struct cpu_rank *rank)
{
    mok_pass_cpu.schedule_destroy(rank->schedule);
    int keep = 0;
    if (rank->group != NULL) {
        mok_status status = mok_pass_cpu.destroy(rank->group);
        keep = status != MOK_OK;
        rank->status = rank->status != MOK_OK ? rank->status : status;
    }
    if (rank->peer != NULL) {
        rank->peer->ops->unmap(rank->peer, keep);
        rank->peer->ops->leave(rank->peer);
    }
}

static void *be_rank(void *argument)
{
    struct cpu_rank *rank = argument;
    rank->status = open_rank(rank);
    if (rank->status == MOK_OK) {
        rank->status = run_passes(rank);
    }
    if (rank->status != MOK_OK) {
        mok_base_error_copy(rank->message, sizeof rank->message);
    }
    close_rank(rank);
    return NULL;
}

/* Runs a problem on all its ranks. Failing ranks are printed; returns how many there were. outputs is from mok_ref_outputs_alloc. */
static int32_t run_problem(const struct mok_ref_problem *problem, const struct cpu_run *run, struct mok_ref_outputs *outputs,
                           uint64_t *bad_ids_out)
{
    struct cpu_rank *ranks = calloc((size_t)problem->num_ranks, sizeof *ranks);
    pthread_t threads[MOK_REF_MAX_RANKS];
    mok_hub *hub = NULL;
    int32_t num_failed = mok_hub_create(problem->num_ranks, &hub) != MOK_OK;
    for (int32_t r = 0; r < problem->num_ranks; r++) {
        ranks[r].run = run;
        ranks[r].problem = problem;
        ranks[r].outputs = outputs;
        ranks[r].hub = hub;
        ranks[r].rank = r;
        num_failed += pthread_create(&threads[r], NULL, be_rank, &ranks[r]) != 0;
    }
    for (int32_t r = 0; r < problem->num_ranks; r++) {
        pthread_join(threads[r], NULL);
        if (ranks[r].status != MOK_OK) {
            fprintf(stderr, "rank %d: %s: %s\n", r, mok_status_name(ranks[r].status), ranks[r].message);
            num_failed++;
        }
        num_failed += ranks[r].bad_ids != ranks[0].bad_ids;
    }
    if (bad_ids_out != NULL) {
        *bad_ids_out = ranks[0].bad_ids;
    }
    mok_hub_destroy(hub);
    free(ranks);
    return num_failed;
}

/* Rows and elements outside their bounds, each kind of them printed. */
static int64_t count_wrong(const struct mok_ref_problem *problem, const struct mok_ref_answer *answer,
                           const struct mok_ref_outputs *outputs)
{
    struct mok_ref_report report;
    struct mok_ref_scope all = {0, problem->num_ranks};
    mok_ref_report_clear(&report);
    mok_ref_compare(problem, answer, outputs, all, &report);
    for (int check = 0; check < MOK_CHECK_COUNT; check++) {
        if (report.worst[check].num_failed > 0) {
            char text[512];
            mok_ref_report_describe(&report, (enum mok_ref_check)check, text, sizeof text);
            fprintf(stderr, "%s\n", text);
        }
    }
    return mok_ref_report_failures(&report);
}

#endif
