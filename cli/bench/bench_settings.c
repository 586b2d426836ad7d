/*
 * Names to numbers.
 */
#include "bench/bench_settings.h"

#include <stdio.h>
#include <string.h>

enum { SHAPE_TOKENS = 8192 };

struct named_shape {
    const char *name;
    int64_t experts, top_k, hidden, inter, shared_inter, tokens;
};

/* A slice has the experts that two GPUs of a group of 64 own. */
static const struct named_shape named_shapes[] = {
    {"qwen3-30b", 128, 8, 2048, 768, 0, SHAPE_TOKENS},
    {"mixtral-8x7b", 8, 2, 4096, 14336, 0, SHAPE_TOKENS},
    {"kimi-k2", 384, 8, 7168, 2048, 2048, SHAPE_TOKENS},
    {"kimi-k2-slice", 12, 8, 7168, 2048, 2048, SHAPE_TOKENS},
    {"glm-5.2", 256, 8, 6144, 2048, 2048, SHAPE_TOKENS},
    {"glm-5.2-slice", 8, 8, 6144, 2048, 2048, SHAPE_TOKENS},
    {"qwen3.5", 512, 10, 4096, 1024, 1024, SHAPE_TOKENS},
    {"qwen3.5-slice", 16, 10, 4096, 1024, 1024, SHAPE_TOKENS},
    {"deepseek-v4-pro", 384, 6, 7168, 3072, 3072, SHAPE_TOKENS},
    {"deepseek-v4-pro-slice", 12, 6, 7168, 3072, 3072, SHAPE_TOKENS},
    {"tiny-real", 64, 8, 256, 128, 0, 2048},
};

/* Without a name: small enough for a CPU. */
static const struct named_shape default_shape = {NULL, 32, 4, 1024, 512, 0, 2048};

enum { NUM_SHAPES = sizeof named_shapes / sizeof named_shapes[0] };

static const char *const skew_names[] = {
    [MOK_BENCH_BALANCED] = "balanced", [MOK_BENCH_ZIPF] = "zipf", [MOK_BENCH_HOT] = "hot", [MOK_BENCH_REAL] = "real"};

enum { NUM_SKEWS = sizeof skew_names / sizeof skew_names[0] };

static void take_default(int64_t *value, int64_t otherwise) { *value = *value == MOK_BENCH_NOT_GIVEN ? otherwise : *value; }

static mok_status find_shape(const char *name, const struct named_shape **shape_out)
{
    char names[512] = "";
    size_t used = 0;
    *shape_out = &default_shape;
    for (int idx = 0; name != NULL && idx < NUM_SHAPES; idx++) {
        if (strcmp(name, named_shapes[idx].name) == 0) {
            *shape_out = &named_shapes[idx];
            return MOK_OK;
        }
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", idx == 0 ? "" : "|", named_shapes[idx].name);
    }
    return name == NULL ? MOK_OK : mok_cli_fail(MOK_ERR_ARGUMENT, "--shape is '%s': must be one of %s", mok_cli_quote(name), names);
}

static mok_status find_skew(const char *word, enum mok_bench_skew *skew_out)
{
    for (int idx = 0; idx < NUM_SKEWS; idx++) {
        if (strcmp(word, skew_names[idx]) == 0) {
            *skew_out = (enum mok_bench_skew)idx;
            return MOK_OK;
        }
    }
    return mok_cli_fail(MOK_ERR_ARGUMENT, "--skew is '%s': must be one of balanced|zipf|hot|real", mok_cli_quote(word));
}

/* 1 when text ends in tail. */
static int has_ending(const char *text, const char *tail)
{
    return strlen(text) > strlen(tail) && strcmp(text + strlen(text) - strlen(tail), tail) == 0;
}

/* What a value must be, and what it must not go with. */
static mok_status check_values(const struct mok_bench_settings *settings)
{
    int is_backward = settings->pass_word != NULL && strcmp(settings->pass_word, "backward") == 0;
    if (settings->sweep != NULL && settings->has_no_stages) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--no-stages does not go with --sweep, which times no stages");
    }
    if (is_backward && settings->is_zero_copy) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--zero-copy does not go with --pass backward, which takes no x");
    }
    if (settings->pass_word != NULL && strcmp(settings->pass_word, "forward") != 0 && !is_backward) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--pass is '%s': must be forward or backward", mok_cli_quote(settings->pass_word));
    }
    if (settings->timeline != NULL && !has_ending(settings->timeline, ".json") && !has_ending(settings->timeline, ".svg")) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--timeline is '%s': must be a name that ends in .json or .svg", mok_cli_quote(settings->timeline));
    }
    return MOK_OK;
}

mok_status mok_bench_check_options(const struct mok_bench_settings *settings, enum mok_bench_what what)
{
    enum { HOST = 1 << MOK_BENCH_HOST, DEVICE = 1 << MOK_BENCH_DEVICE, GEMMS = 1 << MOK_BENCH_GEMMS };
    int is_sweep = settings->sweep != NULL;
    int is_real = settings->skew_word != NULL && strcmp(settings->skew_word, "real") == 0;
    const struct {
        const char *name;
        int is_given, goes_with; /* what can be measured */
        const char *needs;       /* another option that it is nothing without; NULL = none, or that one is given */
    } options[] = {
        {"--sweep", is_sweep, DEVICE, NULL},
        {"--pass", settings->pass_word != NULL, DEVICE, is_sweep ? NULL : "--sweep"},
        {"--confirm", settings->num_confirms != MOK_BENCH_NOT_GIVEN, DEVICE, is_sweep ? NULL : "--sweep"},
        {"--summary", settings->is_traced, DEVICE, is_sweep ? NULL : "--sweep"},
        {"--timeline", settings->timeline != NULL, DEVICE, is_sweep ? NULL : "--sweep"},
        {"--ctas", settings->cta_step != MOK_BENCH_NOT_GIVEN, DEVICE, settings->timeline != NULL ? NULL : "--timeline"},
        {"--zero-copy", settings->is_zero_copy, DEVICE, NULL},
        {"--no-stages", settings->has_no_stages, DEVICE, NULL},
        {"--skew", settings->skew_word != NULL, HOST | DEVICE, NULL},
        {"--routes", settings->routes != NULL, HOST | DEVICE, is_real ? NULL : "--skew real"},
        {"--shared", settings->shape.shared_inter != MOK_BENCH_NOT_GIVEN, HOST | DEVICE, NULL}, /* its GEMMs are those of one expert */
        {"--commit", settings->commit != NULL, DEVICE | GEMMS, settings->json != NULL ? NULL : "--json"},
    };
    for (size_t idx = 0; idx < sizeof options / sizeof options[0]; idx++) {
        if (!options[idx].is_given) {
            continue;
        }
        if (what == MOK_BENCH_GEMMS && (options[idx].goes_with & GEMMS) == 0) {
            return mok_cli_fail(MOK_ERR_ARGUMENT, "%s does not go with 'gemm'", options[idx].name);
        }
        if (options[idx].needs != NULL) {
            return mok_cli_fail(MOK_ERR_ARGUMENT, "%s needs %s", options[idx].name, options[idx].needs);
        }
        if (what == MOK_BENCH_HOST && (options[idx].goes_with & HOST) == 0) {
            return mok_cli_fail(MOK_ERR_ARGUMENT, "%s needs the cuda backend", options[idx].name);
        }
    }
    return check_values(settings);
}

mok_status mok_bench_resolve(struct mok_bench_settings *settings, int is_cuda, int32_t num_ranks)
{
    struct mok_shape_settings *shape = &settings->shape;
    const struct named_shape *named;
    settings->skew_word = settings->skew_word == NULL ? "balanced" : settings->skew_word;
    settings->pass_word = settings->pass_word == NULL ? "forward" : settings->pass_word;
    settings->has_default_routes = settings->routes == NULL;
    settings->routes = settings->routes == NULL ? "data/qwen3moe-code/routing.safetensors" : settings->routes;
    MOK_TRY(find_shape(settings->shape_name, &named));
    MOK_TRY(find_skew(settings->skew_word, &settings->skew));
    take_default(&shape->experts, named->experts);
    take_default(&shape->top_k, named->top_k);
    take_default(&shape->hidden, named->hidden);
    take_default(&shape->inter, named->inter);
    take_default(&shape->shared_inter, named->shared_inter);
    take_default(&shape->tokens, named->tokens);
    take_default(&shape->num_ranks, num_ranks);
    take_default(&settings->num_repeats, is_cuda ? 30 : 5);
    take_default(&settings->num_warmups, is_cuda ? 10 : 1);
    take_default(&settings->num_confirms, 0);
    take_default(&settings->cta_step, 1);
    return MOK_OK;
}

int32_t mok_bench_paths(int32_t path, int32_t *paths_out)
{
    int32_t num = 0;
    if (path != MOK_PATH_STAGED) {
        paths_out[num++] = MOK_PATH_FUSED;
    }
    paths_out[num++] = MOK_PATH_STAGED;
    return num;
}

int mok_bench_has_backward(const struct mok_bench_settings *settings)
{
    return settings->sweep == NULL || strcmp(settings->pass_word, "backward") == 0;
}

const char *mok_bench_skew_name(enum mok_bench_skew skew) { return skew_names[skew]; }

int mok_bench_prints_text(const struct mok_bench_settings *settings)
{
    return settings->json == NULL || strcmp(settings->json, "-") != 0;
}
