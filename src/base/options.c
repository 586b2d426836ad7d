/*
 * The options table and what is made from it. In: text from a caller or the environment. Out: fields of mok_group_config.
 *
 * An option is either a choice (value "a|b|c": the field holds the index of the word) or a whole number in [least, most] that is a multiple
 * of `multiple`, or one word in the place of one number ("all" for MOK_KEEP_ALL). The default is kept as text and parsed like any other
 * value.
 */
#include "base/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "base/status.h"

struct option_entry {
    mok_option shown;
    const char *field; /* name in mok_group_config */
    size_t offset;
    size_t size;       /* 4 or 8 bytes, signed */
    const char *word;  /* text that stands for word_value; NULL = none */
    int64_t word_value;
    int64_t least; /* numbers only */
    int64_t most;
    int64_t multiple;
};

#define FIELD(member) #member, offsetof(mok_group_config, member), sizeof(((mok_group_config *)0)->member)
#define CHOICE NULL, 0, 0, 0, 0
#define MAX_ROWS ((int64_t)INT32_MAX / 128 * 128)
/* 115 days: nanoseconds of it still fit 63 bits a thousand times over. */
#define MAX_MS ((int64_t)10000000000)

static const struct option_entry table[] = {
    {{"backend", "MOK_BACKEND", "auto|cpu|cuda", "What computes: CPU threads or GPUs; auto takes CUDA where it works.", "auto"},
     FIELD(backend), CHOICE},
    {{"peer", "MOK_PEER", "threads|mpi|nccl|external", "How ranks reach each other's memory.", "threads"}, FIELD(peer), CHOICE},
    {{"path", "MOK_PATH", "auto|staged|fused", "One launch per stage, or one persistent kernel per pass; the bits are the same.", "auto"},
     FIELD(path), CHOICE},
    {{"device", "MOK_DEVICE", "ORDINAL|current", "CUDA device of this rank.", "current"}, FIELD(device), "current", -1, -1, 1023, 1},
    {{"saved", "MOK_SAVED", "COUNT", "Saved objects of the group: forward passes that may wait for their backward pass.", "1"},
     FIELD(num_saved), NULL, 0, 0, 65536, 1},
    {{"keep-rows", "MOK_KEEP_ROWS", "ROWS|all", "Rows that each saved object keeps; backward recomputes the rest.", "all"},
     FIELD(keep_rows), "all", MOK_KEEP_ALL, MOK_KEEP_ALL, INT32_MAX, 1},
    {{"minibatch", "MOK_MINIBATCH", "ROWS|auto", "Rows handed from communication to computation at once, a multiple of 128.", "auto"},
     FIELD(minibatch_rows), "auto", 0, 0, MAX_ROWS, 128},
    {{"ring", "MOK_RING", "COUNT|auto", "Minibatches in the ring.", "auto"}, FIELD(ring_minibatches), "auto", 0, 0, 1 << 20, 1},
    {{"look-ahead", "MOK_LOOK_AHEAD", "COUNT|auto", "Minibatches of gate+up ahead of down, less than the ring has.", "auto"},
     FIELD(look_ahead), "auto", 0, 0, 1 << 20, 1},
    {{"comm-workers", "MOK_COMM_WORKERS", "COUNT|auto", "Workers (CPU threads, CTAs) that move rows.", "auto"},
     FIELD(comm_workers), "auto", 0, 0, 4096, 1},
    {{"compute-workers", "MOK_COMPUTE_WORKERS", "COUNT|auto", "Workers (CPU threads, CTAs) that multiply.", "auto"},
     FIELD(compute_workers), "auto", 0, 0, 4096, 1},
    {{"reserve-sms", "MOK_RESERVE_SMS", "COUNT", "Streaming multiprocessors left free for other kernels (CUDA).", "0"},
     FIELD(reserve_sms), NULL, 0, 0, 4096, 1},
    {{"peer-timeout", "MOK_PEER_TIMEOUT", "MS", "Longest wait for a peer to enter or leave a pass, in milliseconds.", "600000"},
     FIELD(peer_timeout_ms), NULL, 0, 1, MAX_MS, 1},
    {{"local-timeout", "MOK_LOCAL_TIMEOUT", "MS", "Longest standstill inside a pass, in milliseconds.", "10000"},
     FIELD(local_timeout_ms), NULL, 0, 1, MAX_MS, 1},
};

enum { NUM_OPTIONS = sizeof table / sizeof table[0] };

static int is_choice(const struct option_entry *entry) { return entry->multiple == 0; }

static int64_t read_field(const struct option_entry *entry, const mok_group_config *config)
{
    const char *at = (const char *)config + entry->offset;
    int32_t narrow;
    int64_t wide;
    if (entry->size == sizeof narrow) {
        memcpy(&narrow, at, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, at, sizeof wide);
    return wide;
}

static void write_field(const struct option_entry *entry, mok_group_config *config, int64_t value)
{
    char *at = (char *)config + entry->offset;
    int32_t narrow = (int32_t)value;
    memcpy(at, entry->size == sizeof narrow ? (const void *)&narrow : (const void *)&value, entry->size);
}

/* The idx-th word of "a|b|c": its length, 0 past the end. */
static size_t choice_at(const char *choices, int64_t idx, const char **word_out)
{
    for (; idx > 0 && choices != NULL; idx--) {
        choices = strchr(choices, '|');
        choices = choices == NULL ? NULL : choices + 1;
    }
    *word_out = choices;
    return choices == NULL ? 0 : strcspn(choices, "|");
}

/* 1 when `text` is a legal value of the option. */
static int parse(const struct option_entry *entry, const char *text, int64_t *value_out)
{
    if (is_choice(entry)) {
        const char *word;
        size_t length;
        for (int64_t idx = 0; (length = choice_at(entry->shown.value, idx, &word)) > 0; idx++) {
            if (strlen(text) == length && memcmp(text, word, length) == 0) {
                *value_out = idx;
                return 1;
            }
        }
        return 0;
    }
    if (entry->word != NULL && strcmp(text, entry->word) == 0) {
        *value_out = entry->word_value;
        return 1;
    }
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    /* strtoll skips leading blanks; a value that starts with one is a typing error. */
    int is_number = end != text && *end == '\0' && errno == 0 && strchr(" \t\n\v\f\r", text[0]) == NULL;
    if (!is_number || value < entry->least || value > entry->most || value % entry->multiple != 0) {
        return 0;
    }
    *value_out = value;
    return 1;
}

/* The rule of an option as words: "one of auto|cpu|cuda", "a whole number from 0 to 2147483520, a multiple of 128, or auto". */
static const char *rule(const struct option_entry *entry, char *text, size_t size)
{
    if (is_choice(entry)) {
        snprintf(text, size, "one of %s", entry->shown.value);
        return text;
    }
    int used = snprintf(text, size, "a whole number from %" PRId64 " to %" PRId64, entry->least, entry->most);
    if (entry->multiple > 1) {
        used += snprintf(text + used, size - (size_t)used, ", a multiple of %" PRId64, entry->multiple);
    }
    if (entry->word != NULL) {
        snprintf(text + used, size - (size_t)used, ", or %s (%" PRId64 ")", entry->word, entry->word_value);
    }
    return text;
}

static const struct option_entry *find(const char *name)
{
    for (int idx = 0; idx < NUM_OPTIONS; idx++) {
        if (strcmp(table[idx].shown.name, name) == 0) {
            return &table[idx];
        }
    }
    return NULL;
}

static mok_status set_from(const struct option_entry *entry, const char *source, const char *text, mok_group_config *config)
{
    int64_t value;
    char words[160];
    if (!parse(entry, text, &value)) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s is '%s': must be %s", source, text, rule(entry, words, sizeof words));
    }
    write_field(entry, config, value);
    return MOK_OK;
}

static const char *variable_at(int32_t idx) { return idx < NUM_OPTIONS ? table[idx].shown.env : NULL; }

mok_status mok_group_config_init(mok_group_config *config_out)
{
    if (config_out == NULL) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config_out is NULL: must point to a mok_group_config");
    }
    mok_group_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.num_ranks = 1;
    MOK_TRY(mok_base_environment_check());
    mok_base_environment_warn(variable_at);
    for (int idx = 0; idx < NUM_OPTIONS; idx++) {
        const mok_option *option = &table[idx].shown;
        const char *text = getenv(option->env);
        MOK_TRY(set_from(&table[idx], option->name, option->initial, &config));
        if (text != NULL && text[0] != '\0') {
            MOK_TRY(set_from(&table[idx], option->env, text, &config));
        }
    }
    *config_out = config;
    return MOK_OK;
}

int32_t mok_option_count(void) { return NUM_OPTIONS; }

const mok_option *mok_option_get(int32_t idx) { return idx < 0 || idx >= NUM_OPTIONS ? NULL : &table[idx].shown; }

mok_status mok_option_set(mok_group_config *config, const char *name, const char *value)
{
    if (config == NULL || name == NULL || value == NULL) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s is NULL: config, name and value must be given",
                             config == NULL ? "config" : name == NULL ? "name" : "value");
    }
    if (config->struct_size != sizeof *config) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.struct_size is %zu: must be %zu, set by mok_group_config_init", config->struct_size,
                             sizeof *config);
    }
    const struct option_entry *entry = find(name);
    if (entry == NULL) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "name is '%s': no option has it; mok_option_get lists them", name);
    }
    return set_from(entry, name, value, config);
}

mok_status mok_base_options_check(const mok_group_config *config)
{
    for (int idx = 0; idx < NUM_OPTIONS; idx++) {
        const struct option_entry *entry = &table[idx];
        int64_t value = read_field(entry, config);
        const char *word;
        char words[160];
        int is_legal = is_choice(entry) ? value >= 0 && choice_at(entry->shown.value, value, &word) > 0
                                        : value >= entry->least && value <= entry->most && value % entry->multiple == 0;
        if (!is_legal) {
            return mok_base_fail(MOK_ERR_ARGUMENT, "config.%s is %" PRId64 ": must be %s", entry->field, value,
                                 rule(entry, words, sizeof words));
        }
    }
    return MOK_OK;
}

void mok_base_option_print(const char *name, int64_t value, char *text, size_t size)
{
    const struct option_entry *entry = name == NULL ? NULL : find(name);
    const char *word = NULL;
    size_t length = 0;
    if (entry != NULL && is_choice(entry)) {
        length = value < 0 ? 0 : choice_at(entry->shown.value, value, &word);
    } else if (entry != NULL && entry->word != NULL && value == entry->word_value) {
        word = entry->word;
        length = strlen(word);
    }
    if (length > 0) {
        snprintf(text, size, "%.*s", (int)length, word);
    } else {
        snprintf(text, size, "%" PRId64, value);
    }
}
