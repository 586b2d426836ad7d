/*
 * Schedules on the host side: their memory, the launches that build one, copies for tables and tests.
 *
 *   COUNT -> SCATTER, SCHED arrives -> SCHED waits, ROUTES         all on the caller's stream, no number comes back to the host
 *
 * A schedule that is destroyed goes to a list of the group and its memory is used again: freeing device memory waits for the whole device, also for
 * ranks on it that wait for this one.
 */
#include "cuda/schedule/schedule_cuda.h"

#include <stdlib.h>

#include "base/status.h"
#include "cuda/device.h"
#include "cuda/rank_calls.h"
#include "pass/site.h"
#include "trace/event.h"

enum {
    WARP = 32,
    SCATTER_WARPS = 8,
    BLOCK_TABLES = 2 /* of SCATTER, beside those of its warps */
};

/* ---- memory ----------------------------------------------------------------------------------------------------------------- */

static void place_arrays(struct mok_pass_schedule *schedule)
{
    struct mok_cuda_schedule_layout layout = mok_cuda_plan_schedule(&schedule->group->setup);
    char *memory = schedule->memory;
    schedule->arrays = (struct mok_cuda_schedule_arrays){
        .head = (struct mok_schedule_head *)(memory + layout.head),
        .expert_rows = (int32_t *)(memory + layout.expert_rows),
        .expert_first = (int32_t *)(memory + layout.expert_first),
        .tile_expert = (int32_t *)(memory + layout.tile_expert),
        .active = (int32_t *)(memory + layout.active),
        .ordinal = (int32_t *)(memory + layout.ordinal),
        .routes = (struct mok_route *)(memory + layout.routes),
        .ids = (int32_t *)(memory + layout.ids),
        .token_tiles = (int32_t *)(memory + layout.token_tiles),
        .token_rows = (int32_t *)(memory + layout.token_rows),
    };
}

mok_status mok_cuda_schedule_create(struct mok_pass_group *group, struct mok_pass_schedule **schedule_out)
{
    struct mok_pass_schedule *schedule = group->free_schedules;
    if (schedule != NULL) {
        group->free_schedules = schedule->next;
        *schedule_out = schedule;
        return MOK_OK;
    }
    struct mok_cuda_schedule_layout layout = mok_cuda_plan_schedule(&group->setup);
    schedule = calloc(1, sizeof *schedule);
    char *memory = schedule == NULL ? NULL : mok_cuda_alloc_zeroed(group->device, (size_t)layout.bytes, group->own_stream);
    if (memory == NULL) {
        free(schedule);
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no device memory for a schedule of %lld bytes", group->setup.dims.rank,
                             (long long)layout.bytes);
    }
    schedule->group = group;
    schedule->memory = memory;
    place_arrays(schedule);
    *schedule_out = schedule;
    return MOK_OK;
}

void mok_cuda_schedule_destroy(struct mok_pass_schedule *schedule)
{
    schedule->next = schedule->group->free_schedules;
    schedule->group->free_schedules = schedule;
}

void mok_cuda_free_schedules(struct mok_pass_group *group)
{
    while (group->free_schedules != NULL) {
        struct mok_pass_schedule *schedule = group->free_schedules;
        group->free_schedules = schedule->next;
        mok_cuda_free(group->device, schedule->memory);
        free(schedule);
    }
}

/* ---- building --------------------------------------------------------------------------------------------------------------- */

static mok_status sort_own_routes(struct mok_pass_schedule *schedule, const int32_t *ids, mok_stream stream)
{
    struct mok_pass_group *group = schedule->group;
    const struct mok_dims *dims = &group->setup.dims;
    const struct mok_region *region = &group->setup.region;
    int64_t num_routes = schedule->num_tokens * dims->top_k;
    int64_t blocks = mok_max64(1, mok_min64(MOK_CUDA_MAX_SORT_BLOCKS, mok_ceil_div(num_routes, MOK_CUDA_SORT_CHUNK)));
    size_t histogram = (size_t)dims->num_experts * 4;
    int32_t warps = (int32_t)mok_max64(1, mok_min64(SCATTER_WARPS, MOK_CUDA_MAX_SHARED / (int64_t)histogram - BLOCK_TABLES));
    struct mok_cuda_sort_args args = {
        .watch = group->watch,
        .ids = ids,
        .head = schedule->arrays.head,
        .clean_ids = schedule->arrays.ids,
        .histogram = (int32_t *)(group->other + group->layout.histogram),
        .block_bad = (int32_t *)(group->other + group->layout.block_bad),
        .region = group->peer->base[dims->rank],
        .sched_off = region->sched,
        .offset_off = {region->offset[0], region->offset[1]},
        .list_off = {region->list[0], region->list[1]},
        .num_routes = num_routes,
        .chunk = mok_round_up(mok_ceil_div(num_routes, blocks), WARP),
        .num_blocks = (int32_t)blocks,
        .num_experts = dims->num_experts,
    };
    MOK_TRY(mok_cuda_launch(MOK_CUDA_COUNT, args.num_blocks, 0, histogram, &args, stream));
    return mok_cuda_launch(MOK_CUDA_SCATTER, args.num_blocks, warps * WARP, (size_t)(BLOCK_TABLES + warps) * histogram, &args, stream);
}

static mok_status find_own_rows(struct mok_pass_schedule *schedule, mok_stream stream)
{
    struct mok_pass_group *group = schedule->group;
    const struct mok_dims *dims = &group->setup.dims;
    const struct mok_region *region = &group->setup.region;
    struct mok_cuda_own_args args = {
        .watch = group->watch,
        .out = schedule->arrays,
        .sched_off = region->sched,
        .offset_off = {region->offset[0], region->offset[1]},
        .list_off = {region->list[0], region->list[1]},
        .num_experts = dims->num_experts,
        .first_expert = group->setup.first_expert,
        .num_local = group->setup.num_local,
        .num_tokens = (int32_t)schedule->num_tokens,
    };
    /* About as many routes as this rank sends: the rows of other ranks here, its own elsewhere. No more blocks than this rank's SMs: they wait. */
    int64_t wanted = mok_ceil_div(dims->max_tokens * dims->top_k, MOK_CUDA_ROUTE_THREADS), most = mok_max64(group->move_ctas, group->gemm_ctas);
    int32_t blocks = (int32_t)mok_max64(1, mok_min64(wanted, most));
    return mok_cuda_launch(MOK_CUDA_ROUTES, blocks, 0, mok_cuda_routes_shared_bytes(dims->num_ranks, group->setup.num_local), &args, stream);
}

static mok_status enqueue_build(struct mok_pass_schedule *schedule, const int32_t *ids, mok_stream stream)
{
    struct mok_pass_group *group = schedule->group;
    MOK_TRY(mok_cuda_stage_begin(group, stream));
    MOK_TRY(sort_own_routes(schedule, ids, stream));
    MOK_TRY(find_own_rows(schedule, stream));
    return mok_cuda_stage_end(group, MOK_EVENT_SCHEDULE, 0, stream);
}

mok_status mok_cuda_schedule_build(struct mok_pass_schedule *schedule, const int32_t *ids, int64_t num_tokens, mok_stream stream)
{
    int32_t before = 0;
    MOK_TRY(mok_cuda_begin_call(schedule->group, stream, &before));
    schedule->num_tokens = num_tokens;
    return mok_cuda_end_call(schedule->group, stream, before, enqueue_build(schedule, ids, stream));
}

/* ---- copies for tables and tests -------------------------------------------------------------------------------------------- */

static mok_status copy_out(void *to, const void *from, size_t bytes, mok_stream stream)
{
    if (to == NULL || bytes == 0) {
        return MOK_OK;
    }
    MOK_TRY(mok_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)stream), "copy of a schedule"));
    return mok_cuda_check(cudaStreamSynchronize((cudaStream_t)stream), "copy of a schedule");
}

/* The stream is done, so that no copy below waits. */
static mok_status dump(struct mok_pass_schedule *schedule, mok_stream stream, struct mok_schedule_head *head_out, int32_t *expert_rows_out,
                       int32_t *expert_first_out, int32_t *tile_expert_out, int32_t *active_out, struct mok_route *routes_out)
{
    const struct mok_cuda_schedule_arrays *arrays = &schedule->arrays;
    size_t num_local = (size_t)schedule->group->setup.num_local;
    struct mok_schedule_head head;
    MOK_TRY(copy_out(&head, arrays->head, sizeof head, stream));
    MOK_TRY(copy_out(expert_rows_out, arrays->expert_rows, num_local * 4, stream));
    MOK_TRY(copy_out(expert_first_out, arrays->expert_first, (num_local + 1) * 4, stream));
    MOK_TRY(copy_out(tile_expert_out, arrays->tile_expert, (size_t)head.num_tiles * 4, stream));
    MOK_TRY(copy_out(active_out, arrays->active, num_local * 4, stream));
    MOK_TRY(copy_out(routes_out, arrays->routes, (size_t)head.num_rows * sizeof *routes_out, stream));
    if (head_out != NULL) {
        *head_out = head;
    }
    return MOK_OK;
}

mok_status mok_cuda_schedule_dump(struct mok_pass_schedule *schedule, mok_stream stream, struct mok_schedule_head *head_out,
                                  int32_t *expert_rows_out, int32_t *expert_first_out, int32_t *tile_expert_out, int32_t *active_out,
                                  struct mok_route *routes_out)
{
    int32_t before = 0;
    struct mok_pass_group *group = schedule->group;
    MOK_TRY(mok_cuda_wait_stream(group, stream, -1));
    MOK_TRY(mok_cuda_enter_device(group->device, &before));
    mok_status status = dump(schedule, stream, head_out, expert_rows_out, expert_first_out, tile_expert_out, active_out, routes_out);
    mok_cuda_leave_device(group->device, before);
    return status;
}

mok_status mok_cuda_schedule_counts(struct mok_pass_schedule *schedule, mok_stream stream, int64_t *rows_out, int64_t *padded_out)
{
    int32_t num_local = schedule->group->setup.num_local;
    struct mok_schedule_head head;
    int32_t *rows = malloc(((size_t)num_local + 1) * sizeof *rows);
    if (rows == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for the counts of %d experts", num_local);
    }
    mok_status status = mok_cuda_schedule_dump(schedule, stream, &head, rows, NULL, NULL, NULL, NULL);
    for (int32_t e = 0; status == MOK_OK && rows_out != NULL && e < num_local; e++) {
        rows_out[e] = rows[e];
    }
    if (status == MOK_OK) {
        *padded_out = head.num_rows;
    }
    free(rows);
    return status;
}
