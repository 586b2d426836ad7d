/*
 * Where everything stands in this rank's own memory: three blocks (ring, saved objects, the rest) and the memory of one schedule. The sizes
 * that mok_group_memory reports and the offsets that the workers use come from the same lines. In: the setup. Out: byte offsets.
 */
#include <stdlib.h>

#include "cpu/cpu.h"

enum { ALIGN = 256 };

static int64_t take(int64_t *cursor, int64_t bytes)
{
    int64_t at = *cursor;
    *cursor = mok_round_up(at + bytes, ALIGN);
    return at;
}

struct mok_tiles mok_cpu_tiles(const struct mok_pass_setup *setup) { return mok_plan_tiles_cpu(&setup->dims); }

static void plan_ring(const struct mok_pass_setup *setup, struct mok_cpu_layout *layout)
{
    const struct mok_dims *dims = &setup->dims;
    int64_t hidden_bytes = 2 * (int64_t)dims->hidden, inter_bytes = 2 * (int64_t)dims->inter;
    int64_t forward_rows = mok_plan_ring_rows(&setup->ring_forward), backward_rows = mok_plan_ring_rows(&setup->ring_backward);
    /* Without local experts no row ever comes. */
    int64_t max_rows = mok_plan_max_rows(dims);
    forward_rows = max_rows == 0 ? 0 : forward_rows;
    backward_rows = max_rows == 0 || setup->num_saved == 0 ? 0 : backward_rows;
    int64_t again_rows = layout->kept_rows < max_rows ? backward_rows : 0;
    int64_t cursor = 0;
    layout->x = take(&cursor, forward_rows * hidden_bytes);
    layout->h = take(&cursor, forward_rows * inter_bytes);
    layout->y = take(&cursor, forward_rows * hidden_bytes);
    layout->ring_bytes = cursor;
    cursor = 0;
    layout->dy = take(&cursor, backward_rows * hidden_bytes);
    layout->again_x = take(&cursor, again_rows * hidden_bytes);
    layout->again_g = take(&cursor, again_rows * inter_bytes);
    layout->again_u = take(&cursor, again_rows * inter_bytes);
    layout->dgu = take(&cursor, backward_rows * 2 * inter_bytes);
    layout->wh = take(&cursor, backward_rows * inter_bytes);
    layout->dx = take(&cursor, backward_rows * hidden_bytes);
    layout->w = take(&cursor, backward_rows * 4);
    layout->dw = take(&cursor, backward_rows * layout->dw_tiles * 4);
    layout->ring_bytes = mok_max64(layout->ring_bytes, cursor);
}

static void plan_saved(const struct mok_pass_setup *setup, struct mok_cpu_layout *layout)
{
    const struct mok_dims *dims = &setup->dims;
    int64_t shared_bytes = layout->shared_remade ? 0 : dims->max_tokens * 2 * dims->shared_inter;
    int64_t cursor = 0;
    layout->saved_x = take(&cursor, layout->kept_rows * 2 * dims->hidden);
    layout->saved_g = take(&cursor, layout->kept_rows * 2 * dims->inter);
    layout->saved_u = take(&cursor, layout->kept_rows * 2 * dims->inter);
    layout->saved_shared_g = take(&cursor, shared_bytes);
    layout->saved_shared_u = take(&cursor, shared_bytes);
    layout->saved_stride = cursor;
    layout->saved_bytes = setup->num_saved * cursor;
}

/* The shared expert's rows stand here for one pass. */
static int64_t plan_shared(const struct mok_pass_setup *setup, struct mok_cpu_layout *layout)
{
    const struct mok_dims *dims = &setup->dims;
    int64_t tokens = dims->shared_inter > 0 ? dims->max_tokens : 0;
    int64_t inter_bytes = 2 * (int64_t)dims->shared_inter;
    int64_t cursor = 0;
    layout->shared_h = take(&cursor, tokens * inter_bytes);
    layout->shared_s = take(&cursor, tokens * 2 * dims->hidden);
    int64_t forward_bytes = cursor;
    cursor = 0;
    layout->shared_g = take(&cursor, layout->shared_remade ? tokens * inter_bytes : 0);
    layout->shared_u = take(&cursor, layout->shared_remade ? tokens * inter_bytes : 0);
    layout->shared_dgu = take(&cursor, tokens * 2 * inter_bytes);
    layout->shared_wh = take(&cursor, tokens * inter_bytes);
    layout->shared_dx = take(&cursor, tokens * 2 * dims->hidden);
    layout->shared_dw = take(&cursor, tokens * layout->shared_dw_tiles * 4);
    return mok_max64(forward_bytes, setup->num_saved > 0 ? cursor : 0);
}

static int64_t num_panels(int64_t columns) { return mok_ceil_div(columns, MOK_CPU_PANEL); }

/* Largest operands over all GEMMs of both experts' widths. */
static void plan_scratch(const struct mok_pass_setup *setup, struct mok_cpu_layout *layout)
{
    struct mok_tiles tiles = mok_cpu_tiles(setup);
    int64_t hidden = setup->dims.hidden, inter = mok_max64(setup->dims.inter, setup->dims.shared_inter);
    int64_t down = num_panels(mok_min64(tiles.down, hidden)), dgrad_gate_up = num_panels(mok_min64(tiles.dgrad_gate_up, hidden));
    int64_t panel_rows = mok_max64(2 * hidden, mok_max64(down * inter, dgrad_gate_up * 2 * inter)); /* gate+up (D has half), down, E */
    int64_t widest = mok_max64(hidden, inter), depth = mok_max64(hidden, 2 * inter);
    int64_t wgrad_out = mok_min64(tiles.wgrad_out, widest), wgrad_in = mok_min64(tiles.wgrad_in, widest);
    int64_t panels = mok_max64(2, mok_max64(down, dgrad_gate_up));
    int64_t cursor = 0;
    layout->operand_a = take(&cursor, 4 * mok_max64(MOK_CPU_MAX_HEIGHT * depth, MOK_TILE_ROWS * wgrad_out));
    layout->operand_b = take(&cursor, 4 * mok_max64(MOK_CPU_MAX_PANEL * panel_rows, MOK_TILE_ROWS * wgrad_in));
    layout->result = take(&cursor, 4 * mok_max64(panels * MOK_CPU_MAX_HEIGHT * MOK_CPU_MAX_PANEL, wgrad_out * wgrad_in));
    layout->row = take(&cursor, 4 * hidden);
    layout->scratch_stride = cursor;
}

struct mok_cpu_layout mok_cpu_plan_layout(const struct mok_pass_setup *setup)
{
    struct mok_cpu_layout layout;
    const struct mok_dims *dims = &setup->dims;
    struct mok_tiles tiles = mok_cpu_tiles(setup);
    layout.kept_rows = mok_min64(setup->ring_forward.keep_rows, mok_plan_max_rows(dims));
    layout.shared_remade = setup->ring_forward.keep_rows == 0;
    layout.dw_tiles = mok_plan_num_tiles(dims->inter, tiles.dgrad_down);
    layout.shared_dw_tiles = mok_plan_num_tiles(dims->shared_inter, tiles.dgrad_down);
    plan_ring(setup, &layout);
    plan_saved(setup, &layout);
    int64_t cursor = plan_shared(setup, &layout);

    struct mok_limits forward = mok_plan_limits(dims, &setup->ring_forward), backward = mok_plan_limits(dims, &setup->ring_backward);
    int spans_laps = backward.max_laps > 1 && setup->num_saved > 0 && setup->num_local > 0;
    for (int i = 0; i < 2; i++) {
        layout.carry[i] = take(&cursor, spans_laps ? 3 * 4 * (int64_t)dims->inter * dims->hidden : 0);
    }
    layout.num_counters = mok_max64(mok_plan_counter_base(&forward, MOK_NUM_COUNTERS), mok_plan_counter_base(&backward, MOK_NUM_COUNTERS));
    layout.counters = take(&cursor, layout.num_counters * 4);
    plan_scratch(setup, &layout);
    layout.scratch = take(&cursor, layout.scratch_stride * (setup->comm_workers + setup->compute_workers));
    layout.other_bytes = cursor;
    return layout;
}

struct mok_cpu_schedule_layout mok_cpu_plan_schedule(const struct mok_pass_setup *setup)
{
    struct mok_cpu_schedule_layout layout;
    int64_t max_rows = mok_plan_max_rows(&setup->dims), num_local = setup->num_local;
    int64_t cursor = 0;
    layout.expert_rows = take(&cursor, num_local * 4);
    layout.expert_first = take(&cursor, (num_local + 1) * 4);
    layout.tile_expert = take(&cursor, max_rows / MOK_TILE_ROWS * 4);
    layout.active = take(&cursor, num_local * 4);
    layout.ordinal = take(&cursor, num_local * 4);
    layout.routes = take(&cursor, max_rows * (int64_t)sizeof(struct mok_route));
    layout.ids = take(&cursor, setup->dims.max_tokens * setup->dims.top_k * 4);
    layout.cursor = take(&cursor, ((int64_t)setup->dims.num_experts + 2) * 4);
    layout.bytes = cursor;
    return layout;
}

void *mok_cpu_alloc(int64_t bytes) { return aligned_alloc(ALIGN, (size_t)mok_round_up(mok_max64(bytes, 1), ALIGN)); }
