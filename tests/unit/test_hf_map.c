/*
 * The Hugging Face maps: every layout of a checkpoint gives the same matrices, config.json gives the router's rules, and what cannot be
 * honoured is refused by name. Element (expert, row, col) of gate, up and down has a value of its own, so that a mix-up cannot hide.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "files/hf_map.h"

/* H = 2I on purpose: [E, 2I, H] and [E, H, 2I] are then the same shape, and only down_proj tells them apart. */
enum { E = 3, H = 16, I = 8, IS = 24, MAX_TENSORS = 32 };

enum which { GATE = 1, UP, DOWN, ROUTER, SHARED };

/* Any bits will do: the map only moves them. Never 0. */
static mok_bf16 element(enum which which, int expert, int row, int col)
{
    return (mok_bf16)(which * 8192 + expert * 1024 + row * 37 + col + 1);
}

struct checkpoint {
    struct mok_file_tensor tensors[MAX_TENSORS];
    char names[MAX_TENSORS][96];
    int num;
};

/* Adds a tensor of zeros and hands out its memory. */
static void *add(struct checkpoint *checkpoint, const char *name, enum mok_file_type type, int d0, int d1, int d2)
{
    struct mok_file_tensor *tensor = &checkpoint->tensors[checkpoint->num];
    int64_t dims[3] = {d0, d1, d2};
    assert_true(checkpoint->num < MAX_TENSORS);
    snprintf(checkpoint->names[checkpoint->num], sizeof checkpoint->names[0], "L.mlp.%s", name);
    memset(tensor, 0, sizeof *tensor);
    tensor->name = checkpoint->names[checkpoint->num++];
    tensor->type = type;
    tensor->bytes = (uint64_t)mok_file_type_bits(type) / 8;
    for (int dim = 0; dim < 3 && dims[dim] > 0; dim++) {
        tensor->dims[tensor->num_dims++] = dims[dim];
        tensor->bytes *= (uint64_t)dims[dim];
    }
    void *memory = calloc(1, tensor->bytes);
    assert_non_null(memory);
    tensor->data = memory;
    return memory;
}

static void add_matrix(struct checkpoint *checkpoint, const char *name, enum which which, int expert, int rows, int cols)
{
    mok_bf16 *to = add(checkpoint, name, MOK_FILE_BF16, rows, cols, 0);
    for (int idx = 0; idx < rows * cols; idx++) {
        to[idx] = element(which, expert, idx / cols, idx % cols);
    }
}

static void add_one_by_one(struct checkpoint *checkpoint, const char *gate, const char *up, const char *down)
{
    for (int expert = 0; expert < E; expert++) {
        char name[64];
        snprintf(name, sizeof name, "experts.%d.%s.weight", expert, gate);
        add_matrix(checkpoint, name, GATE, expert, I, H);
        snprintf(name, sizeof name, "experts.%d.%s.weight", expert, up);
        add_matrix(checkpoint, name, UP, expert, I, H);
        snprintf(name, sizeof name, "experts.%d.%s.weight", expert, down);
        add_matrix(checkpoint, name, DOWN, expert, H, I);
    }
}

enum fused { FUSED_ROWS, FUSED_TRANSPOSED, FUSED_IN_TURN };

static void add_fused(struct checkpoint *checkpoint, enum fused fused)
{
    int is_rows = fused == FUSED_ROWS;
    mok_bf16 *both = add(checkpoint, "experts.gate_up_proj", MOK_FILE_BF16, E, is_rows ? 2 * I : H, is_rows ? H : 2 * I);
    mok_bf16 *down = add(checkpoint, "experts.down_proj", MOK_FILE_BF16, E, is_rows ? H : I, is_rows ? I : H);
    for (int expert = 0; expert < E; expert++) {
        for (int row = 0; row < I; row++) {
            for (int col = 0; col < H; col++) {
                int gate_row = fused == FUSED_IN_TURN ? 2 * row : row;
                int up_row = fused == FUSED_IN_TURN ? 2 * row + 1 : I + row;
                both[expert * 2 * I * H + (is_rows ? gate_row * H + col : col * 2 * I + gate_row)] = element(GATE, expert, row, col);
                both[expert * 2 * I * H + (is_rows ? up_row * H + col : col * 2 * I + up_row)] = element(UP, expert, row, col);
                down[expert * I * H + (is_rows ? col * I + row : row * H + col)] = element(DOWN, expert, col, row);
            }
        }
    }
}

static void free_checkpoint(struct checkpoint *checkpoint)
{
    for (int idx = 0; idx < checkpoint->num; idx++) {
        free((void *)(uintptr_t)checkpoint->tensors[idx].data);
    }
    checkpoint->num = 0;
}

/* Through a file and back; the checkpoint is freed. */
static mok_status load(struct checkpoint *checkpoint, const char *json, struct mok_hf_layer *layer_out)
{
    char path[] = "/tmp/mok_test_XXXXXX";
    struct mok_safetensors *file;
    struct mok_hf_config config;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(mok_safetensors_write(path, checkpoint->tensors, checkpoint->num, "test"), MOK_OK);
    assert_int_equal(mok_safetensors_open(path, &file), MOK_OK);
    unlink(path);
    mok_status status = mok_hf_config_parse(json, strlen(json), "config.json", &config);
    if (status == MOK_OK) {
        status = mok_hf_layer_load(file, "L.mlp", &config, layer_out);
    }
    mok_safetensors_close(file);
    free_checkpoint(checkpoint);
    return status;
}

static void check_routed(const struct mok_hf_layer *layer)
{
    for (int expert = 0; expert < E; expert++) {
        for (int row = 0; row < I; row++) {
            for (int col = 0; col < H; col++) {
                assert_int_equal(layer->routed.gate[(expert * I + row) * H + col], element(GATE, expert, row, col));
                assert_int_equal(layer->routed.up[(expert * I + row) * H + col], element(UP, expert, row, col));
                assert_int_equal(layer->routed.down[(expert * H + col) * I + row], element(DOWN, expert, col, row));
            }
        }
    }
    for (int idx = 0; idx < E * H; idx++) {
        assert_int_equal(layer->router[idx], element(ROUTER, 0, idx / H, idx % H));
    }
}

#define QWEN3                                                                                                                   \
    "{\"model_type\":\"qwen3_moe\",\"num_experts\":3,\"num_experts_per_tok\":2,\"hidden_size\":16,\"moe_intermediate_size\":8," \
    "\"intermediate_size\":99,\"norm_topk_prob\":true,\"hidden_act\":\"silu\"}"
#define QWEN2                                                                                                                   \
    "{\"model_type\":\"qwen2_moe\",\"num_experts\":3,\"num_experts_per_tok\":2,\"hidden_size\":16,\"moe_intermediate_size\":8," \
    "\"shared_expert_intermediate_size\":24}"
#define MIXTRAL \
    "{\"model_type\":\"mixtral\",\"num_local_experts\":3,\"num_experts_per_tok\":2,\"hidden_size\":16,\"intermediate_size\":8}"
#define GPT_OSS \
    "{\"model_type\":\"gpt_oss\",\"num_local_experts\":3,\"num_experts_per_tok\":2,\"hidden_size\":16,\"intermediate_size\":8}"
#define DEEPSEEK                                                                                                                       \
    "{\"model_type\":\"deepseek_v3\",\"n_routed_experts\":3,\"num_experts_per_tok\":2,\"hidden_size\":16,\"moe_intermediate_size\":8," \
    "\"n_shared_experts\":3,\"n_group\":3,\"topk_group\":2,\"routed_scaling_factor\":2.5,\"norm_topk_prob\":true}"

static void test_layouts(void **state)
{
    (void)state;
    struct checkpoint checkpoint = {.num = 0};
    struct mok_hf_layer layer;
    const char *const texts[] = {QWEN3, QWEN3, QWEN3, MIXTRAL, MIXTRAL, MIXTRAL, GPT_OSS};
    for (int idx = 0; idx < 7; idx++) {
        add_matrix(&checkpoint, idx == 6 ? "router.weight" : "gate.weight", ROUTER, 0, E, H);
        if (idx == 0 || idx == 3) {
            add_one_by_one(&checkpoint, "gate_proj", "up_proj", "down_proj");
        } else if (idx == 4) {
            add_one_by_one(&checkpoint, "w1", "w3", "w2");
        } else {
            add_fused(&checkpoint, idx == 2 ? FUSED_TRANSPOSED : idx == 6 ? FUSED_IN_TURN : FUSED_ROWS);
        }
        if (idx == 6) {
            mok_bf16 *bias = add(&checkpoint, "router.bias", MOK_FILE_BF16, E, 0, 0);
            bias[1] = mok_bf16_from_float(-0.5f);
            mok_bf16 *zero = add(&checkpoint, "experts.gate_up_proj_bias", MOK_FILE_BF16, E, 2 * I, 0);
            zero[5] = 0x8000; /* -0 is zero */
            add(&checkpoint, "experts.down_proj_bias", MOK_FILE_BF16, E, H, 0);
        }
        if (load(&checkpoint, texts[idx], &layer) != MOK_OK) {
            fail_msg("layout %d: %s", idx, mok_cli_sentence());
        }
        check_routed(&layer);
        assert_null(layer.shared.gate);
        assert_null(layer.choice_bias);
        assert_true(idx == 6 ? layer.router_bias[1] == -0.5f && layer.router_bias[0] == 0.0f : layer.router_bias == NULL);
        mok_hf_layer_free(&layer);
    }
}

static void test_shared(void **state)
{
    (void)state;
    struct checkpoint checkpoint = {.num = 0};
    struct mok_hf_layer layer;
    for (int is_deepseek = 0; is_deepseek < 2; is_deepseek++) {
        const char *base = is_deepseek ? "shared_experts" : "shared_expert";
        char name[64];
        add_matrix(&checkpoint, "gate.weight", ROUTER, 0, E, H);
        add_one_by_one(&checkpoint, "gate_proj", "up_proj", "down_proj");
        snprintf(name, sizeof name, "%s.gate_proj.weight", base);
        add_matrix(&checkpoint, name, SHARED, 0, IS, H);
        snprintf(name, sizeof name, "%s.up_proj.weight", base);
        add_matrix(&checkpoint, name, SHARED, 1, IS, H);
        snprintf(name, sizeof name, "%s.down_proj.weight", base);
        add_matrix(&checkpoint, name, SHARED, 2, H, IS);
        if (is_deepseek) {
            float *bias = add(&checkpoint, "gate.e_score_correction_bias", MOK_FILE_F32, E, 0, 0);
            bias[2] = 0.1f;
        } else {
            add_matrix(&checkpoint, "shared_expert_gate.weight", SHARED, 3, 1, H);
        }
        if (load(&checkpoint, is_deepseek ? DEEPSEEK : QWEN2, &layer) != MOK_OK) {
            fail_msg("%s: %s", base, mok_cli_sentence());
        }
        check_routed(&layer);
        assert_int_equal(layer.config.shared_inter, IS);
        assert_int_equal(layer.shared.gate[IS * H - 1], element(SHARED, 0, IS - 1, H - 1));
        assert_int_equal(layer.shared.up[IS * H - 1], element(SHARED, 1, IS - 1, H - 1));
        assert_int_equal(layer.shared.down[IS * H - 1], element(SHARED, 2, H - 1, IS - 1));
        assert_true(is_deepseek ? layer.choice_bias[2] == 0.1f && layer.shared_gate == NULL
                                : layer.choice_bias == NULL && layer.shared_gate[1] == element(SHARED, 3, 0, 1));
        mok_hf_layer_free(&layer);
    }
}

static void check_refused(struct checkpoint *checkpoint, const char *json, const char *words)
{
    struct mok_hf_layer layer;
    mok_status status = load(checkpoint, json, &layer);
    if (status != MOK_ERR_IO || strstr(mok_cli_sentence(), words) == NULL) {
        fail_msg("status %d, sentence \"%s\" without \"%s\"", (int)status, mok_cli_sentence(), words);
    }
}

static void test_refuses_tensors(void **state)
{
    (void)state;
    struct checkpoint checkpoint = {.num = 0};
    add_one_by_one(&checkpoint, "gate_proj", "up_proj", "down_proj");
    check_refused(&checkpoint, QWEN3, "tensor \"L.mlp.gate.weight\" is missing");
    add_matrix(&checkpoint, "gate.weight", ROUTER, 0, E, H);
    add_one_by_one(&checkpoint, "gate_proj", "up_proj", "down");
    check_refused(&checkpoint, QWEN3, "tensor \"L.mlp.experts.0.down_proj.weight\" is missing");
    add_matrix(&checkpoint, "gate.weight", ROUTER, 0, H, E);
    check_refused(&checkpoint, QWEN3, "tensor \"L.mlp.gate.weight\" has shape [16, 3]: the config says [3, 16]");
    add(&checkpoint, "gate.weight", MOK_FILE_F16, E, H, 0);
    check_refused(&checkpoint, QWEN3, "tensor \"L.mlp.gate.weight\" has dtype F16: must be BF16");
    add_matrix(&checkpoint, "gate.weight", ROUTER, 0, E, H);
    add_one_by_one(&checkpoint, "gate_proj", "up_proj", "down_proj");
    add(&checkpoint, "experts.1.gate_proj.bias", MOK_FILE_BF16, I, 0, 0);
    check_refused(&checkpoint, QWEN3, "tensor \"L.mlp.experts.1.gate_proj.bias\" has no place in a qwen3_moe layer");
    /* down_proj fits neither of the two layouts. */
    add_matrix(&checkpoint, "gate.weight", ROUTER, 0, E, H);
    add(&checkpoint, "experts.gate_up_proj", MOK_FILE_BF16, E, 2 * I, H);
    add(&checkpoint, "experts.down_proj", MOK_FILE_BF16, E, I, H + 1);
    check_refused(&checkpoint, QWEN3, "tensor \"L.mlp.experts.down_proj\" has shape [3, 8, 17]: the config says [3, 16, 8]");
}

static void test_refuses_gpt_oss_biases(void **state)
{
    (void)state;
    struct checkpoint checkpoint = {.num = 0};
    add_matrix(&checkpoint, "router.weight", ROUTER, 0, E, H);
    add(&checkpoint, "router.bias", MOK_FILE_BF16, E, 0, 0);
    add_fused(&checkpoint, FUSED_IN_TURN);
    mok_bf16 *bias = add(&checkpoint, "experts.down_proj_bias", MOK_FILE_BF16, E, H, 0);
    bias[7] = 1;
    check_refused(&checkpoint, GPT_OSS,
                  "tensor \"L.mlp.experts.down_proj_bias\" is not zero at element 7: biases of experts are not supported");
    add_matrix(&checkpoint, "router.weight", ROUTER, 0, E, H);
    add(&checkpoint, "router.bias", MOK_FILE_F16, E, 0, 0);
    check_refused(&checkpoint, GPT_OSS, "tensor \"L.mlp.router.bias\" has dtype F16: must be F32 or BF16");
    add_matrix(&checkpoint, "router.weight", ROUTER, 0, E, H);
    add(&checkpoint, "router.bias", MOK_FILE_BF16, E, 0, 0);
    add(&checkpoint, "experts.gate_up_proj_blocks", MOK_FILE_U8, E, 4, 4);
    check_refused(&checkpoint, GPT_OSS, "is in MXFP4: must be converted to BF16 first");
}

static struct mok_hf_config parse_good(const char *json)
{
    struct mok_hf_config config;
    if (mok_hf_config_parse(json, strlen(json), "config.json", &config) != MOK_OK) {
        fail_msg("%s", mok_cli_sentence());
    }
    return config;
}

static void test_configs(void **state)
{
    (void)state;
    struct mok_hf_config config = parse_good(QWEN3);
    assert_int_equal(config.normalize, 1);
    assert_int_equal(config.inter, 8);
    assert_int_equal(config.score, MOK_SCORE_SOFTMAX);
    assert_true(isinf(config.activation.limit) && config.activation.alpha == 1.0f && config.activation.up_offset == 0.0f);
    assert_int_equal(parse_good(QWEN2).normalize, 0);
    assert_int_equal(parse_good(MIXTRAL).normalize, 1);
    config = parse_good(GPT_OSS);
    assert_int_equal(config.softmax_after, 1);
    assert_true(config.activation.limit == 7.0f && config.activation.alpha == 1.702f && config.activation.up_offset == 1.0f);
    config = parse_good(DEEPSEEK);
    assert_int_equal(config.score, MOK_SCORE_SIGMOID);
    assert_int_equal(config.num_groups, 3);
    assert_int_equal(config.keep_groups, 2);
    assert_int_equal(config.shared_inter, 24);
    assert_true(config.scale == 2.5f);
}

#define QWEN3_WITH(member) \
    "{\"model_type\":\"qwen3_moe\",\"num_experts_per_tok\":2,\"hidden_size\":16,\"moe_intermediate_size\":8," member "}"

static void test_refuses_configs(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        const char *words;
    } cases[] = {
        {"", "config.json: is no JSON object"},
        {"[]", "is no JSON object"},
        {"{}", "key \"model_type\" is missing: must be one of qwen3_moe, qwen2_moe, mixtral, deepseek_v3, olmoe, glm4_moe, gpt_oss"},
        {"{\"model_type\":null}", "key \"model_type\" is missing: must be one of qwen3_moe"},
        {"{\"model_type\":7}", "key \"model_type\" is no string: must be one of qwen3_moe"},
        {"{\"model_type\":\"missing\"}", "model_type is \"missing\": must be one of qwen3_moe"},
        {"{\"model_type\":\"llama\"}", "model_type is \"llama\""},
        {QWEN3_WITH("\"x\":1"), "key \"num_experts\" (or num_local_experts, n_routed_experts) is missing"},
        {QWEN3_WITH("\"num_experts\":8,\"num_local_experts\":9"), "key \"num_local_experts\" is 9, but another name of it says 8"},
        {QWEN3_WITH("\"num_experts\":1"), "num_experts_per_tok is 2, more than the 1 experts"},
        {QWEN3_WITH("\"num_experts\":-8"), "key \"num_experts\" must be a whole number from 1"},
        {QWEN3_WITH("\"num_experts\":8.5"), "key \"num_experts\" must be a whole number"},
        {QWEN3_WITH("\"num_experts\":1e30"), "key \"num_experts\" must be a whole number"},
        {QWEN3_WITH("\"num_experts\":\"8\""), "key \"num_experts\" must be a whole number"},
        {QWEN3_WITH("\"num_experts\":8,\"norm_topk_prob\":1"), "key \"norm_topk_prob\" must be true or false"},
        {QWEN3_WITH("\"num_experts\":8,\"hidden_act\":\"gelu\""), "key \"hidden_act\" is \"gelu\": only \"silu\" is supported"},
        {QWEN3_WITH("\"num_experts\":8,\"swiglu_limit\":7"), "key \"swiglu_limit\" is not supported for qwen3_moe"},
        {QWEN3_WITH("\"num_experts\":8,\"scoring_func\":\"sigmoid\""),
         "key \"scoring_func\" is \"sigmoid\": only \"softmax\" is supported"},
    };
    for (size_t idx = 0; idx < sizeof cases / sizeof cases[0]; idx++) {
        struct mok_hf_config config;
        mok_status status = mok_hf_config_parse(cases[idx].json, strlen(cases[idx].json), "config.json", &config);
        if (status != MOK_ERR_IO || strstr(mok_cli_sentence(), cases[idx].words) == NULL) {
            fail_msg("%s: status %d, sentence \"%s\" without \"%s\"", cases[idx].json, (int)status, mok_cli_sentence(), cases[idx].words);
        }
    }
    struct mok_hf_config config;
    assert_int_equal(mok_hf_config_read("/no/such/config.json", &config), MOK_ERR_IO);
    assert_non_null(strstr(mok_cli_sentence(), "/no/such/config.json: cannot be opened"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),         cmocka_unit_test(test_shared),
        cmocka_unit_test(test_refuses_tensors), cmocka_unit_test(test_refuses_gpt_oss_biases),
        cmocka_unit_test(test_configs),         cmocka_unit_test(test_refuses_configs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
