/*
 * mok verify: the case table of the project, through the case runner, on the backend and ranks that were asked for.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case/case_list.h"
#include "case/case_run.h"
#include "commands.h"
#include "group_config.h"
#include "json_file.h"
#include "output_file.h"
#include "stage_times.h"
#include "team.h"

struct verify_settings {
    int is_list;
    int is_quick;
    int64_t num_ranks;
    const char *json;
};

static const struct mok_cli_option verify_options[] = {
    {"list", MOK_CLI_FLAG, offsetof(struct verify_settings, is_list), NULL, "Print the cases and what they cover, and run nothing.", 0,
     0},
    {"quick", MOK_CLI_FLAG, offsetof(struct verify_settings, is_quick), NULL, "Leave out the cases that take long.", 0, 0},
    {"ranks", MOK_CLI_COUNT, offsetof(struct verify_settings, num_ranks), "N", "Only the cases of N ranks.", 1, 8},
    {"json", MOK_CLI_TEXT, offsetof(struct verify_settings, json), "FILE",
     "Write the verdicts as JSON; - is standard output, without the lines.", 0, 0},
};

static const struct verify_settings verify_initial = {.num_ranks = 0};

enum verdict { VERDICT_PASS, VERDICT_FAIL, VERDICT_SKIP, NUM_VERDICTS };

static const char *const verdict_names[NUM_VERDICTS] = {"PASS", "FAIL", "SKIP"};

struct verify_job {
    const struct verify_settings *settings;
    struct mok_team *team;
    struct mok_case_where where;
    int is_silent; /* JSON on standard output, or not the process that prints */
    int has_any;   /* at least one case was asked for */
    int64_t counts[NUM_VERDICTS];
    cJSON *cases;
};

/* ---- one case ----------------------------------------------------------------------------------------------------------- */

/* The worst check of a result in words; "" when nothing was checked. */
static void describe_worst(const struct mok_case_result *result, char *text, size_t size)
{
    int worst = -1;
    for (int check = 0; check < MOK_CHECK_COUNT; check++) {
        const struct mok_ref_worst *entry = &result->report.worst[check];
        if (entry->num_checked > 0 && (worst < 0 || entry->ratio > result->report.worst[worst].ratio)) {
            worst = check;
        }
    }
    text[0] = '\0';
    if (worst >= 0) {
        snprintf(text, size, "%s at %.2f of its bound", mok_ref_check_name((enum mok_ref_check)worst), result->report.worst[worst].ratio);
    }
}

static void print_failure(const struct mok_case_result *result)
{
    if (result->status != MOK_OK) {
        char text[sizeof result->message + 32];
        mok_cli_say_rank(result->status_rank, result->message, text, sizeof text);
        printf("     %s (%s)\n", text, mok_status_name(result->status));
    }
    for (int check = 0; check < MOK_CHECK_COUNT; check++) {
        if (result->report.worst[check].num_failed > 0) {
            char text[512];
            mok_ref_report_describe(&result->report, (enum mok_ref_check)check, text, sizeof text);
            printf("     %s\n", text);
        }
    }
    if (result->num_differences > 0) {
        printf("     %" PRId64 " differences, the first: %s\n", result->num_differences, result->difference);
    }
}

static void say(struct verify_job *job, const struct mok_ref_case *recipe, enum verdict verdict, const char *words, double seconds,
                const struct mok_case_result *result)
{
    job->counts[verdict]++;
    if (!job->is_silent) {
        mok_cli_progress_end();
        printf("%s %-28s %s%s%s", verdict_names[verdict], recipe->name, recipe->covers, words[0] == '\0' ? "" : "; ", words);
        printf(verdict == VERDICT_SKIP ? "\n" : "; %.2f s\n", seconds);
        if (verdict == VERDICT_FAIL) {
            print_failure(result);
        }
        fflush(stdout);
    }
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "name", recipe->name);
    cJSON_AddStringToObject(json, "verdict", verdict_names[verdict]);
    cJSON_AddStringToObject(json, "words", words);
    cJSON_AddNumberToObject(json, "seconds", seconds);
    cJSON_AddItemToArray(job->cases, json);
}

/* Processes: each has checked its own rank. All must have passed, and the first that did not says why. */
static void agree(const struct verify_job *job, struct mok_case_result *result)
{
    if (!job->team->is_processes) {
        return;
    }
    char text[512] = "";
    mok_status status = result->status;
    if (status == MOK_OK && !mok_case_passed(result)) {
        status = MOK_ERR_INTERNAL;
        for (int check = 0; check < MOK_CHECK_COUNT; check++) {
            if (result->report.worst[check].num_failed > 0) {
                mok_ref_report_describe(&result->report, (enum mok_ref_check)check, text, sizeof text);
            }
        }
    }
    const char *words = result->status != MOK_OK ? result->message : text[0] != '\0' ? text : result->difference;
    if (status != MOK_OK) {
        status = mok_cli_fail(status, "%s", words);
    }
    status = mok_team_agree(job->team, status, "end a case");
    if (status != result->status) {
        result->status = status;
        snprintf(result->message, sizeof result->message, "%s", mok_cli_sentence());
    }
}

static int is_skip(mok_status status) { return mok_cli_exit_of(status) == MOK_CLI_EXIT_SKIP; }

static void run_case(struct verify_job *job, const struct mok_ref_case *recipe)
{
    char words[600];
    if (job->team->is_processes && recipe->num_ranks != job->team->num_ranks) {
        snprintf(words, sizeof words, "needs %" PRId32 " rank%s, and mpirun has started %" PRId32 " process%s", recipe->num_ranks,
                 recipe->num_ranks == 1 ? "" : "s", job->team->num_ranks, job->team->num_ranks == 1 ? "" : "es");
        say(job, recipe, VERDICT_SKIP, words, 0.0, NULL);
        return;
    }
    struct mok_case_result *result = calloc(1, sizeof *result);
    if (result == NULL) {
        fprintf(stderr, "mok verify: no memory for a result\n");
        job->counts[VERDICT_FAIL]++;
        return;
    }
    double begin = mok_stage_now_ms();
    if (!job->is_silent) {
        mok_cli_progress("%s", recipe->name);
    }
    mok_case_run(recipe, &job->where, result);
    agree(job, result);
    double seconds = (mok_stage_now_ms() - begin) * 1e-3;
    if (is_skip(result->status)) {
        snprintf(words, sizeof words, "%s (%s)", result->message, mok_status_name(result->status));
        say(job, recipe, VERDICT_SKIP, words, seconds, result);
    } else {
        describe_worst(result, words, sizeof words);
        say(job, recipe, mok_case_passed(result) ? VERDICT_PASS : VERDICT_FAIL, words, seconds, result);
    }
    free(result);
}

/* ---- all cases ---------------------------------------------------------------------------------------------------------- */

/* num_ranks: 0 = any. Named cases are on the list: that was checked. */
static int is_wanted(const struct verify_settings *settings, const struct mok_case_where *where, int64_t num_ranks,
                     const struct mok_ref_case *recipe, int num_names, char **names)
{
    if (num_names == 0) {
        return mok_case_is_listed(recipe, where) && !(settings->is_quick && recipe->slow) &&
               (num_ranks == 0 || num_ranks == recipe->num_ranks);
    }
    for (int idx = 0; idx < num_names; idx++) {
        if (strcmp(names[idx], recipe->name) == 0) {
            return 1;
        }
    }
    return 0;
}

/* An empty choice has shown nothing. */
static void say_none(const struct verify_settings *settings, int64_t num_ranks)
{
    fprintf(stderr, "mok verify: no%s case has %" PRId64 " rank%s: --list prints them\n", settings->is_quick ? " quick" : "", num_ranks,
            num_ranks == 1 ? "" : "s");
}

static int list_cases(const struct verify_settings *settings, const struct mok_case_where *where, int num_names, char **names)
{
    int num_listed = 0;
    for (int idx = 0; idx < mok_ref_case_count(); idx++) {
        const struct mok_ref_case *recipe = mok_ref_case_get(idx);
        if (is_wanted(settings, where, settings->num_ranks, recipe, num_names, names)) {
            num_listed++;
            printf("%-28s ranks %" PRId32 ", experts %" PRId32 ", top %" PRId32 ", hidden %" PRId32 ", intermediate %" PRId32
                   ", shared %" PRId32 "; %s\n",
                   recipe->name, recipe->num_ranks, recipe->num_experts, recipe->top_k, recipe->hidden, recipe->inter,
                   recipe->shared_inter, recipe->covers);
        }
    }
    if (num_listed == 0) {
        say_none(settings, settings->num_ranks);
    }
    return num_listed > 0 ? MOK_CLI_EXIT_OK : MOK_CLI_EXIT_SKIP;
}

static mok_status run_cases(struct verify_job *job, int num_names, char **names)
{
    int64_t num_ranks = job->team->is_processes ? job->team->num_ranks : job->settings->num_ranks;
    job->cases = cJSON_CreateArray();
    for (int idx = 0; idx < mok_ref_case_count(); idx++) {
        if (is_wanted(job->settings, &job->where, num_ranks, mok_ref_case_get(idx), num_names, names)) {
            job->has_any = 1;
            run_case(job, mok_ref_case_get(idx));
        }
    }
    mok_cli_progress_end();
    if (!job->has_any && mok_team_prints(job->team)) {
        say_none(job->settings, num_ranks);
    }
    if (!job->is_silent) {
        printf("%" PRId64 " passed, %" PRId64 " failed, %" PRId64 " skipped; backend %s, peer %s\n", job->counts[VERDICT_PASS],
               job->counts[VERDICT_FAIL], job->counts[VERDICT_SKIP], mok_config_backend_name(&job->team->config),
               job->where.ranks == MOK_CASE_EXTERNAL ? "external" : mok_team_peer_name(job->team));
    }
    if (job->settings->json == NULL || !mok_team_prints(job->team)) {
        cJSON_Delete(job->cases);
        return MOK_OK;
    }
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "command", "verify");
    cJSON_AddNumberToObject(root, "passed", (double)job->counts[VERDICT_PASS]);
    cJSON_AddNumberToObject(root, "failed", (double)job->counts[VERDICT_FAIL]);
    cJSON_AddNumberToObject(root, "skipped", (double)job->counts[VERDICT_SKIP]);
    cJSON_AddItemToObject(root, "cases", job->cases);
    return mok_json_write(root, job->settings->json);
}

/* A run in which nothing passed and nothing failed has shown nothing. */
static int exit_of(const struct verify_job *job)
{
    if (job->counts[VERDICT_FAIL] > 0) {
        return MOK_CLI_EXIT_MISMATCH;
    }
    return job->counts[VERDICT_PASS] > 0 ? MOK_CLI_EXIT_OK : MOK_CLI_EXIT_SKIP;
}

/* Cases are small: a peer that takes longer does not come, unless the command line has more patience. */
#define MOST_PEER_MS 60000
#define QUOTED(number) #number
#define TEXT_OF(number) QUOTED(number)

/* The backend and the kind of ranks that the options ask for; whether processes were started is seen later. */
static struct mok_case_where find_where(const mok_group_config *config)
{
    int has_patience = mok_cli_is_given("peer-timeout") || config->peer_timeout_ms < MOST_PEER_MS;
    return (struct mok_case_where){
        .backend = mok_config_is_cuda(config) ? MOK_BACKEND_CUDA : MOK_BACKEND_CPU,
        .ranks = config->peer == MOK_PEER_MPI        ? MOK_CASE_MPI
                 : config->peer == MOK_PEER_EXTERNAL ? MOK_CASE_EXTERNAL
                                                     : MOK_CASE_THREADS,
        .peer_timeout_ms = has_patience ? config->peer_timeout_ms : MOST_PEER_MS,
        .local_timeout_ms = config->local_timeout_ms};
}

/* Options that others leave without an effect. */
static mok_status check_options(const struct verify_settings *settings, const mok_group_config *config, int num_names)
{
    if (settings->is_list && settings->json != NULL) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--json does not go with --list");
    }
    if (num_names > 0 && (settings->is_quick || settings->num_ranks != 0)) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--%s does not go with names of cases", settings->is_quick ? "quick" : "ranks");
    }
    if (settings->is_list) {
        return mok_cli_refuse_group("peer-timeout local-timeout", "does not go with --list");
    }
    if (!mok_cli_is_given("peer-timeout") && config->peer_timeout_ms > MOST_PEER_MS) { /* by a variable, or as it was */
        return mok_cli_refuse_group("peer-timeout", "has no effect on mok verify above " TEXT_OF(MOST_PEER_MS)
                                                    ": --peer-timeout gives a peer more");
    }
    return MOK_OK;
}

/* Names must be those of cases, and of cases that this backend can be asked for. */
static int check_request(const mok_group_config *config, const struct mok_case_where *where, int num_names, char **names)
{
    if (config->peer == MOK_PEER_NCCL) {
        return mok_cli_usage(&mok_command_verify, "%s is nccl: must be threads, external or mpi", mok_cli_setter("peer"));
    }
    if (!mok_case_has_ranks(where->backend, where->ranks)) {
        return mok_cli_usage(&mok_command_verify, "%s is %s: must be threads or external with backend %s", mok_cli_setter("peer"),
                             mok_config_peer_name(config), mok_config_backend_name(config));
    }
    for (int idx = 0; idx < num_names; idx++) {
        const struct mok_ref_case *recipe = mok_ref_case_find(names[idx]);
        if (recipe == NULL) {
            return mok_cli_usage(&mok_command_verify, "'%s' is no case: --list prints them", names[idx]);
        }
        if (!mok_case_is_listed(recipe, where)) {
            return mok_cli_usage(&mok_command_verify, "'%s' needs a path that backend %s does not have", names[idx],
                                 mok_config_backend_name(config));
        }
    }
    return MOK_CLI_EXIT_OK;
}

static int verify_command(void *given, mok_group_config *config, int num_names, char **names)
{
    const struct verify_settings *settings = given;
    struct mok_team team;
    struct mok_case_where where = find_where(config);
    int code = check_options(settings, config, num_names) != MOK_OK ? mok_cli_usage(&mok_command_verify, "%s", mok_cli_sentence())
                                                            : check_request(config, &where, num_names, names);
    if (code != MOK_CLI_EXIT_OK) {
        return code;
    }
    /* As one of several processes it comes to the roll call first: the others, if they are to run something, would wait for it. */
    if (settings->is_list && !(config->peer == MOK_PEER_MPI && mok_cli_is_launched())) {
        return list_cases(settings, &where, num_names, names);
    }
    config->peer = where.ranks == MOK_CASE_EXTERNAL ? MOK_PEER_THREADS : config->peer; /* the case runner makes the regions itself */
    mok_status status = mok_team_open(config, config->peer == MOK_PEER_MPI && !settings->is_list ? settings->num_ranks : 0, &team); /* threads: as each case needs */
    status = status != MOK_OK ? status : mok_team_agree(&team, mok_config_check_backend(config), "find the backend");
    if (status == MOK_OK) {
        status = mok_team_agree(&team, mok_team_prints(&team) ? mok_output_check(settings->json) : MOK_OK, "look at the output's place");
    }
    if (status == MOK_OK && settings->is_list) {
        code = mok_team_prints(&team) ? list_cases(settings, &where, num_names, names) : MOK_CLI_EXIT_OK;
    } else if (status == MOK_OK) {
        struct verify_job job = {.settings = settings, .team = &team, .where = where};
        job.is_silent = !mok_team_prints(&team) || (settings->json != NULL && strcmp(settings->json, "-") == 0);
        job.where.ranks = team.is_processes ? MOK_CASE_MPI : where.ranks;
        job.where.rank = team.first_rank;
        status = run_cases(&job, num_names, names);
        code = exit_of(&job);
    }
    if (status != MOK_OK) {
        code = mok_cli_end(&mok_command_verify, status, mok_team_prints(&team));
    }
    mok_team_close(&team);
    return code;
}

static const struct mok_cli_useless verify_useless[] = {
    {"path saved keep-rows minibatch ring look-ahead comm-workers compute-workers reserve-sms", "each case has its own"},
    {"device", MOK_CLI_WHY_NO_DEVICE},
};

const struct mok_cli_command mok_command_verify = {
    .name = "verify",
    .summary = "run the project's case table on a backend and check every result",
    .positional = "[NAME...]",
    .about = "Runs the cases of the table, or those named, forward and backward, twice with poisoned memory and once with fresh routing, "
             "and compares\n"
             "with the two oracles. Peers: threads, external (check 3 included), and mpi under mpirun (the cases of that many ranks).\n"
             "A peer has 60 seconds to come, unless --peer-timeout, or a MOK_PEER_TIMEOUT below that, says otherwise.",
    .options = verify_options,
    .num_options = sizeof verify_options / sizeof verify_options[0],
    .settings_bytes = sizeof(struct verify_settings),
    .initial = &verify_initial,
    .peers = "threads|mpi|external",
    .peer_timeout = TEXT_OF(MOST_PEER_MS),
    .useless = verify_useless,
    .num_useless = sizeof verify_useless / sizeof verify_useless[0],
    .free_options = "ranks json",
    .makes_ranks = 1,
    .run = verify_command,
};
