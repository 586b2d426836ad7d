/*
 * TMA descriptors, made on the host. Boxes are 128 bytes wide, the width of the swizzle: 64 columns of bf16, 32 of fp32; elements outside
 * the tensor read as zero and are not written. The driver's encoder is found at run time: the library does not link against libcuda.
 */
#ifndef MOK_CUDA_TENSOR_MAP_H
#define MOK_CUDA_TENSOR_MAP_H

#include <cuda.h>

#include "base/status.h"

/* A row-major bf16 [num_rows, cols] matrix without gaps; boxes of box_rows rows. base 16-byte aligned, num_rows >= 1, cols a multiple of 8.
 */
mok_status mok_cuda_map_rows(CUtensorMap *map_out, const void *base, int64_t num_rows, int64_t cols, int32_t box_rows);

/* num matrices [rows, cols] of dtype MOK_DTYPE_BF16 or MOK_DTYPE_FP32; boxes of box_rows rows of one matrix. */
mok_status mok_cuda_map_matrices(CUtensorMap *map_out, const mok_matrices *matrices, int32_t dtype, int64_t num, int64_t rows, int64_t cols,
                                 int32_t box_rows);

#endif
