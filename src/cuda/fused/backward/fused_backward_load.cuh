/*
 * The loader of a CTA in a backward pass: takes tiles from the queue and loads their operands into the stages, step by step, as the loaders
 * of the staged products do. An empty place of a unit loads its share of B alone. In: dy, x, g, u, dg, du, w*h, weights, what gradients start from; out: the stages.
 */
#ifndef MOK_CUDA_FUSED_BACKWARD_LOAD_CUH
#define MOK_CUDA_FUSED_BACKWARD_LOAD_CUH

#include "cuda/fused/backward/fused_backward_args.h"
#include "cuda/fused/backward/fused_backward_walk.h"
#include "cuda/fused/fused_load_steps.cuh"
#include "cuda/gemm/gemm_dgrad_down.cuh"
#include "cuda/gemm/gemm_wgrad.cuh"
#include "cuda/hw/scope.cuh"

MOK_DEVICE const struct mok_fused_wgrad_side *mok_fused_side_of(const struct mok_fused_backward_args *args, int32_t kind)
{
    return &args->wgrad[mok_fused_is_shared(kind) ? MOK_FUSED_SHARED : MOK_FUSED_ROUTED];
}

MOK_DEVICE const struct mok_wgrad_kernel_args *mok_fused_wgrad_of(const struct mok_fused_backward_args *args,
                                                                  const struct mok_fused_backward_tile *tile)
{
    const struct mok_fused_wgrad_side *side = mok_fused_side_of(args, tile->kind);
    return tile->is_down ? &side->down : &side->gate_up;
}

/* All stages that the tile passes through. */
MOK_DEVICE int32_t mok_fused_num_stages(const struct mok_fused_backward_args *args, const struct mok_fused_backward_tile *tile)
{
    int is_shared = mok_fused_is_shared(tile->kind);
    switch (tile->kind) {
    case MOK_TASK_RECOMPUTE:
    case MOK_TASK_SHARED_RECOMPUTE: return args->pass.gemm[is_shared ? MOK_FUSED_SHARED_GATE_UP : MOK_FUSED_GATE_UP].num_steps;
    case MOK_TASK_DGRAD_DOWN:
    case MOK_TASK_SHARED_DGRAD_DOWN: return args->dgrad_down[is_shared].num_steps + MOK_DGRAD_DOWN_CHUNKS;
    case MOK_TASK_DGRAD_GATE_UP:
    case MOK_TASK_SHARED_DGRAD_GATE_UP: return 2 * args->dgrad_gate_up[is_shared].half_steps;
    default: return mok_cuda_wgrad_num_stages(&mok_fused_side_of(args, tile->kind)->down, &tile->gemm);
    }
}

/* gate+up again. */
MOK_DEVICE void mok_fused_load_again(const struct mok_fused_backward_args *args, struct mok_fused_loader *loader,
                                     const struct mok_fused_backward_tile *tile)
{
    const struct mok_fused_gemm *gemm =
        &args->pass.gemm[mok_fused_is_shared(tile->kind) ? MOK_FUSED_SHARED_GATE_UP : MOK_FUSED_GATE_UP];
    struct mok_fused_run run = {.a = &gemm->a,
                                .b = {&gemm->b[0], &gemm->b[1]},
                                .num_steps = gemm->num_steps,
                                .a_first = 0,
                                .b_first = 0,
                                .a_across = tile->gemm.row,
                                .b_across = {tile->gemm.col, tile->gemm.col},
                                .expert = tile->gemm.expert,
                                .loads_a = tile->gemm.rows > 0,
                                .shares_b = tile->gemm.shares_b};
    mok_fused_load_steps<MOK_FUSED_K_MAJOR>(loader, &run);
}

/* g and u of a tile of D, 64 columns a stage. */
MOK_DEVICE void mok_fused_load_chunks(const struct mok_fused_backward_args *args, struct mok_fused_loader *loader,
                                      const struct mok_fused_backward_tile *tile)
{
    const struct mok_dgrad_down_kernel_args *gemm = &args->dgrad_down[mok_fused_is_shared(tile->kind)];
    const int is_kept = tile->keep_row >= 0;
    const CUtensorMap *g = is_kept ? &args->g_kept : &gemm->g, *u = is_kept ? &args->u_kept : &gemm->u;
    const int32_t row = is_kept ? tile->keep_row : tile->gemm.row, has_rows = tile->gemm.rows > 0;
#pragma unroll 1
    for (int32_t chunk = 0; chunk < MOK_DGRAD_DOWN_CHUNKS; chunk++) {
        struct mok_stage *stage = &loader->shared->stage[loader->cursor.idx];
        uint64_t *full = &loader->shared->full[loader->cursor.idx];
        mok_fused_await_stage(loader);
        if (mok_hw_elect()) {
            mok_hw_mbarrier_arrive_expect_cta(full, has_rows ? 2 * MOK_GEMM_A_BYTES : 0);
            if (has_rows) {
                mok_hw_tma_load_2d(stage->a, g, full, tile->gemm.col + chunk * 64, row);
                mok_hw_tma_load_2d(stage->b, u, full, tile->gemm.col + chunk * 64, row);
            }
        }
        mok_cuda_advance<mok_tile_fused>(&loader->cursor);
    }
}

/* D is a run of dy with Wd; E is one of dg with Wg, then one of du with Wu. */
MOK_DEVICE void mok_fused_load_dgrad(const struct mok_fused_backward_args *args, struct mok_fused_loader *loader,
                                     const struct mok_fused_backward_tile *tile)
{
    const int is_shared = mok_fused_is_shared(tile->kind);
    const int is_down = tile->kind == MOK_TASK_DGRAD_DOWN || tile->kind == MOK_TASK_SHARED_DGRAD_DOWN;
    const struct mok_dgrad_down_kernel_args *down = &args->dgrad_down[is_shared];
    const struct mok_dgrad_gate_up_kernel_args *gate_up = &args->dgrad_gate_up[is_shared];
#pragma unroll 1
    for (int up = 0; up < (is_down ? 1 : 2); up++) {
        const CUtensorMap *b = is_down ? &down->down : up ? &gate_up->up : &gate_up->gate;
        struct mok_fused_run run = {.a = is_down ? &down->dy : up ? &gate_up->du : &gate_up->dg,
                                    .b = {b, b},
                                    .num_steps = is_down ? down->num_steps : gate_up->half_steps,
                                    .a_first = 0,
                                    .b_first = 0,
                                    .a_across = tile->gemm.row,
                                    .b_across = {tile->gemm.col, tile->gemm.col + MOK_GEMM_COLS / 2},
                                    .expert = tile->gemm.expert,
                                    .loads_a = tile->gemm.rows > 0,
                                    .shares_b = tile->gemm.shares_b};
        mok_fused_load_steps<MOK_FUSED_DGRAD>(loader, &run);
    }
    if (is_down) {
        mok_fused_load_chunks(args, loader, tile);
    }
}

/* What the sums start from. */
MOK_DEVICE void mok_fused_load_start(const struct mok_wgrad_kernel_args *gemm, struct mok_fused_loader *loader,
                                     const struct mok_gemm_tile *tile)
{
    const int bf16 = mok_cuda_wgrad_reads_bf16(gemm, tile), carries = gemm->bf16 && tile->carry_in;
    const CUtensorMap *map = carries ? &gemm->carry_in[tile->part] : &gemm->grad_in[tile->part];
    const int32_t num_panels = mok_cuda_wgrad_num_panels(bf16), panel_cols = bf16 ? 64 : 32;
    const int32_t matrix = carries ? tile->carry_in - 1 : tile->expert;
#pragma unroll 1
    for (int32_t first = 0; first < num_panels; first += MOK_WGRAD_STAGE_PANELS) {
        int32_t count = tile->rows > 0 ? min((int32_t)MOK_WGRAD_STAGE_PANELS, num_panels - first) : 0;
        struct mok_stage *stage = &loader->shared->stage[loader->cursor.idx];
        uint64_t *full = &loader->shared->full[loader->cursor.idx];
        mok_fused_await_stage(loader);
        if (mok_hw_elect()) {
            mok_hw_mbarrier_arrive_expect_cta(full, (uint32_t)count * 2 * MOK_GEMM_BLOCK_BYTES);
#pragma unroll 1
            for (int32_t place = 0; place < count; place++) {
                int32_t col = tile->col + (first + place) * panel_cols;
#pragma unroll
                for (uint32_t warpgroup = 0; warpgroup < 2; warpgroup++) {
                    mok_hw_tma_load_3d(mok_cuda_wgrad_panel(stage, warpgroup, place), map, full, col,
                                       tile->row + (int32_t)warpgroup * MOK_GEMM_GROUP_ROWS, matrix);
                }
            }
        }
        mok_cuda_advance<mok_tile_fused>(&loader->cursor);
    }
}

/* x of the first rows may stand in the saved object; behind them, and in all other operands, rows stand in the ring. */
MOK_DEVICE void mok_fused_load_wgrad(const struct mok_fused_backward_args *args, struct mok_fused_loader *loader,
                                     const struct mok_fused_backward_tile *tile)
{
    const struct mok_wgrad_kernel_args *gemm = mok_fused_wgrad_of(args, tile);
    const int reads_kept = !tile->is_down && !mok_fused_is_shared(tile->kind);
    const int32_t kept = reads_kept ? min(max(0, args->kept_rows - tile->keep_row), tile->gemm.num_rows) : 0;
    if (tile->gemm.starts_from_memory) {
        mok_fused_load_start(gemm, loader, &tile->gemm);
    }
#pragma unroll 1
    for (int from_ring = 0; from_ring < 2; from_ring++) {
        const CUtensorMap *b = from_ring ? &gemm->b : &args->x_kept;
        int32_t done = from_ring ? kept : 0, row = tile->gemm.first_row + done;
        struct mok_fused_run run = {.a = &gemm->a[tile->gemm.part],
                                    .b = {b, b},
                                    .num_steps = ((from_ring ? tile->gemm.num_rows : kept) - done + MOK_GEMM_DEPTH - 1) / MOK_GEMM_DEPTH,
                                    .a_first = row,
                                    .b_first = from_ring ? row : tile->keep_row,
                                    .a_across = tile->gemm.row,
                                    .b_across = {tile->gemm.col, tile->gemm.col + MOK_GEMM_COLS / 2},
                                    .expert = 0,
                                    .loads_a = tile->gemm.rows > 0,
                                    .shares_b = 1};
        mok_fused_load_steps<MOK_FUSED_WGRAD>(loader, &run);
    }
}

/* The tile in the queue, for all lanes alike. */
MOK_DEVICE void mok_fused_read_tile(const struct mok_fused_backward_tile *from, struct mok_fused_backward_tile *to)
{
#pragma unroll
    for (uint32_t i = 0; i < sizeof *to / 4; i++) {
        ((int32_t *)to)[i] = mok_fused_uniform(((const int32_t *)from)[i]);
    }
}

/* All stages of a tile. */
MOK_DEVICE void mok_fused_load_backward_tile(const struct mok_fused_backward_args *args, struct mok_fused_loader *loader,
                                             const struct mok_fused_backward_tile *tile)
{
    loader->left = mok_fused_num_stages(args, tile);
    if (loader->left < MOK_FUSED_SCOUT_AHEAD && (MOK_LANES_ARRIVE || mok_hw_elect())) {
        mok_fused_release_tile(loader->shared);
    }
    switch (tile->kind) {
    case MOK_TASK_RECOMPUTE:
    case MOK_TASK_SHARED_RECOMPUTE: mok_fused_load_again(args, loader, tile); break;
    case MOK_TASK_DGRAD_DOWN:
    case MOK_TASK_SHARED_DGRAD_DOWN:
    case MOK_TASK_DGRAD_GATE_UP:
    case MOK_TASK_SHARED_DGRAD_GATE_UP: mok_fused_load_dgrad(args, loader, tile); break;
    default: mok_fused_load_wgrad(args, loader, tile);
    }
}

/* One warp. */
MOK_DEVICE void mok_fused_backward_load(const struct mok_fused_backward_args *args, mok_fused_shared *shared)
{
    struct mok_fused_loader loader = {shared, {0, 0}, args->pass.wait_limit_ns, 0};
    for (uint32_t turn = 0;; turn++) {
        struct mok_fused_backward_tile tile;
        uint64_t since = mok_fused_trace_now(&args->pass.trace);
        mok_fused_wait_queue(&args->pass, &shared->tile_full, turn & 1);
        mok_fused_read_tile(&shared->back[turn % MOK_FUSED_TURNS], &tile);
        if (!tile.gemm.valid) {
            break;
        }
        if (threadIdx.x % 32 == 0) {
            mok_fused_trace_add(&args->pass.trace, &shared->lanes, MOK_LANE_LOAD, MOK_EVENT_WAIT + MOK_SITE_QUEUE, 0, since);
        }
        __syncwarp();
        since = mok_fused_trace_now(&args->pass.trace);
        mok_hw_fence_async(); /* what the scout's wait acquired, for the copy engine */
        mok_fused_load_backward_tile(args, &loader, &tile);
        if (threadIdx.x % 32 == 0) {
            mok_fused_trace_add(&args->pass.trace, &shared->lanes, MOK_LANE_LOAD, MOK_EVENT_TASK + tile.kind, tile.gemm.expert, since);
        }
        __syncwarp();
    }
    if (threadIdx.x % 32 == 0) {
        mok_fused_trace_close(&args->pass.trace, &shared->lanes, MOK_LANE_LOAD);
    }
}

#endif
