/*
 * Everything that moves rows between ranks (protocol.md sections 1 and 5): publish, pull, push, final sum.
 *
 * Published: x in the saved object's own peer-visible memory, or in `rows` when nothing is kept; dy in `rows`, w in `w`. Pulled by the
 * owner of the expert; pushed back into the source's slot of the route. Worker i of n communication workers moves rows i, i + n, .. of a
 * minibatch or tile. Rows of padding are filled with zeros by the pull.
 */
#include <string.h>

#include "cpu/cpu.h"

/* Part worker/num_workers of `total` things. */
static int64_t share_first(const struct mok_cpu_worker *worker, int64_t total, int32_t ahead)
{
    return total * (worker->index + ahead) / worker->group->num_workers;
}

static void publish_share(const struct mok_cpu_worker *worker, void *to, const void *from, int64_t num_tokens, int64_t token_bytes)
{
    int64_t first = share_first(worker, num_tokens, 0), end = share_first(worker, num_tokens, 1);
    if (to != from && end > first) {
        memcpy((char *)to + first * token_bytes, (const char *)from + first * token_bytes, (size_t)((end - first) * token_bytes));
    }
}

/* Where x of a forward pass stands in the region of any rank. */
static int64_t x_offset(const struct mok_pass_group *group, const struct mok_cpu_job *job)
{
    return job->saved != NULL ? job->saved->x_off : group->setup.region.rows;
}

void mok_cpu_publish(struct mok_cpu_worker *worker, const struct mok_cpu_job *job)
{
    struct mok_pass_group *group = worker->group;
    const struct mok_pass_setup *setup = &group->setup;
    char *own = group->peer->base[setup->dims.rank];
    int64_t num_tokens = job->schedule->head.num_tokens, row_bytes = 2 * (int64_t)setup->dims.hidden;
    int64_t begin = mok_trace_now_ns();
    if (job->kind == MOK_CPU_JOB_FORWARD) {
        publish_share(worker, own + x_offset(group, job), job->forward.x, num_tokens, row_bytes);
    } else {
        publish_share(worker, own + setup->region.rows, job->backward.dy, num_tokens, row_bytes);
        publish_share(worker, own + setup->region.w, job->backward.w, num_tokens, 4 * (int64_t)setup->dims.top_k);
    }
    mok_trace_add(group->trace, worker->index, MOK_EVENT_PUBLISH, 0, job->ticket, begin, mok_trace_now_ns());
}

/* ---- pull -------------------------------------------------------------------------------------------------------------------- */

int32_t mok_cpu_valid_rows(const struct mok_walk *walk, int32_t row_tile)
{
    const struct mok_schedule_view *schedule = &walk->schedule;
    int32_t expert = schedule->tile_expert[row_tile];
    int32_t left = schedule->expert_first[expert] + schedule->expert_rows[expert] - row_tile * MOK_TILE_ROWS;
    return left < MOK_TILE_ROWS ? left : MOK_TILE_ROWS;
}

static mok_bf16 *ring_row(const struct mok_pass_group *group, int64_t offset, int64_t row, int64_t row_elements)
{
    return (mok_bf16 *)(group->ring_block + offset) + mok_plan_ring_row(&group->pass.walk.ring, row) * row_elements;
}

mok_bf16 *mok_cpu_row_x(const struct mok_pass_group *group, const struct mok_pass_saved *saved, int64_t row)
{
    const struct mok_walk *walk = &group->pass.walk;
    int64_t hidden = group->setup.dims.hidden;
    if (mok_walk_is_kept(walk, (int32_t)(row / MOK_TILE_ROWS))) {
        return saved->x + row * hidden;
    }
    return ring_row(group, walk->backward ? group->layout.again_x : group->layout.x, row, hidden);
}

static void pull_row(void *to, const char *source, int64_t token, int64_t row_bytes)
{
    if (source != NULL) {
        memcpy(to, source + token * row_bytes, (size_t)row_bytes);
    } else {
        memset(to, 0, (size_t)row_bytes);
    }
}

void mok_cpu_pull(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, int32_t minibatch)
{
    struct mok_pass_group *group = worker->group;
    const struct mok_walk *walk = &group->pass.walk;
    const struct mok_region *region = &group->setup.region;
    int64_t row_bytes = 2 * (int64_t)walk->dims.hidden;
    int64_t first = minibatch * walk->ring.minibatch_rows;
    int64_t end = first + (int64_t)mok_walk_minibatch_tiles(walk, minibatch) * MOK_TILE_ROWS;
    int64_t x_off = x_offset(group, job);
    float *ring_w = (float *)(group->ring_block + group->layout.w);
    for (int64_t row = first + worker->index; row < end; row += walk->num_comm) {
        struct mok_route route = walk->schedule.routes[row];
        const char *source = route.rank >= 0 ? group->peer->base[route.rank] : NULL;
        int64_t token = route.slot / walk->dims.top_k;
        if (walk->backward) {
            pull_row(ring_row(group, group->layout.dy, row, walk->dims.hidden), source != NULL ? source + region->rows : NULL, token,
                     row_bytes);
            if (source != NULL) {
                ring_w[mok_plan_ring_row(&walk->ring, row)] = ((const float *)(source + region->w))[route.slot];
            }
        }
        if (!walk->backward || !mok_walk_is_kept(walk, (int32_t)(row / MOK_TILE_ROWS))) {
            pull_row(mok_cpu_row_x(group, job->saved, row), source != NULL ? source + x_off : NULL, token, row_bytes);
        }
    }
}

/* ---- push -------------------------------------------------------------------------------------------------------------------- */

/* The partial sums of a row, added in tile order. */
static float sum_partials(const float *partials, int32_t num)
{
    float sum = partials[0];
    for (int32_t i = 1; i < num; i++) {
        sum += partials[i];
    }
    return sum;
}

void mok_cpu_push_tile(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, int32_t row_tile)
{
    (void)job;
    struct mok_pass_group *group = worker->group;
    const struct mok_walk *walk = &group->pass.walk;
    const struct mok_region *region = &group->setup.region;
    int64_t hidden = walk->dims.hidden, first = (int64_t)row_tile * MOK_TILE_ROWS;
    int32_t valid = mok_cpu_valid_rows(walk, row_tile);
    const float *partials = (const float *)(group->ring_block + group->layout.dw);
    for (int64_t row = first + worker->index; row < first + valid; row += walk->num_comm) {
        struct mok_route route = walk->schedule.routes[row];
        char *source = group->peer->base[route.rank];
        const mok_bf16 *from = ring_row(group, walk->backward ? group->layout.dx : group->layout.y, row, hidden);
        memcpy(source + region->slots + route.slot * 2 * hidden, from, (size_t)(2 * hidden));
        if (walk->backward) {
            const float *of_row = partials + mok_plan_ring_row(&walk->ring, row) * group->layout.dw_tiles;
            ((float *)(source + region->slot_dw))[route.slot] = sum_partials(of_row, group->layout.dw_tiles);
        }
    }
}

/* ---- final sum ----------------------------------------------------------------------------------------------------------------- */

enum { SUM_BLOCK = 32 }; /* tokens that a worker takes at once */

static void sum_forward(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, int64_t token)
{
    struct mok_pass_group *group = worker->group;
    const struct mok_pass_setup *setup = &group->setup;
    const struct mok_cpu_loops *loops = group->loops;
    int64_t hidden = setup->dims.hidden, top_k = setup->dims.top_k;
    const mok_bf16 *slots = (const mok_bf16 *)(group->peer->base[setup->dims.rank] + setup->region.slots);
    const int32_t *ids = job->schedule->ids;
    if (setup->dims.shared_inter > 0) {
        const mok_bf16 *shared = (const mok_bf16 *)(group->other_block + group->layout.shared_s) + token * hidden;
        loops->scale(job->forward.shared_w != NULL ? job->forward.shared_w[token] : 1.0f, shared, hidden, worker->row);
    } else {
        memset(worker->row, 0, (size_t)hidden * sizeof(float));
    }
    for (int64_t slot = token * top_k; slot < (token + 1) * top_k; slot++) {
        if (ids[slot] >= 0) {
            loops->fma(job->forward.w[slot], slots + slot * hidden, hidden, worker->row);
        }
    }
    loops->narrow(worker->row, hidden, (mok_bf16 *)job->forward.y + token * hidden);
}

static void sum_backward(struct mok_cpu_worker *worker, const struct mok_cpu_job *job, int64_t token)
{
    struct mok_pass_group *group = worker->group;
    const struct mok_pass_setup *setup = &group->setup;
    const struct mok_cpu_loops *loops = group->loops;
    int64_t hidden = setup->dims.hidden, top_k = setup->dims.top_k;
    const char *own = group->peer->base[setup->dims.rank];
    const mok_bf16 *slots = (const mok_bf16 *)(own + setup->region.slots);
    const float *slot_dw = (const float *)(own + setup->region.slot_dw);
    const int32_t *ids = job->schedule->ids;
    memset(worker->row, 0, (size_t)hidden * sizeof(float));
    if (setup->dims.shared_inter > 0) {
        loops->scale(1.0f, (const mok_bf16 *)(group->other_block + group->layout.shared_dx) + token * hidden, hidden, worker->row);
        if (job->backward.dshared_w != NULL) {
            const float *partials = (const float *)(group->other_block + group->layout.shared_dw) + token * group->layout.shared_dw_tiles;
            job->backward.dshared_w[token] = sum_partials(partials, group->layout.shared_dw_tiles);
        }
    }
    for (int64_t slot = token * top_k; slot < (token + 1) * top_k; slot++) {
        if (ids[slot] >= 0) {
            loops->add(slots + slot * hidden, hidden, worker->row);
            job->backward.dw[slot] = slot_dw[slot];
        } else {
            job->backward.dw[slot] = 0.0f;
        }
    }
    loops->narrow(worker->row, hidden, (mok_bf16 *)job->backward.dx + token * hidden);
}

void mok_cpu_sum(struct mok_cpu_worker *worker, const struct mok_cpu_job *job)
{
    struct mok_pass_group *group = worker->group;
    int64_t num_tokens = job->schedule->head.num_tokens;
    int64_t begin = mok_trace_now_ns();
    for (;;) {
        int64_t first = atomic_fetch_add_explicit(&group->pass.next_sum, 1, memory_order_relaxed) * SUM_BLOCK;
        if (first >= num_tokens) {
            break;
        }
        int64_t end = mok_min64(first + SUM_BLOCK, num_tokens);
        for (int64_t token = first; token < end; token++) {
            if (job->kind == MOK_CPU_JOB_FORWARD) {
                sum_forward(worker, job, token);
            } else {
                sum_backward(worker, job, token);
            }
        }
        mok_cpu_progress(group);
    }
    mok_trace_add(group->trace, worker->index, MOK_EVENT_SUM, 0, job->ticket, begin, mok_trace_now_ns());
}
