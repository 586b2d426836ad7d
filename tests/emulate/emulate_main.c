/*
 * The fused forward kernel on the emulated machine: small layers, rank after rank (ranks meet before and after the kernel only), every
 * slot, kept row and row of the shared expert checked bit for bit; and passes that must end without doing anything, or early.
 *
 *   emulate [--seeds N] [NAME]         NAME: only cases whose name contains it; N: each with N seeds, default 1
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/fused/fused.h"
#include "emulate_backend.h"
#include "emulate_world.h"

enum { LIMIT_TICKS = 30000000, UNTOUCHED = 0xffff };

/* What stands in the way of the pass. */
enum trouble { NO_TROUBLE, NO_ENTRY, ABORTED };

static const struct world_case cases[] = {
    /* name R E K H I Is tokens | minibatch places ahead | comm ctas resident apart saved keep limit */
    {"all kept", 1, 3, 2, 136, 72, 0, {150}, 256, 2, 1, 4, 4, 0, 0, 1, 1 << 20, 0},
    {"ring of one", 2, 4, 2, 72, 136, 40, {130, 90}, 128, 1, 0, 2, 4, 0, 0, 1, 0, 7},
    {"some kept", 2, 4, 2, 136, 200, 0, {200, 90}, 128, 1, 0, 4, 4, 0, 0, 1, 128, 0},
    {"odd minibatch", 1, 5, 3, 136, 72, 0, {300}, 384, 2, 1, 2, 6, 0, 0, 1, 384, 0},
    {"apart, shared", 1, 5, 3, 136, 72, 24, {300}, 256, 3, 2, 4, 6, 0, 1, 1, 1 << 20, 0},
    {"apart, inference", 1, 5, 3, 136, 72, 0, {300}, 128, 3, 2, 2, 6, 0, 1, 0, 0, 0},
    {"a rank without tokens", 3, 4, 2, 64, 64, 0, {70, 0, 120}, 128, 2, 1, 2, 2, 0, 0, 1, 1 << 20, 0},
    {"a rank without experts", 2, 1, 1, 64, 264, 16, {140, 0}, 256, 4, 1, 2, 4, 0, 0, 1, 1 << 20, 0},
    {"down shorter than the stages", 1, 3, 2, 1200, 72, 0, {60}, 128, 2, 1, 4, 4, 0, 0, 1, 1 << 20, 0},
    {"half of the CTAs come late", 1, 5, 3, 136, 72, 0, {300}, 128, 2, 1, 4, 8, 4, 0, 1, 1 << 20, 0},
    {"no tokens", 1, 2, 1, 72, 40, 40, {0}, 128, 2, 1, 2, 4, 0, 0, 1, 0, 0},
    {"few and many", 2, 4, 2, 72, 40, 40, {5, 300}, 128, 2, 1, 2, 2, 0, 0, 1, 128, 0},
    {"workers far apart", 1, 2, 2, 72, 136, 0, {450}, 256, 1, 0, 16, 16, 0, 0, 0, 0, 0},
    {"long products", 1, 4, 2, 1600, 1400, 0, {20}, 256, 2, 1, 2, 4, 0, 0, 1, 256, 0},
};

/* One rank: its memory as the backend lays it out, and its schedule. */
struct seat {
    struct mok_pass_group group;
    struct mok_pass_saved saved;
    struct mok_pass_schedule schedule;
    struct mok_pass_layer layer;
    struct mok_cuda_record record;
    int64_t kept_rows;
};

struct table {
    struct world world;
    char *region[WORLD_MAX_RANKS];
    struct seat seats[WORLD_MAX_RANKS];
    int64_t num_wrong;
};

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

/* The region first, for all ranks: the ranks' kernels run one after the other, as if all had published. */
static void open_region(struct table *table, int32_t rank)
{
    const struct world_case *recipe = table->world.recipe;
    struct mok_pass_setup setup = setup_of(&table->world, rank);
    char *region = world_memory(setup.region.bytes, 0xff);
    memset(region + setup.region.abort, 0, 4);
    memcpy(region + (recipe->has_saved ? setup.region.saved_x : setup.region.rows), table->world.x[rank],
           (size_t)recipe->tokens[rank] * (size_t)recipe->hidden * 2);
    table->region[rank] = region;
}

static void open_seat(struct table *table, int32_t rank, enum trouble trouble)
{
    const struct world *world = &table->world;
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
    group->control->pass_ok = trouble != NO_ENTRY;
    *(uint32_t *)(table->region[rank] + group->setup.region.abort) = trouble == ABORTED;
    group->watch = (struct mok_cuda_watch){.base = table->region,
                                           .own = table->region[rank],
                                           .control = group->control,
                                           .record = &seat->record,
                                           .abort_off = group->setup.region.abort,
                                           .local_limit_ns = LIMIT_TICKS,
                                           .rank = rank,
                                           .num_ranks = recipe->num_ranks};
    place_saved(seat, table->region[rank]);
    world_schedule_open(world, &group->setup.dims, &seat->schedule);
    seat->layer.routed = ffn_of(world->weights, group->setup.first_expert, recipe->inter, recipe->hidden);
    seat->layer.shared = ffn_of(world->shared_weights, 0, recipe->shared_inter, recipe->hidden);
    seat->layer.activation = world->activation;
    seat->kept_rows = recipe->has_saved ? group->layout.kept_rows : 0;
}

static void close_seat(struct seat *seat)
{
    world_schedule_close(&seat->schedule);
    free(seat->group.ring);
    free(seat->group.saved_block);
    free(seat->group.other);
}

static mok_status launch(struct table *table, int32_t rank)
{
    struct seat *seat = &table->seats[rank];
    struct mok_staged pass = {
        .group = &seat->group,
        .schedule = &seat->schedule,
        .saved = table->world.recipe->has_saved ? &seat->saved : NULL,
        .layer = &seat->layer,
        .ring = &seat->group.setup.ring_forward,
        .kept_rows = seat->kept_rows,
    };
    return mok_cuda_fused_forward(&pass, table->world.x[rank]);
}

/* ---- checks --------------------------------------------------------------------------------------------------------------------- */

static void expect(struct table *table, const void *seen, const uint16_t *expected, int64_t count, const char *what, int32_t rank,
                   int64_t row)
{
    if (memcmp(seen, expected, (size_t)count * 2) != 0 && table->num_wrong++ == 0) {
        printf("    first: %s of row %lld, rank %d\n", what, (long long)row, rank);
    }
}

/* count values of one kind. */
static void expect_all(struct table *table, const uint16_t *seen, uint16_t expected, int64_t count, const char *what, int32_t rank,
                       int64_t row)
{
    for (int64_t i = 0; i < count; i++) {
        expect(table, &seen[i], &expected, 1, what, rank, row);
    }
}

/* A padding row that is kept: zeros where it is contracted in backward, else nothing. */
static void check_padding(struct table *table, int32_t rank, int32_t row)
{
    const struct seat *seat = &table->seats[rank];
    const struct mok_cuda_schedule_arrays *arrays = &seat->schedule.arrays;
    int32_t expert = arrays->tile_expert[row / MOK_TILE_ROWS], inside = row - arrays->expert_first[expert];
    int is_contracted = inside < mok_round_up(arrays->expert_rows[expert], MOK_CHUNK_ROWS);
    int32_t hidden = table->world.recipe->hidden, inter = table->world.recipe->inter;
    expect_all(table, (uint16_t *)seat->saved.x + (int64_t)row * hidden, is_contracted ? 0 : UNTOUCHED, hidden, "x of padding", rank, row);
    expect_all(table, (uint16_t *)seat->saved.g + (int64_t)row * inter, UNTOUCHED, inter, "g of padding", rank, row);
    expect_all(table, (uint16_t *)seat->saved.u + (int64_t)row * inter, UNTOUCHED, inter, "u of padding", rank, row);
}

static void check_rows(struct table *table, int32_t rank, uint16_t *g, uint16_t *u, uint16_t *y)
{
    const struct seat *seat = &table->seats[rank];
    const struct world_case *recipe = table->world.recipe;
    const struct mok_cuda_schedule_arrays *arrays = &seat->schedule.arrays;
    for (int32_t row = 0; row < arrays->head->num_rows; row++) {
        struct mok_route route = arrays->routes[row];
        if (route.rank < 0) {
            if (row < seat->kept_rows) {
                check_padding(table, rank, row);
            }
            continue;
        }
        const uint16_t *x = table->world.x[route.rank] + (int64_t)(route.slot / recipe->top_k) * recipe->hidden;
        int32_t expert = seat->group.setup.first_expert + arrays->tile_expert[row / MOK_TILE_ROWS];
        world_row(&table->world, x, table->world.weights, expert, recipe->inter, g, u, y);
        const char *slot = table->region[route.rank] + seat->group.setup.region.slots + (int64_t)route.slot * recipe->hidden * 2;
        expect(table, slot, y, recipe->hidden, "slot", rank, row);
        if (row < seat->kept_rows) {
            expect(table, seat->saved.x + (int64_t)row * recipe->hidden * 2, x, recipe->hidden, "kept x", rank, row);
            expect(table, seat->saved.g + (int64_t)row * recipe->inter * 2, g, recipe->inter, "kept g", rank, row);
            expect(table, seat->saved.u + (int64_t)row * recipe->inter * 2, u, recipe->inter, "kept u", rank, row);
        }
    }
}

static void check_shared(struct table *table, int32_t rank, uint16_t *g, uint16_t *u, uint16_t *y)
{
    const struct seat *seat = &table->seats[rank];
    const struct world_case *recipe = table->world.recipe;
    int64_t inter = recipe->shared_inter, hidden = recipe->hidden;
    for (int64_t token = 0; inter > 0 && token < recipe->tokens[rank]; token++) {
        world_row(&table->world, table->world.x[rank] + token * hidden, table->world.shared_weights, 0, recipe->shared_inter, g, u, y);
        expect(table, seat->group.other + seat->group.layout.shared_y + token * hidden * 2, y, hidden, "shared y", rank, token);
        if (recipe->has_saved && seat->saved.shared_g != NULL) {
            expect(table, seat->saved.shared_g + token * inter * 2, g, inter, "shared g", rank, token);
            expect(table, seat->saved.shared_u + token * inter * 2, u, inter, "shared u", rank, token);
        }
    }
}

/* Nobody wrote the slots of ids that are not routed. */
static void check_unrouted(struct table *table, int32_t rank)
{
    const struct world_case *recipe = table->world.recipe;
    const uint16_t *slots = (const uint16_t *)(table->region[rank] + table->seats[rank].group.setup.region.slots);
    for (int64_t i = 0; i < (int64_t)recipe->tokens[rank] * recipe->top_k; i++) {
        if (table->world.ids[rank][i] < 0) {
            expect_all(table, slots + i * recipe->hidden, UNTOUCHED, recipe->hidden, "unrouted slot", rank, i);
        }
    }
}

/* ---- runs ----------------------------------------------------------------------------------------------------------------------- */

/* All is as it must be when the kernels of all ranks have run; with trouble: they end, and no fault but an abort is recorded. */
static int64_t run(const struct world_case *recipe, uint32_t seed, enum trouble trouble)
{
    static struct table table;
    int64_t room = mok_max64(recipe->inter, mok_max64(recipe->shared_inter, recipe->hidden)) * 2;
    uint16_t *g = world_memory(room, 0), *u = world_memory(room, 0), *y = world_memory(room, 0);
    table.num_wrong = 0;
    world_open(&table.world, recipe, seed);
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        open_region(&table, rank);
    }
    emulate_next = (struct emulate_launch){recipe->resident, seed};
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        open_seat(&table, rank, trouble);
        mok_status status = launch(&table, rank);
        int32_t fault = table.seats[rank].record.status;
        if (status != MOK_OK || (fault != MOK_OK && (trouble != ABORTED || fault != MOK_ERR_ABORTED))) {
            printf("    rank %d: launch %d, fault %d at site %d, index %lld\n", rank, status, fault, table.seats[rank].record.site,
                   (long long)table.seats[rank].record.index);
            table.num_wrong++;
        }
    }
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        if (trouble == NO_TROUBLE) {
            check_rows(&table, rank, g, u, y);
            check_shared(&table, rank, g, u, y);
            check_unrouted(&table, rank);
        }
        close_seat(&table.seats[rank]);
    }
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        free(table.region[rank]);
    }
    world_close(&table.world);
    free(g);
    free(u);
    free(y);
    return table.num_wrong;
}

int main(int argc, char **argv)
{
    const char *name = NULL;
    int num_seeds = 1, num_passed = 0, num_failed = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            num_seeds = atoi(argv[++i]);
        } else {
            name = argv[i];
        }
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int seed = 0; seed < num_seeds && (name == NULL || strstr(cases[i].name, name) != NULL); seed++) {
            int64_t wrong = run(&cases[i], (uint32_t)(seed * 100) + (uint32_t)i + 1, NO_TROUBLE);
            int64_t lost = seed > 0 ? 0 : run(&cases[i], (uint32_t)i + 1, NO_ENTRY) + run(&cases[i], (uint32_t)i + 1, ABORTED);
            printf("%s %s, seed %d: %lld wrong, %lld that did not end well\n", wrong + lost == 0 ? "ok    " : "FAILED", cases[i].name, seed,
                   (long long)wrong, (long long)lost);
            fflush(stdout);
            num_passed += wrong + lost == 0;
            num_failed += wrong + lost != 0;
        }
    }
    printf("%d passed, %d failed, 0 skipped\n", num_passed, num_failed);
    return num_failed > 0 || num_passed == 0;
}
