/*
 * Fuzzer of the plan: bytes -> shape, counts, ring -> the invariants of tests/unit/test_plan_check.h, the split of experts, the row order
 * and the layout of the peer region. A broken rule aborts, and says which.
 *
 *   clang -fsanitize=fuzzer,address,undefined -Isrc -Iinclude tests/fuzz/fuzz_plan.c && ./a.out
 */
#include <stddef.h>
#include <stdint.h>

#include "../unit/test_plan_check.h"
#include "plan/region.h"
#include "plan/rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bytes {
    const uint8_t *data;
    size_t left;
};

/* The next byte as an integer of [low, high]; low when there is none left. */
static int32_t take(struct bytes *bytes, int32_t low, int32_t high)
{
    if (bytes->left == 0) {
        return low;
    }
    bytes->left--;
    return low + *bytes->data++ % (high - low + 1);
}

static void require(int holds, const char *rule)
{
    if (!holds) {
        fprintf(stderr, "broken: %s\n", rule);
        abort();
    }
}

static void check_split(const struct mok_dims *dims)
{
    for (int32_t e = 0; e < dims->num_experts; e++) {
        int32_t owner = mok_plan_owner(dims->num_experts, dims->num_ranks, e);
        require(owner >= 0 && owner < dims->num_ranks, "an expert has an owner");
        require(e >= mok_plan_first_expert(dims->num_experts, dims->num_ranks, owner) &&
                    e < mok_plan_first_expert(dims->num_experts, dims->num_ranks, owner + 1),
                "the owner holds the expert");
    }
}

/* The routes of all sources to one expert take its rows one to one. */
static void check_rows(struct bytes *bytes, const struct mok_dims *dims)
{
    enum { MOST = 40 };
    int32_t counts[8], total = 0;
    char taken[8 * MOST] = {0};
    for (int32_t s = 0; s < dims->num_ranks; s++) {
        counts[s] = take(bytes, 0, MOST);
        total += counts[s];
    }
    for (int32_t s = 0; s < dims->num_ranks; s++) {
        for (int32_t q = 0; q < counts[s]; q++) {
            int64_t row = mok_plan_row_in_expert(counts, 1, dims->num_ranks, dims->rank, s, q);
            require(row >= 0 && row < total && !taken[row], "rows of an expert are a bijection");
            taken[row] = 1;
        }
    }
}

static void check_region(const struct mok_dims *dims, int32_t num_saved)
{
    struct mok_region region = mok_plan_region(dims, num_saved);
    int64_t routes = dims->max_tokens * dims->top_k, row_bytes = (int64_t)dims->hidden * 2, words = (int64_t)dims->num_ranks * 4;
    const int64_t parts[][2] = {
        {region.board, (int64_t)dims->num_ranks * MOK_BOARD_BYTES}, {region.sched, words}, {region.entry, words}, {region.exit, words},
        {region.left, words}, {region.entry_tag, words * 2}, {region.abort, 4},
        {region.offset[0], ((int64_t)dims->num_experts + 2) * 4}, {region.list[0], routes * 4},
        {region.offset[1], ((int64_t)dims->num_experts + 2) * 4}, {region.list[1], routes * 4}, {region.rows, dims->max_tokens * row_bytes},
        {region.w, routes * 4}, {region.slots, routes * row_bytes}, {region.slot_dw, routes * 4},
        {region.saved_x, num_saved * region.saved_x_stride},
    };
    const size_t count = sizeof parts / sizeof *parts;
    for (size_t i = 0; i < count; i++) {
        require(parts[i][0] % MOK_REGION_ALIGN == 0, "parts of the region are aligned");
        require(parts[i][0] + parts[i][1] <= region.bytes, "parts end inside the region");
        for (size_t j = 0; j < count; j++) {
            int apart = parts[i][0] + parts[i][1] <= parts[j][0] || parts[j][0] + parts[j][1] <= parts[i][0];
            require(i == j || apart, "parts of the region do not overlap");
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes bytes = {data, size};
    struct plan_case plan = {0};
    plan.dims.num_ranks = take(&bytes, 1, 8);
    plan.dims.rank = take(&bytes, 0, plan.dims.num_ranks - 1);
    plan.dims.num_experts = take(&bytes, 1, plan.dims.num_ranks * (PLAN_MAX_LOCAL - 1));
    plan.dims.top_k = take(&bytes, 1, MOK_MAX_TOP_K);
    plan.dims.hidden = 8 * take(&bytes, 1, 6);
    plan.dims.inter = 8 * take(&bytes, 1, 6);
    plan.dims.shared_inter = 8 * take(&bytes, 0, 4);
    int32_t *widths[] = {&plan.tiles.gate_up, &plan.tiles.down, &plan.tiles.dgrad_down, &plan.tiles.dgrad_gate_up, &plan.tiles.wgrad_out,
                         &plan.tiles.wgrad_in};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        *widths[i] = 8 * take(&bytes, 1, 6);
    }
    plan.ring.minibatch_rows = MOK_TILE_ROWS * take(&bytes, 1, 5);
    plan.ring.num_places = take(&bytes, 1, 6);
    plan.ring.look_ahead = take(&bytes, 0, plan.ring.num_places - 1);
    plan.ring.keep_rows = MOK_TILE_ROWS * take(&bytes, 0, 60);
    plan.num_comm = take(&bytes, 1, 16);
    plan.backward = take(&bytes, 0, 1);
    plan.shared_recompute = take(&bytes, 0, 1);
    plan.zero_grads = take(&bytes, 0, 1);
    plan.row_group = take(&bytes, 1, 9);
    plan.num_tokens = 5 * take(&bytes, 0, 255);
    int32_t num_saved = take(&bytes, 0, 4);
    for (int32_t e = 0; e < PLAN_MAX_LOCAL; e++) {
        plan.expert_rows[e] = take(&bytes, 0, 255) * take(&bytes, 0, 8);
    }
    if (!plan_check(&plan)) {
        fprintf(stderr, "broken: %s\n", plan_error);
        abort();
    }
    check_split(&plan.dims);
    check_rows(&bytes, &plan.dims);
    check_region(&plan.dims, num_saved);
    return 0;
}
