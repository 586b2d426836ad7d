/*
 * Where the tiles of a launch come from: idx-th tile of a CTA (or of a cluster of two, which takes two row tiles of one column tile) as a
 * pure function of idx and the schedule. The loader of a CTA takes idx = cluster, cluster + number of clusters, ...
 *
 * The host refuses launches of 2^31 or more tiles, so 32 bits are enough here.
 *
 * Order: groups of row_group row tiles; in a group all row tiles of a column tile, then the next column tile. The CTAs at work at one time
 * then cover about row_group x 8 tiles, whose operands stay in L2.
 */
#ifndef MOK_CUDA_GEMM_WALK_CUH
#define MOK_CUDA_GEMM_WALK_CUH

#include "cuda/gemm/gemm_tile.cuh"

/* The CTA's (cluster's) first tile, and the step to its next. */
template <typename TILE> MOK_DEVICE int32_t mok_cuda_first_idx(void) { return blockIdx.x / TILE::CLUSTER; }
template <typename TILE> MOK_DEVICE int32_t mok_cuda_idx_stride(void) { return gridDim.x / TILE::CLUSTER; }

/* Row and column of the idx-th of rows x cols cells, in groups of `group` rows. Returns 0 past the end. */
MOK_DEVICE int mok_cuda_cell_at(int32_t idx, int32_t rows, int32_t cols, int32_t group, int32_t *row_out, int32_t *col_out)
{
    if (idx >= rows * cols) {
        return 0;
    }
    int32_t per_group = group * cols;
    int32_t first = idx / per_group * group;
    int32_t inside = idx % per_group;
    int32_t height = min(group, rows - first);
    *row_out = first + inside % height;
    *col_out = inside / height;
    return 1;
}

/* Row tiles of the launch. */
MOK_DEVICE int32_t mok_cuda_window_tiles(const struct mok_gemm_walk *walk)
{
    return min(walk->window_tiles, max(0, *walk->rows.num_tiles - walk->rows.first_tile));
}

/* A cluster's row tile past the last one is empty (rows = 0) and belongs to the expert of its neighbour. */
template <typename TILE>
MOK_DEVICE int mok_cuda_find_row_tile(const struct mok_gemm_walk *walk, int32_t window_tiles, int32_t tile_cols, int32_t idx,
                                      struct mok_gemm_tile *tile)
{
    const int32_t per = TILE::CLUSTER;
    int32_t cell, col;
    if (!mok_cuda_cell_at(idx, (window_tiles + per - 1) / per, walk->num_cols, (walk->row_group + per - 1) / per, &cell, &col)) {
        return 0;
    }
    int32_t row_tile = cell * per + (per > 1 ? (int32_t)mok_hw_cluster_cta() : 0);
    const int32_t *tile_expert = walk->rows.tile_expert + walk->rows.first_tile;
    int32_t expert = tile_expert[min(row_tile, window_tiles - 1)];
    int32_t end = walk->rows.expert_first[expert] + walk->rows.expert_rows[expert] - walk->rows.first_tile * MOK_GEMM_ROWS;
    tile->row = row_tile * MOK_GEMM_ROWS;
    tile->rows = row_tile < window_tiles ? min(end - tile->row, (int32_t)MOK_GEMM_ROWS) : 0;
    tile->col_tile = col;
    tile->col = col * tile_cols;
    tile->expert = expert;
    tile->shares_b = per > 1 && tile_expert[cell * per] == tile_expert[min(cell * per + 1, window_tiles - 1)];
    return 1;
}

/* Loader of a kernel over rows: hands on the launch's tiles and loads each. load: its stages; ARGS: the kernel's arguments. */
template <typename TILE, typename ARGS>
MOK_DEVICE void mok_cuda_load_row_tiles(const ARGS *args, struct mok_gemm_shared<TILE> *shared, int32_t tile_cols,
                                        void (*load)(const ARGS *, struct mok_gemm_shared<TILE> *, struct mok_stage_cursor *,
                                                     const struct mok_gemm_tile *))
{
    struct mok_stage_cursor cursor = {0, 0}, queue = {0, 0};
    struct mok_gemm_tile tile;
    int32_t tiles = mok_cuda_window_tiles(&args->walk);
    for (int32_t idx = mok_cuda_first_idx<TILE>();; idx += mok_cuda_idx_stride<TILE>()) {
        tile.valid = mok_cuda_find_row_tile<TILE>(&args->walk, tiles, tile_cols, idx, &tile);
        mok_cuda_post_tile<TILE>(shared, &queue, &tile, args->wait_limit_ns);
        if (!tile.valid) {
            return;
        }
        load(args, shared, &cursor, &tile);
    }
}

/*
 * Weight gradients: expert by expert, an expert's matrices one below the other. Returns 0 past the end. tile->num_rows is 0 for an expert
 * without rows in this window; such a tile is written (zeros) only when tile->rows is not 0.
 */
template <typename TILE>
MOK_DEVICE int mok_cuda_find_wgrad_tile(const struct mok_wgrad_kernel_args *args, int32_t idx, struct mok_gemm_tile *tile)
{
    const int32_t per = TILE::CLUSTER;
    const struct mok_gemm_walk *walk = &args->walk;
    int32_t all_out = args->num_parts * args->out_tiles;
    int32_t cells = (all_out + per - 1) / per;
    int32_t expert = idx / (cells * walk->num_cols);
    if (expert >= walk->rows.num_experts) {
        return 0;
    }
    int32_t cell, col;
    mok_cuda_cell_at(idx % (cells * walk->num_cols), cells, walk->num_cols, (walk->row_group + per - 1) / per, &cell, &col);
    int32_t out_tile = cell * per + (per > 1 ? (int32_t)mok_hw_cluster_cta() : 0);
    int32_t real_rows = walk->rows.expert_rows[expert];
    int64_t window_first = (int64_t)walk->rows.first_tile * MOK_GEMM_ROWS;
    int64_t window_end = window_first + (int64_t)walk->window_tiles * MOK_GEMM_ROWS;
    int64_t first = walk->rows.expert_first[expert], end = first + real_rows;
    int64_t from = max(first, window_first), to = min(end, window_end);
    tile->part = out_tile >= args->out_tiles;
    tile->row = (out_tile - tile->part * args->out_tiles) * MOK_GEMM_ROWS;
    tile->rows = out_tile < all_out ? min(args->out - tile->row, (int32_t)MOK_GEMM_ROWS) : 0;
    tile->col_tile = col;
    tile->col = col * MOK_GEMM_COLS;
    tile->expert = expert;
    tile->shares_b = per > 1;
    tile->first_row = (int32_t)(from - window_first);
    tile->num_rows = (int32_t)max(to - from, (int64_t)0);
    tile->carry_in = tile->num_rows > 0 && first < window_first;
    tile->carry_out = tile->num_rows > 0 && end > window_end;
    tile->starts_from_memory = tile->carry_in || (tile->num_rows > 0 && args->add);
    if (tile->num_rows == 0 && (real_rows > 0 || args->add || walk->rows.first_tile > 0)) {
        tile->rows = 0;
    }
    return 1;
}

#endif
