/*
 * The pusher of a CTA: one warp that takes finished panels of y (16 rows x 64 columns of one multiplying warp) from shared memory to the
 * slots of their rows in the sources' memory, by ordinary stores of whole lines. So a row is on its way while the next tile is multiplied,
 * and y goes neither into the ring nor through a mover.
 *
 *   panel      multiplying warp: written -> panel_full[warp] -> all lanes read -> panel_empty[warp] -> stores
 *   tiles      taken from the queue like by everybody; where their rows go is looked up while the tile before is pushed
 *   end        fence at system scope: the EXIT barrier announces the rows
 *
 * A multiplying warp may be a tile ahead of another, so the panels that are left of a tile are counted warp by warp, in lanes 0 .. 7.
 */
#ifndef MOK_CUDA_FUSED_FORWARD_PUSH_CUH
#define MOK_CUDA_FUSED_FORWARD_PUSH_CUH

#include "cuda/fused/fused_shared.cuh"
#include "cuda/gemm/gemm_store.cuh"

enum {
    MOK_FUSED_ROWS_OF_LANE = MOK_TILE_ROWS / 32,
    MOK_FUSED_PUSH_NAP_NS = 40,
    MOK_FUSED_PUSH_LOOKS = 1 << 12 /* in vain between two at the clock, about half a millisecond: that look takes longer than a nap */
};

struct mok_fused_pusher {
    uint32_t queue_parity;
    int ended;    /* there are no more tiles */
    int has_next; /* a tile whose panels come behind those of this one */
    struct mok_route next[MOK_FUSED_ROWS_OF_LANE]; /* of its rows lane, lane + 32, ... */
    int32_t next_panels;                           /* a lane's own: of its warp */
    int32_t panels;                                /* likewise: left of the tile that is being pushed */
    uint32_t parity;                               /* likewise: of panel_full */
    uint32_t looks;                                /* in vain, one after another */
    struct mok_fused_standstill still;             /* since 0: it has not looked at the clock yet */
};

MOK_DEVICE void mok_fused_take_next(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pusher *pusher)
{
    int32_t lane = (int32_t)threadIdx.x % 32;
    struct mok_fused_tile tile = shared->tile;
    __syncwarp();
    if (MOK_LANES_ARRIVE || lane == 0) {
        mok_fused_release_tile(shared);
    }
    pusher->queue_parity ^= 1;
    pusher->ended = !tile.valid;
    pusher->has_next = tile.valid && mok_fused_pushes(tile.gemm) && tile.rows > 0;
    if (pusher->has_next) {
        const struct mok_route *routes = args->walk.schedule.routes + tile.row_tile * MOK_TILE_ROWS + lane;
        int32_t cols = min((int32_t)args->gemm[tile.gemm].out[0].cols - tile.col, (int32_t)MOK_GEMM_COLS);
        for (int i = 0; i < MOK_FUSED_ROWS_OF_LANE; i++) {
            pusher->next[i] = routes[i * 32];
        }
        pusher->next_panels = lane * MOK_GEMM_WARP_ROWS < tile.rows ? (cols + MOK_PANEL_COLS - 1) / MOK_PANEL_COLS : 0;
    }
}

/* The next tile becomes this one. */
MOK_DEVICE void mok_fused_begin_push(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pusher *pusher)
{
    int32_t lane = (int32_t)threadIdx.x % 32;
    for (int i = 0; i < MOK_FUSED_ROWS_OF_LANE; i++) {
        struct mok_route route = pusher->next[i];
        shared->slot[i * 32 + lane] =
            route.rank < 0 ? NULL : args->watch.base[route.rank] + args->slots_off + (int64_t)route.slot * args->row_bytes;
    }
    pusher->panels = pusher->next_panels;
    pusher->has_next = 0;
    __syncwarp();
}

MOK_DEVICE void mok_fused_push_panel(const struct mok_fused_args *args, mok_fused_shared *shared, int warp)
{
    const uint8_t *panel = shared->panel[warp];
    int32_t lane = (int32_t)threadIdx.x % 32, chunk = lane % 8, rows = shared->sent[warp].rows;
    int32_t at = (shared->sent[warp].col + chunk * 8) * 2;
    char *to[MOK_GEMM_WARP_ROWS / 4];
    uint4 values[MOK_GEMM_WARP_ROWS / 4];
#pragma unroll
    for (int i = 0; i < MOK_GEMM_WARP_ROWS / 4; i++) {
        int32_t row = 4 * i + lane / 8;
        to[i] = shared->slot[warp * MOK_GEMM_WARP_ROWS + row];
        values[i] = *(const uint4 *)(panel + row * 128 + ((chunk ^ (row % 8)) << 4));
    }
    __syncwarp();
    if (MOK_LANES_ARRIVE || lane == 0) {
        mok_hw_mbarrier_arrive_cta(&shared->panel_empty[warp]);
    }
#pragma unroll
    for (int i = 0; i < MOK_GEMM_WARP_ROWS / 4; i++) {
        if (4 * i + lane / 8 < rows && to[i] != NULL && at < args->row_bytes) {
            *(uint4 *)(to[i] + at) = values[i];
        }
    }
}

/* Panels that are there. Returns whether there were any. */
MOK_DEVICE int mok_fused_push_ready(const struct mok_fused_args *args, mok_fused_shared *shared, struct mok_fused_pusher *pusher)
{
    int32_t lane = (int32_t)threadIdx.x % 32;
    int is_ready = pusher->panels > 0 && mok_hw_mbarrier_test_wait_cta(&shared->panel_full[lane], pusher->parity);
    uint32_t ready = __ballot_sync(0xffffffffu, is_ready);
    __syncwarp();
    pusher->panels -= is_ready;
    pusher->parity ^= (uint32_t)is_ready;
    for (uint32_t left = ready; left != 0; left &= left - 1) {
        if (MOK_LANES_ARRIVE) { /* every lane sees for itself what lane `warp` has seen */
            int warp = __ffs((int)left) - 1;
            mok_cuda_wait_barrier(&shared->panel_full[warp], __shfl_sync(0xffffffffu, pusher->parity, warp) ^ 1, args->wait_limit_ns);
        }
        mok_fused_push_panel(args, shared, __ffs((int)left) - 1);
    }
    return ready != 0;
}

/* No panel is there: naps. Now and then looks whether the wait has a limit left. */
MOK_DEVICE void mok_fused_await_panels(const struct mok_fused_args *args, struct mok_fused_pusher *pusher)
{
    if (++pusher->looks % MOK_FUSED_PUSH_LOOKS == 0) {
        pusher->still.since = pusher->still.since == 0 ? mok_hw_time_ns() : pusher->still.since;
        mok_fused_check_standstill(args, &pusher->still);
    }
    mok_hw_nap(MOK_FUSED_PUSH_NAP_NS);
}

/* One warp. */
MOK_DEVICE void mok_fused_push(const struct mok_fused_args *args, mok_fused_shared *shared)
{
    struct mok_fused_pusher pusher = {0, 0, 0, {{-1, 0}}, 0, 0, 0, 0, {0, 0}};
    for (;;) {
        int is_busy = __ballot_sync(0xffffffffu, pusher.panels > 0) != 0;
        if (!is_busy && pusher.has_next) {
            mok_fused_begin_push(args, shared, &pusher);
            is_busy = 1;
        }
        if (!is_busy && pusher.ended) {
            break;
        }
        if (!pusher.has_next && !pusher.ended) {
            if (!is_busy) {
                mok_fused_wait_queue(args, &shared->tile_full, pusher.queue_parity);
                mok_fused_take_next(args, shared, &pusher);
            } else if (__all_sync(0xffffffffu, (int)mok_hw_mbarrier_test_wait_cta(&shared->tile_full, pusher.queue_parity))) {
                mok_fused_wait_queue(args, &shared->tile_full, pusher.queue_parity); /* passes at once, at the scope it needs */
                mok_fused_take_next(args, shared, &pusher);
            }
        }
        if (!is_busy) {
            continue;
        }
        if (mok_fused_push_ready(args, shared, &pusher)) {
            pusher.looks = 0;
            pusher.still.since = 0;
        } else {
            mok_fused_await_panels(args, &pusher);
        }
    }
    mok_hw_fence_sys();
}

#endif
