/*
 * The whole case table on a backend.
 *
 *   test_cases [--ranks threads|external|processes] [--spread N] [--backend cpu|cuda] [--slow] [NAME]
 *
 * N: cases with fewer ranks run on N of them. NAME: only cases whose name or `covers` contains it. Prints one line a case; exit code 1 when one failed or none ran, 77 when
 * there is no GPU to run them on.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case/case_equal.h"
#include "case/case_list.h"
#include "case/case_run.h"
#include "cpu_hooks.h"

struct choice {
    struct mok_case_where where;
    const char *filter;
    int32_t num_ranks; /* at least */
    int with_slow;
};

static int is_word(int argc, char **argv, int i, const char *option, const char *word)
{
    return strcmp(argv[i], option) == 0 && i + 1 < argc && strcmp(argv[i + 1], word) == 0;
}

/* 0: an argument is not understood. */
static int parse(int argc, char **argv, struct choice *choice)
{
    *choice = (struct choice){.where = {.backend = MOK_BACKEND_CPU, .ranks = MOK_CASE_THREADS, .poison = poison_workspace}};
    for (int i = 1; i < argc; i++) {
        if (is_word(argc, argv, i, "--ranks", "threads")) {
            choice->where.ranks = MOK_CASE_THREADS;
        } else if (is_word(argc, argv, i, "--ranks", "external")) {
            choice->where.ranks = MOK_CASE_EXTERNAL;
        } else if (is_word(argc, argv, i, "--ranks", "processes")) {
            choice->where.ranks = MOK_CASE_PROCESSES;
        } else if (is_word(argc, argv, i, "--backend", "cpu")) {
            choice->where.backend = MOK_BACKEND_CPU;
        } else if (is_word(argc, argv, i, "--backend", "cuda")) {
            choice->where.backend = MOK_BACKEND_CUDA;
            choice->where.poison = NULL;
        } else if (strcmp(argv[i], "--spread") == 0 && i + 1 < argc && atoi(argv[i + 1]) <= MOK_REF_CASE_RANKS) {
            choice->num_ranks = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--slow") == 0) {
            choice->with_slow = 1;
            continue;
        } else if (argv[i][0] != '-' && choice->filter == NULL) {
            choice->filter = argv[i];
            continue;
        } else {
            fprintf(stderr, "what is '%s'?\n", argv[i]);
            return 0;
        }
        i++;
    }
    return 1;
}

static void print_failure(const struct mok_case_result *result)
{
    if (result->status != MOK_OK) {
        printf("    rank %d: %s (%s)\n", result->status_rank, result->message, mok_status_name(result->status));
    }
    if (result->num_differences > 0) {
        printf("    %lld differences, the first: %s\n", (long long)result->num_differences, result->difference);
    }
    for (int i = 0; i < MOK_CHECK_COUNT; i++) {
        if (result->report.worst[i].num_failed > 0) {
            char text[512];
            mok_ref_report_describe(&result->report, i, text, sizeof text);
            printf("    %s\n", text);
        }
    }
}

int main(int argc, char **argv)
{
    struct choice choice;
    int num_passed = 0, num_failed = 0, num_skipped = 0;
    if (!parse(argc, argv, &choice)) {
        return 2;
    }
    for (int c = 0; c < mok_ref_case_count(); c++) {
        struct mok_ref_case recipe = *mok_ref_case_get(c);
        struct mok_case_result result;
        mok_case_spread(&recipe, choice.num_ranks);
        int is_wanted =
            choice.filter == NULL || strstr(recipe.name, choice.filter) != NULL || strstr(recipe.covers, choice.filter) != NULL;
        if (!is_wanted || (recipe.slow && !choice.with_slow) || !mok_case_is_listed(&recipe, &choice.where)) {
            continue;
        }
        mok_case_run(&recipe, &choice.where, &result);
        int is_skipped = mok_case_skipped(&result), has_passed = mok_case_passed(&result);
        num_passed += has_passed;
        num_skipped += is_skipped;
        num_failed += !has_passed && !is_skipped;
        printf("%-6s %-24s %-8s R %d E %d K %d H %d I %d Is %d: y %.3f dx %.3f dw %.3f dW %.3f of bound, %lld exact sums; %.2f s, oracles "
               "%.2f s\n",
               has_passed   ? "ok"
               : is_skipped ? "skip"
                            : "FAILED",
               recipe.name, recipe.covers, recipe.num_ranks, recipe.num_experts, recipe.top_k, recipe.hidden, recipe.inter,
               recipe.shared_inter, result.report.worst[MOK_CHECK_Y].ratio, result.report.worst[MOK_CHECK_DX].ratio,
               result.report.worst[MOK_CHECK_DW].ratio,
               fmax(result.report.worst[MOK_CHECK_DGATE].ratio, result.report.worst[MOK_CHECK_DDOWN].ratio),
               (long long)result.report.worst[MOK_CHECK_Y_SUM].num_checked, result.backend_s, result.oracle_s);
        if (!has_passed) {
            print_failure(&result);
        }
        fflush(stdout);
    }
    printf("%d passed, %d failed, %d skipped\n", num_passed, num_failed, num_skipped);
    if (num_failed > 0 || num_passed + num_skipped == 0) {
        return 1;
    }
    /* There may be no GPU; there is always a CPU, and a suite that ran nothing on it has failed. */
    return num_passed > 0 ? 0 : choice.where.backend == MOK_BACKEND_CUDA ? 77 : 1;
}
