/*
 * See emulate_world.h.
 */
#include "emulate.h"
#include "emulate_world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "plan/rows.h"

static uint32_t draw(struct world *world)
{
    world->random = world->random * 1664525u + 1013904223u;
    return world->random >> 8;
}

void *world_memory(int64_t bytes, int byte)
{
    size_t rounded = (size_t)mok_round_up(bytes + 1, 256);
    void *memory = aligned_alloc(256, rounded);
    if (memory == NULL) {
        printf("no memory\n");
        exit(1);
    }
    return memset(memory, byte, rounded);
}

uint16_t *world_random(struct world *world, int64_t count, float width)
{
    uint16_t *values = world_memory(count * 2, 0);
    for (int64_t i = 0; i < count; i++) {
        values[i] = mok_bf16_from_float(((float)(draw(world) & 0xffff) / 65536.0f - 0.5f) * width);
    }
    return values;
}

static float *random_floats(struct world *world, int64_t count)
{
    float *values = world_memory(count * 4, 0);
    for (int64_t i = 0; i < count; i++) {
        values[i] = (float)(draw(world) & 0xffff) / 65536.0f - 0.25f;
    }
    return values;
}

/* Some ids are -1, and the first experts are taken more often. */
static void fill_routes(struct world *world, int32_t rank)
{
    const struct world_case *recipe = world->recipe;
    int32_t routes = recipe->tokens[rank] * recipe->top_k, listed = 0;
    for (int32_t i = 0; i < routes; i++) {
        uint32_t experts = (uint32_t)(draw(world) % 3 == 0 ? 1 + recipe->num_experts / 2 : recipe->num_experts);
        int32_t id = (int32_t)(draw(world) % experts);
        world->ids[rank][i] = draw(world) % 9 == 0 ? -1 : id;
    }
    for (int32_t expert = 0; expert < recipe->num_experts; expert++) {
        world->offset[rank][expert] = listed;
        for (int32_t i = 0; i < routes; i++) {
            if (world->ids[rank][i] == expert) {
                world->list[rank][listed++] = i;
            }
        }
    }
    world->offset[rank][recipe->num_experts] = listed;
}

void world_open(struct world *world, const struct world_case *recipe, uint32_t seed)
{
    memset(world, 0, sizeof *world);
    world->recipe = recipe;
    world->random = seed * 2654435761u + 5;
    world->activation = (mok_activation){.limit = recipe->limit > 0 ? recipe->limit : INFINITY, .alpha = 1.0f};
    for (int matrix = 0; matrix < 3; matrix++) {
        world->weights[matrix] = world_random(world, (int64_t)recipe->num_experts * recipe->inter * recipe->hidden, 0.5f);
        world->shared_weights[matrix] = world_random(world, (int64_t)recipe->shared_inter * recipe->hidden, 0.5f);
    }
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        int64_t routes = (int64_t)recipe->tokens[rank] * recipe->top_k;
        world->max_tokens = (int32_t)mok_max64(mok_max64(world->max_tokens, recipe->tokens[rank]), 1);
        world->x[rank] = world_random(world, (int64_t)recipe->tokens[rank] * recipe->hidden, 1.0f);
        world->ids[rank] = world_memory(routes * 4, 0);
        world->list[rank] = world_memory(routes * 4, 0);
        world->offset[rank] = world_memory((recipe->num_experts + 1) * 4, 0);
        fill_routes(world, rank);
    }
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        world->dy[rank] = world_random(world, (int64_t)recipe->tokens[rank] * recipe->hidden, 1.0f);
        world->w[rank] = random_floats(world, (int64_t)recipe->tokens[rank] * recipe->top_k);
        world->shared_w[rank] = random_floats(world, recipe->tokens[rank]);
    }
}

void world_close(struct world *world)
{
    for (int32_t rank = 0; rank < world->recipe->num_ranks; rank++) {
        free(world->x[rank]);
        free(world->ids[rank]);
        free(world->list[rank]);
        free(world->offset[rank]);
        free(world->dy[rank]);
        free(world->w[rank]);
        free(world->shared_w[rank]);
    }
    for (int matrix = 0; matrix < 3; matrix++) {
        free(world->weights[matrix]);
        free(world->shared_weights[matrix]);
    }
}

/* ---- a row of the layer ------------------------------------------------------------------------------------------------------- */

EMULATE_FMA static uint16_t dot(const uint16_t *a, const uint16_t *b, int32_t count)
{
    float sum = 0;
    for (int32_t k = 0; k < count; k++) {
        sum = fmaf(mok_bf16_to_float(a[k]), mok_bf16_to_float(b[k]), sum);
    }
    return mok_bf16_from_float(sum);
}

static uint16_t activate(const mok_activation *activation, uint16_t g, uint16_t u)
{
    float z = mok_bf16_to_float(g), c = mok_bf16_to_float(u), slope = (float)(-(double)activation->alpha * 1.4426950408889634);
    if (isfinite(activation->limit)) {
        z = fminf(z, activation->limit);
        c = fmaxf(fminf(c, activation->limit), -activation->limit);
    }
    return mok_bf16_from_float((z * (1.0f / (1.0f + exp2f(slope * z)))) * (c + activation->up_offset));
}

void world_row(const struct world *world, const uint16_t *x, uint16_t *const weights[3], int32_t expert, int32_t inter, uint16_t *g_out,
               uint16_t *u_out, uint16_t *y_out)
{
    int32_t hidden = world->recipe->hidden;
    const int64_t matrix = (int64_t)expert * inter * hidden;
    uint16_t *h = world_memory(inter * 2, 0);
    for (int32_t i = 0; i < inter; i++) {
        g_out[i] = dot(x, weights[0] + matrix + (int64_t)i * hidden, hidden);
        u_out[i] = dot(x, weights[1] + matrix + (int64_t)i * hidden, hidden);
        h[i] = activate(&world->activation, g_out[i], u_out[i]);
    }
    for (int32_t j = 0; j < hidden; j++) {
        y_out[j] = dot(h, weights[2] + matrix + (int64_t)j * inter, inter);
    }
    free(h);
}

/* The sums that the products make of a vector and the columns of a matrix [count, cols]: sums += a^T B. */
EMULATE_FMA static void add_columns(const uint16_t *a, const uint16_t *matrix, int32_t count, int32_t cols, float *sums)
{
    for (int32_t k = 0; k < count; k++) {
        for (int32_t j = 0; j < cols; j++) {
            sums[j] = fmaf(mok_bf16_to_float(a[k]), mok_bf16_to_float(matrix[(int64_t)k * cols + j]), sums[j]);
        }
    }
}

/* h before it is rounded, and the derivatives, as cuda/gemm/activation.cuh makes them. */
static float derive(const mok_activation *activation, float g, float u, float *by_g_out, float *by_u_out)
{
    int clamps = isfinite(activation->limit);
    float slope = (float)(-(double)activation->alpha * 1.4426950408889634), limit = activation->limit;
    float z = clamps ? fminf(g, limit) : g, up = (clamps ? fmaxf(fminf(u, limit), -limit) : u) + activation->up_offset;
    float s = 1.0f / (1.0f + exp2f(slope * z)), silu = z * s;
    *by_g_out = clamps && g > limit ? 0.0f : fmaf(activation->alpha * silu, 1.0f + -s, s) * up;
    *by_u_out = clamps && fabsf(u) > limit ? 0.0f : silu;
    return silu * up;
}

float world_backward_row(const struct world *world, const uint16_t *x, const uint16_t *dy, float w, uint16_t *const weights[3],
                         int32_t expert, int32_t inter, uint16_t *dg_out, uint16_t *du_out, uint16_t *wh_out, uint16_t *dx_out)
{
    enum { TILE = 256 };
    int32_t hidden = world->recipe->hidden;
    const int64_t matrix = (int64_t)expert * inter * hidden;
    float *dh = world_memory(inter * 4, 0), *dx = world_memory(hidden * 4, 0), dw = 0;
    add_columns(dy, weights[2] + matrix, hidden, inter, dh);
    for (int32_t first = 0; first < inter; first += TILE) {
        float lane[4] = {0, 0, 0, 0};
        for (int32_t i = first; i < inter && i < first + TILE; i++) {
            uint16_t g = dot(x, weights[0] + matrix + (int64_t)i * hidden, hidden), u = dot(x, weights[1] + matrix + (int64_t)i * hidden, hidden);
            float by_g, by_u;
            float h = mok_bf16_to_float(
                mok_bf16_from_float(derive(&world->activation, mok_bf16_to_float(g), mok_bf16_to_float(u), &by_g, &by_u)));
            lane[i % 8 / 2] = fmaf(dh[i], h, lane[i % 8 / 2]);
            dg_out[i] = mok_bf16_from_float(w * dh[i] * by_g);
            du_out[i] = mok_bf16_from_float(w * dh[i] * by_u);
            wh_out[i] = mok_bf16_from_float(w * h);
        }
        float sum = (lane[0] + lane[1]) + (lane[2] + lane[3]);
        dw = first == 0 ? sum : dw + sum;
    }
    add_columns(dg_out, weights[0] + matrix, inter, hidden, dx);
    add_columns(du_out, weights[1] + matrix, inter, hidden, dx);
    for (int32_t j = 0; j < hidden; j++) {
        dx_out[j] = mok_bf16_from_float(dx[j]);
    }
    free(dh);
    free(dx);
    return dw;
}

/* ---- schedule ------------------------------------------------------------------------------------------------------------------ */

static void place_expert(const struct world *world, const struct mok_dims *dims, int32_t local, int32_t first,
                         struct mok_cuda_schedule_arrays *arrays)
{
    int32_t expert = mok_plan_first_expert(dims->num_experts, dims->num_ranks, dims->rank) + local, counts[WORLD_MAX_RANKS];
    for (int32_t source = 0; source < dims->num_ranks; source++) {
        counts[source] = world->offset[source][expert + 1] - world->offset[source][expert];
        arrays->expert_rows[local] += counts[source];
    }
    for (int32_t source = 0; source < dims->num_ranks; source++) {
        for (int32_t q = 0; q < counts[source]; q++) {
            int64_t row = first + mok_plan_row_in_expert(counts, 1, dims->num_ranks, dims->rank, source, q);
            arrays->routes[row] = (struct mok_route){source, world->list[source][world->offset[source][expert] + q]};
        }
    }
}

void world_schedule_open(const struct world *world, const struct mok_dims *dims, struct mok_pass_schedule *schedule)
{
    int32_t local = mok_plan_num_local(dims->num_experts, dims->num_ranks, dims->rank), rows = 0;
    int64_t most = mok_plan_max_rows(dims);
    struct mok_cuda_schedule_arrays *arrays = &schedule->arrays;
    memset(schedule, 0, sizeof *schedule);
    schedule->num_tokens = world->recipe->tokens[dims->rank];
    arrays->head = world_memory(sizeof *arrays->head, 0);
    arrays->expert_rows = world_memory(local * 4, 0);
    arrays->expert_first = world_memory((local + 1) * 4, 0);
    arrays->tile_expert = world_memory(most / MOK_TILE_ROWS * 4, 0);
    arrays->active = world_memory(local * 4, 0);
    arrays->ordinal = world_memory(local * 4, 0);
    arrays->routes = world_memory(most * (int64_t)sizeof *arrays->routes, 0xff); /* rank -1: padding */
    for (int32_t expert = 0; expert < local; expert++) {
        arrays->expert_first[expert] = rows;
        place_expert(world, dims, expert, rows, arrays);
        for (int32_t left = arrays->expert_rows[expert]; left > 0; left -= MOK_TILE_ROWS) {
            arrays->tile_expert[rows / MOK_TILE_ROWS] = expert;
            rows += MOK_TILE_ROWS;
        }
        arrays->head->num_active += arrays->expert_rows[expert] > 0;
    }
    for (int32_t has_rows = 1, place = 0; has_rows >= 0; has_rows--) {
        for (int32_t expert = 0; expert < local; expert++) {
            if ((arrays->expert_rows[expert] > 0) == has_rows) {
                arrays->ordinal[expert] = place;
                arrays->active[place++] = expert;
            }
        }
    }
    arrays->expert_first[local] = rows;
    arrays->head->num_rows = rows;
    arrays->head->num_tiles = rows / MOK_TILE_ROWS;
    arrays->head->num_tokens = (int32_t)schedule->num_tokens;
}

void world_schedule_close(struct mok_pass_schedule *schedule)
{
    free(schedule->arrays.head);
    free(schedule->arrays.expert_rows);
    free(schedule->arrays.expert_first);
    free(schedule->arrays.tile_expert);
    free(schedule->arrays.active);
    free(schedule->arrays.ordinal);
    free(schedule->arrays.routes);
}
