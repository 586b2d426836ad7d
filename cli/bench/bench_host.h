/*
 * `mok bench` on the CPU backend: both passes beside the same products as dense ones, host clock.
 */
#ifndef MOK_CLI_BENCH_HOST_H
#define MOK_CLI_BENCH_HOST_H

#include "bench/bench_settings.h"
#include "team.h"

/* Measures, prints, writes JSON. Errors: those of the library, and ARGUMENT for settings that do not fit together. */
mok_status mok_bench_host(const struct mok_bench_settings *settings, struct mok_team *team);

#endif
