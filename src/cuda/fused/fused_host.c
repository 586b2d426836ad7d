/*
 * See fused_host.h.
 */
#include "cuda/fused/fused_host.h"

#include "base/status.h"
#include "cuda/device.h"

enum { LANES = 32 /* of a mover */ };

_Static_assert(sizeof(struct mok_fused_state) <= 4 * MOK_CUDA_STATE_WORDS, "the state stands in front of the counters");

/* The given fields of args->walk, and where each kind of counter begins. */
static void fill_walk(const struct mok_cuda_pass *pass, int32_t num_comm, struct mok_fused_args *args)
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
    args->walk.row_group = MOK_GEMM_ROW_GROUP;
    for (int kind = 0; kind < MOK_NUM_COUNTERS; kind++) {
        args->counter_base[kind] = (int32_t)mok_plan_counter_base(&limits, kind);
    }
}

/* Cuts rows of args->row_bytes. */
static void cut_rows(struct mok_fused_args *args)
{
    const int64_t most[2] = {2 * 1024, 4 * 1024}; /* bytes of a copy: small enough that several are under way */
    const int64_t bytes[2] = {MOK_FUSED_RING_BYTES, MOK_FUSED_STAGE_BYTES};
    for (int wide = 0; wide < 2; wide++) {
        struct mok_fused_cut *cut = &args->cut[wide];
        cut->row_chunks = (int32_t)mok_ceil_div(args->row_bytes, most[wide]);
        cut->chunk_bytes = (int32_t)mok_round_up(mok_ceil_div(args->row_bytes, cut->row_chunks), 128); /* whole lines */
        cut->row_chunks = (int32_t)mok_ceil_div(args->row_bytes, cut->chunk_bytes);
        cut->lanes = (int32_t)mok_min64(LANES, bytes[wide] / cut->chunk_bytes);
    }
}

void mok_cuda_fused_fill_args(const struct mok_cuda_pass *pass, int32_t num_comm, struct mok_fused_args *args)
{
    const struct mok_pass_group *group = pass->group;
    char *counters = group->other + group->layout.counters;
    args->watch = group->watch;
    args->ok = &group->control->pass_ok;
    args->state = (struct mok_fused_state *)counters;
    args->counters = (uint32_t *)counters + MOK_CUDA_STATE_WORDS;
    args->slots_off = group->setup.region.slots;
    args->row_bytes = (int32_t)mok_cuda_hidden_bytes(pass);
    args->apart = group->fused_apart;
    args->primes = !group->fused_apart && group->setup.dims.shared_inter == 0; /* the shared expert's products would have to wait */
    args->trace = (struct mok_fused_trace){group->lane_events, group->lane_num, (uint32_t)group->max_events};
    args->wait_limit_ns = (uint64_t)group->setup.local_timeout_ns;
    fill_walk(pass, num_comm, args);
    cut_rows(args);
}

int32_t mok_cuda_fused_share_ctas(const struct mok_pass_group *group, int32_t cluster, int32_t *num_comm_out)
{
    int32_t most = (int32_t)mok_max64(group->gemm_ctas / cluster, 1) * cluster;
    int32_t comm = (int32_t)mok_round_up(group->move_ctas, cluster);
    int32_t ctas = group->fused_apart ? (int32_t)mok_max64(most, 2 * cluster) : most;
    *num_comm_out = (int32_t)mok_min64(comm, group->fused_apart ? ctas - cluster : ctas);
    return ctas;
}

mok_status mok_cuda_fused_load(const struct mok_gemm_kernel *kernel, const char *name, size_t args_bytes, size_t host_bytes)
{
    struct cudaFuncAttributes attributes;
    if (args_bytes != host_bytes) {
        return mok_base_fail(MOK_ERR_INTERNAL, "kernel %s takes %zu bytes of arguments on the device and %zu on the host", name, args_bytes,
                             host_bytes);
    }
    MOK_TRY(mok_cuda_check(cudaFuncSetAttribute(kernel->function, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)kernel->shared_bytes),
                           name));
    return mok_cuda_check(cudaFuncGetAttributes(&attributes, kernel->function), name);
}

mok_status mok_cuda_fused_launch(const struct mok_cuda_pass *pass, const struct mok_gemm_kernel *kernel, const char *name, int32_t num_ctas,
                                 void *args)
{
    struct mok_pass_group *group = pass->group;
    cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeClusterDimension};
    attribute.val.clusterDim.x = (unsigned)kernel->cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {.gridDim = {(unsigned)num_ctas, 1, 1},
                                 .blockDim = {(unsigned)kernel->threads, 1, 1},
                                 .dynamicSmemBytes = kernel->shared_bytes,
                                 .stream = (cudaStream_t)pass->stream,
                                 .attrs = &attribute,
                                 .numAttrs = 1};
    void *params[] = {args};
    MOK_TRY(mok_cuda_check(cudaMemsetAsync(group->other + group->layout.counters, 0, (size_t)group->layout.counter_bytes,
                                           (cudaStream_t)pass->stream),
                           "clearing of counters"));
    return mok_cuda_check(cudaLaunchKernelExC(&config, kernel->function, params), name);
}
