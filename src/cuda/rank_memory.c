/*
 * Where everything stands in a rank's memory. In: setup. No device memory is touched. See rank_memory.h.
 */
#include "cuda/rank_memory.h"

enum { ALIGN = 256 };

static int64_t take(int64_t *cursor, int64_t bytes)
{
    int64_t at = *cursor;
    *cursor = mok_round_up(at + bytes, ALIGN);
    return at;
}

static int64_t ring_rows(const struct mok_pass_setup *setup)
{
    int64_t backward = setup->num_saved > 0 ? mok_plan_ring_rows(&setup->ring_backward) : 0;
    /* Without local experts no row ever comes. */
    return setup->num_local == 0 ? 0 : mok_max64(mok_plan_ring_rows(&setup->ring_forward), backward);
}

/* Lays out a ring of `rows`; without backward passes a part of it. */
static void plan_ring(const struct mok_dims *dims, int has_backward, int64_t rows, struct mok_cuda_layout *layout)
{
    int64_t hidden_bytes = 2 * (int64_t)dims->hidden, inter_bytes = 2 * (int64_t)dims->inter, cursor = 0;
    int64_t back_rows = has_backward ? rows : 0;
    layout->x = take(&cursor, rows * hidden_bytes);
    layout->y = take(&cursor, rows * hidden_bytes);
    layout->h = take(&cursor, rows * inter_bytes);
    layout->dy = take(&cursor, back_rows * hidden_bytes);
    layout->dg = take(&cursor, back_rows * inter_bytes);
    layout->du = take(&cursor, back_rows * inter_bytes);
    layout->w = take(&cursor, back_rows * 4);
    layout->dw = take(&cursor, back_rows * layout->dw_tiles * 4);
    layout->ring_bytes = cursor;
}

static void plan_saved(const struct mok_pass_setup *setup, struct mok_cuda_layout *layout)
{
    const struct mok_dims *dims = &setup->dims;
    int64_t shared_bytes = layout->shared_remade ? 0 : dims->max_tokens * 2 * dims->shared_inter, cursor = 0;
    layout->saved_x = take(&cursor, layout->kept_rows * 2 * dims->hidden);
    layout->saved_g = take(&cursor, layout->kept_rows * 2 * dims->inter);
    layout->saved_u = take(&cursor, layout->kept_rows * 2 * dims->inter);
    layout->saved_shared_g = take(&cursor, shared_bytes);
    layout->saved_shared_u = take(&cursor, shared_bytes);
    layout->saved_stride = cursor;
    layout->saved_bytes = setup->num_saved * cursor;
}

static int64_t counter_bytes(const struct mok_pass_setup *setup)
{
    struct mok_limits forward = mok_plan_limits(&setup->dims, &setup->ring_forward);
    struct mok_limits backward = mok_plan_limits(&setup->dims, &setup->ring_backward);
    int64_t words = mok_max64(mok_plan_counter_base(&forward, MOK_NUM_COUNTERS), mok_plan_counter_base(&backward, MOK_NUM_COUNTERS));
    return setup->path == MOK_PATH_FUSED ? (MOK_CUDA_STATE_WORDS + words) * 4 : 0;
}

static void plan_other(const struct mok_pass_setup *setup, struct mok_cuda_layout *layout)
{
    const struct mok_dims *dims = &setup->dims;
    int64_t num_ranks = dims->num_ranks, cursor = 0;
    int64_t tokens = dims->shared_inter > 0 ? dims->max_tokens : 0, back_tokens = setup->num_saved > 0 ? tokens : 0;
    int64_t carry = layout->spans_windows ? 3 * 4 * (int64_t)dims->inter * dims->hidden : 0;
    layout->control = take(&cursor, sizeof(struct mok_cuda_control));
    layout->base = take(&cursor, num_ranks * (int64_t)sizeof(char *));
    layout->histogram = take(&cursor, MOK_CUDA_MAX_SORT_BLOCKS * (int64_t)dims->num_experts * 4);
    layout->block_bad = take(&cursor, MOK_CUDA_MAX_SORT_BLOCKS * 4);
    layout->shared_h = take(&cursor, tokens * 2 * dims->shared_inter);
    layout->shared_y = take(&cursor, tokens * 2 * dims->hidden);
    layout->shared_dg = take(&cursor, back_tokens * 2 * dims->shared_inter);
    layout->shared_du = take(&cursor, back_tokens * 2 * dims->shared_inter);
    layout->shared_dw = take(&cursor, back_tokens * layout->shared_dw_tiles * 4);
    layout->ones = take(&cursor, back_tokens * 4);
    layout->zeros = take(&cursor, mok_ceil_div(tokens, MOK_TILE_ROWS) * 4);
    layout->carry[0] = take(&cursor, carry);
    layout->carry[1] = take(&cursor, carry);
    layout->counter_bytes = counter_bytes(setup);
    layout->counters = take(&cursor, layout->counter_bytes);
    layout->other_bytes = cursor;
}

struct mok_cuda_layout mok_cuda_plan_layout(const struct mok_pass_setup *setup)
{
    struct mok_cuda_layout layout;
    const struct mok_dims *dims = &setup->dims;
    struct mok_tiles tiles = mok_plan_tiles_cuda(dims);
    int64_t most = mok_plan_max_rows(dims), rows = ring_rows(setup);
    layout.kept_rows = mok_min64(setup->ring_backward.keep_rows, most);
    layout.shared_remade = setup->ring_backward.keep_rows == 0;
    layout.dw_tiles = mok_plan_num_tiles(dims->inter, tiles.dgrad_down);
    layout.shared_dw_tiles = mok_plan_num_tiles(dims->shared_inter, tiles.dgrad_down);
    /* A window ends where a lap does, and where kept rows end. */
    layout.spans_windows = setup->num_saved > 0 && (most > mok_plan_ring_rows(&setup->ring_backward) ||
                                                    (layout.kept_rows > 0 && layout.kept_rows < most));
    plan_ring(dims, setup->num_saved > 0, rows, &layout);
    plan_saved(setup, &layout);
    plan_other(setup, &layout);
    return layout;
}

struct mok_cuda_schedule_layout mok_cuda_plan_schedule(const struct mok_pass_setup *setup)
{
    struct mok_cuda_schedule_layout layout;
    int64_t most = mok_plan_max_rows(&setup->dims), num_local = setup->num_local, cursor = 0;
    layout.head = take(&cursor, sizeof(struct mok_schedule_head));
    layout.expert_rows = take(&cursor, num_local * 4);
    layout.expert_first = take(&cursor, (num_local + 1) * 4);
    layout.tile_expert = take(&cursor, most / MOK_TILE_ROWS * 4);
    layout.active = take(&cursor, num_local * 4);
    layout.ordinal = take(&cursor, num_local * 4);
    layout.routes = take(&cursor, most * (int64_t)sizeof(struct mok_route));
    layout.ids = take(&cursor, setup->dims.max_tokens * setup->dims.top_k * 4);
    layout.token_tiles = take(&cursor, 4);
    layout.token_rows = take(&cursor, 4);
    layout.bytes = cursor;
    return layout;
}

int64_t mok_cuda_ring_row_bytes(const struct mok_dims *dims, int has_backward)
{
    struct mok_cuda_layout one;
    struct mok_tiles tiles = mok_plan_tiles_cuda(dims);
    one.dw_tiles = mok_plan_num_tiles(dims->inter, tiles.dgrad_down);
    plan_ring(dims, has_backward, ALIGN, &one); /* ALIGN rows need no rounding */
    return one.ring_bytes / ALIGN;
}
