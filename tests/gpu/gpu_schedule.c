/*
 * The schedule that the GPU builds, against the plan's own functions on the host, bit for bit: head, rows, first rows, tiles, active experts, routes.
 * Each group builds several times, with other ids and other token counts, so that both halves of the lists are used.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "api/object.h"
#include "gpu_check.h"
#include "plan/rows.h"

enum { MAX_RANKS = 8, NUM_BUILDS = 4 };

struct schedule_case {
    const char *name;
    int32_t num_ranks, num_experts, top_k;
    int64_t tokens[MAX_RANKS];
    int one_expert; /* every route to the last expert */
};

static const struct schedule_case cases[] = {
    {"one rank", 1, 8, 2, {300}, 0},
    {"one token", 1, 1, 1, {1}, 0},
    {"no tokens", 2, 4, 2, {0, 0}, 0},
    {"two ranks", 2, 128, 8, {1024, 777}, 0},
    {"three ranks, few experts", 3, 2, 4, {100, 0, 511}, 0},
    {"four ranks", 4, 257, 3, {1000, 1, 2049, 64}, 0},
    {"eight ranks", 8, 64, 8, {512, 100, 0, 300, 5, 2000, 31, 77}, 0},
    {"all to one expert", 4, 9, 2, {1500, 20, 700, 0}, 1},
    {"many routes", 2, 384, 8, {40000, 33333}, 0},
    {"many experts", 2, 7000, 4, {2000, 999}, 0},
};

struct run {
    const struct schedule_case *recipe;
    mok_hub *hub;
    mok_group *groups[MAX_RANKS];
    int64_t max_tokens;
    int num_wrong[MAX_RANKS];
    mok_status status[MAX_RANKS];
};

/* Host arrays of one schedule. */
struct schedule {
    struct mok_schedule_head head;
    int32_t *expert_rows, *expert_first, *tile_expert, *active;
    struct mok_route *routes;
};

static struct schedule alloc_schedule(const struct mok_dims *dims)
{
    int64_t num_local = mok_plan_num_local(dims->num_experts, dims->num_ranks, dims->rank), rows = mok_plan_max_rows(dims);
    struct schedule schedule = {
        .expert_rows = calloc((size_t)num_local + 1, 4),
        .expert_first = calloc((size_t)num_local + 1, 4),
        .tile_expert = calloc((size_t)(rows / MOK_TILE_ROWS) + 1, 4),
        .active = calloc((size_t)num_local + 1, 4),
        .routes = calloc((size_t)rows + 1, sizeof(struct mok_route)),
    };
    return schedule;
}

static void free_schedule(struct schedule *schedule)
{
    free(schedule->expert_rows);
    free(schedule->expert_first);
    free(schedule->tile_expert);
    free(schedule->active);
    free(schedule->routes);
}

static int64_t tokens_of(const struct schedule_case *recipe, int32_t rank, int build)
{
    return build % 2 == 0 ? recipe->tokens[rank] : recipe->tokens[rank] / 3;
}

static int32_t *ids_of(const struct schedule_case *recipe, int32_t rank, int build)
{
    int64_t tokens = tokens_of(recipe, rank, build);
    int32_t *ids = malloc((size_t)(tokens * recipe->top_k) * 4 + 4);
    gpu_random_ids(ids, tokens, recipe->top_k, recipe->num_experts, (uint32_t)(build * 100 + rank));
    for (int64_t i = 0; i < tokens * recipe->top_k; i++) {
        if (recipe->one_expert) {
            ids[i] = recipe->num_experts - 1;
        } else if (i % 97 == 13) {
            ids[i] = i % 2 == 0 ? recipe->num_experts : -2147483647; /* bad */
        }
    }
    return ids;
}

/* The rows of one expert, by the plan's function on the host. counts [R]. */
static void expect_routes(const struct schedule_case *recipe, const struct mok_dims *dims, int build, int32_t e, struct schedule *to)
{
    int32_t counts[MAX_RANKS] = {0}, expert = mok_plan_first_expert(dims->num_experts, dims->num_ranks, dims->rank) + e;
    int32_t *ids[MAX_RANKS];
    for (int32_t s = 0; s < dims->num_ranks; s++) {
        ids[s] = ids_of(recipe, s, build);
        for (int64_t i = 0; i < tokens_of(recipe, s, build) * dims->top_k; i++) {
            counts[s] += ids[s][i] == expert;
        }
        to->expert_rows[e] += counts[s];
    }
    int32_t padded = (int32_t)mok_round_up(to->expert_rows[e], MOK_TILE_ROWS);
    struct mok_route *routes = to->routes + to->expert_first[e];
    to->expert_first[e + 1] = to->expert_first[e] + padded;
    for (int32_t r = 0; r < padded; r++) {
        routes[r] = (struct mok_route){-1, -1};
        to->tile_expert[(to->expert_first[e] + r) / MOK_TILE_ROWS] = e;
    }
    for (int32_t s = 0; s < dims->num_ranks; s++) {
        int32_t q = 0;
        for (int64_t i = 0; i < tokens_of(recipe, s, build) * dims->top_k; i++) {
            if (ids[s][i] == expert) {
                routes[mok_plan_row_in_expert(counts, 1, dims->num_ranks, dims->rank, s, q++)] = (struct mok_route){s, (int32_t)i};
            }
        }
        free(ids[s]);
    }
}

static struct schedule expect(const struct schedule_case *recipe, const struct mok_dims *dims, int build)
{
    struct schedule to = alloc_schedule(dims);
    int32_t num_local = mok_plan_num_local(dims->num_experts, dims->num_ranks, dims->rank), place = 0;
    for (int32_t e = 0; e < num_local; e++) {
        expect_routes(recipe, dims, build, e, &to);
        to.head.num_active += to.expert_rows[e] > 0;
    }
    for (int has_rows = 1; has_rows >= 0; has_rows--) {
        for (int32_t e = 0; e < num_local; e++) {
            if ((to.expert_rows[e] > 0) == has_rows) {
                to.active[place++] = e;
            }
        }
    }
    to.head.num_rows = to.expert_first[num_local];
    to.head.num_tiles = to.head.num_rows / MOK_TILE_ROWS;
    to.head.num_tokens = (int32_t)tokens_of(recipe, dims->rank, build);
    to.head.build = (uint32_t)build + 1;
    for (int32_t s = 0; s < dims->num_ranks; s++) {
        int32_t *ids = ids_of(recipe, s, build);
        for (int64_t i = 0; i < tokens_of(recipe, s, build) * dims->top_k; i++) {
            to.head.bad_ids += (uint32_t)mok_plan_is_bad_id(ids[i], dims->num_experts);
        }
        free(ids);
    }
    return to;
}

static int differs(const char *what, const void *got, const void *expected, int64_t count, size_t bytes, int32_t rank, int build)
{
    for (int64_t i = 0; i < count; i++) {
        const int32_t *a = (const int32_t *)((const char *)got + (size_t)i * bytes), *b = (const int32_t *)((const char *)expected + (size_t)i * bytes);
        if (memcmp(a, b, bytes) != 0) {
            gpu_check(0, "rank %d build %d: %s[%lld] is %d, expected %d", rank, build, what, (long long)i, *a, *b);
            return 1;
        }
    }
    return 0;
}

static int build_differs(const struct run *run, mok_schedule *schedule, int32_t rank, int build, cudaStream_t stream)
{
    const struct schedule_case *recipe = run->recipe;
    const struct mok_dims *dims = &run->groups[rank]->setup.dims;
    struct schedule got = alloc_schedule(dims), expected = expect(recipe, dims, build);
    int32_t num_local = mok_plan_num_local(dims->num_experts, dims->num_ranks, rank);
    mok_status status = mok_pass_cuda.schedule_dump(schedule->inner, stream, &got.head, got.expert_rows, got.expert_first, got.tile_expert, got.active,
                                                    got.routes);
    int wrong = !(status == MOK_OK || gpu_check(0, "rank %d: dump: %s", rank, mok_last_error()));
    wrong = wrong || differs("head", &got.head, &expected.head, sizeof got.head / 4, 4, rank, build) ||
            differs("expert_rows", got.expert_rows, expected.expert_rows, num_local, 4, rank, build) ||
            differs("expert_first", got.expert_first, expected.expert_first, num_local + 1, 4, rank, build) ||
            differs("active", got.active, expected.active, num_local, 4, rank, build) ||
            differs("tile_expert", got.tile_expert, expected.tile_expert, expected.head.num_tiles, 4, rank, build) ||
            differs("routes", got.routes, expected.routes, expected.head.num_rows, sizeof(struct mok_route), rank, build);
    free_schedule(&got);
    free_schedule(&expected);
    return wrong;
}

static mok_status build_all(struct run *run, int32_t rank, mok_schedule *schedule, cudaStream_t stream)
{
    const struct schedule_case *recipe = run->recipe;
    int32_t *device_ids = NULL;
    mok_status status = MOK_OK;
    cudaMalloc((void **)&device_ids, (size_t)(run->max_tokens * recipe->top_k) * 4);
    for (int build = 0; build < NUM_BUILDS && status == MOK_OK; build++) {
        int32_t *ids = ids_of(recipe, rank, build);
        int64_t tokens = tokens_of(recipe, rank, build);
        cudaMemcpyAsync(device_ids, ids, (size_t)(tokens * recipe->top_k) * 4, cudaMemcpyHostToDevice, stream);
        cudaStreamSynchronize(stream);
        free(ids);
        status = mok_schedule_build(schedule, device_ids, tokens, stream);
        run->num_wrong[rank] += status == MOK_OK && build_differs(run, schedule, rank, build, stream);
    }
    gpu_meet();
    cudaFree(device_ids);
    return status;
}

static void work(int32_t rank, void *context)
{
    struct run *run = context;
    const struct schedule_case *recipe = run->recipe;
    mok_shape shape = {recipe->num_experts, recipe->top_k, 64, 32, 0, MOK_FORMAT_BF16, run->max_tokens};
    mok_group_config config;
    mok_schedule *schedule = NULL;
    cudaStream_t stream;
    mok_status status = gpu_config(&shape, rank, recipe->num_ranks, run->hub, &config);
    cudaSetDevice(config.device);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (status == MOK_OK) {
        status = mok_group_create(&config, &run->groups[rank]);
    }
    if (status == MOK_OK) {
        status = mok_schedule_create(run->groups[rank], &schedule);
    }
    if (status == MOK_OK) {
        status = build_all(run, rank, schedule, stream);
    }
    if (status != MOK_OK) {
        gpu_check(0, "rank %d: %s", rank, mok_last_error());
    }
    mok_schedule_destroy(schedule);
    mok_status left = mok_group_destroy(run->groups[rank]);
    run->status[rank] = status != MOK_OK ? status : left;
    cudaStreamDestroy(stream);
}

static void run_case(const struct schedule_case *recipe)
{
    struct run run = {.recipe = recipe, .max_tokens = 1};
    int ok = mok_hub_create(recipe->num_ranks, &run.hub) == MOK_OK;
    for (int32_t r = 0; r < recipe->num_ranks; r++) {
        run.max_tokens = mok_max64(run.max_tokens, recipe->tokens[r]);
    }
    gpu_run_ranks(recipe->num_ranks, work, &run);
    for (int32_t r = 0; r < recipe->num_ranks; r++) {
        ok = ok && run.status[r] == MOK_OK && run.num_wrong[r] == 0;
    }
    mok_hub_destroy(run.hub);
    gpu_check(ok, "schedule, %s: %d ranks, %d experts, top %d, %d builds", recipe->name, recipe->num_ranks, recipe->num_experts, recipe->top_k,
              NUM_BUILDS);
}

int main(void)
{
    if (gpu_count() == 0) {
        gpu_skip("schedule: no GPU");
        return gpu_finish();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run_case(&cases[i]);
    }
    return gpu_finish();
}
