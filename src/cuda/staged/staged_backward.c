/*
 * A backward pass of the staged path. See staged.h.
 */
#include "cuda/staged/staged.h"

#include "base/status.h"
#include "cuda/rank_calls.h"
#include "cuda/staged/staged_rows.h"
#include "trace/event.h"

static int is_last(const struct mok_cuda_pass *pass, const struct mok_window *window)
{
    return window->first + window->rows >= mok_plan_max_rows(&pass->group->setup.dims);
}

/* ---- GEMMs ------------------------------------------------------------------------------------------------------------------ */

static mok_status dgrad(const struct mok_cuda_pass *pass, const struct mok_dgrad_down_args *first, const struct mok_dgrad_gate_up_args *second,
                        int32_t kind, int64_t index)
{
    MOK_TRY(mok_cuda_stage_begin(pass->group, pass->stream));
    MOK_TRY(mok_cuda_dgrad_down_launch(first, pass->stream));
    MOK_TRY(mok_cuda_stage_end(pass->group, MOK_EVENT_TASK + kind, index, pass->stream));
    MOK_TRY(mok_cuda_stage_begin(pass->group, pass->stream));
    MOK_TRY(mok_cuda_dgrad_gate_up_launch(second, pass->stream));
    return mok_cuda_stage_end(pass->group, MOK_EVENT_TASK + kind + 1, index, pass->stream);
}

/* The operands of the weight gradients of one window, or of the shared expert. */
struct wgrad {
    struct mok_gemm_rows rows;
    const mok_ffn *grads;
    int32_t inter;
    const void *x, *dy, *dg, *du, *wh;
    const float *carry_in; /* fp32 [3, I, H]: gate, up, down; NULL = nothing goes on */
    float *carry_out;
};

static mok_status wgrad(const struct mok_cuda_pass *pass, const struct wgrad *operands, int32_t kind, int64_t index)
{
    int32_t hidden = pass->group->setup.dims.hidden, inter = operands->inter;
    int64_t matrix = (int64_t)hidden * inter;
    struct mok_wgrad_args gate_up_args = {
        .rows = operands->rows,
        .launch = mok_cuda_gemm_limits(pass),
        .num_parts = 2,
        .out = inter,
        .in = hidden,
        .dtype = operands->grads->dtype,
        .mode = pass->backward->grad_mode,
        .a = {operands->dg, operands->du},
        .b = operands->x,
        .grad = {operands->grads->gate, operands->grads->up},
    };
    struct mok_wgrad_args down_args = gate_up_args;
    down_args.num_parts = 1;
    down_args.out = hidden;
    down_args.in = inter;
    down_args.a[0] = operands->dy;
    down_args.a[1] = NULL;
    down_args.b = operands->wh;
    down_args.grad[0] = operands->grads->down;
    if (operands->carry_out != NULL && operands->grads->dtype == MOK_DTYPE_BF16) {
        gate_up_args.carry_in[0] = operands->carry_in;
        gate_up_args.carry_in[1] = operands->carry_in + matrix;
        gate_up_args.carry_out[0] = operands->carry_out;
        gate_up_args.carry_out[1] = operands->carry_out + matrix;
        down_args.carry_in[0] = operands->carry_in + 2 * matrix;
        down_args.carry_out[0] = operands->carry_out + 2 * matrix;
    }
    MOK_TRY(mok_cuda_stage_begin(pass->group, pass->stream));
    MOK_TRY(mok_cuda_wgrad_launch(&down_args, pass->stream));
    MOK_TRY(mok_cuda_wgrad_launch(&gate_up_args, pass->stream));
    return mok_cuda_stage_end(pass->group, MOK_EVENT_TASK + kind, index, pass->stream);
}

/* ---- routed rows ------------------------------------------------------------------------------------------------------------ */

/* Rows that were not kept: x from its source again, then g and u. */
static mok_status make_again(const struct mok_cuda_pass *pass, const struct mok_window *window, char *x, char *g, char *u)
{
    const struct mok_dims *dims = &pass->group->setup.dims;
    struct mok_cuda_move_args pull = mok_cuda_move_window(pass, window, x, pass->saved->x_off);
    struct mok_gate_up_args args = {
        .rows = mok_cuda_routed_rows(pass, window),
        .launch = mok_cuda_gemm_limits(pass),
        .hidden = dims->hidden,
        .inter = dims->inter,
        .activation = pass->layer->activation,
        .x = x,
        .gate = pass->layer->routed.gate,
        .up = pass->layer->routed.up,
        .g = g,
        .u = u,
        .keep_rows = window->rows,
    };
    MOK_TRY(mok_cuda_move(pass, window, MOK_CUDA_PULL, &pull));
    return mok_cuda_gate_up(pass, &args, MOK_TASK_RECOMPUTE, window->lap);
}

static mok_status dgrad_window(const struct mok_cuda_pass *pass, const struct mok_window *window, const struct wgrad *operands, const char *g, const char *u)
{
    const struct mok_dims *dims = &pass->group->setup.dims;
    const struct mok_cuda_layout *layout = &pass->group->layout;
    const struct mok_region *region = &pass->group->setup.region;
    struct mok_dgrad_down_args first = {
        .rows = operands->rows,
        .launch = mok_cuda_gemm_limits(pass),
        .hidden = dims->hidden,
        .inter = dims->inter,
        .activation = pass->layer->activation,
        .dy = operands->dy,
        .down = pass->layer->routed.down,
        .g = g,
        .u = u,
        .w = (const float *)mok_cuda_in_ring(pass, window, layout->w, 4),
        .dg = mok_cuda_in_ring(pass, window, layout->dg, mok_cuda_inter_bytes(pass)),
        .du = mok_cuda_in_ring(pass, window, layout->du, mok_cuda_inter_bytes(pass)),
        .wh = mok_cuda_in_ring(pass, window, layout->h, mok_cuda_inter_bytes(pass)),
        .dw_partial = (float *)mok_cuda_in_ring(pass, window, layout->dw, layout->dw_tiles * 4),
    };
    struct mok_dgrad_gate_up_args second = {
        .rows = operands->rows,
        .launch = first.launch,
        .hidden = dims->hidden,
        .inter = dims->inter,
        .dg = first.dg,
        .du = first.du,
        .gate = pass->layer->routed.gate,
        .up = pass->layer->routed.up,
        .dx = mok_cuda_in_ring(pass, window, layout->y, mok_cuda_hidden_bytes(pass)),
    };
    struct mok_cuda_move_args push = mok_cuda_move_window(pass, window, second.dx, region->slots);
    push.dw_partial = first.dw_partial;
    push.num_partials = layout->dw_tiles;
    push.word_off = region->slot_dw;
    MOK_TRY(dgrad(pass, &first, &second, MOK_TASK_DGRAD_DOWN, window->lap));
    return mok_cuda_move(pass, window, MOK_CUDA_PUSH, &push);
}

/* carry: which scratch takes the sums that go on in the next window. */
static mok_status backward_window(const struct mok_cuda_pass *pass, const struct mok_window *window, int carry)
{
    struct mok_pass_group *group = pass->group;
    const struct mok_cuda_layout *layout = &group->layout;
    char *x = mok_cuda_window_x(pass, window), *dy = mok_cuda_in_ring(pass, window, layout->dy, mok_cuda_hidden_bytes(pass));
    char *dg = mok_cuda_in_ring(pass, window, layout->dg, mok_cuda_inter_bytes(pass)), *du = mok_cuda_in_ring(pass, window, layout->du, mok_cuda_inter_bytes(pass));
    char *g = window->is_kept ? mok_cuda_in_saved(window, pass->saved->g, mok_cuda_inter_bytes(pass)) : dg;
    char *u = window->is_kept ? mok_cuda_in_saved(window, pass->saved->u, mok_cuda_inter_bytes(pass)) : du;
    struct mok_cuda_move_args pull = mok_cuda_move_window(pass, window, dy, group->setup.region.rows);
    pull.local_w = (float *)mok_cuda_in_ring(pass, window, layout->w, 4);
    pull.word_off = group->setup.region.w;
    struct wgrad operands = {
        .rows = mok_cuda_routed_rows(pass, window),
        .grads = &pass->backward->grads,
        .inter = group->setup.dims.inter,
        .x = x,
        .dy = dy,
        .dg = dg,
        .du = du,
        .wh = mok_cuda_in_ring(pass, window, layout->h, mok_cuda_inter_bytes(pass)),
    };
    if (layout->spans_windows) {
        operands.carry_in = (const float *)(group->other + layout->carry[1 - carry]);
        operands.carry_out = (float *)(group->other + layout->carry[carry]);
    }
    MOK_TRY(mok_cuda_move(pass, window, MOK_CUDA_PULL, &pull));
    if (!window->is_kept) {
        MOK_TRY(make_again(pass, window, x, g, u));
    }
    MOK_TRY(dgrad_window(pass, window, &operands, g, u));
    if (is_last(pass, window)) {
        MOK_TRY(mok_cuda_barrier(pass, MOK_CUDA_EXIT, MOK_CUDA_ARRIVE));
    }
    return wgrad(pass, &operands, MOK_TASK_WGRAD, window->lap);
}

/* ---- shared expert ---------------------------------------------------------------------------------------------------------- */

mok_status mok_cuda_staged_shared_backward(const struct mok_cuda_pass *pass)
{
    struct mok_pass_group *group = pass->group;
    const struct mok_dims *dims = &group->setup.dims;
    const struct mok_cuda_layout *layout = &group->layout;
    if (dims->shared_inter == 0) {
        return MOK_OK;
    }
    char *dg = group->other + layout->shared_dg, *du = group->other + layout->shared_du;
    char *g = layout->shared_remade ? dg : pass->saved->shared_g, *u = layout->shared_remade ? du : pass->saved->shared_u;
    struct mok_dgrad_down_args first = {
        .rows = mok_cuda_token_rows(pass),
        .launch = mok_cuda_gemm_limits(pass),
        .hidden = dims->hidden,
        .inter = dims->shared_inter,
        .activation = pass->layer->activation,
        .dy = pass->backward->dy,
        .down = pass->layer->shared.down,
        .g = g,
        .u = u,
        .w = pass->backward->shared_w != NULL ? pass->backward->shared_w : (const float *)(group->other + layout->ones),
        .dg = dg,
        .du = du,
        .wh = group->other + layout->shared_h,
        .dw_partial = (float *)(group->other + layout->shared_dw),
    };
    struct mok_dgrad_gate_up_args second = {
        .rows = first.rows,
        .launch = first.launch,
        .hidden = dims->hidden,
        .inter = dims->shared_inter,
        .dg = dg,
        .du = du,
        .gate = pass->layer->shared.gate,
        .up = pass->layer->shared.up,
        .dx = group->other + layout->shared_y,
    };
    struct wgrad operands = {
        .rows = first.rows,
        .grads = &pass->backward->shared_grads,
        .inter = dims->shared_inter,
        .x = pass->saved->own_x,
        .dy = pass->backward->dy,
        .dg = dg,
        .du = du,
        .wh = first.wh,
    };
    if (layout->shared_remade) {
        struct mok_gate_up_args again = mok_cuda_shared_gate_up(pass, pass->saved->own_x, NULL, g, u);
        MOK_TRY(mok_cuda_gate_up(pass, &again, MOK_TASK_SHARED_RECOMPUTE, 0));
    }
    MOK_TRY(dgrad(pass, &first, &second, MOK_TASK_SHARED_DGRAD_DOWN, 0));
    return wgrad(pass, &operands, MOK_TASK_SHARED_WGRAD, 0);
}

/* ---- all windows ---------------------------------------------------------------------------------------------------------------- */

mok_status mok_cuda_staged_backward(const struct mok_cuda_pass *pass, int *exit_parts_out)
{
    struct mok_window window = {0, 0, 0, 0};
    for (int carry = 0; mok_cuda_next_window(pass, &window); carry = 1 - carry) {
        MOK_TRY(backward_window(pass, &window, carry));
    }
    *exit_parts_out = window.rows == 0 ? MOK_CUDA_ARRIVE | MOK_CUDA_WAIT : MOK_CUDA_WAIT; /* without experts nobody has arrived yet */
    return MOK_OK;
}
