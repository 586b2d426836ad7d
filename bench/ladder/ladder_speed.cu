/*
 * Times of the seven GEMMs, each run beside one dense cuBLAS call of the same M, N, K: mok, dense, mok, dense, ..., events around each.
 * Operands are normal random values and larger than L2. Share = median over the pairs of dense time / mok time; TFLOP/s on real rows.
 */
#include <cublas_v2.h>
#include <math.h>
#include <string.h>

#include "ladder.h"

enum { WARM_UP = 10, RUNS = 30, NUM_JOBS = 8 };

struct speed_shape {
    const char *name;
    int32_t num_experts, mean_rows, hidden, inter;
};

static const struct speed_shape shapes[] = {
    {"kimi-k2/slice", 6, 10900, 7168, 2048}, {"deepseek-v4-pro/slice", 6, 8200, 7168, 3072},
    {"glm-5.2/slice", 4, 16400, 6144, 2048}, {"qwen3.5-397b/slice", 8, 10200, 4096, 1024},
    {"qwen3-30b", 64, 1024, 2048, 768},      {"mixtral-8x7b", 4, 4100, 4096, 14336},
    {"kimi-k2/full", 192, 341, 7168, 2048},
};

enum job { GATE_UP, GATE_UP_KEEP, DOWN, DGRAD_DOWN, DGRAD_GATE_UP, WGRAD_GATE_UP, WGRAD_DOWN, WGRAD_DOWN_OVERWRITE };

static const char *const job_names[NUM_JOBS] = {"gate_up",       "gate_up+keep",  "down",       "dgrad_down",
                                                "dgrad_gate_up", "wgrad_gate_up", "wgrad_down", "wgrad_down_overwrite"};

/* Dense operands: a [rows, wide], b [wide * wide'], c. */
struct dense {
    cublasHandle_t handle;
    uint16_t *a, *b, *c;
    float *grad;
    void *workspace;
};

static void check_cublas(cublasStatus_t status)
{
    if (status != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "cuBLAS: status %d\n", (int)status);
        exit(3);
    }
}

static int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }

static void dense_create(struct dense *d, const struct ladder_problem *p)
{
    const size_t workspace = 64 << 20;
    int64_t wide = max32(p->hidden, 2 * p->inter), weights = (int64_t)2 * p->inter * p->hidden;
    check_cublas(cublasCreate(&d->handle));
    LADDER_CUDA(cudaMalloc(&d->workspace, workspace));
    check_cublas(cublasSetWorkspace(d->handle, d->workspace, workspace));
    LADDER_CUDA(cudaMalloc(&d->a, (size_t)(p->real_rows * wide * 2)));
    LADDER_CUDA(cudaMalloc(&d->c, (size_t)(p->real_rows * wide * 2)));
    LADDER_CUDA(cudaMalloc(&d->b, (size_t)weights * 2));
    LADDER_CUDA(cudaMalloc(&d->grad, (size_t)weights * 4));
    ladder_fill_bf16(d->a, p->real_rows * wide, 1.0f, 901);
    ladder_fill_bf16(d->c, p->real_rows * wide, 1.0f, 902);
    ladder_fill_bf16(d->b, weights, 0.02f, 903);
    ladder_fill_fp32(d->grad, weights, 1.0f, 904);
}

static void dense_destroy(struct dense *d)
{
    check_cublas(cublasDestroy(d->handle));
    LADDER_CUDA(cudaFree(d->workspace));
    LADDER_CUDA(cudaFree(d->a));
    LADDER_CUDA(cudaFree(d->b));
    LADDER_CUDA(cudaFree(d->c));
    LADDER_CUDA(cudaFree(d->grad));
}

/* c[m, n] = a[m, k] b: b is [n, k] (transposed 0) or [k, n] (1), row-major. */
static void dense_rows(struct dense *d, int64_t m, int32_t n, int32_t k, int transposed)
{
    const float one = 1, zero = 0;
    check_cublas(cublasGemmEx(d->handle, transposed ? CUBLAS_OP_N : CUBLAS_OP_T, CUBLAS_OP_N, n, (int)m, k, &one, d->b, CUDA_R_16BF,
                              transposed ? n : k, d->a, CUDA_R_16BF, k, &zero, d->c, CUDA_R_16BF, n, CUBLAS_COMPUTE_32F,
                              CUBLAS_GEMM_DEFAULT));
}

/* grad[out, in] (+)= a[rows, out]^T c[rows, in], fp32. */
static void dense_wgrad(struct dense *d, int64_t rows, int32_t out, int32_t in, float beta)
{
    const float one = 1;
    check_cublas(cublasGemmEx(d->handle, CUBLAS_OP_N, CUBLAS_OP_T, in, out, (int)rows, &one, d->c, CUDA_R_16BF, in, d->a, CUDA_R_16BF, out,
                              &beta, d->grad, CUDA_R_32F, in, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

static void run_dense(enum job job, struct dense *d, const struct ladder_problem *p)
{
    switch (job) {
    case GATE_UP:
    case GATE_UP_KEEP:
        dense_rows(d, p->real_rows, 2 * p->inter, p->hidden, 0);
        break;
    case DOWN:
        dense_rows(d, p->real_rows, p->hidden, p->inter, 0);
        break;
    case DGRAD_DOWN:
        dense_rows(d, p->real_rows, p->inter, p->hidden, 1);
        break;
    case DGRAD_GATE_UP:
        dense_rows(d, p->real_rows, p->hidden, 2 * p->inter, 1);
        break;
    case WGRAD_GATE_UP:
        dense_wgrad(d, p->real_rows, 2 * p->inter, p->hidden, 1);
        break;
    case WGRAD_DOWN:
        dense_wgrad(d, p->real_rows, p->hidden, p->inter, 1);
        break;
    case WGRAD_DOWN_OVERWRITE:
        dense_wgrad(d, p->real_rows, p->hidden, p->inter, 0);
        break;
    }
}

static int32_t row_group;

static void run_mok(enum job job, const struct ladder_problem *p)
{
    struct mok_gate_up_args gate_up = ladder_gate_up_args(p, job == GATE_UP_KEEP);
    struct mok_down_args down = ladder_down_args(p);
    struct mok_dgrad_down_args dgrad_down = ladder_dgrad_down_args(p);
    struct mok_dgrad_gate_up_args dgrad_gate_up = ladder_dgrad_gate_up_args(p);
    struct mok_wgrad_args wgrad_gate_up = ladder_wgrad_gate_up_args(p, MOK_GRAD_ADD);
    struct mok_wgrad_args wgrad_down = ladder_wgrad_down_args(p, job == WGRAD_DOWN ? MOK_GRAD_ADD : MOK_GRAD_OVERWRITE);
    gate_up.launch.row_group = down.launch.row_group = dgrad_down.launch.row_group = row_group;
    dgrad_gate_up.launch.row_group = wgrad_gate_up.launch.row_group = wgrad_down.launch.row_group = row_group;
    switch (job) {
    case GATE_UP:
    case GATE_UP_KEEP:
        LADDER_MOK(mok_cuda_gate_up_launch(&gate_up, NULL));
        break;
    case DOWN:
        LADDER_MOK(mok_cuda_down_launch(&down, NULL));
        break;
    case DGRAD_DOWN:
        LADDER_MOK(mok_cuda_dgrad_down_launch(&dgrad_down, NULL));
        break;
    case DGRAD_GATE_UP:
        LADDER_MOK(mok_cuda_dgrad_gate_up_launch(&dgrad_gate_up, NULL));
        break;
    case WGRAD_GATE_UP:
        LADDER_MOK(mok_cuda_wgrad_launch(&wgrad_gate_up, NULL));
        break;
    case WGRAD_DOWN:
    case WGRAD_DOWN_OVERWRITE:
        LADDER_MOK(mok_cuda_wgrad_launch(&wgrad_down, NULL));
        break;
    }
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median(float *values)
{
    qsort(values, RUNS, sizeof *values, compare_floats);
    return 0.5f * (values[RUNS / 2 - 1] + values[RUNS / 2]);
}

struct timing {
    float mok[RUNS], dense[RUNS], share[RUNS]; /* ms */
};

static void time_job(enum job job, struct dense *d, const struct ladder_problem *p, struct timing *t)
{
    static cudaEvent_t at[3 * RUNS];
    for (int i = 0; i < 3 * RUNS && !at[3 * RUNS - 1]; i++) {
        LADDER_CUDA(cudaEventCreate(&at[i]));
    }
    for (int run = -WARM_UP; run < RUNS; run++) {
        if (run >= 0) {
            LADDER_CUDA(cudaEventRecord(at[3 * run], NULL));
        }
        run_mok(job, p);
        if (run >= 0) {
            LADDER_CUDA(cudaEventRecord(at[3 * run + 1], NULL));
        }
        run_dense(job, d, p);
        if (run >= 0) {
            LADDER_CUDA(cudaEventRecord(at[3 * run + 2], NULL));
        }
    }
    LADDER_CUDA(cudaDeviceSynchronize());
    for (int run = 0; run < RUNS; run++) {
        LADDER_CUDA(cudaEventElapsedTime(&t->mok[run], at[3 * run], at[3 * run + 1]));
        LADDER_CUDA(cudaEventElapsedTime(&t->dense[run], at[3 * run + 1], at[3 * run + 2]));
        t->share[run] = t->dense[run] / t->mok[run];
    }
}

static void report_job(const struct speed_shape *shape, enum job job, const struct ladder_problem *p, struct timing *t, const char *label,
                       FILE *json)
{
    double two_parts = job == DOWN || job == DGRAD_DOWN || job >= WGRAD_DOWN ? 1 : 2;
    double flops = 2.0 * (double)p->real_rows * p->hidden * p->inter * two_parts;
    float mok = median(t->mok), dense = median(t->dense), share = median(t->share);
    printf("%-22s %-21s %8.4f ms [%.4f %.4f] %5.0f TFLOP/s  dense %8.4f ms %5.0f TFLOP/s  share %.3f\n", shape->name, job_names[job], mok,
           t->mok[0], t->mok[RUNS - 1], flops / mok * 1e-9, dense, flops / dense * 1e-9, share);
    if (json) {
        fprintf(json,
                "  {\"shape\": \"%s\", \"gemm\": \"%s\", \"variant\": \"%s\", \"experts\": %d, \"rows\": %lld, \"H\": %d, \"I\": %d, "
                "\"flop\": %.6e, "
                "\"ms\": %.5f, \"ms_min\": %.5f, \"ms_max\": %.5f, \"dense_ms\": %.5f, \"dense_ms_min\": %.5f, \"dense_ms_max\": %.5f, "
                "\"share\": %.4f, "
                "\"runs\": %d},\n",
                shape->name, job_names[job], label, shape->num_experts, (long long)p->real_rows, p->hidden, p->inter, flops, mok, t->mok[0],
                t->mok[RUNS - 1], dense, t->dense[0], t->dense[RUNS - 1], share, RUNS);
    }
}

/* Problem of a shape: group sizes within 20% of the mean, the same ones each time. */
static void create_shape(const struct speed_shape *shape, struct ladder_problem *p)
{
    const struct ladder_layout layout = {0, 0, MOK_DTYPE_FP32};
    int32_t counts[256];
    uint32_t state = 12345;
    for (int32_t e = 0; e < shape->num_experts; e++) {
        state = state * 1664525u + 1013904223u;
        counts[e] = (int32_t)(shape->mean_rows * (0.8 + 0.4 * (state >> 8) / 16777216.0));
    }
    ladder_problem_create(p, shape->num_experts, counts, shape->hidden, shape->inter, &layout, 5);
    LADDER_CUDA(cudaMemset(p->grads, 0, (size_t)p->grads_bytes));
}

static void time_shape(const struct speed_shape *shape, const char *label, FILE *json)
{
    static struct timing timing;
    struct ladder_problem p;
    struct dense dense;
    create_shape(shape, &p);
    dense_create(&dense, &p);
    run_mok(GATE_UP_KEEP, &p); /* g, u for D; D makes dg, du, wh for the rest */
    for (int job = 0; job < NUM_JOBS; job++) {
        time_job((enum job)job, &dense, &p, &timing);
        report_job(shape, (enum job)job, &p, &timing, label, json);
    }
    dense_destroy(&dense);
    ladder_problem_destroy(&p);
}

void ladder_once(const char *only)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (strstr(only, shapes[i].name)) {
            struct ladder_problem p;
            struct dense dense;
            create_shape(&shapes[i], &p);
            dense_create(&dense, &p);
            for (int job = 0; job < NUM_JOBS; job++) {
                run_mok((enum job)job, &p);
                run_dense((enum job)job, &dense, &p);
            }
            LADDER_CUDA(cudaDeviceSynchronize());
            dense_destroy(&dense);
            ladder_problem_destroy(&p);
        }
    }
}

void ladder_speed(const char *only, const char *label, FILE *json)
{
    const char *group = getenv("LADDER_ROW_GROUP");
    row_group = group ? atoi(group) : 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (!only || strstr(only, shapes[i].name)) {
            time_shape(&shapes[i], label, json);
            fflush(stdout);
        }
    }
}
