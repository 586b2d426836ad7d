/*
 * Tiles through BLAS. In: bf16 rows and weights. Out: fp32 tiles in a worker's scratch.
 *
 * Bits. The bits of a row may not depend on where in its tile it stands, or y would depend on R. A BLAS does not promise that. OpenBLAS for
 * Haswell (and Zen) goes over rows by twelve and has another kernel for a rest; and it takes the first and the last eight columns of a
 * block by a kernel that sums in another order for every second six rows. So a product is made of calls of one kind: `height` rows, padding
 * zero, the whole depth, and a panel of at most MOK_CPU_PANEL columns between `margin` columns of zeros on both sides that nobody looks at.
 * The probe tries the kinds from the cheapest on, and takes the first one at which equal rows come out equal. Weight gradients contract
 * rows: their bits may depend on the order of rows; they are sums of calls of MOK_TILE_ROWS rows each, in row order.
 *
 * Threads. Workers call BLAS side by side, so every call must run on the thread that makes it: the BLAS of this process has one thread while
 * the probe runs, and from the creation of the first group on, for the caller's own BLAS calls too.
 *
 * Memory. A worker inside a call holds a buffer of OpenBLAS (base/blas_room.h). The workers of all groups of this process are counted, and a
 * group is refused when there is no room for a buffer of each: a pass would stand still in BLAS, where no deadline reaches it.
 */
#include "cpu/cpu.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/blas_room.h"
#include "base/status.h"

static void multiply(int is_nt, int32_t height, int32_t cols, int32_t depth, const float *a, const float *b, float *c)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, is_nt ? CblasTrans : CblasNoTrans, height, cols, depth, 1.0f, a, depth, b,
                is_nt ? depth : cols, 0.0f, c, cols);
}

/* ---- probe --------------------------------------------------------------------------------------------------------------------- */

enum { PROBE_DEPTH = 1544 }; /* not a multiple of a usual block */

struct probe_memory {
    float a[MOK_CPU_MAX_HEIGHT * PROBE_DEPTH];
    float b[MOK_CPU_MAX_PANEL * PROBE_DEPTH];
    float c[MOK_CPU_MAX_HEIGHT * MOK_CPU_MAX_PANEL];
};

/* Equal rows in, equal rows out? Looks at the columns between the margins. */
static int is_even(struct probe_memory *memory, struct mok_cpu_call call, int32_t width, int32_t depth, int is_nt)
{
    int32_t cols = width + 2 * call.margin;
    for (int32_t row = 1; row < call.height; row++) {
        memcpy(memory->a + (int64_t)row * depth, memory->a, (size_t)depth * sizeof(float));
    }
    multiply(is_nt, call.height, cols, depth, memory->a, memory->b, memory->c);
    for (int32_t row = 1; row < call.height; row++) {
        if (memcmp(memory->c + call.margin, memory->c + (int64_t)row * cols + call.margin, (size_t)width * sizeof(float)) != 0) {
            return 0;
        }
    }
    return 1;
}

/* The first kind of call that is good at all shapes tried; height 0 = none. */
static struct mok_cpu_call find_call(struct probe_memory *memory)
{
    static const struct mok_cpu_call calls[] = {{128, 0}, {132, 0}, {132, MOK_CPU_MAX_MARGIN}};
    static const int32_t widths[] = {8, 24, 72, 104, 200, MOK_CPU_PANEL};
    static const int32_t depths[] = {8, 72, 384, PROBE_DEPTH};
    struct mok_cpu_call none = {0, 0};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        int is_good = 1;
        for (size_t s = 0; is_good && s < 2 * 6 * 4; s++) {
            is_good = is_even(memory, calls[i], widths[s / 2 % 6], depths[s / 12], (int)(s % 2));
        }
        if (is_good) {
            return calls[i];
        }
    }
    return none;
}

static pthread_mutex_t probe_lock = PTHREAD_MUTEX_INITIALIZER; /* of the three below */
static int is_probed;
static struct mok_cpu_call probed; /* height 0 = no call is good, -1 = no memory, -2 = not safe side by side */
static int64_t num_callers;        /* workers of all groups */

/* OpenBLAS's own threads, which start with the library, take a buffer each and may not have done so yet: what is free now may be theirs. In
 * doubt they get time; whoever of them found nothing by then would have taken what is still free. */
static int has_room_beside_own_threads(void)
{
    enum { SETTLE_MS = 500 };
    if (mok_blas_has_room(openblas_get_num_threads())) {
        return 1;
    }
    nanosleep(&(struct timespec){.tv_nsec = SETTLE_MS * 1000000L}, NULL);
    return mok_blas_has_room(1);
}

static void probe(void)
{
    /* An OpenBLAS without threads hands out its work buffers without a lock: calls side by side then share one, and products are wrong. */
    if (openblas_get_parallel() == OPENBLAS_SEQUENTIAL) {
        probed.height = -2;
        return;
    }
    struct probe_memory *memory = mok_cpu_alloc(sizeof *memory);
    if (memory == NULL || !has_room_beside_own_threads()) {
        free(memory);
        probed.height = -1;
        return;
    }
    int num_threads = openblas_get_num_threads();
    openblas_set_num_threads(1);
    uint32_t state = 1; /* values of all magnitudes, so that another order of summation shows */
    for (int64_t i = 0; i < PROBE_DEPTH; i++) {
        state = state * 1664525u + 1013904223u;
        memory->a[i] = (float)(int32_t)state * 0x1p-31f;
    }
    for (int64_t i = 0; i < (int64_t)MOK_CPU_MAX_PANEL * PROBE_DEPTH; i++) {
        state = state * 1664525u + 1013904223u;
        memory->b[i] = (float)(int32_t)state * 0x1p-31f;
    }
    probed = find_call(memory);
    if (num_callers == 0) {
        openblas_set_num_threads(num_threads);
    }
    free(memory);
}

mok_status mok_cpu_gemm_probe(struct mok_cpu_call *call_out)
{
    pthread_mutex_lock(&probe_lock);
    if (!is_probed) {
        probe();
        is_probed = probed.height != -1; /* memory may come */
    }
    struct mok_cpu_call found = probed;
    pthread_mutex_unlock(&probe_lock);
    if (found.height == -2) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED,
                             "cpu: this OpenBLAS was built without threads (%s) and must not be called from several: use one "
                             "built with threads (Debian: libopenblas-pthread-dev)",
                             openblas_get_config());
    }
    if (found.height < 0) {
        return mok_base_fail(MOK_ERR_MEMORY,
                             "cpu: no memory to try the BLAS library: it needs a buffer of 128 MiB for each thread (is there a limit of "
                             "address space, ulimit -v?)");
    }
    if (found.height == 0) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "cpu: this BLAS library (%s) gives equal rows different bits, depending on their place",
                             openblas_get_corename());
    }
    *call_out = found;
    return MOK_OK;
}

/* The probe has left one buffer with OpenBLAS. How many more are there nobody can ask, so all are looked for. */
mok_status mok_cpu_gemm_join(int32_t rank, int32_t num_workers)
{
    pthread_mutex_lock(&probe_lock);
    int64_t num = num_callers + num_workers;
    int has_room = mok_blas_has_room(num - 1);
    if (has_room) {
        num_callers = num;
        openblas_set_num_threads(1);
    }
    pthread_mutex_unlock(&probe_lock);
    if (!has_room) {
        return mok_base_fail(MOK_ERR_MEMORY,
                             "rank %d: no memory for buffers of the BLAS library: %lld of 128 MiB, one for each worker of this process (is "
                             "there a limit of address space, ulimit -v?)",
                             rank, (long long)num);
    }
    return MOK_OK;
}

void mok_cpu_gemm_leave(int32_t num_workers)
{
    pthread_mutex_lock(&probe_lock);
    num_callers -= num_workers;
    pthread_mutex_unlock(&probe_lock);
}

/* ---- operands ------------------------------------------------------------------------------------------------------------------ */

void mok_cpu_load_rows(const struct mok_cpu_loops *loops, const mok_bf16 *from, int64_t row_stride, int32_t valid, int32_t rows,
                       int32_t num_cols, float *to)
{
    for (int32_t row = 0; row < valid; row++) {
        loops->widen(from + row * row_stride, num_cols, to + (int64_t)row * num_cols);
    }
    memset(to + (int64_t)valid * num_cols, 0, (size_t)(rows - valid) * (size_t)num_cols * sizeof(float));
}

/* One panel of operand_b: `width` columns of the product from `first_col`, depth cols of the matrix behind one another: [margin + width +
 * margin, depth]. */
static void load_panel_nt(struct mok_cpu_worker *worker, int32_t panel, const mok_matrices *matrices, int32_t expert, int64_t first_col,
                          int32_t width, int32_t depth)
{
    const struct mok_pass_group *group = worker->group;
    int32_t margin = group->call.margin;
    size_t margin_bytes = (size_t)margin * (size_t)depth * sizeof(float);
    const mok_bf16 *from = (const mok_bf16 *)matrices->base + expert * matrices->expert_stride + first_col * matrices->row_stride;
    float *to = worker->operand_b + panel * (int64_t)MOK_CPU_MAX_PANEL * depth;
    memset(to, 0, margin_bytes);
    to += (int64_t)margin * depth;
    mok_cpu_load_rows(group->loops, from, matrices->row_stride, width, width, depth, to);
    memset(to + (int64_t)width * depth, 0, margin_bytes);
}

/* The same for a product over the rows of a matrix: [rows, margin + width + margin], behind `row` rows that stand there already. */
static void load_panel_nn(struct mok_cpu_worker *worker, int32_t panel, int32_t depth, int32_t row, const mok_matrices *matrices,
                          int32_t expert, int32_t rows, int64_t first_col, int32_t width)
{
    const struct mok_pass_group *group = worker->group;
    int32_t margin = group->call.margin, cols = width + 2 * margin;
    const mok_bf16 *from = (const mok_bf16 *)matrices->base + expert * matrices->expert_stride + first_col;
    float *to = worker->operand_b + panel * (int64_t)MOK_CPU_MAX_PANEL * depth + (int64_t)row * cols;
    for (int32_t i = 0; i < rows; i++) {
        memset(to, 0, (size_t)margin * sizeof(float));
        group->loops->widen(from, width, to + margin);
        memset(to + margin + width, 0, (size_t)margin * sizeof(float));
        from += matrices->row_stride;
        to += cols;
    }
}

/* 1 when this tile stands in operand_b already; else says that it does from now on. */
static int holds_weights(struct mok_cpu_worker *worker, const struct mok_cpu_tile *tile, int32_t operand, int32_t col_tile)
{
    int32_t expert = tile->is_shared ? -1 : tile->expert;
    if (worker->operand_kind == operand && worker->operand_expert == expert && worker->operand_col == col_tile) {
        return 1;
    }
    worker->operand_kind = operand;
    worker->operand_expert = expert;
    worker->operand_col = col_tile;
    return 0;
}

void mok_cpu_load_weights(struct mok_cpu_worker *worker, const struct mok_cpu_tile *tile, int32_t operand, int32_t col_tile)
{
    if (holds_weights(worker, tile, operand, col_tile)) {
        return;
    }
    const struct mok_tiles *tiles = &worker->group->tiles;
    const mok_ffn *weights = tile->weights;
    int32_t hidden = worker->group->setup.dims.hidden, inter = tile->inter, expert = tile->expert;
    if (operand == MOK_CPU_GATE_UP) {
        int64_t col = (int64_t)col_tile * tiles->gate_up;
        int32_t width = mok_cpu_tile_width(inter, tiles->gate_up, col_tile);
        load_panel_nt(worker, 0, &weights->gate, expert, col, width, hidden);
        load_panel_nt(worker, 1, &weights->up, expert, col, width, hidden);
        return;
    }
    if (operand == MOK_CPU_DGRAD_DOWN) {
        int32_t width = mok_cpu_tile_width(inter, tiles->dgrad_down, col_tile);
        load_panel_nn(worker, 0, hidden, 0, &weights->down, expert, hidden, (int64_t)col_tile * tiles->dgrad_down, width);
        return;
    }
    int32_t tile_cols = operand == MOK_CPU_DOWN ? tiles->down : tiles->dgrad_gate_up;
    int32_t total = mok_cpu_tile_width(hidden, tile_cols, col_tile);
    for (int32_t panel = 0; panel * MOK_CPU_PANEL < total; panel++) {
        int64_t col = (int64_t)col_tile * tile_cols + panel * MOK_CPU_PANEL;
        int32_t width = mok_cpu_tile_width(total, MOK_CPU_PANEL, panel);
        if (operand == MOK_CPU_DOWN) {
            load_panel_nt(worker, panel, &weights->down, expert, col, width, inter);
        } else {
            load_panel_nn(worker, panel, 2 * inter, 0, &weights->gate, expert, inter, col, width);
            load_panel_nn(worker, panel, 2 * inter, inter, &weights->up, expert, inter, col, width);
        }
    }
}

/* ---- products ------------------------------------------------------------------------------------------------------------------ */

static struct mok_cpu_panel multiply_panel(struct mok_cpu_worker *worker, int is_nt, int32_t panel, int32_t width, int32_t depth)
{
    struct mok_cpu_call call = worker->group->call;
    int32_t cols = width + 2 * call.margin;
    float *result = worker->result + panel * (int64_t)MOK_CPU_MAX_HEIGHT * MOK_CPU_MAX_PANEL;
    multiply(is_nt, call.height, cols, depth, worker->operand_a, worker->operand_b + panel * (int64_t)MOK_CPU_MAX_PANEL * depth, result);
    struct mok_cpu_panel product = {result + call.margin, cols};
    return product;
}

struct mok_cpu_panel mok_cpu_multiply_nt(struct mok_cpu_worker *worker, int32_t panel, int32_t width, int32_t depth)
{
    return multiply_panel(worker, 1, panel, width, depth);
}

struct mok_cpu_panel mok_cpu_multiply_nn(struct mok_cpu_worker *worker, int32_t panel, int32_t width, int32_t depth)
{
    return multiply_panel(worker, 0, panel, width, depth);
}

void mok_cpu_narrow_panel(const struct mok_cpu_worker *worker, struct mok_cpu_panel panel, int32_t valid, int32_t width, mok_bf16 *to,
                          int64_t to_stride)
{
    for (int64_t row = 0; row < valid; row++) {
        worker->group->loops->narrow(panel.rows + row * panel.stride, width, to + row * to_stride);
    }
}

void mok_cpu_contract(struct mok_cpu_worker *worker, int32_t out_cols, int32_t in_cols, float *to, int64_t to_stride)
{
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out_cols, in_cols, MOK_TILE_ROWS, 1.0f, worker->operand_a, out_cols,
                worker->operand_b, in_cols, 1.0f, to, (int)to_stride);
}
