/*
 * Status names and the sentence of the last failure (one per thread).
 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"

static _Thread_local char last_error[MOK_SENTENCE_BYTES];

mok_status mok_base_fail(mok_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    mok_base_log(MOK_LOG_FAILURES, "%s: %s", mok_status_name(status), last_error);
    return status;
}

mok_status mok_base_repeat(mok_status status, const char *text)
{
    if (text != last_error) {
        snprintf(last_error, sizeof last_error, "%s", text);
    }
    return status;
}

void mok_base_error_copy(char *text, size_t size) { snprintf(text, size, "%s", last_error); }

struct mok_kept mok_base_keep(mok_status status)
{
    struct mok_kept kept = {.status = status};
    mok_base_error_copy(kept.text, sizeof kept.text);
    return kept;
}

mok_status mok_base_repeat_kept(const struct mok_kept *kept) { return mok_base_repeat(kept->status, kept->text); }

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
