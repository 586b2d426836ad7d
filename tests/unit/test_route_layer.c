/*
 * The router helper's logits, and the whole helper on the trained layer: the stored routes come out.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bf16.h"
#include "mok/mok.h"

/* ---- logits ------------------------------------------------------------------------------------------------------------- */

static void test_logits_against_double(void **state)
{
    (void)state;
    const int32_t widths[] = {1, 7, 16, 17, 72, 257, 2880};
    enum { T = 3, E = 5, MAX_H = 2880 };
    mok_bf16 *x = malloc(T * MAX_H * sizeof *x);
    mok_bf16 *weight = malloc(E * MAX_H * sizeof *weight);
    const float bias[E] = {0.5f, -1.0f, 2.0f, 0.0f, 1e3f};
    float logits[T * E];
    float alone[E];
    assert_true(x != NULL && weight != NULL);
    srand(3);
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        int32_t hidden = widths[i];
        for (int32_t j = 0; j < T * hidden; j++) {
            x[j] = mok_bf16_from_float((float)rand() / (float)RAND_MAX - 0.5f);
        }
        for (int32_t j = 0; j < E * hidden; j++) {
            weight[j] = mok_bf16_from_float((float)rand() / (float)RAND_MAX - 0.5f);
        }
        assert_int_equal(mok_router_logits(x, weight, bias, T, hidden, E, logits), MOK_OK);
        for (int32_t t = 0; t < T; t++) {
            for (int32_t e = 0; e < E; e++) {
                double sum = bias[e];
                double size = fabs(bias[e]);
                for (int32_t j = 0; j < hidden; j++) {
                    double product = (double)mok_bf16_to_float(x[t * hidden + j]) * mok_bf16_to_float(weight[e * hidden + j]);
                    sum += product;
                    size += fabs(product);
                }
                assert_true(fabs(logits[t * E + e] - sum) <= size * 0x1p-23);
            }
            /* The same bits for a token by itself. */
            assert_int_equal(mok_router_logits(x + t * hidden, weight, bias, 1, hidden, E, alone), MOK_OK);
            assert_memory_equal(alone, logits + t * E, sizeof alone);
        }
    }
    free(x);
    free(weight);
}

/* ---- the trained layer -------------------------------------------------------------------------------------------------- */

/* A file of data/qwen3moe-code. */
static char *read_data(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", MOK_TEST_DATA, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail_msg("cannot open %s", path);
    }
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *content = malloc((size_t)size + 1);
    assert_non_null(content);
    assert_int_equal(fread(content, 1, (size_t)size, file), size);
    fclose(file);
    return content;
}

/* Bytes of a tensor in a safetensors file whose header is known to be well formed: the key, then "data_offsets":[first,last]. */
static const void *find_tensor(char *content, const char *name, size_t bytes)
{
    uint64_t header_bytes = 0;
    memcpy(&header_bytes, content, 8);
    char *header = content + 8;
    char first_data_byte = header[header_bytes];
    header[header_bytes] = '\0';
    char key[128];
    unsigned long long first = 0;
    unsigned long long last = 0;
    snprintf(key, sizeof key, "\"%s\":{", name);
    const char *entry = strstr(header, key);
    assert_non_null(entry);
    const char *offsets = strstr(entry, "\"data_offsets\":[");
    assert_non_null(offsets);
    assert_int_equal(sscanf(offsets, "\"data_offsets\":[%llu,%llu]", &first, &last), 2);
    header[header_bytes] = first_data_byte;
    assert_int_equal(last - first, bytes);
    return header + header_bytes + first;
}

static void test_trained_layer_takes_the_stored_routes(void **state)
{
    (void)state;
    enum { T = 2048, H = 256, E = 64, K = 8 };
    char *layer = read_data("layer.safetensors");
    char *io = read_data("io.safetensors");
    const void *weight = find_tensor(layer, "model.layers.2.mlp.gate.weight", E * H * 2);
    const void *x = find_tensor(io, "hidden_states", T * H * 2);
    const int32_t *stored_ids = find_tensor(io, "topk_ids", T * K * 4);
    const float *stored_w = find_tensor(io, "topk_weights", T * K * 4);
    float *logits = malloc(T * E * sizeof *logits);
    int32_t *ids = malloc(T * K * sizeof *ids);
    float *w = malloc(T * K * sizeof *w);
    assert_true(logits != NULL && ids != NULL && w != NULL);
    mok_router_config config;
    mok_router_config_init(&config);
    config.top_k = K;
    config.num_experts = E;
    assert_int_equal(mok_router_logits(x, weight, NULL, T, H, E, logits), MOK_OK);
    assert_int_equal(mok_router_choose(&config, logits, T, ids, w), MOK_OK);
    double worst = 0.0;
    for (int32_t i = 0; i < T * K; i++) {
        int32_t id = 0;
        float stored = 0.0f;
        memcpy(&id, stored_ids + i, sizeof id); /* the file does not align its tensors */
        memcpy(&stored, stored_w + i, sizeof stored);
        if (ids[i] != id) {
            fail_msg("token %d, choice %d: expert %d, stored is %d", i / K, i % K, ids[i], id);
        }
        double error = fabs((double)w[i] - (double)stored);
        worst = error > worst ? error : worst;
    }
    print_message("largest error of a weight: %.3g\n", worst);
    assert_true(worst <= 1e-6);
    free(layer);
    free(io);
    free(logits);
    free(ids);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_against_double),
        cmocka_unit_test(test_trained_layer_takes_the_stored_routes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
