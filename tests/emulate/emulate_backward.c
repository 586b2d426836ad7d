/*
 * A backward pass of all ranks behind their forward passes, on the emulated machine; every slot, dw, weight gradient and row of the shared
 * expert checked bit for bit. See emulate_table.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "cuda/fused/fused.h"
#include "emulate.h"
#include "emulate_table.h"

/* What the rows of one expert (or the tokens) leave behind, in row order. */
struct sums {
    int32_t inter, hidden;
    float *gate, *up, *down; /* [I, H], [I, H], [H, I]: what the gradients must be before they are rounded */
    uint16_t *dg, *du, *wh, *dx;
};

static float *start_of(const mok_matrices *matrices, int32_t dtype, int is_add, int64_t expert, int64_t rows, int64_t cols)
{
    float *values = world_memory(rows * cols * 4, 0);
    for (int64_t i = 0; is_add && i < rows * cols; i++) {
        int64_t at = expert * matrices->expert_stride + i / cols * matrices->row_stride + i % cols;
        values[i] = dtype == MOK_DTYPE_BF16 ? mok_bf16_to_float(((const uint16_t *)matrices->base)[at]) : ((const float *)matrices->base)[at];
    }
    return values;
}

static struct sums open_sums(const struct world_case *recipe, const mok_ffn *grads, int64_t expert, int32_t inter)
{
    int32_t hidden = recipe->hidden;
    return (struct sums){inter,
                         hidden,
                         start_of(&grads->gate, grads->dtype, recipe->grad_add, expert, inter, hidden),
                         start_of(&grads->up, grads->dtype, recipe->grad_add, expert, inter, hidden),
                         start_of(&grads->down, grads->dtype, recipe->grad_add, expert, hidden, inter),
                         world_memory(inter * 2, 0),
                         world_memory(inter * 2, 0),
                         world_memory(inter * 2, 0),
                         world_memory(hidden * 2, 0)};
}

static void close_sums(struct sums *sums)
{
    free(sums->gate);
    free(sums->up);
    free(sums->down);
    free(sums->dg);
    free(sums->du);
    free(sums->wh);
    free(sums->dx);
}

/* sums[i][j] += a[i] b[j] */
EMULATE_FMA static void add_outer(const uint16_t *a, int32_t rows, const uint16_t *b, int32_t cols, float *sums)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int32_t j = 0; j < cols; j++) {
            sums[i * cols + j] = fmaf(mok_bf16_to_float(a[i]), mok_bf16_to_float(b[j]), sums[i * cols + j]);
        }
    }
}

/* A row, its contribution to the gradients included. Returns dw. */
static float add_row(const struct world *world, struct sums *sums, const uint16_t *x, const uint16_t *dy, float w, uint16_t *const weights[3],
                     int32_t expert)
{
    float dw = world_backward_row(world, x, dy, w, weights, expert, sums->inter, sums->dg, sums->du, sums->wh, sums->dx);
    add_outer(sums->dg, sums->inter, x, sums->hidden, sums->gate);
    add_outer(sums->du, sums->inter, x, sums->hidden, sums->up);
    add_outer(dy, sums->hidden, sums->wh, sums->inter, sums->down);
    return dw;
}

static void check_matrix(struct table *table, const mok_matrices *seen, int32_t dtype, int64_t expert, const float *expected, int64_t rows,
                         int64_t cols, const char *what, int32_t rank)
{
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t at = expert * seen->expert_stride + i / cols * seen->row_stride + i % cols;
        uint16_t rounded = mok_bf16_from_float(expected[i]);
        if (dtype == MOK_DTYPE_BF16) {
            table_expect(table, (const uint16_t *)seen->base + at, &rounded, 2, what, rank, i / cols);
        } else {
            table_expect(table, (const float *)seen->base + at, &expected[i], 4, what, rank, i / cols);
        }
    }
}

static void check_gradients(struct table *table, const mok_ffn *grads, const struct sums *sums, int64_t expert, int32_t rank)
{
    check_matrix(table, &grads->gate, grads->dtype, expert, sums->gate, sums->inter, sums->hidden, "dWg", rank);
    check_matrix(table, &grads->up, grads->dtype, expert, sums->up, sums->inter, sums->hidden, "dWu", rank);
    check_matrix(table, &grads->down, grads->dtype, expert, sums->down, sums->hidden, sums->inter, "dWd", rank);
}

/* before: the gradients' start, made before the pass. */
static void check_expert(struct table *table, int32_t rank, int32_t local, struct sums *sums)
{
    const struct seat *seat = &table->seats[rank];
    const struct world *world = &table->world;
    const struct world_case *recipe = world->recipe;
    const struct mok_cuda_schedule_arrays *arrays = &seat->schedule.arrays;
    for (int32_t row = arrays->expert_first[local]; row < arrays->expert_first[local] + arrays->expert_rows[local]; row++) {
        struct mok_route route = arrays->routes[row];
        int64_t token = route.slot / recipe->top_k * (int64_t)recipe->hidden;
        float dw = add_row(world, sums, world->x[route.rank] + token, world->dy[route.rank] + token, world->w[route.rank][route.slot],
                           world->weights, seat->group.setup.first_expert + local);
        const char *region = table->region[route.rank];
        const struct mok_region *offsets = &seat->group.setup.region;
        table_expect(table, region + offsets->slots + (int64_t)route.slot * recipe->hidden * 2, sums->dx, recipe->hidden * 2, "dx", rank, row);
        table_expect(table, region + offsets->slot_dw + (int64_t)route.slot * 4, &dw, 4, "dw", rank, row);
    }
    check_gradients(table, &seat->backward.grads, sums, local, rank);
}

static void check_shared(struct table *table, int32_t rank, struct sums *sums)
{
    const struct seat *seat = &table->seats[rank];
    const struct world *world = &table->world;
    const struct mok_cuda_layout *layout = &seat->group.layout;
    int64_t hidden = world->recipe->hidden;
    for (int64_t t = 0; t < world->recipe->tokens[rank]; t++) {
        float v = seat->backward.shared_w != NULL ? seat->backward.shared_w[t] : 1.0f;
        float dv = add_row(world, sums, world->x[rank] + t * hidden, world->dy[rank] + t * hidden, v, world->shared_weights, 0);
        const float *partial = (const float *)(seat->group.other + layout->shared_dw) + t * layout->shared_dw_tiles;
        float sum = partial[0];
        for (int32_t i = 1; i < layout->shared_dw_tiles; i++) {
            sum += partial[i];
        }
        table_expect(table, &sum, &dv, 4, "dv", rank, t);
        table_expect(table, seat->group.other + layout->shared_y + t * hidden * 2, sums->dx, hidden * 2, "shared dx", rank, t);
    }
    check_gradients(table, &seat->backward.shared_grads, sums, 0, rank);
}

static void check_rank(struct table *table, int32_t rank)
{
    struct seat *seat = &table->seats[rank];
    const struct world_case *recipe = table->world.recipe;
    int32_t num_local = seat->group.setup.num_local;
    struct sums *sums = world_memory((num_local + 1) * (int64_t)sizeof *sums, 0);
    struct mok_cuda_pass pass = table_pass(table, rank, 1);
    for (int32_t local = 0; local <= num_local; local++) {
        int is_shared = local == num_local;
        sums[local] = open_sums(recipe, is_shared ? &seat->backward.shared_grads : &seat->backward.grads, is_shared ? 0 : local,
                                is_shared ? recipe->shared_inter : recipe->inter);
    }
    table_expect_end(table, rank, NO_TROUBLE, mok_cuda_fused_backward(&pass));
    for (int32_t local = 0; local < num_local; local++) {
        check_expert(table, rank, local, &sums[local]);
    }
    if (recipe->shared_inter > 0) {
        check_shared(table, rank, &sums[num_local]);
    }
    for (int32_t local = 0; local <= num_local; local++) {
        close_sums(&sums[local]);
    }
    free(sums);
}

void table_run_backward(struct table *table, enum trouble trouble)
{
    for (int32_t rank = 0; rank < table->world.recipe->num_ranks; rank++) {
        if (trouble == NO_TROUBLE) {
            check_rank(table, rank);
        } else {
            struct mok_cuda_pass pass = table_pass(table, rank, 1);
            table_make_trouble(table, rank, trouble);
            table_expect_end(table, rank, trouble, mok_cuda_fused_backward(&pass));
        }
    }
}
