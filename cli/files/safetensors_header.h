/*
 * The text of a safetensors header, before JSON is parsed: what a JSON parser lets through and the format does not.
 */
#ifndef MOK_CLI_SAFETENSORS_HEADER_H
#define MOK_CLI_SAFETENSORS_HEADER_H

#include <stddef.h>

#include "message.h"

/* MOK_ERR_IO unless text [size] starts with '{', is UTF-8 without control characters inside strings, has no escaped NUL (it would cut a
 * name short), is nested at most 4 deep, and its numbers are plain: digits alone, no leading zero. label stands for the file in the
 * sentence. */
mok_status mok_safetensors_check_header(const char *label, const char *text, size_t size);

#endif
