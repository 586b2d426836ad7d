/*
 * The sentence of the last failure of the tool, one per thread, as mok_last_error is the library's. A function that decides that
 * something is wrong says so once with mok_cli_fail; the result of a library call goes through mok_cli_check, which takes the library's
 * sentence over.
 */
#ifndef MOK_CLI_MESSAGE_H
#define MOK_CLI_MESSAGE_H

#include <stddef.h>

#include <mok/mok.h>

#include "base/status.h" /* MOK_TRY */

mok_status mok_cli_fail(mok_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Status of a library call, unchanged. When it is a failure, mok_cli_sentence gives the library's sentence from now on. */
mok_status mok_cli_check(mok_status status);
const char *mok_cli_sentence(void);

/* The sentence behind "rank 2: ", where it does not begin with a rank already. */
void mok_cli_say_rank(int32_t rank, const char *words, char *text, size_t size);

/* Text from a file, safe to print: at most 80 bytes, what is not printable ASCII becomes '?'. Four results stay valid at a time, per
 * thread. */
const char *mok_cli_quote(const char *text);

/* One line that overwrites the last, on a terminal only. For work that takes seconds. */
void mok_cli_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void mok_cli_progress_end(void);

/* Exit codes of every command. */
enum mok_cli_exit {
    MOK_CLI_EXIT_OK = 0,
    MOK_CLI_EXIT_MISMATCH = 1, /* ran, and a result is wrong */
    MOK_CLI_EXIT_USAGE = 2,    /* the command line or a MOK_* variable */
    MOK_CLI_EXIT_ERROR = 3,    /* a file, memory, a time-out, ... */
    MOK_CLI_EXIT_SKIP = 77     /* this build or machine cannot do it */
};

/* Exit code of a failure. */
int mok_cli_exit_of(mok_status status);

#endif
