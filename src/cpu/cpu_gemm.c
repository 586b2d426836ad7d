/*
 * Tiles through BLAS. In: bf16 rows and weights. Out: fp32 tiles in a worker's scratch.
 *
 * Bits. A product of a row tile is one call of a fixed shape: `height` rows, padding zero, the whole depth. A BLAS may treat rows at the end of a call by
 * another kernel than the others (OpenBLAS for Haswell goes by twelve rows, and its last eight of 128 are summed in another order), and then a row's bits
 * would depend on where in the tile it stands, that is on R. So the probe looks for the smallest height >= 128 at which equal rows give equal bits.
 * Weight gradients are sums of calls of MOK_TILE_ROWS rows each, in row order.
 *
 * Threads. Workers call BLAS side by side, so every call must run on the thread that makes it: the probe sets the BLAS of this process to one thread.
 * That holds for the caller's own BLAS calls too, from the creation of the first group on.
 */
#include "cpu/cpu.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* ---- probe --------------------------------------------------------------------------------------------------------------------- */

enum { PROBE_COLS = 520, PROBE_DEPTH = 1544 }; /* neither is a multiple of a usual block */

struct probe_memory {
    float a[MOK_CPU_MAX_HEIGHT * PROBE_DEPTH];
    float b[PROBE_COLS * PROBE_DEPTH];
    float c[MOK_CPU_MAX_HEIGHT * PROBE_COLS];
};

static void multiply(int is_nt, int32_t height, int32_t cols, int32_t depth, const float *a, const float *b, float *c)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, is_nt ? CblasTrans : CblasNoTrans, height, cols, depth, 1.0f, a, depth, b, is_nt ? depth : cols, 0.0f, c,
                cols);
}

/* Equal rows in, equal rows out? */
static int is_height_even(struct probe_memory *memory, int32_t height, int32_t cols, int32_t depth, int is_nt)
{
    for (int32_t row = 1; row < height; row++) {
        memcpy(memory->a + (int64_t)row * depth, memory->a, (size_t)depth * sizeof(float));
    }
    multiply(is_nt, height, cols, depth, memory->a, memory->b, memory->c);
    for (int32_t row = 1; row < height; row++) {
        if (memcmp(memory->c, memory->c + (int64_t)row * cols, (size_t)cols * sizeof(float)) != 0) {
            return 0;
        }
    }
    return 1;
}

static int32_t find_height(struct probe_memory *memory)
{
    static const int32_t heights[] = {128, 132, 144};
    static const int32_t shapes[][2] = {{8, 8}, {72, 64}, {512, 384}, {PROBE_COLS, PROBE_DEPTH}};
    for (size_t h = 0; h < sizeof heights / sizeof heights[0]; h++) {
        int is_even = 1;
        for (size_t s = 0; is_even && s < sizeof shapes / sizeof shapes[0]; s++) {
            is_even = is_height_even(memory, heights[h], shapes[s][0], shapes[s][1], 0) &&
                      is_height_even(memory, heights[h], shapes[s][0], shapes[s][1], 1);
        }
        if (is_even) {
            return heights[h];
        }
    }
    return 0;
}

static pthread_once_t probe_once = PTHREAD_ONCE_INIT;
static int32_t probed_height; /* 0 = none, -1 = no memory */

static void probe(void)
{
    openblas_set_num_threads(1);
    struct probe_memory *memory = mok_cpu_alloc(sizeof *memory);
    if (memory == NULL) {
        probed_height = -1;
        return;
    }
    uint32_t state = 1; /* values of different magnitude, so that another order of summation shows */
    for (int64_t i = 0; i < PROBE_DEPTH; i++) {
        state = state * 1664525u + 1013904223u;
        memory->a[i] = (float)(int32_t)state * 0x1p-31f;
    }
    for (int64_t i = 0; i < (int64_t)PROBE_COLS * PROBE_DEPTH; i++) {
        state = state * 1664525u + 1013904223u;
        memory->b[i] = (float)(int32_t)state * 0x1p-31f;
    }
    probed_height = find_height(memory);
    free(memory);
}

mok_status mok_cpu_gemm_probe(int32_t *height_out)
{
    pthread_once(&probe_once, probe);
    if (probed_height < 0) {
        return mok_base_fail(MOK_ERR_MEMORY, "cpu: no memory to try the BLAS library");
    }
    if (probed_height == 0) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "cpu: this BLAS library (%s) gives equal rows different bits, depending on their place",
                             openblas_get_corename());
    }
    *height_out = probed_height;
    return MOK_OK;
}

/* ---- operands ------------------------------------------------------------------------------------------------------------------ */

void mok_cpu_load_rows(const struct mok_cpu_loops *loops, const mok_bf16 *from, int64_t row_stride, int32_t valid, int32_t rows, int32_t num_cols,
                       float *to)
{
    for (int32_t row = 0; row < valid; row++) {
        loops->widen(from + row * row_stride, num_cols, to + (int64_t)row * num_cols);
    }
    memset(to + (int64_t)valid * num_cols, 0, (size_t)(rows - valid) * (size_t)num_cols * sizeof(float));
}

/* Rows [first_row, first_row + num_rows), columns [first_col, first_col + num_cols) of one expert's matrix. */
static void load_matrix(const struct mok_cpu_loops *loops, const mok_matrices *matrices, int32_t expert, int64_t first_row, int32_t num_rows,
                        int64_t first_col, int32_t num_cols, float *to)
{
    const mok_bf16 *from = (const mok_bf16 *)matrices->base + expert * matrices->expert_stride + first_row * matrices->row_stride + first_col;
    mok_cpu_load_rows(loops, from, matrices->row_stride, num_rows, num_rows, num_cols, to);
}

void mok_cpu_load_weights(struct mok_cpu_worker *worker, const struct mok_cpu_tile *tile, int32_t operand, int32_t col_tile)
{
    const struct mok_pass_group *group = worker->group;
    const struct mok_cpu_loops *loops = group->loops;
    const mok_ffn *weights = tile->weights;
    int32_t expert_key = tile->is_shared ? -1 : tile->expert;
    if (worker->operand_kind == operand && worker->operand_expert == expert_key && worker->operand_col == col_tile) {
        return;
    }
    worker->operand_kind = operand;
    worker->operand_expert = expert_key;
    worker->operand_col = col_tile;
    const struct mok_tiles *tiles = &group->tiles;
    int32_t hidden = group->setup.dims.hidden, inter = tile->inter, expert = tile->expert, width;
    float *to = worker->operand_b;
    switch (operand) {
    case MOK_CPU_GATE_UP: /* [2*width, H]: gate rows, then up rows */
        width = mok_cpu_tile_width(inter, tiles->gate_up, col_tile);
        load_matrix(loops, &weights->gate, expert, (int64_t)col_tile * tiles->gate_up, width, 0, hidden, to);
        load_matrix(loops, &weights->up, expert, (int64_t)col_tile * tiles->gate_up, width, 0, hidden, to + (int64_t)width * hidden);
        break;
    case MOK_CPU_DOWN: /* [width, I] */
        width = mok_cpu_tile_width(hidden, tiles->down, col_tile);
        load_matrix(loops, &weights->down, expert, (int64_t)col_tile * tiles->down, width, 0, inter, to);
        break;
    case MOK_CPU_DGRAD_DOWN: /* [H, width] */
        width = mok_cpu_tile_width(inter, tiles->dgrad_down, col_tile);
        load_matrix(loops, &weights->down, expert, 0, hidden, (int64_t)col_tile * tiles->dgrad_down, width, to);
        break;
    default: /* [2I, width]: gate, then up */
        width = mok_cpu_tile_width(hidden, tiles->dgrad_gate_up, col_tile);
        load_matrix(loops, &weights->gate, expert, 0, inter, (int64_t)col_tile * tiles->dgrad_gate_up, width, to);
        load_matrix(loops, &weights->up, expert, 0, inter, (int64_t)col_tile * tiles->dgrad_gate_up, width, to + (int64_t)inter * width);
        break;
    }
}

/* ---- products ------------------------------------------------------------------------------------------------------------------ */

void mok_cpu_multiply_nt(struct mok_cpu_worker *worker, int32_t cols, int32_t depth)
{
    multiply(1, worker->group->height, cols, depth, worker->operand_a, worker->operand_b, worker->result);
}

void mok_cpu_multiply_nn(struct mok_cpu_worker *worker, int32_t cols, int32_t depth)
{
    multiply(0, worker->group->height, cols, depth, worker->operand_a, worker->operand_b, worker->result);
}

void mok_cpu_contract(struct mok_cpu_worker *worker, int32_t out_cols, int32_t in_cols, float *to, int64_t to_stride)
{
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out_cols, in_cols, MOK_TILE_ROWS, 1.0f, worker->operand_a, out_cols, worker->operand_b,
                in_cols, 1.0f, to, (int)to_stride);
}
