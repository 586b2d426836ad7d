/*
 * See gpu_check.h.
 */
#include "gpu_check.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { SKIP_CODE = 77 };

struct gpu_tally gpu_tally;

static pthread_mutex_t tally_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t meeting;

int gpu_check(int ok, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&tally_lock);
    printf(ok ? "ok     " : "FAILED ");
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    gpu_tally.num_passed += ok != 0;
    gpu_tally.num_failed += ok == 0;
    pthread_mutex_unlock(&tally_lock);
    va_end(args);
    return ok;
}

void gpu_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("skip   ");
    vprintf(format, args);
    printf("\n");
    gpu_tally.num_skipped++;
    va_end(args);
}

int gpu_finish(void)
{
    printf("%d passed, %d failed, %d skipped\n", gpu_tally.num_passed, gpu_tally.num_failed, gpu_tally.num_skipped);
    if (gpu_tally.num_failed > 0 || gpu_tally.num_passed + gpu_tally.num_skipped == 0) {
        return 1;
    }
    return gpu_tally.num_passed == 0 ? SKIP_CODE : 0;
}

int gpu_count(void)
{
    int count = 0;
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* eight ranks may share a GPU; the first CUDA call reads it */
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

int gpu_peer_limit_ms(void)
{
    enum { LEAST_MS = 20000, MORE_MS = 5000, FEW = 2 };
    int count = gpu_count();
    return LEAST_MS + MORE_MS * (count > FEW ? count - FEW : 0);
}

struct rank_thread {
    void (*work)(int32_t rank, void *context);
    void *context;
    int32_t rank;
};

static void *run_rank(void *argument)
{
    struct rank_thread *thread = argument;
    thread->work(thread->rank, thread->context);
    return NULL;
}

void gpu_run_ranks(int32_t num_ranks, void (*work)(int32_t rank, void *context), void *context)
{
    pthread_t *threads = malloc((size_t)num_ranks * sizeof *threads);
    struct rank_thread *arguments = malloc((size_t)num_ranks * sizeof *arguments);
    if (threads == NULL || arguments == NULL || pthread_barrier_init(&meeting, NULL, (unsigned)num_ranks) != 0) {
        gpu_check(0, "no memory for %d threads", num_ranks);
        exit(1);
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        arguments[r] = (struct rank_thread){work, context, r};
        if (pthread_create(&threads[r], NULL, run_rank, &arguments[r]) != 0) {
            gpu_check(0, "thread %d cannot be started", r);
            exit(1);
        }
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        pthread_join(threads[r], NULL);
    }
    pthread_barrier_destroy(&meeting);
    free(threads);
    free(arguments);
}

void gpu_meet(void) { pthread_barrier_wait(&meeting); }

mok_status gpu_config(const mok_shape *shape, int32_t rank, int32_t num_ranks, mok_hub *hub, mok_group_config *config_out)
{
    mok_status status = mok_group_config_init(config_out);
    config_out->backend = MOK_BACKEND_CUDA;
    config_out->peer = MOK_PEER_THREADS;
    config_out->rank = rank;
    config_out->num_ranks = num_ranks;
    config_out->shape = *shape;
    config_out->hub = hub;
    config_out->device = rank % gpu_count();
    config_out->peer_timeout_ms = gpu_peer_limit_ms();
    return status;
}

void gpu_random_ids(int32_t *ids, int64_t num_tokens, int32_t top_k, int32_t num_experts, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + 12345u;
    for (int64_t i = 0; i < num_tokens * top_k; i++) {
        state = state * 1664525u + 1013904223u;
        uint32_t draw = state >> 8;
        ids[i] = draw % 8 == 7 ? -1 : (int32_t)(draw / 8 % (uint32_t)num_experts);
    }
}
