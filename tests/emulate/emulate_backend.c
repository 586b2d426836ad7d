/*
 * What the host side of the fused pass calls, on the emulated machine: calls of the CUDA runtime, tensor maps, and those parts of the
 * backend that need a driver.
 */
#include "emulate_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cuda/device.h"
#include "cuda/fused/backward/fused_backward_args.h"
#include "cuda/rank_calls.h"
#include "cuda/tensor_map.h"
#include "emulate.h"

struct emulate_launch emulate_next = {.resident = 0, .seed = 1};

/* ---- CUDA runtime --------------------------------------------------------------------------------------------------------------- */

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    (void)function;
    return attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value <= EMULATE_SHARED_BYTES ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    (void)function;
    memset(attributes, 0, sizeof *attributes);
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **args)
{
    int32_t ctas = (int32_t)config->gridDim.x;
    if (config->dynamicSmemBytes > EMULATE_SHARED_BYTES || config->blockDim.x != EMULATE_THREADS) {
        return cudaErrorInvalidValue;
    }
    int is_backward = function == mok_cuda_fused_backward_kernel().function;
    (is_backward ? emulate_fused_backward : emulate_fused)(args[0], ctas, (int32_t)config->attrs[0].val.clusterDim.x,
                                                           emulate_next.resident > 0 ? emulate_next.resident : ctas, emulate_next.seed);
    return cudaSuccess;
}

/* ---- backend -------------------------------------------------------------------------------------------------------------------- */

mok_status mok_cuda_check(int error, const char *what)
{
    return error == cudaSuccess ? MOK_OK : mok_base_fail(MOK_ERR_DEVICE, "%s: error %d", what, error);
}

static mok_status keep_map(CUtensorMap *map_out, const struct emulate_map *map)
{
    _Static_assert(sizeof *map <= sizeof *map_out, "a map of the emulated machine stands in a tensor map");
    memset(map_out, 0, sizeof *map_out);
    memcpy(map_out, map, sizeof *map);
    return map->rows > 0 && map->cols > 0 ? MOK_OK : mok_base_fail(MOK_ERR_DEVICE, "a tensor map without elements");
}

mok_status mok_cuda_map_rows(CUtensorMap *map_out, const void *base, int64_t num_rows, int64_t cols, int32_t box_rows)
{
    const struct emulate_map map = {(char *)(uintptr_t)base, cols, num_rows, cols * 2, 0, 64, box_rows, 2};
    return keep_map(map_out, &map);
}

mok_status mok_cuda_map_matrices(CUtensorMap *map_out, const mok_matrices *matrices, int32_t dtype, int64_t num, int64_t rows, int64_t cols,
                                 int32_t box_rows)
{
    int32_t size = dtype == MOK_DTYPE_BF16 ? 2 : 4;
    const struct emulate_map map = {
        matrices->base, cols, rows, matrices->row_stride * size, matrices->expert_stride * size, 128 / size, box_rows, size};
    return num > 0 ? keep_map(map_out, &map) : mok_base_fail(MOK_ERR_DEVICE, "no matrices");
}

mok_status mok_cuda_stage_begin(struct mok_pass_group *group, mok_stream stream)
{
    (void)group;
    (void)stream;
    return MOK_OK;
}

mok_status mok_cuda_stage_end(struct mok_pass_group *group, int32_t kind, int64_t index, mok_stream stream)
{
    (void)kind;
    (void)index;
    return mok_cuda_stage_begin(group, stream);
}

