/*
 * The log. A line is put together first and written at once, so that lines of several threads do not mix.
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static _Thread_local int num_pauses;

void mok_base_log_pause(void) { num_pauses++; }

void mok_base_log_resume(void) { num_pauses--; }

int mok_base_log_wants(enum mok_log_level level)
{
    const char *value = getenv("MOK_LOG");
    return num_pauses == 0 && value != NULL && strtol(value, NULL, 10) >= (long)level;
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
