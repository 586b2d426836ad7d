/*
 * Logits to routes; or a trained model's routes from a safetensors file.
 */
#include "bench/bench_routes.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ref/random.h"
#include "files/safetensors.h"

enum { MAX_LAYERS = 64, STRIDE_OF_RANK = 1024 /* sets of a rank, at most */ };

/* ---- opening ------------------------------------------------------------------------------------------------------------ */

static mok_status make_popularity(struct mok_bench_router *router)
{
    int32_t num = router->num_experts;
    struct mok_ref_random random = mok_ref_random_open("mok bench zipf", 0, MOK_FOR_ROUTER, 0);
    router->popularity = malloc((size_t)num * sizeof *router->popularity);
    if (router->popularity == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory for the popularity of %" PRId32 " experts", num);
    }
    for (int32_t expert = 0; expert < num; expert++) {
        router->popularity[expert] = -logf((float)(expert + 1));
    }
    for (int32_t last = num - 1; last > 0; last--) {
        int64_t other = mok_ref_random_below(&random, last + 1);
        float kept = router->popularity[last];
        router->popularity[last] = router->popularity[other];
        router->popularity[other] = kept;
    }
    return MOK_OK;
}

static mok_status check_layer(const struct mok_safetensors *file, const struct mok_file_tensor *tensor,
                              const struct mok_bench_router *router)
{
    if (tensor->type != MOK_FILE_U8 || tensor->num_dims != 2 || tensor->dims[0] < 1 || tensor->dims[1] != router->top_k) {
        return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\" must be U8 [tokens, %" PRId32 "]", mok_safetensors_label(file),
                            mok_cli_quote(tensor->name), router->top_k);
    }
    for (uint64_t idx = 0; idx < tensor->bytes; idx++) {
        if (((const unsigned char *)tensor->data)[idx] >= router->num_experts) {
            return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\" names expert %d of %" PRId32, mok_safetensors_label(file),
                                mok_cli_quote(tensor->name), ((const unsigned char *)tensor->data)[idx], router->num_experts);
        }
    }
    return MOK_OK;
}

/* Tensors layer<n>.topk_ids, all of one shape. */
static mok_status read_layers(const struct mok_safetensors *file, struct mok_bench_router *router)
{
    char name[64];
    for (int layer = 0; layer < MAX_LAYERS; layer++) {
        snprintf(name, sizeof name, "layer%d.topk_ids", layer);
        const struct mok_file_tensor *tensor = mok_safetensors_find(file, name);
        if (tensor == NULL) {
            break;
        }
        MOK_TRY(check_layer(file, tensor, router));
        if (layer > 0 && tensor->dims[0] != router->num_real) {
            return mok_cli_fail(MOK_ERR_IO, "%s: tensor \"%s\" has %" PRId64 " tokens, the first layer %" PRId64,
                                mok_safetensors_label(file), name, tensor->dims[0], router->num_real);
        }
        router->num_real = tensor->dims[0];
        unsigned char *grown = realloc(router->real, (size_t)(layer + 1) * tensor->bytes);
        if (grown == NULL) {
            return mok_cli_fail(MOK_ERR_MEMORY, "%s: no memory for the routes", mok_safetensors_label(file));
        }
        router->real = grown;
        memcpy(grown + (size_t)layer * tensor->bytes, tensor->data, tensor->bytes);
        router->num_layers = layer + 1;
    }
    return router->num_layers > 0 ? MOK_OK
                                  : mok_cli_fail(MOK_ERR_IO, "%s: there is no tensor layer0.topk_ids", mok_safetensors_label(file));
}

static mok_status read_real(const char *path, int is_default, struct mok_bench_router *router)
{
    struct mok_safetensors *file;
    if (router->num_experts != 64 || router->top_k != 8) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--skew real has routes for 64 experts, top 8: the shape has %" PRId32 ", top %" PRId32,
                            router->num_experts, router->top_k);
    }
    if (is_default && access(path, R_OK) != 0) {
        return mok_cli_fail(MOK_ERR_IO, "%s, the default of --routes, cannot be opened in the current folder: %s: --routes must name the file", path,
                            strerror(errno));
    }
    MOK_TRY(mok_safetensors_open(path, &file));
    mok_status status = read_layers(file, router);
    mok_safetensors_close(file);
    return status;
}

mok_status mok_bench_router_open(const struct mok_bench_settings *settings, struct mok_bench_router *router_out)
{
    const struct mok_shape_settings *shape = &settings->shape;
    *router_out =
        (struct mok_bench_router){.skew = settings->skew, .num_experts = (int32_t)shape->experts, .top_k = (int32_t)shape->top_k};
    mok_status status = MOK_OK;
    if (shape->top_k > shape->experts) {
        status =
            mok_cli_fail(MOK_ERR_ARGUMENT, "--top-k is %" PRId64 ": must be at most --experts, %" PRId64, shape->top_k, shape->experts);
    } else if (settings->skew == MOK_BENCH_ZIPF) {
        status = make_popularity(router_out);
    } else if (settings->skew == MOK_BENCH_REAL) {
        status = read_real(settings->routes, settings->has_default_routes, router_out);
    }
    if (status != MOK_OK) {
        mok_bench_router_close(router_out);
    }
    return status;
}

void mok_bench_router_close(struct mok_bench_router *router)
{
    free(router->popularity);
    free(router->real);
    memset(router, 0, sizeof *router);
}

/* ---- routing ------------------------------------------------------------------------------------------------------------ */

/* Top K by Gumbel noise on a logarithm of popularity is K draws without replacement. */
static void make_logits(const struct mok_bench_router *router, struct mok_ref_random *random, float *logits)
{
    float top = 0.0f;
    for (int32_t expert = 0; expert < router->num_experts; expert++) {
        if (router->skew == MOK_BENCH_ZIPF) {
            logits[expert] = router->popularity[expert] - (float)log(-log(mok_ref_random_unit(random)));
        } else {
            logits[expert] = (float)mok_ref_random_normal(random);
        }
        top = logits[expert] > top ? logits[expert] : top;
    }
    if (router->skew == MOK_BENCH_HOT) {
        logits[0] = top + 0.5f; /* first, but not so far ahead that the others' weights vanish */
    }
}

static mok_status choose(const struct mok_bench_router *router, struct mok_ref_random *random, int64_t num_tokens, int32_t *ids_out,
                         float *w_out)
{
    mok_router_config config;
    mok_router_config_init(&config);
    config.top_k = router->top_k;
    config.num_experts = router->num_experts;
    config.softmax_after = 1;
    float *logits = malloc((size_t)router->num_experts * sizeof *logits);
    mok_status status = logits == NULL ? mok_cli_fail(MOK_ERR_MEMORY, "no memory for %" PRId32 " logits", router->num_experts) : MOK_OK;
    for (int64_t token = 0; token < num_tokens && status == MOK_OK; token++) {
        make_logits(router, random, logits);
        status = mok_cli_check(mok_router_choose(&config, logits, 1, ids_out + token * router->top_k, w_out + token * router->top_k));
    }
    free(logits);
    return status;
}

/* Tokens of a rank stand behind those of the rank before it; sets go through the layers. */
static void copy_real(const struct mok_bench_router *router, struct mok_ref_random *random, int32_t rank, int32_t set, int64_t num_tokens,
                      int32_t *ids_out, float *w_out)
{
    int64_t layer = set % router->num_layers;
    for (int64_t token = 0; token < num_tokens; token++) {
        int64_t source = (rank * num_tokens + token) % router->num_real;
        float sum = 0.0f;
        for (int32_t k = 0; k < router->top_k; k++) {
            ids_out[token * router->top_k + k] = router->real[(layer * router->num_real + source) * router->top_k + k];
            w_out[token * router->top_k + k] = expf((float)mok_ref_random_normal(random));
            sum += w_out[token * router->top_k + k];
        }
        for (int32_t k = 0; k < router->top_k; k++) {
            w_out[token * router->top_k + k] /= sum;
        }
    }
}

mok_status mok_bench_route(const struct mok_bench_router *router, int32_t rank, int32_t set, int64_t num_tokens, int32_t *ids_out,
                           float *w_out)
{
    struct mok_ref_random random = mok_ref_random_open("mok bench", 0, MOK_FOR_ROUTER, (uint64_t)rank * STRIDE_OF_RANK + (uint64_t)set);
    if (router->skew == MOK_BENCH_REAL) {
        copy_real(router, &random, rank, set, num_tokens, ids_out, w_out);
        return MOK_OK;
    }
    return choose(router, &random, num_tokens, ids_out, w_out);
}
