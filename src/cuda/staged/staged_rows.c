/*
 * Windows, rows of launches, moves and gate+up of the staged path. See staged_rows.h.
 */
#include "cuda/staged/staged_rows.h"

#include "base/status.h"
#include "cuda/rank_calls.h"
#include "plan/tile.h"
#include "trace/event.h"

/* ---- windows ---------------------------------------------------------------------------------------------------------------- */

int mok_cuda_next_window(const struct mok_cuda_pass *pass, struct mok_window *window)
{
    int64_t most = mok_plan_max_rows(&pass->group->setup.dims), ring_rows = mok_plan_ring_rows(pass->ring);
    int64_t first = window->first + window->rows;
    if (first >= most) {
        return 0;
    }
    window->first = first;
    window->lap = first / ring_rows;
    window->is_kept = first < pass->kept_rows;
    int64_t end = mok_min64((window->lap + 1) * ring_rows, most);
    window->rows = (window->is_kept ? mok_min64(end, pass->kept_rows) : end) - first;
    return 1;
}

char *mok_cuda_in_ring(const struct mok_cuda_pass *pass, const struct mok_window *window, int64_t offset, int64_t row_bytes)
{
    return pass->group->ring + offset + mok_plan_ring_row(pass->ring, window->first) * row_bytes;
}

char *mok_cuda_in_saved(const struct mok_window *window, char *base, int64_t row_bytes) { return base + window->first * row_bytes; }

char *mok_cuda_window_x(const struct mok_cuda_pass *pass, const struct mok_window *window)
{
    int64_t row_bytes = mok_cuda_hidden_bytes(pass);
    return window->is_kept ? mok_cuda_in_saved(window, pass->saved->x, row_bytes) : mok_cuda_in_ring(pass, window, pass->group->layout.x, row_bytes);
}

struct mok_gemm_rows mok_cuda_routed_rows(const struct mok_cuda_pass *pass, const struct mok_window *window)
{
    const struct mok_cuda_schedule_arrays *arrays = &pass->schedule->arrays;
    return (struct mok_gemm_rows){
        .num_tiles = &arrays->head->num_tiles,
        .tile_expert = arrays->tile_expert,
        .expert_first = arrays->expert_first,
        .expert_rows = arrays->expert_rows,
        .buffer_rows = window->rows,
        .first_tile = (int32_t)(window->first / MOK_TILE_ROWS),
        .num_experts = pass->group->setup.num_local,
    };
}

struct mok_gemm_rows mok_cuda_token_rows(const struct mok_cuda_pass *pass)
{
    const int32_t *zeros = (const int32_t *)(pass->group->other + pass->group->layout.zeros);
    return (struct mok_gemm_rows){
        .num_tiles = pass->schedule->arrays.token_tiles,
        .tile_expert = zeros,
        .expert_first = zeros,
        .expert_rows = pass->schedule->arrays.token_rows,
        .buffer_rows = pass->schedule->num_tokens,
        .num_experts = 1,
    };
}

struct mok_gemm_launch mok_cuda_gemm_limits(const struct mok_cuda_pass *pass)
{
    int64_t limit_ms = pass->group->setup.local_timeout_ns / 1000000;
    return (struct mok_gemm_launch){
        .num_ctas = pass->group->gemm_ctas,
        .wait_limit_ms = (int32_t)mok_min64(INT32_MAX, mok_max64(limit_ms, 1)),
    };
}

/* ---- moving rows ------------------------------------------------------------------------------------------------------------ */

struct mok_cuda_move_args mok_cuda_move_window(const struct mok_cuda_pass *pass, const struct mok_window *window, char *local, int64_t remote_off)
{
    struct mok_pass_group *group = pass->group;
    const struct mok_cuda_schedule_arrays *arrays = &pass->schedule->arrays;
    return (struct mok_cuda_move_args){
        .watch = group->watch,
        .ok = &group->control->pass_ok,
        .head = arrays->head,
        .routes = arrays->routes,
        .tile_expert = arrays->tile_expert,
        .expert_first = arrays->expert_first,
        .expert_rows = arrays->expert_rows,
        .local = local,
        .remote_off = remote_off,
        .first_row = (int32_t)window->first,
        .window_rows = (int32_t)window->rows,
        .row_bytes = (int32_t)mok_cuda_hidden_bytes(pass),
        .top_k = group->setup.dims.top_k,
    };
}

mok_status mok_cuda_move(const struct mok_cuda_pass *pass, const struct mok_window *window, enum mok_cuda_kernel_id id, struct mok_cuda_move_args *args)
{
    size_t shared_bytes = mok_cuda_cut_rows(args);
    MOK_TRY(mok_cuda_stage_begin(pass->group, pass->stream));
    MOK_TRY(mok_cuda_launch(id, pass->group->move_ctas, 0, shared_bytes, args, pass->stream));
    return mok_cuda_stage_end(pass->group, id == MOK_CUDA_PULL ? MOK_EVENT_PULL : MOK_EVENT_PUSH, window->lap, pass->stream);
}

/* ---- gate+up, in both passes ---------------------------------------------------------------------------------------------- */

mok_status mok_cuda_gate_up(const struct mok_cuda_pass *pass, const struct mok_gate_up_args *args, int32_t kind, int64_t index)
{
    MOK_TRY(mok_cuda_stage_begin(pass->group, pass->stream));
    MOK_TRY(mok_cuda_gate_up_launch(args, pass->stream));
    return mok_cuda_stage_end(pass->group, MOK_EVENT_TASK + kind, index, pass->stream);
}

struct mok_gate_up_args mok_cuda_shared_gate_up(const struct mok_cuda_pass *pass, const void *x, void *h, void *g, void *u)
{
    const struct mok_dims *dims = &pass->group->setup.dims;
    return (struct mok_gate_up_args){
        .rows = mok_cuda_token_rows(pass),
        .launch = mok_cuda_gemm_limits(pass),
        .hidden = dims->hidden,
        .inter = dims->shared_inter,
        .activation = pass->layer->activation,
        .x = x,
        .gate = pass->layer->shared.gate,
        .up = pass->layer->shared.up,
        .h = h,
        .g = g,
        .u = u,
        .keep_rows = g == NULL ? 0 : mok_round_up(pass->schedule->num_tokens, MOK_TILE_ROWS),
    };
}
