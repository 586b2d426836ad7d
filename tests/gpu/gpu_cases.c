/*
 * The whole case table on the GPU, ranks as threads that share the GPUs that there are, private workspace poisoned.
 *
 *   gpu_cases [--slow] [--no-poison] [--timeout MS] [--fused] [NAME]
 *
 * NAME: only cases whose name contains it; MS: both limits of every group; --fused: all cases on the fused path
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/object.h"
#include "case/case_list.h"
#include "case/case_run.h"
#include "cuda/rank_memory.h"
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

static void run_case(const struct mok_ref_case *recipe, const struct mok_case_where *where)
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
    }
}

int main(int argc, char **argv)
{
    struct mok_case_where where = {.backend = MOK_BACKEND_CUDA, .ranks = MOK_CASE_THREADS, .poison = poison};
    const char *name = NULL;
    int with_slow = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--slow") == 0) {
            with_slow = 1;
        } else if (strcmp(argv[i], "--no-poison") == 0) {
            where.poison = NULL;
        } else if (strcmp(argv[i], "--fused") == 0) {
            where.path = MOK_PATH_FUSED;
        } else if (strcmp(argv[i], "--timeout") == 0 && i + 1 < argc) {
            where.peer_timeout_ms = where.local_timeout_ms = atoi(argv[++i]);
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
        recipe.knobs.path = where.path != MOK_PATH_AUTO ? where.path : recipe.knobs.path;
        int is_wanted = (name == NULL || strstr(recipe.name, name) != NULL) && (with_slow || !recipe.slow);
        if (is_wanted && mok_case_is_listed(&recipe, &where)) {
            run_case(&recipe, &where);
        }
    }
    return gpu_finish();
}
