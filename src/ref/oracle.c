/*
 * Oracle 1: double throughout, no rounding point, plain formulas of docs/numerics.md. Checked against finite differences by its unit test.
 *
 * Routed experts and the shared expert are one thing here: a list of rows, each with its token, its place (route, or token) in the arrays
 * indexed by route, and its weight.
 */
#include "ref/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref/product.h"
#include "ref/real.h"
#include "ref/runs.h"

/* The rows of one expert. */
struct run {
    int64_t num_rows;
    const int64_t *token; /* [num_rows] */
    const int64_t *place; /* [num_rows] index into w and dw */
    const double *w;      /* NULL = 1 */
    double *dw;
    int64_t width;
    const double *gate, *up, *down;
    double *dgate, *dup, *ddown; /* added to */
};

/* Room for the rows of the longest run: [rows, H] and [rows, I]. */
struct scratch {
    double *x, *dy, *row;        /* [rows, H] */
    double *g, *u, *h, *dh, *wh; /* [rows, width] */
};

static double sigmoid(double z) { return 1.0 / (1.0 + exp(-z)); }

/* h and both derivatives at one (g, u). A comparison with NaN is false, so NaN stays. */
static void activate(const mok_activation *a, double g, double u, double *h, double *by_g, double *by_u)
{
    double limit = a->limit;
    double z = g > limit ? limit : g;
    double c = u > limit ? limit : u < -limit ? -limit : u;
    double s = sigmoid(a->alpha * z);
    *h = z * s * (c + a->up_offset);
    *by_g = g > limit ? 0.0 : s * (1.0 + a->alpha * z * (1.0 - s)) * (c + a->up_offset);
    *by_u = u > limit || u < -limit ? 0.0 : z * s;
}

static int is_near(double value, double limit) { return isfinite(limit) && fabs(fabs(value) - limit) <= mok_ref_bf16_ulp(limit); }

static void gather(const double *from, const int64_t *token, int64_t num_rows, int64_t hidden, double *to)
{
    for (int64_t r = 0; r < num_rows; r++) {
        memcpy(to + r * hidden, from + token[r] * hidden, (size_t)hidden * sizeof(double));
    }
}

static void clear(double *values, int64_t count) { memset(values, 0, (size_t)count * sizeof(double)); }

static double weight_of(const struct run *run, int64_t row) { return run->w == NULL ? 1.0 : run->w[run->place[row]]; }

/* Forward of one run, then all of its backward; y and dx of its tokens are added to. */
static void run_expert(const struct mok_ref_real *real, const struct run *run, struct scratch *s, struct mok_ref_oracle *out)
{
    const mok_activation *activation = &real->of->activation;
    int64_t n = run->num_rows, hidden = real->of->hidden, width = run->width;
    gather(real->x, run->token, n, hidden, s->x);
    gather(real->dy, run->token, n, hidden, s->dy);
    clear(s->g, n * width);
    clear(s->u, n * width);
    clear(s->dh, n * width);
    mok_ref_product_nt(n, width, hidden, s->x, run->gate, s->g);
    mok_ref_product_nt(n, width, hidden, s->x, run->up, s->u);
    mok_ref_product_nn(n, width, hidden, s->dy, run->down, s->dh);
    for (int64_t r = 0; r < n; r++) {
        double w = weight_of(run, r);
        double dw = 0.0;
        for (int64_t i = r * width; i < (r + 1) * width; i++) {
            double by_g, by_u;
            double g = s->g[i], u = s->u[i];
            activate(activation, g, u, &s->h[i], &by_g, &by_u);
            out->near_clamp[run->token[r]] |= (uint8_t)(is_near(g, activation->limit) || is_near(u, activation->limit));
            dw += s->dh[i] * s->h[i];
            s->wh[i] = w * s->h[i];
            s->g[i] = w * s->dh[i] * by_g; /* g and u have done their part: from here on dg and du */
            s->u[i] = w * s->dh[i] * by_u;
        }
        run->dw[run->place[r]] = dw;
    }
    clear(s->row, n * hidden);
    mok_ref_product_nt(n, hidden, width, s->h, run->down, s->row);
    for (int64_t r = 0; r < n; r++) {
        for (int64_t j = 0; j < hidden; j++) {
            out->y[run->token[r] * hidden + j] += weight_of(run, r) * s->row[r * hidden + j];
        }
    }
    clear(s->row, n * hidden);
    mok_ref_product_nn(n, hidden, width, s->g, run->gate, s->row);
    mok_ref_product_nn(n, hidden, width, s->u, run->up, s->row);
    for (int64_t r = 0; r < n; r++) {
        for (int64_t j = 0; j < hidden; j++) {
            out->dx[run->token[r] * hidden + j] += s->row[r * hidden + j];
        }
    }
    mok_ref_product_tn(width, hidden, n, s->g, s->x, run->dgate);
    mok_ref_product_tn(width, hidden, n, s->u, s->x, run->dup);
    mok_ref_product_tn(hidden, width, n, s->dy, s->wh, run->ddown);
}

static void copy_if(double *to, const double *from, int64_t count)
{
    if (from != NULL) {
        memcpy(to, from, (size_t)count * sizeof(double));
    }
}

static mok_status alloc_oracle(const struct mok_ref_problem *p, struct mok_ref_oracle *oracle)
{
    int failed = 0;
    oracle->y = mok_ref_zeroed(p->num_tokens * p->hidden, &failed);
    oracle->dx = mok_ref_zeroed(p->num_tokens * p->hidden, &failed);
    oracle->dw = mok_ref_zeroed(p->num_tokens * p->top_k, &failed);
    oracle->near_clamp = calloc((size_t)p->num_tokens + 1, 1);
    failed |= oracle->near_clamp == NULL;
    mok_ref_real_weights_alloc(&oracle->grads, p->num_experts, p->inter, p->hidden, &failed);
    if (p->shared_inter > 0) {
        oracle->dshared_w = mok_ref_zeroed(p->num_tokens, &failed);
        mok_ref_real_weights_alloc(&oracle->shared_grads, p->num_ranks, p->shared_inter, p->hidden, &failed);
    }
    return failed ? MOK_ERR_MEMORY : MOK_OK;
}

static mok_status alloc_scratch(int64_t rows, int64_t width, int64_t hidden, struct scratch *s)
{
    int failed = 0;
    s->x = mok_ref_zeroed(rows * hidden, &failed);
    s->dy = mok_ref_zeroed(rows * hidden, &failed);
    s->row = mok_ref_zeroed(rows * hidden, &failed);
    s->g = mok_ref_zeroed(rows * width, &failed);
    s->u = mok_ref_zeroed(rows * width, &failed);
    s->h = mok_ref_zeroed(rows * width, &failed);
    s->dh = mok_ref_zeroed(rows * width, &failed);
    s->wh = mok_ref_zeroed(rows * width, &failed);
    return failed ? MOK_ERR_MEMORY : MOK_OK;
}

static void free_scratch(struct scratch *s)
{
    double *all[] = {s->x, s->dy, s->row, s->g, s->u, s->h, s->dh, s->wh};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
}

static void run_routed(const struct mok_ref_real *real, const struct mok_ref_runs *runs, struct scratch *s, struct mok_ref_oracle *out)
{
    int64_t matrix = (int64_t)real->of->inter * real->of->hidden;
    for (int32_t e = 0; e < real->of->num_experts; e++) {
        int64_t at = e * matrix, first = runs->first[e];
        struct run run = {runs->first[e + 1] - first,
                          runs->token + first,
                          runs->route + first,
                          real->w,
                          out->dw,
                          real->of->inter,
                          real->routed.gate + at,
                          real->routed.up + at,
                          real->routed.down + at,
                          out->grads.gate + at,
                          out->grads.up + at,
                          out->grads.down + at};
        run_expert(real, &run, s, out);
    }
}

/* The shared expert sees every token; its gradient is one per rank, over the rank's own tokens. */
static void run_shared(const struct mok_ref_real *real, const int64_t *every_token, struct scratch *s, struct mok_ref_oracle *out)
{
    int64_t matrix = (int64_t)real->of->shared_inter * real->of->hidden;
    for (int32_t r = 0; r < real->of->num_ranks; r++) {
        int64_t first = mok_ref_first_token(real->of, r), at = r * matrix;
        struct run run = {real->of->tokens[r], every_token + first,         every_token + first,       real->shared_w,
                          out->dshared_w,      real->of->shared_inter,      real->shared.gate,         real->shared.up,
                          real->shared.down,   out->shared_grads.gate + at, out->shared_grads.up + at, out->shared_grads.down + at};
        run_expert(real, &run, s, out);
    }
}

static void start_grads(const struct mok_ref_real *real, struct mok_ref_oracle *out)
{
    int64_t routed = (int64_t)real->of->num_experts * real->of->inter * real->of->hidden;
    int64_t shared = (int64_t)real->of->num_ranks * real->of->shared_inter * real->of->hidden;
    copy_if(out->grads.gate, real->start.gate, routed);
    copy_if(out->grads.up, real->start.up, routed);
    copy_if(out->grads.down, real->start.down, routed);
    copy_if(out->shared_grads.gate, real->shared_start.gate, shared);
    copy_if(out->shared_grads.up, real->shared_start.up, shared);
    copy_if(out->shared_grads.down, real->shared_start.down, shared);
}

mok_status mok_ref_oracle_run(const struct mok_ref_real *real, struct mok_ref_oracle *oracle_out)
{
    const struct mok_ref_problem *p = real->of;
    struct mok_ref_runs runs = {0};
    struct scratch scratch = {0};
    memset(oracle_out, 0, sizeof *oracle_out);
    mok_status status = mok_ref_runs_make(p, &runs);
    int64_t *every_token = malloc(((size_t)p->num_tokens + 1) * sizeof(int64_t));
    status = status == MOK_OK && every_token == NULL ? MOK_ERR_MEMORY : status;
    status = status == MOK_OK ? alloc_oracle(p, oracle_out) : status;
    if (status == MOK_OK) {
        int64_t rows = p->shared_inter > 0 && p->num_tokens > runs.longest ? p->num_tokens : runs.longest;
        int64_t width = p->shared_inter > p->inter ? p->shared_inter : p->inter;
        status = alloc_scratch(rows, width, p->hidden, &scratch);
    }
    if (status == MOK_OK) {
        for (int64_t t = 0; t < p->num_tokens; t++) {
            every_token[t] = t;
        }
        start_grads(real, oracle_out);
        run_routed(real, &runs, &scratch, oracle_out);
        if (p->shared_inter > 0) {
            run_shared(real, every_token, &scratch, oracle_out);
        }
    } else {
        mok_ref_oracle_free(oracle_out);
    }
    free_scratch(&scratch);
    free(every_token);
    mok_ref_runs_free(&runs);
    return status;
}

void mok_ref_oracle_free(struct mok_ref_oracle *oracle)
{
    free(oracle->y);
    free(oracle->dx);
    free(oracle->dw);
    free(oracle->dshared_w);
    free(oracle->near_clamp);
    mok_ref_real_weights_free(&oracle->grads);
    mok_ref_real_weights_free(&oracle->shared_grads);
    memset(oracle, 0, sizeof *oracle);
}
