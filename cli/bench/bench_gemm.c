/*
 * See bench/bench_gemm.h. The products are launched as the staged path launches them, on random rows, with tables made on the host. Whether their
 * results are right is for tests/gpu and bench/ladder to say.
 *
 * A run: the grouped product, then the dense one, events around each; all runs are enqueued one behind the other, so that both see the same clock.
 * Groups: "even", sizes drawn within 20% of the mean; "zipf", sizes as 1/rank. Rows in all are about the same.
 */
#include "bench/bench_gemm.h"

#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_cublas.h"
#include "bench/bench_gpu.h"
#include "bench/bench_machine.h"
#include "bench/bench_spread.h"
#include "cuda/gemm/gemm.h"
#include "json_file.h"
#include "plan/tile.h"

enum { MAX_BLOCKS = 40, NUM_RANKS = 2, SEED_GROUPS = 12345 };

enum groups { GROUPS_EVEN, GROUPS_ZIPF, NUM_GROUPS };
static const char *const groups_names[NUM_GROUPS] = {"even", "zipf"};

/* The GEMMs of routed experts; the shared expert's are the same kernels with one group. */
struct gemm {
    const char *name;
    enum mok_bench_gemm gemm;
    int keeps; /* gate+up stores g and u, for backward */
};

static const struct gemm gemms[] = {
    {"gate+up", MOK_BENCH_GATE_UP, 0},           {"gate+up, kept", MOK_BENCH_GATE_UP, 1},
    {"down", MOK_BENCH_DOWN, 0},                 {"dgrad down", MOK_BENCH_DGRAD_DOWN, 0},
    {"dgrad gate+up", MOK_BENCH_DGRAD_GATE_UP, 0}, {"wgrad gate+up", MOK_BENCH_WGRAD_GATE_UP, 0},
    {"wgrad down", MOK_BENCH_WGRAD_DOWN, 0},
};
enum { NUM_GEMMS = sizeof gemms / sizeof gemms[0] };

static const char *const all_shapes[] = {"kimi-k2-slice", "deepseek-v4-pro-slice", "glm-5.2-slice", "qwen3.5-slice",
                                         "qwen3-30b",     "mixtral-8x7b",          "kimi-k2"};

/* One shape on the GPU. */
struct bench {
    const struct mok_bench_settings *settings; /* resolved */
    const struct mok_case_memory *memory;
    mok_stream stream;
    void *blocks[MAX_BLOCKS]; /* all device memory */
    int num_blocks;
    cudaEvent_t *marks; /* [2 * repeats + 1] */
    struct mok_bench_sizes sizes;
    struct mok_gemm_rows rows;
    int32_t *num_tiles, *tile_expert, *expert_first, *expert_rows;
    int64_t max_rows;
    void *x, *dy, *y, *dx, *h, *g, *u, *dg, *du, *wh;
    float *w, *dw_partial;
    struct mok_bench_ffn weights, grads;
    struct mok_bench_dense_gpu dense;
};

struct timing {
    double ms[MOK_BENCH_MAX_REPEATS], dense_ms[MOK_BENCH_MAX_REPEATS], share[MOK_BENCH_MAX_REPEATS];
};

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

static mok_status check_cuda(cudaError_t error, const char *what)
{
    return error == cudaSuccess ? MOK_OK : mok_cli_fail(MOK_ERR_DEVICE, "%s: %s", what, cudaGetErrorString(error));
}

static mok_status take(struct bench *bench, int64_t bytes, void **memory_out)
{
    void *memory = bench->num_blocks < MAX_BLOCKS ? bench->memory->alloc((size_t)bytes) : NULL;
    if (memory == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no device memory for %" PRId64 " bytes", bytes);
    }
    bench->blocks[bench->num_blocks++] = memory;
    *memory_out = memory;
    return MOK_OK;
}

static mok_status take_normal(struct bench *bench, int64_t count, double scale, void **memory_out)
{
    MOK_TRY(take(bench, 2 * count, memory_out));
    int error = mok_bench_fill_normal(*memory_out, count, (float)scale, (uint64_t)bench->num_blocks, bench->stream);
    return check_cuda((cudaError_t)error, "random data");
}

static mok_status take_zeros(struct bench *bench, int64_t bytes, void **memory_out)
{
    MOK_TRY(take(bench, bytes, memory_out));
    return check_cuda(cudaMemsetAsync(*memory_out, 0, (size_t)bytes, (cudaStream_t)bench->stream), "zeros");
}

static mok_status take_rows(struct bench *bench)
{
    int64_t wide = bench->max_rows * bench->sizes.hidden, narrow = bench->max_rows * bench->sizes.inter;
    int64_t partials = bench->max_rows * mok_plan_num_tiles((int32_t)bench->sizes.inter, mok_plan_tiles_cuda(NULL).dgrad_down);
    MOK_TRY(take_normal(bench, wide, 1.0, &bench->x));
    MOK_TRY(take_normal(bench, wide, 1.0, &bench->dy));
    MOK_TRY(take_zeros(bench, 2 * wide, &bench->y));
    MOK_TRY(take_zeros(bench, 2 * wide, &bench->dx));
    void **narrow_rows[] = {&bench->h, &bench->g, &bench->u, &bench->dg, &bench->du, &bench->wh};
    for (size_t idx = 0; idx < sizeof narrow_rows / sizeof narrow_rows[0]; idx++) {
        MOK_TRY(take_normal(bench, narrow, 1.0, narrow_rows[idx]));
    }
    MOK_TRY(take_zeros(bench, 4 * partials, (void **)&bench->dw_partial));
    return take_normal(bench, 2 * bench->max_rows, 1.0, (void **)&bench->w); /* two bf16 are an fp32 of about the same size */
}

static mok_status take_matrices(struct bench *bench)
{
    int64_t count = bench->sizes.experts * bench->sizes.hidden * bench->sizes.inter;
    double by_hidden = 1.0 / sqrt((double)bench->sizes.hidden), by_inter = 1.0 / sqrt((double)bench->sizes.inter);
    MOK_TRY(take_normal(bench, count, by_hidden, &bench->weights.gate));
    MOK_TRY(take_normal(bench, count, by_hidden, &bench->weights.up));
    MOK_TRY(take_normal(bench, count, by_inter, &bench->weights.down));
    MOK_TRY(take_zeros(bench, 4 * count, &bench->grads.gate));
    MOK_TRY(take_zeros(bench, 4 * count, &bench->grads.up));
    return take_zeros(bench, 4 * count, &bench->grads.down);
}

static mok_status take_dense(struct bench *bench, const struct mok_bench_cublas *cublas)
{
    int64_t hidden = bench->sizes.hidden, inter = bench->sizes.inter, width = hidden > 2 * inter ? hidden : 2 * inter;
    int version;
    MOK_TRY(take_normal(bench, bench->max_rows * width, 1.0, &bench->dense.a));
    MOK_TRY(take_normal(bench, bench->max_rows * width, 1.0, &bench->dense.b));
    MOK_TRY(take_normal(bench, 2 * inter * hidden, 1.0 / sqrt((double)hidden), &bench->dense.weight));
    MOK_TRY(take_zeros(bench, 8 * inter * hidden, &bench->dense.grad));
    return mok_bench_cublas_open(cublas, bench->stream, &bench->dense, &version);
}

/* Fills sizes and allocates. */
static mok_status open_bench(struct bench *bench, const struct mok_bench_settings *settings, const struct mok_bench_cublas *cublas)
{
    const struct mok_shape_settings *shape = &settings->shape;
    int64_t num_marks = 2 * settings->num_repeats + 1;
    int32_t device;
    bench->settings = settings;
    bench->memory = mok_case_memory_of(MOK_BACKEND_CUDA);
    bench->sizes = (struct mok_bench_sizes){.hidden = shape->hidden, .inter = shape->inter, .top_k = shape->top_k, .tokens = shape->tokens};
    bench->sizes.experts = shape->experts / shape->num_ranks;
    bench->max_rows = shape->tokens * shape->top_k * 6 / 5 + (bench->sizes.experts + 2) * MOK_TILE_ROWS;
    MOK_TRY(bench->memory->open(0, &device, &bench->stream));
    MOK_TRY(mok_cuda_gemm_prepare());
    bench->marks = calloc((size_t)num_marks, sizeof *bench->marks);
    if (bench->marks == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory for events");
    }
    for (int64_t idx = 0; idx < num_marks; idx++) {
        MOK_TRY(check_cuda(cudaEventCreate(&bench->marks[idx]), "event"));
    }
    int64_t experts = bench->sizes.experts;
    MOK_TRY(take(bench, 4, (void **)&bench->num_tiles));
    MOK_TRY(take(bench, 4 * (bench->max_rows / MOK_TILE_ROWS + 1), (void **)&bench->tile_expert));
    MOK_TRY(take(bench, 4 * experts, (void **)&bench->expert_first));
    MOK_TRY(take(bench, 4 * experts, (void **)&bench->expert_rows));
    MOK_TRY(take_rows(bench));
    MOK_TRY(take_matrices(bench));
    return take_dense(bench, cublas);
}

static void close_bench(struct bench *bench)
{
    mok_bench_cublas_close(&bench->dense);
    for (int64_t idx = 0; bench->marks != NULL && idx < 2 * bench->settings->num_repeats + 1; idx++) {
        if (bench->marks[idx] != NULL) {
            (void)cudaEventDestroy(bench->marks[idx]);
        }
    }
    free(bench->marks);
    for (int idx = 0; idx < bench->num_blocks; idx++) {
        bench->memory->free(bench->blocks[idx]);
    }
    if (bench->stream != NULL) {
        bench->memory->close(bench->stream);
    }
}

/* ---- groups ------------------------------------------------------------------------------------------------------------- */

static double next_uniform(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) / 16777216.0;
}

/* Rows of each expert; the same ones each time. */
static void choose_rows(const struct bench *bench, enum groups groups, int32_t *rows)
{
    int64_t experts = bench->sizes.experts;
    double total = (double)(bench->sizes.tokens * bench->sizes.top_k), sum = 0.0;
    uint32_t state = SEED_GROUPS;
    for (int64_t e = 0; e < experts; e++) {
        sum += 1.0 / (double)(e + 1);
    }
    for (int64_t e = 0; e < experts; e++) {
        double part = groups == GROUPS_EVEN ? (0.8 + 0.4 * next_uniform(&state)) / (double)experts : 1.0 / (double)(e + 1) / sum;
        rows[e] = (int32_t)(total * part);
    }
    for (int64_t e = experts - 1; groups == GROUPS_ZIPF && e > 0; e--) { /* in any order */
        int64_t other = (int64_t)(next_uniform(&state) * (double)(e + 1));
        int32_t moved = rows[e];
        rows[e] = rows[other];
        rows[other] = moved;
    }
}

static mok_status upload(struct bench *bench, int32_t *to, const int32_t *from, int64_t count)
{
    return bench->memory->upload(to, from, 4 * (size_t)count) == MOK_OK ? MOK_OK : mok_cli_fail(MOK_ERR_DEVICE, "tables could not be copied");
}

static mok_status make_groups(struct bench *bench, enum groups groups)
{
    int32_t experts = (int32_t)bench->sizes.experts, tiles = 0;
    int64_t most_tiles = bench->max_rows / MOK_TILE_ROWS;
    int32_t *rows = malloc((size_t)experts * sizeof *rows), *first = malloc((size_t)experts * sizeof *first);
    int32_t *tile_expert = malloc(((size_t)most_tiles + 1) * sizeof *tile_expert);
    mok_status status = rows == NULL || first == NULL || tile_expert == NULL ? mok_cli_fail(MOK_ERR_MEMORY, "no memory for tables") : MOK_OK;
    if (status == MOK_OK) {
        bench->sizes.rows = 0;
        choose_rows(bench, groups, rows);
        for (int32_t e = 0; e < experts; e++) {
            first[e] = tiles * MOK_TILE_ROWS;
            bench->sizes.rows += rows[e];
            for (int32_t row = 0; row < rows[e] && tiles < most_tiles; row += MOK_TILE_ROWS) {
                tile_expert[tiles++] = e;
            }
        }
        status = upload(bench, bench->tile_expert, tile_expert, tiles);
    }
    if (status == MOK_OK) {
        status = upload(bench, bench->num_tiles, &tiles, 1);
    }
    if (status == MOK_OK) {
        status = upload(bench, bench->expert_first, first, experts);
    }
    if (status == MOK_OK) {
        status = upload(bench, bench->expert_rows, rows, experts);
    }
    bench->rows = (struct mok_gemm_rows){.num_tiles = bench->num_tiles,
                                         .tile_expert = bench->tile_expert,
                                         .expert_first = bench->expert_first,
                                         .expert_rows = bench->expert_rows,
                                         .buffer_rows = most_tiles * MOK_TILE_ROWS,
                                         .num_experts = experts};
    free(rows);
    free(first);
    free(tile_expert);
    return status;
}

/* ---- products ----------------------------------------------------------------------------------------------------------- */

static mok_matrices matrices(const struct bench *bench, void *base, int64_t row_stride)
{
    return (mok_matrices){.base = base, .expert_stride = bench->sizes.hidden * bench->sizes.inter, .row_stride = row_stride};
}

static mok_status launch_wgrad(const struct bench *bench, enum mok_bench_gemm gemm)
{
    int32_t hidden = (int32_t)bench->sizes.hidden, inter = (int32_t)bench->sizes.inter;
    struct mok_wgrad_args args = {.rows = bench->rows, .dtype = MOK_DTYPE_FP32, .mode = MOK_GRAD_ADD};
    if (gemm == MOK_BENCH_WGRAD_DOWN) {
        args.num_parts = 1;
        args.out = hidden;
        args.in = inter;
        args.a[0] = bench->dy;
        args.b = bench->wh;
        args.grad[0] = matrices(bench, bench->grads.down, inter);
    } else {
        args.num_parts = 2;
        args.out = inter;
        args.in = hidden;
        args.a[0] = bench->dg;
        args.a[1] = bench->du;
        args.b = bench->x;
        args.grad[0] = matrices(bench, bench->grads.gate, hidden);
        args.grad[1] = matrices(bench, bench->grads.up, hidden);
    }
    return mok_cuda_wgrad_launch(&args, bench->stream);
}

static mok_status launch_forward(const struct bench *bench, const struct gemm *gemm)
{
    int32_t hidden = (int32_t)bench->sizes.hidden, inter = (int32_t)bench->sizes.inter;
    const struct mok_gate_up_args gate_up = {.rows = bench->rows,
                                             .hidden = hidden,
                                             .inter = inter,
                                             .activation = {.limit = INFINITY, .alpha = 1.0f},
                                             .x = bench->x,
                                             .gate = matrices(bench, bench->weights.gate, hidden),
                                             .up = matrices(bench, bench->weights.up, hidden),
                                             .h = bench->h,
                                             .g = gemm->keeps ? bench->g : NULL,
                                             .u = gemm->keeps ? bench->u : NULL,
                                             .keep_rows = gemm->keeps ? bench->rows.buffer_rows : 0};
    const struct mok_down_args down = {.rows = bench->rows,
                                       .hidden = hidden,
                                       .inter = inter,
                                       .h = bench->h,
                                       .down = matrices(bench, bench->weights.down, inter),
                                       .y = bench->y};
    return gemm->gemm == MOK_BENCH_GATE_UP ? mok_cuda_gate_up_launch(&gate_up, bench->stream) : mok_cuda_down_launch(&down, bench->stream);
}

static mok_status launch_dgrad(const struct bench *bench, enum mok_bench_gemm gemm)
{
    int32_t hidden = (int32_t)bench->sizes.hidden, inter = (int32_t)bench->sizes.inter;
    const struct mok_dgrad_down_args down = {.rows = bench->rows,
                                             .hidden = hidden,
                                             .inter = inter,
                                             .activation = {.limit = INFINITY, .alpha = 1.0f},
                                             .dy = bench->dy,
                                             .down = matrices(bench, bench->weights.down, inter),
                                             .g = bench->g,
                                             .u = bench->u,
                                             .w = bench->w,
                                             .dg = bench->dg,
                                             .du = bench->du,
                                             .wh = bench->wh,
                                             .dw_partial = bench->dw_partial};
    const struct mok_dgrad_gate_up_args gate_up = {.rows = bench->rows,
                                                   .hidden = hidden,
                                                   .inter = inter,
                                                   .dg = bench->dg,
                                                   .du = bench->du,
                                                   .gate = matrices(bench, bench->weights.gate, hidden),
                                                   .up = matrices(bench, bench->weights.up, hidden),
                                                   .dx = bench->dx};
    return gemm == MOK_BENCH_DGRAD_DOWN ? mok_cuda_dgrad_down_launch(&down, bench->stream) : mok_cuda_dgrad_gate_up_launch(&gate_up, bench->stream);
}

static mok_status launch(const struct bench *bench, const struct gemm *gemm)
{
    switch (gemm->gemm) {
    case MOK_BENCH_GATE_UP:
    case MOK_BENCH_DOWN: return launch_forward(bench, gemm);
    case MOK_BENCH_DGRAD_DOWN:
    case MOK_BENCH_DGRAD_GATE_UP: return launch_dgrad(bench, gemm->gemm);
    default: return launch_wgrad(bench, gemm->gemm);
    }
}

/* ---- times -------------------------------------------------------------------------------------------------------------- */

static mok_status mark(const struct bench *bench, int64_t idx)
{
    return idx < 0 ? MOK_OK : check_cuda(cudaEventRecord(bench->marks[idx], (cudaStream_t)bench->stream), "mark");
}

static mok_status time_between(const struct bench *bench, int64_t from, double *ms_out)
{
    float ms = 0.0f;
    MOK_TRY(check_cuda(cudaEventElapsedTime(&ms, bench->marks[from], bench->marks[from + 1]), "time"));
    *ms_out = ms;
    return MOK_OK;
}

static mok_status time_gemm(struct bench *bench, const struct gemm *gemm, struct timing *timing)
{
    const struct mok_bench_product product = mok_bench_gemm_product(&bench->sizes, gemm->gemm);
    int64_t num_repeats = bench->settings->num_repeats;
    for (int64_t run = -bench->settings->num_warmups; run < num_repeats; run++) {
        MOK_TRY(run == 0 ? mark(bench, 0) : MOK_OK);
        MOK_TRY(launch(bench, gemm));
        MOK_TRY(mark(bench, 2 * run + 1));
        MOK_TRY(mok_bench_cublas_multiply(&bench->dense, &product));
        MOK_TRY(mark(bench, 2 * run + 2));
    }
    MOK_TRY(check_cuda(cudaStreamSynchronize((cudaStream_t)bench->stream), "work of the stream"));
    for (int64_t run = 0; run < num_repeats; run++) {
        MOK_TRY(time_between(bench, 2 * run, &timing->ms[run]));
        MOK_TRY(time_between(bench, 2 * run + 1, &timing->dense_ms[run]));
        timing->share[run] = timing->dense_ms[run] / timing->ms[run];
    }
    return MOK_OK;
}

/* ---- report ------------------------------------------------------------------------------------------------------------- */

static void report(const struct bench *bench, enum groups groups, const struct gemm *gemm, const struct timing *timing, cJSON *list)
{
    int64_t num = bench->settings->num_repeats;
    struct mok_bench_spread ms = mok_bench_spread_of(timing->ms, num), dense = mok_bench_spread_of(timing->dense_ms, num);
    struct mok_bench_spread share = mok_bench_spread_of(timing->share, num);
    int is_two = gemm->gemm == MOK_BENCH_GATE_UP || gemm->gemm == MOK_BENCH_DGRAD_GATE_UP || gemm->gemm == MOK_BENCH_WGRAD_GATE_UP;
    double operations = (is_two ? 4.0 : 2.0) * (double)bench->sizes.rows * (double)bench->sizes.hidden * (double)bench->sizes.inter;
    const char *name = bench->settings->shape_name == NULL ? "unnamed" : bench->settings->shape_name;
    if (mok_bench_prints_text(bench->settings)) {
        printf("%-22s %-5s %-14s %9.4f %9.4f %9.4f %7.1f %9.4f %7.3f\n", name, groups_names[groups], gemm->name, ms.least,
               ms.median, ms.most, operations / ms.median * 1e-9, dense.median, share.median);
        (void)fflush(stdout);
    }
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "shape", name);
    cJSON_AddStringToObject(json, "groups", groups_names[groups]);
    cJSON_AddStringToObject(json, "gemm", gemm->name);
    cJSON_AddNumberToObject(json, "experts", (double)bench->sizes.experts);
    cJSON_AddNumberToObject(json, "rows", (double)bench->sizes.rows);
    cJSON_AddNumberToObject(json, "hidden", (double)bench->sizes.hidden);
    cJSON_AddNumberToObject(json, "intermediate", (double)bench->sizes.inter);
    cJSON_AddNumberToObject(json, "operations", operations);
    mok_bench_add_spread(json, "ms", timing->ms, num);
    mok_bench_add_spread(json, "dense_ms", timing->dense_ms, num);
    mok_bench_add_spread(json, "dense_over_ms", timing->share, num);
    cJSON_AddItemToArray(list, json);
}

static mok_status measure(struct bench *bench, struct timing *timing, cJSON *list)
{
    for (int groups = 0; groups < NUM_GROUPS; groups++) {
        MOK_TRY(make_groups(bench, (enum groups)groups));
        for (int idx = 0; idx < NUM_GEMMS; idx++) {
            MOK_TRY(time_gemm(bench, &gemms[idx], timing));
            report(bench, (enum groups)groups, &gemms[idx], timing, list);
        }
    }
    return MOK_OK;
}

static mok_status run_shape(const struct mok_bench_settings *given, const char *name, const struct mok_bench_cublas *cublas, cJSON *list)
{
    struct mok_bench_settings settings = *given;
    struct bench bench;
    struct timing *timing = malloc(sizeof *timing);
    memset(&bench, 0, sizeof bench);
    settings.shape_name = name;
    mok_status status = timing == NULL ? mok_cli_fail(MOK_ERR_MEMORY, "no memory for times") : mok_bench_resolve(&settings, 1, NUM_RANKS);
    if (status == MOK_OK && settings.shape.experts < settings.shape.num_ranks) {
        status = mok_cli_fail(MOK_ERR_ARGUMENT, "--experts is %" PRId64 ": must be at least --ranks, %" PRId64, settings.shape.experts,
                              settings.shape.num_ranks);
    }
    if (status == MOK_OK) {
        status = open_bench(&bench, &settings, cublas);
        if (status == MOK_OK) {
            status = measure(&bench, timing, list);
        }
        close_bench(&bench);
    }
    free(timing);
    return status;
}

static void print_head(const struct mok_bench_machine *machine)
{
    printf("one GPU, driver %s, power limit %.0f W; bf16, gradients fp32, added\n"
           "even = groups within 20%% of the mean, zipf = 1/rank\n\n",
           machine->driver, machine->power_limit_watts);
    printf("%-22s %-5s %-14s %9s %9s %9s %7s %9s %7s\n", "shape", "rows", "GEMM", "ms least", "median", "most", "TF/s", "dense ms", "share");
}

mok_status mok_bench_gemms(const struct mok_bench_settings *settings, const mok_group_config *config)
{
    char name[256], bus[32], line[4096], commit[128];
    int32_t num_sms;
    struct mok_bench_machine machine;
    struct mok_bench_settings resolved = *settings;
    mok_group_config own = *config;
    own.backend = MOK_BACKEND_CUDA;
    MOK_TRY(mok_bench_resolve(&resolved, 1, NUM_RANKS));
    MOK_TRY(mok_shape_check(&resolved.shape, &own));
    const struct mok_bench_cublas *cublas = NULL;
    mok_status found = mok_bench_cublas_find(&cublas);
    if (found != MOK_ERR_ARGUMENT && mok_bench_count_gpus() < 1) { /* a file that does not fit is named with or without a GPU */
        return mok_cli_fail(MOK_ERR_NO_DEVICE, "no GPU was found");
    }
    MOK_TRY(found);
    MOK_TRY(mok_bench_describe_gpu(0, name, sizeof name, bus, sizeof bus, &num_sms));
    mok_bench_machine_open(bus, &machine);
    if (mok_bench_prints_text(settings)) {
        print_head(&machine);
    }
    cJSON *root = cJSON_CreateObject();
    mok_bench_command_line(line, sizeof line);
    mok_bench_commit(commit, sizeof commit);
    cJSON_AddStringToObject(root, "command", line);
    cJSON_AddStringToObject(root, "commit", settings->commit != NULL ? settings->commit : commit);
    cJSON_AddStringToObject(root, "build", mok_build_info());
    cJSON_AddStringToObject(root, "device", name);
    cJSON_AddStringToObject(root, "driver", machine.driver);
    cJSON_AddNumberToObject(root, "power_limit_watts", machine.power_limit_watts);
    cJSON *list = cJSON_AddArrayToObject(root, "gemms");
    int is_all = settings->shape_name == NULL && settings->shape.hidden == MOK_BENCH_NOT_GIVEN;
    mok_status status = is_all ? MOK_OK : run_shape(settings, settings->shape_name, cublas, list);
    for (size_t idx = 0; is_all && status == MOK_OK && idx < sizeof all_shapes / sizeof all_shapes[0]; idx++) {
        status = run_shape(settings, all_shapes[idx], cublas, list);
    }
    if (status != MOK_OK || settings->json == NULL) {
        cJSON_Delete(root);
        return status;
    }
    return mok_json_write(root, settings->json);
}
