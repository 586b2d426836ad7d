/*
 * A whole pass on the caller's stream, by either path (design.md section 2):
 *
 *   publish x; or dy, w -> ENTRY -> what the path does (staged/staged.h, fused/fused.h) -> EXIT -> sums
 *
 * The staged path lets the shared expert run between the two parts of ENTRY, and backward arrives at EXIT before its last weight gradients.
 */
#include "cuda/ops/ops_cuda.h"

#include "base/status.h"
#include "cuda/fused/fused.h"
#include "cuda/rank_calls.h"
#include "cuda/rank_pass.h"
#include "cuda/staged/staged.h"
#include "trace/event.h"

/* Copies own rows, and own router weights when w is not NULL, where peers find them. */
static mok_status publish(const struct mok_cuda_pass *pass, const void *rows, void *rows_to, const float *w)
{
    struct mok_pass_group *group = pass->group;
    const struct mok_dims *dims = &group->setup.dims;
    int64_t tokens = pass->schedule->num_tokens;
    struct mok_cuda_publish_args args = {
        .rows_from = rows,
        .rows_to = rows_to,
        .rows_bytes = rows == rows_to ? 0 : tokens * mok_cuda_hidden_bytes(pass),
        .words_from = w,
        .words_to = (float *)(group->peer->base[dims->rank] + group->setup.region.w),
        .num_words = w == NULL ? 0 : tokens * dims->top_k,
    };
    if (args.rows_bytes == 0 && args.num_words == 0) {
        return MOK_OK;
    }
    MOK_TRY(mok_cuda_stage_begin(group, pass->stream));
    MOK_TRY(mok_cuda_launch(MOK_CUDA_PUBLISH, mok_cuda_blocks_for(group, args.rows_bytes / 16 + args.num_words), 0, 0, &args, pass->stream));
    return mok_cuda_stage_end(group, MOK_EVENT_PUBLISH, 0, pass->stream);
}

/* ---- forward ---------------------------------------------------------------------------------------------------------------- */

static mok_status sum_y(const struct mok_cuda_pass *pass)
{
    struct mok_pass_group *group = pass->group;
    const struct mok_dims *dims = &group->setup.dims;
    const struct mok_pass_forward *forward = pass->forward;
    struct mok_cuda_sum_y_args args = {
        .watch = group->watch,
        .ids = pass->schedule->arrays.ids,
        .w = forward->w,
        .slots = group->peer->base[dims->rank] + group->setup.region.slots,
        .shared = dims->shared_inter > 0 ? group->other + group->layout.shared_y : NULL,
        .shared_w = forward->shared_w,
        .y = forward->y,
        .num_tokens = (int32_t)pass->schedule->num_tokens,
        .top_k = dims->top_k,
        .hidden = dims->hidden,
    };
    MOK_TRY(mok_cuda_stage_begin(group, pass->stream));
    MOK_TRY(mok_cuda_launch(MOK_CUDA_SUM_Y, mok_cuda_blocks_for(group, pass->schedule->num_tokens * dims->hidden / 8), 0, 0, &args, pass->stream));
    return mok_cuda_stage_end(group, MOK_EVENT_SUM, 0, pass->stream);
}

static mok_status enqueue_forward(const struct mok_cuda_pass *pass)
{
    struct mok_pass_group *group = pass->group;
    char *own = group->peer->base[group->setup.dims.rank];
    MOK_TRY(publish(pass, pass->forward->x, pass->saved == NULL ? own + group->setup.region.rows : pass->saved->own_x, NULL));
    if (group->setup.path == MOK_PATH_FUSED) {
        MOK_TRY(mok_cuda_barrier(pass, MOK_CUDA_ENTRY, MOK_CUDA_ARRIVE | MOK_CUDA_WAIT));
        MOK_TRY(mok_cuda_fused_forward(pass));
    } else {
        MOK_TRY(mok_cuda_barrier(pass, MOK_CUDA_ENTRY, MOK_CUDA_ARRIVE));
        MOK_TRY(mok_cuda_staged_shared_forward(pass));
        MOK_TRY(mok_cuda_barrier(pass, MOK_CUDA_ENTRY, MOK_CUDA_WAIT));
        MOK_TRY(mok_cuda_staged_forward(pass));
    }
    MOK_TRY(mok_cuda_barrier(pass, MOK_CUDA_EXIT, MOK_CUDA_ARRIVE | MOK_CUDA_WAIT));
    return sum_y(pass);
}

mok_status mok_cuda_forward(struct mok_pass_group *group, const struct mok_pass_forward *forward)
{
    int32_t before = 0;
    const struct mok_cuda_pass pass = {
        .group = group,
        .schedule = forward->schedule,
        .saved = forward->saved,
        .layer = forward->layer,
        .ring = &group->setup.ring_forward,
        .kept_rows = forward->saved == NULL ? 0 : group->layout.kept_rows,
        .stream = forward->stream,
        .forward = forward,
    };
    MOK_TRY(mok_cuda_begin_call(group, forward->stream, &before));
    if (forward->saved != NULL) {
        forward->saved->is_full = 1;
    }
    return mok_cuda_end_call(group, forward->stream, before, enqueue_forward(&pass));
}

/* ---- backward --------------------------------------------------------------------------------------------------------------- */

static mok_status sum_dx(const struct mok_cuda_pass *pass)
{
    struct mok_pass_group *group = pass->group;
    const struct mok_dims *dims = &group->setup.dims;
    const struct mok_pass_backward *backward = pass->backward;
    char *own = group->peer->base[dims->rank];
    int has_shared = dims->shared_inter > 0;
    struct mok_cuda_sum_dx_args args = {
        .watch = group->watch,
        .ids = pass->schedule->arrays.ids,
        .slots = own + group->setup.region.slots,
        .slot_dw = (const float *)(own + group->setup.region.slot_dw),
        .shared = has_shared ? group->other + group->layout.shared_y : NULL,
        .shared_partial = has_shared && backward->dshared_w != NULL ? (const float *)(group->other + group->layout.shared_dw) : NULL,
        .dx = backward->dx,
        .dw = backward->dw,
        .dshared_w = backward->dshared_w,
        .num_tokens = (int32_t)pass->schedule->num_tokens,
        .top_k = dims->top_k,
        .hidden = dims->hidden,
        .num_partials = group->layout.shared_dw_tiles,
    };
    MOK_TRY(mok_cuda_stage_begin(group, pass->stream));
    MOK_TRY(mok_cuda_launch(MOK_CUDA_SUM_DX, mok_cuda_blocks_for(group, pass->schedule->num_tokens * dims->hidden / 8), 0, 0, &args, pass->stream));
    return mok_cuda_stage_end(group, MOK_EVENT_SUM, 0, pass->stream);
}

static mok_status enqueue_backward(const struct mok_cuda_pass *pass)
{
    struct mok_pass_group *group = pass->group;
    char *own = group->peer->base[group->setup.dims.rank];
    int exit_parts = MOK_CUDA_ARRIVE | MOK_CUDA_WAIT;
    MOK_TRY(publish(pass, pass->backward->dy, own + group->setup.region.rows, pass->backward->w));
    if (group->setup.path == MOK_PATH_FUSED) {
        MOK_TRY(mok_cuda_barrier(pass, MOK_CUDA_ENTRY, MOK_CUDA_ARRIVE | MOK_CUDA_WAIT));
        MOK_TRY(mok_cuda_fused_backward(pass));
    } else {
        MOK_TRY(mok_cuda_barrier(pass, MOK_CUDA_ENTRY, MOK_CUDA_ARRIVE));
        MOK_TRY(mok_cuda_staged_shared_backward(pass));
        MOK_TRY(mok_cuda_barrier(pass, MOK_CUDA_ENTRY, MOK_CUDA_WAIT));
        MOK_TRY(mok_cuda_staged_backward(pass, &exit_parts));
    }
    MOK_TRY(mok_cuda_barrier(pass, MOK_CUDA_EXIT, exit_parts));
    return sum_dx(pass);
}

mok_status mok_cuda_backward(struct mok_pass_group *group, const struct mok_pass_backward *backward)
{
    int32_t before = 0;
    const struct mok_cuda_pass pass = {
        .group = group,
        .schedule = backward->schedule,
        .saved = backward->saved,
        .layer = backward->layer,
        .ring = &group->setup.ring_backward,
        .kept_rows = group->layout.kept_rows,
        .stream = backward->stream,
        .backward = backward,
    };
    MOK_TRY(mok_cuda_begin_call(group, backward->stream, &before));
    backward->saved->is_full = 0;
    return mok_cuda_end_call(group, backward->stream, before, enqueue_backward(&pass));
}
