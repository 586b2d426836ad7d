/*
 * Oracle 2: the rounding points of docs/numerics.md, one by one, with products summed in double. Differs from a correct backend only where
 * an fp32 sum falls on the other side of a rounding boundary.
 *
 * Bounds. dw: 2^-7 * sqrt(sum (dh*h)^2). A weight gradient, sum over n rows of a_r * b_r: 2^-7 * sqrt(sum (a*b)^2) + (n + 2) * 2^-24 * sum
 * |a*b|, so each gradient takes three products: of the operands, of their squares, of their magnitudes. In add mode the existing value is
 * one more term of the sum of magnitudes. To both come the allowances of operand.h, times the magnitude of the other factor; what the fp32
 * sums behind g, u and dh may be off takes one product of squares for each.
 */
#include "ref/rounded.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref/operand.h"
#include "ref/product.h"
#include "ref/real.h"
#include "ref/runs.h"
#include "ref/sum.h"

/* The rows of one expert, and where their results go. */
struct run {
    int32_t expert; /* -1 = shared */
    int64_t num_rows;
    const int64_t *token; /* [num_rows] */
    const int64_t *place; /* [num_rows] index into w, dw, row_y, row_dx */
    const float *w;       /* NULL = 1 */
    int64_t width;
    const mok_bf16 *gate, *up, *down;
    mok_bf16 *row_y, *row_dx;
    double *dw, *dw_bound;
    struct mok_ref_real_weights grad, bound, allowance; /* of this expert; grad holds the start */
};

struct scratch {
    double *x, *dy, *row;                               /* [rows, H] */
    double *g, *u, *h, *dh, *wh;                        /* [rows, width] dg takes the place of g once it is made, du that of u */
    double *g_terms, *u_terms, *dh_terms;               /* [rows, width] sums of the squares of what g, u and dh are sums of */
    double *dg_allowance, *du_allowance, *wh_allowance; /* [rows, width] */
    double *a, *b;                                      /* [rows, max(H, width)] squares and magnitudes */
    double *squares;                                    /* [width, H] */
    double *gate, *up, *down;                           /* [width, H] weights of the expert at hand, widened */
    const struct mok_ref_play *play;
};

const struct mok_ref_play mok_ref_plain_play = {mok_ref_product_nt, mok_ref_product_nn, mok_ref_product_tn, NULL, NULL};

static void clear(double *values, int64_t count) { memset(values, 0, (size_t)count * sizeof(double)); }

static void take_magnitudes(const double *from, int64_t count, double *to)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = fabs(from[i]);
    }
}

static void take_squares(const double *from, int64_t count, double *to)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = from[i] * from[i];
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

/* From the sums g, u and dh of every row and the squares of their terms: h, w*h, dg, du, their allowances, dw and its bound. */
static void run_elements(const struct mok_ref_problem *problem, const struct run *run, struct scratch *s)
{
    const mok_activation *act = &problem->activation;
    for (int64_t r = 0; r < run->num_rows; r++) {
        float w = run->w == NULL ? 1.0f : run->w[run->place[r]];
        double dw = 0.0, squares = 0.0, allowed = 0.0;
        for (int64_t i = r * run->width; i < (r + 1) * run->width; i++) {
            struct mok_ref_inexact g = mok_ref_operand_sum(problem->hidden, s->g[i], s->g_terms[i]);
            struct mok_ref_inexact u = mok_ref_operand_sum(problem->hidden, s->u[i], s->u_terms[i]);
            struct mok_ref_inexact dh = mok_ref_operand_sum(problem->hidden, s->dh[i], s->dh_terms[i]);
            struct mok_ref_operand made, allowance;
            float term = (float)dh.value;
            mok_ref_operand_make(act, mok_ref_operand_round(g.value), mok_ref_operand_round(u.value), term, w, &made);
            mok_ref_operand_allow(act, g, u, dh, w, &made, &allowance);
            s->h[i] = made.h;
            s->wh[i] = made.wh;
            s->g[i] = made.dg;
            s->u[i] = made.du;
            s->dg_allowance[i] = allowance.dg;
            s->du_allowance[i] = allowance.du;
            s->wh_allowance[i] = allowance.wh;
            dw += (double)term * made.h;
            squares += (double)term * made.h * (double)term * made.h;
            allowed += fabs((double)term) * allowance.h;
        }
        run->dw[run->place[r]] = dw;
        run->dw_bound[run->place[r]] = ldexp(sqrt(squares), -7) + allowed;
    }
}

/* grad[m, n] += a[rows, m]^T b[rows, n]; bound[m, n] as at the head of this file. */
static void add_gradient(int64_t rows, int64_t m, int64_t n, const double *a, const double *b, struct scratch *s, double *grad,
                         double *bound)
{
    for (int64_t i = 0; i < m * n; i++) {
        bound[i] = fabs(grad[i]);
    }
    s->play->product_tn(m, n, rows, a, b, grad);
    take_magnitudes(a, rows * m, s->a);
    take_magnitudes(b, rows * n, s->b);
    mok_ref_product_tn(m, n, rows, s->a, s->b, bound);
    take_squares(a, rows * m, s->a);
    take_squares(b, rows * n, s->b);
    clear(s->squares, m * n);
    mok_ref_product_tn(m, n, rows, s->a, s->b, s->squares);
    for (int64_t i = 0; i < m * n; i++) {
        bound[i] = ldexp(sqrt(s->squares[i]), -7) + (double)(rows + 2) * ldexp(bound[i], -24);
    }
}

/* total of row r, element i: += allowance[r, i] * |other[r, j]| for all j; it stands at i * i_step + j * j_step. Most allowances are 0. */
static void add_allowance(const struct run *run, int64_t hidden, const double *allowance, const double *other, int64_t i_step,
                          int64_t j_step, double *total)
{
    for (int64_t at = 0; at < run->num_rows * run->width; at++) {
        const double *row = other + at / run->width * hidden;
        double *to = total + at % run->width * i_step;
        for (int64_t j = 0; allowance[at] != 0.0 && j < hidden; j++) {
            to[j * j_step] += allowance[at] * fabs(row[j]);
        }
    }
}

/* g, u, dh [rows, width], not rounded yet, and the sums of the squares of their terms. */
static void run_sums(const struct run *run, int64_t hidden, struct scratch *s)
{
    int64_t n = run->num_rows, width = run->width;
    double *all[] = {s->g, s->u, s->dh, s->g_terms, s->u_terms, s->dh_terms};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        clear(all[i], n * width);
    }
    s->play->product_nt(n, width, hidden, s->x, s->gate, s->g);
    s->play->product_nt(n, width, hidden, s->x, s->up, s->u);
    s->play->product_nn(n, width, hidden, s->dy, s->down, s->dh);
    take_squares(s->x, n * hidden, s->a);
    take_squares(s->gate, width * hidden, s->squares);
    mok_ref_product_nt(n, width, hidden, s->a, s->squares, s->g_terms);
    take_squares(s->up, width * hidden, s->squares);
    mok_ref_product_nt(n, width, hidden, s->a, s->squares, s->u_terms);
    take_squares(s->dy, n * hidden, s->a);
    take_squares(s->down, width * hidden, s->squares);
    mok_ref_product_nn(n, width, hidden, s->a, s->squares, s->dh_terms);
}

static void show_operands(const struct run *run, struct scratch *s)
{
    struct mok_ref_rows rows = {.expert = run->expert,
                                .num_rows = run->num_rows,
                                .width = run->width,
                                .place = run->place,
                                .w = run->w,
                                .h = s->h,
                                .wh = s->wh,
                                .dg = s->g,
                                .du = s->u,
                                .wh_allowance = s->wh_allowance,
                                .dg_allowance = s->dg_allowance,
                                .du_allowance = s->du_allowance};
    if (s->play->operands != NULL) {
        s->play->operands(s->play->context, &rows);
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
    run_sums(run, hidden, s);
    run_elements(problem, run, s);
    show_operands(run, s);
    clear(s->row, n * hidden);
    s->play->product_nt(n, hidden, width, s->h, s->down, s->row);
    scatter(s->row, run->place, n, hidden, run->row_y);
    clear(s->row, n * hidden);
    s->play->product_nn(n, hidden, width, s->g, s->gate, s->row);
    s->play->product_nn(n, hidden, width, s->u, s->up, s->row);
    scatter(s->row, run->place, n, hidden, run->row_dx);
    add_gradient(n, width, hidden, s->g, s->x, s, run->grad.gate, run->bound.gate);
    add_gradient(n, width, hidden, s->u, s->x, s, run->grad.up, run->bound.up);
    add_gradient(n, hidden, width, s->dy, s->wh, s, run->grad.down, run->bound.down);
    add_allowance(run, hidden, s->dg_allowance, s->x, hidden, 1, run->allowance.gate);
    add_allowance(run, hidden, s->du_allowance, s->x, hidden, 1, run->allowance.up);
    add_allowance(run, hidden, s->wh_allowance, s->dy, 1, width, run->allowance.down);
}

static struct mok_ref_real_weights at_matrix(struct mok_ref_real_weights all, int64_t idx)
{
    return (struct mok_ref_real_weights){all.gate + idx, all.up + idx, all.down + idx};
}

static void run_routed(const struct mok_ref_problem *p, const struct mok_ref_runs *runs, struct scratch *s, struct mok_ref_rounded *out)
{
    for (int32_t e = 0; e < p->num_experts; e++) {
        int64_t at = (int64_t)e * p->inter * p->hidden, first = runs->first[e];
        struct run run = {e,
                          runs->first[e + 1] - first,
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
                          at_matrix(out->grads_bound, at),
                          at_matrix(out->grads_allowance, at)};
        run_expert(p, &run, s);
    }
}

static void run_shared(const struct mok_ref_problem *p, const int64_t *every_token, struct scratch *s, struct mok_ref_rounded *out)
{
    for (int32_t r = 0; r < p->num_ranks; r++) {
        int64_t at = (int64_t)r * p->shared_inter * p->hidden, first = mok_ref_first_token(p, r);
        struct run run = {-1,
                          p->tokens[r],
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
                          at_matrix(out->shared_grads_bound, at),
                          at_matrix(out->shared_grads_allowance, at)};
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
    mok_ref_real_weights_alloc(&out->grads_allowance, p->num_experts, p->inter, p->hidden, &failed);
    if (p->shared_inter > 0) {
        out->dshared_w = mok_ref_zeroed(p->num_tokens, &failed);
        out->dshared_w_bound = mok_ref_zeroed(p->num_tokens, &failed);
        mok_ref_real_weights_alloc(&out->shared_grads, p->num_ranks, p->shared_inter, p->hidden, &failed);
        mok_ref_real_weights_alloc(&out->shared_grads_bound, p->num_ranks, p->shared_inter, p->hidden, &failed);
        mok_ref_real_weights_alloc(&out->shared_grads_allowance, p->num_ranks, p->shared_inter, p->hidden, &failed);
    }
    return failed ? MOK_ERR_MEMORY : MOK_OK;
}

static mok_status alloc_scratch(int64_t rows, int64_t width, int64_t hidden, struct scratch *s)
{
    int failed = 0;
    int64_t wider = width > hidden ? width : hidden;
    double **by_hidden[] = {&s->x, &s->dy, &s->row};
    double **by_width[] = {&s->g,       &s->u,        &s->h,            &s->dh,           &s->wh,          &s->g_terms,
                           &s->u_terms, &s->dh_terms, &s->dg_allowance, &s->du_allowance, &s->wh_allowance};
    double **matrices[] = {&s->squares, &s->gate, &s->up, &s->down};
    for (int i = 0; i < 3; i++) {
        *by_hidden[i] = mok_ref_zeroed(rows * hidden, &failed);
    }
    for (int i = 0; i < 11; i++) {
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
    double *all[] = {s->x,       s->dy,       s->row,          s->g,            s->u,            s->h, s->dh, s->wh,      s->g_terms,
                     s->u_terms, s->dh_terms, s->dg_allowance, s->du_allowance, s->wh_allowance, s->a, s->b,  s->squares, s->gate,
                     s->up,      s->down};
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

mok_status mok_ref_rounded_play(const struct mok_ref_problem *problem, const struct mok_ref_play *play,
                                struct mok_ref_rounded *rounded_out)
{
    struct mok_ref_runs runs = {0};
    struct scratch scratch = {.play = play};
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

mok_status mok_ref_rounded_run(const struct mok_ref_problem *problem, struct mok_ref_rounded *rounded_out)
{
    return mok_ref_rounded_play(problem, &mok_ref_plain_play, rounded_out);
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
    mok_ref_real_weights_free(&rounded->grads_allowance);
    mok_ref_real_weights_free(&rounded->shared_grads);
    mok_ref_real_weights_free(&rounded->shared_grads_bound);
    mok_ref_real_weights_free(&rounded->shared_grads_allowance);
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
