/*
 * Two ranks as two threads: route, forward, backward. Build against the installed package:
 *   cc two_ranks.c $(pkg-config --cflags --libs mok) -lpthread
 */
#include <mok/mok.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { R = 2, E = 8, K = 2, H = 64, I = 32, T = 100 };

static mok_hub *hub;

#define CHECK(call)                                                                            \
    if ((call) != MOK_OK) {                                                                    \
        fprintf(stderr, "%s: %s\n", #call, mok_last_error());                                  \
        exit(1);                                                                               \
    }

/* bf16 values between -1/4 and 1/4, 16-byte aligned as every tensor must be. */
static uint16_t *random_bf16(size_t count, unsigned seed)
{
    uint16_t *values = aligned_alloc(64, (count * 2 + 63) / 64 * 64);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (uint16_t)(0x3d80 + (seed >> 24) % 0x100 + (seed >> 16 & 0x8000));
    }
    return values;
}

/* [num, rows, cols] without gaps. */
static mok_matrices dense(void *base, int64_t rows, int64_t cols)
{
    mok_matrices matrices = {base, rows * cols, cols};
    return matrices;
}

static void *run_rank(void *arg)
{
    int rank = *(int *)arg;
    mok_group_config config;
    CHECK(mok_group_config_init(&config));
    config.backend = MOK_BACKEND_CPU;
    config.rank = rank;
    config.num_ranks = R;
    config.hub = hub;
    config.num_saved = 1; /* one forward pass may wait for its backward pass */
    config.shape = (mok_shape){.num_experts = E, .top_k = K, .hidden = H, .intermediate = I, .max_tokens = T};
    mok_group *group;
    CHECK(mok_group_create(&config, &group));

    int32_t first, local; /* this rank's experts */
    CHECK(mok_local_experts(E, R, rank, &first, &local));
    mok_layer_config weights;
    mok_layer_config_init(&weights);
    weights.routed.gate = dense(random_bf16((size_t)local * I * H, 1u + (unsigned)rank), I, H);
    weights.routed.up = dense(random_bf16((size_t)local * I * H, 11u + (unsigned)rank), I, H);
    weights.routed.down = dense(random_bf16((size_t)local * H * I, 21u + (unsigned)rank), H, I);
    mok_layer *layer;
    CHECK(mok_layer_create(group, &weights, &layer));

    /* Any router will do; here libmok's own, on made-up logits. */
    int64_t tokens = rank == 0 ? T : T / 3; /* ranks need not bring the same number */
    float *logits = calloc((size_t)tokens * E, sizeof *logits);
    for (int64_t i = 0; i < tokens * E; i++) {
        logits[i] = (float)(i * 7919 % 31) / 8.0f;
    }
    int32_t *ids = aligned_alloc(64, 64 * T);
    float *w = aligned_alloc(64, 64 * T), *dw = aligned_alloc(64, 64 * T);
    mok_router_config router;
    mok_router_config_init(&router);
    router.num_experts = E;
    router.top_k = K;
    CHECK(mok_router_choose(&router, logits, tokens, ids, w));

    mok_schedule *schedule;
    CHECK(mok_schedule_create(group, &schedule));
    CHECK(mok_schedule_build(schedule, ids, tokens, NULL));

    mok_saved *saved;
    CHECK(mok_group_saved(group, 0, &saved));
    mok_forward_args forward;
    mok_forward_args_init(&forward);
    forward.x = random_bf16((size_t)tokens * H, 31u + (unsigned)rank);
    forward.w = w;
    forward.y = random_bf16((size_t)tokens * H, 0);
    forward.saved = saved;
    CHECK(mok_forward(layer, schedule, &forward, NULL));

    mok_backward_args backward;
    mok_backward_args_init(&backward);
    backward.saved = saved;
    backward.dy = random_bf16((size_t)tokens * H, 41u + (unsigned)rank);
    backward.w = w;
    backward.dx = random_bf16((size_t)tokens * H, 0);
    backward.dw = dw;
    backward.grads.dtype = MOK_DTYPE_FP32; /* overwritten: MOK_GRAD_OVERWRITE is the default */
    backward.grads.gate = dense(aligned_alloc(64, (size_t)local * I * H * 4), I, H);
    backward.grads.up = dense(aligned_alloc(64, (size_t)local * I * H * 4), I, H);
    backward.grads.down = dense(aligned_alloc(64, (size_t)local * H * I * 4), H, I);
    CHECK(mok_backward(layer, schedule, &backward, NULL));

    CHECK(mok_group_wait(group, NULL, -1)); /* both passes only queued work until here */
    printf("rank %d: %lld tokens, experts %d..%d, dw of the first route %.6f\n", rank, (long long)tokens, first, first + local - 1, dw[0]);

    mok_schedule_destroy(schedule);
    mok_layer_destroy(layer);
    CHECK(mok_group_destroy(group));
    return NULL; /* an example: the tensors go with the process */
}

int main(void)
{
    pthread_t threads[R];
    int ranks[R] = {0, 1};
    CHECK(mok_hub_create(R, &hub));
    for (int r = 0; r < R; r++) {
        pthread_create(&threads[r], NULL, run_rank, &ranks[r]);
    }
    for (int r = 0; r < R; r++) {
        pthread_join(threads[r], NULL);
    }
    mok_hub_destroy(hub);
    return 0;
}
