/*
 * Tables and JSON of `mok run`. In: what the run found out. Nothing is computed here but sums for display.
 */
#include "run/run_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "json_file.h"

/* A pass's part of a rank. */
static const struct mok_stage_times *times_of(const struct mok_run_rank *rank, int is_backward)
{
    return is_backward ? &rank->backward : &rank->forward;
}

static int kind_occurs(const struct mok_run_report *report, int is_backward, int kind)
{
    for (int32_t rank = 0; rank < report->input->problem.num_ranks; rank++) {
        if (times_of(&report->ranks[rank], is_backward)->num_events[kind] > 0) {
            return 1;
        }
    }
    return 0;
}

/* ---- for people --------------------------------------------------------------------------------------------------------- */

static void print_ranks(const struct mok_run_report *report)
{
    const struct mok_ref_problem *problem = &report->input->problem;
    printf("\n%4s %8s %16s %10s %10s %13s   %s\n", "rank", "tokens", "experts", "rows", "padded", "without rows", "busiest expert");
    for (int32_t idx = 0; idx < problem->num_ranks; idx++) {
        const struct mok_run_rank *rank = &report->ranks[idx];
        char experts[32] = "-";
        if (rank->num_local > 0) {
            snprintf(experts, sizeof experts, "%" PRId32 "..%" PRId32, rank->first_expert, rank->first_expert + rank->num_local - 1);
        }
        printf("%4" PRId32 " %8" PRId64 " %16s %10" PRId64 " %10" PRId64 " %13" PRId32, idx, rank->num_tokens, experts, rank->num_rows,
               rank->padded_rows, rank->num_without);
        if (rank->busiest >= 0) {
            double mean = (double)problem->num_tokens * problem->top_k / problem->num_experts;
            printf("   %" PRId32 " with %" PRId64 " rows, %.1f times the mean", rank->busiest, rank->busiest_rows,
                   mean > 0 ? (double)rank->busiest_rows / mean : 0.0);
        }
        putchar('\n');
    }
}

static void print_line(const struct mok_run_report *report, int is_backward, int kind, const char *name)
{
    printf("  %-26s", name);
    for (int32_t rank = 0; rank < report->input->problem.num_ranks; rank++) {
        const struct mok_stage_times *times = times_of(&report->ranks[rank], is_backward);
        printf(" %10.3f", kind < 0 ? times->wall_ms : times->total_ms[kind]);
    }
    putchar('\n');
}

static void print_stages(const struct mok_run_report *report)
{
    printf("\nmilliseconds; a stage is the sum over all workers of a rank\n");
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        printf("%-28s", is_backward ? "backward" : "forward, with its schedule");
        for (int32_t rank = 0; rank < report->input->problem.num_ranks; rank++) {
            printf("   rank %3" PRId32, rank);
        }
        putchar('\n');
        print_line(report, is_backward, -1, "wall clock");
        for (int kind = 0; kind < MOK_STAGE_KINDS; kind++) {
            if (kind_occurs(report, is_backward, kind)) {
                print_line(report, is_backward, kind, mok_event_name(kind));
            }
        }
    }
    int64_t num_dropped = 0;
    for (int32_t rank = 0; rank < report->input->problem.num_ranks; rank++) {
        num_dropped += report->ranks[rank].forward.num_dropped + report->ranks[rank].backward.num_dropped;
    }
    if (num_dropped > 0) {
        printf("  (%" PRId64 " events found no room: the sums above are too small)\n", num_dropped);
    }
}

static void print_checks(const struct mok_run_report *report)
{
    const struct mok_run_checks *checks = report->checks;
    printf("\n%-34s %9s %7s %9s %12s   %s\n", "check", "checked", "failed", "left out", "error/bound", "worst");
    for (int idx = 0; idx < checks->num; idx++) {
        const struct mok_run_check *check = &checks->checks[idx];
        printf("%-34s %9" PRId64 " %7" PRId64 " %9" PRId64 " %12.4g   %s\n", check->name, check->num_checked, check->num_failed,
               check->num_left_out, check->ratio, check->where);
    }
    const struct mok_run_row_error *error = &checks->output_error;
    if (error->token >= 0) {
        printf("\nworst row error: 2^%.2f of the row's norm (bound 2^%.0f) and %.2f bf16 ulp (bound %.0f) at token %" PRId64
               " of rank %" PRId32 ", against %s\n",
               log2(error->l2), log2(MOK_RUN_ROW_L2), error->ulp, MOK_RUN_ROW_ULP, error->token, error->rank,
               report->input->stored.output != NULL ? "the stored output" : "the oracle");
    }
    enum mok_run_verdict verdict = mok_run_checks_verdict(checks);
    printf("result: %s\n", verdict == MOK_RUN_MISMATCH ? "MISMATCH" : mok_run_verdict_word(verdict));
}

void mok_run_report_print(const struct mok_run_report *report)
{
    const struct mok_hf_config *config = &report->input->config;
    const struct mok_ref_problem *problem = &report->input->problem;
    printf("layer   %s of %s (%s)\n", report->input->layer, report->weights, mok_hf_family_name(config->family));
    printf("shape   %" PRId32 " experts, top %" PRId32 ", hidden %" PRId32 ", intermediate %" PRId32 ", shared %" PRId32 "\n",
           config->num_experts, config->top_k, config->hidden, config->inter, config->shared_inter);
    printf("input   %" PRId64 " rows of %s, dy %s\n", problem->num_tokens, report->rows,
           report->input->stored.has_dy ? "from the file" : "random");
    printf("group   %" PRId32 " rank%s, peer %s, backend %s\n", problem->num_ranks, problem->num_ranks == 1 ? "" : "s", report->peer, report->backend);
    print_ranks(report);
    print_stages(report);
    print_checks(report);
}

/* ---- for programs ------------------------------------------------------------------------------------------------------- */

static cJSON *stages_json(const struct mok_stage_times *times)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "wall_ms", times->wall_ms);
    cJSON *stages = cJSON_AddArrayToObject(json, "stages");
    for (int kind = 0; kind < MOK_STAGE_KINDS; kind++) {
        if (times->num_events[kind] == 0) {
            continue;
        }
        cJSON *stage = cJSON_CreateObject();
        cJSON_AddStringToObject(stage, "name", mok_event_name(kind));
        cJSON_AddBoolToObject(stage, "is_wait", kind >= mok_event_first_wait());
        cJSON_AddNumberToObject(stage, "total_ms", times->total_ms[kind]);
        cJSON_AddNumberToObject(stage, "num_events", (double)times->num_events[kind]);
        cJSON_AddItemToArray(stages, stage);
    }
    cJSON_AddNumberToObject(json, "num_dropped", (double)times->num_dropped);
    return json;
}

static cJSON *rank_json(const struct mok_run_rank *rank, int32_t idx)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "rank", idx);
    cJSON_AddNumberToObject(json, "tokens", (double)rank->num_tokens);
    cJSON_AddNumberToObject(json, "first_expert", rank->first_expert);
    cJSON_AddNumberToObject(json, "experts", rank->num_local);
    cJSON_AddNumberToObject(json, "rows", (double)rank->num_rows);
    cJSON_AddNumberToObject(json, "padded_rows", (double)rank->padded_rows);
    cJSON_AddNumberToObject(json, "experts_without_rows", rank->num_without);
    cJSON_AddNumberToObject(json, "busiest_expert", rank->busiest);
    cJSON_AddNumberToObject(json, "busiest_rows", (double)rank->busiest_rows);
    cJSON_AddNumberToObject(json, "bad_ids", (double)rank->bad_ids);
    cJSON_AddItemToObject(json, "forward", stages_json(&rank->forward));
    cJSON_AddItemToObject(json, "backward", stages_json(&rank->backward));
    return json;
}

static cJSON *check_json(const struct mok_run_check *check)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "name", check->name);
    cJSON_AddNumberToObject(json, "checked", (double)check->num_checked);
    cJSON_AddNumberToObject(json, "failed", (double)check->num_failed);
    cJSON_AddNumberToObject(json, "left_out", (double)check->num_left_out);
    if (isfinite(check->ratio)) {
        cJSON_AddNumberToObject(json, "error_over_bound", check->ratio);
    } else {
        cJSON_AddNullToObject(json, "error_over_bound"); /* infinite: JSON has no word for it */
    }
    cJSON_AddStringToObject(json, "worst", check->where);
    return json;
}

static cJSON *layer_json(const struct mok_run_report *report)
{
    const struct mok_hf_config *config = &report->input->config;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "weights", report->weights);
    cJSON_AddStringToObject(json, "name", report->input->layer);
    cJSON_AddStringToObject(json, "family", mok_hf_family_name(config->family));
    cJSON_AddNumberToObject(json, "experts", config->num_experts);
    cJSON_AddNumberToObject(json, "top_k", config->top_k);
    cJSON_AddNumberToObject(json, "hidden", config->hidden);
    cJSON_AddNumberToObject(json, "intermediate", config->inter);
    cJSON_AddNumberToObject(json, "shared_intermediate", config->shared_inter);
    return json;
}

mok_status mok_run_report_write(const struct mok_run_report *report, const char *path)
{
    const struct mok_run_checks *checks = report->checks;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "command", "run");
    cJSON_AddStringToObject(root, "result", mok_run_verdict_word(mok_run_checks_verdict(checks)));
    cJSON_AddItemToObject(root, "layer", layer_json(report));
    cJSON_AddStringToObject(root, "input", report->rows);
    cJSON_AddNumberToObject(root, "tokens", (double)report->input->problem.num_tokens);
    cJSON_AddBoolToObject(root, "dy_from_file", report->input->stored.has_dy);
    cJSON_AddStringToObject(root, "peer", report->peer);
    cJSON_AddStringToObject(root, "backend", report->backend);
    cJSON_AddNumberToObject(root, "num_ranks", report->input->problem.num_ranks);
    cJSON *ranks = cJSON_AddArrayToObject(root, "ranks");
    for (int32_t rank = 0; rank < report->input->problem.num_ranks; rank++) {
        cJSON_AddItemToArray(ranks, rank_json(&report->ranks[rank], rank));
    }
    cJSON *list = cJSON_AddArrayToObject(root, "checks");
    for (int idx = 0; idx < checks->num; idx++) {
        cJSON_AddItemToArray(list, check_json(&checks->checks[idx]));
    }
    if (checks->output_error.token >= 0) {
        cJSON *error = cJSON_AddObjectToObject(root, "worst_row_error");
        cJSON_AddStringToObject(error, "against", report->input->stored.output != NULL ? "stored output" : "oracle");
        cJSON_AddNumberToObject(error, "token", (double)checks->output_error.token);
        cJSON_AddNumberToObject(error, "rank", checks->output_error.rank);
        cJSON_AddNumberToObject(error, "norm_ratio", checks->output_error.l2);
        cJSON_AddNumberToObject(error, "norm_ratio_bound", MOK_RUN_ROW_L2);
        cJSON_AddNumberToObject(error, "ulp", checks->output_error.ulp);
        cJSON_AddNumberToObject(error, "ulp_bound", MOK_RUN_ROW_ULP);
    }
    cJSON_AddNumberToObject(root, "oracle_ms", checks->oracle_ms);
    return mok_json_write(root, path);
}
