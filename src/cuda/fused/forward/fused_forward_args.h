/*
 * The fused forward kernel as the host sees it. It takes struct mok_fused_args as it is.
 */
#ifndef MOK_CUDA_FUSED_FORWARD_ARGS_H
#define MOK_CUDA_FUSED_FORWARD_ARGS_H

#include "cuda/fused/fused_args.h"

#ifdef __cplusplus
extern "C" {
#endif
struct mok_gemm_kernel mok_cuda_fused_forward_kernel(void);
/* sizeof(struct mok_fused_args) as nvcc sees it. */
size_t mok_cuda_fused_forward_args_bytes(void);
#ifdef __cplusplus
}
#endif
#endif
