/*
 * The kernels that move rows, alone, between two GPUs of this process that both move at the same time: dispatch by pull and combine by push, with
 * few CTAs and with all, beside the copy engine. Every row is checked before a time counts.
 *
 *   remote   every row has its source on the other GPU         mixed   random routes, top 8 of 128 experts: half of the rows are local
 *
 * GB/s is what crosses the link in each direction. *of all* is the rate beside that of one CTA an SM.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernel.h"

#define CHECK(call)                                                                                                                        \
    do {                                                                                                                                   \
        cudaError_t error_ = (call);                                                                                                       \
        if (error_ != cudaSuccess) {                                                                                                       \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));                                     \
            exit(3);                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

enum {
    NUM_GPUS = 2,
    TOKENS = 8192,
    TOP_K = 8,
    EXPERTS = 128,
    LOCAL = EXPERTS / NUM_GPUS,
    ROUTES = TOKENS * TOP_K,
    MAX_ROWS = 2 * ROUTES + 128 * LOCAL, /* of one GPU, padding included */
    MAX_ROW_BYTES = 14336,
    WARM_UP = 10,
    RUNS = 30,
    HEAD_BYTES = 4096 /* of a region, before its tokens: the abort word stands there */
};

enum pattern { REMOTE, MIXED, NUM_PATTERNS };
static const char *const pattern_names[NUM_PATTERNS] = {"remote", "mixed"};
enum direction { PULL, PUSH, NUM_DIRECTIONS };
static const char *const direction_names[NUM_DIRECTIONS] = {"pull", "push"};

/* A rank and its GPU. A region: head, [TOKENS] rows, [ROUTES] slots. */
struct rank {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    char *region, *rows;       /* rows: [num_rows] of the owner */
    struct mok_route *routes;  /* [num_rows] */
    struct mok_route *origins; /* [ROUTES] of a slot: owner's rank and row */
    int32_t *tables;           /* tile_expert [MAX_ROWS / 128], expert_first [LOCAL + 1], expert_rows [LOCAL] */
    struct mok_schedule_head *head;
    struct mok_cuda_control *control;
    char **base;
    uint32_t *ok;
    unsigned long long *num_bad;
    int64_t num_rows;
};

static struct rank ranks[NUM_GPUS];
static uint32_t *gate, num_rounds;

/* ---- device ------------------------------------------------------------------------------------------------------------------ */

static __device__ uint32_t value_of(uint32_t seed, uint32_t row, uint32_t i)
{
    uint32_t z = seed * 0x9e3779b9u + row * 0x85ebca6bu + i * 0xc2b2ae35u;
    z = (z ^ z >> 15) * 0x2c1b3c6du;
    return z ^ z >> 12;
}

static __global__ void fill(uint32_t *to, uint32_t seed, int64_t rows, int32_t words)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * words; i += (int64_t)gridDim.x * blockDim.x) {
        to[i] = value_of(seed, (uint32_t)(i / words), (uint32_t)(i % words));
    }
}

/* Row r must be row from[r].slot / per of the rank from[r].rank, whose rows were filled with seed + rank. */
static __global__ void check(const uint32_t *rows, const struct mok_route *from, int32_t per, uint32_t seed, int64_t num_rows, int32_t words,
                             unsigned long long *num_bad)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < num_rows * words; i += (int64_t)gridDim.x * blockDim.x) {
        struct mok_route route = from[i / words];
        if (route.rank >= 0 && rows[i] != value_of(seed + (uint32_t)route.rank, (uint32_t)(route.slot / per), (uint32_t)(i % words))) {
            atomicAdd(num_bad, 1ull);
        }
    }
}

static __global__ void hold(const volatile uint32_t *open, uint32_t round)
{
    while (*open < round) {
    }
}

/* ---- routes ------------------------------------------------------------------------------------------------------------------ */

static uint32_t next_random(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33);
}

static int has_id(const int32_t *ids, int num, int32_t id)
{
    for (int i = 0; i < num; i++) {
        if (ids[i] == id) {
            return 1;
        }
    }
    return 0;
}

/* TOP_K different experts a token. ids [ROUTES]. */
static void choose_experts(int32_t source, enum pattern pattern, int32_t *ids)
{
    for (int32_t route = 0; route < ROUTES; route++) {
        int32_t *own = ids + route / TOP_K * TOP_K, k = route % TOP_K;
        do {
            own[k] = pattern == MIXED ? (int32_t)(next_random() % EXPERTS) : (1 - source) * LOCAL + (int32_t)(next_random() % LOCAL);
        } while (has_id(own, k, own[k]));
    }
}

/* The rows of an owner in the order of plan/rows.h; origins [source][ROUTES]. Returns their number. */
static int64_t lay_out(int32_t owner, int32_t *const *ids, struct mok_route *routes, int32_t *tables, struct mok_route *const *origins)
{
    static int32_t lists[NUM_GPUS][ROUTES];
    int64_t row = 0;
    for (int32_t e = 0; e < LOCAL; e++) {
        int32_t counts[NUM_GPUS] = {0, 0};
        for (int32_t s = 0; s < NUM_GPUS; s++) {
            for (int32_t route = 0; route < ROUTES; route++) {
                if (ids[s][route] == owner * LOCAL + e) {
                    lists[s][counts[s]++] = route;
                }
            }
        }
        tables[MAX_ROWS / 128 + e] = (int32_t)row;
        tables[MAX_ROWS / 128 + LOCAL + 1 + e] = counts[0] + counts[1];
        for (int32_t q = 0; q < counts[0] || q < counts[1]; q++) {
            for (int32_t turn = 0; turn < NUM_GPUS; turn++) {
                int32_t s = mok_plan_source_at(NUM_GPUS, owner, turn);
                if (q < counts[s]) {
                    origins[s][lists[s][q]] = (struct mok_route){owner, (int32_t)row};
                    routes[row++] = (struct mok_route){s, lists[s][q]};
                }
            }
        }
        while (row % 128 != 0) {
            routes[row++] = (struct mok_route){-1, -1};
        }
        for (int64_t tile = tables[MAX_ROWS / 128 + e] / 128; tile < row / 128; tile++) {
            tables[tile] = e;
        }
    }
    tables[MAX_ROWS / 128 + LOCAL] = (int32_t)row;
    return row;
}

static void *host_array(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL) {
        fprintf(stderr, "no memory\n");
        exit(3);
    }
    return memory;
}

static void make_schedule(enum pattern pattern)
{
    const size_t tables_bytes = (MAX_ROWS / 128 + 2 * LOCAL + 1) * sizeof(int32_t);
    struct mok_route *routes = (struct mok_route *)host_array(MAX_ROWS * sizeof *routes), *origins[NUM_GPUS];
    int32_t *tables = (int32_t *)host_array(tables_bytes), *ids[NUM_GPUS];
    for (int32_t s = 0; s < NUM_GPUS; s++) {
        origins[s] = (struct mok_route *)host_array(ROUTES * sizeof *origins[s]);
        ids[s] = (int32_t *)host_array(ROUTES * sizeof *ids[s]);
        choose_experts(s, pattern, ids[s]);
    }
    for (int32_t r = 0; r < NUM_GPUS; r++) {
        struct rank *rank = &ranks[r];
        rank->num_rows = lay_out(r, ids, routes, tables, origins);
        const struct mok_schedule_head head = {(int32_t)rank->num_rows, (int32_t)rank->num_rows / 128, LOCAL, TOKENS, 0};
        CHECK(cudaSetDevice(r));
        CHECK(cudaMemcpy(rank->routes, routes, (size_t)rank->num_rows * sizeof *routes, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(rank->tables, tables, tables_bytes, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(rank->head, &head, sizeof head, cudaMemcpyHostToDevice));
    }
    for (int32_t s = 0; s < NUM_GPUS; s++) {
        CHECK(cudaMemcpy(ranks[s].origins, origins[s], ROUTES * sizeof *origins[s], cudaMemcpyHostToDevice));
        free(origins[s]);
        free(ids[s]);
    }
    free(routes);
    free(tables);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------------------- */

static void *device_array(size_t bytes)
{
    void *memory;
    CHECK(cudaMalloc(&memory, bytes));
    CHECK(cudaMemset(memory, 0, bytes));
    return memory;
}

static void open_rank(int32_t r)
{
    const size_t tokens_bytes = (size_t)TOKENS * MAX_ROW_BYTES;
    struct rank *rank = &ranks[r];
    const uint32_t one = 1;
    int can = 0;
    CHECK(cudaSetDevice(r));
    CHECK(cudaDeviceCanAccessPeer(&can, r, 1 - r));
    if (!can) {
        fprintf(stderr, "GPU %d cannot reach the other's memory\n", r);
        exit(3);
    }
    CHECK(cudaDeviceEnablePeerAccess(1 - r, 0));
    CHECK(cudaStreamCreate(&rank->stream));
    CHECK(cudaEventCreate(&rank->begin));
    CHECK(cudaEventCreate(&rank->end));
    rank->region = (char *)device_array(HEAD_BYTES + (1 + TOP_K) * tokens_bytes);
    rank->rows = (char *)device_array((size_t)(ROUTES + ROUTES / 4) * MAX_ROW_BYTES);
    rank->routes = (struct mok_route *)device_array(MAX_ROWS * sizeof *rank->routes);
    rank->origins = (struct mok_route *)device_array(ROUTES * sizeof *rank->origins);
    rank->tables = (int32_t *)device_array((MAX_ROWS / 128 + 2 * LOCAL + 1) * sizeof(int32_t));
    rank->head = (struct mok_schedule_head *)device_array(sizeof *rank->head);
    rank->control = (struct mok_cuda_control *)device_array(sizeof *rank->control);
    rank->base = (char **)device_array(NUM_GPUS * sizeof *rank->base);
    rank->ok = (uint32_t *)device_array(sizeof *rank->ok);
    rank->num_bad = (unsigned long long *)device_array(sizeof *rank->num_bad);
    CHECK(cudaMemcpy(rank->ok, &one, sizeof one, cudaMemcpyHostToDevice));
    CHECK(cudaFuncSetAttribute(mok_cuda_pull_kernel().function, cudaFuncAttributeMaxDynamicSharedMemorySize, MOK_CUDA_MAX_SHARED));
    CHECK(cudaFuncSetAttribute(mok_cuda_push_kernel().function, cudaFuncAttributeMaxDynamicSharedMemorySize, MOK_CUDA_MAX_SHARED));
}

static struct mok_cuda_move_args args_of(int32_t r, enum direction direction, int32_t row_bytes)
{
    const struct rank *rank = &ranks[r];
    struct mok_cuda_move_args args;
    memset(&args, 0, sizeof args);
    args.watch.base = rank->base;
    args.watch.own = rank->region;
    args.watch.control = rank->control;
    args.watch.local_limit_ns = 1000000000;
    args.watch.rank = r;
    args.watch.num_ranks = NUM_GPUS;
    args.ok = rank->ok;
    args.head = rank->head;
    args.routes = rank->routes;
    args.tile_expert = rank->tables;
    args.expert_first = rank->tables + MAX_ROWS / 128;
    args.expert_rows = rank->tables + MAX_ROWS / 128 + LOCAL + 1;
    args.local = rank->rows;
    args.remote_off = HEAD_BYTES + (direction == PULL ? 0 : (int64_t)TOKENS * row_bytes);
    args.window_rows = (int32_t)rank->num_rows;
    args.row_bytes = row_bytes;
    args.top_k = TOP_K;
    return args;
}

/* num_ctas 0: the copy engine takes as many bytes over the link as mixed routes do. */
static void enqueue(int32_t r, enum direction direction, int32_t row_bytes, int32_t num_ctas)
{
    struct mok_cuda_move_args args = args_of(r, direction, row_bytes);
    struct mok_cuda_kernel kernel = direction == PULL ? mok_cuda_pull_kernel() : mok_cuda_push_kernel();
    size_t shared_bytes = mok_cuda_cut_rows(&args);
    void *params[] = {&args};
    if (num_ctas > 0) {
        CHECK(cudaLaunchKernel(kernel.function, dim3((unsigned)num_ctas), dim3((unsigned)kernel.threads), params, shared_bytes,
                               ranks[r].stream));
    } else {
        int32_t from = direction == PULL ? 1 - r : r, to = 1 - from;
        CHECK(cudaMemcpyPeerAsync(ranks[to].region + HEAD_BYTES + (size_t)TOKENS * row_bytes, to, ranks[from].rows, from,
                                  (size_t)ROUTES / 2 * (size_t)row_bytes, ranks[r].stream));
    }
}

/* One run on both GPUs, begun by one word; the slower one's time. */
static float run(enum direction direction, int32_t row_bytes, int32_t num_ctas)
{
    float most = 0, ms;
    num_rounds++;
    for (int32_t r = 0; r < NUM_GPUS; r++) {
        CHECK(cudaSetDevice(r));
        hold<<<1, 1, 0, ranks[r].stream>>>(gate, num_rounds);
        CHECK(cudaEventRecord(ranks[r].begin, ranks[r].stream));
        enqueue(r, direction, row_bytes, num_ctas);
        CHECK(cudaEventRecord(ranks[r].end, ranks[r].stream));
    }
    __atomic_store_n(gate, num_rounds, __ATOMIC_RELEASE);
    for (int32_t r = 0; r < NUM_GPUS; r++) {
        CHECK(cudaSetDevice(r));
        CHECK(cudaStreamSynchronize(ranks[r].stream));
        CHECK(cudaEventElapsedTime(&ms, ranks[r].begin, ranks[r].end));
        most = ms > most ? ms : most;
    }
    return most;
}

/* ---- checks and times -------------------------------------------------------------------------------------------------------- */

enum { FILL_BLOCKS = 2048, FILL_THREADS = 256, SEED_TOKENS = 1, SEED_ROWS = 11 };

static void fill_rows(int32_t row_bytes)
{
    for (int32_t r = 0; r < NUM_GPUS; r++) {
        struct rank *rank = &ranks[r];
        CHECK(cudaSetDevice(r));
        fill<<<FILL_BLOCKS, FILL_THREADS>>>((uint32_t *)(rank->region + HEAD_BYTES), SEED_TOKENS + (uint32_t)r, TOKENS, row_bytes / 4);
        CHECK(cudaDeviceSynchronize());
    }
}

/* Moves once from fresh rows to fresh memory. Returns the number of wrong words. */
static unsigned long long count_bad(enum direction direction, int32_t row_bytes, int32_t num_ctas)
{
    unsigned long long all = 0, bad;
    for (int32_t r = 0; r < NUM_GPUS; r++) {
        struct rank *rank = &ranks[r];
        char *slots = rank->region + HEAD_BYTES + (int64_t)TOKENS * row_bytes;
        CHECK(cudaSetDevice(r));
        CHECK(cudaMemset(rank->num_bad, 0, sizeof *rank->num_bad));
        CHECK(cudaMemset(direction == PULL ? rank->rows : slots, 0xee, (size_t)(direction == PULL ? rank->num_rows : ROUTES) * (size_t)row_bytes));
        if (direction == PUSH) {
            fill<<<FILL_BLOCKS, FILL_THREADS>>>((uint32_t *)rank->rows, SEED_ROWS + (uint32_t)r, rank->num_rows, row_bytes / 4);
        }
        CHECK(cudaDeviceSynchronize());
    }
    run(direction, row_bytes, num_ctas);
    for (int32_t r = 0; r < NUM_GPUS; r++) {
        struct rank *rank = &ranks[r];
        char *slots = rank->region + HEAD_BYTES + (int64_t)TOKENS * row_bytes;
        CHECK(cudaSetDevice(r));
        if (direction == PULL) {
            check<<<FILL_BLOCKS, FILL_THREADS>>>((uint32_t *)rank->rows, rank->routes, TOP_K, SEED_TOKENS, rank->num_rows, row_bytes / 4,
                                                 rank->num_bad);
        } else {
            check<<<FILL_BLOCKS, FILL_THREADS>>>((uint32_t *)slots, rank->origins, 1, SEED_ROWS, ROUTES, row_bytes / 4, rank->num_bad);
        }
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(&bad, rank->num_bad, sizeof bad, cudaMemcpyDeviceToHost));
        all += bad;
    }
    return all;
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

struct timing {
    float least, median, most;
};

static struct timing time_runs(enum direction direction, int32_t row_bytes, int32_t num_ctas)
{
    float ms[RUNS];
    for (int i = -WARM_UP; i < RUNS; i++) {
        float one = run(direction, row_bytes, num_ctas);
        if (i >= 0) {
            ms[i] = one;
        }
    }
    qsort(ms, RUNS, sizeof ms[0], compare_floats);
    return (struct timing){ms[0], 0.5f * (ms[RUNS / 2 - 1] + ms[RUNS / 2]), ms[RUNS - 1]};
}

/* Bytes that cross the link in the busier direction. */
static double link_bytes(int32_t row_bytes, int32_t num_ctas)
{
    int64_t most = 0;
    if (num_ctas == 0) {
        return (double)(ROUTES / 2) * row_bytes;
    }
    for (int32_t r = 0; r < NUM_GPUS; r++) {
        static struct mok_route routes[MAX_ROWS];
        int64_t num = 0;
        CHECK(cudaMemcpy(routes, ranks[r].routes, (size_t)ranks[r].num_rows * sizeof routes[0], cudaMemcpyDeviceToHost));
        for (int64_t row = 0; row < ranks[r].num_rows; row++) {
            num += routes[row].rank == 1 - r;
        }
        most = num > most ? num : most;
    }
    return (double)most * row_bytes;
}

static void report(FILE *json, enum direction direction, enum pattern pattern, int32_t row_bytes, int32_t num_ctas, struct timing time,
                   double rate, double share)
{
    char ctas[16];
    snprintf(ctas, sizeof ctas, num_ctas > 0 ? "%d" : "engine", num_ctas);
    printf("%-5s %-7s %6d %7s %9.4f %9.4f %9.4f %7.1f %7.3f\n", direction_names[direction], num_ctas > 0 ? pattern_names[pattern] : "-",
           row_bytes, ctas, time.least, time.median, time.most, rate, share);
    if (json != NULL) {
        fprintf(json,
                "  {\"direction\": \"%s\", \"rows\": \"%s\", \"row_bytes\": %d, \"ctas\": %d, \"ms_min\": %.5f, \"ms\": %.5f, \"ms_max\": %.5f, "
                "\"link_gb_s\": %.2f, \"of_all\": %.4f, \"runs\": %d},\n",
                direction_names[direction], pattern_names[pattern], row_bytes, num_ctas, time.least, time.median, time.most, rate, share, RUNS);
    }
}

/* All counts of CTAs, the largest first. Returns 1 when a row was wrong. */
static int measure(FILE *json, enum direction direction, enum pattern pattern, int32_t row_bytes, int32_t num_sms)
{
    const int32_t counts[] = {num_sms, 64, 32, 16, 8, 4, 0};
    double all = 0;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        unsigned long long bad = counts[i] > 0 ? count_bad(direction, row_bytes, counts[i]) : 0;
        if (bad > 0) {
            printf("%s, %s, %d CTAs: %llu wrong words\n", direction_names[direction], pattern_names[pattern], counts[i], bad);
            return 1;
        }
        if (counts[i] == 0 && pattern != MIXED) {
            continue;
        }
        struct timing time = time_runs(direction, row_bytes, counts[i]);
        double rate = link_bytes(row_bytes, counts[i]) / time.median * 1e-6;
        all = i == 0 ? rate : all;
        report(json, direction, pattern, row_bytes, counts[i], time, rate, rate / all);
    }
    fflush(stdout);
    return 0;
}

int main(void)
{
    const int32_t row_bytes[] = {14336, 4096};
    const char *json_name = getenv("MOVE_JSON");
    FILE *json = json_name == NULL ? NULL : fopen(json_name, "w");
    int num_gpus = 0, num_sms = 0, failed = 0;
    char *bases[NUM_GPUS];
    CHECK(cudaGetDeviceCount(&num_gpus));
    if (num_gpus < NUM_GPUS) {
        fprintf(stderr, "%d GPUs are needed\n", NUM_GPUS);
        return 2;
    }
    CHECK(cudaHostAlloc((void **)&gate, sizeof *gate, cudaHostAllocPortable | cudaHostAllocMapped));
    *gate = 0;
    for (int32_t r = 0; r < NUM_GPUS; r++) {
        open_rank(r);
        bases[r] = ranks[r].region;
    }
    for (int32_t r = 0; r < NUM_GPUS; r++) {
        CHECK(cudaMemcpy(ranks[r].base, bases, sizeof bases, cudaMemcpyHostToDevice));
    }
    CHECK(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0));
    printf("%-5s %-7s %6s %7s %9s %9s %9s %7s %7s\n", "", "rows", "bytes", "CTAs", "ms least", "median", "most", "GB/s", "of all");
    for (int pattern = 0; pattern < NUM_PATTERNS; pattern++) {
        make_schedule((enum pattern)pattern);
        for (size_t i = 0; i < sizeof row_bytes / sizeof row_bytes[0]; i++) {
            fill_rows(row_bytes[i]);
            for (int direction = 0; direction < NUM_DIRECTIONS; direction++) {
                failed |= measure(json, (enum direction)direction, (enum pattern)pattern, row_bytes[i], num_sms);
            }
        }
    }
    if (json != NULL) {
        fclose(json);
    }
    return failed;
}
