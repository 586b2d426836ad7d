/*
 * What the programs of this folder share: counting of checks, a name for each, and the ranks of one group as threads on the GPUs that there are.
 * They need no test library. Exit code: 0 all passed, 1 one failed or none ran, 77 all skipped.
 */
#ifndef MOK_GPU_CHECK_H
#define MOK_GPU_CHECK_H

#include <mok/mok.h>

struct gpu_tally {
    int num_passed, num_failed, num_skipped;
};

extern struct gpu_tally gpu_tally;

/* Counts one check and prints its line; returns `ok`. */
int gpu_check(int ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
void gpu_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints "N passed, N failed, N skipped"; returns the exit code. */
int gpu_finish(void);

/* Number of GPUs that this process sees; 0 = the programs skip. */
int gpu_count(void);

/* How long ranks wait for each other, creation included: CUDA starts meanwhile, one GPU of a process after the other. */
int gpu_peer_limit_ms(void);

/* Runs work(rank, context) in num_ranks threads at once and waits for all. */
void gpu_run_ranks(int32_t num_ranks, void (*work)(int32_t rank, void *context), void *context);

/* A meeting of the threads that gpu_run_ranks started. */
void gpu_meet(void);

/* The configuration of a rank of a group that meets in `hub`, on device rank % gpu_count(). */
mok_status gpu_config(const mok_shape *shape, int32_t rank, int32_t num_ranks, mok_hub *hub, mok_group_config *config_out);

/* Random ids, a pure function of the arguments; about one in eight is -1. ids [num_tokens * top_k]. */
void gpu_random_ids(int32_t *ids, int64_t num_tokens, int32_t top_k, int32_t num_experts, uint32_t seed);

#endif
