/*
 * Schedules of the CPU backend against plan/rows.h: every row is where mok_plan_row_in_expert says, every routed route has one row, padding
 * is padding; the same each time; bad ids counted on every rank; nothing depends on what ids, counts or memory looked like before.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/status.h"
#include "test_cpu_run.h"

/* One rank's schedule, read back. */
struct dump {
    struct mok_schedule_head head;
    int32_t *expert_rows, *expert_first, *tile_expert, *active;
    struct mok_route *routes;
    struct mok_limits limits;
    struct mok_pass_setup setup;
    mok_status status;
    uint64_t bad_ids;
};

struct dump_rank {
    struct cpu_rank rank;
    struct dump *dumps; /* [num_builds] */
    int32_t num_builds;
};

static const struct cpu_run plain_run = {.keep_rows = 0, .poison = 0xff};

static void *dump_schedules(void *argument)
{
    struct dump_rank *self = argument;
    struct cpu_rank *rank = &self->rank;
    const struct mok_ref_problem *problem = rank->problem;
    mok_status status = open_rank(rank);
    for (int32_t i = 0; status == MOK_OK && i < self->num_builds; i++) {
        struct dump *dump = &self->dumps[i];
        mok_group_state state;
        dump->setup = rank->setup;
        dump->limits = mok_plan_limits(&rank->setup.dims, &rank->setup.ring_forward);
        size_t num_local = (size_t)rank->setup.num_local;
        dump->expert_rows = calloc(num_local + 1, 4);
        dump->expert_first = calloc(num_local + 1, 4);
        dump->active = calloc(num_local + 1, 4);
        dump->tile_expert = calloc((size_t)dump->limits.max_tiles, 4);
        dump->routes = calloc((size_t)dump->limits.max_rows, sizeof *dump->routes);
        memset(rank->schedule->memory, i % 2 ? 0x7f : 0xff, (size_t)mok_cpu_plan_schedule(&rank->setup).bytes);
        status = mok_pass_cpu.schedule_build(rank->schedule, problem->ids + mok_ref_first_token(problem, rank->rank) * problem->top_k,
                                             problem->tokens[rank->rank], NULL);
        if (status == MOK_OK) {
            status = mok_pass_cpu.schedule_dump(rank->schedule, NULL, &dump->head, dump->expert_rows, dump->expert_first, dump->tile_expert,
                                                dump->active, dump->routes);
        }
        if (status == MOK_OK) {
            status = mok_pass_cpu.state(rank->group, &state);
            dump->bad_ids = state.bad_ids;
        }
        dump->status = status;
    }
    close_rank(rank);
    return NULL;
}

static void run_dumps(const struct mok_ref_problem *problem, struct dump *dumps, int32_t num_builds)
{
    pthread_t threads[MOK_REF_MAX_RANKS];
    struct dump_rank *ranks = calloc((size_t)problem->num_ranks, sizeof *ranks);
    mok_hub *hub;
    assert_int_equal(mok_hub_create(problem->num_ranks, &hub), MOK_OK);
    for (int32_t r = 0; r < problem->num_ranks; r++) {
        ranks[r].rank.run = &plain_run;
        ranks[r].rank.problem = problem;
        ranks[r].rank.hub = hub;
        ranks[r].rank.rank = r;
        ranks[r].dumps = dumps + r * num_builds;
        ranks[r].num_builds = num_builds;
        assert_int_equal(pthread_create(&threads[r], NULL, dump_schedules, &ranks[r]), 0);
    }
    for (int32_t r = 0; r < problem->num_ranks; r++) {
        pthread_join(threads[r], NULL);
        for (int32_t i = 0; i < num_builds; i++) {
            assert_int_equal(dumps[r * num_builds + i].status, MOK_OK);
        }
    }
    mok_hub_destroy(hub);
    free(ranks);
}

static void free_dump(struct dump *dump)
{
    free(dump->expert_rows);
    free(dump->expert_first);
    free(dump->tile_expert);
    free(dump->active);
    free(dump->routes);
}

/* Routes of each rank to each expert, counted plainly. */
static int32_t *count_routes(const struct mok_ref_problem *problem)
{
    int32_t *counts = calloc((size_t)(problem->num_ranks * problem->num_experts), sizeof *counts);
    for (int32_t r = 0; r < problem->num_ranks; r++) {
        int64_t first = mok_ref_first_token(problem, r) * problem->top_k;
        for (int64_t i = 0; i < problem->tokens[r] * problem->top_k; i++) {
            if (mok_ref_is_routed(problem, first + i)) {
                counts[r * problem->num_experts + problem->ids[first + i]]++;
            }
        }
    }
    return counts;
}

static void check_rows(const struct mok_ref_problem *problem, const struct dump *dump, const int32_t *counts, int32_t owner)
{
    const struct mok_pass_setup *setup = &dump->setup;
    int32_t *seen = calloc((size_t)(problem->num_ranks * problem->num_experts), sizeof *seen);
    int64_t num_placed = 0;
    for (int32_t r = 0; r < problem->num_ranks; r++) {
        int64_t first = mok_ref_first_token(problem, r) * problem->top_k;
        for (int64_t i = 0; i < problem->tokens[r] * problem->top_k; i++) {
            int32_t id = problem->ids[first + i];
            if (!mok_ref_is_routed(problem, first + i) || id < setup->first_expert || id >= setup->first_expert + setup->num_local) {
                continue;
            }
            int32_t q = seen[r * problem->num_experts + id]++;
            int64_t row = dump->expert_first[id - setup->first_expert] +
                          mok_plan_row_in_expert(counts + id, problem->num_experts, problem->num_ranks, owner, r, q);
            assert_int_equal(dump->routes[row].rank, r);
            assert_int_equal(dump->routes[row].slot, i);
            num_placed++;
        }
    }
    for (int32_t row = 0; row < dump->head.num_rows; row++) {
        num_placed -= dump->routes[row].rank >= 0;
        assert_true(dump->routes[row].rank >= 0 || dump->routes[row].slot == -1);
    }
    assert_int_equal(num_placed, 0);
    free(seen);
}

static void check_counts(const struct mok_ref_problem *problem, const struct dump *dump, const int32_t *counts)
{
    const struct mok_pass_setup *setup = &dump->setup;
    int32_t first = 0, num_active = 0, behind = 0;
    for (int32_t e = 0; e < setup->num_local; e++) {
        int32_t rows = 0;
        for (int32_t r = 0; r < problem->num_ranks; r++) {
            rows += counts[r * problem->num_experts + setup->first_expert + e];
        }
        assert_int_equal(dump->expert_rows[e], rows);
        assert_int_equal(dump->expert_first[e], first);
        for (int32_t tile = first / MOK_TILE_ROWS; tile < (first + rows + MOK_TILE_ROWS - 1) / MOK_TILE_ROWS; tile++) {
            assert_int_equal(dump->tile_expert[tile], e);
        }
        first += (int32_t)mok_round_up(rows, MOK_TILE_ROWS);
        num_active += rows > 0;
    }
    assert_int_equal(dump->head.num_rows, first);
    assert_int_equal(dump->head.num_tiles, first / MOK_TILE_ROWS);
    assert_int_equal(dump->head.num_active, num_active);
    assert_true(first <= dump->limits.max_rows);
    for (int32_t e = 0, ahead = 0; e < setup->num_local; e++) {
        assert_int_equal(dump->expert_rows[e] > 0 ? dump->active[ahead++] : dump->active[num_active + behind++], e);
    }
}

static void check_problem(const struct mok_ref_problem *problem)
{
    enum { BUILDS = 3 };
    struct dump *dumps = calloc((size_t)(problem->num_ranks * BUILDS), sizeof *dumps);
    int32_t *counts = count_routes(problem);
    uint64_t bad = 0;
    for (int64_t i = 0; i < problem->num_tokens * problem->top_k; i++) {
        bad += problem->ids[i] < -1 || problem->ids[i] >= problem->num_experts;
    }
    run_dumps(problem, dumps, BUILDS);
    for (int32_t r = 0; r < problem->num_ranks; r++) {
        for (int32_t i = 0; i < BUILDS; i++) {
            const struct dump *dump = &dumps[r * BUILDS + i];
            check_counts(problem, dump, counts);
            check_rows(problem, dump, counts, r);
            assert_int_equal(dump->head.num_tokens, problem->tokens[r]);
            assert_int_equal(dump->head.bad_ids, bad);
            assert_int_equal(dump->bad_ids, bad * (uint64_t)(i + 1));
            free_dump(&dumps[r * BUILDS + i]);
        }
    }
    free(counts);
    free(dumps);
}

static void check_case(int32_t num_ranks, int32_t num_experts, int32_t top_k, const int64_t *tokens, enum mok_ref_ids ids)
{
    struct mok_ref_case recipe = {
        .name = "schedule",
        .num_ranks = num_ranks,
        .num_experts = num_experts,
        .top_k = top_k,
        .hidden = 8,
        .inter = 16,
        .ids = ids,
        .values = MOK_VALUES_NORMAL,
        .router = MOK_ROUTER_NORMALIZED,
        .grad_dtype = MOK_DTYPE_FP32,
    };
    struct mok_ref_problem problem;
    memcpy(recipe.tokens, tokens, sizeof(int64_t) * (size_t)num_ranks);
    assert_int_equal(mok_ref_generate(&recipe, 0, &problem), MOK_OK);
    check_problem(&problem);
    mok_ref_problem_free(&problem);
}

static void rows_stand_where_the_plan_says(void **state)
{
    (void)state;
    const int64_t one[] = {257}, two[] = {255, 1025}, three[] = {0, 300, 41}, five[] = {3, 0, 129, 64, 65},
                  eight[] = {1, 0, 0, 7, 8, 9, 500, 2};
    check_case(1, 1, 1, one, MOK_IDS_ONE);
    check_case(1, 129, 4, one, MOK_IDS_SKEWED);
    check_case(2, 127, 8, two, MOK_IDS_DISTINCT);
    check_case(2, 257, 3, two, MOK_IDS_HALF);
    check_case(3, 128, 16, three, MOK_IDS_ANY);
    check_case(3, 2, 2, three, MOK_IDS_REPEATED);
    check_case(5, 6, 2, five, MOK_IDS_SKEWED);
    check_case(8, 5, 4, eight, MOK_IDS_ANY); /* ranks without experts */
}

static void bad_and_missing_ids_have_no_rows(void **state)
{
    (void)state;
    const int64_t two[] = {100, 31}, none[] = {0, 0, 0};
    check_case(2, 7, 3, two, MOK_IDS_BAD);
    check_case(2, 7, 3, two, MOK_IDS_NONE);
    check_case(3, 7, 3, none, MOK_IDS_DISTINCT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_stand_where_the_plan_says),
        cmocka_unit_test(bad_and_missing_ids_have_no_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
