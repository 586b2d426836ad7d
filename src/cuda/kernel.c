/*
 * The table of those kernels that kernel.h lists: loading all of them at creation, and launching one. See kernel.h.
 *
 * Loading. The first launch of a kernel may wait for a kernel that spins, so every kernel is loaded before the first call. The size of each argument
 * struct as nvcc compiled it is compared with the size as the C compiler sees it.
 */
#include "cuda/kernel.h"

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "cuda/device.h"

struct entry {
    const char *name;
    struct mok_cuda_kernel (*get)(void);
    size_t args_bytes;
    int follows; /* begins while the kernel before it in the stream, of this file, ends: it waits by mok_hw_grid_wait */
};

static const struct entry table[MOK_CUDA_NUM_KERNELS] = {
    [MOK_CUDA_COUNT] = {"count_routes", mok_cuda_count_kernel, sizeof(struct mok_cuda_sort_args), 0},
    [MOK_CUDA_SCATTER] = {"scatter_routes", mok_cuda_scatter_kernel, sizeof(struct mok_cuda_sort_args), 1},
    [MOK_CUDA_BARRIER] = {"barrier_between_ranks", mok_cuda_barrier_kernel, sizeof(struct mok_cuda_barrier_args), 0},
    [MOK_CUDA_ROUTES] = {"find_routes", mok_cuda_routes_kernel, sizeof(struct mok_cuda_own_args), 1},
    [MOK_CUDA_PUBLISH] = {"publish", mok_cuda_publish_kernel, sizeof(struct mok_cuda_publish_args), 0},
    [MOK_CUDA_PULL] = {"pull_rows", mok_cuda_pull_kernel, sizeof(struct mok_cuda_move_args), 0},
    [MOK_CUDA_PUSH] = {"push_rows", mok_cuda_push_kernel, sizeof(struct mok_cuda_move_args), 0},
    [MOK_CUDA_SUM_Y] = {"sum_y", mok_cuda_sum_y_kernel, sizeof(struct mok_cuda_sum_y_args), 0},
    [MOK_CUDA_SUM_DX] = {"sum_dx", mok_cuda_sum_dx_kernel, sizeof(struct mok_cuda_sum_dx_args), 0},
    [MOK_CUDA_RAISE] = {"raise_word", mok_cuda_raise_kernel, sizeof(struct mok_cuda_raise_args), 0},
    [MOK_CUDA_STAMP] = {"stamp", mok_cuda_stamp_kernel, sizeof(struct mok_cuda_stamp_args), 0},
};

static mok_status load_kernel(const struct entry *entry)
{
    struct mok_cuda_kernel kernel = entry->get();
    struct cudaFuncAttributes attributes;
    if (kernel.args_bytes != entry->args_bytes) {
        return mok_base_fail(MOK_ERR_INTERNAL, "kernel %s takes %zu bytes of arguments on the device and %zu on the host", entry->name,
                             kernel.args_bytes, entry->args_bytes);
    }
    MOK_TRY(mok_cuda_check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, MOK_CUDA_MAX_SHARED), entry->name));
    return mok_cuda_check(cudaFuncGetAttributes(&attributes, kernel.function), entry->name);
}

mok_status mok_cuda_load_kernels(void)
{
    for (int id = 0; id < MOK_CUDA_NUM_KERNELS; id++) {
        MOK_TRY(load_kernel(&table[id]));
    }
    return MOK_OK;
}

mok_status mok_cuda_launch(enum mok_cuda_kernel_id id, int32_t blocks, int32_t threads, size_t shared_bytes, const void *args, mok_stream stream)
{
    struct mok_cuda_kernel kernel = table[id].get();
    void *params[] = {(void *)(uintptr_t)args};
    cudaLaunchAttribute follows = {.id = cudaLaunchAttributeProgrammaticStreamSerialization, .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchConfig_t config = {
        .gridDim = {(unsigned)blocks, 1, 1},
        .blockDim = {(unsigned)(kernel.threads > 0 ? kernel.threads : threads), 1, 1},
        .dynamicSmemBytes = shared_bytes,
        .stream = (cudaStream_t)stream,
        .attrs = &follows,
        .numAttrs = table[id].follows ? 1 : 0,
    };
    return mok_cuda_check(cudaLaunchKernelExC(&config, kernel.function, params), table[id].name);
}
