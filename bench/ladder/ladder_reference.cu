/*
 * The plain reference: one thread per element, sums in double, no tiles. Tolerances: half a bf16 ulp of the value (2^-8 of it at most),
 * plus 2^-17 of the sum of absolute products for fp32 accumulation. Every element is checked; the worst one is named by its row.
 */
#include <string.h>

#include "ladder.h"

int64_t ladder_num_checks, ladder_num_failed;

static __device__ double value(uint16_t bits) { return (double)__uint_as_float((uint32_t)bits << 16); }

static __device__ uint16_t round_bf16(float x)
{
    uint32_t bits = __float_as_uint(x);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* Expert of a row, or -1 for padding and unused rows. */
static __device__ int32_t expert_of(const struct mok_gemm_rows *rows, int64_t row)
{
    int64_t tile = row / 128;
    if (tile >= *rows->num_tiles) {
        return -1;
    }
    int32_t e = rows->tile_expert[tile];
    return row < rows->expert_first[e] + rows->expert_rows[e] ? e : -1;
}

static __device__ void note(struct ladder_report *report, double error, double tolerance, int64_t row)
{
    float ratio =
        error <= tolerance ? (float)(error / (tolerance > 0 ? tolerance : 1)) : (tolerance > 0 ? (float)(error / tolerance) : 1e30f);
    if (!(error <= tolerance)) {
        ratio = ratio > 1.0f && ratio < 1e30f ? ratio : 1e30f;
        atomicAdd(&report->bad, 1ull);
    }
    atomicAdd(&report->checked, 1ull);
    atomicMax(&report->worst, (unsigned long long)__float_as_uint(ratio) << 32 | (uint32_t)row);
}

static struct ladder_report *open_report(void)
{
    static struct ladder_report *report;
    if (!report) {
        LADDER_CUDA(cudaMallocManaged(&report, sizeof *report));
    }
    LADDER_CUDA(cudaDeviceSynchronize());
    memset(report, 0, sizeof *report);
    return report;
}

static void close_report(const char *what, const struct ladder_report *report)
{
    LADDER_CUDA(cudaGetLastError());
    LADDER_CUDA(cudaDeviceSynchronize());
    union {
        uint32_t u;
        float f;
    } ratio;
    ratio.u = (uint32_t)(report->worst >> 32);
    ladder_num_checks += (int64_t)report->checked;
    ladder_num_failed += (int64_t)report->bad;
    if (report->bad) {
        printf("FAIL %-40s %llu of %llu bad, worst %.3g x tolerance in row %u\n", what, report->bad, report->checked, ratio.f,
               (uint32_t)report->worst);
    } else {
        printf("ok   %-40s %llu checked, worst %.2f of tolerance\n", what, report->checked, ratio.f);
    }
}

static __global__ void product_kernel(struct mok_gemm_rows rows, struct ladder_operand a, struct ladder_operand b, int32_t cols,
                                      int32_t depth, int add, double *sum, double *size)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int64_t row = i / cols, col = i % cols;
    int32_t e = row < rows.buffer_rows ? expert_of(&rows, row) : -1;
    if (e < 0) {
        return;
    }
    const uint16_t *pa = a.base + row * a.row_stride, *pb = b.base + e * b.expert_stride + col * b.row_stride;
    double s = add ? sum[i] : 0, z = add ? size[i] : 0;
    for (int32_t k = 0; k < depth; k++) {
        double t = value(pa[k * a.k_stride]) * value(pb[k * b.k_stride]);
        s += t;
        z += fabs(t);
    }
    sum[i] = s;
    size[i] = z;
}

void ladder_product(const struct ladder_problem *p, struct ladder_operand a, struct ladder_operand b, int32_t cols, int32_t depth, int add,
                    double *sum, double *size)
{
    int64_t count = (int64_t)p->num_tiles * 128 * cols;
    product_kernel<<<(unsigned)((count + 255) / 256 + 1), 256>>>(p->rows, a, b, cols, depth, add, sum, size);
    LADDER_CUDA(cudaGetLastError());
}

static __global__ void check_product_kernel(struct mok_gemm_rows rows, int64_t all_rows, const uint16_t *got, int32_t cols,
                                            const double *sum, const double *size, struct ladder_report *report)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int64_t row = i / cols;
    if (row >= all_rows) {
        return;
    }
    if (row < rows.buffer_rows && expert_of(&rows, row) >= 0) {
        note(report, fabs(value(got[i]) - sum[i]), fabs(sum[i]) * 0x1p-8 + size[i] * 0x1p-17 + 1e-38, row);
    } else {
        note(report, got[i] == 0xffff ? 0 : 1, 0, row);
    }
}

void ladder_check_product(const struct ladder_problem *p, const char *what, const uint16_t *got, int32_t cols, const double *sum,
                          const double *size)
{
    struct ladder_report *report = open_report();
    int64_t count = p->buffer_rows * cols;
    check_product_kernel<<<(unsigned)((count + 255) / 256), 256>>>(p->rows, p->buffer_rows, got, cols, sum, size, report);
    close_report(what, report);
}

struct derived {
    double h, by_g, by_u;
};

static __device__ struct derived derive(mok_activation act, double g, double u)
{
    struct derived d;
    double z = g > act.limit ? (double)act.limit : g;
    double c = u > act.limit ? (double)act.limit : u < -act.limit ? -(double)act.limit : u;
    double s = 1 / (1 + exp(-act.alpha * z)), up = c + act.up_offset;
    d.h = z * s * up;
    d.by_g = g > act.limit ? 0 : s * (1 + act.alpha * z * (1 - s)) * up;
    d.by_u = fabs(u) > act.limit ? 0 : z * s;
    return d;
}

static __global__ void check_activation_kernel(struct mok_gemm_rows rows, int64_t all_rows, mok_activation act, int32_t cols,
                                               const uint16_t *g, const uint16_t *u, const uint16_t *h, struct ladder_report *report)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int64_t row = i / cols;
    if (row >= all_rows) {
        return;
    }
    if (row < rows.buffer_rows && expert_of(&rows, row) >= 0) {
        double want = derive(act, value(g[i]), value(u[i])).h;
        note(report, fabs(value(h[i]) - want), fabs(want) * 0x1p-8 * 1.02 + 1e-37, row);
    } else {
        note(report, h[i] == 0xffff ? 0 : 1, 0, row);
    }
}

void ladder_check_activation(const struct ladder_problem *p, const char *what)
{
    struct ladder_report *report = open_report();
    int64_t count = p->buffer_rows * p->inter;
    check_activation_kernel<<<(unsigned)((count + 255) / 256), 256>>>(p->rows, p->buffer_rows, p->activation, p->inter, p->g, p->u, p->h,
                                                                      report);
    close_report(what, report);
}

/* One thread a row. */
static __global__ void check_dgrad_kernel(struct ladder_problem p, const double *sum, const double *size, int32_t tile_cols,
                                          struct ladder_report *report)
{
    int64_t row = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (row >= p.buffer_rows) {
        return;
    }
    int used = row < p.rows.buffer_rows && row / 128 < *p.rows.num_tiles;
    int32_t e = used ? expert_of(&p.rows, row) : -1;
    int32_t tiles = (p.inter + tile_cols - 1) / tile_cols;
    int zero = 0;
    if (used && e < 0) {
        int32_t last = p.rows.tile_expert[row / 128];
        zero = row < p.rows.expert_first[last] + (p.rows.expert_rows[last] + 63) / 64 * 64;
    }
    for (int32_t tile = 0; tile < tiles; tile++) {
        double dw = 0, slack = 0;
        for (int32_t c = tile * tile_cols; c < min((tile + 1) * tile_cols, p.inter); c++) {
            int64_t i = row * p.inter + c;
            if (e < 0) {
                int ok = (p.dg[i] | p.du[i] | p.wh[i]) == 0 || (!zero && (p.dg[i] & p.du[i] & p.wh[i]) == 0xffff);
                note(report, ok ? 0 : 1, 0, row);
                continue;
            }
            struct derived d = derive(p.activation, value(p.g[i]), value(p.u[i]));
            double w = (double)p.w[row], h = value(p.h[i]);
            note(report, fabs(value(p.dg[i]) - w * sum[i] * d.by_g),
                 fabs(w * d.by_g) * (fabs(sum[i]) * 0x1p-8 * 1.02 + size[i] * 0x1p-17) + 1e-37, row);
            note(report, fabs(value(p.du[i]) - w * sum[i] * d.by_u),
                 fabs(w * d.by_u) * (fabs(sum[i]) * 0x1p-8 * 1.02 + size[i] * 0x1p-17) + 1e-37, row);
            note(report, p.wh[i] == round_bf16(__fmul_rn(p.w[row], (float)h)) ? 0 : 1, 0, row);
            dw += sum[i] * h;
            slack += size[i] * fabs(h) * 0x1p-17;
        }
        if (e >= 0) {
            note(report, fabs((double)p.dw_partial[row * tiles + tile] - dw), slack, row);
        } else {
            note(report, __float_as_uint(p.dw_partial[row * tiles + tile]) == 0xffffffffu ? 0 : 1, 0, row);
        }
    }
}

void ladder_check_dgrad(const struct ladder_problem *p, const char *what, const double *sum, const double *size, int32_t tile_cols)
{
    struct ladder_report *report = open_report();
    check_dgrad_kernel<<<(unsigned)((p->buffer_rows + 63) / 64), 64>>>(*p, sum, size, tile_cols, report);
    close_report(what, report);
}

static __global__ void check_wgrad_kernel(struct ladder_problem p, mok_matrices grad, int32_t out, int32_t in, const uint16_t *a,
                                          const uint16_t *b, int add, const uint8_t *before, uint8_t *seen, struct ladder_report *report)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int32_t e = blockIdx.y, row = (int32_t)(i / in), col = (int32_t)(i % in);
    if (row >= out) {
        return;
    }
    int64_t size = p.grad_dtype == MOK_DTYPE_BF16 ? 2 : 4;
    uint8_t *at = (uint8_t *)grad.base + (e * grad.expert_stride + row * grad.row_stride + col) * size;
    int64_t off = at - (uint8_t *)p.grads;
    for (int64_t j = 0; j < size; j++) {
        seen[off + j] = 1;
    }
    double old = size == 2 ? value(*(const uint16_t *)(before + off)) : (double)*(const float *)(before + off);
    double got = size == 2 ? value(*(const uint16_t *)at) : (double)*(const float *)at;
    double sum = add ? old : 0, mass = add ? fabs(old) : 0;
    int64_t first = p.rows.expert_first[e];
    for (int64_t r = first; r < first + p.rows.expert_rows[e]; r++) {
        double t = value(a[r * out + row]) * value(b[r * in + col]);
        sum += t;
        mass += fabs(t);
    }
    double tolerance = p.rows.expert_rows[e] == 0 ? 0 : mass * 0x1p-17 + (size == 2 ? fabs(sum) * 0x1p-8 : 0);
    note(report, fabs(got - sum), tolerance, row);
}

void ladder_check_wgrad(const struct ladder_problem *p, const char *what, const mok_matrices *grad, int32_t out, int32_t in,
                        const uint16_t *a, const uint16_t *b, int add, const void *before, uint8_t *seen)
{
    struct ladder_report *report = open_report();
    dim3 grid((unsigned)(((int64_t)out * in + 255) / 256), (unsigned)p->num_experts);
    check_wgrad_kernel<<<grid, 256>>>(*p, *grad, out, in, a, b, add, (const uint8_t *)before, seen, report);
    close_report(what, report);
}

static __global__ void check_bytes_kernel(const uint8_t *a, const uint8_t *b, const uint8_t *seen, int64_t bytes,
                                          struct ladder_report *report)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < bytes; i += (int64_t)gridDim.x * blockDim.x) {
        if ((!seen || !seen[i]) && a[i] != b[i]) {
            note(report, 1, 0, i);
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        atomicAdd(&report->checked, (unsigned long long)bytes);
    }
}

void ladder_check_unseen(const char *what, const void *before, const void *after, const uint8_t *seen, int64_t bytes)
{
    struct ladder_report *report = open_report();
    check_bytes_kernel<<<1024, 256>>>((const uint8_t *)before, (const uint8_t *)after, seen, bytes, report);
    close_report(what, report);
}

void ladder_check_equal(const char *what, const void *a, const void *b, int64_t bytes) { ladder_check_unseen(what, a, b, NULL, bytes); }
