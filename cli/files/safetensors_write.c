/*
 * Writer of safetensors files. In: tensors in memory. Out: a file that the reader accepts; data start at a multiple of 8 bytes.
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "output_file.h"
#include "files/safetensors.h"

/* The header as text (malloc by cJSON), NULL when memory ran out. */
static char *make_header(const struct mok_file_tensor *tensors, int64_t num, const char *about)
{
    cJSON *header = cJSON_CreateObject();
    cJSON *metadata = cJSON_AddObjectToObject(header, "__metadata__");
    int is_whole = cJSON_AddStringToObject(metadata, "about", about) != NULL;
    uint64_t begin = 0;
    for (int64_t idx = 0; idx < num && is_whole; idx++) {
        cJSON *entry = cJSON_AddObjectToObject(header, tensors[idx].name);
        cJSON *shape;
        cJSON *place;
        is_whole = cJSON_AddStringToObject(entry, "dtype", mok_file_type_name(tensors[idx].type)) != NULL;
        shape = cJSON_AddArrayToObject(entry, "shape");
        for (int32_t dim = 0; dim < tensors[idx].num_dims; dim++) {
            is_whole &= cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensors[idx].dims[dim]));
        }
        place = cJSON_AddArrayToObject(entry, "data_offsets");
        is_whole &= cJSON_AddItemToArray(place, cJSON_CreateNumber((double)begin));
        begin += tensors[idx].bytes;
        is_whole &= cJSON_AddItemToArray(place, cJSON_CreateNumber((double)begin));
    }
    char *text = is_whole ? cJSON_PrintUnformatted(header) : NULL;
    cJSON_Delete(header);
    return text;
}

static int write_all(FILE *out, const char *header, const struct mok_file_tensor *tensors, int64_t num)
{
    size_t length = strlen(header);
    size_t padded = (length + 7) / 8 * 8;
    unsigned char head[8];
    for (int idx = 0; idx < 8; idx++) {
        head[idx] = (unsigned char)((uint64_t)padded >> 8 * idx);
    }
    int is_good = fwrite(head, 1, sizeof head, out) == sizeof head && fwrite(header, 1, length, out) == length &&
                  fwrite("       ", 1, padded - length, out) == padded - length;
    for (int64_t idx = 0; idx < num && is_good; idx++) {
        is_good = tensors[idx].bytes == 0 || fwrite(tensors[idx].data, 1, tensors[idx].bytes, out) == tensors[idx].bytes;
    }
    return is_good;
}

mok_status mok_safetensors_write(const char *path, const struct mok_file_tensor *tensors, int64_t num, const char *about)
{
    struct mok_output output;
    char *header = make_header(tensors, num, about);
    if (header == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "%s: no memory for the header of %" PRId64 " tensors", path, num);
    }
    mok_status status = mok_output_open(path, &output);
    if (status == MOK_OK) {
        status = mok_output_close(&output, write_all(output.file, header, tensors, num));
    }
    cJSON_free(header);
    return status;
}
