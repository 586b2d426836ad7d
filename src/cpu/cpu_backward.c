/*
 * Backward tasks, routed and shared (numerics.md has the rounding points).
 *
 *   recompute  gate+up again: g, u of rows that were not kept
 *   D          dh = dy [128, H] * Wd tile                 -> dg, du, bf16(w*h), partial sums of dw; zeros in padding rows
 *   E          dx = [dg du] [128, 2I] * [Wg; Wu] tile     -> bf16 dx
 *   wgrad      dWd tile += dy^T bf16(w*h), dWg tile += dg^T x, dWu tile += du^T x, row tile after row tile
 *
 * A weight gradient in fp32 is its own accumulator, across laps too. For bf16 the accumulator is scratch; an expert that spans laps has it
 * in one of two carries, by the parity of the lap, and it is rounded once, in the expert's last lap.
 */
#include <limits.h>
#include <string.h>

#include "cpu/cpu.h"

/* The fields of a tile of the shared expert: own tokens. */
static void fill_shared(const struct mok_pass_group *group, const struct mok_cpu_job *job, int64_t row, struct mok_cpu_tile *tile)
{
    const struct mok_walk *walk = &group->pass.walk;
    const struct mok_cpu_layout *layout = &group->layout;
    const struct mok_pass_saved *saved = job->saved;
    const char *own = group->peer->base[walk->dims.rank];
    int64_t hidden = walk->dims.hidden, inter = walk->dims.shared_inter;
    tile->weights = &job->layer.shared;
    tile->inter = walk->dims.shared_inter;
    tile->valid = (int32_t)mok_min64(MOK_TILE_ROWS, walk->schedule.head->num_tokens - row);
    tile->x = (const mok_bf16 *)saved->own_x + row * hidden;
    tile->g = (layout->shared_remade ? (mok_bf16 *)(group->other_block + layout->shared_g) : saved->shared_g) + row * inter;
    tile->u = (layout->shared_remade ? (mok_bf16 *)(group->other_block + layout->shared_u) : saved->shared_u) + row * inter;
    tile->dy = (const mok_bf16 *)(own + group->setup.region.rows) + row * hidden;
    tile->w = job->backward.shared_w != NULL ? job->backward.shared_w + row : NULL;
    tile->dgu = (mok_bf16 *)(group->other_block + layout->shared_dgu) + row * 2 * inter;
    tile->wh = (mok_bf16 *)(group->other_block + layout->shared_wh) + row * inter;
    tile->dx = (mok_bf16 *)(group->other_block + layout->shared_dx) + row * hidden;
    tile->dw_tiles = layout->shared_dw_tiles;
    tile->dw = (float *)(group->other_block + layout->shared_dw) + row * tile->dw_tiles;
}

struct mok_cpu_tile mok_cpu_backward_tile(const struct mok_pass_group *group, const struct mok_cpu_job *job, int32_t row_tile,
                                          int is_shared)
{
    const struct mok_walk *walk = &group->pass.walk;
    const struct mok_cpu_layout *layout = &group->layout;
    int64_t row = (int64_t)row_tile * MOK_TILE_ROWS, hidden = walk->dims.hidden, inter = walk->dims.inter;
    struct mok_cpu_tile tile;
    memset(&tile, 0, sizeof tile);
    tile.is_shared = is_shared;
    if (is_shared) {
        fill_shared(group, job, row, &tile);
        return tile;
    }
    int64_t ring_row = mok_plan_ring_row(&walk->ring, row);
    tile.weights = &job->layer.routed;
    tile.expert = walk->schedule.tile_expert[row_tile];
    tile.inter = walk->dims.inter;
    tile.valid = mok_cpu_valid_rows(walk, row_tile);
    tile.x = mok_cpu_row_x(group, job->saved, row);
    if (mok_walk_is_kept(walk, row_tile)) {
        tile.g = job->saved->g + row * inter;
        tile.u = job->saved->u + row * inter;
    } else {
        tile.g = (mok_bf16 *)(group->ring_block + layout->again_g) + ring_row * inter;
        tile.u = (mok_bf16 *)(group->ring_block + layout->again_u) + ring_row * inter;
    }
    tile.dy = (const mok_bf16 *)(group->ring_block + layout->dy) + ring_row * hidden;
    tile.w = (const float *)(group->ring_block + layout->w) + ring_row;
    tile.dgu = (mok_bf16 *)(group->ring_block + layout->dgu) + ring_row * 2 * inter;
    tile.wh = (mok_bf16 *)(group->ring_block + layout->wh) + ring_row * inter;
    tile.dx = (mok_bf16 *)(group->ring_block + layout->dx) + ring_row * hidden;
    tile.dw_tiles = layout->dw_tiles;
    tile.dw = (float *)(group->ring_block + layout->dw) + ring_row * tile.dw_tiles;
    return tile;
}

/* Rows of a tile that weight gradients contract: up to the end of its last chunk, whose padding rows are zero. The shared expert has no
 * padding rows. */
static int32_t contracted_rows(const struct mok_cpu_tile *tile)
{
    return tile->is_shared ? tile->valid : (int32_t)mok_round_up(tile->valid, MOK_CHUNK_ROWS);
}

static void dgrad_down(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, const struct mok_cpu_tile *tile, int32_t col_tile)
{
    const struct mok_pass_group *group = worker->group;
    int32_t hidden = group->setup.dims.hidden;
    int32_t width = mok_cpu_tile_width(tile->inter, group->tiles.dgrad_down, col_tile);
    mok_cpu_load_rows(group->loops, tile->dy, hidden, tile->valid, group->call.height, hidden, worker->operand_a);
    mok_cpu_load_weights(worker, tile, MOK_CPU_DGRAD_DOWN, col_tile);
    struct mok_cpu_panel dh = mok_cpu_multiply_nn(worker, 0, width, hidden);
    int64_t col = (int64_t)col_tile * group->tiles.dgrad_down, inter = tile->inter;
    for (int64_t row = 0; row < tile->valid; row++) {
        mok_bf16 *dgu = tile->dgu + row * 2 * inter + col;
        tile->dw[row * tile->dw_tiles + col_tile] = group->loops->act_backward(
            &job->layer.activation, tile->w != NULL ? tile->w[row] : 1.0f, dh.rows + row * dh.stride, tile->g + row * inter + col,
            tile->u + row * inter + col, width, dgu, dgu + inter, tile->wh + row * inter + col);
    }
    for (int64_t row = tile->valid; row < contracted_rows(tile); row++) {
        size_t bytes = (size_t)width * sizeof(mok_bf16);
        memset(tile->dgu + row * 2 * inter + col, 0, bytes);
        memset(tile->dgu + row * 2 * inter + inter + col, 0, bytes);
        memset(tile->wh + row * inter + col, 0, bytes);
    }
}

static void dgrad_gate_up(struct mok_cpu_worker *worker, const struct mok_cpu_tile *tile, int32_t col_tile)
{
    const struct mok_pass_group *group = worker->group;
    int32_t hidden = group->setup.dims.hidden, depth = 2 * tile->inter;
    int32_t total = mok_cpu_tile_width(hidden, group->tiles.dgrad_gate_up, col_tile);
    mok_cpu_load_rows(group->loops, tile->dgu, depth, tile->valid, group->call.height, depth, worker->operand_a);
    mok_cpu_load_weights(worker, tile, MOK_CPU_DGRAD_GATE_UP, col_tile);
    for (int32_t panel = 0; panel * MOK_CPU_PANEL < total; panel++) {
        int32_t width = mok_cpu_tile_width(total, MOK_CPU_PANEL, panel);
        int64_t col = (int64_t)col_tile * group->tiles.dgrad_gate_up + panel * MOK_CPU_PANEL;
        mok_cpu_narrow_panel(worker, mok_cpu_multiply_nn(worker, panel, width, depth), tile->valid, width, tile->dx + col, hidden);
    }
}

/* ---- weight gradients ---------------------------------------------------------------------------------------------------------- */

/* One tile of a gradient: where it stands in the caller's matrix, and where it is accumulated. */
struct gradient {
    int32_t matrix;
    int32_t rows, cols; /* of the tile */
    int64_t row, col;   /* first ones, in the matrix */
    char *base;         /* of the tile, in the caller's matrix */
    int64_t row_stride; /* elements */
    int32_t dtype;
    int64_t carry_off; /* elements into a carry */
    int64_t carry_stride;
};

static struct gradient gradient_of(const struct mok_pass_group *group, const struct mok_cpu_job *job, const struct mok_task *task)
{
    int is_shared = task->kind == MOK_TASK_SHARED_WGRAD;
    const mok_ffn *grads = is_shared ? &job->backward.shared_grads : &job->backward.grads;
    int32_t hidden = group->setup.dims.hidden, inter = is_shared ? group->setup.dims.shared_inter : group->setup.dims.inter;
    int is_down = task->matrix == MOK_MATRIX_DOWN;
    const mok_matrices *matrices = is_down ? &grads->down : task->matrix == MOK_MATRIX_GATE ? &grads->gate : &grads->up;
    struct gradient gradient;
    gradient.matrix = task->matrix;
    gradient.dtype = grads->dtype;
    gradient.rows = mok_cpu_tile_width(is_down ? hidden : inter, group->tiles.wgrad_out, task->out_tile);
    gradient.cols = mok_cpu_tile_width(is_down ? inter : hidden, group->tiles.wgrad_in, task->in_tile);
    gradient.row = (int64_t)task->out_tile * group->tiles.wgrad_out;
    gradient.col = (int64_t)task->in_tile * group->tiles.wgrad_in;
    gradient.row_stride = matrices->row_stride;
    int64_t at = (is_shared ? 0 : task->expert * matrices->expert_stride) + gradient.row * matrices->row_stride + gradient.col;
    gradient.base = (char *)matrices->base + at * (grads->dtype == MOK_DTYPE_FP32 ? 4 : 2);
    gradient.carry_stride = is_down ? inter : hidden;
    gradient.carry_off = task->matrix * (int64_t)inter * hidden + gradient.row * gradient.carry_stride + gradient.col;
    return gradient;
}

static void zero_rows(char *base, int64_t stride_bytes, int32_t rows, size_t row_bytes)
{
    for (int32_t row = 0; row < rows; row++) {
        memset(base + row * stride_bytes, 0, row_bytes);
    }
}

/* An fp32 gradient whose stride BLAS can take is accumulated where it stands. */
static int is_in_place(const struct gradient *gradient) { return gradient->dtype == MOK_DTYPE_FP32 && gradient->row_stride <= INT_MAX; }

static void zero_gradient(const struct gradient *gradient)
{
    int64_t size = gradient->dtype == MOK_DTYPE_FP32 ? 4 : 2;
    zero_rows(gradient->base, gradient->row_stride * size, gradient->rows, (size_t)(gradient->cols * size));
}

/* Adds the products of row tiles [first, end) to an accumulator, in row order. */
static void contract_tiles(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, const struct mok_task *task,
                           const struct gradient *gradient, float *to, int64_t to_stride)
{
    const struct mok_pass_group *group = worker->group;
    int is_shared = task->kind == MOK_TASK_SHARED_WGRAD;
    int64_t hidden = group->setup.dims.hidden;
    worker->operand_kind = MOK_CPU_NOTHING; /* operand_b is used for rows here */
    for (int32_t row_tile = task->first_tile; row_tile < task->end_tile; row_tile++) {
        struct mok_cpu_tile tile = mok_cpu_backward_tile(group, job, row_tile, is_shared);
        const mok_bf16 *out = tile.dy, *in = tile.wh;
        int64_t out_stride = hidden, in_stride = tile.inter;
        if (gradient->matrix != MOK_MATRIX_DOWN) {
            out = tile.dgu + (gradient->matrix == MOK_MATRIX_UP ? tile.inter : 0);
            out_stride = 2 * (int64_t)tile.inter;
            in = tile.x;
            in_stride = hidden;
        }
        int32_t rows = contracted_rows(&tile);
        mok_cpu_load_rows(group->loops, out + gradient->row, out_stride, rows, MOK_TILE_ROWS, gradient->rows, worker->operand_a);
        mok_cpu_load_rows(group->loops, in + gradient->col, in_stride, rows, MOK_TILE_ROWS, gradient->cols, worker->operand_b);
        mok_cpu_contract(worker, gradient->rows, gradient->cols, to, to_stride);
    }
}

/* Starts the accumulator in scratch: from the carry, from the existing gradient, or from zero. */
static void begin_sum(struct mok_cpu_worker *worker, const struct gradient *gradient, const float *carry, int is_add)
{
    for (int64_t row = 0; row < gradient->rows; row++) {
        float *to = worker->result + row * gradient->cols;
        const char *existing = gradient->base + row * gradient->row_stride * (gradient->dtype == MOK_DTYPE_FP32 ? 4 : 2);
        if (carry != NULL) {
            memcpy(to, carry + gradient->carry_off + row * gradient->carry_stride, (size_t)gradient->cols * sizeof(float));
        } else if (!is_add) {
            memset(to, 0, (size_t)gradient->cols * sizeof(float));
        } else if (gradient->dtype == MOK_DTYPE_FP32) {
            memcpy(to, existing, (size_t)gradient->cols * sizeof(float));
        } else {
            worker->group->loops->widen((const mok_bf16 *)existing, gradient->cols, to);
        }
    }
}

/* Ends it: into the carry, or rounded into the gradient. */
static void end_sum(struct mok_cpu_worker *worker, const struct gradient *gradient, float *carry)
{
    for (int64_t row = 0; row < gradient->rows; row++) {
        const float *from = worker->result + row * gradient->cols;
        char *to = gradient->base + row * gradient->row_stride * (gradient->dtype == MOK_DTYPE_FP32 ? 4 : 2);
        if (carry != NULL) {
            memcpy(carry + gradient->carry_off + row * gradient->carry_stride, from, (size_t)gradient->cols * sizeof(float));
        } else if (gradient->dtype == MOK_DTYPE_FP32) {
            memcpy(to, from, (size_t)gradient->cols * sizeof(float));
        } else {
            worker->group->loops->narrow(from, gradient->cols, (mok_bf16 *)to);
        }
    }
}

static void wgrad(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, const struct mok_task *task)
{
    struct mok_pass_group *group = worker->group;
    struct gradient gradient = gradient_of(group, job, task);
    int is_add = job->backward.grad_mode == MOK_GRAD_ADD;
    if (task->first_tile == task->end_tile) { /* the shared expert of a rank without tokens, or an expert without rows */
        if (!is_add) {
            zero_gradient(&gradient);
        }
        return;
    }
    if (is_in_place(&gradient)) {
        if (!is_add && !task->carry_in) {
            zero_gradient(&gradient);
        }
        contract_tiles(worker, job, task, &gradient, (float *)gradient.base, gradient.row_stride);
        return;
    }
    float *carries[2] = {(float *)(group->other_block + group->layout.carry[0]), (float *)(group->other_block + group->layout.carry[1])};
    begin_sum(worker, &gradient, task->carry_in ? carries[(task->lap - 1) % 2] : NULL, is_add);
    contract_tiles(worker, job, task, &gradient, worker->result, gradient.cols);
    end_sum(worker, &gradient, task->carry_out ? carries[task->lap % 2] : NULL);
}

void mok_cpu_backward_task(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, const struct mok_task *task)
{
    switch (task->kind) {
    case MOK_TASK_SHARED_WGRAD:
    case MOK_TASK_WGRAD:
    case MOK_TASK_WGRAD_ZERO: wgrad(worker, job, task); return;
    default: break;
    }
    int is_shared =
        task->kind == MOK_TASK_SHARED_RECOMPUTE || task->kind == MOK_TASK_SHARED_DGRAD_DOWN || task->kind == MOK_TASK_SHARED_DGRAD_GATE_UP;
    struct mok_cpu_tile tile = mok_cpu_backward_tile(worker->group, job, task->row_tile, is_shared);
    switch (task->kind) {
    case MOK_TASK_RECOMPUTE:
    case MOK_TASK_SHARED_RECOMPUTE: mok_cpu_gate_up(worker, job, &tile, task->col_tile); break;
    case MOK_TASK_DGRAD_DOWN:
    case MOK_TASK_SHARED_DGRAD_DOWN: dgrad_down(worker, job, &tile, task->col_tile); break;
    default: dgrad_gate_up(worker, &tile, task->col_tile); break;
    }
}
