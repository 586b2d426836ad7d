/*
 * Host side of the fused backward kernel: fills its one argument struct and launches; nothing comes back to the host. See fused.h.
 */
#include "cuda/device.h"
#include "cuda/fused/fused.h"
#include "cuda/fused/backward/fused_backward_args.h"
#include "cuda/fused/fused_host.h"
#include "cuda/rank_calls.h"
#include "cuda/tensor_map.h"
#include "trace/event.h"

enum { FP32_ROWS = MOK_GEMM_WARP_ROWS / 2 /* of an output box of fp32: half a panel */ };

mok_status mok_cuda_fused_prepare_backward(void)
{
    const struct mok_gemm_kernel kernel = mok_cuda_fused_backward_kernel();
    return mok_cuda_fused_load(&kernel, "fused_backward", mok_cuda_fused_backward_args_bytes(), sizeof(struct mok_fused_backward_args));
}

/* ---- arguments -------------------------------------------------------------------------------------------------------------- */

/* Routed experts or the shared expert: buffers of `rows` rows, weights of `num` experts of width `inter`. */
struct side {
    const mok_ffn *ffn, *grads;
    int64_t num, inter, rows;
    const void *x, *dy; /* x: of rows that are not kept */
    void *again_g, *again_u; /* made again; NULL = never */
    const void *g, *u;       /* read by D, unless they are kept rows' */
    const float *w;
    void *dg, *du, *wh, *dx;
    float *dw_partial;
    void *carry; /* fp32 [2, 3, inter, H], the second carry_stride elements on; NULL = none */
    int64_t carry_stride;
};

static mok_status fill_again(const struct mok_dims *dims, const struct side *side, struct mok_fused_gemm *gemm)
{
    gemm->num_steps = mok_plan_num_tiles(dims->hidden, MOK_GEMM_DEPTH);
    MOK_TRY(mok_cuda_map_rows(&gemm->a, side->x, side->rows, dims->hidden, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_matrices(&gemm->b[0], &side->ffn->gate, MOK_DTYPE_BF16, side->num, side->inter, dims->hidden, MOK_GEMM_COLS / 2));
    MOK_TRY(mok_cuda_map_matrices(&gemm->b[1], &side->ffn->up, MOK_DTYPE_BF16, side->num, side->inter, dims->hidden, MOK_GEMM_COLS / 2));
    MOK_TRY(mok_cuda_fill_out(&gemm->out[1], side->again_g, side->rows, side->inter));
    return mok_cuda_fill_out(&gemm->out[2], side->again_u, side->rows, side->inter);
}

static mok_status fill_dgrads(const struct mok_dims *dims, const struct side *side, struct mok_dgrad_down_kernel_args *first,
                              struct mok_dgrad_gate_up_kernel_args *second)
{
    first->num_steps = mok_plan_num_tiles(dims->hidden, MOK_GEMM_DEPTH);
    first->walk.num_cols = mok_plan_num_tiles((int32_t)side->inter, MOK_GEMM_COLS);
    first->w = side->w;
    first->dw_partial = side->dw_partial;
    MOK_TRY(mok_cuda_map_rows(&first->dy, side->dy, side->rows, dims->hidden, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_matrices(&first->down, &side->ffn->down, MOK_DTYPE_BF16, side->num, dims->hidden, side->inter, MOK_GEMM_DEPTH));
    MOK_TRY(mok_cuda_map_rows(&first->g, side->g, side->rows, side->inter, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_rows(&first->u, side->u, side->rows, side->inter, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_fill_out(&first->dg, side->dg, side->rows, side->inter));
    MOK_TRY(mok_cuda_fill_out(&first->du, side->du, side->rows, side->inter));
    MOK_TRY(mok_cuda_fill_out(&first->wh, side->wh, side->rows, side->inter));
    second->half_steps = mok_plan_num_tiles((int32_t)side->inter, MOK_GEMM_DEPTH);
    MOK_TRY(mok_cuda_map_rows(&second->dg, side->dg, side->rows, side->inter, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_rows(&second->du, side->du, side->rows, side->inter, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_matrices(&second->gate, &side->ffn->gate, MOK_DTYPE_BF16, side->num, side->inter, dims->hidden, MOK_GEMM_DEPTH));
    MOK_TRY(mok_cuda_map_matrices(&second->up, &side->ffn->up, MOK_DTYPE_BF16, side->num, side->inter, dims->hidden, MOK_GEMM_DEPTH));
    return mok_cuda_fill_out(&second->finish.out[0], side->dx, side->rows, dims->hidden);
}

/* Both carries of matrix `idx` of gate, up, down, one behind the other. */
static mok_status map_carry(const struct side *side, int32_t idx, int64_t out, int64_t in, struct mok_wgrad_kernel_args *to, int part)
{
    const mok_matrices matrices = {(float *)side->carry + idx * out * in, side->carry_stride, in};
    if (side->carry == NULL) {
        return MOK_OK;
    }
    MOK_TRY(mok_cuda_map_matrices(&to->carry_in[part], &matrices, MOK_DTYPE_FP32, 2, out, in, MOK_GEMM_DEPTH));
    return mok_cuda_map_matrices(&to->carry_out[part], &matrices, MOK_DTYPE_FP32, 2, out, in, FP32_ROWS);
}

/* One or two gradients [num, out, in]: a[part]^T b. Without rows nothing is loaded, but a map needs an address. */
static mok_status fill_wgrad(const struct side *side, const mok_matrices *const grads[2], int32_t first_matrix, const void *const a[2],
                             const void *b, int32_t mode, struct mok_wgrad_kernel_args *to)
{
    int64_t rows = mok_max64(side->rows, 1);
    to->add = mode == MOK_GRAD_ADD;
    to->bf16 = side->grads->dtype == MOK_DTYPE_BF16;
    for (int part = 0; part < 2; part++) {
        MOK_TRY(mok_cuda_map_rows(&to->a[part], side->rows > 0 ? a[part] : grads[part]->base, rows, to->out, MOK_GEMM_DEPTH));
        MOK_TRY(mok_cuda_map_matrices(&to->grad_in[part], grads[part], side->grads->dtype, side->num, to->out, to->in, MOK_GEMM_DEPTH));
        MOK_TRY(mok_cuda_map_matrices(&to->grad_out[part], grads[part], side->grads->dtype, side->num, to->out, to->in,
                                      to->bf16 ? MOK_GEMM_WARP_ROWS : FP32_ROWS));
        MOK_TRY(map_carry(side, first_matrix + (first_matrix == MOK_MATRIX_GATE ? part : 0), to->out, to->in, to, part));
    }
    return mok_cuda_map_rows(&to->b, side->rows > 0 ? b : grads[0]->base, rows, to->in, MOK_GEMM_DEPTH);
}

static mok_status fill_wgrads(const struct mok_dims *dims, const struct side *side, int32_t mode, struct mok_fused_wgrad_side *to)
{
    const mok_matrices *const down[2] = {&side->grads->down, &side->grads->down};
    const mok_matrices *const gate_up[2] = {&side->grads->gate, &side->grads->up};
    const void *const dy[2] = {side->dy, side->dy}, *const dgu[2] = {side->dg, side->du};
    to->down.out = to->gate_up.in = dims->hidden;
    to->down.in = to->gate_up.out = (int32_t)side->inter;
    MOK_TRY(fill_wgrad(side, down, MOK_MATRIX_DOWN, dy, side->wh, mode, &to->down));
    return fill_wgrad(side, gate_up, MOK_MATRIX_GATE, dgu, side->x, mode, &to->gate_up);
}

static mok_status fill_side(const struct mok_cuda_pass *pass, const struct side *side, int which, struct mok_fused_backward_args *args)
{
    const struct mok_dims *dims = &pass->group->setup.dims;
    struct mok_fused_gemm *again = &args->pass.gemm[which == MOK_FUSED_SHARED ? MOK_FUSED_SHARED_GATE_UP : MOK_FUSED_GATE_UP];
    if (side->rows > 0) {
        if (side->again_g != NULL) {
            MOK_TRY(fill_again(dims, side, again));
        }
        MOK_TRY(fill_dgrads(dims, side, &args->dgrad_down[which], &args->dgrad_gate_up[which]));
    }
    mok_cuda_fill_activation(&args->dgrad_down[which].activation, &pass->layer->activation);
    return fill_wgrads(dims, side, pass->backward->grad_mode, &args->wgrad[which]);
}

static mok_status fill_kept(const struct mok_cuda_pass *pass, struct mok_fused_backward_args *args)
{
    const struct mok_dims *dims = &pass->group->setup.dims;
    args->kept_rows = (int32_t)pass->kept_rows;
    if (pass->kept_rows == 0) {
        return MOK_OK;
    }
    MOK_TRY(mok_cuda_map_rows(&args->x_kept, pass->saved->x, pass->kept_rows, dims->hidden, MOK_GEMM_DEPTH));
    MOK_TRY(mok_cuda_map_rows(&args->g_kept, pass->saved->g, pass->kept_rows, dims->inter, MOK_TILE_ROWS));
    return mok_cuda_map_rows(&args->u_kept, pass->saved->u, pass->kept_rows, dims->inter, MOK_TILE_ROWS);
}

static mok_status fill_routed(const struct mok_cuda_pass *pass, struct mok_fused_backward_args *args)
{
    const struct mok_pass_group *group = pass->group;
    const struct mok_cuda_layout *layout = &group->layout;
    char *ring = group->ring, *carry = group->other + layout->carry[0];
    if (group->setup.num_local == 0) {
        return MOK_OK; /* no row ever comes */
    }
    struct side side = {
        .ffn = &pass->layer->routed,
        .grads = &pass->backward->grads,
        .num = group->setup.num_local,
        .inter = group->setup.dims.inter,
        .rows = mok_plan_ring_rows(pass->ring),
        .x = ring + layout->x,
        .dy = ring + layout->dy,
        .again_g = ring + layout->dg,
        .again_u = ring + layout->du,
        .g = ring + layout->dg,
        .u = ring + layout->du,
        .w = (const float *)(ring + layout->w),
        .dg = ring + layout->dg,
        .du = ring + layout->du,
        .wh = ring + layout->h,
        .dx = ring + layout->y,
        .dw_partial = (float *)(ring + layout->dw),
        .carry = layout->spans_windows ? carry : NULL,
        .carry_stride = (layout->carry[1] - layout->carry[0]) / 4,
    };
    args->pass.x_ring = ring + layout->x;
    args->pass.y_ring = ring + layout->y;
    args->dy_ring = ring + layout->dy;
    args->w_ring = (float *)(ring + layout->w);
    MOK_TRY(fill_kept(pass, args));
    return fill_side(pass, &side, MOK_FUSED_ROUTED, args);
}

static mok_status fill_shared(const struct mok_cuda_pass *pass, struct mok_fused_backward_args *args)
{
    const struct mok_pass_group *group = pass->group;
    const struct mok_cuda_layout *layout = &group->layout;
    char *other = group->other;
    if (group->setup.dims.shared_inter == 0) {
        return MOK_OK;
    }
    int remade = layout->shared_remade;
    struct side side = {
        .ffn = &pass->layer->shared,
        .grads = &pass->backward->shared_grads,
        .num = 1,
        .inter = group->setup.dims.shared_inter,
        .rows = pass->schedule->num_tokens,
        .x = pass->saved->own_x,
        .dy = pass->backward->dy,
        .again_g = remade ? other + layout->shared_dg : NULL,
        .again_u = remade ? other + layout->shared_du : NULL,
        .g = remade ? other + layout->shared_dg : pass->saved->shared_g,
        .u = remade ? other + layout->shared_du : pass->saved->shared_u,
        .w = pass->backward->shared_w != NULL ? pass->backward->shared_w : (const float *)(other + layout->ones),
        .dg = other + layout->shared_dg,
        .du = other + layout->shared_du,
        .wh = other + layout->shared_h,
        .dx = other + layout->shared_y,
        .dw_partial = (float *)(other + layout->shared_dw),
    };
    return fill_side(pass, &side, MOK_FUSED_SHARED, args);
}

/* ---- launch ----------------------------------------------------------------------------------------------------------------- */

mok_status mok_cuda_fused_backward(const struct mok_cuda_pass *pass)
{
    struct mok_pass_group *group = pass->group;
    const struct mok_region *region = &group->setup.region;
    const struct mok_gemm_kernel kernel = mok_cuda_fused_backward_kernel();
    int32_t num_comm = 0, num_ctas = mok_cuda_fused_share_ctas(group, kernel.cluster, &num_comm);
    struct mok_fused_backward_args args = {
        .pass = {.x_off = pass->saved->x_off},
        .dy_off = region->rows,
        .w_off = region->w,
        .slot_dw_off = region->slot_dw,
    };
    mok_cuda_fused_fill_args(pass, num_comm, &args.pass);
    args.pass.walk.backward = 1;
    args.pass.walk.zero_grads = pass->backward->grad_mode != MOK_GRAD_ADD;
    args.pass.walk.shared_recompute = group->layout.shared_remade;
    MOK_TRY(fill_routed(pass, &args));
    MOK_TRY(fill_shared(pass, &args));
    MOK_TRY(mok_cuda_stage_begin(group, pass->stream));
    MOK_TRY(mok_cuda_fused_launch(pass, &kernel, "fused_backward", num_ctas, &args));
    return mok_cuda_stage_end(group, MOK_EVENT_KERNEL, 0, pass->stream);
}
