/*
 * TMA descriptors: see tensor_map.h.
 */
#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>

typedef CUresult (*encode_tiled_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                                    const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Version of the driver interface that the encoder is asked for: the first that has it. */
enum { ENCODER_VERSION = 12000, BOX_BYTES = 128 };

/* Found once; finding it twice at the same time does no harm. */
static _Atomic(encode_tiled_fn) encoder;

static mok_status find_encoder(encode_tiled_fn *encode_out)
{
    *encode_out = atomic_load(&encoder);
    if (*encode_out) {
        return MOK_OK;
    }
    union {
        void *pointer;
        encode_tiled_fn function;
    } entry = {NULL};
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry.pointer, ENCODER_VERSION, cudaEnableDefault, &result);
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || !entry.pointer) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "the driver has no cuTensorMapEncodeTiled (%s, query result %d)", cudaGetErrorName(error),
                             (int)result);
    }
    atomic_store(&encoder, entry.function);
    *encode_out = entry.function;
    return MOK_OK;
}

static mok_status encode(CUtensorMap *map_out, const void *base, int32_t dtype, cuuint32_t rank, const cuuint64_t *dims,
                         const cuuint64_t *strides, const cuuint32_t *box)
{
    const CUtensorMapDataType type = dtype == MOK_DTYPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    const cuuint32_t element_strides[3] = {1, 1, 1};
    encode_tiled_fn encode_tiled;
    MOK_TRY(find_encoder(&encode_tiled));
    CUresult result =
        encode_tiled(map_out, type, rank, (void *)(uintptr_t)base, dims, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        return mok_base_fail(MOK_ERR_DEVICE,
                             "the driver refused a tensor map (error %d): base %p, columns %llu, rows %llu, row stride %llu bytes",
                             (int)result, base, (unsigned long long)dims[0], (unsigned long long)dims[1], (unsigned long long)strides[0]);
    }
    return MOK_OK;
}

mok_status mok_cuda_map_rows(CUtensorMap *map_out, const void *base, int64_t num_rows, int64_t cols, int32_t box_rows)
{
    const cuuint64_t dims[2] = {(cuuint64_t)cols, (cuuint64_t)num_rows};
    const cuuint64_t strides[1] = {(cuuint64_t)cols * 2};
    const cuuint32_t box[2] = {BOX_BYTES / 2, (cuuint32_t)box_rows};
    return encode(map_out, base, MOK_DTYPE_BF16, 2, dims, strides, box);
}

mok_status mok_cuda_map_matrices(CUtensorMap *map_out, const mok_matrices *matrices, int32_t dtype, int64_t num, int64_t rows, int64_t cols,
                                 int32_t box_rows)
{
    /* A single matrix needs no expert stride, but the driver wants one that it would accept. */
    const int64_t expert_stride = num > 1 ? matrices->expert_stride : rows * matrices->row_stride;
    const cuuint32_t size = dtype == MOK_DTYPE_BF16 ? 2 : 4;
    const cuuint64_t dims[3] = {(cuuint64_t)cols, (cuuint64_t)rows, (cuuint64_t)num};
    const cuuint64_t strides[2] = {(cuuint64_t)matrices->row_stride * size, (cuuint64_t)expert_stride * size};
    const cuuint32_t box[3] = {BOX_BYTES / size, (cuuint32_t)box_rows, 1};
    return encode(map_out, matrices->base, dtype, 3, dims, strides, box);
}
