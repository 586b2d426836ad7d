/*
 * Makes the files that the command-line tests feed to mok: copies of golden layers with one thing wrong each, and hostile bytes.
 * Usage: bad_files GOLDEN_DIR OUT_DIR
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/safetensors.h"

enum { MAX_TENSORS = 512 };

struct copy {
    struct mok_safetensors *file;
    struct mok_file_tensor tensors[MAX_TENSORS];
    int64_t num;
};

static void require(int condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "bad_files: %s: %s\n", what, mok_cli_sentence());
        exit(1);
    }
}

static struct copy open_copy(const char *folder, const char *name)
{
    struct copy copy = {.num = 0};
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    require(mok_safetensors_open(path, &copy.file) == MOK_OK, path);
    copy.num = mok_safetensors_count(copy.file);
    require(copy.num <= MAX_TENSORS, "too many tensors");
    for (int64_t idx = 0; idx < copy.num; idx++) {
        copy.tensors[idx] = *mok_safetensors_at(copy.file, idx);
    }
    return copy;
}

static struct mok_file_tensor *find(struct copy *copy, const char *name)
{
    for (int64_t idx = 0; idx < copy->num; idx++) {
        if (strcmp(copy->tensors[idx].name, name) == 0) {
            return &copy->tensors[idx];
        }
    }
    require(0, name);
    return NULL;
}

static void write_copy(struct copy *copy, const char *folder, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    require(mok_safetensors_write(path, copy->tensors, copy->num, "a test") == MOK_OK, path);
    mok_safetensors_close(copy->file);
}

static void write_bytes(const char *folder, const char *name, const void *bytes, size_t size)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "wb");
    require(out != NULL && fwrite(bytes, 1, size, out) == size && fclose(out) == 0, path);
}

static void write_header(const char *folder, const char *name, const char *header, size_t data_bytes)
{
    unsigned char bytes[1024] = {0};
    size_t length = strlen(header);
    bytes[0] = (unsigned char)length;
    bytes[1] = (unsigned char)(length >> 8);
    memcpy(bytes + 8, header, length);
    write_bytes(folder, name, bytes, 8 + length + data_bytes);
}

static void make_containers(const char *golden, const char *out)
{
    write_bytes(out, "text.safetensors", "This is no tensor file, but a text that somebody saved under a wrong name.\n", 75);
    write_bytes(out, "empty.safetensors", "", 0);
    write_header(
        out, "overlap.safetensors",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
        6);
    write_header(out, "negative.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]}}", 4);
    write_header(out, "huge.safetensors", "{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4);
    write_header(
        out, "twice.safetensors",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
        8);
    char path[1024];
    unsigned char bytes[65536];
    snprintf(path, sizeof path, "%s/qwen3_moe/layer.safetensors", golden);
    FILE *in = fopen(path, "rb");
    require(in != NULL && fread(bytes, 1, sizeof bytes, in) == sizeof bytes && fclose(in) == 0, path);
    write_bytes(out, "truncated.safetensors", bytes, sizeof bytes);
}

#define LAYER "model.layers.0.mlp."

/* Six tensors that routers might be: a.gate.weight to f.gate.weight. */
static void make_many_layers(const char *golden, const char *out)
{
    struct copy copy = open_copy(golden, "qwen3_moe/layer.safetensors");
    char names[6][16];
    struct mok_file_tensor *gate = find(&copy, LAYER "gate.weight");
    struct mok_file_tensor tensor = *gate;
    for (copy.num = 0; copy.num < 6; copy.num++) {
        snprintf(names[copy.num], sizeof names[copy.num], "%c.gate.weight", (int)('a' + copy.num));
        copy.tensors[copy.num] = tensor;
        copy.tensors[copy.num].name = names[copy.num];
    }
    write_copy(&copy, out, "layers.safetensors");
}

static void make_layers(const char *golden, const char *out)
{
    make_many_layers(golden, out);
    struct copy copy = open_copy(golden, "qwen3_moe/layer.safetensors");
    *find(&copy, LAYER "experts.7.up_proj.weight") = copy.tensors[copy.num - 1];
    copy.num--;
    write_copy(&copy, out, "missing.safetensors");

    copy = open_copy(golden, "qwen3_moe/layer.safetensors");
    struct mok_file_tensor *tensor = find(&copy, LAYER "experts.3.down_proj.weight");
    int64_t rows = tensor->dims[0];
    tensor->dims[0] = tensor->dims[1];
    tensor->dims[1] = rows;
    write_copy(&copy, out, "shape.safetensors");

    copy = open_copy(golden, "qwen3_moe/layer.safetensors");
    find(&copy, LAYER "experts.0.gate_proj.weight")->type = MOK_FILE_F16;
    write_copy(&copy, out, "dtype.safetensors");

    copy = open_copy(golden, "gpt_oss/layer.safetensors");
    tensor = find(&copy, LAYER "experts.down_proj_bias");
    uint16_t *bias = calloc(1, tensor->bytes);
    require(bias != NULL, "memory");
    bias[5] = 0x3F80;
    tensor->data = bias;
    write_copy(&copy, out, "bias.safetensors");
    free(bias);
}

/* A copy of a golden input file with one 32-bit or 64-bit word of a tensor changed by `change`. */
static void make_changed(const char *golden, const char *out, const char *name, const char *tensor_name, size_t at, const void *value,
                         size_t size)
{
    struct copy copy = open_copy(golden, "qwen3_moe/io.safetensors");
    struct mok_file_tensor *tensor = find(&copy, tensor_name);
    unsigned char *data = malloc(tensor->bytes);
    require(data != NULL && (at + 1) * size <= tensor->bytes, "memory");
    memcpy(data, tensor->data, tensor->bytes);
    memcpy(data + at * size, value, size);
    tensor->data = data;
    write_copy(&copy, out, name);
    free(data);
}

/* Row `token` of hidden_states begins with NaN. wanted: NULL = only x and dy stand in the file, else what the stored output says of that
 * row, with NaN or without. */
static void make_nan_row(const char *golden, const char *out, const char *name, size_t token, const float *wanted)
{
    struct copy copy = open_copy(golden, "qwen3_moe/io.safetensors");
    struct mok_file_tensor kept[3] = {*find(&copy, "hidden_states"), *find(&copy, "grad_output"), *find(&copy, "output")};
    size_t hidden = (size_t)kept[0].dims[1];
    uint16_t *x = malloc(kept[0].bytes);
    float *y = malloc(kept[2].bytes);
    require(x != NULL && y != NULL, "memory");
    memcpy(x, kept[0].data, kept[0].bytes);
    memcpy(y, kept[2].data, kept[2].bytes);
    x[token * hidden] = 0x7FC0;
    for (size_t col = 0; col < hidden && wanted != NULL; col++) {
        y[token * hidden + col] = *wanted;
    }
    kept[0].data = x;
    kept[2].data = y;
    copy.num = wanted == NULL ? 2 : 3;
    memcpy(copy.tensors, kept, sizeof kept);
    write_copy(&copy, out, name);
    free(x);
    free(y);
}

static void make_inputs(const char *golden, const char *out)
{
    make_nan_row(golden, out, "io_nan_row.safetensors", 7, NULL);
    make_nan_row(golden, out, "io_nan_row_stored.safetensors", 7, &(float){NAN});
    make_nan_row(golden, out, "io_nan_row_alone.safetensors", 7, &(float){1.0f});
    make_changed(golden, out, "io_output.safetensors", "output", 17 * 64 + 5, &(float){100.0f}, sizeof(float));
    make_changed(golden, out, "io_nan.safetensors", "output", 20 * 64, &(uint32_t){0x7FC00000}, sizeof(uint32_t));
    make_changed(golden, out, "io_ids.safetensors", "topk_ids", 9 * 4 + 2, &(int64_t){4294967296 + 3}, sizeof(int64_t));
    make_changed(golden, out, "io_gradient.safetensors", "grad_hidden_states", 3 * 64 + 1, &(float){-50.0f}, sizeof(float));
    struct copy copy = open_copy(golden, "qwen3_moe/io.safetensors");
    struct mok_file_tensor *ids = find(&copy, "topk_ids");
    ids->type = MOK_FILE_U64; /* the same bits under another name */
    write_copy(&copy, out, "io_ids_type.safetensors");
    copy = open_copy(golden, "qwen3_moe/io.safetensors");
    ids = find(&copy, "topk_ids");
    ids->type = MOK_FILE_I32; /* the same bytes, twice as many numbers: must not be read as such */
    ids->dims[1] *= 2;
    write_copy(&copy, out, "io_ids_width.safetensors");
    copy = open_copy(golden, "mixtral/io.safetensors");
    write_copy(&copy, out, "io_other_model.safetensors");
    copy = open_copy(golden, "qwen3_moe/io.safetensors");
    struct mok_file_tensor *x = find(&copy, "hidden_states");
    int64_t hidden = x->dims[1];
    x->dims[2] = hidden;
    x->dims[1] = x->dims[0];
    x->dims[0] = 1;
    x->num_dims = 3;
    write_copy(&copy, out, "io_batch.safetensors");
    copy = open_copy(golden, "qwen3_moe/io.safetensors");
    *find(&copy, "hidden_states") = copy.tensors[copy.num - 1];
    copy.num--;
    write_copy(&copy, out, "io_without_input.safetensors");
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: bad_files GOLDEN_DIR OUT_DIR\n");
        return 2;
    }
    make_containers(argv[1], argv[2]);
    make_layers(argv[1], argv[2]);
    make_inputs(argv[1], argv[2]);
    return 0;
}
