/*
 * What the host sides of the two fused kernels share: parts of their arguments, the grid, the launch.
 */
#ifndef MOK_CUDA_FUSED_HOST_H
#define MOK_CUDA_FUSED_HOST_H

#include "cuda/fused/fused_args.h"
#include "cuda/rank_pass.h"

/* What does not depend on the pass: the watch, state and counters, the given fields of args->walk but those of one pass alone, how movers copy, the trace. num_comm:
 * CTAs that move rows. */
void mok_cuda_fused_fill_args(const struct mok_cuda_pass *pass, int32_t num_comm, struct mok_fused_args *args);

/* CTAs of the grid, whole clusters; and how many of them, whole clusters too, move rows. Apart, one cluster at least multiplies. */
int32_t mok_cuda_fused_share_ctas(const struct mok_pass_group *group, int32_t cluster, int32_t *num_comm_out);

/* Loads a kernel on the current device; args_bytes: of its arguments as nvcc sees them, and as the host does. Not while capturing. */
mok_status mok_cuda_fused_load(const struct mok_gemm_kernel *kernel, const char *name, size_t args_bytes, size_t host_bytes);

/* Clears state and counters by a memset node, then launches. args: of the kernel, copied. */
mok_status mok_cuda_fused_launch(const struct mok_cuda_pass *pass, const struct mok_gemm_kernel *kernel, const char *name, int32_t num_ctas,
                                 void *args);

#endif
