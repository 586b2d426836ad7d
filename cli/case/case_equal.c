/*
 * One problem, run in many ways, bits compared.
 */
#include "case/case_equal.h"

#include <string.h>

#include "base/status.h"
#include "case/case_list.h"

/* Knobs that are 0 are the case's own. */
static const struct mok_case_way ways[] = {
    {"again", 0, MOK_CASE_THREADS, {0}},
    {"external regions", 0, MOK_CASE_EXTERNAL, {0}},
    {"processes", 0, MOK_CASE_PROCESSES, {0}},
    {"1 rank", 1, MOK_CASE_THREADS, {0}},
    {"2 ranks", 2, MOK_CASE_THREADS, {0}},
    {"3 ranks", 3, MOK_CASE_THREADS, {0}},
    {"4 ranks", 4, MOK_CASE_THREADS, {0}},
    {"8 ranks", 8, MOK_CASE_THREADS, {0}},
    {"8 ranks, tiny ring", 8, MOK_CASE_THREADS, {.minibatch_rows = 128, .ring_minibatches = 1, .keep_rows = 128}},
    {"minibatch 128, ring of 1", 0, MOK_CASE_THREADS, {.minibatch_rows = 128, .ring_minibatches = 1}},
    {"minibatch 128, ring of 2", 0, MOK_CASE_THREADS, {.minibatch_rows = 128, .ring_minibatches = 2}},
    {"minibatch 128, ring of 3, look-ahead 2", 0, MOK_CASE_THREADS, {.minibatch_rows = 128, .ring_minibatches = 3, .look_ahead = 2}},
    {"minibatch 384, ring of 2", 0, MOK_CASE_THREADS, {.minibatch_rows = 384, .ring_minibatches = 2}},
    {"minibatch 128, ring of all", 0, MOK_CASE_THREADS, {.minibatch_rows = 128, .ring_minibatches = 1000}},
    {"one minibatch", 0, MOK_CASE_THREADS, {.minibatch_rows = 1 << 20}},
    {"2 + 1 workers", 0, MOK_CASE_THREADS, {.minibatch_rows = 128, .ring_minibatches = 2, .comm_workers = 2, .compute_workers = 1}},
    {"1 + 3 workers", 0, MOK_CASE_THREADS, {.minibatch_rows = 256, .ring_minibatches = 2, .comm_workers = 1, .compute_workers = 3}},
    {"3 + 2 workers", 0, MOK_CASE_THREADS, {.minibatch_rows = 128, .ring_minibatches = 1, .comm_workers = 3, .compute_workers = 2}},
    {"keep all", 0, MOK_CASE_THREADS, {.keep_rows = MOK_KEEP_ALL}},
    {"keep all, ring of 1", 0, MOK_CASE_THREADS, {.keep_rows = MOK_KEEP_ALL, .minibatch_rows = 128, .ring_minibatches = 1}},
    {"keep 384", 0, MOK_CASE_THREADS, {.keep_rows = 384, .minibatch_rows = 256, .ring_minibatches = 1}},
    {"keep 129", 0, MOK_CASE_THREADS, {.keep_rows = 129, .minibatch_rows = 128, .ring_minibatches = 2}},
    {"x in the saved object", 0, MOK_CASE_THREADS, {.saved_input = 1}},
    {"x in another saved object", 0, MOK_CASE_THREADS, {.saved_input = 2}},
    {"room for more tokens", 0, MOK_CASE_THREADS, {.max_tokens = 1500}},
    {"packed", 0, MOK_CASE_THREADS, {.weight_layout = MOK_LAYOUT_PACKED, .grad_layout = MOK_LAYOUT_PACKED}},
    {"interleaved", 0, MOK_CASE_THREADS, {.weight_layout = MOK_LAYOUT_INTERLEAVED, .grad_layout = MOK_LAYOUT_INTERLEAVED}},
    {"strided", 0, MOK_CASE_THREADS, {.weight_layout = MOK_LAYOUT_STRIDED, .grad_layout = MOK_LAYOUT_STRIDED, .minibatch_rows = 128}},
    {"staged", 0, MOK_CASE_THREADS, {.path = MOK_PATH_STAGED}},
    {"fused", 0, MOK_CASE_THREADS, {.path = MOK_PATH_FUSED}},
};

static int is_listed(const struct mok_case_way *way, const struct mok_case_where *where)
{
    return mok_case_has_ranks(where->backend, way->ranks) && mok_case_has_path(where->backend, way->knobs.path);
}

int mok_case_way_count(const struct mok_case_where *where)
{
    int count = 0;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        count += is_listed(&ways[i], where);
    }
    return count;
}

struct mok_case_way mok_case_way_get(const struct mok_ref_case *recipe, const struct mok_case_where *where, int idx)
{
    int at = 0;
    while (idx > 0 || !is_listed(&ways[at], where)) {
        idx -= is_listed(&ways[at], where);
        at++;
    }
    struct mok_case_way way = ways[at];
    way.num_ranks = way.num_ranks == 0 ? recipe->num_ranks : way.num_ranks;
    way.knobs.max_tokens = way.knobs.max_tokens == 0 ? recipe->knobs.max_tokens : way.knobs.max_tokens;
    return way;
}

void mok_case_split(int64_t num_tokens, int32_t num_ranks, int64_t *tokens)
{
    int64_t left = num_tokens, parts = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        parts += num_ranks >= 4 && r == 1 ? 0 : r + 2;
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        tokens[r] = r == num_ranks - 1 ? left : num_tokens * (num_ranks >= 4 && r == 1 ? 0 : r + 2) / parts;
        left -= tokens[r];
    }
}

void mok_case_spread(struct mok_ref_case *recipe, int32_t num_ranks)
{
    int64_t num_tokens = 0;
    if (recipe->num_ranks >= num_ranks) {
        return;
    }
    for (int32_t r = 0; r < recipe->num_ranks; r++) {
        num_tokens += recipe->tokens[r];
    }
    recipe->num_ranks = num_ranks;
    mok_case_split(num_tokens, num_ranks, recipe->tokens);
}

/* The problem of one way: the same tokens, on other ranks where the way says so. */
static mok_status spread(const struct mok_ref_problem *from, int32_t num_ranks, struct mok_ref_problem *problem_out)
{
    int64_t tokens[MOK_REF_MAX_RANKS];
    memcpy(tokens, from->tokens, sizeof tokens);
    if (num_ranks != from->num_ranks) {
        mok_case_split(from->num_tokens, num_ranks, tokens);
    }
    return mok_ref_spread(from, num_ranks, tokens, problem_out);
}

/* With other ranks rows stand in another order, so weight gradients have a bound only. */
static mok_status check_grads(const struct mok_ref_problem *problem, const struct mok_ref_outputs *outputs, struct mok_case_result *result)
{
    struct mok_ref_rounded rounded;
    MOK_TRY(mok_ref_rounded_run(problem, &rounded));
    mok_ref_compare_rounded(problem, &rounded, outputs, (struct mok_ref_scope){0, problem->num_ranks}, &result->report);
    mok_ref_rounded_free(&rounded);
    return MOK_OK;
}

static void compare_way(const struct mok_ref_problem *first_problem, const struct mok_ref_outputs *first, const struct mok_case_way *way,
                        const struct mok_ref_problem *problem, const struct mok_ref_outputs *outputs, struct mok_case_result *result)
{
    struct mok_case_bits bits = {0};
    mok_case_bits_tokens(problem, first, outputs, 0, problem->num_tokens, NULL, way->name, &bits);
    if (problem->num_ranks == first_problem->num_ranks) {
        mok_case_bits_grads(problem, first, outputs, (struct mok_ref_scope){0, problem->num_ranks}, NULL, way->name, &bits);
    } else {
        result->status = check_grads(problem, outputs, result);
    }
    if (result->num_differences == 0) {
        memcpy(result->difference, bits.difference, sizeof result->difference);
    }
    result->num_differences += bits.num_differences;
}

static void run_way(const struct mok_ref_problem *first_problem, const struct mok_ref_outputs *first, const struct mok_case_way *way,
                    const struct mok_case_where *where, struct mok_case_result *result)
{
    struct mok_ref_problem problem;
    struct mok_ref_outputs outputs;
    struct mok_case_where here = *where;
    memset(result, 0, sizeof *result);
    here.ranks = way->ranks;
    result->status = spread(first_problem, way->num_ranks, &problem);
    if (result->status != MOK_OK) {
        return;
    }
    mok_status status = mok_ref_outputs_alloc(&problem, &outputs);
    if (status == MOK_OK) {
        struct mok_ref_knobs knobs = way->knobs;
        knobs.path = where->path != MOK_PATH_AUTO ? where->path : knobs.path;
        (void)mok_case_run_problem(&problem, &knobs, &here, 0x7f, &outputs, result);
        if (result->status == MOK_OK) {
            compare_way(first_problem, first, way, &problem, &outputs, result);
        }
        mok_ref_outputs_free(&problem, &outputs);
    } else {
        result->status = status;
    }
    mok_ref_problem_free(&problem);
}

mok_status mok_case_equal(const struct mok_ref_case *recipe, const struct mok_case_where *where, struct mok_case_result *results_out)
{
    struct mok_ref_problem problem;
    struct mok_ref_outputs first;
    struct mok_case_result base;
    MOK_TRY(mok_ref_generate(recipe, 0, &problem));
    mok_status status = mok_ref_outputs_alloc(&problem, &first);
    if (status == MOK_OK) {
        status = mok_case_run_problem(&problem, &recipe->knobs, where, 0xff, &first, &base);
        for (int i = 0; i < mok_case_way_count(where); i++) {
            struct mok_case_way way = mok_case_way_get(recipe, where, i);
            results_out[i] = base; /* a first run that failed is what every way has to say */
            if (status == MOK_OK) {
                run_way(&problem, &first, &way, where, &results_out[i]);
            }
        }
        mok_ref_outputs_free(&problem, &first);
    }
    mok_ref_problem_free(&problem);
    return status;
}
