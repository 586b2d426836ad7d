/*
 * From a case to its data. Every token has streams of its own, numbered over all ranks, so the data do not depend on how the tokens are
 * spread. Weights of routes that are not routed are NaN: nothing may read them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref/cases.h"
#include "ref/random.h"

static mok_bf16 bf16(double value) { return mok_bf16_from_float((float)value); }

/* K different experts: the first K of a shuffle. */
static void draw_distinct(struct mok_ref_random *random, int32_t num_experts, int32_t top_k, int32_t *pool, int32_t *ids)
{
    for (int32_t e = 0; e < num_experts; e++) {
        pool[e] = e;
    }
    for (int32_t k = 0; k < top_k; k++) {
        int64_t pick = k + mok_ref_random_below(random, num_experts - k);
        ids[k] = pool[pick];
        pool[pick] = pool[k];
    }
}

/* Scores with a fixed preference per expert; the K largest, in descending order. Experts that the layer never learned to use stay empty. */
static void draw_skewed(struct mok_ref_random *random, int32_t num_experts, int32_t top_k, double *score, int32_t *ids)
{
    for (int32_t e = 0; e < num_experts; e++) {
        score[e] = mok_ref_random_normal(random) + 3.0 / (1.0 + (double)((e * 7 + 3) % num_experts)) - (e % 11 == 5 ? 30.0 : 0.0);
    }
    for (int32_t k = 0; k < top_k; k++) {
        ids[k] = 0;
        for (int32_t e = 1; e < num_experts; e++) {
            ids[k] = score[e] > score[ids[k]] ? e : ids[k];
        }
        score[ids[k]] = -1e9 - (double)ids[k];
    }
}

/* Ids that no expert has; far ones too, for a table index that is not checked. */
static int32_t draw_bad(struct mok_ref_random *random, int32_t num_experts)
{
    const int32_t bad[] = {num_experts, 0x7fffffff, -2, (int32_t)0x80000000u, num_experts + 1, 0x7f7f7f7f};
    return bad[mok_ref_random_below(random, (int64_t)(sizeof bad / sizeof bad[0]))];
}

/* The expert of the token-th route when expert e gets counts[e] of them; tokens are dealt out by a stride that is coprime to their
 * number. */
static int32_t deal_counts(int64_t token, int64_t num_tokens)
{
    static const int32_t counts[] = {1, 8, 16, 32, 63, 64, 65};
    int64_t place = token * 101 % num_tokens;
    for (int32_t e = 0; e < 7; e++) {
        if (place < counts[e]) {
            return e;
        }
        place -= counts[e];
    }
    return -1;
}

static void draw_ids(const struct mok_ref_case *c, uint32_t round, int64_t token, int64_t num_tokens, double *score, int32_t *pool,
                     int32_t *ids)
{
    static const int32_t signs[4][2] = {{-1, 2}, {0, -1}, {-1, -1}, {3, 1}};
    int64_t stream = c->ids == MOK_IDS_SHARED_ROW && token > 10 ? 10 : token;
    struct mok_ref_random random = mok_ref_random_open(c->name, round, MOK_FOR_IDS, (uint64_t)stream);
    if (c->ids == MOK_IDS_SKEWED) {
        draw_skewed(&random, c->num_experts, c->top_k, score, ids);
    } else if (c->top_k <= c->num_experts) {
        draw_distinct(&random, c->num_experts, c->top_k, pool, ids);
    }
    for (int32_t k = 0; k < c->top_k; k++) {
        switch (c->ids) {
        case MOK_IDS_DISTINCT:
        case MOK_IDS_SKEWED:
        case MOK_IDS_SHARED_ROW: break;
        case MOK_IDS_ANY: ids[k] = (int32_t)mok_ref_random_below(&random, c->num_experts); break;
        case MOK_IDS_ONE: ids[k] = c->ids_arg; break;
        case MOK_IDS_FIRST_TWO: ids[k] = (int32_t)mok_ref_random_below(&random, 2); break;
        case MOK_IDS_LAST: ids[k] = c->num_experts - 1; break;
        case MOK_IDS_HALF: ids[k] = mok_ref_random_below(&random, 2) == 0 ? -1 : ids[k]; break;
        case MOK_IDS_NONE: ids[k] = -1; break;
        case MOK_IDS_BAD: ids[k] = mok_ref_random_below(&random, 3) == 0 ? draw_bad(&random, c->num_experts) : ids[k]; break;
        case MOK_IDS_SIGNS: ids[k] = signs[(token + round) % 4][k % 2]; break;
        case MOK_IDS_COUNTS: ids[k] = deal_counts((token + round) % num_tokens, num_tokens); break;
        case MOK_IDS_REPEATED: ids[k] = ids[0]; break;
        case MOK_IDS_ORDERED: ids[k] = k % c->num_experts; break;
        }
    }
}

static void draw_router(const struct mok_ref_case *c, uint32_t round, int64_t token, const int32_t *ids, float *w)
{
    struct mok_ref_random random = mok_ref_random_open(c->name, round, MOK_FOR_ROUTER, (uint64_t)token);
    float sum = 0.0f;
    for (int32_t k = 0; k < c->top_k; k++) {
        double normal = mok_ref_random_normal(&random);
        switch (c->router) {
        case MOK_ROUTER_NORMALIZED: w[k] = (float)exp(normal); break;
        case MOK_ROUTER_SIGNED: w[k] = (token + k) % 16 == 7 ? 0.0f : (float)normal; break;
        case MOK_ROUTER_ZERO: w[k] = 0.0f; break;
        case MOK_ROUTER_GIVEN: w[k] = c->weights[k % 4]; break;
        }
        sum += w[k];
    }
    for (int32_t k = 0; k < c->top_k; k++) {
        w[k] = c->router == MOK_ROUTER_NORMALIZED ? w[k] / sum : w[k];
        w[k] = ids[k] >= 0 && ids[k] < c->num_experts ? w[k] : NAN;
    }
}

static int is_nan_token(int32_t every, int64_t token) { return every > 0 && token % every == every / 2; }

/* One row of x or dy. NaN tokens have it in one column, or in all, in turn. */
static void draw_row(const struct mok_ref_case *c, uint32_t round, enum mok_ref_purpose purpose, int32_t nan_every, int64_t token,
                     mok_bf16 *row)
{
    struct mok_ref_random random = mok_ref_random_open(c->name, round, purpose, (uint64_t)token);
    int is_probe = c->values == MOK_VALUES_PROBE && purpose == MOK_FOR_X;
    for (int32_t j = 0; j < c->hidden; j++) {
        double value = mok_ref_random_normal(&random);
        row[j] = bf16(is_probe ? (j == 0 ? 1.0 : 0.0) : value);
        if (is_nan_token(nan_every, token) && (token / nan_every % 2 == 1 || j == token % c->hidden)) {
            row[j] = 0x7fc0;
        }
    }
}

static void draw_matrix(struct mok_ref_random *random, double scale, int64_t count, mok_bf16 *matrix)
{
    for (int64_t i = 0; i < count; i++) {
        matrix[i] = bf16(scale * mok_ref_random_normal(random));
    }
}

/* Only column 0 of gate and up and column 0 of down are not 0: h has one element, and y is that element times `output`. */
static void probe_ffn(const struct mok_ref_case *c, int64_t width, float output, struct mok_ref_weights ffn)
{
    memset(ffn.gate, 0, (size_t)(width * c->hidden) * sizeof(mok_bf16));
    memset(ffn.up, 0, (size_t)(width * c->hidden) * sizeof(mok_bf16));
    memset(ffn.down, 0, (size_t)(width * c->hidden) * sizeof(mok_bf16));
    ffn.gate[0] = bf16(c->probe_gate);
    ffn.up[0] = bf16(c->probe_up);
    for (int64_t j = 0; j < c->hidden; j++) {
        ffn.down[j * width] = bf16(j % 2 == 0 ? output : 2.0 * output);
    }
}

static void draw_ffn(const struct mok_ref_case *c, enum mok_ref_purpose purpose, int64_t idx, int64_t width, struct mok_ref_weights all)
{
    struct mok_ref_random random = mok_ref_random_open(c->name, 0, purpose, (uint64_t)idx);
    int64_t count = width * c->hidden;
    struct mok_ref_weights ffn = {all.gate + idx * count, all.up + idx * count, all.down + idx * count};
    double spread = c->values == MOK_VALUES_WIDE ? 0.8 * c->activation.limit : 1.0;
    if (c->values == MOK_VALUES_PROBE) {
        probe_ffn(c, width, purpose == MOK_FOR_SHARED_WEIGHTS ? c->outputs[7] : c->outputs[idx % 8], ffn);
        return;
    }
    draw_matrix(&random, spread / sqrt(c->hidden), count, ffn.gate);
    draw_matrix(&random, spread / sqrt(c->hidden), count, ffn.up);
    draw_matrix(&random, 1.5 / sqrt((double)width), count, ffn.down);
}

/* Values that fp32 and bf16 both hold; the first is 3, the value of docs/cases.md A2. */
static void draw_start(const struct mok_ref_case *c, uint64_t idx, int64_t count, float *start)
{
    struct mok_ref_random random = mok_ref_random_open(c->name, 0, MOK_FOR_START, idx);
    for (int64_t i = 0; i < count; i++) {
        start[i] = i == 0 ? 3.0f : mok_bf16_to_float(bf16(mok_ref_random_normal(&random)));
    }
}

static void draw_starts(const struct mok_ref_case *c, const struct mok_ref_problem *p)
{
    int64_t routed = (int64_t)p->num_experts * p->inter * p->hidden;
    int64_t shared = (int64_t)p->num_ranks * p->shared_inter * p->hidden;
    draw_start(c, 0, routed, p->start.gate);
    draw_start(c, 1, routed, p->start.up);
    draw_start(c, 2, routed, p->start.down);
    if (shared > 0) {
        draw_start(c, 3, shared, p->shared_start.gate);
        draw_start(c, 4, shared, p->shared_start.up);
        draw_start(c, 5, shared, p->shared_start.down);
    }
}

static void draw_tokens(const struct mok_ref_case *c, uint32_t round, struct mok_ref_problem *p, double *score, int32_t *pool)
{
    for (int64_t t = 0; t < p->num_tokens; t++) {
        int32_t *ids = p->ids + t * p->top_k;
        draw_ids(c, round, t, p->num_tokens, score, pool, ids);
        if (c->nan_unrouted && (is_nan_token(c->nan_x, t) || is_nan_token(c->nan_dy, t))) {
            for (int32_t k = 0; k < p->top_k; k++) {
                ids[k] = -1;
            }
        }
        draw_router(c, round, t, ids, p->w + t * p->top_k);
        draw_row(c, round, MOK_FOR_X, c->nan_x, t, p->x + t * p->hidden);
        draw_row(c, round, MOK_FOR_DY, c->nan_dy, t, p->dy + t * p->hidden);
        if (p->shared_w != NULL) {
            struct mok_ref_random random = mok_ref_random_open(c->name, round, MOK_FOR_SHARED_W, (uint64_t)t);
            p->shared_w[t] = (float)(1.0 / (1.0 + exp(-mok_ref_random_normal(&random))));
        }
    }
}

mok_status mok_ref_generate(const struct mok_ref_case *recipe, uint32_t round, struct mok_ref_problem *problem_out)
{
    struct mok_ref_problem p = {0};
    p.num_ranks = recipe->num_ranks;
    p.num_experts = recipe->num_experts;
    p.top_k = recipe->top_k;
    p.hidden = recipe->hidden;
    p.inter = recipe->inter;
    p.shared_inter = recipe->shared_inter;
    p.activation = recipe->activation;
    if (p.activation.limit == 0.0f) {
        p.activation = (mok_activation){INFINITY, 1.0f, 0.0f};
    }
    p.grad_dtype = recipe->grad_dtype;
    p.grad_mode = recipe->grad_mode;
    for (int32_t r = 0; r < recipe->num_ranks; r++) {
        p.tokens[r] = recipe->tokens[r];
    }
    double *score = malloc((size_t)recipe->num_experts * sizeof(double));
    int32_t *pool = malloc((size_t)recipe->num_experts * sizeof(int32_t));
    mok_status status =
        score == NULL || pool == NULL ? MOK_ERR_MEMORY : mok_ref_problem_alloc(&p, (struct mok_ref_optional){recipe->shared_w});
    if (status == MOK_OK) {
        for (int32_t e = 0; e < p.num_experts; e++) {
            draw_ffn(recipe, MOK_FOR_WEIGHTS, e, p.inter, p.routed);
        }
        if (p.shared_inter > 0) {
            draw_ffn(recipe, MOK_FOR_SHARED_WEIGHTS, 0, p.shared_inter, p.shared);
        }
        draw_tokens(recipe, round, &p, score, pool);
        if (p.grad_mode == MOK_GRAD_ADD) {
            draw_starts(recipe, &p);
        }
        *problem_out = p;
    }
    free(score);
    free(pool);
    return status;
}

static void copy_weights(struct mok_ref_weights *to, const struct mok_ref_weights *from, int64_t count)
{
    memcpy(to->gate, from->gate, (size_t)count * sizeof(mok_bf16));
    memcpy(to->up, from->up, (size_t)count * sizeof(mok_bf16));
    memcpy(to->down, from->down, (size_t)count * sizeof(mok_bf16));
}

static void copy_grads(struct mok_ref_grads *to, const struct mok_ref_grads *from, int64_t count)
{
    memcpy(to->gate, from->gate, (size_t)count * sizeof(float));
    memcpy(to->up, from->up, (size_t)count * sizeof(float));
    memcpy(to->down, from->down, (size_t)count * sizeof(float));
}

/* The start of every rank of the copy is that of rank r mod R of the original. */
static void copy_shared_starts(struct mok_ref_problem *to, const struct mok_ref_problem *from)
{
    int64_t count = (int64_t)from->shared_inter * from->hidden;
    for (int32_t r = 0; r < to->num_ranks; r++) {
        int64_t at = r * count, source = r % from->num_ranks * count;
        struct mok_ref_grads one = {to->shared_start.gate + at, to->shared_start.up + at, to->shared_start.down + at};
        struct mok_ref_grads original = {from->shared_start.gate + source, from->shared_start.up + source,
                                         from->shared_start.down + source};
        copy_grads(&one, &original, count);
    }
}

mok_status mok_ref_spread(const struct mok_ref_problem *from, int32_t num_ranks, const int64_t *tokens, struct mok_ref_problem *problem_out)
{
    struct mok_ref_problem p = *from;
    int64_t routed = (int64_t)from->num_experts * from->inter * from->hidden, shared = (int64_t)from->shared_inter * from->hidden;
    p.num_ranks = num_ranks;
    memset(p.tokens, 0, sizeof p.tokens);
    memcpy(p.tokens, tokens, (size_t)num_ranks * sizeof(int64_t));
    mok_status status = mok_ref_problem_alloc(&p, (struct mok_ref_optional){from->shared_w != NULL});
    if (status != MOK_OK) {
        return status;
    }
    size_t num = (size_t)from->num_tokens;
    memcpy(p.x, from->x, num * (size_t)p.hidden * sizeof(mok_bf16));
    memcpy(p.dy, from->dy, num * (size_t)p.hidden * sizeof(mok_bf16));
    memcpy(p.ids, from->ids, num * (size_t)p.top_k * sizeof(int32_t));
    memcpy(p.w, from->w, num * (size_t)p.top_k * sizeof(float));
    copy_weights(&p.routed, &from->routed, routed);
    if (from->shared_w != NULL) {
        memcpy(p.shared_w, from->shared_w, num * sizeof(float));
    }
    if (shared > 0) {
        copy_weights(&p.shared, &from->shared, shared);
    }
    if (p.grad_mode == MOK_GRAD_ADD) {
        copy_grads(&p.start, &from->start, routed);
        if (shared > 0) {
            copy_shared_starts(&p, from);
        }
    }
    *problem_out = p;
    return MOK_OK;
}
