/*
 * Which bits are equal (docs/numerics.md), on the GPU: a few problems, each run in all ways of cli/case/case_equal.c: other rings, minibatches, kept rows,
 * numbers of ranks, paths, and again.
 *
 *   gpu_equal [--fused]         --fused: every way on the fused path, against the first run on the staged one
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case/case_equal.h"
#include "gpu_check.h"

enum { LIMIT_MS = 8000 };

static const struct mok_ref_case problems[] = {
    {.name = "equal-shared", .num_ranks = 3, .tokens = {200, 90, 143}, .num_experts = 10, .top_k = 4, .hidden = 264, .inter = 152, .shared_inter = 88,
     .shared_w = 1, .ids = MOK_IDS_SKEWED, .grad_dtype = MOK_DTYPE_FP32},
    {.name = "equal-bf16-add", .num_ranks = 2, .tokens = {311, 260}, .num_experts = 7, .top_k = 3, .hidden = 72, .inter = 40, .ids = MOK_IDS_HALF,
     .router = MOK_ROUTER_SIGNED, .grad_dtype = MOK_DTYPE_BF16, .grad_mode = MOK_GRAD_ADD},
    {.name = "equal-few-experts", .num_ranks = 2, .tokens = {400, 330}, .num_experts = 2, .top_k = 1, .hidden = 520, .inter = 264,
     .ids = MOK_IDS_DISTINCT, .grad_dtype = MOK_DTYPE_BF16},
};

/* The first run is always the staged one. */
static void try_problem(const struct mok_ref_case *problem, int32_t path)
{
    struct mok_ref_case staged = *problem;
    const struct mok_ref_case *recipe = &staged;
    staged.knobs.path = MOK_PATH_STAGED;
    struct mok_case_where where = {.backend = MOK_BACKEND_CUDA, .ranks = MOK_CASE_THREADS, .peer_timeout_ms = gpu_peer_limit_ms(), .local_timeout_ms = LIMIT_MS, .path = path};
    int num_ways = mok_case_way_count(&where);
    struct mok_case_result *results = calloc((size_t)num_ways, sizeof *results);
    mok_status status = mok_case_equal(recipe, &where, results);
    if (status != MOK_OK) {
        gpu_check(0, "%s: %s: %s", recipe->name, mok_status_name(status), results[0].message);
    }
    for (int i = 0; i < num_ways && status == MOK_OK; i++) {
        struct mok_case_way way = mok_case_way_get(recipe, &where, i);
        const struct mok_case_result *result = &results[i];
        if (mok_case_skipped(result)) {
            gpu_skip("%s, %s: %s", recipe->name, way.name, result->message);
        } else if (!gpu_check(mok_case_passed(result), "%s, %s: same bits", recipe->name, way.name)) {
            printf("    %s; %lld differences, first: %s\n", result->status == MOK_OK ? "ran" : result->message, (long long)result->num_differences,
                   result->difference);
            for (int c = 0; c < MOK_CHECK_COUNT; c++) {
                char text[512];
                mok_ref_report_describe(&result->report, c, text, sizeof text);
                if (result->report.worst[c].num_failed > 0) {
                    printf("    %s\n", text);
                }
            }
        }
    }
    free(results);
}

int main(int argc, char **argv)
{
    int32_t path = argc > 1 && strcmp(argv[1], "--fused") == 0 ? MOK_PATH_FUSED : MOK_PATH_STAGED;
    if (gpu_count() == 0) {
        gpu_skip("equal bits: no GPU");
        return gpu_finish();
    }
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        try_problem(&problems[i], path);
    }
    return gpu_finish();
}
