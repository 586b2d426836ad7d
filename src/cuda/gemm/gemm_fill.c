/*
 * Parts of kernel arguments that several host sides fill. See gemm_args.h.
 */
#include "cuda/gemm/gemm_args.h"

#include <math.h>

#include "cuda/tensor_map.h"

mok_status mok_cuda_fill_out(struct mok_gemm_out *out, void *base, int64_t num_rows, int64_t cols)
{
    out->base = base;
    out->cols = cols;
    return mok_cuda_map_rows(&out->map, base, num_rows, cols, MOK_GEMM_WARP_ROWS);
}

void mok_cuda_fill_activation(struct mok_gemm_activation *to, const mok_activation *from)
{
    to->limit = from->limit;
    to->alpha = from->alpha;
    to->minus_alpha_log2e = (float)(-(double)from->alpha * 1.4426950408889634);
    to->up_offset = from->up_offset;
    to->clamps = isfinite(from->limit);
}
