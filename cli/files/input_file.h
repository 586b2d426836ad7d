/*
 * Opening a file that is read. It must be a regular one: a FIFO would wait for its writer without end, a device or a folder has no size.
 */
#ifndef MOK_FILES_INPUT_FILE_H
#define MOK_FILES_INPUT_FILE_H

#include <stddef.h>

#include "message.h"

/* An open descriptor, the caller's to close, and the file's size. Never waits. Errors: IO. */
mok_status mok_input_open(const char *path, int *file_out, size_t *bytes_out);

#endif
