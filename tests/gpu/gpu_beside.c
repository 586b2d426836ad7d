/*
 * Other work on the GPU while the library's passes run: kernels that hold SMs, and NCCL's kernels, which wait for their peers as ours do. Every call
 * is compared with the outputs that the staged path gave alone.
 *
 *   held    60 SMs of every GPU, or of one alone, are taken by a kernel that spins until the passes are done
 *   nccl    one rank, another in each round, launches NCCL first and the library second, the others the reverse, on two streams (cases.md, K7)
 *
 * With more than two GPUs also a rank on each.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_pool.h"
#include "gpu_slow.h"

#ifdef MOK_HAVE_NCCL
#include <nccl.h>
#endif

enum { HELD_SMS = 60, NUM_CALLS = 12, NUM_ROUNDS = 20, LIMIT_MS = 4000, NUM_WORDS = 4 << 20 /* of an all-gather, a rank */ };

static const uint64_t hold_limit_ns = 30000000000u; /* longer than every deadline of the group */

struct plan {
    struct gpu_pool pools[GPU_RUN_RANKS]; /* made by the first run, the staged one */
    int is_first;
    int32_t held_devices; /* SMs are held on devices below this one */
    void (*calls)(struct gpu_run *run, struct plan *plan, struct gpu_layer *layer);
};

static void call(struct gpu_run *run, struct plan *plan, struct gpu_layer *layer, int32_t set)
{
    gpu_pool_load(&plan->pools[layer->rank], layer, set);
    gpu_run_note(run, layer->rank, gpu_layer_enqueue(layer));
    gpu_pool_compare(&plan->pools[layer->rank], layer, set);
}

static void finish(struct gpu_run *run, struct plan *plan, struct gpu_layer *layer)
{
    uint32_t num = 0;
    gpu_run_note(run, layer->rank, gpu_pool_wait(&plan->pools[layer->rank], layer, &num));
    run->num_wrong[layer->rank] += num;
}

static void work(struct gpu_run *run, struct gpu_layer *layer)
{
    struct plan *plan = (struct plan *)(uintptr_t)run->context;
    if (plan->is_first) {
        gpu_run_note(run, layer->rank, gpu_pool_open(&plan->pools[layer->rank], layer, 1));
    }
    gpu_pool_forget(&plan->pools[layer->rank], layer);
    gpu_meet();
    plan->calls(run, plan, layer);
    gpu_meet();
}

static void free_pool(struct gpu_run *run, struct gpu_layer *layer)
{
    struct plan *plan = (struct plan *)(uintptr_t)run->context;
    gpu_pool_close(&plan->pools[layer->rank]);
}

/* ---- held SMs --------------------------------------------------------------------------------------------------------------- */

/* The kernel that holds SMs of a device, from the device's first rank. */
struct holder {
    cudaStream_t stream;
    volatile uint32_t *words;
};

static int hold(struct holder *holder)
{
    uint32_t *device_words = NULL;
    int ok = cudaHostAlloc((void **)(uintptr_t)&holder->words, 2 * sizeof(uint32_t), cudaHostAllocMapped) == cudaSuccess;
    if (!ok) {
        return 0;
    }
    holder->words[0] = holder->words[1] = 0;
    ok = cudaHostGetDevicePointer((void **)&device_words, (void *)(uintptr_t)holder->words, 0) == cudaSuccess &&
         cudaStreamCreateWithFlags(&holder->stream, cudaStreamNonBlocking) == cudaSuccess &&
         gpu_hold(holder->stream, HELD_SMS, device_words, hold_limit_ns) == (int)cudaSuccess;
    for (int turn = 0; ok && holder->words[0] < HELD_SMS && turn < 10000; turn++) {
        usleep(1000);
    }
    return ok && holder->words[0] == HELD_SMS;
}

/* 1 = the SMs were held all the time. */
static int let_go(struct holder *holder)
{
    int was_held = cudaStreamQuery(holder->stream) == cudaErrorNotReady;
    (void)cudaGetLastError();
    holder->words[1] = 1;
    cudaStreamSynchronize(holder->stream);
    cudaStreamDestroy(holder->stream);
    cudaFreeHost((void *)(uintptr_t)holder->words);
    return was_held;
}

static void calls_beside_holder(struct gpu_run *run, struct plan *plan, struct gpu_layer *layer)
{
    struct holder holder = {NULL, NULL};
    int device = layer->rank % run->num_devices, holds = layer->rank < run->num_devices && device < plan->held_devices;
    if (holds && !hold(&holder)) {
        run->num_wrong[layer->rank] += !gpu_check(0, "rank %d: %d SMs cannot be held", layer->rank, HELD_SMS);
    }
    gpu_meet();
    for (int32_t i = 0; i < NUM_CALLS; i++) {
        call(run, plan, layer, i % GPU_POOL_SETS);
    }
    finish(run, plan, layer);
    gpu_meet();
    if (holds && !let_go(&holder)) {
        run->num_wrong[layer->rank] += !gpu_check(0, "rank %d: the SMs came free before the passes ended", layer->rank);
    }
}

/* ---- NCCL ------------------------------------------------------------------------------------------------------------------- */

#ifdef MOK_HAVE_NCCL
static ncclUniqueId nccl_id;

static int gather(ncclComm_t comm, float *words, int32_t num_ranks, cudaStream_t stream)
{
    return ncclAllGather(words, words + NUM_WORDS, NUM_WORDS, ncclFloat, comm, stream) == ncclSuccess && num_ranks > 0;
}

static void calls_beside_nccl(struct gpu_run *run, struct plan *plan, struct gpu_layer *layer)
{
    ncclComm_t comm = NULL;
    cudaStream_t stream = NULL;
    float *words = NULL;
    int ok = ncclCommInitRank(&comm, run->num_ranks, nccl_id, layer->rank) == ncclSuccess &&
             cudaMalloc((void **)&words, (size_t)(1 + run->num_ranks) * NUM_WORDS * sizeof *words) == cudaSuccess &&
             cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess && gather(comm, words, run->num_ranks, stream) &&
             cudaStreamSynchronize(stream) == cudaSuccess; /* NCCL loads and connects with its first call */
    gpu_meet();
    for (int32_t i = 0; i < NUM_ROUNDS && ok; i++) {
        int nccl_first = layer->rank == i % run->num_ranks;
        ok = !nccl_first || gather(comm, words, run->num_ranks, stream);
        call(run, plan, layer, i % GPU_POOL_SETS);
        ok = ok && (nccl_first || gather(comm, words, run->num_ranks, stream));
    }
    finish(run, plan, layer);
    ok = ok && cudaStreamSynchronize(stream) == cudaSuccess;
    run->num_wrong[layer->rank] += !ok && !gpu_check(0, "rank %d: NCCL: %s", layer->rank, ncclGetLastError(comm));
    gpu_meet();
    cudaStreamDestroy(stream);
    cudaFree(words);
    ncclCommDestroy(comm);
}
#endif

/* ---- all -------------------------------------------------------------------------------------------------------------------- */

static void try_beside(int32_t num_ranks, int32_t num_devices, int32_t held_devices, const char *name,
                       void (*calls)(struct gpu_run *, struct plan *, struct gpu_layer *))
{
    static const int32_t paths[] = {MOK_PATH_STAGED, MOK_PATH_FUSED};
    static struct plan plan;
    memset(&plan, 0, sizeof plan);
    plan.held_devices = held_devices;
    plan.calls = calls;
    for (size_t p = 0; p < sizeof paths / sizeof paths[0] && (p == 0 || plan.pools[0].expected != NULL); p++) {
        struct gpu_run run = {.num_ranks = num_ranks, .path = paths[p], .num_devices = num_devices, .local_timeout_ms = LIMIT_MS, .work = work, .context = &plan};
        plan.is_first = p == 0;
#ifdef MOK_HAVE_NCCL
        if (calls == calls_beside_nccl) {
            ncclGetUniqueId(&nccl_id);
        }
#endif
        gpu_check(gpu_run_all(&run), "%s, %d ranks on %d GPUs beside %s: every bit", paths[p] == MOK_PATH_STAGED ? "staged" : "fused", num_ranks,
                  num_devices, name);
    }
    struct gpu_run last = {.num_ranks = num_ranks, .num_devices = num_devices, .work = free_pool, .context = &plan};
    gpu_check(gpu_run_all(&last), "%d ranks leave", num_ranks);
}

int main(void)
{
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0); /* as peer nccl sets it */
    int32_t num_devices = gpu_count(), num_ranks = num_devices < GPU_RUN_RANKS ? num_devices : GPU_RUN_RANKS;
    if (num_devices == 0) {
        gpu_skip("beside other kernels: no GPU");
        return gpu_finish();
    }
    try_beside(1, 1, 1, "60 held SMs", calls_beside_holder);
    try_beside(2, 1, 1, "60 held SMs", calls_beside_holder);
    if (num_devices > 1) {
        try_beside(2, 2, 2, "60 held SMs of each", calls_beside_holder);
        try_beside(4, 2, 1, "60 held SMs of one", calls_beside_holder);
        if (num_devices > 2) {
            try_beside(num_ranks, num_ranks, num_ranks, "60 held SMs of each", calls_beside_holder);
            try_beside(num_ranks, num_ranks, 1, "60 held SMs of one", calls_beside_holder);
        }
#ifdef MOK_HAVE_NCCL
        try_beside(num_ranks, num_ranks, 0, "NCCL in another order on each", calls_beside_nccl);
#else
        gpu_skip("beside NCCL: this build has no NCCL");
#endif
    } else {
        gpu_skip("held SMs of one GPU of two, NCCL in another order on each: one GPU");
    }
    return gpu_finish();
}
