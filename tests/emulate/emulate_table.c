/*
 * See emulate_table.h.
 */
#include "emulate_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "pass/site.h"

enum { LIMIT_TICKS = 30000000, RAISER = 7 /* of an abort */ };

static struct mok_pass_setup setup_of(const struct world *world, int32_t rank)
{
    const struct world_case *recipe = world->recipe;
    struct mok_pass_setup setup = {.path = MOK_PATH_FUSED, .num_saved = recipe->has_saved, .local_timeout_ns = LIMIT_TICKS};
    setup.dims = (struct mok_dims){recipe->num_ranks, rank,          recipe->num_experts,  recipe->top_k,
                                   recipe->hidden,    recipe->inter, recipe->shared_inter, world->max_tokens};
    setup.ring_forward =
        (struct mok_ring){.minibatch_rows = recipe->minibatch_rows, .num_places = recipe->places, .look_ahead = recipe->look_ahead};
    setup.ring_forward.keep_rows = recipe->has_saved ? mok_min64(recipe->keep_rows, mok_plan_max_rows_any(&setup.dims)) : 0;
    setup.ring_backward = setup.ring_forward;
    setup.region = mok_plan_region(&setup.dims, setup.num_saved);
    setup.num_local = mok_plan_num_local(recipe->num_experts, recipe->num_ranks, rank);
    setup.first_expert = mok_plan_first_expert(recipe->num_experts, recipe->num_ranks, rank);
    return setup;
}

static mok_ffn ffn_of(uint16_t *const weights[3], int64_t first, int64_t inter, int64_t hidden)
{
    int64_t at = first * inter * hidden;
    return (mok_ffn){MOK_DTYPE_BF16,
                     0,
                     {weights[0] + at, inter * hidden, hidden},
                     {weights[1] + at, inter * hidden, hidden},
                     {weights[2] + at, inter * hidden, inter}};
}

static void place_saved(struct seat *seat, char *region)
{
    const struct mok_cuda_layout *layout = &seat->group.layout;
    char *block = seat->group.saved_block;
    seat->saved = (struct mok_pass_saved){
        .group = &seat->group,
        .own_x = region + seat->group.setup.region.saved_x,
        .x_off = seat->group.setup.region.saved_x,
        .x = block + layout->saved_x,
        .g = block + layout->saved_g,
        .u = block + layout->saved_u,
        .shared_g = layout->shared_remade ? NULL : block + layout->saved_shared_g,
        .shared_u = layout->shared_remade ? NULL : block + layout->saved_shared_u,
    };
}

void table_open_region(struct table *table, int32_t rank)
{
    const struct world_case *recipe = table->world.recipe;
    struct mok_pass_setup setup = setup_of(&table->world, rank);
    char *region = world_memory(setup.region.bytes, 0xff);
    memset(region + setup.region.abort, 0, 4);
    memcpy(region + (recipe->has_saved ? setup.region.saved_x : setup.region.rows), table->world.x[rank],
           (size_t)recipe->tokens[rank] * (size_t)recipe->hidden * 2);
    if (recipe->has_saved) { /* as if backward had published, too */
        memcpy(region + setup.region.rows, table->world.dy[rank], (size_t)recipe->tokens[rank] * (size_t)recipe->hidden * 2);
        memcpy(region + setup.region.w, table->world.w[rank], (size_t)recipe->tokens[rank] * (size_t)recipe->top_k * 4);
    }
    table->region[rank] = region;
}

/* A gradient's matrices, with room between rows and experts; what stands there before the pass is random. */
static mok_matrices gradient_of(struct world *world, const struct world_case *recipe, int64_t num, int64_t rows, int64_t cols)
{
    int64_t row_stride = cols + 8, expert_stride = rows * row_stride + 16, count = mok_max64(num, 1) * expert_stride;
    uint16_t *halves = world_random(world, count, 2.0f);
    float *wide = world_memory(count * 4, 0);
    for (int64_t i = 0; i < count; i++) {
        wide[i] = mok_bf16_to_float(halves[i]);
    }
    void *base = recipe->grad_bf16 ? (void *)halves : (void *)wide;
    free(recipe->grad_bf16 ? (void *)wide : (void *)halves);
    return (mok_matrices){base, expert_stride, row_stride};
}

static mok_ffn gradients_of(struct world *world, const struct world_case *recipe, int64_t num, int64_t inter)
{
    return (mok_ffn){recipe->grad_bf16 ? MOK_DTYPE_BF16 : MOK_DTYPE_FP32,
                     0,
                     gradient_of(world, recipe, num, inter, recipe->hidden),
                     gradient_of(world, recipe, num, inter, recipe->hidden),
                     gradient_of(world, recipe, num, recipe->hidden, inter)};
}

static void free_gradients(const mok_ffn *grads)
{
    free(grads->gate.base);
    free(grads->up.base);
    free(grads->down.base);
}

static void open_backward(struct table *table, int32_t rank)
{
    struct world *world = &table->world;
    const struct world_case *recipe = world->recipe;
    struct seat *seat = &table->seats[rank];
    float *ones = (float *)(seat->group.other + seat->group.layout.ones);
    for (int32_t t = 0; recipe->shared_inter > 0 && t < world->max_tokens; t++) {
        ones[t] = 1.0f;
    }
    seat->backward = (struct mok_pass_backward){
        .layer = &seat->layer,
        .schedule = &seat->schedule,
        .saved = &seat->saved,
        .dy = world->dy[rank],
        .w = world->w[rank],
        .shared_w = recipe->grad_add ? world->shared_w[rank] : NULL,
        .grads = gradients_of(world, recipe, seat->group.setup.num_local, recipe->inter),
        .shared_grads = gradients_of(world, recipe, 1, recipe->shared_inter),
        .grad_mode = recipe->grad_add ? MOK_GRAD_ADD : MOK_GRAD_OVERWRITE,
    };
}

void table_open_seat(struct table *table, int32_t rank)
{
    struct world *world = &table->world;
    const struct world_case *recipe = world->recipe;
    struct seat *seat = &table->seats[rank];
    struct mok_pass_group *group = &seat->group;
    memset(seat, 0, sizeof *seat);
    group->setup = setup_of(world, rank);
    group->layout = mok_cuda_plan_layout(&group->setup);
    group->move_ctas = recipe->num_comm;
    group->gemm_ctas = recipe->num_ctas;
    group->fused_apart = recipe->apart;
    group->ring = world_memory(group->layout.ring_bytes, 0xff);
    group->saved_block = world_memory(group->layout.saved_bytes, 0xff);
    group->other = world_memory(group->layout.other_bytes, 0xff);
    group->control = (struct mok_cuda_control *)(group->other + group->layout.control);
    memset(group->control, 0, sizeof *group->control);
    group->watch = (struct mok_cuda_watch){.base = table->region,
                                           .own = table->region[rank],
                                           .control = group->control,
                                           .record = &seat->record,
                                           .abort_off = group->setup.region.abort,
                                           .left_off = group->setup.region.left,
                                           .local_limit_ns = LIMIT_TICKS,
                                           .rank = rank,
                                           .num_ranks = recipe->num_ranks};
    place_saved(seat, table->region[rank]);
    world_schedule_open(world, &group->setup.dims, &seat->schedule);
    seat->layer.routed = ffn_of(world->weights, group->setup.first_expert, recipe->inter, recipe->hidden);
    seat->layer.shared = ffn_of(world->shared_weights, 0, recipe->shared_inter, recipe->hidden);
    seat->layer.activation = world->activation;
    seat->forward.x = world->x[rank];
    seat->kept_rows = recipe->has_saved ? group->layout.kept_rows : 0;
    if (recipe->has_saved) {
        open_backward(table, rank);
    }
}

void table_make_trouble(struct table *table, int32_t rank, enum trouble trouble)
{
    struct mok_pass_group *group = &table->seats[rank].group;
    group->control->pass_ok = trouble != NO_ENTRY;
    *(uint32_t *)(table->region[rank] + group->setup.region.abort) = trouble == ABORTED ? 1 + RAISER : 0;
}

void table_expect_end(struct table *table, int32_t rank, enum trouble trouble, mok_status status)
{
    const struct mok_cuda_record *record = &table->seats[rank].record;
    int is_told = trouble == ABORTED ? record->status == MOK_ERR_ABORTED && record->rank == RAISER && record->site == MOK_SITE_NONE
                                     : record->status == MOK_OK;
    if (status != MOK_OK || !is_told) {
        printf("    rank %d: launch %d, fault %d of rank %d at site %d, index %lld\n", rank, status, record->status, record->rank, record->site,
               (long long)record->index);
        table->num_wrong++;
    }
}

void table_close_seat(struct seat *seat)
{
    world_schedule_close(&seat->schedule);
    if (seat->backward.saved != NULL) {
        free_gradients(&seat->backward.grads);
        free_gradients(&seat->backward.shared_grads);
    }
    free(seat->group.ring);
    free(seat->group.saved_block);
    free(seat->group.other);
}

struct mok_cuda_pass table_pass(struct table *table, int32_t rank, int is_backward)
{
    struct seat *seat = &table->seats[rank];
    return (struct mok_cuda_pass){
        .group = &seat->group,
        .schedule = &seat->schedule,
        .saved = table->world.recipe->has_saved ? &seat->saved : NULL,
        .layer = &seat->layer,
        .ring = is_backward ? &seat->group.setup.ring_backward : &seat->group.setup.ring_forward,
        .kept_rows = seat->kept_rows,
        .forward = is_backward ? NULL : &seat->forward,
        .backward = is_backward ? &seat->backward : NULL,
    };
}

void table_expect(struct table *table, const void *seen, const void *expected, int64_t bytes, const char *what, int32_t rank, int64_t row)
{
    if (memcmp(seen, expected, (size_t)bytes) != 0 && table->num_wrong++ == 0) {
        printf("    first: %s of row %lld, rank %d\n", what, (long long)row, rank);
    }
}

void table_expect_all(struct table *table, const uint16_t *seen, uint16_t expected, int64_t count, const char *what, int32_t rank, int64_t row)
{
    for (int64_t i = 0; i < count; i++) {
        table_expect(table, &seen[i], &expected, 2, what, rank, row);
    }
}
