/*
 * One JSON tree to one file.
 */
#include "json_file.h"

#include <stdio.h>

#include "output_file.h"

mok_status mok_json_write(cJSON *root, const char *path)
{
    struct mok_output output;
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (text == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "%s: no memory for the JSON text", path);
    }
    mok_status status = mok_output_open(path, &output);
    if (status == MOK_OK) {
        status = mok_output_close(&output, fprintf(output.file, "%s\n", text) >= 0);
    }
    cJSON_free(text);
    return status;
}
