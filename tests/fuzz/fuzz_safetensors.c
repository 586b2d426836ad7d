/*
 * libFuzzer target: the safetensors reader on any bytes. Every tensor that it accepts must lie inside the input and be as long as its
 * shape and type say; the reader must neither crash nor read out of bounds (address and undefined-behaviour sanitizers watch).
 */
#include <stdint.h>
#include <stdlib.h>

#include "files/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mok_safetensors *file;
    if (mok_safetensors_open_memory(data, size, "input", &file) != MOK_OK) {
        require(mok_cli_sentence()[0] != '\0');
        return 0;
    }
    uint64_t sum = 0;
    for (int64_t idx = 0; idx < mok_safetensors_count(file); idx++) {
        const struct mok_file_tensor *tensor = mok_safetensors_at(file, idx);
        const uint8_t *first = tensor->data;
        uint64_t bits = (uint64_t)mok_file_type_bits(tensor->type);
        for (int32_t dim = 0; dim < tensor->num_dims; dim++) {
            bits *= (uint64_t)tensor->dims[dim];
        }
        require(first >= data && first <= data + size && tensor->bytes <= (uint64_t)(data + size - first));
        require(bits == tensor->bytes * 8);
        require(mok_safetensors_find(file, tensor->name) == tensor);
        sum += tensor->bytes;
    }
    require(sum <= size);
    mok_safetensors_close(file);
    return 0;
}
