/*
 * One JSON tree to one file.
 */
#include "json_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

mok_status mok_json_write(cJSON *root, const char *path)
{
    char *text = cJSON_Print(root);
    int is_stdout = strcmp(path, "-") == 0;
    cJSON_Delete(root);
    if (text == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "%s: no memory for the JSON text", path);
    }
    FILE *out = is_stdout ? stdout : fopen(path, "w");
    int is_good = out != NULL && fprintf(out, "%s\n", text) >= 0;
    if (out != NULL) {
        is_good &= (is_stdout ? fflush(out) : fclose(out)) == 0;
    }
    cJSON_free(text);
    return is_good ? MOK_OK : mok_cli_fail(MOK_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
}
