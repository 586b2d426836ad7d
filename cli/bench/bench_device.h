/*
 * `mok bench` on the CUDA backend: both passes and each stage, beside dense products and floors, device events.
 */
#ifndef MOK_CLI_BENCH_DEVICE_H
#define MOK_CLI_BENCH_DEVICE_H

#include "bench/bench_settings.h"
#include "team.h"

/* GPUs that this process sees. */
int32_t mok_bench_device_count(void);
/* Measures, prints, writes JSON. Errors: those of the library, and ARGUMENT for settings that do not fit together. */
mok_status mok_bench_device(const struct mok_bench_settings *settings, struct mok_team *team);

#endif
