/*
 * The communication worker of a CTA in a backward pass: walks mok_walk_step with the stages of fused/fused_move.cuh.
 *
 *   pull   source's dy [T, H] -> dy of the padded row in the ring, and its w; x again for rows that are not kept. Zeros in padding rows up to
 *          the expert's next multiple of 64: weight gradients contract them
 *   push   dx of the padded row -> the source's slot, and dw: its partial sums, added in tile order. Row tile after row tile behind e_done
 *
 * Words (w, dw) go in groups of 32 rows, one a lane; those of a worker's first group are loaded while the rows are on their way.
 */
#ifndef MOK_CUDA_FUSED_BACKWARD_MOVE_CUH
#define MOK_CUDA_FUSED_BACKWARD_MOVE_CUH

#include "cuda/fused/fused_backward_args.h"
#include "cuda/fused/fused_move.cuh"

/* Rows between the ring and their sources. */
struct mok_fused_stream {
    struct mok_fused_job rows; /* num_items as the stages cut them */
    char *local;               /* of row rows.first */
    int64_t remote_off;        /* in a source's region */
};

MOK_DEVICE struct mok_fused_stream mok_fused_open_stream(const struct mok_fused_args *args, const struct mok_fused_pipe *pipe,
                                                         const struct mok_fused_job *step, int32_t skip, char *ring, int64_t remote_off)
{
    struct mok_fused_stream stream = {*step, ring + (int64_t)(step->ring_first + skip) * args->row_bytes, remote_off};
    stream.rows.first += skip;
    stream.rows.num_items -= skip * pipe->cut->row_chunks;
    return stream;
}

MOK_DEVICE struct mok_fused_copy mok_fused_find_row(const struct mok_fused_args *args, mok_fused_shared *shared,
                                                    const struct mok_fused_cut *cut, const struct mok_fused_stream *stream, int32_t item,
                                                    struct mok_route route)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    struct mok_fused_copy copy = {NULL, NULL, 0};
    int32_t inside = item / cut->row_chunks, at = item % cut->row_chunks * cut->chunk_bytes;
    int32_t bytes = min(cut->chunk_bytes, args->row_bytes - at);
    char *local = stream->local + (int64_t)inside * args->row_bytes + at;
    if (route.rank < 0) {
        if (stream->rows.is_pull && mok_fused_is_contracted(walk, stream->rows.first + inside)) {
            mok_fused_zero(shared, local, bytes);
        }
        return copy;
    }
    int32_t place = stream->rows.is_pull ? route.slot / walk->dims.top_k : route.slot;
    char *remote = args->watch.base[route.rank] + at + stream->remote_off + (int64_t)place * args->row_bytes;
    copy.bytes = (uint32_t)bytes;
    copy.from = stream->rows.is_pull ? remote : local;
    copy.to = stream->rows.is_pull ? local : remote;
    return copy;
}

/* This worker's batches of a stream: worker, worker + num_comm, ... Leaves them under way. */
MOK_DEVICE void mok_fused_do_stream(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pipe *pipe,
                                    const struct mok_fused_stream *stream, int32_t worker)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    const struct mok_fused_cut *cut = pipe->cut;
    const struct mok_route *routes = walk->schedule.routes + stream->rows.first;
    int32_t lane = (int32_t)threadIdx.x % MOK_FUSED_WARP, stride = walk->num_comm * cut->lanes, num_items = stream->rows.num_items;
    struct mok_fused_ready ready = {0, 0};
    struct mok_route none = {-1, 0}, next = none;
    int32_t item = worker * cut->lanes + lane;
    if (lane < cut->lanes && item < num_items) {
        next = routes[item / cut->row_chunks];
    }
    for (int32_t from = worker * cut->lanes; from < num_items && pipe->alive; from += stride, item += stride) {
        struct mok_route route = next;
        int is_mine = lane < cut->lanes && item < num_items;
        if (lane < cut->lanes && item + stride < num_items) {
            next = routes[(item + stride) / cut->row_chunks];
        }
        if (!stream->rows.is_pull) {
            pipe->alive = mok_fused_wait_rows(args, walk, &stream->rows, cut->row_chunks, from, from + cut->lanes, &ready);
        }
        if (pipe->alive) {
            struct mok_fused_copy copy = {NULL, NULL, 0};
            if (is_mine) {
                copy = mok_fused_find_row(args, shared, cut, stream, item, route);
            }
            __syncwarp();
            mok_fused_load_batch(args, shared, pipe, copy);
        }
    }
}

/* w of row `inside` of the step; 0 for padding. */
MOK_DEVICE uint32_t mok_fused_fetch_w(const struct mok_fused_backward_args *args, const struct mok_fused_job *step,
                                      const struct mok_route *routes, int32_t inside)
{
    struct mok_route route = routes[step->first + inside];
    return route.rank < 0 ? 0
                          : mok_hw_load_relaxed_sys((const uint32_t *)(args->pass.watch.base[route.rank] + args->w_off) + route.slot);
}

MOK_DEVICE void mok_fused_pull_step(const struct mok_fused_backward_args *args, mok_fused_shared *shared, struct mok_fused_pipe *pipe,
                                    const struct mok_fused_job *step, int32_t worker)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    int32_t num_rows = step->num_items / pipe->cut->row_chunks, stride = walk->num_comm * MOK_FUSED_WARP;
    int32_t inside = worker * MOK_FUSED_WARP + (int32_t)threadIdx.x % MOK_FUSED_WARP;
    uint32_t w = inside < num_rows ? mok_fused_fetch_w(args, step, walk->schedule.routes, inside) : 0;
    struct mok_fused_stream stream = mok_fused_open_stream(&args->pass, pipe, step, 0, args->dy_ring, args->dy_off);
    mok_fused_do_stream(&args->pass, shared, pipe, &stream, worker);
    int32_t kept = min(max(args->kept_rows - step->first, 0), num_rows);
    if (kept < num_rows) {
        stream = mok_fused_open_stream(&args->pass, pipe, step, kept, args->pass.x_ring, args->pass.x_off);
        mok_fused_do_stream(&args->pass, shared, pipe, &stream, worker);
    }
    for (; inside < num_rows; inside += stride) {
        args->w_ring[step->ring_first + inside] = __uint_as_float(w);
        w = inside + stride < num_rows ? mok_fused_fetch_w(args, step, walk->schedule.routes, inside + stride) : 0;
    }
}

/* dw of a padded row: its partial sums in tile order. */
MOK_DEVICE float mok_fused_sum_dw(const struct mok_dgrad_down_kernel_args *dgrad_down, int32_t ring_row)
{
    const int32_t num = dgrad_down->walk.num_cols;
    const uint32_t *partial = (const uint32_t *)dgrad_down->dw_partial + (int64_t)ring_row * num;
    float sum = __uint_as_float(mok_hw_load_relaxed_gpu(partial));
    for (int32_t i = 1; i < num; i++) {
        sum = __fadd_rn(sum, __uint_as_float(mok_hw_load_relaxed_gpu(partial + i)));
    }
    return sum;
}

MOK_DEVICE void mok_fused_push_step(const struct mok_fused_backward_args *args, mok_fused_shared *shared, struct mok_fused_pipe *pipe,
                                    const struct mok_fused_job *step, int32_t worker)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    int32_t num_rows = step->num_items / pipe->cut->row_chunks, stride = walk->num_comm * MOK_FUSED_WARP;
    int32_t end_tile = (step->first + num_rows) / MOK_TILE_ROWS;
    struct mok_fused_ready ready = {0, 0};
    struct mok_fused_stream stream = mok_fused_open_stream(&args->pass, pipe, step, 0, args->pass.y_ring, args->pass.slots_off);
    mok_fused_do_stream(&args->pass, shared, pipe, &stream, worker);
    for (int32_t inside = worker * MOK_FUSED_WARP; inside < num_rows && pipe->alive; inside += stride) {
        int32_t mine = inside + (int32_t)threadIdx.x % MOK_FUSED_WARP;
        struct mok_route route = walk->schedule.routes[step->first + mine];
        pipe->alive = mok_fused_wait_tile(&args->pass, walk, (step->first + inside) / MOK_TILE_ROWS, end_tile, &ready);
        if (pipe->alive && route.rank >= 0) {
            float sum = mok_fused_sum_dw(&args->dgrad_down[MOK_FUSED_ROUTED], step->ring_first + mine);
            mok_hw_store_relaxed_sys((uint32_t *)(args->pass.watch.base[route.rank] + args->slot_dw_off) + route.slot, __float_as_uint(sum));
        }
    }
}

/* One warp. */
MOK_DEVICE void mok_fused_backward_move(const struct mok_fused_backward_args *args, mok_fused_shared *shared, int32_t worker)
{
    const struct mok_walk *walk = &shared->walk.tiles;
    struct mok_fused_pipe pipe = mok_fused_open_pipe(&args->pass, shared, args->pass.apart || args->pass.primes);
    mok_hw_fence_async(); /* what peers wrote before the ENTRY barrier, for the copy engine */
    for (int32_t idx = 0; pipe.alive; idx++) {
        struct mok_step step = mok_walk_step(walk, idx);
        if (step.kind == MOK_STEP_NONE) {
            break;
        }
        pipe.alive = mok_fused_wait_place(&args->pass, walk, &step);
        struct mok_fused_job job = mok_fused_step_job(walk, &step, pipe.cut);
        if (pipe.alive && job.is_pull) {
            mok_fused_pull_step(args, shared, &pipe, &job, worker);
        } else if (pipe.alive) {
            mok_fused_push_step(args, shared, &pipe, &job, worker);
        }
        mok_fused_drain(&args->pass, shared, &pipe);
        if (pipe.alive && threadIdx.x % MOK_FUSED_WARP == 0) {
            struct mok_wait signal = mok_walk_step_signal(&step);
            mok_fused_announce(&args->pass, mok_fused_counter_word(&args->pass, &signal));
        }
        if (idx == 0 && args->pass.primes) {
            int alive = pipe.alive;
            pipe = mok_fused_open_pipe(&args->pass, shared, 0);
            pipe.alive = alive;
        }
    }
    mok_hw_fence_sys(); /* the EXIT barrier announces the pushed rows */
}

#endif
