/*
 * Random plans: small shapes with many row tiles, laps and carried experts, and the schedules that the row order of plan/rows.h gives.
 */
#include "sim_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/rows.h"

/* Memory of the arrays of one plan. */
static struct {
    char *base;
    size_t used, room;
} arena;

static void *take(size_t count, size_t size)
{
    size_t bytes = (count * size + 15) / 16 * 16;
    if (!arena.base) {
        arena.room = (size_t)64 << 20;
        arena.base = malloc(arena.room);
    }
    if (!arena.base || arena.used + bytes > arena.room) {
        abort();
    }
    void *memory = arena.base + arena.used;
    memset(memory, 0, bytes);
    arena.used += bytes;
    return memory;
}

/* ---- shape ----------------------------------------------------------------------------------------------------------------- */

static void make_shape(struct sim_plan *plan, struct plan_random *random, int32_t num_ranks)
{
    struct mok_dims *dims = &plan->dims;
    int32_t ranks = plan_random_in(random, 0, 99), tokens = plan_random_in(random, 0, 99);
    dims->num_ranks = num_ranks > 0 ? num_ranks : ranks < 15 ? 1 : ranks < 55 ? 2 : ranks < 80 ? 3 : 4;
    dims->num_experts = plan_random_in(random, 1, dims->num_ranks * (plan_random_chance(random, 30) ? 7 : 3));
    dims->top_k = plan_random_in(random, 1, 3);
    dims->hidden = 8 * plan_random_in(random, 1, 2);
    dims->inter = 8 * plan_random_in(random, 1, 2);
    dims->shared_inter = plan_random_chance(random, 40) ? 8 * plan_random_in(random, 1, 2) : 0;
    dims->max_tokens = tokens < 25 ? plan_random_in(random, 1, 8) : plan_random_in(random, tokens < 60 ? 9 : 100, tokens < 60 ? 99 : 500);
    int32_t *widths[] = {&plan->tiles.gate_up, &plan->tiles.down, &plan->tiles.dgrad_down, &plan->tiles.dgrad_gate_up,
                         &plan->tiles.wgrad_out, &plan->tiles.wgrad_in};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        *widths[i] = 8 * plan_random_in(random, 1, 2);
    }
}

static void make_rings(struct sim_plan *plan, struct plan_random *random, enum sim_rule broken)
{
    int32_t keep = plan_random_chance(random, 35) ? 0 : plan_random_in(random, 0, 12);
    for (int32_t i = 0; i < 2 * plan->dims.num_ranks; i++) {
        struct mok_ring *ring = &plan->ring[i / 2][i % 2];
        ring->minibatch_rows = MOK_TILE_ROWS * plan_random_in(random, 1, plan_random_chance(random, 60) ? 1 : 3);
        ring->num_places = plan_random_in(random, 1, plan_random_chance(random, 50) ? 2 : 4);
        ring->look_ahead = broken == SIM_LOOK_AHEAD ? ring->num_places : plan_random_in(random, 0, ring->num_places - 1);
        ring->keep_rows = (int64_t)keep * MOK_TILE_ROWS;
    }
}

static void make_workers(struct sim_plan *plan, struct plan_random *random)
{
    int strict = plan_random_chance(random, 25); /* one worker per role, each blocking at its next wait */
    for (int32_t r = 0; r < plan->dims.num_ranks; r++) {
        plan->num_comm[r] = strict ? 1 : plan_random_in(random, 1, SIM_MAX_WORKERS / 2);
        plan->num_compute[r] = strict ? 1 : plan_random_in(random, 1, SIM_MAX_WORKERS / 2);
    }
    plan->comm_takes_tasks = strict ? 0 : plan_random_in(random, 0, 2);
    plan->split_by_tile = plan_random_in(random, 0, 1);
    plan->row_group = plan_random_in(random, 1, 3);
    plan->pushes_rows = plan_random_in(random, 0, 1);
    plan->shared_recompute = plan_random_in(random, 0, 1);
    plan->bf16_grads = plan_random_in(random, 0, 1);
    plan->first_epoch = plan_random_chance(random, 20) ? UINT32_MAX - (uint32_t)plan_random_in(random, 0, 6) : 0;
}

/* ---- sequence of actions ----------------------------------------------------------------------------------------------------- */

struct progress {
    int32_t built[SIM_MAX_SCHEDULES];    /* build of a schedule, -1 = none yet */
    int32_t in_use[SIM_MAX_SCHEDULES];   /* saved objects that still need this build */
    int32_t forward_of[SIM_MAX_SAVED];   /* action that filled a saved object, -1 = free */
};

static int32_t find_free_saved(const struct sim_plan *plan, const struct progress *progress)
{
    for (int32_t i = 0; i < plan->num_saved; i++) {
        if (progress->forward_of[i] < 0) {
            return i;
        }
    }
    return -1;
}

/* A saved object that waits for its backward, counted from a random one; -1 = none. */
static int32_t find_filled_saved(const struct sim_plan *plan, const struct progress *progress, struct plan_random *random)
{
    int32_t start = plan_random_in(random, 0, SIM_MAX_SAVED - 1);
    for (int32_t i = 0; i < plan->num_saved; i++) {
        int32_t saved = (start + i) % plan->num_saved;
        if (progress->forward_of[saved] >= 0) {
            return saved;
        }
    }
    return -1;
}

/* A forward pass without a backward: the saved object is given up (mok_saved_release). */
static void release_saved(const struct sim_plan *plan, struct progress *progress, int32_t saved)
{
    if (saved >= 0) {
        progress->in_use[plan->action[progress->forward_of[saved]].schedule]--;
        progress->forward_of[saved] = -1;
    }
}

/* The next action that is allowed: a schedule is not built anew while a saved object needs it, a backward follows its forward. */
static struct sim_action next_action(struct sim_plan *plan, struct progress *progress, struct plan_random *random)
{
    int32_t schedule = plan_random_in(random, 0, plan->num_schedules - 1);
    if (plan_random_chance(random, 5)) {
        release_saved(plan, progress, find_filled_saved(plan, progress, random));
    }
    int32_t filled = find_filled_saved(plan, progress, random);
    if (progress->built[schedule] < 0 || (!progress->in_use[schedule] && plan_random_chance(random, 30))) {
        progress->built[schedule] = plan->num_builds++;
        return (struct sim_action){.kind = SIM_BUILD, .schedule = schedule, .build = progress->built[schedule]};
    }
    if (filled >= 0 && plan_random_chance(random, 65)) {
        struct sim_action backward = plan->action[progress->forward_of[filled]];
        backward.kind = SIM_BACKWARD;
        backward.forward = progress->forward_of[filled];
        backward.zero_grads = plan_random_in(random, 0, 1);
        progress->forward_of[filled] = -1;
        progress->in_use[backward.schedule]--;
        return backward;
    }
    int32_t saved = plan_random_chance(random, 15) ? -1 : find_free_saved(plan, progress);
    if (saved >= 0) {
        progress->forward_of[saved] = plan->num_actions;
        progress->in_use[schedule]++;
    }
    return (struct sim_action){.kind = SIM_FORWARD, .schedule = schedule, .saved = saved, .build = progress->built[schedule]};
}

static void make_actions(struct sim_plan *plan, struct plan_random *random)
{
    struct progress progress = {{-1, -1}, {0}, {-1, -1, -1}};
    int32_t wanted = plan_random_in(random, 2, 10);
    plan->num_saved = plan_random_in(random, 0, SIM_MAX_SAVED);
    plan->num_schedules = plan_random_in(random, 1, SIM_MAX_SCHEDULES);
    while (plan->num_actions < wanted) {
        plan->action[plan->num_actions] = next_action(plan, &progress, random);
        plan->num_actions++;
    }
}

/* ---- routes of a build --------------------------------------------------------------------------------------------------------- */

static void make_ids(struct sim_plan *plan, struct plan_random *random, struct sim_build *build)
{
    int32_t k = plan->dims.top_k, num_experts = plan->dims.num_experts;
    int32_t num_hot = plan_random_chance(random, 50) ? plan_random_in(random, 1, 3) : 0, hot = plan_random_in(random, 0, num_experts - 1);
    for (int32_t r = 0; r < plan->dims.num_ranks; r++) {
        build[r].num_tokens = plan_random_chance(random, 20) ? 0 : plan_random_in(random, 1, (int32_t)plan->dims.max_tokens);
        int32_t *ids = take((size_t)build[r].num_tokens * (size_t)k + 1, sizeof *ids);
        for (int32_t i = 0; i < build[r].num_tokens * k; i++) {
            ids[i] = plan_random_in(random, plan_random_chance(random, 10) ? -1 : 0, num_experts - 1);
            /* Hot experts stand side by side: one ends in a lap in which the next begins. */
            ids[i] = num_hot && plan_random_chance(random, 85) ? (hot + plan_random_in(random, 0, num_hot - 1)) % num_experts : ids[i];
        }
        build[r].ids = ids;
    }
}

/* counts[s][e] of all sources. */
static int32_t *count_routes(const struct sim_plan *plan, const struct sim_build *build)
{
    int32_t *counts = take((size_t)plan->dims.num_ranks * (size_t)plan->dims.num_experts, sizeof *counts);
    for (int32_t s = 0; s < plan->dims.num_ranks; s++) {
        for (int32_t i = 0; i < build[s].num_tokens * plan->dims.top_k; i++) {
            if (build[s].ids[i] >= 0) {
                counts[s * plan->dims.num_experts + build[s].ids[i]]++;
            }
        }
    }
    return counts;
}

/* The schedule of owner r without its routes. */
static void make_schedule(const struct sim_plan *plan, const int32_t *counts, int32_t owner, struct sim_build *build)
{
    int32_t num_experts = plan->dims.num_experts, first = mok_plan_first_expert(num_experts, plan->dims.num_ranks, owner);
    int32_t local = mok_plan_num_local(num_experts, plan->dims.num_ranks, owner), place = 0;
    int32_t *rows = take((size_t)local + 1, sizeof *rows), *expert_first = take((size_t)local + 1, sizeof *expert_first);
    int32_t *active = take((size_t)local + 1, sizeof *active), *ordinal = take((size_t)local + 1, sizeof *ordinal);
    for (int32_t e = 0; e < local; e++) {
        for (int32_t s = 0; s < plan->dims.num_ranks; s++) {
            rows[e] += counts[s * num_experts + first + e];
        }
        expert_first[e + 1] = expert_first[e] + (int32_t)mok_round_up(rows[e], MOK_TILE_ROWS);
    }
    build->head.num_rows = expert_first[local];
    build->head.num_tiles = expert_first[local] / MOK_TILE_ROWS;
    build->head.num_tokens = build->num_tokens;
    for (int has_rows = 1; has_rows >= 0; has_rows--) {
        for (int32_t e = 0; e < local; e++) {
            if ((rows[e] > 0) == has_rows) {
                ordinal[e] = place;
                active[place++] = e;
                build->head.num_active += has_rows;
            }
        }
    }
    int32_t *tile_expert = take((size_t)build->head.num_tiles + 1, sizeof *tile_expert);
    for (int32_t e = 0; e < local; e++) {
        for (int32_t tile = expert_first[e] / MOK_TILE_ROWS; tile < expert_first[e + 1] / MOK_TILE_ROWS; tile++) {
            tile_expert[tile] = e;
        }
    }
    build->routes = take((size_t)build->head.num_rows + 1, sizeof *build->routes);
    for (int32_t row = 0; row < build->head.num_rows; row++) {
        build->routes[row].rank = -1;
    }
    build->view = (struct mok_schedule_view){.head = &build->head, .expert_rows = rows, .expert_first = expert_first,
                                             .tile_expert = tile_expert, .active = active, .ordinal = ordinal,
                                             .routes = build->routes, .ids = build->ids};
}

static void place_routes(const struct sim_plan *plan, const int32_t *counts, int32_t source, struct sim_build *build)
{
    int32_t num_experts = plan->dims.num_experts, num_ranks = plan->dims.num_ranks;
    int32_t *seen = take((size_t)num_experts, sizeof *seen);
    for (int32_t i = 0; i < build[source].num_tokens * plan->dims.top_k; i++) {
        int32_t e = build[source].ids[i];
        if (e < 0) {
            continue;
        }
        int32_t owner = mok_plan_owner(num_experts, num_ranks, e), local = e - mok_plan_first_expert(num_experts, num_ranks, owner);
        int64_t row = mok_plan_row_in_expert(counts + e, num_experts, num_ranks, owner, source, seen[e]++);
        build[owner].routes[build[owner].view.expert_first[local] + row] = (struct mok_route){source, i};
    }
}

static void make_build(struct sim_plan *plan, struct plan_random *random, struct sim_build *build)
{
    make_ids(plan, random, build);
    int32_t *counts = count_routes(plan, build);
    for (int32_t r = 0; r < plan->dims.num_ranks; r++) {
        make_schedule(plan, counts, r, &build[r]);
    }
    for (int32_t r = 0; r < plan->dims.num_ranks; r++) {
        place_routes(plan, counts, r, build);
    }
}

void sim_plan_make(struct sim_plan *plan, uint64_t seed, int32_t num_ranks, enum sim_rule broken)
{
    struct plan_random random = {seed * 0x9e3779b97f4a7c15u + 1};
    memset(plan, 0, sizeof *plan);
    arena.used = 0;
    plan->seed = seed;
    make_shape(plan, &random, num_ranks);
    make_rings(plan, &random, broken);
    make_workers(plan, &random);
    make_actions(plan, &random);
    for (int32_t b = 0; b < plan->num_builds; b++) {
        make_build(plan, &random, plan->build[b]);
    }
}

void sim_plan_print(const struct sim_plan *plan)
{
    static const char *const kinds[] = {"build", "forward", "backward"};
    const struct mok_dims *dims = &plan->dims;
    printf("plan: seed %" PRIu64 ", R %d E %d K %d H %d I %d Is %d T_max %" PRId64 "\n", plan->seed, dims->num_ranks, dims->num_experts,
           dims->top_k, dims->hidden, dims->inter, dims->shared_inter, dims->max_tokens);
    printf("  tile widths: gate_up %d down %d dgrad_down %d dgrad_gate_up %d wgrad %d x %d, row_group %d\n", plan->tiles.gate_up,
           plan->tiles.down, plan->tiles.dgrad_down, plan->tiles.dgrad_gate_up, plan->tiles.wgrad_out, plan->tiles.wgrad_in,
           plan->row_group);
    printf("  saved %d, schedules %d, shared_recompute %d, bf16 gradients %d, split by %s\n", plan->num_saved, plan->num_schedules,
           plan->shared_recompute, plan->bf16_grads, plan->split_by_tile ? "row tile" : "row");
    printf("  communication workers take tasks: %d, down tasks push: %d, epochs from %u\n", plan->comm_takes_tasks,
           plan->pushes_rows, plan->first_epoch);
    for (int32_t r = 0; r < dims->num_ranks; r++) {
        printf("  rank %d: %d communication, %d computation workers\n", r, plan->num_comm[r], plan->num_compute[r]);
        for (int i = 0; i < 2; i++) {
            const struct mok_ring *ring = &plan->ring[r][i];
            printf("    ring %s: minibatch %" PRId64 " rows, %d places, look-ahead %d, keep %" PRId64 " rows\n", kinds[1 + i],
                   ring->minibatch_rows, ring->num_places, ring->look_ahead, ring->keep_rows);
        }
    }
    for (int32_t a = 0; a < plan->num_actions; a++) {
        const struct sim_action *action = &plan->action[a];
        printf("  action %d: %s schedule %d saved %d; tokens/row tiles by rank:", a, kinds[action->kind], action->schedule,
               action->kind == SIM_BUILD ? -1 : action->saved);
        for (int32_t r = 0; r < dims->num_ranks; r++) {
            const struct sim_build *build = &plan->build[action->build][r];
            printf(" %d/%d", build->num_tokens, build->head.num_tiles);
        }
        printf("\n");
    }
}
