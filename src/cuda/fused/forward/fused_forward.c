/*
 * Host side of the fused forward kernel: see fused.h. Fills the kernel's one argument struct (tensor maps, the walk, where rows stand),
 * clears the counters by a memset node and launches; nothing comes back to the host.
 */
#include "cuda/fused/fused.h"

#include "cuda/device.h"
#include "cuda/fused/forward/fused_forward_args.h"
#include "cuda/fused/fused_host.h"
#include "cuda/rank_calls.h"
#include "cuda/tensor_map.h"
#include "trace/event.h"

/* ---- loading ---------------------------------------------------------------------------------------------------------------- */

mok_status mok_cuda_fused_prepare_forward(void)
{
    const struct mok_gemm_kernel kernel = mok_cuda_fused_forward_kernel();
    return mok_cuda_fused_load(&kernel, "fused_forward", mok_cuda_fused_forward_args_bytes(), sizeof(struct mok_fused_args));
}

/* ---- arguments -------------------------------------------------------------------------------------------------------------- */

/* What the rows of a pair of products are: buffers of `rows` rows, weights of `num` experts of width `inter`. */
struct pair {
    const mok_ffn *ffn;
    int64_t num, inter, rows;
    const void *x;
    void *h, *y;
    void *g, *u; /* NULL = not kept */
    int64_t keep_rows;
};

static mok_status fill_pair(const struct mok_dims *dims, const struct pair *pair, struct mok_fused_gemm *gate_up,
                            struct mok_fused_gemm *down)
{
    struct mok_tiles tiles = mok_plan_tiles_cuda(dims);
    gate_up->num_steps = mok_plan_num_tiles(dims->hidden, MOK_GEMM_DEPTH);
    gate_up->tile_cols = tiles.gate_up;
    gate_up->half_cols = 0;
    down->num_steps = mok_plan_num_tiles((int32_t)pair->inter, MOK_GEMM_DEPTH);
    down->tile_cols = tiles.down;
    down->half_cols = tiles.down / 2;
    MOK_TRY(mok_cuda_map_rows(&gate_up->a, pair->x, pair->rows, dims->hidden, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_matrices(&gate_up->b[0], &pair->ffn->gate, MOK_DTYPE_BF16, pair->num, pair->inter, dims->hidden, MOK_GEMM_COLS / 2));
    MOK_TRY(mok_cuda_map_matrices(&gate_up->b[1], &pair->ffn->up, MOK_DTYPE_BF16, pair->num, pair->inter, dims->hidden, MOK_GEMM_COLS / 2));
    MOK_TRY(mok_cuda_fill_out(&gate_up->out[0], pair->h, pair->rows, pair->inter));
    if (pair->g != NULL) {
        MOK_TRY(mok_cuda_fill_out(&gate_up->out[1], pair->g, pair->keep_rows, pair->inter));
        MOK_TRY(mok_cuda_fill_out(&gate_up->out[2], pair->u, pair->keep_rows, pair->inter));
    }
    MOK_TRY(mok_cuda_map_rows(&down->a, pair->h, pair->rows, pair->inter, MOK_TILE_ROWS));
    for (int half = 0; half < 2; half++) {
        MOK_TRY(mok_cuda_map_matrices(&down->b[half], &pair->ffn->down, MOK_DTYPE_BF16, pair->num, dims->hidden, pair->inter, MOK_GEMM_COLS / 2));
    }
    return mok_cuda_fill_out(&down->out[0], pair->y, pair->rows, dims->hidden);
}

static mok_status fill_routed(const struct mok_cuda_pass *pass, struct mok_fused_args *args)
{
    const struct mok_pass_group *group = pass->group;
    const struct mok_cuda_layout *layout = &group->layout;
    if (group->setup.num_local == 0) {
        return MOK_OK; /* no row ever comes */
    }
    struct pair pair = {
        .ffn = &pass->layer->routed,
        .num = group->setup.num_local,
        .inter = group->setup.dims.inter,
        .rows = mok_plan_ring_rows(pass->ring),
        .x = group->ring + layout->x,
        .h = group->ring + layout->h,
        .y = group->ring + layout->y,
        .g = pass->kept_rows > 0 ? pass->saved->g : NULL,
        .u = pass->kept_rows > 0 ? pass->saved->u : NULL,
        .keep_rows = pass->kept_rows,
    };
    args->x_ring = group->ring + layout->x;
    if (pass->kept_rows > 0) {
        args->x_saved = pass->saved->x;
        MOK_TRY(mok_cuda_map_rows(&args->x_kept, pass->saved->x, pass->kept_rows, group->setup.dims.hidden, MOK_TILE_ROWS));
    }
    return fill_pair(&group->setup.dims, &pair, &args->gemm[MOK_FUSED_GATE_UP], &args->gemm[MOK_FUSED_DOWN]);
}

static mok_status fill_shared(const struct mok_cuda_pass *pass, struct mok_fused_args *args)
{
    const struct mok_pass_group *group = pass->group;
    int64_t tokens = pass->schedule->num_tokens;
    if (group->setup.dims.shared_inter == 0 || tokens == 0) {
        return MOK_OK;
    }
    struct pair pair = {
        .ffn = &pass->layer->shared,
        .num = 1,
        .inter = group->setup.dims.shared_inter,
        .rows = tokens,
        .x = pass->forward->x,
        .h = group->other + group->layout.shared_h,
        .y = group->other + group->layout.shared_y,
        .g = pass->saved == NULL ? NULL : pass->saved->shared_g,
        .u = pass->saved == NULL ? NULL : pass->saved->shared_u,
        .keep_rows = tokens,
    };
    args->keeps_shared = pair.g != NULL;
    return fill_pair(&group->setup.dims, &pair, &args->gemm[MOK_FUSED_SHARED_GATE_UP], &args->gemm[MOK_FUSED_SHARED_DOWN]);
}

/* ---- launch ----------------------------------------------------------------------------------------------------------------- */

mok_status mok_cuda_fused_forward(const struct mok_cuda_pass *pass)
{
    struct mok_pass_group *group = pass->group;
    const struct mok_gemm_kernel kernel = mok_cuda_fused_forward_kernel();
    int32_t num_comm = 0, num_ctas = mok_cuda_fused_share_ctas(group, kernel.cluster, &num_comm);
    struct mok_fused_args args = {.x_off = pass->saved == NULL ? group->setup.region.rows : pass->saved->x_off};
    mok_cuda_fused_fill_args(pass, num_comm, &args);
    args.walk.pushes_rows = 1;
    MOK_TRY(fill_routed(pass, &args));
    MOK_TRY(fill_shared(pass, &args));
    mok_cuda_fill_activation(&args.activation, &pass->layer->activation);
    MOK_TRY(mok_cuda_stage_begin(group, pass->stream));
    MOK_TRY(mok_cuda_fused_launch(pass, &kernel, "fused_forward", num_ctas, &args));
    return mok_cuda_stage_end(group, MOK_EVENT_KERNEL, 0, pass->stream);
}
