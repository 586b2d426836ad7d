/*
 * Status names, the sentence of the last failure (one per thread), and the log of failures.
 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_error[1024];

/* MOK_LOG=1 (anything but empty and "0") prints each failure to stderr where it is decided. */
static int is_logging(void)
{
    const char *value = getenv("MOK_LOG");
    return value != NULL && value[0] != '\0' && strcmp(value, "0") != 0;
}

mok_status mok_base_fail(mok_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    if (is_logging()) {
        fprintf(stderr, "mok: %s: %s\n", mok_status_name(status), last_error);
    }
    return status;
}

void mok_base_error_copy(char *text, size_t size) { snprintf(text, size, "%s", last_error); }

const char *mok_last_error(void) { return last_error; }

const char *mok_status_name(mok_status status)
{
    switch (status) {
    case MOK_OK: return "MOK_OK";
    case MOK_ERR_ARGUMENT: return "MOK_ERR_ARGUMENT";
    case MOK_ERR_MISMATCH: return "MOK_ERR_MISMATCH";
    case MOK_ERR_DISAGREE: return "MOK_ERR_DISAGREE";
    case MOK_ERR_MEMORY: return "MOK_ERR_MEMORY";
    case MOK_ERR_NO_DEVICE: return "MOK_ERR_NO_DEVICE";
    case MOK_ERR_UNSUPPORTED: return "MOK_ERR_UNSUPPORTED";
    case MOK_ERR_NOT_BUILT: return "MOK_ERR_NOT_BUILT";
    case MOK_ERR_IO: return "MOK_ERR_IO";
    case MOK_ERR_TIMEOUT: return "MOK_ERR_TIMEOUT";
    case MOK_ERR_ABORTED: return "MOK_ERR_ABORTED";
    case MOK_ERR_DEVICE: return "MOK_ERR_DEVICE";
    case MOK_ERR_INTERNAL: return "MOK_ERR_INTERNAL";
    }
    return "MOK_ERR_UNKNOWN";
}
