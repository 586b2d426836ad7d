/*
 * The whole case table on the GPU, ranks as threads that share the GPUs that there are, private workspace poisoned.
 *
 *   gpu_cases [--slow] [--no-poison] [--timeout MS] [--fused] [--external] [--in-step] [--spread N] [--again N] [--one-rank] [--workers N] [--alone] [NAME]
 *
 * NAME: only cases whose name contains it; MS: both limits of every group; --fused: all cases on the fused path, with the bits that the staged path
 * gives; --external: on regions that this program owns, whose slots are checked, too; --in-step: ranks also meet on the host, as memcheck needs it
 * (run.sh); --spread: cases with fewer ranks have N, at most 8; --again: each case that passed is run on N more groups, with the same bits and without
 * the oracles, to find what happens seldom; --one-rank: all tokens are one rank's; --workers: so many CTAs move rows, and multiply, which gives each of
 * a few many tiles; --alone: the fused path without the staged one's bits beside it
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/object.h"
#include "case/case_bits.h"
#include "case/case_equal.h"
#include "case/case_list.h"
#include "case/case_run.h"
#include "cuda/ops/ops_cuda.h"
#include "gpu_check.h"

static mok_status poison(mok_group *group, int byte) { return mok_cuda_poison(group->inner, byte); }

static void print_failure(const struct mok_case_result *result)
{
    if (result->status != MOK_OK) {
        printf("    rank %d: %s: %s\n", result->status_rank, mok_status_name(result->status), result->message);
    }
    if (result->num_differences > 0) {
        printf("    %lld differences, the first: %s\n", (long long)result->num_differences, result->difference);
    }
    for (int i = 0; i < MOK_CHECK_COUNT; i++) {
        char text[512];
        if (result->report.worst[i].num_failed > 0) {
            mok_ref_report_describe(&result->report, i, text, sizeof text);
            printf("    %s\n", text);
        }
    }
}

enum { LIMIT_MS = 8000 /* of waits: a case that hangs fails before the program's own limit is over */, AGAIN_STEPS = 3 };

/* The case on num_groups groups one after another, a few steps each: every step has the bits of the first. */
static void run_again(const struct mok_ref_case *recipe, const struct mok_case_where *where, int num_groups)
{
    struct mok_ref_problem problem;
    struct mok_ref_outputs outputs[AGAIN_STEPS];
    struct mok_case_result result = {.status = MOK_OK};
    struct mok_case_bits bits = {0};
    mok_status status = mok_ref_generate(recipe, 0, &problem);
    memset(outputs, 0, sizeof outputs);
    for (int s = 0; s < AGAIN_STEPS && status == MOK_OK; s++) {
        status = mok_ref_outputs_alloc(&problem, &outputs[s]);
    }
    for (int g = 0; g < num_groups && status == MOK_OK && result.num_differences + bits.num_differences == 0; g++) {
        struct mok_case_step steps[AGAIN_STEPS];
        for (int s = 0; s < AGAIN_STEPS; s++) { /* the first step of the first group stays */
            steps[s] = (struct mok_case_step){&problem, &outputs[g > 0 && s == 0 ? 1 : s], s % 2 == 0 ? 0xff : 0x7f};
        }
        mok_case_run_steps(steps, AGAIN_STEPS, &recipe->knobs, where, &result);
        status = result.status;
        for (int s = 1; s < AGAIN_STEPS && status == MOK_OK; s++) {
            struct mok_ref_scope scope = mok_case_scope(&problem, where);
            mok_case_bits_tokens(&problem, &outputs[0], &outputs[s], 0, problem.num_tokens, NULL, "again", &bits);
            mok_case_bits_grads(&problem, &outputs[0], &outputs[s], scope, NULL, "again", &bits);
        }
    }
    gpu_check(status == MOK_OK && result.num_differences + bits.num_differences == 0, "%-24s %d more groups, the same bits; %.2f s", recipe->name,
              num_groups, result.backend_s);
    if (status != MOK_OK) {
        printf("    rank %d: %s: %s\n", result.status_rank, mok_status_name(status), result.message);
    } else if (result.num_differences + bits.num_differences > 0) {
        printf("    %s %s\n", result.difference, bits.difference);
    }
    for (int s = 0; s < AGAIN_STEPS; s++) {
        mok_ref_outputs_free(&problem, &outputs[s]);
    }
    mok_ref_problem_free(&problem);
}

/* The case's first step on either path, with the case's own ring: the same bits. */
static void compare_with_staged(const struct mok_ref_case *recipe, const struct mok_case_where *where)
{
    struct mok_ref_problem problem;
    struct mok_ref_outputs outputs[2];
    struct mok_case_result result = {.status = MOK_OK};
    struct mok_case_bits bits = {0};
    mok_status status = mok_ref_generate(recipe, 0, &problem);
    memset(outputs, 0, sizeof outputs);
    for (int p = 0; p < 2 && status == MOK_OK; p++) {
        struct mok_ref_knobs knobs = recipe->knobs;
        knobs.path = p == 0 ? MOK_PATH_STAGED : MOK_PATH_FUSED;
        status = mok_ref_outputs_alloc(&problem, &outputs[p]);
        status = status == MOK_OK ? mok_case_run_problem(&problem, &knobs, where, 0xff, &outputs[p], &result) : status;
        bits.num_differences += result.num_differences;
    }
    if (status == MOK_OK) {
        mok_case_bits_tokens(&problem, &outputs[0], &outputs[1], 0, problem.num_tokens, NULL, "staged and fused", &bits);
        mok_case_bits_grads(&problem, &outputs[0], &outputs[1], mok_case_scope(&problem, where), NULL, "staged and fused", &bits);
    }
    gpu_check(status == MOK_OK && bits.num_differences == 0, "%-24s staged and fused: the same bits", recipe->name);
    if (status != MOK_OK || bits.num_differences > 0) {
        printf("    %s %s %s\n", result.message, result.difference, bits.difference);
    }
    for (int p = 0; p < 2; p++) {
        mok_ref_outputs_free(&problem, &outputs[p]);
    }
    mok_ref_problem_free(&problem);
}

static void run_case(const struct mok_ref_case *recipe, const struct mok_case_where *where, int num_again, int alone)
{
    struct mok_case_result result;
    mok_case_run(recipe, where, &result);
    if (mok_case_skipped(&result)) {
        gpu_skip("%s: %s", recipe->name, result.message);
        return;
    }
    const struct mok_ref_worst *worst = result.report.worst;
    if (!gpu_check(mok_case_passed(&result), "%-24s R %d E %d K %d H %d I %d Is %d: y %.2f dx %.2f dw %.2f dW %.2f %.2f %.2f; %.2f s, oracles %.2f s",
                   recipe->name, recipe->num_ranks, recipe->num_experts, recipe->top_k, recipe->hidden, recipe->inter, recipe->shared_inter,
                   worst[MOK_CHECK_Y].ratio, worst[MOK_CHECK_DX].ratio, worst[MOK_CHECK_DW].ratio, worst[MOK_CHECK_DGATE].ratio,
                   worst[MOK_CHECK_DUP].ratio, worst[MOK_CHECK_DDOWN].ratio, result.backend_s, result.oracle_s)) {
        print_failure(&result);
        return;
    }
    if (recipe->knobs.path == MOK_PATH_FUSED && !alone) {
        compare_with_staged(recipe, where);
    }
    if (num_again > 0) {
        run_again(recipe, where, num_again);
    }
}

/* All tokens of the case are one rank's. */
static void join_ranks(struct mok_ref_case *recipe)
{
    for (int r = 1; r < recipe->num_ranks; r++) {
        recipe->tokens[0] += recipe->tokens[r];
        recipe->tokens[r] = 0;
    }
    recipe->num_ranks = 1;
}

int main(int argc, char **argv)
{
    struct mok_case_where where = {
        .backend = MOK_BACKEND_CUDA, .ranks = MOK_CASE_THREADS, .peer_timeout_ms = gpu_peer_limit_ms(), .local_timeout_ms = LIMIT_MS, .poison = poison};
    const char *name = NULL;
    int with_slow = 0, num_again = 0, one_rank = 0, workers = 0, num_ranks = 0, alone = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--slow") == 0) {
            with_slow = 1;
        } else if (strcmp(argv[i], "--no-poison") == 0) {
            where.poison = NULL;
        } else if (strcmp(argv[i], "--fused") == 0) {
            where.path = MOK_PATH_FUSED;
        } else if (strcmp(argv[i], "--external") == 0) {
            where.ranks = MOK_CASE_EXTERNAL;
        } else if (strcmp(argv[i], "--in-step") == 0) {
            where.in_step = 1;
        } else if (strcmp(argv[i], "--timeout") == 0 && i + 1 < argc) {
            where.peer_timeout_ms = where.local_timeout_ms = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--spread") == 0 && i + 1 < argc) {
            num_ranks = atoi(argv[++i]);
            num_ranks = num_ranks > MOK_REF_CASE_RANKS ? MOK_REF_CASE_RANKS : num_ranks;
        } else if (strcmp(argv[i], "--again") == 0 && i + 1 < argc) {
            num_again = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--one-rank") == 0) {
            one_rank = 1;
        } else if (strcmp(argv[i], "--alone") == 0) {
            alone = 1;
        } else if (strcmp(argv[i], "--workers") == 0 && i + 1 < argc) {
            workers = atoi(argv[++i]);
        } else {
            name = argv[i];
        }
    }
    if (gpu_count() == 0) {
        gpu_skip("case table: no GPU");
        return gpu_finish();
    }
    for (int c = 0; c < mok_ref_case_count(); c++) {
        struct mok_ref_case recipe = *mok_ref_case_get(c);
        mok_case_spread(&recipe, num_ranks);
        if (where.path != MOK_PATH_AUTO || recipe.knobs.path == MOK_PATH_AUTO) {
            recipe.knobs.path = where.path != MOK_PATH_AUTO ? where.path : MOK_PATH_STAGED;
        }
        if (one_rank) {
            join_ranks(&recipe);
        }
        if (workers > 0) {
            recipe.knobs.comm_workers = recipe.knobs.compute_workers = workers;
        }
        int is_wanted = (name == NULL || strstr(recipe.name, name) != NULL) && (with_slow || !recipe.slow);
        if (is_wanted && mok_case_is_listed(&recipe, &where)) {
            run_case(&recipe, &where, num_again, alone);
        }
    }
    return gpu_finish();
}
