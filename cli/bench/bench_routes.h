/*
 * Routes for a bench: ids and weights of a rank's tokens, by skew. Chosen by the library's router helper from logits that are made here.
 */
#ifndef MOK_CLI_BENCH_ROUTES_H
#define MOK_CLI_BENCH_ROUTES_H

#include "bench/bench_settings.h"

struct mok_bench_router {
    enum mok_bench_skew skew;
    int32_t num_experts;
    int32_t top_k;
    float *popularity;   /* zipf: [E] logarithm of each expert's popularity */
    unsigned char *real; /* real: [num_layers, num_real, K] ids of trained layers */
    int64_t num_layers, num_real;
};

/* Errors: ARGUMENT (MOK_BENCH_REAL with another shape than the file's), IO, MEMORY. */
mok_status mok_bench_router_open(const struct mok_bench_settings *settings, struct mok_bench_router *router_out);
void mok_bench_router_close(struct mok_bench_router *router);

/* One of the sets of a rank. ids_out [num_tokens, K], w_out [num_tokens, K]: softmax over the K chosen. Any thread. Errors: MEMORY. */
mok_status mok_bench_route(const struct mok_bench_router *router, int32_t rank, int32_t set, int64_t num_tokens, int32_t *ids_out,
                           float *w_out);

#endif
