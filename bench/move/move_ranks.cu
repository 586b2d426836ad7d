/*
 * See move_ranks.h: memory and runs of the ranks, and the check of every row.
 */
#include "move_ranks.h"

#include <string.h>

enum { FILL_BLOCKS = 2048, FILL_THREADS = 256, SEED_TOKENS = 1, SEED_ROWS = 11 };

struct rank ranks[MAX_RANKS];
int32_t num_ranks;
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

/* ---- ranks ------------------------------------------------------------------------------------------------------------------- */

static void *device_array(size_t bytes)
{
    void *memory;
    CHECK(cudaMalloc(&memory, bytes));
    CHECK(cudaMemset(memory, 0, bytes));
    return memory;
}

static struct moves open_moves(void)
{
    struct moves moves;
    moves.routes = (struct mok_route *)device_array(MAX_ROWS * sizeof *moves.routes);
    moves.head = (struct mok_schedule_head *)device_array(sizeof *moves.head);
    moves.num_rows = 0;
    return moves;
}

static void open_rank(int32_t r, int32_t num_gpus)
{
    struct rank *rank = &ranks[r];
    const uint32_t one = 1;
    rank->device = r % num_gpus;
    CHECK(cudaSetDevice(rank->device));
    for (int32_t peer = 0; r < num_gpus && peer < num_gpus; peer++) {
        int can = 0;
        if (peer == rank->device) {
            continue;
        }
        CHECK(cudaDeviceCanAccessPeer(&can, rank->device, peer));
        if (!can) {
            fprintf(stderr, "GPU %d cannot reach the memory of GPU %d\n", rank->device, peer);
            exit(3);
        }
        CHECK(cudaDeviceEnablePeerAccess(peer, 0));
    }
    CHECK(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&rank->begin));
    CHECK(cudaEventCreate(&rank->end));
    rank->region = (char *)device_array(HEAD_BYTES + ((size_t)TOKENS + MAX_ROWS) * MAX_ROW_BYTES);
    rank->rows = (char *)device_array((size_t)MAX_ROWS * MAX_ROW_BYTES);
    rank->owned = open_moves();
    rank->sent = open_moves();
    rank->slot_origin = (struct mok_route *)device_array(ROUTES * sizeof *rank->slot_origin);
    rank->row_origin = (struct mok_route *)device_array(MAX_ROWS * sizeof *rank->row_origin);
    rank->tables = (int32_t *)device_array((MAX_ROWS / 128 + 2 * EXPERTS + 1) * sizeof(int32_t));
    rank->control = (struct mok_cuda_control *)device_array(sizeof *rank->control);
    rank->base = (char **)device_array(MAX_RANKS * sizeof *rank->base);
    rank->ok = (uint32_t *)device_array(sizeof *rank->ok);
    rank->num_bad = (unsigned long long *)device_array(sizeof *rank->num_bad);
    CHECK(cudaMemcpy(rank->ok, &one, sizeof one, cudaMemcpyHostToDevice));
    CHECK(cudaFuncSetAttribute(mok_cuda_pull_kernel().function, cudaFuncAttributeMaxDynamicSharedMemorySize, MOK_CUDA_MAX_SHARED));
    CHECK(cudaFuncSetAttribute(mok_cuda_push_kernel().function, cudaFuncAttributeMaxDynamicSharedMemorySize, MOK_CUDA_MAX_SHARED));
}

int32_t open_ranks(int32_t num)
{
    char *bases[MAX_RANKS] = {NULL};
    int num_gpus = 0;
    CHECK(cudaGetDeviceCount(&num_gpus));
    num_ranks = num;
    num_gpus = num_gpus < num ? num_gpus : num;
    CHECK(cudaHostAlloc((void **)&gate, sizeof *gate, cudaHostAllocPortable | cudaHostAllocMapped));
    *gate = 0;
    for (int32_t r = 0; r < num; r++) {
        open_rank(r, num_gpus);
        bases[r] = ranks[r].region;
    }
    for (int32_t r = 0; r < num; r++) {
        CHECK(cudaMemcpy(ranks[r].base, bases, sizeof bases, cudaMemcpyHostToDevice));
    }
    return num_gpus;
}

/* ---- runs -------------------------------------------------------------------------------------------------------------------- */

static struct mok_cuda_move_args args_of(int32_t r, enum direction direction, int32_t row_bytes)
{
    const struct rank *rank = &ranks[r];
    const struct moves *moves = direction == SEND ? &rank->sent : &rank->owned;
    struct mok_cuda_move_args args;
    memset(&args, 0, sizeof args);
    args.watch.base = rank->base;
    args.watch.own = rank->region;
    args.watch.control = rank->control;
    args.watch.local_limit_ns = 1000000000;
    args.watch.rank = r;
    args.watch.num_ranks = num_ranks;
    args.ok = rank->ok;
    args.head = moves->head;
    args.routes = moves->routes;
    args.tile_expert = rank->tables;
    args.expert_first = rank->tables + MAX_ROWS / 128;
    args.expert_rows = rank->tables + MAX_ROWS / 128 + EXPERTS + 1;
    args.local = rank->rows;
    args.remote_off = HEAD_BYTES + (direction == PULL ? 0 : (int64_t)TOKENS * row_bytes);
    args.window_rows = (int32_t)moves->num_rows;
    args.row_bytes = row_bytes;
    args.top_k = TOP_K;
    return args;
}

static void enqueue_copy(int32_t r, enum direction direction, int32_t row_bytes)
{
    int32_t next = (r + 1) % num_ranks, from = direction == PULL ? next : r, to = direction == PULL ? r : next;
    CHECK(cudaMemcpyPeerAsync(ranks[to].region + HEAD_BYTES + (size_t)TOKENS * row_bytes, ranks[to].device, ranks[from].rows, ranks[from].device,
                              (size_t)ROUTES / 2 * (size_t)row_bytes, ranks[r].stream));
}

void enqueue_move(int32_t r, enum direction direction, int32_t row_bytes, int32_t num_ctas)
{
    struct mok_cuda_move_args args = args_of(r, direction, row_bytes);
    struct mok_cuda_kernel kernel = direction == PULL ? mok_cuda_pull_kernel() : mok_cuda_push_kernel();
    size_t shared_bytes = mok_cuda_cut_rows(&args);
    void *params[] = {&args};
    if (num_ctas == 0) {
        enqueue_copy(r, direction, row_bytes);
        return;
    }
    CHECK(cudaLaunchKernel(kernel.function, dim3((unsigned)num_ctas), dim3((unsigned)kernel.threads), params, shared_bytes, ranks[r].stream));
}

void enqueue_gate(int32_t r) { hold<<<1, 1, 0, ranks[r].stream>>>(gate, num_rounds + 1); }

void open_gate(void) { __atomic_store_n(gate, ++num_rounds, __ATOMIC_RELEASE); }

float run_all(enum direction direction, int32_t row_bytes, int32_t num_ctas)
{
    float most = 0, ms;
    for (int32_t r = 0; r < num_ranks; r++) {
        CHECK(cudaSetDevice(ranks[r].device));
        enqueue_gate(r);
        CHECK(cudaEventRecord(ranks[r].begin, ranks[r].stream));
        enqueue_move(r, direction, row_bytes, num_ctas);
        CHECK(cudaEventRecord(ranks[r].end, ranks[r].stream));
    }
    open_gate();
    for (int32_t r = 0; r < num_ranks; r++) {
        CHECK(cudaSetDevice(ranks[r].device));
        CHECK(cudaStreamSynchronize(ranks[r].stream));
        CHECK(cudaEventElapsedTime(&ms, ranks[r].begin, ranks[r].end));
        most = ms > most ? ms : most;
    }
    return most;
}

/* ---- check ------------------------------------------------------------------------------------------------------------------- */

void fill_tokens(int32_t row_bytes)
{
    for (int32_t r = 0; r < num_ranks; r++) {
        CHECK(cudaSetDevice(ranks[r].device));
        fill<<<FILL_BLOCKS, FILL_THREADS>>>((uint32_t *)(ranks[r].region + HEAD_BYTES), SEED_TOKENS + (uint32_t)r, TOKENS, row_bytes / 4);
        CHECK(cudaDeviceSynchronize());
    }
}

/* Rows to move, and memory that has none of them. */
static void poison(const struct rank *rank, int32_t r, enum direction direction, int32_t row_bytes)
{
    char *written = direction == PULL ? rank->rows : rank->region + HEAD_BYTES + (int64_t)TOKENS * row_bytes;
    CHECK(cudaMemset(rank->num_bad, 0, sizeof *rank->num_bad));
    CHECK(cudaMemset(written, 0xee, (size_t)MAX_ROWS * (size_t)row_bytes));
    if (direction != PULL) {
        int64_t num_rows = direction == PUSH ? rank->owned.num_rows : rank->sent.num_rows;
        fill<<<FILL_BLOCKS, FILL_THREADS>>>((uint32_t *)rank->rows, SEED_ROWS + (uint32_t)r, num_rows, row_bytes / 4);
    }
    CHECK(cudaDeviceSynchronize());
}

unsigned long long count_bad(enum direction direction, int32_t row_bytes, int32_t num_ctas)
{
    unsigned long long all = 0, bad;
    for (int32_t r = 0; r < num_ranks; r++) {
        CHECK(cudaSetDevice(ranks[r].device));
        poison(&ranks[r], r, direction, row_bytes);
    }
    run_all(direction, row_bytes, num_ctas);
    for (int32_t r = 0; r < num_ranks; r++) {
        const struct rank *rank = &ranks[r];
        uint32_t *written = (uint32_t *)(direction == PULL ? rank->rows : rank->region + HEAD_BYTES + (int64_t)TOKENS * row_bytes);
        const struct mok_route *from = direction == PULL ? rank->owned.routes : direction == PUSH ? rank->slot_origin : rank->row_origin;
        int64_t num_rows = direction == PULL ? rank->owned.num_rows : direction == PUSH ? ROUTES : rank->num_received;
        CHECK(cudaSetDevice(rank->device));
        check<<<FILL_BLOCKS, FILL_THREADS>>>(written, from, direction == PULL ? TOP_K : 1, direction == PULL ? SEED_TOKENS : SEED_ROWS, num_rows,
                                             row_bytes / 4, rank->num_bad);
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

struct timing timing_of(float *ms)
{
    qsort(ms, RUNS, sizeof ms[0], compare_floats);
    return (struct timing){ms[0], 0.5f * (ms[RUNS / 2 - 1] + ms[RUNS / 2]), ms[RUNS - 1]};
}
