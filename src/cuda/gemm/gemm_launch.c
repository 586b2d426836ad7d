/*
 * Host side of the grouped GEMMs: fills the kernels' argument structs (TMA descriptors, tile counts) and launches them. Contract: gemm.h.
 */
#include <cuda_runtime_api.h>
#include <limits.h>
#include <stdatomic.h>

#include "cuda/gemm/gemm_args.h"
#include "cuda/tensor_map.h"

enum {
    MAX_DEVICES = 64,
    WAIT_LIMIT_MS = 10000
};

static _Atomic int32_t device_ctas[MAX_DEVICES]; /* CTAs that are resident at one time; 0 = not prepared */

static mok_status check_cuda(cudaError_t error, const char *what)
{
    return error == cudaSuccess ? MOK_OK : mok_base_fail(MOK_ERR_DEVICE, "%s: %s", what, cudaGetErrorString(error));
}

static void fill_config(const struct mok_gemm_kernel *kernel, int32_t num_ctas, cudaLaunchAttribute *attribute,
                        cudaLaunchConfig_t *config_out)
{
    *attribute = (cudaLaunchAttribute){.id = cudaLaunchAttributeClusterDimension};
    attribute->val.clusterDim.x = (unsigned)kernel->cluster;
    attribute->val.clusterDim.y = 1;
    attribute->val.clusterDim.z = 1;
    *config_out = (cudaLaunchConfig_t){.gridDim = {(unsigned)num_ctas, 1, 1},
                                       .blockDim = {(unsigned)kernel->threads, 1, 1},
                                       .dynamicSmemBytes = kernel->shared_bytes,
                                       .attrs = attribute,
                                       .numAttrs = 1};
}

static mok_status prepare_kernel(const struct mok_gemm_kernel *kernel, int32_t *num_ctas)
{
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config;
    int clusters = 0;
    MOK_TRY(check_cuda(cudaFuncSetAttribute(kernel->function, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)kernel->shared_bytes),
                       "dynamic shared memory of a GEMM kernel"));
    fill_config(kernel, *num_ctas / kernel->cluster * kernel->cluster, &attribute, &config);
    MOK_TRY(check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel->function, &config), "occupancy of a GEMM kernel"));
    if (clusters < 1) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "no cluster of %d CTAs with %zu bytes of shared memory fits this GPU", kernel->cluster,
                             kernel->shared_bytes);
    }
    *num_ctas = (int32_t)mok_min64(*num_ctas, (int64_t)clusters * kernel->cluster);
    return MOK_OK;
}

mok_status mok_cuda_gemm_prepare(void)
{
    const struct mok_gemm_kernel kernels[] = {mok_cuda_gate_up_kernel(), mok_cuda_down_kernel(), mok_cuda_dgrad_down_kernel(),
                                              mok_cuda_dgrad_gate_up_kernel(), mok_cuda_wgrad_kernel()};
    int device = 0, sms = 0;
    MOK_TRY(check_cuda(cudaGetDevice(&device), "current device"));
    MOK_TRY(check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "number of multiprocessors"));
    if (device >= MAX_DEVICES) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "device ordinal %d: at most %d devices", device, MAX_DEVICES);
    }
    int32_t num_ctas = sms;
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        MOK_TRY(prepare_kernel(&kernels[i], &num_ctas));
    }
    atomic_store(&device_ctas[device], num_ctas);
    return MOK_OK;
}

static mok_status launch(const struct mok_gemm_kernel *kernel, const struct mok_gemm_launch *wanted, void *kernel_args, mok_stream stream)
{
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config;
    int device = 0;
    MOK_TRY(check_cuda(cudaGetDevice(&device), "current device"));
    int32_t num_ctas = device < MAX_DEVICES ? atomic_load(&device_ctas[device]) : 0;
    if (num_ctas == 0) {
        return mok_base_fail(MOK_ERR_INTERNAL, "GEMM launch on device %d before mok_cuda_gemm_prepare", device);
    }
    if (wanted->num_ctas > 0) {
        num_ctas = (int32_t)mok_min64(num_ctas, wanted->num_ctas);
    }
    num_ctas = (int32_t)mok_max64(num_ctas / kernel->cluster, 1) * kernel->cluster;
    fill_config(kernel, num_ctas, &attribute, &config);
    config.stream = (cudaStream_t)stream;
    void *params[] = {kernel_args};
    return check_cuda(cudaLaunchKernelExC(&config, kernel->function, params), "launch of a GEMM kernel");
}

static uint64_t wait_limit_ns(const struct mok_gemm_launch *wanted)
{
    return (uint64_t)(wanted->wait_limit_ms > 0 ? wanted->wait_limit_ms : WAIT_LIMIT_MS) * 1000000u;
}

/* num_tasks: how often the walk counts, for the 32-bit index of the kernels. */
static mok_status fill_walk(struct mok_gemm_walk *walk, const struct mok_gemm_rows *rows, const struct mok_gemm_launch *wanted,
                            int32_t num_cols, int64_t num_tasks)
{
    walk->rows = *rows;
    walk->window_tiles = (int32_t)mok_ceil_div(rows->buffer_rows, MOK_TILE_ROWS);
    walk->num_cols = num_cols;
    walk->row_group = wanted->row_group > 0 ? wanted->row_group : MOK_GEMM_ROW_GROUP;
    /* The walk steps one grid past the end. */
    if (num_tasks > INT32_MAX - (1 << 16)) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "%lld output tiles in one launch: at most 2^31 - 2^16", (long long)num_tasks);
    }
    return MOK_OK;
}

static mok_status fill_rows_walk(struct mok_gemm_walk *walk, const struct mok_gemm_rows *rows, const struct mok_gemm_launch *wanted,
                                 int32_t num_cols)
{
    return fill_walk(walk, rows, wanted, num_cols, (mok_ceil_div(rows->buffer_rows, MOK_TILE_ROWS) + 1) * num_cols);
}

static int has_rows(const struct mok_gemm_rows *rows) { return rows->buffer_rows > 0 && rows->num_experts > 0; }

mok_status mok_cuda_gate_up_launch(const struct mok_gate_up_args *args, mok_stream stream)
{
    struct mok_gate_up_kernel_args to = {.num_steps = mok_plan_num_tiles(args->hidden, MOK_GEMM_DEPTH)};
    const struct mok_gemm_kernel kernel = mok_cuda_gate_up_kernel();
    const int64_t num_rows = args->rows.buffer_rows;
    if (!has_rows(&args->rows)) {
        return MOK_OK;
    }
    MOK_TRY(mok_cuda_map_rows(&to.x, args->x, num_rows, args->hidden, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_matrices(&to.gate, &args->gate, MOK_DTYPE_BF16, args->rows.num_experts, args->inter, args->hidden, MOK_GEMM_COLS / 2));
    MOK_TRY(mok_cuda_map_matrices(&to.up, &args->up, MOK_DTYPE_BF16, args->rows.num_experts, args->inter, args->hidden, MOK_GEMM_COLS / 2));
    to.finish.keep_rows = args->keep_rows;
    to.finish.store_h = args->h != NULL;
    if (args->h) {
        MOK_TRY(mok_cuda_fill_out(&to.finish.out[0], args->h, num_rows, args->inter));
    }
    if (args->keep_rows > 0) {
        MOK_TRY(mok_cuda_fill_out(&to.finish.out[1], args->g, mok_min64(num_rows, args->keep_rows), args->inter));
        MOK_TRY(mok_cuda_fill_out(&to.finish.out[2], args->u, mok_min64(num_rows, args->keep_rows), args->inter));
    }
    MOK_TRY(fill_rows_walk(&to.walk, &args->rows, &args->launch, mok_plan_num_tiles(args->inter, MOK_GEMM_COLS / 2)));
    mok_cuda_fill_activation(&to.finish.activation, &args->activation);
    to.wait_limit_ns = wait_limit_ns(&args->launch);
    return launch(&kernel, &args->launch, &to, stream);
}

mok_status mok_cuda_down_launch(const struct mok_down_args *args, mok_stream stream)
{
    struct mok_down_kernel_args to = {.num_steps = mok_plan_num_tiles(args->inter, MOK_GEMM_DEPTH)};
    const struct mok_gemm_kernel kernel = mok_cuda_down_kernel();
    const int64_t num_rows = args->rows.buffer_rows;
    if (!has_rows(&args->rows)) {
        return MOK_OK;
    }
    MOK_TRY(mok_cuda_map_rows(&to.h, args->h, num_rows, args->inter, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_matrices(&to.down, &args->down, MOK_DTYPE_BF16, args->rows.num_experts, args->hidden, args->inter, MOK_GEMM_COLS / 2));
    MOK_TRY(mok_cuda_fill_out(&to.finish.out[0], args->y, num_rows, args->hidden));
    MOK_TRY(fill_rows_walk(&to.walk, &args->rows, &args->launch, mok_plan_num_tiles(args->hidden, MOK_GEMM_COLS)));
    to.wait_limit_ns = wait_limit_ns(&args->launch);
    return launch(&kernel, &args->launch, &to, stream);
}

mok_status mok_cuda_dgrad_down_launch(const struct mok_dgrad_down_args *args, mok_stream stream)
{
    struct mok_dgrad_down_kernel_args to = {.w = args->w, .dw_partial = args->dw_partial};
    const struct mok_gemm_kernel kernel = mok_cuda_dgrad_down_kernel();
    const int64_t num_rows = args->rows.buffer_rows;
    if (!has_rows(&args->rows)) {
        return MOK_OK;
    }
    MOK_TRY(mok_cuda_map_rows(&to.dy, args->dy, num_rows, args->hidden, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_matrices(&to.down, &args->down, MOK_DTYPE_BF16, args->rows.num_experts, args->hidden, args->inter, MOK_GEMM_DEPTH));
    MOK_TRY(mok_cuda_map_rows(&to.g, args->g, num_rows, args->inter, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_rows(&to.u, args->u, num_rows, args->inter, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_fill_out(&to.dg, args->dg, num_rows, args->inter));
    MOK_TRY(mok_cuda_fill_out(&to.du, args->du, num_rows, args->inter));
    MOK_TRY(mok_cuda_fill_out(&to.wh, args->wh, num_rows, args->inter));
    MOK_TRY(fill_rows_walk(&to.walk, &args->rows, &args->launch, mok_plan_num_tiles(args->inter, MOK_GEMM_COLS)));
    mok_cuda_fill_activation(&to.activation, &args->activation);
    to.num_steps = mok_plan_num_tiles(args->hidden, MOK_GEMM_DEPTH);
    to.wait_limit_ns = wait_limit_ns(&args->launch);
    return launch(&kernel, &args->launch, &to, stream);
}

mok_status mok_cuda_dgrad_gate_up_launch(const struct mok_dgrad_gate_up_args *args, mok_stream stream)
{
    struct mok_dgrad_gate_up_kernel_args to = {.half_steps = mok_plan_num_tiles(args->inter, MOK_GEMM_DEPTH)};
    const struct mok_gemm_kernel kernel = mok_cuda_dgrad_gate_up_kernel();
    const int64_t num_rows = args->rows.buffer_rows;
    if (!has_rows(&args->rows)) {
        return MOK_OK;
    }
    MOK_TRY(mok_cuda_map_rows(&to.dg, args->dg, num_rows, args->inter, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_rows(&to.du, args->du, num_rows, args->inter, MOK_TILE_ROWS));
    MOK_TRY(mok_cuda_map_matrices(&to.gate, &args->gate, MOK_DTYPE_BF16, args->rows.num_experts, args->inter, args->hidden, MOK_GEMM_DEPTH));
    MOK_TRY(mok_cuda_map_matrices(&to.up, &args->up, MOK_DTYPE_BF16, args->rows.num_experts, args->inter, args->hidden, MOK_GEMM_DEPTH));
    MOK_TRY(mok_cuda_fill_out(&to.finish.out[0], args->dx, num_rows, args->hidden));
    MOK_TRY(fill_rows_walk(&to.walk, &args->rows, &args->launch, mok_plan_num_tiles(args->hidden, MOK_GEMM_COLS)));
    to.wait_limit_ns = wait_limit_ns(&args->launch);
    return launch(&kernel, &args->launch, &to, stream);
}

static mok_status map_carry(CUtensorMap *map_out, const struct mok_wgrad_args *args, const float *carry, int32_t box_rows)
{
    const mok_matrices matrices = {(void *)(uintptr_t)carry, (int64_t)args->out * args->in, args->in};
    return carry ? mok_cuda_map_matrices(map_out, &matrices, MOK_DTYPE_FP32, 1, args->out, args->in, box_rows) : MOK_OK;
}

mok_status mok_cuda_wgrad_launch(const struct mok_wgrad_args *args, mok_stream stream)
{
    struct mok_wgrad_kernel_args to = {.num_parts = args->num_parts,
                                       .out = args->out,
                                       .in = args->in,
                                       .add = args->mode == MOK_GRAD_ADD,
                                       .bf16 = args->dtype == MOK_DTYPE_BF16,
                                       .out_tiles = mok_plan_num_tiles(args->out, MOK_TILE_ROWS)};
    const struct mok_gemm_kernel kernel = mok_cuda_wgrad_kernel();
    const int64_t num_rows = args->rows.buffer_rows;
    const int32_t num_cols = mok_plan_num_tiles(args->in, MOK_GEMM_COLS);
    if (args->rows.num_experts == 0 || (num_rows == 0 && to.add)) {
        return MOK_OK;
    }
    for (int part = 0; part < 2; part++) {
        /* A cluster's empty tile may name the part behind the last; without rows nothing is loaded, but a map needs an address. */
        int real = part < args->num_parts ? part : 0;
        MOK_TRY(mok_cuda_map_rows(&to.a[part], num_rows > 0 ? args->a[real] : args->grad[0].base, mok_max64(num_rows, 1), args->out, MOK_GEMM_DEPTH));
        const mok_matrices *grad = &args->grad[real];
        MOK_TRY(mok_cuda_map_matrices(&to.grad_in[part], grad, args->dtype, args->rows.num_experts, args->out, args->in, MOK_GEMM_DEPTH));
        MOK_TRY(mok_cuda_map_matrices(&to.grad_out[part], grad, args->dtype, args->rows.num_experts, args->out, args->in, MOK_GEMM_WARP_ROWS));
        MOK_TRY(map_carry(&to.carry_in[part], args, args->carry_in[real], MOK_GEMM_DEPTH));
        MOK_TRY(map_carry(&to.carry_out[part], args, args->carry_out[real], MOK_GEMM_WARP_ROWS));
    }
    MOK_TRY(mok_cuda_map_rows(&to.b, num_rows > 0 ? args->b : args->grad[0].base, mok_max64(num_rows, 1), args->in, MOK_GEMM_DEPTH));
    MOK_TRY(fill_walk(&to.walk, &args->rows, &args->launch, num_cols,
                      ((int64_t)to.out_tiles * args->num_parts + 1) * num_cols * args->rows.num_experts));
    to.wait_limit_ns = wait_limit_ns(&args->launch);
    return launch(&kernel, &args->launch, &to, stream);
}
