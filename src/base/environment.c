/*
 * Names in the environment. In: environ, the options' names. Out: warnings in the log.
 */
#include "base/environment.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"

extern char **environ;

enum {
    NAME_ROOM = 64,
    NEAR = 2 /* letters to change, add or leave out */
};

/* Beside the options' variables. */
static const char *const other_names[] = {"MOK_LOG", "MOK_CUBLAS" /* mok bench */};
static const char test_prefix[] = "MOK_TEST_";
static const char first_word[] = "MOK_";
/* Fields of the config, and options of the tool, that no variable sets. */
static const char *const without_variable[] = {"MOK_RANK",   "MOK_RANKS",        "MOK_NUM_RANKS",           "MOK_EXPERTS", "MOK_NUM_EXPERTS", "MOK_TOP_K",
                                               "MOK_HIDDEN", "MOK_INTERMEDIATE", "MOK_SHARED_INTERMEDIATE", "MOK_SHARED",  "MOK_TOKENS",      "MOK_MAX_TOKENS"};
/* Microseconds: a delay that a test of the CPU backend asks for. */
enum { MAX_DELAY_DIGITS = 9 };

mok_status mok_base_environment_check(void)
{
    const char *text = getenv("MOK_LOG");
    enum mok_log_level level;
    if (!mok_base_log_parse(text, &level)) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "MOK_LOG is '%s': must be 0 (nothing), 1 (failures) or 2 (choices as well)", text);
    }
    text = getenv("MOK_TEST_DELAY_US");
    if (text != NULL && (text[strspn(text, "0123456789")] != '\0' || strlen(text) > MAX_DELAY_DIGITS)) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "MOK_TEST_DELAY_US is '%s': must be a whole number from 0 to 999999999", text);
    }
    return MOK_OK;
}

/* Where the options' variables come from. */
typedef const char *name_source(int32_t idx);

/* The idx-th known name, NULL past the end. */
static const char *known_name(name_source *variable_at, int32_t idx)
{
    const int32_t num_others = (int32_t)(sizeof other_names / sizeof other_names[0]);
    return idx < num_others ? other_names[idx] : variable_at(idx - num_others);
}

static int min_int(int a, int b) { return a < b ? a : b; }

/* Letters to change, add or leave out to make b of a; names that are longer than the room are far from all. */
static int distance(const char *a, const char *b)
{
    int row[NAME_ROOM];
    int length = (int)strlen(b);
    if (strlen(a) >= NAME_ROOM || length >= NAME_ROOM) {
        return NAME_ROOM;
    }
    for (int at = 0; at <= length; at++) {
        row[at] = at;
    }
    for (int from = 1; a[from - 1] != '\0'; from++) {
        int corner = row[0];
        row[0] = from;
        for (int at = 1; at <= length; at++) {
            int changed = corner + (a[from - 1] != b[at - 1]);
            corner = row[at];
            row[at] = min_int(changed, 1 + min_int(row[at], row[at - 1]));
        }
    }
    return row[length];
}

/* 1 when `name` is `known` with words before or behind: MOK_NUM_SAVED and MOK_SAVED, MOK_RING_MINIBATCHES and MOK_RING. */
static int has_words_of(const char *name, const char *known)
{
    const char *words = known + sizeof first_word - 1;
    size_t length = strlen(words);
    for (const char *at = name + sizeof first_word - 1; at != NULL; at = strchr(at, '_')) {
        at += at[0] == '_';
        if (strncmp(at, words, length) == 0 && (at[length] == '\0' || at[length] == '_')) {
            return 1;
        }
    }
    return 0;
}

/* The known name that was meant: the nearest, when it is near enough, else the longest one with words added to it. NULL: none. */
static const char *find_meant(name_source *variable_at, const char *name)
{
    const char *nearest = known_name(variable_at, 0);
    const char *longest = NULL;
    const char *known;
    for (int32_t idx = 0; (known = known_name(variable_at, idx)) != NULL; idx++) {
        nearest = distance(name, known) < distance(name, nearest) ? known : nearest;
        if (has_words_of(name, known) && (longest == NULL || strlen(known) > strlen(longest))) {
            longest = known;
        }
    }
    return distance(name, nearest) <= NEAR ? nearest : longest;
}

static int is_without_variable(const char *name)
{
    int is_found = 0;
    for (size_t idx = 0; idx < sizeof without_variable / sizeof without_variable[0]; idx++) {
        is_found |= strcmp(name, without_variable[idx]) == 0;
    }
    return is_found;
}

static void warn_of(name_source *variable_at, const char *name)
{
    const char *meant = find_meant(variable_at, name);
    if (is_without_variable(name)) {
        mok_base_log(MOK_LOG_WARNINGS, "warning: %s is set in the environment and nobody reads it; ranks and sizes have no variables", name);
    } else if (meant != NULL) {
        mok_base_log(MOK_LOG_WARNINGS, "warning: %s is set in the environment and nobody reads it; the nearest known name is %s", name, meant);
    } else { /* it may be another program's */
        mok_base_log(MOK_LOG_FAILURES, "warning: %s is set in the environment and nobody reads it", name);
    }
}

static int is_known(name_source *variable_at, const char *name)
{
    const char *known;
    int is_found = strncmp(name, test_prefix, sizeof test_prefix - 1) == 0;
    for (int32_t idx = 0; (known = known_name(variable_at, idx)) != NULL; idx++) {
        is_found |= strcmp(name, known) == 0;
    }
    return is_found;
}

void mok_base_environment_warn(name_source *variable_at)
{
    static atomic_flag is_done = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&is_done)) {
        return;
    }
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        char name[2 * NAME_ROOM] = "";
        size_t length = strcspn(*entry, "=");
        memcpy(name, *entry, length < sizeof name ? length : sizeof name - 1);
        if (strncmp(name, first_word, sizeof first_word - 1) == 0 && !is_known(variable_at, name)) {
            warn_of(variable_at, name);
        }
    }
}
