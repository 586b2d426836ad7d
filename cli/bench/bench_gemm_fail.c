/*
 * The launch functions of src/cuda/gemm are compiled into the tool: the shared library does not export them. Their failures become sentences of the
 * tool.
 */
#include <stdarg.h>
#include <stdio.h>

#include "message.h"

mok_status mok_base_fail(mok_status status, const char *format, ...)
{
    char text[512];
    va_list values;
    va_start(values, format);
    (void)vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return mok_cli_fail(status, "%s", text);
}
