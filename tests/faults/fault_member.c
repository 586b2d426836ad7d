/*
 * One rank of a small layer. See fault_member.h.
 */
#include "fault_member.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

enum { ALIGN = 64 };

static void *zeroed(int64_t count, size_t size)
{
    size_t bytes = ((size_t)count * size / ALIGN + 1) * ALIGN;
    void *memory = aligned_alloc(ALIGN, bytes);
    if (!memory) {
        abort();
    }
    return memset(memory, 0, bytes);
}

mok_status fault_member_config(const struct mok_ref_problem *problem, int32_t rank, mok_group_config *config_out)
{
    MOK_TRY(mok_group_config_init(config_out));
    config_out->backend = MOK_BACKEND_CPU;
    config_out->peer = MOK_PEER_EXTERNAL;
    config_out->rank = rank;
    config_out->num_ranks = problem->num_ranks;
    config_out->shape = (mok_shape){.num_experts = problem->num_experts, .top_k = problem->top_k, .hidden = problem->hidden,
                                    .intermediate = problem->inter, .shared_intermediate = problem->shared_inter};
    config_out->shape.max_tokens = 1;
    for (int32_t r = 0; r < problem->num_ranks; r++) {
        if (problem->tokens[r] > config_out->shape.max_tokens) {
            config_out->shape.max_tokens = problem->tokens[r];
        }
    }
    config_out->num_saved = 1;
    config_out->keep_rows = 256; /* some rows are kept, others made again */
    config_out->minibatch_rows = 128;
    config_out->ring_minibatches = 2;
    config_out->comm_workers = 2;
    config_out->compute_workers = 1;
    return MOK_OK;
}

static mok_matrices dense(const void *base, int64_t rows, int64_t cols)
{
    return (mok_matrices){.base = (void *)(uintptr_t)base, .expert_stride = rows * cols, .row_stride = cols};
}

/* Three matrices, skip_bytes behind their beginnings. */
static mok_ffn dense_ffn(int32_t dtype, const void *gate, const void *up, const void *down, int64_t skip_bytes, int64_t inter,
                         int64_t hidden)
{
    return (mok_ffn){.dtype = dtype, .gate = dense((const char *)gate + skip_bytes, inter, hidden),
                     .up = dense((const char *)up + skip_bytes, inter, hidden),
                     .down = dense((const char *)down + skip_bytes, hidden, inter)};
}

static void make_grads(struct mok_ref_grads *grads, int64_t num, int64_t inter, int64_t hidden)
{
    grads->gate = zeroed(num * inter * hidden, sizeof(float));
    grads->up = zeroed(num * inter * hidden, sizeof(float));
    grads->down = zeroed(num * inter * hidden, sizeof(float));
}

static void make_tensors(struct fault_member *member, int64_t max_tokens)
{
    const struct mok_ref_problem *problem = member->problem;
    int64_t routes = max_tokens * problem->top_k, values = max_tokens * problem->hidden;
    member->ids = zeroed(routes, sizeof *member->ids);
    member->w = zeroed(routes, sizeof *member->w);
    member->dw = zeroed(routes, sizeof *member->dw);
    member->x = zeroed(values, sizeof *member->x);
    member->dy = zeroed(values, sizeof *member->dy);
    member->y = zeroed(values, sizeof *member->y);
    member->dx = zeroed(values, sizeof *member->dx);
    member->shared_w = zeroed(max_tokens, sizeof *member->shared_w);
    member->dshared_w = zeroed(max_tokens, sizeof *member->dshared_w);
    /* All experts, so that a gradient stands where the oracle has it. */
    make_grads(&member->grads, problem->num_experts, problem->inter, problem->hidden);
    make_grads(&member->shared_grads, problem->num_ranks, problem->shared_inter, problem->hidden);
}

void fault_member_load(struct fault_member *member, const struct mok_ref_problem *problem)
{
    int64_t first = mok_ref_first_token(problem, member->rank), routes = problem->tokens[member->rank] * problem->top_k;
    int64_t values = problem->tokens[member->rank] * problem->hidden;
    member->problem = problem;
    member->num_tokens = problem->tokens[member->rank];
    memcpy(member->ids, problem->ids + first * problem->top_k, (size_t)routes * sizeof *member->ids);
    memcpy(member->w, problem->w + first * problem->top_k, (size_t)routes * sizeof *member->w);
    memcpy(member->x, problem->x + first * problem->hidden, (size_t)values * sizeof *member->x);
    memcpy(member->dy, problem->dy + first * problem->hidden, (size_t)values * sizeof *member->dy);
    if (problem->shared_w) {
        memcpy(member->shared_w, problem->shared_w + first, (size_t)member->num_tokens * sizeof *member->shared_w);
    }
}

mok_status fault_member_create(struct fault_member *member, const struct mok_ref_problem *problem, const mok_group_config *config)
{
    int64_t matrix = (int64_t)problem->inter * problem->hidden;
    memset(member, 0, sizeof *member);
    member->problem = problem;
    member->rank = config->rank;
    MOK_TRY(mok_group_create(config, &member->group));
    mok_layer_config layer;
    mok_layer_config_init(&layer);
    layer.activation = problem->activation;
    layer.routed = dense_ffn(MOK_DTYPE_BF16, problem->routed.gate, problem->routed.up, problem->routed.down,
                             2 * matrix * mok_ref_first_expert(problem, member->rank), problem->inter, problem->hidden);
    if (problem->shared_inter > 0) {
        layer.shared = dense_ffn(MOK_DTYPE_BF16, problem->shared.gate, problem->shared.up, problem->shared.down, 0, problem->shared_inter,
                                 problem->hidden);
    }
    MOK_TRY(mok_layer_create(member->group, &layer, &member->layer));
    MOK_TRY(mok_schedule_create(member->group, &member->schedule));
    MOK_TRY(mok_group_saved(member->group, 0, &member->saved));
    make_tensors(member, config->shape.max_tokens);
    fault_member_load(member, problem);
    return MOK_OK;
}

mok_status fault_member_build(struct fault_member *member)
{
    return mok_schedule_build(member->schedule, member->ids, member->num_tokens, NULL);
}

mok_status fault_member_forward(struct fault_member *member)
{
    mok_forward_args args;
    mok_forward_args_init(&args);
    args.x = member->x;
    args.w = member->w;
    args.shared_w = member->problem->shared_w ? member->shared_w : NULL;
    args.y = member->y;
    args.saved = member->saved;
    return mok_forward(member->layer, member->schedule, &args, NULL);
}

mok_status fault_member_backward(struct fault_member *member)
{
    const struct mok_ref_problem *problem = member->problem;
    int64_t matrix = (int64_t)problem->inter * problem->hidden, shared = (int64_t)problem->shared_inter * problem->hidden;
    mok_backward_args args;
    mok_backward_args_init(&args);
    args.saved = member->saved;
    args.dy = member->dy;
    args.w = member->w;
    args.shared_w = problem->shared_w ? member->shared_w : NULL;
    args.dx = member->dx;
    args.dw = member->dw;
    args.dshared_w = problem->shared_inter > 0 ? member->dshared_w : NULL;
    args.grads = dense_ffn(MOK_DTYPE_FP32, member->grads.gate, member->grads.up, member->grads.down,
                           4 * matrix * mok_ref_first_expert(problem, member->rank), problem->inter, problem->hidden);
    if (problem->shared_inter > 0) {
        args.shared_grads = dense_ffn(MOK_DTYPE_FP32, member->shared_grads.gate, member->shared_grads.up, member->shared_grads.down,
                                      4 * shared * member->rank, problem->shared_inter, problem->hidden);
    }
    args.grad_mode = MOK_GRAD_OVERWRITE;
    return mok_backward(member->layer, member->schedule, &args, NULL);
}

static void free_grads(struct mok_ref_grads *grads)
{
    free(grads->gate);
    free(grads->up);
    free(grads->down);
}

mok_status fault_member_destroy(struct fault_member *member)
{
    mok_schedule_destroy(member->schedule);
    mok_layer_destroy(member->layer);
    mok_status status = mok_group_destroy(member->group);
    void *tensors[] = {member->ids, member->w, member->dw, member->x, member->dy, member->y, member->dx, member->shared_w,
                       member->dshared_w};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        free(tensors[i]);
    }
    free_grads(&member->grads);
    free_grads(&member->shared_grads);
    return status;
}

int64_t fault_member_compare(const struct fault_member *member, const struct mok_ref_answer *answer, char *text, size_t size)
{
    const struct mok_ref_problem *problem = member->problem;
    int64_t first = mok_ref_first_token(problem, member->rank);
    /* The outputs begin where rank 0's would: only this rank's part of them is looked at. */
    struct mok_ref_outputs outputs = {.grads = member->grads, .shared_grads = member->shared_grads};
    struct mok_ref_report report;
    outputs.y = zeroed(problem->num_tokens * problem->hidden, sizeof *outputs.y);
    outputs.dx = zeroed(problem->num_tokens * problem->hidden, sizeof *outputs.dx);
    outputs.dw = zeroed(problem->num_tokens * problem->top_k, sizeof *outputs.dw);
    outputs.dshared_w = zeroed(problem->num_tokens, sizeof *outputs.dshared_w);
    size_t values = (size_t)(member->num_tokens * problem->hidden), routes = (size_t)(member->num_tokens * problem->top_k);
    memcpy(outputs.y + first * problem->hidden, member->y, values * sizeof *outputs.y);
    memcpy(outputs.dx + first * problem->hidden, member->dx, values * sizeof *outputs.dx);
    memcpy(outputs.dw + first * problem->top_k, member->dw, routes * sizeof *outputs.dw);
    memcpy(outputs.dshared_w + first, member->dshared_w, (size_t)member->num_tokens * sizeof *outputs.dshared_w);
    mok_ref_report_clear(&report);
    mok_ref_compare(problem, answer, &outputs, (struct mok_ref_scope){member->rank, 1}, &report);
    int64_t checked = 0;
    for (int check = 0; check < MOK_CHECK_COUNT; check++) {
        checked += report.worst[check].num_checked;
        if (report.worst[check].num_failed > 0) {
            mok_ref_report_describe(&report, (enum mok_ref_check)check, text, size);
        }
    }
    free(outputs.y);
    free(outputs.dx);
    free(outputs.dw);
    free(outputs.dshared_w);
    if (checked == 0) {
        snprintf(text, size, "nothing was compared");
        return 1;
    }
    return mok_ref_report_failures(&report);
}
