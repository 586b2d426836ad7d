/*
 * The fused kernels on the emulated machine: small layers, rank after rank (ranks meet before and after the kernel only), every slot, kept
 * row and row of the shared expert, dw and weight gradient checked bit for bit; and passes that must end without doing anything, or early.
 *
 *   emulate [--backward] [--seeds N] [NAME]    --backward: backward passes, behind forward passes that are not checked
 *                                              NAME: only cases whose name contains it; N: each with N seeds, default 1
 *   emulate --lose-counts                      passes of either kind in which an announcement of a counter is lost, for each kind of counter: every CTA must
 *                                              leave, by the local limit, and the record name a counter that did not reach its target
 *   emulate --lose-panel                       a forward pass whose pusher waits for a panel that never comes, and nobody else for anything: it must
 *                                              end by the pusher's own limit, which ends this program
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/fused/fused.h"
#include "emulate.h"
#include "emulate_backend.h"
#include "emulate_table.h"
#include "pass/site.h"

enum { NUM_TROUBLED = 2 /* cases that also run with trouble */ };

static const struct world_case cases[] = {
    /* name R E K H I Is tokens | minibatch places ahead | comm ctas resident apart saved keep limit | bf16 add */
    {"all kept", 1, 3, 2, 136, 72, 0, {150}, 256, 2, 1, 4, 4, 0, 0, 1, 1 << 20, 0, 0, 0},
    {"ring of one", 2, 4, 2, 72, 136, 40, {130, 90}, 128, 1, 0, 2, 4, 0, 0, 1, 0, 7, 1, 1},
    {"some kept", 2, 4, 2, 136, 200, 0, {200, 90}, 128, 1, 0, 4, 4, 0, 0, 1, 128, 0, 1, 0},
    {"odd minibatch", 1, 5, 3, 136, 72, 0, {300}, 384, 2, 1, 2, 6, 0, 0, 1, 384, 0, 0, 1},
    {"apart, shared", 1, 5, 3, 136, 72, 24, {300}, 256, 3, 2, 4, 6, 0, 1, 1, 1 << 20, 0, 1, 1},
    {"apart, inference", 1, 5, 3, 136, 72, 0, {300}, 128, 3, 2, 2, 6, 0, 1, 0, 0, 0, 0, 0},
    {"a rank without tokens", 3, 4, 2, 64, 64, 0, {70, 0, 120}, 128, 2, 1, 2, 2, 0, 0, 1, 1 << 20, 0, 1, 1},
    {"a rank without experts", 2, 1, 1, 64, 264, 16, {140, 0}, 256, 4, 1, 2, 4, 0, 0, 1, 1 << 20, 0, 0, 1},
    {"down shorter than the stages", 1, 3, 2, 1200, 72, 0, {60}, 128, 2, 1, 4, 4, 0, 0, 1, 1 << 20, 0, 0, 0},
    {"half of the CTAs come late, movers all", 1, 5, 3, 136, 72, 0, {300}, 128, 2, 1, 8, 8, 4, 0, 1, 1 << 20, 0, 1, 0},
    {"no tokens", 1, 2, 1, 72, 40, 40, {0}, 128, 2, 1, 2, 4, 0, 0, 1, 0, 0, 0, 0},
    {"few and many", 2, 4, 2, 72, 40, 40, {5, 300}, 128, 2, 1, 2, 2, 0, 0, 1, 128, 0, 1, 1},
    {"an expert over many laps", 1, 2, 2, 72, 40, 0, {300}, 128, 1, 0, 2, 4, 0, 0, 1, 128, 0, 1, 0},
    {"workers far apart", 1, 2, 2, 72, 136, 0, {450}, 256, 1, 0, 16, 16, 0, 0, 0, 0, 0, 0, 0},
    {"four ranks", 4, 6, 3, 72, 40, 0, {60, 0, 110, 33}, 128, 2, 1, 2, 4, 0, 0, 1, 1 << 20, 0, 0, 1},
    {"eight ranks, some without experts", 8, 5, 2, 72, 40, 16, {20, 31, 0, 9, 40, 1, 17, 25}, 128, 2, 1, 2, 4, 0, 0, 1, 128, 0, 1, 0},
    {"eight ranks, all to one of them", 8, 1, 3, 64, 72, 0, {40, 31, 16, 0, 52, 7, 24, 60}, 256, 2, 1, 4, 6, 0, 0, 1, 0, 0, 0, 1},
    {"eight ranks, two experts each", 8, 16, 4, 72, 40, 0, {30, 30, 30, 30, 30, 30, 30, 30}, 128, 1, 0, 2, 4, 0, 0, 1, 1 << 20, 0, 0, 0},
    {"long products", 1, 4, 2, 1600, 1400, 0, {20}, 256, 2, 1, 2, 4, 0, 0, 1, 256, 0, 0, 1},
};

/* One down tile of one panel: behind the last one nobody waits for the pusher. */
static const struct world_case one_panel = {"one panel", 1, 1, 1, 64, 64, 0, {10}, 128, 1, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0};

static mok_status launch(struct table *table, int32_t rank)
{
    struct mok_cuda_pass pass = table_pass(table, rank, 0);
    return mok_cuda_fused_forward(&pass);
}

/* ---- checks --------------------------------------------------------------------------------------------------------------------- */

/* A padding row that is kept: zeros where it is contracted in backward, else nothing. */
static void check_padding(struct table *table, int32_t rank, int32_t row)
{
    const struct seat *seat = &table->seats[rank];
    const struct mok_cuda_schedule_arrays *arrays = &seat->schedule.arrays;
    int32_t expert = arrays->tile_expert[row / MOK_TILE_ROWS], inside = row - arrays->expert_first[expert];
    int is_contracted = inside < mok_round_up(arrays->expert_rows[expert], MOK_CHUNK_ROWS);
    int32_t hidden = table->world.recipe->hidden, inter = table->world.recipe->inter;
    table_expect_all(table, (uint16_t *)seat->saved.x + (int64_t)row * hidden, is_contracted ? 0 : TABLE_UNTOUCHED, hidden, "x of padding", rank, row);
    table_expect_all(table, (uint16_t *)seat->saved.g + (int64_t)row * inter, TABLE_UNTOUCHED, inter, "g of padding", rank, row);
    table_expect_all(table, (uint16_t *)seat->saved.u + (int64_t)row * inter, TABLE_UNTOUCHED, inter, "u of padding", rank, row);
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
        table_expect(table, slot, y, recipe->hidden * 2, "slot", rank, row);
        if (row < seat->kept_rows) {
            table_expect(table, seat->saved.x + (int64_t)row * recipe->hidden * 2, x, recipe->hidden * 2, "kept x", rank, row);
            table_expect(table, seat->saved.g + (int64_t)row * recipe->inter * 2, g, recipe->inter * 2, "kept g", rank, row);
            table_expect(table, seat->saved.u + (int64_t)row * recipe->inter * 2, u, recipe->inter * 2, "kept u", rank, row);
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
        table_expect(table, seat->group.other + seat->group.layout.shared_y + token * hidden * 2, y, hidden * 2, "shared y", rank, token);
        if (recipe->has_saved && seat->saved.shared_g != NULL) {
            table_expect(table, seat->saved.shared_g + token * inter * 2, g, inter * 2, "shared g", rank, token);
            table_expect(table, seat->saved.shared_u + token * inter * 2, u, inter * 2, "shared u", rank, token);
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
            table_expect_all(table, slots + i * recipe->hidden, TABLE_UNTOUCHED, recipe->hidden, "unrouted slot", rank, i);
        }
    }
}

/* ---- runs ----------------------------------------------------------------------------------------------------------------------- */

/* The passes of all ranks, which meet before and after the kernel only; no fault but an abort is recorded. */
static void run_forward(struct table *table, enum trouble trouble)
{
    for (int32_t rank = 0; rank < table->world.recipe->num_ranks; rank++) {
        table_open_seat(table, rank);
        table_make_trouble(table, rank, trouble);
        table_expect_end(table, rank, trouble, launch(table, rank));
    }
}

static void check_forward(struct table *table)
{
    const struct world_case *recipe = table->world.recipe;
    int64_t room = mok_max64(recipe->inter, mok_max64(recipe->shared_inter, recipe->hidden)) * 2;
    uint16_t *g = world_memory(room, 0), *u = world_memory(room, 0), *y = world_memory(room, 0);
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        check_rows(table, rank, g, u, y);
        check_shared(table, rank, g, u, y);
        check_unrouted(table, rank);
    }
    free(g);
    free(u);
    free(y);
}

/* All is as it must be when the kernels of all ranks have run; with trouble: they end. */
static int64_t run(const struct world_case *recipe, uint32_t seed, enum trouble trouble, int is_backward)
{
    static struct table table;
    table.num_wrong = 0;
    world_open(&table.world, recipe, seed);
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        table_open_region(&table, rank);
    }
    emulate_next = (struct emulate_launch){recipe->resident, seed};
    run_forward(&table, is_backward ? NO_TROUBLE : trouble);
    if (is_backward) {
        table_run_backward(&table, trouble);
    } else if (trouble == NO_TROUBLE) {
        check_forward(&table);
    }
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        table_close_seat(&table.seats[rank]);
    }
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        free(table.region[rank]);
    }
    world_close(&table.world);
    return table.num_wrong;
}

/* ---- lost announcements ------------------------------------------------------------------------------------------------------------ */

enum { LOST_LIMIT_TICKS = 3000000 };

/* The first counter of this kind loses an announcement: of a case in which somebody waits for it. */
static const struct loss {
    const char *name;
    int is_backward;
    int32_t counter;
} losses[] = {
    {"ring of one", 0, MOK_COUNT_PULLED},        {"ring of one", 0, MOK_COUNT_H_DONE},        {"ring of one", 0, MOK_COUNT_PLACE_FREE},
    {"ring of one", 0, MOK_COUNT_SHARED_G_DONE}, {"ring of one", 1, MOK_COUNT_PULLED},        {"ring of one", 1, MOK_COUNT_G_DONE},
    {"ring of one", 1, MOK_COUNT_D_DONE},        {"ring of one", 1, MOK_COUNT_E_DONE},        {"ring of one", 1, MOK_COUNT_PLACE_FREE},
    {"ring of one", 1, MOK_COUNT_SHARED_G_DONE}, {"ring of one", 1, MOK_COUNT_SHARED_D_DONE}, {"an expert over many laps", 1, MOK_COUNT_CARRY_DONE},
};

static const struct world_case *find_case(const char *name)
{
    const struct world_case *found = cases;
    while (strcmp(found->name, name) != 0) {
        found++;
    }
    return found;
}

/* Rank 0 alone: what it raises would end the others. */
static void run_with_loss(struct table *table, const struct loss *loss)
{
    struct seat *seat = &table->seats[0];
    struct mok_pass_group *group = &seat->group;
    struct mok_cuda_pass pass = table_pass(table, 0, loss->is_backward);
    struct mok_limits limits = mok_plan_limits(&group->setup.dims, pass.ring);
    const uint32_t *counters = (const uint32_t *)(group->other + group->layout.counters) + MOK_CUDA_STATE_WORDS;
    group->watch.local_limit_ns = group->setup.local_timeout_ns = LOST_LIMIT_TICKS;
    table_make_trouble(table, 0, NO_TROUBLE);
    emulate_lose_count(counters + mok_plan_counter_base(&limits, loss->counter));
    mok_status status = loss->is_backward ? mok_cuda_fused_backward(&pass) : mok_cuda_fused_forward(&pass);
    const struct mok_cuda_record *record = &seat->record;
    int is_named = record->site >= MOK_SITE_COUNTER && record->site < MOK_SITE_QUEUE && record->seen < record->expected;
    int is_raised = *(const uint32_t *)(table->region[0] + group->setup.region.abort) != 0;
    int ok = status == MOK_OK && record->status == MOK_ERR_TIMEOUT && record->rank == 0 && is_named && is_raised;
    printf("%s %s, %s, counter %d: launch %d, record %d at counter %d, index %lld: %lld of %lld\n", ok ? "ok    " : "FAILED", loss->name,
           loss->is_backward ? "backward" : "forward", loss->counter, status, record->status, record->site - MOK_SITE_COUNTER, (long long)record->index,
           (long long)record->seen, (long long)record->expected);
    fflush(stdout);
    table->num_wrong += !ok;
}

static int64_t lose(const struct loss *loss, uint32_t seed)
{
    static struct table table;
    const struct world_case *recipe = find_case(loss->name);
    table.num_wrong = 0;
    world_open(&table.world, recipe, seed);
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        table_open_region(&table, rank);
    }
    emulate_next = (struct emulate_launch){recipe->resident, seed};
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        table_open_seat(&table, rank);
        table_make_trouble(&table, rank, NO_TROUBLE);
        if (loss->is_backward) {
            table_expect_end(&table, rank, NO_TROUBLE, launch(&table, rank));
        }
    }
    run_with_loss(&table, loss);
    for (int32_t rank = 0; rank < recipe->num_ranks; rank++) {
        table_close_seat(&table.seats[rank]);
        free(table.region[rank]);
    }
    world_close(&table.world);
    return table.num_wrong;
}

static int lose_all(void)
{
    int num = (int)(sizeof losses / sizeof losses[0]), num_failed = 0;
    for (int i = 0; i < num; i++) {
        num_failed += lose(&losses[i], (uint32_t)i + 1) > 0;
    }
    printf("%d passed, %d failed, 0 skipped\n", num - num_failed, num_failed);
    return num_failed > 0;
}

int main(int argc, char **argv)
{
    const char *name = NULL;
    int num_seeds = 1, is_backward = 0, num_passed = 0, num_failed = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            num_seeds = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--backward") == 0) {
            is_backward = 1;
        } else if (strcmp(argv[i], "--lose-counts") == 0) {
            return lose_all();
        } else if (strcmp(argv[i], "--lose-panel") == 0) {
            emulate_fused_lose_panel();
            (void)run(&one_panel, 1, NO_TROUBLE, 0);
            printf("the pass ended as if nothing were lost\n");
            return 1;
        } else {
            name = argv[i];
        }
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int is_wanted = (name == NULL || strstr(cases[i].name, name) != NULL) && (cases[i].has_saved || !is_backward);
        for (int seed = 0; seed < num_seeds && is_wanted; seed++) {
            /* What ends early does so in every case alike: with ranks and shared expert, and without. */
            int ends_early = seed == 0 && i < NUM_TROUBLED;
            uint32_t number = (uint32_t)(seed * 100) + (uint32_t)i + 1;
            int64_t wrong = run(&cases[i], number, NO_TROUBLE, is_backward), lost = 0;
            if (ends_early) {
                lost = run(&cases[i], number, NO_ENTRY, is_backward) + run(&cases[i], number, ABORTED, is_backward);
            }
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
