/*
 * The log. A line is put together first and written at once, so that lines of several threads do not mix.
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local int num_pauses;

void mok_base_log_pause(void) { num_pauses++; }

void mok_base_log_resume(void) { num_pauses--; }

int mok_base_log_parse(const char *text, enum mok_log_level *level_out)
{
    static const struct {
        const char *text;
        enum mok_log_level level;
    } values[] = {{"", MOK_LOG_WARNINGS}, {"0", MOK_LOG_NOTHING}, {"1", MOK_LOG_FAILURES}, {"2", MOK_LOG_CHOICES}};
    for (size_t idx = 0; idx < sizeof values / sizeof values[0]; idx++) {
        if (strcmp(text == NULL ? "" : text, values[idx].text) == 0) {
            *level_out = values[idx].level;
            return 1;
        }
    }
    return 0;
}

int mok_base_log_wants(enum mok_log_level level)
{
    enum mok_log_level wanted = MOK_LOG_WARNINGS;
    (void)mok_base_log_parse(getenv("MOK_LOG"), &wanted);
    return num_pauses == 0 && wanted >= level;
}

void mok_base_log(enum mok_log_level level, const char *format, ...)
{
    if (!mok_base_log_wants(level)) {
        return;
    }
    char line[1280];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "mok: %s\n", line);
}
