/*
 * Failing with a sentence. The function that decides that something is wrong calls mok_base_fail once, with the condition, the values and
 * the rank; every function above it forwards the status with MOK_TRY and stays silent. mok_last_error() (per thread) gives the sentence.
 */
#ifndef MOK_BASE_STATUS_H
#define MOK_BASE_STATUS_H

#include <mok/mok.h>

enum { MOK_SENTENCE_BYTES = 1024 }; /* of the longest sentence, with its end */

/* Stores the sentence for mok_last_error, logs it when MOK_LOG asks for it, and returns `status`. */
mok_status mok_base_fail(mok_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Makes a sentence that was decided (and logged) earlier this thread's last error again, and returns `status`. */
mok_status mok_base_repeat(mok_status status, const char *text);

/* Copies this thread's sentence into `text` (cut to size, always terminated); for worker threads that hand a failure to a caller. */
void mok_base_error_copy(char *text, size_t size);

/* A status with its sentence, kept while other calls go on that may fail, too. */
struct mok_kept {
    mok_status status;
    char text[MOK_SENTENCE_BYTES];
};

/* `status`, and this thread's sentence as it is now. */
struct mok_kept mok_base_keep(mok_status status);
/* mok_base_repeat of what was kept. */
mok_status mok_base_repeat_kept(const struct mok_kept *kept);

#define MOK_TRY(call)                              \
    do {                                           \
        mok_status mok_try_status_ = (call);       \
        if (mok_try_status_ != MOK_OK) {           \
            return mok_try_status_;                \
        }                                          \
    } while (0)

#endif
