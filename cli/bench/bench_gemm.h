/*
 * `mok bench gemm`: each grouped GEMM of a layer alone, on one GPU, beside the dense product of the same sizes.
 */
#ifndef MOK_CLI_BENCH_GEMM_H
#define MOK_CLI_BENCH_GEMM_H

#include "bench/bench_settings.h"

/*
 * Times, prints, writes JSON. One GPU has the experts that one of settings->shape.num_ranks (2 when not given) ranks owns, and as many rows as it
 * owns with equal routes. Without a shape: every named one of full size whose slice is not named, and the slices. Errors: ARGUMENT, UNSUPPORTED
 * (no GPU, no cuBLAS), and those of the GEMMs.
 */
mok_status mok_bench_gemms(const struct mok_bench_settings *settings, const mok_group_config *config);

#endif
