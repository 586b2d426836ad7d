/*
 * Sentences of failures, progress on a terminal, exit codes.
 */
#include "message.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Thread_local char sentence[1024];

mok_status mok_cli_fail(mok_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return status;
}

mok_status mok_cli_check(mok_status status)
{
    if (status != MOK_OK) {
        snprintf(sentence, sizeof sentence, "%s", mok_last_error());
    }
    return status;
}

const char *mok_cli_sentence(void) { return sentence; }

void mok_cli_say_rank(int32_t rank, const char *words, char *text, size_t size)
{
    if (strncmp(words, "rank ", 5) == 0) {
        snprintf(text, size, "%s", words);
    } else {
        snprintf(text, size, "rank %d: %s", (int)rank, words);
    }
}

const char *mok_cli_quote(const char *text)
{
    enum { NUM_TEXTS = 4, MAX_BYTES = 80 };
    static _Thread_local char texts[NUM_TEXTS][MAX_BYTES + sizeof "..."];
    static _Thread_local unsigned turn;
    char *out = texts[turn++ % NUM_TEXTS];
    size_t length = strnlen(text, MAX_BYTES + 1);
    size_t shown = length > MAX_BYTES ? MAX_BYTES : length;
    for (size_t idx = 0; idx < shown; idx++) {
        out[idx] = text[idx] >= ' ' && text[idx] <= '~' ? text[idx] : '?';
    }
    strcpy(out + shown, length > MAX_BYTES ? "..." : "");
    return out;
}

static int progress_shown;

void mok_cli_progress(const char *format, ...)
{
    if (!isatty(STDERR_FILENO)) {
        return;
    }
    va_list args;
    va_start(args, format);
    fputs("\r\033[K", stderr);
    vfprintf(stderr, format, args);
    va_end(args);
    fflush(stderr);
    progress_shown = 1;
}

void mok_cli_progress_end(void)
{
    if (progress_shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        progress_shown = 0;
    }
}

int mok_cli_exit_of(mok_status status)
{
    switch (status) {
    case MOK_OK: return MOK_CLI_EXIT_OK;
    case MOK_ERR_NO_DEVICE:
    case MOK_ERR_UNSUPPORTED:
    case MOK_ERR_NOT_BUILT: return MOK_CLI_EXIT_SKIP;
    default: return MOK_CLI_EXIT_ERROR;
    }
}
