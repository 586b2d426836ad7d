/*
 * Host side of the fused forward kernel: see fused.h. Fills the kernel's one argument struct (tensor maps, the walk, where rows stand),
 * clears the counters by a memset node and launches; nothing comes back to the host.
 */
#include "cuda/fused/fused.h"

#include <inttypes.h>
#include <math.h>

#include "cuda/device.h"
#include "cuda/fused/fused_args.h"
#include "cuda/tensor_map.h"
#include "trace/event.h"

enum {
    STEP = 64,        /* along the contraction */
    HALF_TILE = 128,  /* columns of B that one box holds */
    PANEL_ROWS = 16,  /* of an output box */
    ROW_GROUP = 16,   /* as in the staged products */
    STATE_WORDS = 32, /* struct mok_fused_state in a cache line of its own, in front of the counters */
    PLACES = 4        /* of an automatic ring */
};

/* ---- sizes ------------------------------------------------------------------------------------------------------------------ */

int64_t mok_cuda_fused_counter_bytes(const struct mok_pass_setup *setup)
{
    struct mok_limits limits = mok_plan_limits(&setup->dims, &setup->ring_forward);
    return setup->path == MOK_PATH_FUSED ? (STATE_WORDS + mok_plan_counter_base(&limits, MOK_NUM_COUNTERS)) * 4 : 0;
}

void mok_cuda_fused_choose_ring(const mok_group_config *config, const struct mok_pass_setup *setup, struct mok_ring *ring)
{
    int64_t most = mok_plan_max_rows_any(&setup->dims);
    if (config->minibatch_rows == 0) {
        /* A whole number of units for a cluster of two. */
        int64_t rows = mok_round_up(mok_plan_minibatch_rows(&setup->dims, setup->compute_workers, 0), 2 * MOK_TILE_ROWS);
        ring->minibatch_rows = mok_min64(rows, most);
    }
    int64_t needed = mok_ceil_div(most, ring->minibatch_rows);
    ring->num_places = (int32_t)mok_min64(config->ring_minibatches > 0 ? config->ring_minibatches : PLACES, needed);
    ring->look_ahead = (int32_t)mok_min64(config->look_ahead > 0 ? config->look_ahead : 1, ring->num_places - 1);
}

mok_status mok_cuda_fused_prepare(void)
{
    const struct mok_gemm_kernel kernel = mok_cuda_fused_kernel();
    struct cudaFuncAttributes attributes;
    if (mok_cuda_fused_args_bytes() != sizeof(struct mok_fused_args)) {
        return mok_base_fail(MOK_ERR_INTERNAL, "kernel fused_forward takes %zu bytes of arguments on the device and %zu on the host",
                             mok_cuda_fused_args_bytes(), sizeof(struct mok_fused_args));
    }
    MOK_TRY(mok_cuda_check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)kernel.shared_bytes),
                           "fused_forward"));
    return mok_cuda_check(cudaFuncGetAttributes(&attributes, kernel.function), "fused_forward");
}

/* ---- arguments -------------------------------------------------------------------------------------------------------------- */

static mok_status fill_out(struct mok_gemm_out *out, void *base, int64_t num_rows, int64_t cols)
{
    out->base = base;
    out->cols = cols;
    return mok_cuda_map_rows(&out->map, base, num_rows, cols, PANEL_ROWS);
}

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
    gate_up->num_steps = mok_plan_num_tiles(dims->hidden, STEP);
    gate_up->tile_cols = tiles.gate_up;
    gate_up->half_cols = 0;
    down->num_steps = mok_plan_num_tiles((int32_t)pair->inter, STEP);
    down->tile_cols = tiles.down;
    down->half_cols = tiles.down / 2;
    MOK_TRY(mok_cuda_map_rows(&gate_up->a, pair->x, pair->rows, dims->hidden, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_matrices(&gate_up->b[0], &pair->ffn->gate, MOK_DTYPE_BF16, pair->num, pair->inter, dims->hidden, HALF_TILE));
    MOK_TRY(mok_cuda_map_matrices(&gate_up->b[1], &pair->ffn->up, MOK_DTYPE_BF16, pair->num, pair->inter, dims->hidden, HALF_TILE));
    MOK_TRY(fill_out(&gate_up->out[0], pair->h, pair->rows, pair->inter));
    if (pair->g != NULL) {
        MOK_TRY(fill_out(&gate_up->out[1], pair->g, pair->keep_rows, pair->inter));
        MOK_TRY(fill_out(&gate_up->out[2], pair->u, pair->keep_rows, pair->inter));
    }
    MOK_TRY(mok_cuda_map_rows(&down->a, pair->h, pair->rows, pair->inter, MOK_TILE_ROWS));
    for (int half = 0; half < 2; half++) {
        MOK_TRY(mok_cuda_map_matrices(&down->b[half], &pair->ffn->down, MOK_DTYPE_BF16, pair->num, dims->hidden, pair->inter, HALF_TILE));
    }
    return fill_out(&down->out[0], pair->y, pair->rows, dims->hidden);
}

static mok_status fill_routed(const struct mok_staged *pass, struct mok_fused_args *args)
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
    args->y_ring = pair.y;
    if (pass->kept_rows > 0) {
        args->x_saved = pass->saved->x;
        MOK_TRY(mok_cuda_map_rows(&args->x_kept, pass->saved->x, pass->kept_rows, group->setup.dims.hidden, MOK_TILE_ROWS));
    }
    return fill_pair(&group->setup.dims, &pair, &args->gemm[MOK_FUSED_GATE_UP], &args->gemm[MOK_FUSED_DOWN]);
}

static mok_status fill_shared(const struct mok_staged *pass, const void *x, struct mok_fused_args *args)
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
        .x = x,
        .h = group->other + group->layout.shared_h,
        .y = group->other + group->layout.shared_y,
        .g = pass->saved == NULL ? NULL : pass->saved->shared_g,
        .u = pass->saved == NULL ? NULL : pass->saved->shared_u,
        .keep_rows = tokens,
    };
    args->keeps_shared = pair.g != NULL;
    return fill_pair(&group->setup.dims, &pair, &args->gemm[MOK_FUSED_SHARED_GATE_UP], &args->gemm[MOK_FUSED_SHARED_DOWN]);
}

static void fill_activation(struct mok_gemm_activation *to, const mok_activation *from)
{
    to->limit = from->limit;
    to->alpha = from->alpha;
    to->minus_alpha_log2e = (float)(-(double)from->alpha * 1.4426950408889634);
    to->up_offset = from->up_offset;
    to->clamps = isfinite(from->limit);
}

static void fill_walk(const struct mok_staged *pass, int32_t num_comm, struct mok_fused_args *args)
{
    const struct mok_pass_group *group = pass->group;
    const struct mok_cuda_schedule_arrays *arrays = &pass->schedule->arrays;
    struct mok_limits limits = mok_plan_limits(&group->setup.dims, pass->ring);
    args->walk.dims = group->setup.dims;
    args->walk.ring = *pass->ring;
    args->walk.ring.keep_rows = pass->kept_rows;
    args->walk.tiles = mok_plan_tiles_cuda(&group->setup.dims);
    args->walk.schedule = (struct mok_schedule_view){.head = arrays->head,
                                                     .expert_rows = arrays->expert_rows,
                                                     .expert_first = arrays->expert_first,
                                                     .tile_expert = arrays->tile_expert,
                                                     .active = arrays->active,
                                                     .ordinal = arrays->ordinal,
                                                     .routes = arrays->routes,
                                                     .ids = arrays->ids};
    args->walk.num_comm = num_comm;
    args->walk.row_group = ROW_GROUP;
    for (int kind = 0; kind < MOK_NUM_COUNTERS; kind++) {
        args->counter_base[kind] = (int32_t)mok_plan_counter_base(&limits, kind);
    }
}

/* ---- launch ----------------------------------------------------------------------------------------------------------------- */

static mok_status launch(const struct mok_gemm_kernel *kernel, int32_t num_ctas, struct mok_fused_args *args, mok_stream stream)
{
    cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeClusterDimension};
    attribute.val.clusterDim.x = (unsigned)kernel->cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {.gridDim = {(unsigned)num_ctas, 1, 1},
                                 .blockDim = {(unsigned)kernel->threads, 1, 1},
                                 .dynamicSmemBytes = kernel->shared_bytes,
                                 .stream = (cudaStream_t)stream,
                                 .attrs = &attribute,
                                 .numAttrs = 1};
    void *params[] = {args};
    return mok_cuda_check(cudaLaunchKernelExC(&config, kernel->function, params), "launch of fused_forward");
}

/* CTAs of the grid, whole clusters; and how many of them, whole clusters too, move rows. Apart, one cluster at least multiplies. */
static int32_t share_ctas(const struct mok_pass_group *group, int32_t cluster, int32_t *num_comm_out)
{
    int32_t most = (int32_t)mok_max64(group->gemm_ctas / cluster, 1) * cluster;
    int32_t comm = (int32_t)mok_round_up(group->move_ctas, cluster);
    int32_t ctas = group->fused_apart ? (int32_t)mok_max64(most, 2 * cluster) : most;
    *num_comm_out = (int32_t)mok_min64(comm, group->fused_apart ? ctas - cluster : ctas);
    return ctas;
}

mok_status mok_cuda_fused_forward(const struct mok_staged *pass, const void *x)
{
    struct mok_pass_group *group = pass->group;
    const struct mok_gemm_kernel kernel = mok_cuda_fused_kernel();
    char *counters = group->other + group->layout.counters;
    int32_t num_comm = 0, num_ctas = share_ctas(group, kernel.cluster, &num_comm);
    struct mok_fused_args args = {
        .watch = group->watch,
        .ok = &group->control->pass_ok,
        .state = (struct mok_fused_state *)counters,
        .counters = (uint32_t *)counters + STATE_WORDS,
        .x_off = pass->saved == NULL ? group->setup.region.rows : pass->saved->x_off,
        .slots_off = group->setup.region.slots,
        .row_bytes = (int32_t)mok_cuda_hidden_bytes(pass),
        .apart = group->fused_apart,
        .primes = !group->fused_apart && group->setup.dims.shared_inter == 0, /* the shared expert's products would have to wait */
        .wait_limit_ns = (uint64_t)group->setup.local_timeout_ns,
    };
    MOK_TRY(fill_routed(pass, &args));
    MOK_TRY(fill_shared(pass, x, &args));
    fill_activation(&args.activation, &pass->layer->activation);
    fill_walk(pass, num_comm, &args);
    mok_cuda_fused_cut_rows(&args);
    MOK_TRY(mok_cuda_stage_begin(group, pass->stream));
    MOK_TRY(mok_cuda_check(cudaMemsetAsync(counters, 0, (size_t)mok_cuda_fused_counter_bytes(&group->setup), (cudaStream_t)pass->stream),
                           "clearing of counters"));
    MOK_TRY(launch(&kernel, num_ctas, &args, pass->stream));
    return mok_cuda_stage_end(group, MOK_EVENT_TASK + MOK_TASK_GATE_UP, 0, pass->stream);
}
