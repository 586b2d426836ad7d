/*
 * Layers: weights and activation of one MoE layer. The weights stay the caller's; here only pointers and strides are kept.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/check.h"
#include "api/object.h"
#include "base/status.h"

void mok_layer_config_init(mok_layer_config *config_out)
{
    if (config_out == NULL) {
        return;
    }
    memset(config_out, 0, sizeof *config_out);
    config_out->struct_size = sizeof *config_out;
    config_out->routed.dtype = MOK_DTYPE_BF16;
    config_out->shared.dtype = MOK_DTYPE_BF16;
    config_out->activation.limit = INFINITY;
    config_out->activation.alpha = 1.0f;
}

static mok_status check_activation(const mok_activation *activation)
{
    if (!(activation->limit > 0)) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.activation.limit is %g: must be above 0; +inf means no limit",
                             (double)activation->limit);
    }
    if (!isfinite(activation->alpha)) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.activation.alpha is %g: must be finite", (double)activation->alpha);
    }
    if (!isfinite(activation->up_offset)) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.activation.up_offset is %g: must be finite", (double)activation->up_offset);
    }
    return MOK_OK;
}

mok_status mok_layer_create(mok_group *group, const mok_layer_config *config, mok_layer **layer_out)
{
    MOK_TRY(mok_api_check_given("group", group));
    MOK_TRY(mok_api_check_given("layer_out", layer_out));
    MOK_TRY(mok_api_check_struct("config", config, sizeof *config));
    const struct mok_dims *dims = &group->setup.dims;
    MOK_TRY(mok_api_check_ffn("config.routed", &config->routed, group->setup.num_local, dims->hidden, dims->inter, 0));
    MOK_TRY(mok_api_check_shared("config.shared", &config->shared, dims->hidden, dims->shared_inter, 0));
    MOK_TRY(check_activation(&config->activation));
    mok_group_state state;
    MOK_TRY(mok_api_group_alive(group, &state));
    mok_layer *layer = calloc(1, sizeof *layer);
    if (layer == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for a layer: %zu bytes", sizeof *layer);
    }
    layer->group = group;
    layer->inner.routed = config->routed;
    layer->inner.shared = config->shared;
    layer->inner.activation = config->activation;
    pthread_mutex_lock(&group->lock);
    layer->number = ++group->last_number;
    group->num_layers++;
    pthread_mutex_unlock(&group->lock);
    *layer_out = layer;
    return MOK_OK;
}

void mok_layer_destroy(mok_layer *layer)
{
    if (layer != NULL && mok_api_check_process(layer->group) == MOK_OK) {
        pthread_mutex_lock(&layer->group->lock);
        layer->group->num_layers--;
        pthread_mutex_unlock(&layer->group->lock);
        free(layer);
    }
}
