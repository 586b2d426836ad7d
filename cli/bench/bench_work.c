/*
 * Sizes to products and bytes. Values of rows take 2 bytes (bf16), gradients of weights 4 (fp32, read and written: they are added to).
 */
#include "bench/bench_work.h"

#include "plan/walk.h"
#include "trace/event.h"

enum { VALUE = 2, GRADIENT = 4, ROUTER_WEIGHT = 4, ID = 4, ROUTE = 8 /* of a row in the schedule: source rank, token and k */ };

/* ---- products ----------------------------------------------------------------------------------------------------------- */

static const char *const gemm_names[MOK_BENCH_NUM_GEMMS] = {
    "gate+up",    "down",          "shared gate+up",    "shared down",          "dgrad down",        "dgrad gate+up",
    "wgrad down", "wgrad gate+up", "shared dgrad down", "shared dgrad gate+up", "shared wgrad down", "shared wgrad gate+up"};

const char *mok_bench_gemm_name(enum mok_bench_gemm gemm) { return gemm_names[gemm]; }

static int is_shared(enum mok_bench_gemm gemm)
{
    return gemm == MOK_BENCH_SHARED_GATE_UP || gemm == MOK_BENCH_SHARED_DOWN || gemm >= MOK_BENCH_SHARED_DGRAD_DOWN;
}

static int64_t round_rows(int64_t rows)
{
    enum { NEAREST = 128 };
    int64_t rounded = (rows + NEAREST / 2) / NEAREST * NEAREST;
    return rounded > 0 ? rounded : rows;
}

struct mok_bench_product mok_bench_gemm_product(const struct mok_bench_sizes *sizes, enum mok_bench_gemm gemm)
{
    int64_t rows = round_rows(is_shared(gemm) ? sizes->tokens : sizes->rows);
    int64_t width = is_shared(gemm) ? sizes->shared_inter : sizes->inter, hidden = sizes->hidden;
    switch (gemm) {
    case MOK_BENCH_GATE_UP:
    case MOK_BENCH_SHARED_GATE_UP: return (struct mok_bench_product){MOK_BENCH_BY_WEIGHT, rows, 2 * width, hidden};
    case MOK_BENCH_DOWN:
    case MOK_BENCH_SHARED_DOWN: return (struct mok_bench_product){MOK_BENCH_BY_WEIGHT, rows, hidden, width};
    case MOK_BENCH_DGRAD_DOWN:
    case MOK_BENCH_SHARED_DGRAD_DOWN: return (struct mok_bench_product){MOK_BENCH_BY_TRANSPOSED_WEIGHT, rows, width, hidden};
    case MOK_BENCH_DGRAD_GATE_UP:
    case MOK_BENCH_SHARED_DGRAD_GATE_UP: return (struct mok_bench_product){MOK_BENCH_BY_TRANSPOSED_WEIGHT, rows, hidden, 2 * width};
    case MOK_BENCH_WGRAD_DOWN:
    case MOK_BENCH_SHARED_WGRAD_DOWN: return (struct mok_bench_product){MOK_BENCH_WEIGHT_GRADIENT, hidden, width, rows};
    case MOK_BENCH_WGRAD_GATE_UP:
    case MOK_BENCH_SHARED_WGRAD_GATE_UP: return (struct mok_bench_product){MOK_BENCH_WEIGHT_GRADIENT, 2 * width, hidden, rows};
    case MOK_BENCH_NUM_GEMMS: break;
    }
    return (struct mok_bench_product){MOK_BENCH_BY_WEIGHT, 0, 0, 0};
}

/* ---- stages ------------------------------------------------------------------------------------------------------------- */

#define TASK(task) (MOK_EVENT_TASK + (task))

/* In the order in which a pass runs them. */
static const struct mok_bench_stage stages[MOK_BENCH_NUM_STAGES] = {
    {MOK_EVENT_SCHEDULE, 0, 0, 0},
    {MOK_EVENT_PUBLISH, 0, 0, 0},
    {TASK(MOK_TASK_SHARED_GATE_UP), 0, MOK_BENCH_SHARED_GATE_UP, 1},
    {TASK(MOK_TASK_SHARED_DOWN), 0, MOK_BENCH_SHARED_DOWN, 1},
    {MOK_EVENT_PULL, 0, 0, 0},
    {TASK(MOK_TASK_GATE_UP), 0, MOK_BENCH_GATE_UP, 1},
    {TASK(MOK_TASK_DOWN), 0, MOK_BENCH_DOWN, 1},
    {MOK_EVENT_PUSH, 0, 0, 0},
    {MOK_EVENT_SUM, 0, 0, 0},
    {MOK_EVENT_PUBLISH, 1, 0, 0},
    {TASK(MOK_TASK_SHARED_DGRAD_DOWN), 1, MOK_BENCH_SHARED_DGRAD_DOWN, 1},
    {TASK(MOK_TASK_SHARED_DGRAD_GATE_UP), 1, MOK_BENCH_SHARED_DGRAD_GATE_UP, 1},
    {TASK(MOK_TASK_SHARED_WGRAD), 1, MOK_BENCH_SHARED_WGRAD_DOWN, 2},
    {MOK_EVENT_PULL, 1, 0, 0},
    {TASK(MOK_TASK_DGRAD_DOWN), 1, MOK_BENCH_DGRAD_DOWN, 1},
    {TASK(MOK_TASK_DGRAD_GATE_UP), 1, MOK_BENCH_DGRAD_GATE_UP, 1},
    {MOK_EVENT_PUSH, 1, 0, 0},
    {TASK(MOK_TASK_WGRAD), 1, MOK_BENCH_WGRAD_DOWN, 2},
    {MOK_EVENT_SUM, 1, 0, 0},
};

const struct mok_bench_stage *mok_bench_stage_at(int idx) { return &stages[idx]; }

int mok_bench_find_stage(int32_t kind, int is_backward)
{
    for (int idx = 0; idx < MOK_BENCH_NUM_STAGES; idx++) {
        if (stages[idx].kind == kind && stages[idx].is_backward == is_backward) {
            return idx;
        }
    }
    return -1;
}

/* ---- bytes -------------------------------------------------------------------------------------------------------------- */

/* One product of the layer with what its epilogue reads and writes. num: experts whose weights are read. */
static double gemm_bytes(const struct mok_bench_sizes *sizes, enum mok_bench_gemm gemm)
{
    double rows = (double)(is_shared(gemm) ? sizes->tokens : sizes->rows), num = is_shared(gemm) ? 1.0 : (double)sizes->experts;
    double width = (double)(is_shared(gemm) ? sizes->shared_inter : sizes->inter), hidden = (double)sizes->hidden;
    double matrix = num * width * hidden, wide = rows * hidden, narrow = rows * width;
    if (width == 0.0) {
        return 0.0;
    }
    switch (gemm) {
    case MOK_BENCH_GATE_UP: /* x -> h; g, u when kept */
    case MOK_BENCH_SHARED_GATE_UP: return VALUE * (2 * matrix + wide + (sizes->is_kept ? 3 : 1) * narrow);
    case MOK_BENCH_DOWN: /* h -> y */
    case MOK_BENCH_SHARED_DOWN: return VALUE * (matrix + narrow + wide);
    case MOK_BENCH_DGRAD_DOWN: /* dy, g, u -> dg, du, w*h */
    case MOK_BENCH_SHARED_DGRAD_DOWN: return VALUE * (matrix + wide + 5 * narrow);
    case MOK_BENCH_DGRAD_GATE_UP: /* dg, du -> dx */
    case MOK_BENCH_SHARED_DGRAD_GATE_UP: return VALUE * (2 * matrix + 2 * narrow + wide);
    case MOK_BENCH_WGRAD_DOWN: /* dy, w*h */
    case MOK_BENCH_SHARED_WGRAD_DOWN: return VALUE * (wide + narrow) + 2 * GRADIENT * matrix;
    case MOK_BENCH_WGRAD_GATE_UP: /* dg, du, x */
    case MOK_BENCH_SHARED_WGRAD_GATE_UP: return VALUE * (2 * narrow + wide) + 2 * GRADIENT * 2 * matrix;
    case MOK_BENCH_NUM_GEMMS: break;
    }
    return 0.0;
}

double mok_bench_stage_bytes(const struct mok_bench_sizes *sizes, int stage)
{
    const struct mok_bench_stage *what = &stages[stage];
    double row = VALUE * (double)sizes->hidden, routes = (double)sizes->tokens * (double)sizes->top_k, tokens = (double)sizes->tokens;
    double rows = (double)sizes->rows, weight = what->is_backward ? ROUTER_WEIGHT : 0.0, bytes = 0.0;
    for (int idx = 0; idx < what->num_gemms; idx++) {
        bytes += gemm_bytes(sizes, (enum mok_bench_gemm)(what->first_gemm + idx));
    }
    switch (what->kind) {
    case MOK_EVENT_SCHEDULE: /* ids -> list; list -> row's route */ return routes * 2 * ID + rows * (ID + ROUTE);
    case MOK_EVENT_PUBLISH: return 2 * (tokens * row + routes * weight);
    case MOK_EVENT_PULL:
    case MOK_EVENT_PUSH: return 2 * rows * (row + weight);
    case MOK_EVENT_SUM: return routes * (row + weight) + tokens * row * (sizes->shared_inter > 0 ? 2 : 1);
    default: return bytes;
    }
}

static double larger(double a, double b) { return a > b ? a : b; }

double mok_bench_stage_link_bytes(const struct mok_bench_sizes *sizes, int stage)
{
    int is_move = stages[stage].kind == MOK_EVENT_PULL || stages[stage].kind == MOK_EVENT_PUSH;
    return is_move ? larger((double)sizes->rows_in, (double)sizes->rows_out) * VALUE * (double)sizes->hidden : 0.0;
}

double mok_bench_pass_bytes(const struct mok_bench_sizes *sizes, int is_backward)
{
    double hidden = (double)sizes->hidden, token_values = 2 * (double)sizes->tokens * hidden;
    double matrices = 3 * hidden * ((double)sizes->experts * (double)sizes->inter + (double)sizes->shared_inter);
    double kept = (double)sizes->rows * (hidden + 2 * (double)sizes->inter) + 2 * (double)sizes->tokens * (double)sizes->shared_inter;
    return VALUE * (token_values + matrices + (sizes->is_kept ? kept : 0.0)) + (is_backward ? 2 * GRADIENT * matrices : 0.0);
}

double mok_bench_pass_link_bytes(const struct mok_bench_sizes *sizes)
{
    return (double)(sizes->rows_in + sizes->rows_out) * VALUE * (double)sizes->hidden; /* there and back: both directions the same */
}

double mok_bench_operations(const struct mok_bench_sizes *sizes, int is_backward)
{
    double routed = (double)sizes->top_k * (double)sizes->inter, shared = (double)sizes->shared_inter;
    return (is_backward ? 12.0 : 6.0) * (double)sizes->tokens * (double)sizes->hidden * (routed + shared);
}
