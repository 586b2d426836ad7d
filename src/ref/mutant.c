/*
 * Oracle 2 as a backend, right or with one fault.
 */
#include "ref/mutant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref/operand.h"
#include "ref/runs.h"
#include "ref/sum.h"

static const char *const mutant_names[MOK_MUTANT_COUNT] = {
    [MOK_MUTANT_NONE] = "none",
    [MOK_MUTANT_ROWS_SWAPPED] = "rows swapped",
    [MOK_MUTANT_DX_ROWS_SWAPPED] = "dx rows swapped",
    [MOK_MUTANT_WEIGHT_OFF] = "weight off by 1%",
    [MOK_MUTANT_WEIGHT_OFF_BACKWARD] = "weight off by 1% in backward",
    [MOK_MUTANT_ROUTE_DROPPED] = "route dropped",
    [MOK_MUTANT_DX_ROUTE_DROPPED] = "route dropped from dx",
    [MOK_MUTANT_GATE_UP_EXCHANGED] = "gate and up exchanged",
    [MOK_MUTANT_PADDING_COUNTED] = "padding row counted",
    [MOK_MUTANT_ROWS_SHIFTED] = "rows shifted by one",
    [MOK_MUTANT_DW_NEIGHBOUR] = "dw from a neighbour",
    [MOK_MUTANT_DG_OFF] = "one dg off by 2%",
    [MOK_MUTANT_WH_NEIGHBOUR] = "w*h with a neighbour's weight",
    [MOK_MUTANT_ROW_LOST] = "row lost",
};

const char *mok_ref_mutant_name(enum mok_ref_mutant mutant) { return mutant_names[mutant]; }

/* A routed route near the middle whose weight matters (at least 1/2K), and, where asked, whose next k is routed, too. -1: there is none. */
static int64_t find_route(const struct mok_ref_problem *p, int with_next)
{
    int64_t routes = p->num_tokens * p->top_k;
    for (int64_t i = 0; i < routes; i++) {
        int64_t route = (routes / 2 + i) % routes;
        int has_next = route % p->top_k < p->top_k - 1 && mok_ref_is_routed(p, route + 1);
        if (mok_ref_is_routed(p, route) && p->w[route] * 2.0f * (float)p->top_k >= 1.0f && (has_next || !with_next)) {
            return route;
        }
    }
    return -1;
}

static void swap_rows(mok_bf16 *rows, int64_t a, int64_t b, int64_t hidden)
{
    for (int64_t j = 0; j < hidden; j++) {
        mok_bf16 kept = rows[a * hidden + j];
        rows[a * hidden + j] = rows[b * hidden + j];
        rows[b * hidden + j] = kept;
    }
}

/* The routes of the busiest expert. 0: it has fewer than two. */
static int find_busy(const struct mok_ref_runs *runs, int32_t num_experts, const int64_t **route_out, int64_t *num_out)
{
    for (int32_t e = 0; e < num_experts; e++) {
        if (runs->first[e + 1] - runs->first[e] == runs->longest) {
            *route_out = runs->route + runs->first[e];
            *num_out = runs->longest;
        }
    }
    return runs->longest >= 2;
}

static mok_status move_rows(const struct mok_ref_problem *p, enum mok_ref_mutant mutant, struct mok_ref_outputs *out)
{
    struct mok_ref_runs runs;
    const int64_t *route = NULL;
    int64_t num = 0;
    mok_status status = mok_ref_runs_make(p, &runs);
    if (status != MOK_OK) {
        return status;
    }
    if (!find_busy(&runs, p->num_experts, &route, &num)) {
        status = MOK_ERR_ARGUMENT;
    } else if (mutant == MOK_MUTANT_ROWS_SHIFTED) {
        for (int64_t i = 0; i + 1 < num; i++) {
            swap_rows(out->y_slots, route[i], route[i + 1], p->hidden);
            swap_rows(out->dx_slots, route[i], route[i + 1], p->hidden);
        }
    } else {
        mok_bf16 *slots = mutant == MOK_MUTANT_ROWS_SWAPPED ? out->y_slots : out->dx_slots;
        swap_rows(slots, route[num / 2], route[num / 2 - 1], p->hidden);
    }
    mok_ref_runs_free(&runs);
    return status;
}

/* The last step of both passes, over the slots as they are. `forward` and `backward` are the problem as each sum sees it. */
static void sum_slots(const struct mok_ref_problem *forward, const struct mok_ref_problem *backward, struct mok_ref_outputs *out)
{
    for (int64_t t = 0; t < forward->num_tokens; t++) {
        mok_ref_sum_y(forward, out->y_slots, out->shared_y, t, out->y + t * forward->hidden);
        mok_ref_sum_dx(backward, out->dx_slots, out->shared_dx, t, out->dx + t * forward->hidden);
    }
}

static void store_grads(const struct mok_ref_real_weights *from, int64_t count, int32_t dtype, struct mok_ref_grads *to)
{
    const double *source[] = {from->gate, from->up, from->down};
    float *target[] = {to->gate, to->up, to->down};
    for (int m = 0; m < 3; m++) {
        for (int64_t i = 0; i < count; i++) {
            float value = (float)source[m][i];
            target[m][i] = dtype == MOK_DTYPE_BF16 ? mok_bf16_to_float(mok_bf16_from_float(value)) : value;
        }
    }
}

/* Everything but the last sums. */
static mok_status play_rows(const struct mok_ref_problem *p, const struct mok_ref_play *play, struct mok_ref_outputs *out)
{
    struct mok_ref_rounded rounded;
    size_t elements = (size_t)(p->num_tokens * p->hidden) * sizeof(mok_bf16);
    mok_status status = mok_ref_rounded_play(p, play, &rounded);
    if (status != MOK_OK) {
        return status;
    }
    memcpy(out->y_slots, rounded.row_y, elements * (size_t)p->top_k);
    memcpy(out->dx_slots, rounded.row_dx, elements * (size_t)p->top_k);
    for (int64_t i = 0; i < p->num_tokens * p->top_k; i++) {
        out->dw[i] = (float)rounded.dw[i];
    }
    store_grads(&rounded.grads, (int64_t)p->num_experts * p->inter * p->hidden, p->grad_dtype, &out->grads);
    if (p->shared_inter > 0) {
        memcpy(out->shared_y, rounded.shared_y, elements);
        memcpy(out->shared_dx, rounded.shared_dx, elements);
        for (int64_t t = 0; t < p->num_tokens; t++) {
            out->dshared_w[t] = (float)rounded.dshared_w[t];
        }
        store_grads(&rounded.shared_grads, (int64_t)p->num_ranks * p->shared_inter * p->hidden, p->grad_dtype, &out->shared_grads);
    }
    mok_ref_rounded_free(&rounded);
    return MOK_OK;
}

mok_status mok_ref_mutant_play(const struct mok_ref_problem *problem, const struct mok_ref_play *play, struct mok_ref_outputs *outputs_out)
{
    mok_status status = play_rows(problem, play, outputs_out);
    if (status == MOK_OK) {
        sum_slots(problem, problem, outputs_out);
    }
    return status;
}

/* Weight gradients of one expert as if one route more had gone to it; all else as it should be. */
static mok_status count_padding(const struct mok_ref_problem *p, struct mok_ref_outputs *out)
{
    int64_t stray = find_route(p, 0);
    struct mok_ref_problem crowded = *p;
    struct mok_ref_outputs other;
    size_t bytes = (size_t)(p->num_tokens * p->top_k) * sizeof(int32_t);
    int64_t matrix = (int64_t)p->inter * p->hidden;
    if (p->num_experts < 2) {
        return MOK_ERR_ARGUMENT;
    }
    int32_t expert = (p->ids[stray] + 1) % p->num_experts;
    crowded.ids = malloc(bytes);
    if (crowded.ids == NULL || mok_ref_outputs_alloc(p, &other) != MOK_OK) {
        free(crowded.ids);
        return MOK_ERR_MEMORY;
    }
    memcpy(crowded.ids, p->ids, bytes);
    crowded.ids[stray] = expert;
    mok_status status = play_rows(&crowded, &mok_ref_plain_play, &other);
    if (status == MOK_OK) {
        memcpy(out->grads.gate + expert * matrix, other.grads.gate + expert * matrix, (size_t)matrix * sizeof(float));
        memcpy(out->grads.up + expert * matrix, other.grads.up + expert * matrix, (size_t)matrix * sizeof(float));
        memcpy(out->grads.down + expert * matrix, other.grads.down + expert * matrix, (size_t)matrix * sizeof(float));
    }
    mok_ref_outputs_free(p, &other);
    free(crowded.ids);
    return status;
}

/* What spoils operands on their way, and where. */
struct spoiler {
    enum mok_ref_mutant mutant;
    int32_t expert;
    int has_spoilt;
};

/* The element of dg whose square is the largest share of its column's, so that it shows in the gradients made from that column; none that
 * has an allowance. */
static void spoil_dg(struct spoiler *spoiler, const struct mok_ref_rows *rows)
{
    double largest = 0.0;
    int64_t chosen = -1;
    for (int64_t i = 0; i < rows->width; i++) {
        double squares = 0.0;
        for (int64_t at = i; at < rows->num_rows * rows->width; at += rows->width) {
            squares += rows->dg[at] * rows->dg[at];
        }
        for (int64_t at = i; at < rows->num_rows * rows->width; at += rows->width) {
            if (rows->dg_allowance[at] == 0.0 && rows->dg[at] * rows->dg[at] > largest * squares) {
                largest = rows->dg[at] * rows->dg[at] / squares;
                chosen = at;
            }
        }
    }
    if (chosen >= 0) {
        rows->dg[chosen] *= 1.02;
        spoiler->has_spoilt = 1;
    }
}

/* The first row whose weight differs from the next row's by a quarter or more. */
static void spoil_wh(struct spoiler *spoiler, const struct mok_ref_rows *rows)
{
    int64_t row = 0;
    while (row + 1 < rows->num_rows &&
           fabsf(rows->w[rows->place[row + 1]] - rows->w[rows->place[row]]) < 0.25f * fabsf(rows->w[rows->place[row]])) {
        row++;
    }
    for (int64_t at = row * rows->width; row + 1 < rows->num_rows && at < (row + 1) * rows->width; at++) {
        rows->wh[at] = mok_ref_operand_round(rows->w[rows->place[row + 1]] * (float)rows->h[at]);
        spoiler->has_spoilt = 1;
    }
}

static void spoil(void *context, const struct mok_ref_rows *rows)
{
    struct spoiler *spoiler = context;
    if (rows->expert == spoiler->expert && spoiler->mutant == MOK_MUTANT_DG_OFF) {
        spoil_dg(spoiler, rows);
    } else if (rows->expert == spoiler->expert) {
        spoil_wh(spoiler, rows);
    }
}

/* dg: in the expert with the fewest rows, w * h: in that with the most. */
static mok_status choose_expert(const struct mok_ref_problem *p, struct spoiler *spoiler)
{
    struct mok_ref_runs runs;
    mok_status status = mok_ref_runs_make(p, &runs);
    int64_t chosen = spoiler->mutant == MOK_MUTANT_DG_OFF ? INT64_MAX : 0;
    for (int32_t e = 0; status == MOK_OK && e < p->num_experts; e++) {
        int64_t num = runs.first[e + 1] - runs.first[e];
        if (num > 0 && (spoiler->mutant == MOK_MUTANT_DG_OFF ? num < chosen : num > chosen)) {
            chosen = num;
            spoiler->expert = e;
        }
    }
    mok_ref_runs_free(&runs);
    return status;
}

/* Rows with spoilt operands; all else as it should be. */
static mok_status play_spoilt(const struct mok_ref_problem *p, enum mok_ref_mutant mutant, struct mok_ref_outputs *out)
{
    struct spoiler spoiler = {.mutant = mutant};
    struct mok_ref_play play = mok_ref_plain_play;
    play.operands = spoil;
    play.context = &spoiler;
    mok_status status = choose_expert(p, &spoiler);
    status = status == MOK_OK ? play_rows(p, &play, out) : status;
    return status == MOK_OK && !spoiler.has_spoilt ? MOK_ERR_ARGUMENT : status;
}

/* Copies of what a fault changes in the inputs. */
struct changed {
    float *w;
    int32_t *ids;
    mok_bf16 *gate, *up;
};

static mok_status change_inputs(const struct mok_ref_problem *p, int64_t route, struct changed *changed)
{
    size_t routes = (size_t)(p->num_tokens * p->top_k);
    int64_t matrix = (int64_t)p->inter * p->hidden;
    size_t bytes = (size_t)(p->num_experts * matrix) * sizeof(mok_bf16);
    int64_t at = p->ids[route] * matrix;
    changed->w = malloc(routes * sizeof(float));
    changed->ids = malloc(routes * sizeof(int32_t));
    changed->gate = malloc(bytes);
    changed->up = malloc(bytes);
    if (changed->w == NULL || changed->ids == NULL || changed->gate == NULL || changed->up == NULL) {
        return MOK_ERR_MEMORY;
    }
    memcpy(changed->w, p->w, routes * sizeof(float));
    changed->w[route] *= 1.01f;
    memcpy(changed->ids, p->ids, routes * sizeof(int32_t));
    changed->ids[route] = -1;
    memcpy(changed->gate, p->routed.gate, bytes);
    memcpy(changed->up, p->routed.up, bytes);
    memcpy(changed->gate + at, p->routed.up + at, (size_t)matrix * sizeof(mok_bf16));
    memcpy(changed->up + at, p->routed.gate + at, (size_t)matrix * sizeof(mok_bf16));
    return MOK_OK;
}

/* Puts the fault in: before the rows are computed, between rows and sums, or after them. */
static mok_status run_changed(const struct mok_ref_problem *p, enum mok_ref_mutant mutant, int64_t route, const struct changed *changed,
                              struct mok_ref_outputs *out)
{
    struct mok_ref_problem rows = *p, forward = *p, backward = *p;
    rows.w = mutant == MOK_MUTANT_WEIGHT_OFF_BACKWARD ? changed->w : p->w; /* y rows do not depend on w */
    if (mutant == MOK_MUTANT_GATE_UP_EXCHANGED) {
        rows.routed.gate = changed->gate;
        rows.routed.up = changed->up;
    }
    forward.w = mutant == MOK_MUTANT_WEIGHT_OFF ? changed->w : p->w;
    forward.ids = mutant == MOK_MUTANT_ROUTE_DROPPED ? changed->ids : p->ids;
    backward.ids = mutant == MOK_MUTANT_DX_ROUTE_DROPPED ? changed->ids : p->ids;
    mok_status status = mutant == MOK_MUTANT_DG_OFF || mutant == MOK_MUTANT_WH_NEIGHBOUR ? play_spoilt(p, mutant, out)
                                                                                          : play_rows(&rows, &mok_ref_plain_play, out);
    if (status == MOK_OK &&
        (mutant == MOK_MUTANT_ROWS_SWAPPED || mutant == MOK_MUTANT_DX_ROWS_SWAPPED || mutant == MOK_MUTANT_ROWS_SHIFTED)) {
        status = move_rows(p, mutant, out);
    }
    if (status == MOK_OK && mutant == MOK_MUTANT_PADDING_COUNTED) {
        status = count_padding(p, out);
    }
    if (status != MOK_OK) {
        return status;
    }
    sum_slots(&forward, &backward, out);
    if (mutant == MOK_MUTANT_DW_NEIGHBOUR) {
        out->dw[route] = out->dw[route + 1];
    }
    if (mutant == MOK_MUTANT_ROW_LOST) {
        int64_t at = p->num_tokens / 2 * p->hidden;
        memcpy(out->y + at, out->y + at - p->hidden, (size_t)p->hidden * sizeof(mok_bf16));
    }
    return MOK_OK;
}

mok_status mok_ref_mutant_run(const struct mok_ref_problem *problem, enum mok_ref_mutant mutant, struct mok_ref_outputs *outputs_out)
{
    struct changed changed = {0};
    int64_t route = find_route(problem, mutant == MOK_MUTANT_DW_NEIGHBOUR);
    if (route < 0 || problem->num_tokens < 2) {
        return MOK_ERR_ARGUMENT;
    }
    mok_status status = change_inputs(problem, route, &changed);
    if (status == MOK_OK) {
        status = run_changed(problem, mutant, route, &changed, outputs_out);
    }
    free(changed.w);
    free(changed.ids);
    free(changed.gate);
    free(changed.up);
    return status;
}
