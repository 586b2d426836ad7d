/*
 * JSON that a command writes: a tree of cJSON to a file.
 */
#ifndef MOK_CLI_JSON_FILE_H
#define MOK_CLI_JSON_FILE_H

#include <cjson/cJSON.h>

#include "message.h"

/* Writes root to path (output_file.h), ends it with a newline, and deletes root. A NULL root, or one that cannot be printed, is
 * MOK_ERR_MEMORY. */
mok_status mok_json_write(cJSON *root, const char *path);

#endif
