/*
 * TMA descriptors, made on the host. All are bf16, boxes of 64 columns (128 bytes, the width of the swizzle); elements outside the tensor read as
 * zero and are not written. The driver's encoder is found at run time: the library does not link against libcuda.
 */
#ifndef MOK_CUDA_TENSOR_MAP_H
#define MOK_CUDA_TENSOR_MAP_H

#include <cuda.h>

#include "base/status.h"

/* A row-major [num_rows, cols] matrix without gaps; boxes of 64 columns x box_rows. base 16-byte aligned, num_rows >= 1, cols a multiple of 8. */
mok_status mok_cuda_map_rows(CUtensorMap *map_out, const void *base, int64_t num_rows, int64_t cols, int32_t box_rows);

/* num matrices [rows, cols]; boxes of 64 columns x box_rows of one matrix. */
mok_status mok_cuda_map_weights(CUtensorMap *map_out, const mok_matrices *weights, int64_t num, int64_t rows, int64_t cols, int32_t box_rows);

#endif
