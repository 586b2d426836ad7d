/*
 * Opening and closing a rank: group, layer, weights in the layout of the case, the peer region where the caller owns it.
 */
#include "case/case_rank.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "plan/region.h"

static int64_t max_tokens_of(const struct mok_ref_problem *problem, const struct mok_ref_knobs *knobs)
{
    int64_t most = knobs->max_tokens > 1 ? knobs->max_tokens : 1;
    for (int32_t r = 0; r < problem->num_ranks; r++) {
        most = problem->tokens[r] > most ? problem->tokens[r] : most;
    }
    return most;
}

mok_status mok_case_config(const struct mok_ref_problem *problem, const struct mok_ref_knobs *knobs, const struct mok_case_join *join,
                           int32_t device, mok_external *external, mok_group_config *config_out)
{
    mok_group_config config;
    MOK_TRY(mok_group_config_init(&config));
    config.backend = join->backend;
    config.peer = join->peer;
    config.rank = join->rank;
    config.num_ranks = problem->num_ranks;
    config.shape =
        (mok_shape){problem->num_experts,         problem->top_k, problem->hidden, problem->inter, problem->shared_inter, MOK_FORMAT_BF16,
                    max_tokens_of(problem, knobs)};
    config.hub = join->hub;
    if (join->regions != NULL) {
        *external = (mok_external){sizeof *external, join->regions, join->region_bytes};
        config.external = external;
    }
    config.device = device;
    config.num_saved = join->num_saved;
    config.keep_rows = knobs->keep_rows;
    config.path = knobs->path;
    config.minibatch_rows = knobs->minibatch_rows;
    config.ring_minibatches = knobs->ring_minibatches;
    config.look_ahead = knobs->look_ahead;
    config.comm_workers = knobs->comm_workers;
    config.compute_workers = knobs->compute_workers;
    config.peer_timeout_ms = join->peer_timeout_ms > 0 ? join->peer_timeout_ms : 60000;
    config.local_timeout_ms = join->local_timeout_ms > 0 ? join->local_timeout_ms : config.local_timeout_ms;
    *config_out = config;
    return MOK_OK;
}

/* A block with the weights of `num` experts from `dense`; what lies between the matrices is NaN. */
static mok_status upload_weights(struct mok_case_rank *rank, const struct mok_case_place *place, const mok_bf16 *const dense[3],
                                 void **block_out)
{
    size_t bytes = (size_t)place->elements * sizeof(mok_bf16);
    mok_bf16 *image = malloc(bytes + 1);
    char *block = rank->memory->alloc(bytes + MOK_CASE_WEIGHTS_OFFSET + 1);
    *block_out = block; /* freed with the layer, whatever happens */
    if (image == NULL || block == NULL) {
        free(image);
        return MOK_ERR_MEMORY;
    }
    memset(image, 0xff, bytes);
    mok_case_place_bf16(place, dense, image);
    mok_status status = rank->memory->upload(block + MOK_CASE_WEIGHTS_OFFSET, image, bytes);
    free(image);
    return status;
}

static mok_status fill_layer(struct mok_case_rank *rank, const struct mok_ref_problem *p, struct mok_case_layer *layer)
{
    int64_t first = mok_ref_first_expert(p, rank->rank) * (int64_t)p->inter * p->hidden;
    struct mok_case_place place = mok_case_place_plan(rank->knobs.weight_layout, rank->num_local, p->inter, p->hidden);
    const mok_bf16 *routed[3] = {p->routed.gate + first, p->routed.up + first, p->routed.down + first};
    mok_layer_config config;
    mok_layer_config_init(&config);
    MOK_TRY(upload_weights(rank, &place, routed, &layer->weights));
    config.routed = mok_case_place_ffn(&place, MOK_DTYPE_BF16, (char *)layer->weights + MOK_CASE_WEIGHTS_OFFSET);
    if (p->shared_inter > 0) {
        struct mok_case_place shared_place = mok_case_place_plan(rank->knobs.weight_layout, 1, p->shared_inter, p->hidden);
        const mok_bf16 *shared[3] = {p->shared.gate, p->shared.up, p->shared.down};
        MOK_TRY(upload_weights(rank, &shared_place, shared, &layer->shared_weights));
        config.shared = mok_case_place_ffn(&shared_place, MOK_DTYPE_BF16, (char *)layer->shared_weights + MOK_CASE_WEIGHTS_OFFSET);
    }
    config.activation = p->activation;
    return mok_layer_create(rank->group, &config, &layer->layer);
}

mok_status mok_case_layer_open(struct mok_case_rank *rank, const struct mok_ref_problem *problem, struct mok_case_layer *layer_out)
{
    memset(layer_out, 0, sizeof *layer_out);
    mok_status status = fill_layer(rank, problem, layer_out);
    if (status != MOK_OK) {
        mok_case_layer_close(rank, layer_out);
    }
    return status;
}

void mok_case_layer_close(struct mok_case_rank *rank, struct mok_case_layer *layer)
{
    mok_layer_destroy(layer->layer);
    rank->memory->free(layer->weights);
    rank->memory->free(layer->shared_weights);
    memset(layer, 0, sizeof *layer);
}

mok_status mok_case_rank_open(struct mok_case_rank *rank, const struct mok_ref_problem *problem, const struct mok_ref_knobs *knobs,
                              const struct mok_case_join *join)
{
    int32_t device = -1;
    mok_external external;
    mok_group_config config;
    memset(rank, 0, sizeof *rank);
    rank->memory = mok_case_memory_of(join->backend);
    rank->problem = problem;
    rank->knobs = *knobs;
    rank->rank = join->rank;
    rank->num_saved = join->num_saved;
    rank->max_tokens = max_tokens_of(problem, knobs);
    rank->num_local = mok_ref_first_expert(problem, join->rank + 1) - mok_ref_first_expert(problem, join->rank);
    rank->region = join->regions != NULL ? join->regions[join->rank] : NULL;
    if (rank->memory == NULL) {
        return MOK_ERR_NOT_BUILT;
    }
    MOK_TRY(rank->memory->open(join->rank, &device, &rank->stream));
    rank->is_open = 1;
    mok_status status = mok_case_config(problem, knobs, join, device, &external, &config);
    if (status == MOK_OK) {
        status = mok_group_create(&config, &rank->group);
    }
    if (status == MOK_OK) {
        status = mok_case_layer_open(rank, problem, &rank->layer);
    }
    if (status != MOK_OK) {
        if (rank->group != NULL) {
            (void)mok_group_abort(rank->group); /* the others need not wait for this rank */
        }
        (void)mok_case_rank_close(rank);
    }
    return status;
}

mok_status mok_case_rank_close(struct mok_case_rank *rank)
{
    struct mok_case_layer layer = rank->layer;
    mok_layer_destroy(layer.layer);
    layer.layer = NULL;
    mok_status status = mok_group_destroy(rank->group);
    if (rank->is_open) { /* weights live until the last pass is done */
        mok_case_layer_close(rank, &layer);
        rank->memory->close(rank->stream);
    }
    memset(rank, 0, sizeof *rank);
    return status;
}

static struct mok_region region_of(const struct mok_case_rank *rank)
{
    const struct mok_ref_problem *p = rank->problem;
    struct mok_dims dims = {p->num_ranks, rank->rank, p->num_experts, p->top_k, p->hidden, p->inter, p->shared_inter, rank->max_tokens};
    return mok_plan_region(&dims, rank->num_saved);
}

mok_status mok_case_rank_poison(struct mok_case_rank *rank, int byte)
{
    struct mok_region region = region_of(rank);
    if (rank->region == NULL) {
        return MOK_OK;
    }
    return rank->memory->fill(rank->region + region.offset[0], byte, (size_t)(region.bytes - region.offset[0]));
}

mok_status mok_case_batch_slots(struct mok_case_batch *batch, mok_bf16 *to)
{
    struct mok_case_rank *rank = batch->rank;
    const struct mok_ref_problem *p = batch->problem;
    int64_t row = (int64_t)p->top_k * p->hidden;
    if (rank->region == NULL || to == NULL) {
        return MOK_OK;
    }
    return rank->memory->download(to + mok_ref_first_token(p, rank->rank) * row, rank->region + region_of(rank).slots,
                                  (size_t)(batch->num_tokens * row) * sizeof(mok_bf16));
}
