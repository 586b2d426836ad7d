/*
 * Parsing, usage and help from the tables. In: argv. Out: settings of one command and the group's config.
 */
#include "command_line.h"
#include "group_config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>


/* ---- group options -------------------------------------------------------------------------------------------------------- */

enum { MAX_GROUP_OPTIONS = 64 };

static unsigned char is_given[MAX_GROUP_OPTIONS]; /* by index in the library's table */

/* 1 when the word stands in "one two three". */
static int has_word(const char *words, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = words; (at = strstr(at, word)) != NULL; at += length) {
        if ((at == words || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) {
            return 1;
        }
    }
    return 0;
}

/* Why the option is nothing to the command; NULL when it is something. */
static const char *why_useless(const struct mok_cli_command *command, const char *name)
{
    for (int idx = 0; idx < command->num_useless; idx++) {
        if (has_word(command->useless[idx].names, name)) {
            return command->useless[idx].why;
        }
    }
    return NULL;
}

int mok_cli_is_given(const char *name)
{
    for (int32_t idx = 0; idx < mok_option_count() && idx < MAX_GROUP_OPTIONS; idx++) {
        if (strcmp(mok_option_get(idx)->name, name) == 0) {
            return is_given[idx];
        }
    }
    return 0;
}

static int has_variable(const char *variable)
{
    const char *value = getenv(variable);
    return value != NULL && value[0] != '\0'; /* empty is as good as not set */
}

const char *mok_cli_setter(const char *name)
{
    static _Thread_local char text[64];
    snprintf(text, sizeof text, "--%s", name);
    for (int32_t idx = 0; idx < mok_option_count() && !mok_cli_is_given(name); idx++) {
        const mok_option *option = mok_option_get(idx);
        if (strcmp(option->name, name) == 0 && has_variable(option->env)) {
            return option->env;
        }
    }
    return text;
}

/* Number of processes that a launcher has started this one with, 1 without a launcher; the own number in *rank_out. */
static long find_launched(long *rank_out)
{
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}, {"PMI_SIZE", "PMI_RANK"}};
    *rank_out = 0;
    for (int idx = 0; idx < 2; idx++) {
        const char *size = getenv(names[idx][0]);
        const char *rank = getenv(names[idx][1]);
        if (size != NULL && strtol(size, NULL, 10) > 1) {
            *rank_out = rank == NULL ? 0 : strtol(rank, NULL, 10);
            return strtol(size, NULL, 10);
        }
    }
    return 1;
}

int mok_cli_is_launched(void)
{
    long rank;
    return find_launched(&rank) > 1;
}

/* Says once, on one process, that the option's variable is set and <why>, unless the command line gives the option or MOK_LOG=0. */
static void warn_of_variable(int32_t idx, const char *why)
{
    static unsigned char is_told[MAX_GROUP_OPTIONS];
    const mok_option *option = mok_option_get(idx);
    const char *log = getenv("MOK_LOG");
    long rank;
    (void)find_launched(&rank);
    int is_silent = rank != 0 || (log != NULL && strcmp(log, "0") == 0);
    if (is_silent || idx >= MAX_GROUP_OPTIONS || is_told[idx] || is_given[idx] || !has_variable(option->env)) {
        return;
    }
    is_told[idx] = 1;
    fprintf(stderr, "mok: warning: %s is set in the environment and %s\n", option->env, why);
}

mok_status mok_cli_refuse_group(const char *names, const char *why)
{
    for (int32_t idx = 0; idx < mok_option_count(); idx++) {
        const char *name = mok_option_get(idx)->name;
        if ((names == NULL || has_word(names, name)) && mok_cli_is_given(name)) {
            return mok_cli_fail(MOK_ERR_ARGUMENT, "--%s %s", name, why);
        }
    }
    for (int32_t idx = 0; idx < mok_option_count(); idx++) {
        if (names == NULL || has_word(names, mok_option_get(idx)->name)) {
            warn_of_variable(idx, why);
        }
    }
    return MOK_OK;
}

/* Variables of options that are nothing to the command. */
static void warn_of_useless(const struct mok_cli_command *command)
{
    for (int32_t idx = 0; idx < mok_option_count(); idx++) {
        const char *why = why_useless(command, mok_option_get(idx)->name);
        if (why != NULL) {
            char text[256];
            snprintf(text, sizeof text, "has no effect on mok %s: %s", command->name, why);
            warn_of_variable(idx, text);
        }
    }
}

/* 1 when the command takes this --peer. */
static int takes_peer(const struct mok_cli_command *command, const char *peer)
{
    return command->peers == NULL || strstr(command->peers, peer) != NULL;
}

static int runs_processes(const struct mok_cli_command *command) { return takes_peer(command, "mpi") || takes_peer(command, "nccl"); }

/* ---- what was started ---------------------------------------------------------------------------------------------------- */

static struct mok_cli_started started;
static const struct mok_cli_command *started_command; /* NULL: none */

/* FNV-1a, onto what came before. */
static uint64_t add_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t idx = 0; idx < bytes; idx++) {
        hash = (hash ^ at[idx]) * 0x100000001b3ULL;
    }
    return hash;
}

static uint64_t hash_own(const struct mok_cli_option *option, const void *settings)
{
    const uint64_t basis = 0xcbf29ce484222325ULL;
    const char *field = (const char *)settings + option->offset;
    const char *text;
    if (option->kind != MOK_CLI_TEXT) {
        return add_hash(basis, field, option->kind == MOK_CLI_FLAG ? sizeof(int) : sizeof(int64_t));
    }
    memcpy(&text, field, sizeof text);
    return text == NULL ? basis : add_hash(basis, text, strlen(text) + 1);
}

static void note_start(const struct mok_cli_command *command, const void *settings, int num_names, char **names)
{
    memset(&started, 0, sizeof started);
    started_command = command;
    snprintf(started.command, sizeof started.command, "%s", command->name);
    for (int idx = 0; idx < command->num_options && idx < MOK_CLI_MAX_OWN; idx++) {
        int is_free = command->free_options != NULL && has_word(command->free_options, command->options[idx].name);
        started.own[idx] = is_free ? 0 : hash_own(&command->options[idx], settings);
    }
    for (int idx = 0; idx < num_names; idx++) {
        started.names = add_hash(started.names, names[idx], strlen(names[idx]) + 1);
    }
}

const struct mok_cli_started *mok_cli_started(void) { return &started; }

const char *mok_cli_own_name(int idx)
{
    return started_command != NULL && idx < started_command->num_options ? started_command->options[idx].name : "option";
}

/* ---- help --------------------------------------------------------------------------------------------------------------- */

static void print_usage_line(FILE *out, const struct mok_cli_command *command)
{
    fprintf(out, "usage: mok %s [options]%s%s\n", command->name, command->positional == NULL ? "" : " ",
            command->positional == NULL ? "" : command->positional);
}

static void print_option(const char *name, const char *value, const char *help)
{
    char left[64];
    snprintf(left, sizeof left, "--%s%s%s", name, value == NULL ? "" : " ", value == NULL ? "" : value);
    printf("  %-34s %s", left, help);
}

static void print_help(const struct mok_cli_command *command)
{
    print_usage_line(stdout, command);
    printf("\n%s\n\noptions\n", command->about);
    for (int idx = 0; idx < command->num_options; idx++) {
        const struct mok_cli_option *option = &command->options[idx];
        print_option(option->name, option->value, option->help);
        if (option->kind == MOK_CLI_COUNT) {
            printf(" [%" PRId64 " to %" PRId64 "]", option->least, option->most);
        }
        putchar('\n');
    }
    print_option("help", NULL, "Print this help.");
    printf("\n\ngroup options (also as environment variables)\n");
    for (int32_t idx = 0; idx < mok_option_count(); idx++) {
        const mok_option *option = mok_option_get(idx);
        if (why_useless(command, option->name) != NULL) {
            continue;
        }
        int is_peer = strcmp(option->name, "peer") == 0 && command->peers != NULL;
        int is_timeout = strcmp(option->name, "peer-timeout") == 0 && command->peer_timeout != NULL;
        print_option(option->name, is_peer ? command->peers : option->value, option->help);
        printf(" [%s, default %s]\n", option->env, is_timeout ? command->peer_timeout : option->initial);
    }
    if (command->makes_ranks) {
        printf("\n%s\n", runs_processes(command)
                             ? "Under mpirun --peer must be given: without it every process would do the whole job for itself."
                             : "Not for mpirun: all ranks are threads of one process.");
    }
    printf("\nexit codes: 0 ok, 1 a result is wrong, 2 usage, 3 error, 77 not available here\n");
}

int mok_cli_usage(const struct mok_cli_command *command, const char *format, ...)
{
    va_list args;
    mok_cli_progress_end();
    fprintf(stderr, "mok %s: ", command->name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    print_usage_line(stderr, command);
    fprintf(stderr, "Try 'mok %s --help'.\n", command->name);
    return MOK_CLI_EXIT_USAGE;
}

int mok_cli_report(const struct mok_cli_command *command, mok_status status)
{
    mok_cli_progress_end();
    fprintf(stderr, "mok %s: %s (%s)\n", command->name, mok_cli_sentence(), mok_status_name(status));
    return mok_cli_exit_of(status);
}

int mok_cli_end(const struct mok_cli_command *command, mok_status status, int speaks)
{
    int is_mistake = status == MOK_ERR_ARGUMENT;
    if (status == MOK_OK || !speaks) {
        return is_mistake ? MOK_CLI_EXIT_USAGE : mok_cli_exit_of(status);
    }
    return is_mistake ? mok_cli_usage(command, "%s", mok_cli_sentence()) : mok_cli_report(command, status);
}

/* ---- parsing ------------------------------------------------------------------------------------------------------------ */

/* 1 when `argument` is "--<name>" or "--<name>=VALUE"; the value, or NULL, in *value_out. */
static int is_option(const char *argument, const char *name, const char **value_out)
{
    size_t length = strlen(name);
    if (strncmp(argument, "--", 2) != 0 || strncmp(argument + 2, name, length) != 0) {
        return 0;
    }
    const char *rest = argument + 2 + length;
    *value_out = *rest == '=' ? rest + 1 : NULL;
    return *rest == '\0' || *rest == '=';
}

/* 1 when the text is a whole number in the option's range. */
static int parse_count(const struct mok_cli_option *option, const char *text, int64_t *value_out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    int is_number = end != text && *end == '\0' && errno == 0 && strchr(" \t\n\v\f\r", text[0]) == NULL;
    if (!is_number || value < option->least || value > option->most) {
        return 0;
    }
    *value_out = value;
    return 1;
}

static mok_status set_own(const struct mok_cli_option *option, const char *value, void *settings)
{
    char *field = (char *)settings + option->offset;
    if (option->kind == MOK_CLI_FLAG) {
        if (value != NULL) {
            return mok_cli_fail(MOK_ERR_ARGUMENT, "option --%s takes no value", option->name);
        }
        memcpy(field, &(int){1}, sizeof(int));
    } else if (option->kind == MOK_CLI_TEXT && value[0] == '\0') {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "option --%s is empty: must be %s, see --help", option->name, option->value);
    } else if (option->kind == MOK_CLI_TEXT) {
        memcpy(field, &value, sizeof value);
    } else {
        int64_t count;
        if (!parse_count(option, value, &count)) {
            return mok_cli_fail(MOK_ERR_ARGUMENT, "option --%s is '%s': must be a whole number from %" PRId64 " to %" PRId64,
                                option->name, value, option->least, option->most);
        }
        memcpy(field, &count, sizeof count);
    }
    return MOK_OK;
}

struct found {
    const struct mok_cli_option *own;
    const char *group; /* name of a group option, and its index */
    int32_t group_idx;
    const char *value; /* behind '=', or NULL */
};

static int find_option(const struct mok_cli_command *command, const char *argument, struct found *found)
{
    memset(found, 0, sizeof *found);
    for (int idx = 0; idx < command->num_options; idx++) {
        if (is_option(argument, command->options[idx].name, &found->value)) {
            found->own = &command->options[idx];
            return 1;
        }
    }
    for (int32_t idx = 0; idx < mok_option_count(); idx++) {
        if (is_option(argument, mok_option_get(idx)->name, &found->value)) {
            found->group = mok_option_get(idx)->name;
            found->group_idx = idx;
            return 1;
        }
    }
    return 0;
}

static mok_status set_group(const struct mok_cli_command *command, const struct found *found, mok_group_config *config)
{
    const char *why = why_useless(command, found->group);
    if (why != NULL) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "option --%s has no effect here: %s", found->group, why);
    }
    if (found->group_idx < MAX_GROUP_OPTIONS) {
        is_given[found->group_idx] = 1;
    }
    if (mok_option_set(config, found->group, found->value) != MOK_OK) { /* "ring is '-1': must be ..." */
        return mok_cli_fail(MOK_ERR_ARGUMENT, "option --%s", mok_last_error());
    }
    return MOK_OK;
}

/* Positional arguments are moved to the front of argv. */
static mok_status parse(const struct mok_cli_command *command, int argc, char **argv, void *settings, mok_group_config *config,
                        int *num_names_out)
{
    int num_names = 0;
    int is_ended = 0;
    for (int at = 0; at < argc; at++) {
        struct found found;
        if (!is_ended && strcmp(argv[at], "--") == 0) {
            is_ended = 1;
            continue;
        }
        if (is_ended || argv[at][0] != '-' || argv[at][1] == '\0') {
            if (command->positional == NULL) {
                return mok_cli_fail(MOK_ERR_ARGUMENT, "argument '%s' is not expected", argv[at]);
            }
            argv[num_names++] = argv[at];
            continue;
        }
        if (!find_option(command, argv[at], &found)) {
            return mok_cli_fail(MOK_ERR_ARGUMENT, "option '%s' is not known", argv[at]);
        }
        int takes_value = found.own == NULL || found.own->kind != MOK_CLI_FLAG;
        if (takes_value && found.value == NULL) {
            if (at + 1 == argc) {
                return mok_cli_fail(MOK_ERR_ARGUMENT, "option '%s' needs a value", argv[at]);
            }
            found.value = argv[++at];
        }
        MOK_TRY(found.own != NULL ? set_own(found.own, found.value, settings) : set_group(command, &found, config));
    }
    *num_names_out = num_names;
    return MOK_OK;
}

/* Options of GPUs with the CPU, and of the fused path with the staged one. */
static mok_status check_group(const mok_group_config *config)
{
    int is_of_gpus = mok_cli_is_given("reserve-sms") || mok_cli_is_given("device") || has_variable("MOK_RESERVE_SMS") || has_variable("MOK_DEVICE");
    if (is_of_gpus /* which backend it is takes a look at the machine */ && !mok_config_is_cuda(config)) {
        MOK_TRY(mok_cli_refuse_group("reserve-sms device", "needs the cuda backend"));
    }
    return config->path != MOK_PATH_STAGED ? MOK_OK : mok_cli_refuse_group("look-ahead", "does not go with --path staged");
}

/* 1 when a launcher has started several processes and nobody said what each of them is; says so once. */
static int is_peer_missing(const struct mok_cli_command *command)
{
    long rank;
    long num = find_launched(&rank);
    if (!command->makes_ranks || mok_cli_is_given("peer") || has_variable("MOK_PEER") || num <= 1) {
        return 0;
    }
    if (rank == 0 && !runs_processes(command)) {
        mok_cli_usage(command, "mpirun has started %ld processes, but all ranks are threads of one (--peer threads): start it without mpirun", num);
    } else if (rank == 0) {
        mok_cli_usage(command, "mpirun has started %ld processes, but --peer is not given: %s%s%s makes each a rank", num,
                      takes_peer(command, "mpi") ? "mpi (CPU)" : "",
                      takes_peer(command, "mpi") && takes_peer(command, "nccl") ? " or " : "",
                      takes_peer(command, "nccl") ? "nccl (GPUs)" : "");
    } else {
        /* the launcher ends all processes when one fails: process 0 must have spoken by then */
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    }
    return 1;
}

int mok_cli_dispatch(const struct mok_cli_command *command, int argc, char **argv)
{
    for (int at = 0; at < argc && strcmp(argv[at], "--") != 0; at++) {
        if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0) {
            print_help(command);
            return MOK_CLI_EXIT_OK;
        }
    }
    mok_group_config config;
    int num_names = 0;
    void *settings = malloc(command->settings_bytes);
    if (settings == NULL) {
        return mok_cli_report(command, mok_cli_fail(MOK_ERR_MEMORY, "no memory for the settings"));
    }
    memcpy(settings, command->initial, command->settings_bytes);
    mok_status status = mok_cli_check(mok_group_config_init(&config));
    if (status == MOK_OK) {
        status = parse(command, argc, argv, settings, &config, &num_names);
    }
    if (status == MOK_OK) {
        warn_of_useless(command);
        status = check_group(&config);
    }
    int code = MOK_CLI_EXIT_USAGE;
    if (status != MOK_OK) {
        mok_cli_usage(command, "%s", mok_cli_sentence());
    } else if (!is_peer_missing(command)) {
        note_start(command, settings, num_names, argv);
        code = command->run(settings, &config, num_names, argv);
    }
    free(settings);
    return code;
}
