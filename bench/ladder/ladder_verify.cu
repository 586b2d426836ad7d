/*
 * Checks of the seven GEMMs: shapes with partial tiles in every direction, experts without rows, strides and gaps, windows, in-place D,
 * repeated runs with other CTA counts and tile orders. Inputs are fresh random data; outputs and padding are poisoned.
 */
#include <math.h>
#include <string.h>

#include "ladder.h"
#include "plan/tile.h"

struct verify_case {
    const char *name;
    int32_t num_experts;
    int32_t counts[8];
    int32_t hidden, inter;
    struct ladder_layout layout;
    mok_activation activation;
    int32_t exact_rows; /* rows.buffer_rows when not 0: a tensor that ends inside its last tile */
};

static const struct verify_case cases[] = {
    {"tiny-odd", 5, {0, 1, 130, 64, 65}, 72, 40, {0, 0, MOK_DTYPE_FP32}, {INFINITY, 1, 0}, 0},
    {"odd-gaps-clamped", 6, {257, 0, 128, 65, 300, 0}, 520, 264, {1, 1, MOK_DTYPE_BF16}, {1.0f, 1.702f, 1.0f}, 0},
    {"gaps-fp32", 3, {190, 70, 384}, 328, 136, {0, 1, MOK_DTYPE_FP32}, {0.5f, 1, 0}, 0},
    {"shared", 1, {200}, 256, 128, {0, 0, MOK_DTYPE_FP32}, {INFINITY, 1, 0}, 200},
    {"qwen3-30b-like", 3, {1000, 700, 513}, 2048, 768, {0, 0, MOK_DTYPE_FP32}, {INFINITY, 1, 0}, 0},
    {"empty", 2, {0, 0}, 128, 128, {0, 0, MOK_DTYPE_FP32}, {INFINITY, 1, 0}, 0},
};

static void *scratch(int64_t bytes)
{
    void *to = NULL;
    LADDER_CUDA(cudaMalloc(&to, (size_t)bytes + 16));
    return to;
}

static char label_text[128];

static const char *label(const struct verify_case *c, const char *what)
{
    snprintf(label_text, sizeof label_text, "%s: %s", c->name, what);
    return label_text;
}

static struct ladder_operand rows_of(const uint16_t *base, int64_t cols)
{
    struct ladder_operand operand = {base, 0, cols, 1};
    return operand;
}

/* Rows of the result are rows (transposed 0) or columns (1) of the weight. */
static struct ladder_operand weight_of(const mok_matrices *m, int transposed)
{
    struct ladder_operand operand = {(const uint16_t *)m->base, m->expert_stride, transposed ? 1 : m->row_stride,
                                     transposed ? m->row_stride : 1};
    return operand;
}

static void verify_forward(const struct verify_case *c, struct ladder_problem *p, double *sum, double *size)
{
    struct mok_gate_up_args gate_up = ladder_gate_up_args(p, 1);
    LADDER_MOK(mok_cuda_gate_up_launch(&gate_up, NULL));
    ladder_product(p, rows_of(p->x, p->hidden), weight_of(&p->gate, 0), p->inter, p->hidden, 0, sum, size);
    ladder_check_product(p, label(c, "g"), p->g, p->inter, sum, size);
    ladder_product(p, rows_of(p->x, p->hidden), weight_of(&p->up, 0), p->inter, p->hidden, 0, sum, size);
    ladder_check_product(p, label(c, "u"), p->u, p->inter, sum, size);
    ladder_check_activation(p, label(c, "h from g, u"));

    int64_t bytes = p->buffer_rows * p->inter * 2;
    uint16_t *again = (uint16_t *)scratch(bytes);
    ladder_poison(again, bytes);
    gate_up = ladder_gate_up_args(p, 0);
    gate_up.h = again;
    gate_up.launch.num_ctas = 6;
    gate_up.launch.row_group = 3;
    LADDER_MOK(mok_cuda_gate_up_launch(&gate_up, NULL));
    ladder_check_equal(label(c, "h without g, u, other order"), again, p->h, bytes);
    LADDER_CUDA(cudaFree(again));

    struct mok_down_args down = ladder_down_args(p);
    LADDER_MOK(mok_cuda_down_launch(&down, NULL));
    ladder_product(p, rows_of(p->h, p->inter), weight_of(&p->down, 0), p->hidden, p->inter, 0, sum, size);
    ladder_check_product(p, label(c, "y"), p->y, p->hidden, sum, size);
}

static void verify_dgrads(const struct verify_case *c, struct ladder_problem *p, double *sum, double *size)
{
    struct mok_dims dims;
    memset(&dims, 0, sizeof dims);
    dims.hidden = p->hidden;
    dims.inter = p->inter;
    struct mok_dgrad_down_args d = ladder_dgrad_down_args(p);
    LADDER_MOK(mok_cuda_dgrad_down_launch(&d, NULL));
    ladder_product(p, rows_of(p->dy, p->hidden), weight_of(&p->down, 1), p->inter, p->hidden, 0, sum, size);
    ladder_check_dgrad(p, label(c, "dg, du, wh, dw"), sum, size, mok_plan_tiles_cuda(&dims).dgrad_down);

    struct mok_dgrad_gate_up_args e = ladder_dgrad_gate_up_args(p);
    LADDER_MOK(mok_cuda_dgrad_gate_up_launch(&e, NULL));
    ladder_product(p, rows_of(p->dg, p->inter), weight_of(&p->gate, 1), p->hidden, p->inter, 0, sum, size);
    ladder_product(p, rows_of(p->du, p->inter), weight_of(&p->up, 1), p->hidden, p->inter, 1, sum, size);
    ladder_check_product(p, label(c, "dx"), p->dx, p->hidden, sum, size);

    /* In place: dg over g, du over u. */
    int64_t bytes = p->buffer_rows * p->inter * 2;
    uint16_t *g = (uint16_t *)scratch(bytes), *u = (uint16_t *)scratch(bytes);
    LADDER_CUDA(cudaMemcpy(g, p->g, (size_t)bytes, cudaMemcpyDeviceToDevice));
    LADDER_CUDA(cudaMemcpy(u, p->u, (size_t)bytes, cudaMemcpyDeviceToDevice));
    d.g = d.dg = g;
    d.u = d.du = u;
    d.launch.num_ctas = 4;
    LADDER_MOK(mok_cuda_dgrad_down_launch(&d, NULL));
    for (int32_t x = 0; x < p->num_experts; x++) {
        int64_t off = (int64_t)p->first[x] * p->inter, run = (int64_t)p->counts[x] * p->inter * 2;
        ladder_check_equal(label(c, "dg in place"), g + off, p->dg + off, run);
        ladder_check_equal(label(c, "du in place"), u + off, p->du + off, run);
    }
    LADDER_CUDA(cudaFree(g));
    LADDER_CUDA(cudaFree(u));
}

static void verify_wgrads(const struct verify_case *c, struct ladder_problem *p, int32_t mode)
{
    const int add = mode == MOK_GRAD_ADD;
    void *before = scratch(p->grads_bytes);
    uint8_t *seen = (uint8_t *)scratch(p->grads_bytes);
    if (p->grad_dtype == MOK_DTYPE_BF16) {
        ladder_fill_bf16((uint16_t *)p->grads, p->grads_bytes / 2, 3.0f, 77);
    } else {
        ladder_fill_fp32((float *)p->grads, p->grads_bytes / 4, 3.0f, 77);
    }
    LADDER_CUDA(cudaMemcpy(before, p->grads, (size_t)p->grads_bytes, cudaMemcpyDeviceToDevice));
    LADDER_CUDA(cudaMemset(seen, 0, (size_t)p->grads_bytes));
    struct mok_wgrad_args gate_up = ladder_wgrad_gate_up_args(p, mode), down = ladder_wgrad_down_args(p, mode);
    LADDER_MOK(mok_cuda_wgrad_launch(&gate_up, NULL));
    LADDER_MOK(mok_cuda_wgrad_launch(&down, NULL));
    ladder_check_wgrad(p, label(c, add ? "dWg add" : "dWg"), &p->grad_gate, p->inter, p->hidden, p->dg, p->x, add, before, seen);
    ladder_check_wgrad(p, label(c, add ? "dWu add" : "dWu"), &p->grad_up, p->inter, p->hidden, p->du, p->x, add, before, seen);
    ladder_check_wgrad(p, label(c, add ? "dWd add" : "dWd"), &p->grad_down, p->hidden, p->inter, p->dy, p->wh, add, before, seen);
    ladder_check_unseen(label(c, "gaps of the gradients"), before, p->grads, seen, p->grads_bytes);
    LADDER_CUDA(cudaFree(before));
    LADDER_CUDA(cudaFree(seen));
}

/* The window of `tiles` row tiles from `first`: tables as they are, buffers moved. */
static struct ladder_problem window_of(const struct ladder_problem *p, int32_t first, int32_t tiles)
{
    struct ladder_problem w = *p;
    int64_t row = (int64_t)first * 128;
    uint16_t **wide[] = {&w.x, &w.y, &w.dy, &w.dx}, **narrow[] = {&w.h, &w.g, &w.u, &w.dg, &w.du, &w.wh};
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
        *wide[i] += row * p->hidden;
    }
    for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++) {
        *narrow[i] += row * p->inter;
    }
    w.w += row;
    w.rows.first_tile = first;
    w.rows.buffer_rows = (int64_t)tiles * 128;
    return w;
}

/* Weight gradients of one matrix pair, window by window; carries swap from window to window. */
static void windowed_wgrad(const struct ladder_problem *p, int32_t tiles, int down, int32_t mode, float *const carry[4])
{
    int32_t turn = 0;
    for (int32_t first = 0; first < p->num_tiles || first == 0; first += tiles, turn ^= 1) {
        struct ladder_problem w = window_of(p, first, tiles);
        struct mok_wgrad_args args = down ? ladder_wgrad_down_args(&w, mode) : ladder_wgrad_gate_up_args(&w, mode);
        for (int part = 0; part < 2 && p->grad_dtype == MOK_DTYPE_BF16; part++) {
            args.carry_in[part] = carry[2 * part + turn];
            args.carry_out[part] = carry[2 * part + (turn ^ 1)];
        }
        LADDER_MOK(mok_cuda_wgrad_launch(&args, NULL));
    }
}

static void verify_windows(const struct verify_case *c, struct ladder_problem *p, int32_t tiles)
{
    int64_t wide = p->buffer_rows * p->hidden * 2, narrow = p->buffer_rows * p->inter * 2;
    uint16_t *h = (uint16_t *)scratch(narrow), *y = (uint16_t *)scratch(wide), *h_whole = p->h, *y_whole = p->y;
    ladder_poison(h, narrow);
    ladder_poison(y, wide);
    p->h = h;
    p->y = y;
    for (int32_t first = 0; first < p->num_tiles; first += tiles) {
        struct ladder_problem w = window_of(p, first, tiles);
        struct mok_gate_up_args gate_up = ladder_gate_up_args(&w, 0);
        struct mok_down_args down = ladder_down_args(&w);
        LADDER_MOK(mok_cuda_gate_up_launch(&gate_up, NULL));
        LADDER_MOK(mok_cuda_down_launch(&down, NULL));
    }
    p->h = h_whole;
    p->y = y_whole;
    ladder_check_equal(label(c, "h in windows"), h, p->h, narrow);
    ladder_check_equal(label(c, "y in windows"), y, p->y, wide);
    LADDER_CUDA(cudaFree(h));
    LADDER_CUDA(cudaFree(y));
}

static void verify_wgrad_windows(const struct verify_case *c, struct ladder_problem *p, int32_t tiles, int32_t mode)
{
    void *start = scratch(p->grads_bytes), *whole = scratch(p->grads_bytes);
    float *carry[4];
    for (int i = 0; i < 4; i++) {
        carry[i] = (float *)scratch((int64_t)p->hidden * p->inter * 4);
    }
    ladder_fill_bf16((uint16_t *)start, p->grads_bytes / 2, 3.0f, 78);
    LADDER_CUDA(cudaMemcpy(p->grads, start, (size_t)p->grads_bytes, cudaMemcpyDeviceToDevice));
    struct mok_wgrad_args gate_up = ladder_wgrad_gate_up_args(p, mode), down = ladder_wgrad_down_args(p, mode);
    LADDER_MOK(mok_cuda_wgrad_launch(&gate_up, NULL));
    LADDER_MOK(mok_cuda_wgrad_launch(&down, NULL));
    LADDER_CUDA(cudaMemcpy(whole, p->grads, (size_t)p->grads_bytes, cudaMemcpyDeviceToDevice));
    LADDER_CUDA(cudaMemcpy(p->grads, start, (size_t)p->grads_bytes, cudaMemcpyDeviceToDevice));
    windowed_wgrad(p, tiles, 0, mode, carry);
    windowed_wgrad(p, tiles, 1, mode, carry);
    ladder_check_equal(label(c, mode == MOK_GRAD_ADD ? "gradients in windows, add" : "gradients in windows"), whole, p->grads,
                       p->grads_bytes);
    for (int i = 0; i < 4; i++) {
        LADDER_CUDA(cudaFree(carry[i]));
    }
    LADDER_CUDA(cudaFree(start));
    LADDER_CUDA(cudaFree(whole));
}

void ladder_verify(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct verify_case *c = &cases[i];
        struct ladder_problem p;
        ladder_problem_create(&p, c->num_experts, c->counts, c->hidden, c->inter, &c->layout, 1000 * (i + 1));
        p.activation = c->activation;
        if (c->exact_rows) {
            p.rows.buffer_rows = c->exact_rows;
        }
        int64_t cols = c->hidden > c->inter ? c->hidden : c->inter;
        double *sum = (double *)scratch(p.buffer_rows * cols * 8), *size = (double *)scratch(p.buffer_rows * cols * 8);
        verify_forward(c, &p, sum, size);
        verify_dgrads(c, &p, sum, size);
        for (int32_t mode = MOK_GRAD_OVERWRITE; mode <= MOK_GRAD_ADD; mode++) {
            verify_wgrads(c, &p, mode);
            if (!c->exact_rows) {
                verify_wgrad_windows(c, &p, 2, mode);
            }
        }
        if (!c->exact_rows) {
            verify_windows(c, &p, 3);
        }
        LADDER_CUDA(cudaFree(sum));
        LADDER_CUDA(cudaFree(size));
        ladder_problem_destroy(&p);
    }
    printf("%lld elements checked, %lld failed\n", (long long)ladder_num_checks, (long long)ladder_num_failed);
}
