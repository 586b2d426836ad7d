/*
 * Safetensors files: 8 bytes of header length (little endian), a JSON header {name: {dtype, shape, data_offsets}}, then the data.
 *
 * The reader takes a file or a piece of memory that anybody may have written. It accepts a file only when every rule of the format holds
 * (lengths, types, sizes, names used once, the data covered by the tensors without overlap or hole); else it refuses with one sentence
 * that names file, tensor, value and rule. What it has accepted can be read without further checks of sizes.
 *
 * Errors: MOK_ERR_IO for what is wrong with a file, MOK_ERR_MEMORY.
 */
#ifndef MOK_CLI_SAFETENSORS_H
#define MOK_CLI_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "message.h"

enum mok_file_type {
    MOK_FILE_BOOL,
    MOK_FILE_U8,
    MOK_FILE_I8,
    MOK_FILE_U16,
    MOK_FILE_I16,
    MOK_FILE_U32,
    MOK_FILE_I32,
    MOK_FILE_U64,
    MOK_FILE_I64,
    MOK_FILE_F16,
    MOK_FILE_BF16,
    MOK_FILE_F32,
    MOK_FILE_F64,
    MOK_FILE_C64,
    MOK_FILE_F8_E4M3,
    MOK_FILE_F8_E5M2,
    MOK_FILE_F8_E8M0,
    MOK_FILE_F6_E2M3,
    MOK_FILE_F6_E3M2,
    MOK_FILE_F4,
    MOK_FILE_NUM_TYPES
};

enum { MOK_FILE_MAX_DIMS = 8 };

struct mok_file_tensor {
    const char *name;
    enum mok_file_type type;
    int32_t num_dims; /* 0 = a single value */
    int64_t dims[MOK_FILE_MAX_DIMS];
    const void *data; /* no alignment is promised: copy with memcpy */
    uint64_t bytes;
};

struct mok_safetensors;

mok_status mok_safetensors_open(const char *path, struct mok_safetensors **file_out);
/* data [size] stays the caller's and must outlive the object; label stands for the path in sentences. */
mok_status mok_safetensors_open_memory(const void *data, size_t size, const char *label, struct mok_safetensors **file_out);
/* NULL is accepted. */
void mok_safetensors_close(struct mok_safetensors *file);

const char *mok_safetensors_label(const struct mok_safetensors *file);
/* Tensors in the order of their names. */
int64_t mok_safetensors_count(const struct mok_safetensors *file);
const struct mok_file_tensor *mok_safetensors_at(const struct mok_safetensors *file, int64_t idx);
/* NULL when there is none of this name. */
const struct mok_file_tensor *mok_safetensors_find(const struct mok_safetensors *file, const char *name);

/* Writes num tensors (any order, names all different) to `path`, as output_file.h says: no half file is ever seen under the name.
 * about: one line for the file's metadata. */
mok_status mok_safetensors_write(const char *path, const struct mok_file_tensor *tensors, int64_t num, const char *about);

/* "BF16". */
const char *mok_file_type_name(enum mok_file_type type);
int32_t mok_file_type_bits(enum mok_file_type type);
/* "[64, 256]"; the text is cut to size. */
const char *mok_file_shape_text(const struct mok_file_tensor *tensor, char *text, size_t size);

#endif
