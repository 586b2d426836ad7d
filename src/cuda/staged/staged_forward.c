/*
 * A forward pass of the staged path. See staged.h.
 */
#include "cuda/fused/fused.h"
#include "cuda/staged/staged.h"

#include "base/status.h"
#include "trace/event.h"

static mok_status down(const struct mok_staged *pass, const struct mok_down_args *args, int32_t kind, int64_t index)
{
    MOK_TRY(mok_cuda_stage_begin(pass->group, pass->stream));
    MOK_TRY(mok_cuda_down_launch(args, pass->stream));
    return mok_cuda_stage_end(pass->group, MOK_EVENT_TASK + kind, index, pass->stream);
}

static mok_status forward_window(const struct mok_staged *pass, const struct mok_window *window)
{
    const struct mok_dims *dims = &pass->group->setup.dims;
    const struct mok_cuda_layout *layout = &pass->group->layout;
    const struct mok_region *region = &pass->group->setup.region;
    char *x = mok_cuda_window_x(pass, window), *y = mok_cuda_in_ring(pass, window, layout->y, mok_cuda_hidden_bytes(pass));
    struct mok_cuda_move_args pull = mok_cuda_move_window(pass, window, x, pass->saved == NULL ? region->rows : pass->saved->x_off);
    struct mok_cuda_move_args push = mok_cuda_move_window(pass, window, y, region->slots);
    struct mok_gate_up_args first = {
        .rows = mok_cuda_routed_rows(pass, window),
        .launch = mok_cuda_gemm_limits(pass),
        .hidden = dims->hidden,
        .inter = dims->inter,
        .activation = pass->layer->activation,
        .x = x,
        .gate = pass->layer->routed.gate,
        .up = pass->layer->routed.up,
        .h = mok_cuda_in_ring(pass, window, layout->h, mok_cuda_inter_bytes(pass)),
    };
    if (window->is_kept) {
        first.g = mok_cuda_in_saved(window, pass->saved->g, mok_cuda_inter_bytes(pass));
        first.u = mok_cuda_in_saved(window, pass->saved->u, mok_cuda_inter_bytes(pass));
        first.keep_rows = window->rows;
    }
    struct mok_down_args second = {
        .rows = first.rows,
        .launch = first.launch,
        .hidden = dims->hidden,
        .inter = dims->inter,
        .h = first.h,
        .down = pass->layer->routed.down,
        .y = y,
    };
    MOK_TRY(mok_cuda_move(pass, window, MOK_CUDA_PULL, &pull));
    MOK_TRY(mok_cuda_gate_up(pass, &first, MOK_TASK_GATE_UP, window->lap));
    MOK_TRY(down(pass, &second, MOK_TASK_DOWN, window->lap));
    return mok_cuda_move(pass, window, MOK_CUDA_PUSH, &push);
}

static mok_status forward_shared(const struct mok_staged *pass, const void *x)
{
    const struct mok_dims *dims = &pass->group->setup.dims;
    const struct mok_cuda_layout *layout = &pass->group->layout;
    if (dims->shared_inter == 0) {
        return MOK_OK;
    }
    char *g = pass->saved == NULL ? NULL : pass->saved->shared_g, *u = pass->saved == NULL ? NULL : pass->saved->shared_u;
    struct mok_gate_up_args first = mok_cuda_shared_gate_up(pass, x, pass->group->other + layout->shared_h, g, u);
    struct mok_down_args second = {
        .rows = first.rows,
        .launch = first.launch,
        .hidden = dims->hidden,
        .inter = dims->shared_inter,
        .h = first.h,
        .down = pass->layer->shared.down,
        .y = pass->group->other + layout->shared_y,
    };
    MOK_TRY(mok_cuda_gate_up(pass, &first, MOK_TASK_SHARED_GATE_UP, 0));
    return down(pass, &second, MOK_TASK_SHARED_DOWN, 0);
}

static mok_status sum_y(const struct mok_staged *pass, const struct mok_pass_forward *forward)
{
    struct mok_pass_group *group = pass->group;
    const struct mok_dims *dims = &group->setup.dims;
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

static mok_status enqueue_forward(struct mok_staged *pass, const struct mok_pass_forward *forward)
{
    struct mok_pass_group *group = pass->group;
    char *own = group->peer->base[group->setup.dims.rank];
    struct mok_window window = {0, 0, 0, 0};
    MOK_TRY(mok_cuda_publish(pass, forward->x, pass->saved == NULL ? own + group->setup.region.rows : pass->saved->own_x, NULL));
    if (group->setup.path == MOK_PATH_FUSED) {
        MOK_TRY(mok_cuda_barrier(group, MOK_CUDA_ENTRY, MOK_CUDA_ARRIVE | MOK_CUDA_WAIT, pass->stream));
        MOK_TRY(mok_cuda_fused_forward(pass, forward->x));
    } else {
        MOK_TRY(mok_cuda_barrier(group, MOK_CUDA_ENTRY, MOK_CUDA_ARRIVE, pass->stream));
        MOK_TRY(forward_shared(pass, forward->x));
        MOK_TRY(mok_cuda_barrier(group, MOK_CUDA_ENTRY, MOK_CUDA_WAIT, pass->stream));
        while (mok_cuda_next_window(pass, &window)) {
            MOK_TRY(forward_window(pass, &window));
        }
    }
    MOK_TRY(mok_cuda_barrier(group, MOK_CUDA_EXIT, MOK_CUDA_ARRIVE | MOK_CUDA_WAIT, pass->stream));
    return sum_y(pass, forward);
}

mok_status mok_cuda_forward(struct mok_pass_group *group, const struct mok_pass_forward *forward)
{
    int32_t before = 0;
    struct mok_staged pass = {
        .group = group,
        .schedule = forward->schedule,
        .saved = forward->saved,
        .layer = forward->layer,
        .ring = &group->setup.ring_forward,
        .kept_rows = forward->saved == NULL ? 0 : group->layout.kept_rows,
        .stream = forward->stream,
    };
    MOK_TRY(mok_cuda_begin_call(group, forward->stream, &before));
    if (forward->saved != NULL) {
        forward->saved->is_full = 1;
    }
    return mok_cuda_end_call(group, forward->stream, before, enqueue_forward(&pass, forward));
}
