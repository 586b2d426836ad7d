/*
 * A forward pass of the staged path. See staged.h.
 */
#include "cuda/staged/staged.h"

#include "base/status.h"
#include "cuda/rank_calls.h"
#include "cuda/staged/staged_rows.h"
#include "trace/event.h"

static mok_status down(const struct mok_cuda_pass *pass, const struct mok_down_args *args, int32_t kind, int64_t index)
{
    MOK_TRY(mok_cuda_stage_begin(pass->group, pass->stream));
    MOK_TRY(mok_cuda_down_launch(args, pass->stream));
    return mok_cuda_stage_end(pass->group, MOK_EVENT_TASK + kind, index, pass->stream);
}

static mok_status forward_window(const struct mok_cuda_pass *pass, const struct mok_window *window)
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

mok_status mok_cuda_staged_shared_forward(const struct mok_cuda_pass *pass)
{
    const struct mok_dims *dims = &pass->group->setup.dims;
    const struct mok_cuda_layout *layout = &pass->group->layout;
    if (dims->shared_inter == 0) {
        return MOK_OK;
    }
    char *g = pass->saved == NULL ? NULL : pass->saved->shared_g, *u = pass->saved == NULL ? NULL : pass->saved->shared_u;
    struct mok_gate_up_args first = mok_cuda_shared_gate_up(pass, pass->forward->x, pass->group->other + layout->shared_h, g, u);
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

mok_status mok_cuda_staged_forward(const struct mok_cuda_pass *pass)
{
    struct mok_window window = {0, 0, 0, 0};
    while (mok_cuda_next_window(pass, &window)) {
        MOK_TRY(forward_window(pass, &window));
    }
    return MOK_OK;
}
