/*
 * The loader of a CTA in a backward pass: takes tiles from the queue and loads their operands into the stages, step by step, as the loaders
 * of the staged products do. An empty place of a unit loads its share of B alone.
 */
#ifndef MOK_CUDA_FUSED_BACKWARD_LOAD_CUH
#define MOK_CUDA_FUSED_BACKWARD_LOAD_CUH

#include "cuda/fused/fused_backward_args.h"
#include "cuda/fused/fused_backward_walk.h"
#include "cuda/fused/fused_shared.cuh"
#include "cuda/gemm/gemm_dgrad_down.cuh"
#include "cuda/gemm/gemm_wgrad.cuh"
#include "cuda/hw/scope.cuh"

/* A stage about to be filled. */
struct mok_fused_filling {
    struct mok_stage *stage;
    uint64_t *full;
};

struct mok_fused_loader {
    mok_fused_shared *shared;
    struct mok_stage_cursor cursor;
    uint64_t limit_ns;
    int32_t left; /* stages of this tile that are still to be begun */
};

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

/* The next stage, once it is free. Gives the place in the queue free a few stages before the tile's last. */
MOK_DEVICE struct mok_fused_filling mok_fused_begin_stage(struct mok_fused_loader *loader, uint32_t bytes)
{
    struct mok_fused_filling filling = {&loader->shared->stage[loader->cursor.idx], &loader->shared->full[loader->cursor.idx]};
    if (loader->left == MOK_FUSED_SCOUT_AHEAD) {
        mok_fused_release_tile(loader->shared);
    }
    loader->left--;
    mok_cuda_begin_stage<mok_tile_fused>(loader->shared, &loader->cursor, bytes, loader->limit_ns);
    mok_cuda_advance<mok_tile_fused>(&loader->cursor);
    return filling;
}

MOK_DEVICE uint32_t mok_fused_step_bytes(const struct mok_fused_backward_tile *tile)
{
    return tile->gemm.rows > 0 ? MOK_GEMM_STEP_BYTES : MOK_GEMM_B_BYTES;
}

/* gate+up again. */
MOK_DEVICE void mok_fused_load_again(const struct mok_fused_backward_args *args, struct mok_fused_loader *loader,
                                     const struct mok_fused_backward_tile *tile)
{
    const struct mok_fused_gemm *gemm =
        &args->pass.gemm[mok_fused_is_shared(tile->kind) ? MOK_FUSED_SHARED_GATE_UP : MOK_FUSED_GATE_UP];
    for (int32_t step = 0; step < gemm->num_steps; step++) {
        struct mok_fused_filling to = mok_fused_begin_stage(loader, mok_fused_step_bytes(tile));
        int32_t k = step * MOK_GEMM_DEPTH;
        if (tile->gemm.rows > 0) {
            mok_hw_tma_load_2d(to.stage->a, &gemm->a, to.full, k, tile->gemm.row);
        }
        mok_cuda_load_weight<mok_tile_fused>(&tile->gemm, 0, to.stage->b, &gemm->b[0], to.full, k, tile->gemm.col);
        mok_cuda_load_weight<mok_tile_fused>(&tile->gemm, 1, to.stage->b + MOK_GEMM_B_BYTES / 2, &gemm->b[1], to.full, k, tile->gemm.col);
    }
}

MOK_DEVICE void mok_fused_load_dgrad_down(const struct mok_fused_backward_args *args, struct mok_fused_loader *loader,
                                          const struct mok_fused_backward_tile *tile)
{
    const struct mok_dgrad_down_kernel_args *gemm = &args->dgrad_down[mok_fused_is_shared(tile->kind)];
    int is_kept = tile->keep_row >= 0;
    const CUtensorMap *g = is_kept ? &args->g_kept : &gemm->g, *u = is_kept ? &args->u_kept : &gemm->u;
    int32_t row = is_kept ? tile->keep_row : tile->gemm.row;
    for (int32_t step = 0; step < gemm->num_steps; step++) {
        struct mok_fused_filling to = mok_fused_begin_stage(loader, mok_fused_step_bytes(tile));
        if (tile->gemm.rows > 0) {
            mok_hw_tma_load_2d(to.stage->a, &gemm->dy, to.full, step * MOK_GEMM_DEPTH, tile->gemm.row);
        }
        mok_cuda_load_weight_rows<mok_tile_fused>(&tile->gemm, to.stage, &gemm->down, to.full, step * MOK_GEMM_DEPTH);
    }
    for (int32_t chunk = 0; chunk < MOK_DGRAD_DOWN_CHUNKS; chunk++) {
        struct mok_fused_filling to = mok_fused_begin_stage(loader, tile->gemm.rows > 0 ? 2 * MOK_GEMM_A_BYTES : 0);
        if (tile->gemm.rows > 0) {
            mok_hw_tma_load_2d(to.stage->a, g, to.full, tile->gemm.col + chunk * 64, row);
            mok_hw_tma_load_2d(to.stage->b, u, to.full, tile->gemm.col + chunk * 64, row);
        }
    }
}

MOK_DEVICE void mok_fused_load_dgrad_gate_up(const struct mok_fused_backward_args *args, struct mok_fused_loader *loader,
                                             const struct mok_fused_backward_tile *tile)
{
    const struct mok_dgrad_gate_up_kernel_args *gemm = &args->dgrad_gate_up[mok_fused_is_shared(tile->kind)];
    for (int32_t step = 0; step < 2 * gemm->half_steps; step++) {
        struct mok_fused_filling to = mok_fused_begin_stage(loader, mok_fused_step_bytes(tile));
        int up = step >= gemm->half_steps;
        int32_t k = (step - (up ? gemm->half_steps : 0)) * MOK_GEMM_DEPTH;
        if (tile->gemm.rows > 0) {
            mok_hw_tma_load_2d(to.stage->a, up ? &gemm->du : &gemm->dg, to.full, k, tile->gemm.row);
        }
        mok_cuda_load_weight_rows<mok_tile_fused>(&tile->gemm, to.stage, up ? &gemm->up : &gemm->gate, to.full, k);
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
    for (int32_t first = 0; first < num_panels; first += MOK_WGRAD_STAGE_PANELS) {
        int32_t count = tile->rows > 0 ? min((int32_t)MOK_WGRAD_STAGE_PANELS, num_panels - first) : 0;
        struct mok_fused_filling to = mok_fused_begin_stage(loader, (uint32_t)count * 2 * MOK_GEMM_BLOCK_BYTES);
#pragma unroll 1
        for (int32_t place = 0; place < count; place++) {
            int32_t col = tile->col + (first + place) * panel_cols;
#pragma unroll
            for (uint32_t warpgroup = 0; warpgroup < 2; warpgroup++) {
                mok_hw_tma_load_3d(mok_cuda_wgrad_panel(to.stage, warpgroup, place), map, to.full, col,
                                   tile->row + (int32_t)warpgroup * MOK_GEMM_GROUP_ROWS, matrix);
            }
        }
    }
}

MOK_DEVICE void mok_fused_load_wgrad(const struct mok_fused_backward_args *args, struct mok_fused_loader *loader,
                                     const struct mok_fused_backward_tile *tile)
{
    const struct mok_wgrad_kernel_args *gemm = mok_fused_wgrad_of(args, tile);
    int reads_kept = !tile->is_down && !mok_fused_is_shared(tile->kind); /* x of the first rows stands in the saved object */
    if (tile->gemm.starts_from_memory) {
        mok_fused_load_start(gemm, loader, &tile->gemm);
    }
    for (int32_t done = 0; done < tile->gemm.num_rows; done += MOK_GEMM_DEPTH) {
        struct mok_fused_filling to = mok_fused_begin_stage(loader, mok_fused_step_bytes(tile));
        int32_t row = tile->gemm.first_row + done;
        int is_kept = reads_kept && tile->keep_row + done < args->kept_rows;
        const CUtensorMap *b = is_kept ? &args->x_kept : &gemm->b;
        int32_t b_row = is_kept ? tile->keep_row + done : row;
        if (tile->gemm.rows > 0) {
#pragma unroll
            for (int block = 0; block < MOK_GEMM_ROWS / 64; block++) {
                mok_hw_tma_load_2d(to.stage->a + block * MOK_GEMM_BLOCK_BYTES, &gemm->a[tile->gemm.part], to.full,
                                   tile->gemm.row + block * 64, row);
            }
        }
#pragma unroll
        for (int block = 0; block < MOK_GEMM_COLS / 64; block++) {
            uint8_t *at = to.stage->b + block * MOK_GEMM_BLOCK_BYTES;
            if (mok_tile_fused::CLUSTER == 1) {
                mok_hw_tma_load_2d(at, b, to.full, tile->gemm.col + block * 64, b_row);
            } else if (block / 2 == (int)mok_hw_cluster_cta()) {
                mok_hw_tma_load_2d_cluster(at, b, to.full, 3, tile->gemm.col + block * 64, b_row);
            }
        }
    }
}

/* One thread. */
MOK_DEVICE void mok_fused_backward_load(const struct mok_fused_backward_args *args, mok_fused_shared *shared)
{
    struct mok_fused_loader loader = {shared, {0, 0}, args->pass.wait_limit_ns, 0};
    for (uint32_t turn = 0;; turn++) {
        const struct mok_fused_backward_tile *tile = &shared->back[turn % MOK_FUSED_TURNS];
        uint64_t since = mok_fused_trace_now(&args->pass.trace);
        mok_fused_wait_queue(&args->pass, &shared->tile_full, turn & 1);
        if (!tile->gemm.valid) {
            break;
        }
        mok_fused_trace_add(&args->pass.trace, &shared->lanes, MOK_LANE_LOAD, MOK_EVENT_WAIT + MOK_SITE_QUEUE, 0, since);
        since = mok_fused_trace_now(&args->pass.trace);
        mok_hw_fence_async(); /* what the scout's wait acquired, for the copy engine */
        loader.left = mok_fused_num_stages(args, tile);
        if (loader.left < MOK_FUSED_SCOUT_AHEAD) {
            mok_fused_release_tile(shared);
        }
        switch (tile->kind) {
        case MOK_TASK_RECOMPUTE:
        case MOK_TASK_SHARED_RECOMPUTE: mok_fused_load_again(args, &loader, tile); break;
        case MOK_TASK_DGRAD_DOWN:
        case MOK_TASK_SHARED_DGRAD_DOWN: mok_fused_load_dgrad_down(args, &loader, tile); break;
        case MOK_TASK_DGRAD_GATE_UP:
        case MOK_TASK_SHARED_DGRAD_GATE_UP: mok_fused_load_dgrad_gate_up(args, &loader, tile); break;
        default: mok_fused_load_wgrad(args, &loader, tile);
        }
        mok_fused_trace_add(&args->pass.trace, &shared->lanes, MOK_LANE_LOAD, MOK_EVENT_TASK + tile->kind, tile->gemm.expert, since);
    }
    mok_fused_trace_close(&args->pass.trace, &shared->lanes, MOK_LANE_LOAD);
}

#endif
