/*
 * See gpu_handoff.h. A cluster of two CTAs; warp 0 of one writes 32 words, warp 1 of CTA `across` reads them, again and again, through two barriers:
 *   full    in the reader's CTA, the words are written
 *   empty   in the writer's CTA, they are read
 */
#include "gpu_handoff.h"

#include "cuda/hw/cluster.cuh"
#include "cuda/hw/matrix.cuh"
#include "cuda/hw/mbarrier.cuh"
#include "cuda/hw/sync.cuh"

enum { LANES = 32, THREADS = 2 * LANES, ROW_WORDS = 4 /* of a matrix; the first of a row is handed on */ };

struct shared {
    uint32_t words[LANES * ROW_WORDS];
    uint64_t full, empty;
};

static __device__ __forceinline__ int speaks(const struct gpu_handoff *how) { return how->each_lane || threadIdx.x % LANES == 0; }

static __device__ __forceinline__ void wait_for(uint64_t *bar, uint32_t parity)
{
    while (!mok_hw_mbarrier_try_wait_acquire_cluster(bar, parity)) {
    }
}

static __device__ void write_words(const struct gpu_handoff *how, struct shared *shared)
{
    uint32_t *row = &shared->words[threadIdx.x * ROW_WORDS], to = mok_hw_cluster_address(row, (uint32_t)how->across);
    for (int32_t round = 0; round < how->rounds; round++) {
        if (speaks(how)) {
            wait_for(&shared->empty, (uint32_t)~round & 1);
        }
        __syncwarp();
        if (how->matrix) {
            uint32_t first = (uint32_t)round + threadIdx.x / 4;
            mok_hw_store_matrix_x4(mok_hw_shared_address(row), first, first + 8, first + 16, first + 24);
        } else {
            mok_hw_cluster_store(to, (uint32_t)round + threadIdx.x);
        }
        __syncwarp();
        if (speaks(how)) {
            mok_hw_mbarrier_arrive_release_cluster(mok_hw_cluster_address(&shared->full, (uint32_t)how->across));
        }
    }
}

/* The words that this lane has read, added up. */
static __device__ uint32_t read_words(const struct gpu_handoff *how, struct shared *shared)
{
    uint32_t sum = 0, lane = threadIdx.x % LANES;
    for (int32_t round = 0; round < how->rounds; round++) {
        if (speaks(how)) {
            wait_for(&shared->full, (uint32_t)round & 1);
        }
        __syncwarp();
        if (how->early && speaks(how)) {
            mok_hw_mbarrier_arrive_release_cluster(mok_hw_cluster_address(&shared->empty, 0));
        }
        sum += *(volatile uint32_t *)&shared->words[(lane + 1) % LANES * ROW_WORDS];
        __syncwarp();
        if (!how->early && speaks(how)) {
            mok_hw_mbarrier_arrive_release_cluster(mok_hw_cluster_address(&shared->empty, 0));
        }
    }
    return sum;
}

extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(THREADS) hand_off(struct gpu_handoff how, uint32_t *sum)
{
    __shared__ __align__(16) struct shared shared;
    if (threadIdx.x == 0) {
        mok_hw_mbarrier_init(&shared.full, how.each_lane ? LANES : 1);
        mok_hw_mbarrier_init(&shared.empty, how.each_lane ? LANES : 1);
        mok_hw_fence_mbarrier_init_cluster();
    }
    __syncthreads();
    mok_hw_cluster_arrive();
    mok_hw_cluster_wait();
    if (threadIdx.x < LANES && blockIdx.x == 0) {
        write_words(&how, &shared);
    } else if (threadIdx.x >= LANES && (int32_t)blockIdx.x == how.across) {
        atomicAdd(sum, read_words(&how, &shared));
    }
    __syncwarp();
    mok_hw_cluster_arrive();
    mok_hw_cluster_wait();
}

int gpu_run_handoff(const struct gpu_handoff *how, uint32_t *sum_out)
{
    uint32_t *sum = NULL;
    int error = (int)cudaMalloc((void **)&sum, sizeof *sum);
    error = error ? error : (int)cudaMemset(sum, 0, sizeof *sum);
    if (!error) {
        hand_off<<<2, THREADS>>>(*how, sum);
        error = (int)cudaGetLastError();
    }
    error = error ? error : (int)cudaMemcpy(sum_out, sum, sizeof *sum, cudaMemcpyDeviceToHost);
    cudaFree(sum);
    return error;
}
