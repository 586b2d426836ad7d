/*
 * Sizes to a recipe of the case table's kind, and its generator's data.
 */
#include "shape_settings.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ref/cases.h"

mok_shape mok_shape_of(const struct mok_shape_settings *shape)
{
    return (mok_shape){.num_experts = (int32_t)shape->experts,
                       .top_k = (int32_t)shape->top_k,
                       .hidden = (int32_t)shape->hidden,
                       .intermediate = (int32_t)shape->inter,
                       .shared_intermediate = (int32_t)shape->shared_inter,
                       .format = MOK_FORMAT_BF16,
                       .max_tokens = shape->tokens};
}

mok_status mok_shape_name_options(mok_status status)
{
    char saved[64], reserve[64], backend[64]; /* by an option or a variable */
    snprintf(saved, sizeof saved, "%s", mok_cli_setter("saved"));
    snprintf(reserve, sizeof reserve, "%s", mok_cli_setter("reserve-sms"));
    snprintf(backend, sizeof backend, "%s", mok_cli_setter("backend"));
    const char *const names[][2] = {
        {"config.shape.num_experts", "--experts"}, {"config.shape.top_k", "--top-k"},
        {"config.shape.hidden", "--hidden"},       {"config.shape.intermediate", "--intermediate"},
        {"config.shape.max_tokens", "--tokens"},   {"config.shape.shared_intermediate", "--shared"},
        {"config.num_ranks", "--ranks"},           {"config.num_saved", saved},
        {"config.reserve_sms", reserve},           {"config.backend", backend},
        {"shape.num_experts", "--experts"},        {"top_k", "--top-k"}, /* in the midst of a sentence, and a backend's own words */
    };
    const char *from = mok_last_error();
    char text[1024];
    size_t used = 0;
    while (status != MOK_OK && *from != '\0' && used + sizeof saved < sizeof text) {
        const char *name = NULL;
        for (size_t idx = 0; idx < sizeof names / sizeof names[0] && name == NULL; idx++) {
            size_t length = strlen(names[idx][0]);
            if (strncmp(from, names[idx][0], length) == 0) {
                name = names[idx][1];
                from += length;
            }
        }
        used += (size_t)(name != NULL ? sprintf(text + used, "%s", name) : sprintf(text + used, "%c", *from++));
    }
    return status == MOK_OK ? MOK_OK : mok_cli_fail(status, "%.*s", (int)used, text);
}

mok_status mok_shape_check(const struct mok_shape_settings *shape, const mok_group_config *config)
{
    mok_group_config own = *config;
    mok_memory memory = {.struct_size = sizeof memory};
    if (shape->top_k > shape->experts) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--top-k is %" PRId64 ": must be at most --experts, %" PRId64, shape->top_k,
                            shape->experts);
    }
    own.rank = 0;
    own.num_ranks = shape->num_ranks == 0 ? 1 : (int32_t)shape->num_ranks;
    own.shape = mok_shape_of(shape);
    return mok_shape_name_options(mok_group_memory(&own, &memory));
}

mok_status mok_shape_problem(const struct mok_shape_settings *shape, int32_t num_ranks, const char *name,
                             struct mok_ref_problem *problem_out)
{
    if (num_ranks > MOK_SHAPE_MAX_RANKS) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "%" PRId32 " ranks: must be at most %d", num_ranks, MOK_SHAPE_MAX_RANKS);
    }
    struct mok_ref_case recipe = {.name = name,
                                  .covers = "",
                                  .num_ranks = num_ranks,
                                  .num_experts = (int32_t)shape->experts,
                                  .top_k = (int32_t)shape->top_k,
                                  .hidden = (int32_t)shape->hidden,
                                  .inter = (int32_t)shape->inter,
                                  .shared_inter = (int32_t)shape->shared_inter,
                                  .ids = shape->is_skewed ? MOK_IDS_SKEWED : MOK_IDS_DISTINCT,
                                  .values = MOK_VALUES_NORMAL,
                                  .router = MOK_ROUTER_NORMALIZED,
                                  .activation = {INFINITY, 1.0f, 0.0f},
                                  .grad_dtype = MOK_DTYPE_FP32,
                                  .grad_mode = MOK_GRAD_OVERWRITE};
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        recipe.tokens[rank] = shape->tokens;
    }
    mok_cli_progress("making random data");
    if (mok_ref_generate(&recipe, 0, problem_out) != MOK_OK) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory for %" PRId64 " experts and %" PRId64 " tokens on %" PRId32 " rank%s",
                            shape->experts, shape->tokens, num_ranks, num_ranks == 1 ? "" : "s");
    }
    return MOK_OK;
}
