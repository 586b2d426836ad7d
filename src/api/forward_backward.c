/*
 * The two passes: checks of the arguments and of what belongs together, then one call down. All under the group's lock, so that what was
 * checked is what is enqueued.
 */
#include <inttypes.h>
#include <string.h>

#include "api/check.h"
#include "api/object.h"
#include "base/status.h"

void mok_forward_args_init(mok_forward_args *args_out)
{
    if (args_out != NULL) {
        memset(args_out, 0, sizeof *args_out);
        args_out->struct_size = sizeof *args_out;
    }
}

void mok_backward_args_init(mok_backward_args *args_out)
{
    if (args_out != NULL) {
        memset(args_out, 0, sizeof *args_out);
        args_out->struct_size = sizeof *args_out;
        args_out->grads.dtype = MOK_DTYPE_FP32;
        args_out->shared_grads.dtype = MOK_DTYPE_FP32;
    }
}

/* ---- what both passes ask ------------------------------------------------------------------------------------------------ */

/* Layer, schedule and saved object (may be NULL) of one group; before the lock, because the group is not known yet. */
static mok_status check_family(const mok_layer *layer, const mok_schedule *schedule, const mok_saved *saved)
{
    if (schedule->group != layer->group) {
        return mok_base_fail(MOK_ERR_MISMATCH, "schedule belongs to another group than layer: both must be of one group");
    }
    if (saved != NULL && saved->group != layer->group) {
        return mok_base_fail(MOK_ERR_MISMATCH, "args.saved belongs to another group than layer: both must be of one group");
    }
    return MOK_OK;
}

static mok_status check_ready(mok_group *group, const mok_schedule *schedule, mok_stream stream)
{
    mok_group_state state;
    MOK_TRY(mok_api_check_stream(group->ops, stream));
    MOK_TRY(mok_api_group_alive(group, &state));
    if (schedule->build_number == 0) {
        return mok_base_fail(MOK_ERR_MISMATCH, "schedule was never built: mok_schedule_build must come before");
    }
    return MOK_OK;
}

/* Weights of the shared expert have no meaning without one. */
static mok_status check_shared_weight(const mok_group *group, const char *name, const void *pointer, int64_t num_tokens)
{
    if (pointer != NULL && group->setup.dims.shared_inter == 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s is %p: must be NULL, the group has no shared expert (shape.shared_intermediate is 0)",
                             name, pointer);
    }
    return mok_api_check_optional(name, pointer, num_tokens);
}

enum { LAYER_SPANS = 2 * MOK_FFN_SPANS };

/* The layer's weights, which no pass may write to. */
static void weight_spans(const mok_layer *layer, struct mok_span *spans_out)
{
    static const char *const routed[MOK_FFN_SPANS] = {"layer.routed.gate", "layer.routed.up", "layer.routed.down"};
    static const char *const shared[MOK_FFN_SPANS] = {"layer.shared.gate", "layer.shared.up", "layer.shared.down"};
    const struct mok_pass_setup *setup = &layer->group->setup;
    const struct mok_dims *dims = &setup->dims;
    mok_api_ffn_spans(routed, &layer->inner.routed, setup->num_local, dims->hidden, dims->inter, 0, spans_out);
    mok_api_ffn_spans(shared, &layer->inner.shared, dims->shared_inter > 0, dims->hidden, dims->shared_inter, 0, spans_out + MOK_FFN_SPANS);
}

/* ---- forward ------------------------------------------------------------------------------------------------------------- */

enum { FORWARD_TENSORS = 5, BACKWARD_TENSORS = 7 };

/* What a pass writes is apart from all else in `spans`, whose last place is free: the input of each saved object that waits for its backward
 * pass takes it in turn, but for `own`, which has a name of its own or a place among the others. */
static mok_status check_apart_from_inputs(const mok_group *group, const mok_saved *own, struct mok_span *spans, int32_t num_spans)
{
    const struct mok_dims *dims = &group->setup.dims;
    struct mok_span *input = &spans[num_spans - 1];
    MOK_TRY(mok_api_check_apart(spans, num_spans - 1));
    for (int32_t idx = 0; idx < group->setup.num_saved; idx++) {
        const mok_saved *saved = &group->saved[idx];
        if (saved->is_waiting && saved != own) {
            *input = (struct mok_span){.name = "the input of a saved object that waits for its backward pass",
                                       .base = group->ops->saved_input(saved->inner),
                                       .bytes = (int64_t)dims->max_tokens * dims->hidden * 2};
            MOK_TRY(mok_api_check_apart(spans, num_spans));
        }
    }
    return MOK_OK;
}

static mok_status check_forward_tensors(const mok_layer *layer, const mok_schedule *schedule, const mok_forward_args *args)
{
    const mok_group *group = layer->group;
    const struct mok_dims *dims = &group->setup.dims;
    int64_t tokens = schedule->num_tokens, row_bytes = (int64_t)dims->hidden * 2;
    MOK_TRY(mok_api_check_tensor("args.x", args->x, tokens));
    MOK_TRY(mok_api_check_tensor("args.w", args->w, tokens));
    MOK_TRY(check_shared_weight(group, "args.shared_w", args->shared_w, tokens));
    MOK_TRY(mok_api_check_tensor("args.y", args->y, tokens));
    const void *kept = args->saved == NULL ? NULL : group->ops->saved_input(args->saved->inner);
    struct mok_span spans[FORWARD_TENSORS + LAYER_SPANS + 1] = {
        {.name = "args.y", .base = args->y, .bytes = tokens * row_bytes, .is_output = 1},
        {.name = "args.w", .base = args->w, .bytes = tokens * dims->top_k * 4},
        {.name = "args.shared_w", .base = args->shared_w, .bytes = tokens * 4},
        /* x is copied to the saved object, unless it is that very memory. */
        {.name = "the input of args.saved", .base = kept, .bytes = tokens > 0 ? dims->max_tokens * row_bytes : 0,
         .is_output = args->x != kept},
        {.name = "args.x", .base = args->x, .bytes = tokens * row_bytes},
    };
    weight_spans(layer, spans + FORWARD_TENSORS);
    return check_apart_from_inputs(group, args->saved, spans, sizeof spans / sizeof spans[0]);
}

static mok_status check_free(const mok_saved *saved)
{
    if (saved != NULL && saved->is_waiting) {
        return mok_base_fail(
            MOK_ERR_MISMATCH,
            "args.saved is object %" PRId32
            ", which waits for the backward pass of an earlier forward pass: enqueue that first, or give it up with mok_saved_release",
            saved->idx);
    }
    return MOK_OK;
}

static mok_status forward_locked(mok_layer *layer, mok_schedule *schedule, const mok_forward_args *args, mok_stream stream)
{
    mok_group *group = layer->group;
    mok_saved *saved = args->saved;
    MOK_TRY(check_ready(group, schedule, stream));
    MOK_TRY(check_forward_tensors(layer, schedule, args));
    MOK_TRY(check_free(saved));
    struct mok_pass_forward pass = {
        .layer = &layer->inner,
        .schedule = schedule->inner,
        .saved = saved == NULL ? NULL : saved->inner,
        .x = args->x,
        .w = args->w,
        .shared_w = args->shared_w,
        .y = args->y,
        .stream = stream,
    };
    MOK_TRY(mok_api_end_call(group, group->ops->forward(group->inner, &pass)));
    if (saved != NULL) {
        saved->is_waiting = 1;
        saved->layer_number = layer->number;
        saved->build_number = schedule->build_number;
    }
    return MOK_OK;
}

mok_status mok_forward(mok_layer *layer, mok_schedule *schedule, const mok_forward_args *args, mok_stream stream)
{
    MOK_TRY(mok_api_check_given("layer", layer));
    MOK_TRY(mok_api_check_given("schedule", schedule));
    MOK_TRY(mok_api_check_struct("args", args, sizeof *args));
    MOK_TRY(check_family(layer, schedule, args->saved));
    MOK_TRY(mok_api_check_process(layer->group));
    pthread_mutex_lock(&layer->group->lock);
    mok_status status = forward_locked(layer, schedule, args, stream);
    pthread_mutex_unlock(&layer->group->lock);
    return status;
}

/* ---- backward ------------------------------------------------------------------------------------------------------------ */

/* Everything that the pass writes is apart from all else. The gradients have passed their checks. */
static mok_status check_backward_apart(const mok_layer *layer, int64_t tokens, const mok_backward_args *args)
{
    static const char *const routed[MOK_FFN_SPANS] = {"args.grads.gate", "args.grads.up", "args.grads.down"};
    static const char *const shared[MOK_FFN_SPANS] = {"args.shared_grads.gate", "args.shared_grads.up", "args.shared_grads.down"};
    const struct mok_pass_setup *setup = &layer->group->setup;
    const struct mok_dims *dims = &setup->dims;
    int64_t row_bytes = (int64_t)dims->hidden * 2;
    struct mok_span spans[BACKWARD_TENSORS + 2 * LAYER_SPANS + 1] = {
        {.name = "args.dx", .base = args->dx, .bytes = tokens * row_bytes, .is_output = 1},
        {.name = "args.dw", .base = args->dw, .bytes = tokens * dims->top_k * 4, .is_output = 1},
        {.name = "args.dshared_w", .base = args->dshared_w, .bytes = tokens * 4, .is_output = 1},
        {.name = "args.dy", .base = args->dy, .bytes = tokens * row_bytes},
        {.name = "args.w", .base = args->w, .bytes = tokens * dims->top_k * 4},
        {.name = "args.shared_w", .base = args->shared_w, .bytes = tokens * 4},
        {.name = "the input of args.saved",
         .base = layer->group->ops->saved_input(args->saved->inner),
         .bytes = tokens > 0 ? dims->max_tokens * row_bytes : 0},
    };
    struct mok_span *grads = spans + BACKWARD_TENSORS;
    mok_api_ffn_spans(routed, &args->grads, setup->num_local, dims->hidden, dims->inter, 1, grads);
    mok_api_ffn_spans(shared, &args->shared_grads, dims->shared_inter > 0, dims->hidden, dims->shared_inter, 1, grads + MOK_FFN_SPANS);
    weight_spans(layer, grads + LAYER_SPANS);
    return check_apart_from_inputs(layer->group, args->saved, spans, sizeof spans / sizeof spans[0]);
}

static mok_status check_backward_tensors(const mok_layer *layer, const mok_schedule *schedule, const mok_backward_args *args)
{
    const mok_group *group = layer->group;
    const struct mok_dims *dims = &group->setup.dims;
    int64_t tokens = schedule->num_tokens;
    MOK_TRY(mok_api_check_tensor("args.dy", args->dy, tokens));
    MOK_TRY(mok_api_check_tensor("args.w", args->w, tokens));
    MOK_TRY(check_shared_weight(group, "args.shared_w", args->shared_w, tokens));
    MOK_TRY(mok_api_check_tensor("args.dx", args->dx, tokens));
    MOK_TRY(mok_api_check_tensor("args.dw", args->dw, tokens));
    MOK_TRY(check_shared_weight(group, "args.dshared_w", args->dshared_w, tokens));
    MOK_TRY(mok_api_check_ffn("args.grads", &args->grads, group->setup.num_local, dims->hidden, dims->inter, 1));
    MOK_TRY(mok_api_check_shared("args.shared_grads", &args->shared_grads, dims->hidden, dims->shared_inter, 1));
    if (args->grad_mode != MOK_GRAD_OVERWRITE && args->grad_mode != MOK_GRAD_ADD) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "args.grad_mode is %" PRId32 ": must be MOK_GRAD_OVERWRITE (0) or MOK_GRAD_ADD (1)",
                             args->grad_mode);
    }
    if (args->reserved != 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "args.reserved is %" PRId32 ": must be 0", args->reserved);
    }
    return check_backward_apart(layer, tokens, args);
}

/* The saved object holds a forward pass of this layer and this build of the schedule. */
static mok_status check_filled(const mok_layer *layer, const mok_schedule *schedule, const mok_saved *saved)
{
    if (!saved->is_waiting) {
        return mok_base_fail(MOK_ERR_MISMATCH,
                             "args.saved is object %" PRId32 ", which %s: mok_forward must fill it before each mok_backward", saved->idx,
                             saved->build_number == 0 ? "was never filled" : "was already used by a backward pass or released");
    }
    if (saved->layer_number != layer->number) {
        return mok_base_fail(MOK_ERR_MISMATCH, "layer is not the one whose forward pass filled args.saved (object %" PRId32 ")",
                             saved->idx);
    }
    if (saved->build_number != schedule->build_number) {
        return mok_base_fail(MOK_ERR_MISMATCH, "schedule is not the one whose forward pass filled args.saved (object %" PRId32
                             "), or was built anew since", saved->idx);
    }
    return MOK_OK;
}

static mok_status backward_locked(mok_layer *layer, mok_schedule *schedule, const mok_backward_args *args, mok_stream stream)
{
    mok_group *group = layer->group;
    MOK_TRY(check_ready(group, schedule, stream));
    MOK_TRY(check_backward_tensors(layer, schedule, args));
    MOK_TRY(check_filled(layer, schedule, args->saved));
    struct mok_pass_backward pass = {
        .layer = &layer->inner,
        .schedule = schedule->inner,
        .saved = args->saved->inner,
        .dy = args->dy,
        .w = args->w,
        .shared_w = args->shared_w,
        .dx = args->dx,
        .dw = args->dw,
        .dshared_w = args->dshared_w,
        .grads = args->grads,
        .shared_grads = args->shared_grads,
        .grad_mode = args->grad_mode,
        .stream = stream,
    };
    MOK_TRY(mok_api_end_call(group, group->ops->backward(group->inner, &pass)));
    args->saved->is_waiting = 0;
    return MOK_OK;
}

mok_status mok_backward(mok_layer *layer, mok_schedule *schedule, const mok_backward_args *args, mok_stream stream)
{
    MOK_TRY(mok_api_check_given("layer", layer));
    MOK_TRY(mok_api_check_given("schedule", schedule));
    MOK_TRY(mok_api_check_struct("args", args, sizeof *args));
    MOK_TRY(mok_api_check_given("args.saved", args->saved));
    MOK_TRY(check_family(layer, schedule, args->saved));
    MOK_TRY(mok_api_check_process(layer->group));
    pthread_mutex_lock(&layer->group->lock);
    mok_status status = backward_locked(layer, schedule, args, stream);
    pthread_mutex_unlock(&layer->group->lock);
    return status;
}
