/*
 * Oracle 2: the rounding points of docs/numerics.md, one by one, with products summed in double. Differs from a correct backend only where
 * an fp32 sum falls on the other side of a rounding boundary.
 *
 * Bounds. dw: 2^-7 * sqrt(sum (dh*h)^2). A weight gradient, sum over n rows of a_r * b_r: 2^-7 * sqrt(sum (a*b)^2) + (n + 2) * 2^-24 * sum
 * |a*b|, so each gradient takes three products: of the operands, of their squares, of their magnitudes. In add mode the existing value is
 * one more term of the sum of magnitudes.
 */
#include "ref/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref/product.h"
#include "ref/real.h"
#include "ref/runs.h"
#include "ref/sum.h"

/* The rows of one expert, and where their results go. */
struct run {
    int64_t num_rows;
    const int64_t *token; /* [num_rows] */
    const int64_t *place; /* [num_rows] index into w, dw, row_y, row_dx */
    const float *w;       /* NULL = 1 */
    int64_t width;
    const mok_bf16 *gate, *up, *down;
    mok_bf16 *row_y, *row_dx;
    double *dw, *dw_bound;
    struct mok_ref_real_weights grad, bound; /* of this expert; grad holds the start */
};

struct scratch {
    double *x, *dy, *row;        /* [rows, H] */
    double *g, *u, *h, *dh, *wh; /* [rows, width] */
    double *a, *b;               /* [rows, max(H, width)] squares and magnitudes */
    double *squares;             /* [width, H] */
    double *gate, *up, *down;    /* [width, H] weights of the expert at hand, widened */
};

static double to_bf16(double value) { return (double)mok_bf16_to_float(mok_bf16_from_float((float)value)); }

static void clear(double *values, int64_t count) { memset(values, 0, (size_t)count * sizeof(double)); }

static void round_all(double *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        values[i] = to_bf16(values[i]);
    }
}

static void widen(const mok_bf16 *from, int64_t count, double *to)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = (double)mok_bf16_to_float(from[i]);
    }
}

static void gather(const mok_bf16 *from, const int64_t *token, int64_t num_rows, int64_t hidden, double *to)
{
    for (int64_t r = 0; r < num_rows; r++) {
        widen(from + token[r] * hidden, hidden, to + r * hidden);
    }
}

static void scatter(const double *rows, const int64_t *place, int64_t num_rows, int64_t hidden, mok_bf16 *to)
{
    for (int64_t r = 0; r < num_rows; r++) {
        for (int64_t j = 0; j < hidden; j++) {
            to[place[r] * hidden + j] = mok_bf16_from_float((float)rows[r * hidden + j]);
        }
    }
}

/* act and its partial derivatives at bf16 g, u: fp32 values. A comparison with NaN is false, so NaN stays. */
static void activate(const mok_activation *act, double g, double u, float *h, float *by_g, float *by_u)
{
    double limit = act->limit;
    double z = g > limit ? limit : g;
    double c = u > limit ? limit : u < -limit ? -limit : u;
    double s = 1.0 / (1.0 + exp(-act->alpha * z));
    *h = (float)(z * s * (c + act->up_offset));
    *by_g = (float)(g > limit ? 0.0 : s * (1.0 + act->alpha * z * (1.0 - s)) * (c + act->up_offset));
    *by_u = (float)(u > limit || u < -limit ? 0.0 : z * s);
}

/* From g, u (rounded) and dh of every row: h, w*h, dg in the place of g, du in the place of u, dw and its bound. */
static void run_elements(const mok_activation *act, const struct run *run, struct scratch *s)
{
    for (int64_t r = 0; r < run->num_rows; r++) {
        float w = run->w == NULL ? 1.0f : run->w[run->place[r]];
        double dw = 0.0, squares = 0.0;
        for (int64_t i = r * run->width; i < (r + 1) * run->width; i++) {
            float h, by_g, by_u;
            float dh = (float)s->dh[i];
            float d = w * dh;
            activate(act, s->g[i], s->u[i], &h, &by_g, &by_u);
            s->h[i] = to_bf16(h);
            s->wh[i] = to_bf16(w * (float)s->h[i]);
            s->g[i] = to_bf16(d * by_g);
            s->u[i] = to_bf16(d * by_u);
            dw += (double)dh * s->h[i];
            squares += (double)dh * s->h[i] * (double)dh * s->h[i];
        }
        run->dw[run->place[r]] = dw;
        run->dw_bound[run->place[r]] = ldexp(sqrt(squares), -7);
    }
}

/* grad[m, n] += a[rows, m]^T b[rows, n]; bound[m, n] as at the head of this file. */
static void add_gradient(int64_t rows, int64_t m, int64_t n, const double *a, const double *b, struct scratch *s, double *grad,
                         double *bound)
{
    for (int64_t i = 0; i < m * n; i++) {
        bound[i] = fabs(grad[i]);
    }
    mok_ref_product_tn(m, n, rows, a, b, grad);
    for (int64_t i = 0; i < rows * m; i++) {
        s->a[i] = fabs(a[i]);
    }
    for (int64_t i = 0; i < rows * n; i++) {
        s->b[i] = fabs(b[i]);
    }
    mok_ref_product_tn(m, n, rows, s->a, s->b, bound);
    for (int64_t i = 0; i < rows * m; i++) {
        s->a[i] *= s->a[i];
    }
    for (int64_t i = 0; i < rows * n; i++) {
        s->b[i] *= s->b[i];
    }
    clear(s->squares, m * n);
    mok_ref_product_tn(m, n, rows, s->a, s->b, s->squares);
    for (int64_t i = 0; i < m * n; i++) {
        bound[i] = ldexp(sqrt(s->squares[i]), -7) + (double)(rows + 2) * ldexp(bound[i], -24);
    }
}

static void run_expert(const struct mok_ref_problem *problem, const struct run *run, struct scratch *s)
{
    int64_t n = run->num_rows, hidden = problem->hidden, width = run->width;
    if (n == 0) {
        return; /* grad keeps its start, the bound stays 0: zeros, or untouched */
    }
    widen(run->gate, width * hidden, s->gate);
    widen(run->up, width * hidden, s->up);
    widen(run->down, width * hidden, s->down);
    gather(problem->x, run->token, n, hidden, s->x);
    gather(problem->dy, run->token, n, hidden, s->dy);
    clear(s->g, n * width);
    clear(s->u, n * width);
    clear(s->dh, n * width);
    mok_ref_product_nt(n, width, hidden, s->x, s->gate, s->g);
    mok_ref_product_nt(n, width, hidden, s->x, s->up, s->u);
    mok_ref_product_nn(n, width, hidden, s->dy, s->down, s->dh);
    round_all(s->g, n * width);
    round_all(s->u, n * width);
    run_elements(&problem->activation, run, s);
    clear(s->row, n * hidden);
    mok_ref_product_nt(n, hidden, width, s->h, s->down, s->row);
    scatter(s->row, run->place, n, hidden, run->row_y);
    clear(s->row, n * hidden);
    mok_ref_product_nn(n, hidden, width, s->g, s->gate, s->row);
    mok_ref_product_nn(n, hidden, width, s->u, s->up, s->row);
    scatter(s->row, run->place, n, hidden, run->row_dx);
    add_gradient(n, width, hidden, s->g, s->x, s, run->grad.gate, run->bound.gate);
    add_gradient(n, width, hidden, s->u, s->x, s, run->grad.up, run->bound.up);
    add_gradient(n, hidden, width, s->dy, s->wh, s, run->grad.down, run->bound.down);
}

static struct mok_ref_real_weights at_matrix(struct mok_ref_real_weights all, int64_t idx)
{
    return (struct mok_ref_real_weights){all.gate + idx, all.up + idx, all.down + idx};
}

static void run_routed(const struct mok_ref_problem *p, const struct mok_ref_runs *runs, struct scratch *s, struct mok_ref_rounded *out)
{
    for (int32_t e = 0; e < p->num_experts; e++) {
        int64_t at = (int64_t)e * p->inter * p->hidden, first = runs->first[e];
        struct run run = {runs->first[e + 1] - first,
                          runs->token + first,
                          runs->route + first,
                          p->w,
                          p->inter,
                          p->routed.gate + at,
                          p->routed.up + at,
                          p->routed.down + at,
                          out->row_y,
                          out->row_dx,
                          out->dw,
                          out->dw_bound,
                          at_matrix(out->grads, at),
                          at_matrix(out->grads_bound, at)};
        run_expert(p, &run, s);
    }
}

static void run_shared(const struct mok_ref_problem *p, const int64_t *every_token, struct scratch *s, struct mok_ref_rounded *out)
{
    for (int32_t r = 0; r < p->num_ranks; r++) {
        int64_t at = (int64_t)r * p->shared_inter * p->hidden, first = mok_ref_first_token(p, r);
        struct run run = {p->tokens[r],
                          every_token + first,
                          every_token + first,
                          p->shared_w,
                          p->shared_inter,
                          p->shared.gate,
                          p->shared.up,
                          p->shared.down,
                          out->shared_y,
                          out->shared_dx,
                          out->dshared_w,
                          out->dshared_w_bound,
                          at_matrix(out->shared_grads, at),
                          at_matrix(out->shared_grads_bound, at)};
        run_expert(p, &run, s);
    }
}

static void start_from(struct mok_ref_real_weights *to, const struct mok_ref_grads *from, int64_t count)
{
    for (int64_t i = 0; from->gate != NULL && i < count; i++) {
        to->gate[i] = from->gate[i];
        to->up[i] = from->up[i];
        to->down[i] = from->down[i];
    }
}

static mok_bf16 *zeroed_bf16(int64_t count, int *failed)
{
    mok_bf16 *memory = calloc((size_t)count + 1, sizeof(mok_bf16));
    *failed |= memory == NULL;
    return memory;
}

static mok_status alloc_rounded(const struct mok_ref_problem *p, struct mok_ref_rounded *out)
{
    int failed = 0;
    int64_t elements = p->num_tokens * p->hidden, routes = p->num_tokens * p->top_k;
    out->row_y = zeroed_bf16(elements * p->top_k, &failed);
    out->row_dx = zeroed_bf16(elements * p->top_k, &failed);
    out->shared_y = zeroed_bf16(elements, &failed);
    out->shared_dx = zeroed_bf16(elements, &failed);
    out->y = zeroed_bf16(elements, &failed);
    out->dx = zeroed_bf16(elements, &failed);
    out->dw = mok_ref_zeroed(routes, &failed);
    out->dw_bound = mok_ref_zeroed(routes, &failed);
    mok_ref_real_weights_alloc(&out->grads, p->num_experts, p->inter, p->hidden, &failed);
    mok_ref_real_weights_alloc(&out->grads_bound, p->num_experts, p->inter, p->hidden, &failed);
    if (p->shared_inter > 0) {
        out->dshared_w = mok_ref_zeroed(p->num_tokens, &failed);
        out->dshared_w_bound = mok_ref_zeroed(p->num_tokens, &failed);
        mok_ref_real_weights_alloc(&out->shared_grads, p->num_ranks, p->shared_inter, p->hidden, &failed);
        mok_ref_real_weights_alloc(&out->shared_grads_bound, p->num_ranks, p->shared_inter, p->hidden, &failed);
    }
    return failed ? MOK_ERR_MEMORY : MOK_OK;
}

static mok_status alloc_scratch(int64_t rows, int64_t width, int64_t hidden, struct scratch *s)
{
    int failed = 0;
    int64_t wider = width > hidden ? width : hidden;
    double **by_hidden[] = {&s->x, &s->dy, &s->row}, **by_width[] = {&s->g, &s->u, &s->h, &s->dh, &s->wh};
    double **matrices[] = {&s->squares, &s->gate, &s->up, &s->down};
    for (int i = 0; i < 3; i++) {
        *by_hidden[i] = mok_ref_zeroed(rows * hidden, &failed);
    }
    for (int i = 0; i < 5; i++) {
        *by_width[i] = mok_ref_zeroed(rows * width, &failed);
    }
    for (int i = 0; i < 4; i++) {
        *matrices[i] = mok_ref_zeroed(width * hidden, &failed);
    }
    s->a = mok_ref_zeroed(rows * wider, &failed);
    s->b = mok_ref_zeroed(rows * wider, &failed);
    return failed ? MOK_ERR_MEMORY : MOK_OK;
}

static void free_scratch(struct scratch *s)
{
    double *all[] = {s->x, s->dy, s->row, s->g, s->u, s->h, s->dh, s->wh, s->a, s->b, s->squares, s->gate, s->up, s->down};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
}

static void run_all(const struct mok_ref_problem *p, const struct mok_ref_runs *runs, int64_t *every_token, struct scratch *s,
                    struct mok_ref_rounded *out)
{
    start_from(&out->grads, &p->start, (int64_t)p->num_experts * p->inter * p->hidden);
    run_routed(p, runs, s, out);
    if (p->shared_inter > 0) {
        for (int64_t t = 0; t < p->num_tokens; t++) {
            every_token[t] = t;
        }
        start_from(&out->shared_grads, &p->shared_start, (int64_t)p->num_ranks * p->shared_inter * p->hidden);
        run_shared(p, every_token, s, out);
    }
    for (int64_t t = 0; t < p->num_tokens; t++) {
        mok_ref_sum_y(p, out->row_y, p->shared_inter > 0 ? out->shared_y : NULL, t, out->y + t * p->hidden);
        mok_ref_sum_dx(p, out->row_dx, p->shared_inter > 0 ? out->shared_dx : NULL, t, out->dx + t * p->hidden);
    }
}

mok_status mok_ref_rounded_run(const struct mok_ref_problem *problem, struct mok_ref_rounded *rounded_out)
{
    struct mok_ref_runs runs = {0};
    struct scratch scratch = {0};
    memset(rounded_out, 0, sizeof *rounded_out);
    mok_status status = mok_ref_runs_make(problem, &runs);
    int64_t *every_token = malloc(((size_t)problem->num_tokens + 1) * sizeof(int64_t));
    status = status == MOK_OK && every_token == NULL ? MOK_ERR_MEMORY : status;
    status = status == MOK_OK ? alloc_rounded(problem, rounded_out) : status;
    if (status == MOK_OK) {
        int64_t rows = problem->shared_inter > 0 && problem->num_tokens > runs.longest ? problem->num_tokens : runs.longest;
        int64_t width = problem->shared_inter > problem->inter ? problem->shared_inter : problem->inter;
        status = alloc_scratch(rows, width, problem->hidden, &scratch);
    }
    if (status == MOK_OK) {
        run_all(problem, &runs, every_token, &scratch, rounded_out);
    } else {
        mok_ref_rounded_free(rounded_out);
    }
    free_scratch(&scratch);
    free(every_token);
    mok_ref_runs_free(&runs);
    return status;
}

void mok_ref_rounded_free(struct mok_ref_rounded *rounded)
{
    mok_bf16 *rows[] = {rounded->row_y, rounded->row_dx, rounded->shared_y, rounded->shared_dx, rounded->y, rounded->dx};
    double *weights[] = {rounded->dw, rounded->dw_bound, rounded->dshared_w, rounded->dshared_w_bound};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        free(rows[i]);
    }
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        free(weights[i]);
    }
    mok_ref_real_weights_free(&rounded->grads);
    mok_ref_real_weights_free(&rounded->grads_bound);
    mok_ref_real_weights_free(&rounded->shared_grads);
    mok_ref_real_weights_free(&rounded->shared_grads_bound);
    memset(rounded, 0, sizeof *rounded);
}

mok_status mok_ref_answer_make(const struct mok_ref_problem *problem, struct mok_ref_answer *answer_out)
{
    struct mok_ref_real real;
    memset(answer_out, 0, sizeof *answer_out);
    mok_status status = mok_ref_real_make(problem, &real);
    if (status != MOK_OK) {
        return status;
    }
    status = mok_ref_oracle_run(&real, &answer_out->oracle);
    mok_ref_real_free(&real);
    if (status == MOK_OK) {
        status = mok_ref_rounded_run(problem, &answer_out->rounded);
    }
    if (status != MOK_OK) {
        mok_ref_answer_free(answer_out);
    }
    return status;
}

void mok_ref_answer_free(struct mok_ref_answer *answer)
{
    mok_ref_oracle_free(&answer->oracle);
    mok_ref_rounded_free(&answer->rounded);
}
