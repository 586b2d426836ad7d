/*
 * What one rank has to do in a pass: products, bytes of device memory, bytes over links, in the whole pass and in each stage of the
 * staged path. Pure arithmetic. All counts are the fewest possible: each input read once, each output written once, real rows only.
 */
#ifndef MOK_CLI_BENCH_WORK_H
#define MOK_CLI_BENCH_WORK_H

#include <stdint.h>

/* Sizes of one rank's work with one set of routes. */
struct mok_bench_sizes {
    int64_t hidden, inter, shared_inter, top_k;
    int64_t tokens;            /* of this rank */
    int64_t rows;              /* routes to this rank's experts, without padding */
    int64_t experts;           /* local experts that have rows */
    int64_t rows_in, rows_out; /* routes to this rank from other GPUs, and from it to experts on other GPUs */
    int is_kept;               /* forward keeps x, g, u of every row */
};

/* The layer's products, as dense ones. Forward comes first. */
enum mok_bench_gemm {
    MOK_BENCH_GATE_UP,
    MOK_BENCH_DOWN,
    MOK_BENCH_SHARED_GATE_UP,
    MOK_BENCH_SHARED_DOWN,
    MOK_BENCH_DGRAD_DOWN,
    MOK_BENCH_DGRAD_GATE_UP,
    MOK_BENCH_WGRAD_DOWN,
    MOK_BENCH_WGRAD_GATE_UP,
    MOK_BENCH_SHARED_DGRAD_DOWN,
    MOK_BENCH_SHARED_DGRAD_GATE_UP,
    MOK_BENCH_SHARED_WGRAD_DOWN,
    MOK_BENCH_SHARED_WGRAD_GATE_UP,
    MOK_BENCH_NUM_GEMMS,
    MOK_BENCH_NUM_FORWARD_GEMMS = MOK_BENCH_DGRAD_DOWN
};

enum mok_bench_form {
    MOK_BENCH_BY_WEIGHT,            /* c [m, n] = a [m, k] b, b stored [n, k]; bf16 */
    MOK_BENCH_BY_TRANSPOSED_WEIGHT, /* c [m, n] = a [m, k] b, b stored [k, n]; bf16 */
    MOK_BENCH_WEIGHT_GRADIENT       /* c [m, n] += a^T b, a stored [k, m], b [k, n]; c fp32 */
};

struct mok_bench_product {
    enum mok_bench_form form;
    int64_t m, n, k; /* a product with a 0 is none */
};

const char *mok_bench_gemm_name(enum mok_bench_gemm gemm);
/* Rows are rounded to the nearest 128, so that a dense product does not suffer from an odd size. */
struct mok_bench_product mok_bench_gemm_product(const struct mok_bench_sizes *sizes, enum mok_bench_gemm gemm);

/* One launch, or a few that are timed together, of the staged path. */
struct mok_bench_stage {
    int32_t kind; /* of its trace events */
    int is_backward;
    int first_gemm, num_gemms; /* the products that it does; num 0: it moves rows */
};

enum { MOK_BENCH_NUM_STAGES = 19 };

const struct mok_bench_stage *mok_bench_stage_at(int idx);
/* The stage of an event; -1 = none. */
int mok_bench_find_stage(int32_t kind, int is_backward);

double mok_bench_stage_bytes(const struct mok_bench_sizes *sizes, int stage);
/* In the busier direction. */
double mok_bench_stage_link_bytes(const struct mok_bench_sizes *sizes, int stage);

/* The same of a pass in which no row is ever copied within a GPU: gathered by the first product, summed from the last. */
double mok_bench_pass_bytes(const struct mok_bench_sizes *sizes, int is_backward);
double mok_bench_pass_link_bytes(const struct mok_bench_sizes *sizes);

/* Routed and shared experts: 6 T K H I + 6 T H Is, backward twice that; for the rank's own tokens. */
double mok_bench_operations(const struct mok_bench_sizes *sizes, int is_backward);

#endif
