/*
 * Reader of safetensors files. In: bytes that anybody may have written. Out: tensors whose names, types, sizes and places have been
 * checked.
 *
 * Order of the checks: the container (length, size, UTF-8, plain numbers), then JSON by cJSON, then tensor by tensor, then all tensors
 * together (names used once, data covered without overlap or hole). Every size is computed in 64 bits with overflow checks.
 */
#include "files/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "files/input_file.h"
#include "files/safetensors_header.h"

/* The format's own limit; without one a hostile length would make us parse gigabytes. */
#define MAX_HEADER_BYTES ((uint64_t)100 * 1000 * 1000)

struct mok_safetensors {
    char *label;
    void *mapping; /* NULL: the memory is the caller's */
    size_t mapping_bytes;
    const unsigned char *data; /* behind the header */
    uint64_t data_bytes;
    cJSON *header;                   /* owns the names */
    struct mok_file_tensor *tensors; /* by name */
    int64_t num_tensors;
};

static const struct {
    const char *name;
    int32_t bits;
} types[MOK_FILE_NUM_TYPES] = {
    [MOK_FILE_BOOL] = {"BOOL", 8},       [MOK_FILE_U8] = {"U8", 8},           [MOK_FILE_I8] = {"I8", 8},
    [MOK_FILE_U16] = {"U16", 16},        [MOK_FILE_I16] = {"I16", 16},        [MOK_FILE_U32] = {"U32", 32},
    [MOK_FILE_I32] = {"I32", 32},        [MOK_FILE_U64] = {"U64", 64},        [MOK_FILE_I64] = {"I64", 64},
    [MOK_FILE_F16] = {"F16", 16},        [MOK_FILE_BF16] = {"BF16", 16},      [MOK_FILE_F32] = {"F32", 32},
    [MOK_FILE_F64] = {"F64", 64},        [MOK_FILE_C64] = {"C64", 64},        [MOK_FILE_F8_E4M3] = {"F8_E4M3", 8},
    [MOK_FILE_F8_E5M2] = {"F8_E5M2", 8}, [MOK_FILE_F8_E8M0] = {"F8_E8M0", 8}, [MOK_FILE_F6_E2M3] = {"F6_E2M3", 6},
    [MOK_FILE_F6_E3M2] = {"F6_E3M2", 6}, [MOK_FILE_F4] = {"F4", 4},
};

const char *mok_file_type_name(enum mok_file_type type) { return types[type].name; }

int32_t mok_file_type_bits(enum mok_file_type type) { return types[type].bits; }

const char *mok_file_shape_text(const struct mok_file_tensor *tensor, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int32_t dim = 0; dim < tensor->num_dims && used < size; dim++) {
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, dim == 0 ? "" : ", ", tensor->dims[dim]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
    return text;
}

/* ---- one tensor --------------------------------------------------------------------------------------------------------- */

/* A whole number that a double holds exactly: cJSON gives every number as a double, so 2^53 may stand for 2^53 + 1. */
static int is_count(const cJSON *item)
{
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble < 0x1p53 &&
           item->valuedouble == (double)(int64_t)item->valuedouble;
}

static mok_status refuse_number(const struct mok_safetensors *file, const char *name, const char *where, int32_t idx, const cJSON *item)
{
    char value[32] = "no number";
    if (cJSON_IsNumber(item)) {
        snprintf(value, sizeof value, "%.17g", item->valuedouble);
    }
    return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": %s[%d] is %s: must be a whole number below 2^53", file->label, name, where, idx,
                        value);
}

static mok_status read_type(const struct mok_safetensors *file, const cJSON *item, struct mok_file_tensor *tensor)
{
    if (!cJSON_IsString(item)) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": dtype is missing or no string", file->label, mok_cli_quote(tensor->name));
    }
    for (int type = 0; type < MOK_FILE_NUM_TYPES; type++) {
        if (strcmp(item->valuestring, types[type].name) == 0) {
            tensor->type = (enum mok_file_type)type;
            return MOK_OK;
        }
    }
    return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": dtype \"%s\" is not known", file->label, mok_cli_quote(tensor->name),
                        mok_cli_quote(item->valuestring));
}

/* Fills dims; *bits_out = product of the dims times the bits of the type. */
static mok_status read_shape(const struct mok_safetensors *file, const cJSON *item, struct mok_file_tensor *tensor, uint64_t *bits_out)
{
    const char *name = mok_cli_quote(tensor->name);
    if (!cJSON_IsArray(item)) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": shape is missing or no array", file->label, name);
    }
    uint64_t bits = (uint64_t)types[tensor->type].bits;
    tensor->num_dims = 0;
    const cJSON *dim;
    cJSON_ArrayForEach(dim, item)
    {
        if (tensor->num_dims == MOK_FILE_MAX_DIMS) {
            return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": shape has more than %d dimensions", file->label, name, MOK_FILE_MAX_DIMS);
        }
        if (!is_count(dim)) {
            return refuse_number(file, name, "shape", tensor->num_dims, dim);
        }
        tensor->dims[tensor->num_dims++] = (int64_t)dim->valuedouble;
        if (__builtin_mul_overflow(bits, (uint64_t)dim->valuedouble, &bits)) {
            return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": the shape's size does not fit 64 bits", file->label, name);
        }
    }
    if (bits % 8 != 0) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": %" PRIu64 " bits of %s are not whole bytes", file->label, name, bits,
                            types[tensor->type].name);
    }
    *bits_out = bits;
    return MOK_OK;
}

static mok_status read_place(const struct mok_safetensors *file, const cJSON *item, uint64_t bits, struct mok_file_tensor *tensor)
{
    const char *name = mok_cli_quote(tensor->name);
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": data_offsets is missing or no array of two numbers", file->label, name);
    }
    const cJSON *items[2] = {item->child, item->child->next};
    for (int idx = 0; idx < 2; idx++) {
        if (!is_count(items[idx])) {
            return refuse_number(file, name, "data_offsets", idx, items[idx]);
        }
    }
    uint64_t begin = (uint64_t)items[0]->valuedouble;
    uint64_t end = (uint64_t)items[1]->valuedouble;
    if (begin > end) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": data_offsets begin %" PRIu64 " is past their end %" PRIu64, file->label, name,
                            begin, end);
    }
    if (end > file->data_bytes) {
        return mok_cli_fail(MOK_ERR_IO,
                            "%s: tensor \"%s\": data_offsets end %" PRIu64 " is past the %" PRIu64 " bytes of data in the file",
                            file->label, name, end, file->data_bytes);
    }
    if (end - begin != bits / 8) {
        char shape[128];
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": data_offsets span %" PRIu64 " bytes, but %s %s needs %" PRIu64, file->label,
                            name, end - begin, types[tensor->type].name, mok_file_shape_text(tensor, shape, sizeof shape), bits / 8);
    }
    tensor->data = file->data + begin;
    tensor->bytes = end - begin;
    return MOK_OK;
}

static mok_status read_tensor(const struct mok_safetensors *file, const cJSON *item, struct mok_file_tensor *tensor)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    const cJSON *found[3] = {NULL, NULL, NULL};
    tensor->name = item->string;
    if (!cJSON_IsObject(item)) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": its header entry is no object", file->label, mok_cli_quote(tensor->name));
    }
    const cJSON *member;
    cJSON_ArrayForEach(member, item)
    {
        int key = 0;
        while (key < 3 && strcmp(member->string, keys[key]) != 0) {
            key++;
        }
        if (key == 3 || found[key] != NULL) {
            return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": header key \"%s\" is %s", file->label, mok_cli_quote(tensor->name),
                                mok_cli_quote(member->string), key == 3 ? "not known" : "there twice");
        }
        found[key] = member;
    }
    uint64_t bits = 0;
    MOK_TRY(read_type(file, found[0], tensor));
    MOK_TRY(read_shape(file, found[1], tensor, &bits));
    return read_place(file, found[2], bits, tensor);
}

/* ---- all tensors together ----------------------------------------------------------------------------------------------- */

static mok_status check_metadata(const struct mok_safetensors *file, const cJSON *metadata)
{
    const cJSON *entry = cJSON_IsObject(metadata) ? metadata->child : NULL;
    while (entry != NULL && cJSON_IsString(entry)) {
        entry = entry->next;
    }
    if (!cJSON_IsObject(metadata) || entry != NULL) {
        return mok_cli_fail(MOK_ERR_IO, "%s: __metadata__ must hold strings alone", file->label);
    }
    return MOK_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct mok_file_tensor *)a)->name, ((const struct mok_file_tensor *)b)->name);
}

/* Places first; empty tensors before the one that starts at the same place. */
static int by_place(const void *a, const void *b)
{
    const struct mok_file_tensor *left = *(const struct mok_file_tensor *const *)a;
    const struct mok_file_tensor *right = *(const struct mok_file_tensor *const *)b;
    if (left->data != right->data) {
        return left->data < right->data ? -1 : 1;
    }
    return left->bytes < right->bytes ? -1 : left->bytes > right->bytes;
}

static mok_status check_names(const struct mok_safetensors *file)
{
    for (int64_t idx = 1; idx < file->num_tensors; idx++) {
        if (strcmp(file->tensors[idx - 1].name, file->tensors[idx].name) == 0) {
            return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\" is there twice", file->label, mok_cli_quote(file->tensors[idx].name));
        }
    }
    return MOK_OK;
}

/* The data must be covered exactly: an overlap or a hole means that an offset is wrong, or that something is hidden. */
static mok_status check_cover(const struct mok_safetensors *file)
{
    const struct mok_file_tensor **order = malloc(((size_t)file->num_tensors + 1) * sizeof *order);
    if (order == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "%s: no memory for %" PRId64 " tensors", file->label, file->num_tensors);
    }
    for (int64_t idx = 0; idx < file->num_tensors; idx++) {
        order[idx] = &file->tensors[idx];
    }
    qsort(order, (size_t)file->num_tensors, sizeof *order, by_place);
    mok_status status = MOK_OK;
    uint64_t covered = 0;
    for (int64_t idx = 0; idx < file->num_tensors && status == MOK_OK; idx++) {
        uint64_t begin = (uint64_t)((const unsigned char *)order[idx]->data - file->data);
        if (begin != covered) {
            const char *rule = begin < covered ? "but the tensor before it ends at" : "but nothing covers the data from";
            status = mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\": its data begin at %" PRIu64 ", %s %" PRIu64, file->label,
                                  mok_cli_quote(order[idx]->name), begin, rule, covered);
        }
        covered = begin + order[idx]->bytes;
    }
    if (status == MOK_OK && covered != file->data_bytes) {
        status = mok_cli_fail(MOK_ERR_IO, "%s: the tensors end at byte %" PRIu64 " of the data, the file at %" PRIu64, file->label,
                              covered, file->data_bytes);
    }
    free(order);
    return status;
}

static mok_status read_tensors(struct mok_safetensors *file)
{
    int64_t room = 0;
    for (const cJSON *item = file->header->child; item != NULL; item = item->next) {
        room++;
    }
    file->tensors = calloc((size_t)room + 1, sizeof *file->tensors);
    if (file->tensors == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "%s: no memory for %" PRId64 " tensors", file->label, room);
    }
    int has_metadata = 0;
    for (const cJSON *item = file->header->child; item != NULL; item = item->next) {
        if (strcmp(item->string, "__metadata__") == 0) {
            if (has_metadata++) {
                return mok_cli_fail(MOK_ERR_IO, "%s: __metadata__ is there twice", file->label);
            }
            MOK_TRY(check_metadata(file, item));
        } else {
            MOK_TRY(read_tensor(file, item, &file->tensors[file->num_tensors]));
            file->num_tensors++;
        }
    }
    qsort(file->tensors, (size_t)file->num_tensors, sizeof *file->tensors, by_name);
    MOK_TRY(check_names(file));
    return check_cover(file);
}

/* ---- opening ------------------------------------------------------------------------------------------------------------ */

static mok_status read_bytes(struct mok_safetensors *file, const unsigned char *bytes, size_t size)
{
    if (size < 8) {
        return mok_cli_fail(MOK_ERR_IO, "%s: the file has %zu bytes; 8 bytes of header length must come first", file->label, size);
    }
    uint64_t header_bytes = 0;
    for (int idx = 7; idx >= 0; idx--) {
        header_bytes = header_bytes << 8 | bytes[idx];
    }
    if (header_bytes > MAX_HEADER_BYTES) {
        return mok_cli_fail(MOK_ERR_IO, "%s: header length %" PRIu64 " is more than %" PRIu64 " (is this a safetensors file?)",
                            file->label, header_bytes, MAX_HEADER_BYTES);
    }
    if (header_bytes > size - 8) {
        return mok_cli_fail(MOK_ERR_IO, "%s: header length %" PRIu64 " is more than the %zu bytes that follow it", file->label,
                            header_bytes, size - 8);
    }
    const char *header = (const char *)bytes + 8;
    MOK_TRY(mok_safetensors_check_header(file->label, header, (size_t)header_bytes));
    const char *end = NULL;
    file->header = cJSON_ParseWithLengthOpts(header, (size_t)header_bytes, &end, 0);
    if (file->header == NULL) {
        return mok_cli_fail(MOK_ERR_IO, "%s: the header is not valid JSON at byte %td", file->label, end == NULL ? 0 : end - header);
    }
    while (end < header + header_bytes && *end == ' ') {
        end++;
    }
    if (end != header + header_bytes || !cJSON_IsObject(file->header)) {
        return mok_cli_fail(MOK_ERR_IO, "%s: the header must be one JSON object, padded with blanks at most", file->label);
    }
    file->data = bytes + 8 + header_bytes;
    file->data_bytes = size - 8 - header_bytes;
    return read_tensors(file);
}

/* An empty object with its label. */
static mok_status make_file(const char *label, struct mok_safetensors **file_out)
{
    struct mok_safetensors *file = calloc(1, sizeof *file);
    char *copy = strdup(label);
    if (file == NULL || copy == NULL) {
        free(file);
        free(copy);
        return mok_cli_fail(MOK_ERR_MEMORY, "%s: no memory", label);
    }
    file->label = copy;
    *file_out = file;
    return MOK_OK;
}

/* Takes over `file`: it is handed out or closed. */
static mok_status finish_open(struct mok_safetensors *file, const void *data, size_t size, struct mok_safetensors **file_out)
{
    mok_status status = read_bytes(file, data, size);
    if (status != MOK_OK) {
        mok_safetensors_close(file);
        return status;
    }
    *file_out = file;
    return MOK_OK;
}

mok_status mok_safetensors_open_memory(const void *data, size_t size, const char *label, struct mok_safetensors **file_out)
{
    struct mok_safetensors *file = NULL;
    MOK_TRY(make_file(label, &file));
    return finish_open(file, data, size, file_out);
}

mok_status mok_safetensors_open(const char *path, struct mok_safetensors **file_out)
{
    int fd;
    size_t size;
    MOK_TRY(mok_input_open(path, &fd, &size));
    struct mok_safetensors *file = NULL;
    mok_status status = make_file(path, &file);
    if (status != MOK_OK) {
        close(fd);
        return status;
    }
    void *mapping = size == 0 ? NULL : mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    int cause = errno;
    close(fd);
    if (mapping == MAP_FAILED) {
        mok_safetensors_close(file);
        return mok_cli_fail(MOK_ERR_IO, "%s: cannot be mapped: %s", path, strerror(cause));
    }
    file->mapping = mapping;
    file->mapping_bytes = size;
    return finish_open(file, mapping, size, file_out);
}

void mok_safetensors_close(struct mok_safetensors *file)
{
    if (file == NULL) {
        return;
    }
    cJSON_Delete(file->header);
    free(file->tensors);
    if (file->mapping != NULL) {
        munmap(file->mapping, file->mapping_bytes);
    }
    free(file->label);
    free(file);
}

const char *mok_safetensors_label(const struct mok_safetensors *file) { return file->label; }

int64_t mok_safetensors_count(const struct mok_safetensors *file) { return file->num_tensors; }

const struct mok_file_tensor *mok_safetensors_at(const struct mok_safetensors *file, int64_t idx) { return &file->tensors[idx]; }

const struct mok_file_tensor *mok_safetensors_find(const struct mok_safetensors *file, const char *name)
{
    struct mok_file_tensor key = {.name = name};
    return file->num_tensors == 0 ? NULL : bsearch(&key, file->tensors, (size_t)file->num_tensors, sizeof key, by_name);
}
