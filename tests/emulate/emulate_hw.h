/*
 * The functions of src/cuda/hw and the words of CUDA that the kernels use, on the emulated machine. Included before a kernel's source: the
 * guards of the real files are taken, so that they bring nothing.
 */
#ifndef MOK_EMULATE_HW_H
#define MOK_EMULATE_HW_H

#define MOK_CUDA_HW_ADDRESS_CUH
#define MOK_CUDA_HW_BULK_CUH
#define MOK_CUDA_HW_CLUSTER_CUH
#define MOK_CUDA_HW_COUNTER_CUH
#define MOK_CUDA_HW_MATH_CUH
#define MOK_CUDA_HW_MATRIX_CUH
#define MOK_CUDA_HW_MBARRIER_CUH
#define MOK_CUDA_HW_SCOPE_CUH
#define MOK_CUDA_HW_SYNC_CUH
#define MOK_CUDA_HW_TMA_CUH
#define MOK_CUDA_HW_WGMMA_CUH

#include <math.h>
#include <string.h>

#include <algorithm>

#include "emulate.h"

/* ---- CUDA ------------------------------------------------------------------------------------------------------------------- */

#define MOK_DEVICE static inline
#define __global__
#define __shared__
#define __align__(bytes)
#define __launch_bounds__(...)
#define __grid_constant__

struct uint4 {
    uint32_t x, y, z, w;
};

struct emulate_thread_idx {
    struct {
        operator uint32_t() const { return emulate_thread(); }
    } x;
};

struct emulate_block_idx {
    struct {
        operator uint32_t() const { return emulate_block(); }
    } x;
};

struct emulate_grid_dim {
    struct {
        operator uint32_t() const { return emulate_grid(); }
    } x;
};

struct emulate_block_dim {
    struct {
        operator uint32_t() const { return EMULATE_THREADS; }
    } x;
};

static const struct emulate_thread_idx threadIdx;
static const struct emulate_block_idx blockIdx;
static const struct emulate_grid_dim gridDim;
static const struct emulate_block_dim blockDim;

using std::max;
using std::min;

static inline void __syncwarp(void) { emulate_sync_warp(); }
static inline void __syncthreads(void) { emulate_sync_cta(); }
static inline int __syncthreads_and(int value) { return emulate_sync_cta_and(value); }

template <typename T> static inline T __shfl_sync(uint32_t, T value, int lane)
{
    uint64_t slots[32], bits = 0;
    memcpy(&bits, &value, sizeof value);
    emulate_gather(bits, slots);
    memcpy(&value, &slots[lane], sizeof value);
    return value;
}

static inline float __shfl_xor_sync(uint32_t mask, float value, int bits)
{
    uint64_t slots[32], own = 0;
    (void)mask;
    memcpy(&own, &value, sizeof value);
    emulate_gather(own, slots);
    memcpy(&value, &slots[(emulate_thread() % 32) ^ (unsigned)bits], sizeof value);
    return value;
}

static inline uint32_t __ballot_sync(uint32_t, int value)
{
    uint64_t slots[32];
    uint32_t mask = 0;
    emulate_gather(value != 0, slots);
    for (int lane = 0; lane < 32; lane++) {
        mask |= (uint32_t)slots[lane] << lane;
    }
    return mask;
}

static inline int __ffs(int word) { return __builtin_ffs(word); }
static inline int __popc(uint32_t word) { return __builtin_popcount(word); }
static inline int __all_sync(uint32_t mask, int value) { return __ballot_sync(mask, value) == mask; }

static inline uint32_t __reduce_add_sync(uint32_t, uint32_t value)
{
    uint64_t slots[32];
    uint32_t sum = 0;
    emulate_gather(value, slots);
    for (int lane = 0; lane < 32; lane++) {
        sum += (uint32_t)slots[lane];
    }
    return sum;
}

static inline uint32_t atomicCAS(uint32_t *word, uint32_t expected, uint32_t value)
{
    uint32_t before = *word;
    *word = before == expected ? value : before;
    return before;
}

static inline float __uint_as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t __float_as_uint(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }

/* ---- address, math, matrix, sync ----------------------------------------------------------------------------------------------- */

MOK_DEVICE uint32_t mok_hw_shared_address(const void *pointer) { return emulate_address(pointer); }
MOK_DEVICE uint32_t mok_hw_cluster_cta(void) { return emulate_cluster_rank(); }
MOK_DEVICE uint64_t mok_hw_time_ns(void) { return emulate_ticks(); }
MOK_DEVICE float mok_hw_min_nan(float a, float b) { return a != a ? a : b != b ? b : a < b ? a : b; }
MOK_DEVICE float mok_hw_max_nan(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }
MOK_DEVICE float mok_hw_exp2(float x) { return exp2f(x); }
MOK_DEVICE float mok_hw_reciprocal(float x) { return 1.0f / x; }

MOK_DEVICE uint32_t mok_hw_pack_bf16(float low, float high)
{
    float values[2] = {low, high};
    uint32_t packed = 0;
    for (int i = 0; i < 2; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        packed |= (values[i] != values[i] ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16) << 16 * i;
    }
    return packed;
}

MOK_DEVICE void mok_hw_store_matrix_x4(uint32_t address, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3)
{
    const uint32_t matrix[4] = {m0, m1, m2, m3};
    uint32_t lane = emulate_thread() % 32;
    uint64_t slots[32];
    emulate_gather(address, slots);
    for (uint32_t i = 0; i < 4; i++) {
        memcpy(emulate_at((uint32_t)slots[8 * i + lane / 4] + lane % 4 * 4), &matrix[i], 4);
    }
}

MOK_DEVICE void mok_hw_load_matrix_x4(uint32_t address, uint32_t *m0, uint32_t *m1, uint32_t *m2, uint32_t *m3)
{
    uint32_t *const matrix[4] = {m0, m1, m2, m3};
    uint32_t lane = emulate_thread() % 32;
    uint64_t slots[32];
    emulate_gather(address, slots);
    for (uint32_t i = 0; i < 4; i++) {
        memcpy(matrix[i], emulate_at((uint32_t)slots[8 * i + lane / 4] + lane % 4 * 4), 4);
    }
}

MOK_DEVICE void mok_hw_load_shared_v2(uint32_t address, float *a, float *b)
{
    memcpy(a, emulate_at(address), 4);
    memcpy(b, emulate_at(address) + 4, 4);
}

MOK_DEVICE void mok_hw_store_shared_v2(uint32_t address, float a, float b)
{
    memcpy(emulate_at(address), &a, 4);
    memcpy(emulate_at(address) + 4, &b, 4);
}

/* Never lane 0, which speaks for its warp everywhere else: who asks only lane 0 whether an elected lane's stores have been read is found out. */
MOK_DEVICE uint32_t mok_hw_elect(void)
{
    emulate_sync_warp();
    return emulate_thread() % 32 == 31;
}

MOK_DEVICE void mok_hw_cluster_arrive(void) { emulate_cluster_arrive(); }
MOK_DEVICE void mok_hw_cluster_wait(void) { emulate_cluster_wait(); }
MOK_DEVICE void mok_hw_fence_async_shared_cta(void) {}
MOK_DEVICE void mok_hw_raise_device_error(void) { emulate_fail("a wait inside the CTA or cluster ran out of time"); }
#define MOK_HW_REGISTERS_UP(count) ((void)(count))
#define MOK_HW_REGISTERS_DOWN(count) ((void)(count))

/* ---- barriers, cluster --------------------------------------------------------------------------------------------------------- */

MOK_DEVICE void mok_hw_mbarrier_init(uint64_t *bar, uint32_t arrivals) { emulate_barrier_init(emulate_address(bar), arrivals); }
MOK_DEVICE void mok_hw_fence_mbarrier_init_cluster(void) {}
MOK_DEVICE void mok_hw_mbarrier_arrive_cta(uint64_t *bar) { emulate_barrier_arrive(emulate_address(bar), 0); }
MOK_DEVICE void mok_hw_mbarrier_arrive_expect_cta(uint64_t *bar, uint32_t bytes) { emulate_barrier_arrive(emulate_address(bar), bytes); }
MOK_DEVICE uint32_t mok_hw_cluster_address(const void *pointer, uint32_t cta) { return (emulate_address(pointer) & 0xffffff) | cta << 24; }
MOK_DEVICE void mok_hw_mbarrier_arrive_cluster(uint64_t *bar, uint32_t cta) { emulate_barrier_arrive(mok_hw_cluster_address(bar, cta), 0); }
MOK_DEVICE void mok_hw_mbarrier_arrive_release_cluster(uint32_t bar) { emulate_barrier_arrive(bar, 0); }
MOK_DEVICE void mok_hw_mbarrier_arrive_relaxed_cluster(uint32_t bar) { emulate_barrier_arrive(bar, 0); }

MOK_DEVICE uint32_t mok_hw_mbarrier_try_wait_cta(uint64_t *bar, uint32_t parity)
{
    return (uint32_t)emulate_barrier_try_wait(emulate_address(bar), parity);
}

MOK_DEVICE uint32_t mok_hw_mbarrier_test_wait_cta(uint64_t *bar, uint32_t parity)
{
    return (uint32_t)emulate_barrier_passed(emulate_address(bar), parity);
}

MOK_DEVICE uint32_t mok_hw_mbarrier_try_wait_acquire_cluster(uint64_t *bar, uint32_t parity)
{
    return (uint32_t)emulate_barrier_try_wait(emulate_address(bar), parity);
}

MOK_DEVICE void mok_hw_cluster_store(uint32_t address, uint32_t value)
{
    emulate_yield();
    memcpy(emulate_at(address), &value, sizeof value);
}

/* ---- words of global memory ----------------------------------------------------------------------------------------------------- */

MOK_DEVICE uint32_t mok_hw_load_acquire_gpu(const uint32_t *word)
{
    emulate_yield();
    return *word;
}

MOK_DEVICE uint32_t mok_hw_take_relaxed_gpu(uint32_t *word, uint32_t value)
{
    uint32_t before = *word;
    *word += value;
    emulate_yield();
    return before;
}

MOK_DEVICE uint32_t mok_hw_count_acq_rel_cta(uint32_t *word, uint32_t last)
{
    uint32_t before = *word;
    *word = before >= last ? 0 : before + 1;
    return before;
}

MOK_DEVICE uint32_t mok_hw_load_relaxed_gpu(const uint32_t *word) { return *word; }
MOK_DEVICE void mok_hw_add_release_gpu(uint32_t *word, uint32_t value) { *word += emulate_loses_count(word) ? 0 : value; }
MOK_DEVICE void mok_hw_add_relaxed_gpu(uint32_t *word, uint32_t value) { *word += value; }

/* Peers go on between two looks at their words. */
MOK_DEVICE uint32_t mok_hw_load_acquire_sys(const uint32_t *word)
{
    emulate_yield();
    return *word;
}

MOK_DEVICE uint32_t mok_hw_load_relaxed_sys(const uint32_t *word)
{
    emulate_yield();
    return *word;
}

MOK_DEVICE uint64_t mok_hw_load_relaxed_sys_u64(const uint64_t *word) { return *word; }
MOK_DEVICE void mok_hw_store_relaxed_sys_u64(uint64_t *word, uint64_t value) { *word = value; }
MOK_DEVICE void mok_hw_store_release_sys(uint32_t *word, uint32_t value) { *word = value; }
MOK_DEVICE void mok_hw_store_relaxed_sys(uint32_t *word, uint32_t value) { *word = value; }
MOK_DEVICE void mok_hw_fence_cluster(void) {}
MOK_DEVICE void mok_hw_fence_gpu(void) {}
MOK_DEVICE void mok_hw_fence_sys(void) {}
MOK_DEVICE void mok_hw_fence_async(void) {}
MOK_DEVICE void mok_hw_nap(uint32_t) { emulate_yield(); }

/* ---- copies ------------------------------------------------------------------------------------------------------------------- */

MOK_DEVICE void mok_hw_tma_load_2d(void *to, const void *map, uint64_t *bar, int32_t c0, int32_t c1)
{
    emulate_load_box(emulate_address(to), map, emulate_address(bar), 1u << emulate_cluster_rank(), c0, c1, 0);
}

MOK_DEVICE void mok_hw_tma_load_3d(void *to, const void *map, uint64_t *bar, int32_t c0, int32_t c1, int32_t c2)
{
    emulate_load_box(emulate_address(to), map, emulate_address(bar), 1u << emulate_cluster_rank(), c0, c1, c2);
}

MOK_DEVICE void mok_hw_tma_load_3d_cluster(void *to, const void *map, uint64_t *bar, uint16_t ctas, int32_t c0, int32_t c1, int32_t c2)
{
    emulate_load_box(emulate_address(to), map, emulate_address(bar), ctas, c0, c1, c2);
}

MOK_DEVICE void mok_hw_tma_load_2d_cluster(void *to, const void *map, uint64_t *bar, uint16_t ctas, int32_t c0, int32_t c1)
{
    emulate_load_box(emulate_address(to), map, emulate_address(bar), ctas, c0, c1, 0);
}

MOK_DEVICE void mok_hw_tma_store_2d(const void *map, const void *from, int32_t c0, int32_t c1)
{
    emulate_store_box(map, emulate_address(from), c0, c1, 0);
}

MOK_DEVICE void mok_hw_tma_store_3d(const void *map, const void *from, int32_t c0, int32_t c1, int32_t c2)
{
    emulate_store_box(map, emulate_address(from), c0, c1, c2);
}

MOK_DEVICE void mok_hw_bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *bar)
{
    emulate_load_bytes(emulate_address(to), from, bytes, emulate_address(bar));
}

MOK_DEVICE void mok_hw_bulk_store(void *to, const void *from, uint32_t bytes) { emulate_store_bytes(to, emulate_address(from), bytes); }
MOK_DEVICE void mok_hw_bulk_commit(void) { emulate_commit(); }
MOK_DEVICE void mok_hw_bulk_wait_read_0(void) { emulate_wait_groups(0, 1); }
MOK_DEVICE void mok_hw_bulk_wait_read_1(void) { emulate_wait_groups(1, 1); }
MOK_DEVICE void mok_hw_bulk_wait_0(void) { emulate_wait_groups(0, 0); }

/* ---- products ------------------------------------------------------------------------------------------------------------------ */

enum { MOK_HW_K_MAJOR = 0, MOK_HW_MN_MAJOR = 1, MOK_HW_K_MAJOR_STEP = 32 / 16, MOK_HW_MN_MAJOR_STEP = 2048 / 16 };

MOK_DEVICE uint64_t mok_hw_wgmma_operand(const void *block) { return (emulate_address(block) & 0x3ffff) >> 4; }
MOK_DEVICE void mok_hw_wgmma_fence(void) {}
MOK_DEVICE void mok_hw_wgmma_commit(void) { emulate_multiply_commit(); }
MOK_DEVICE void mok_hw_wgmma_wait_1(void) { emulate_multiply_wait(1); }
MOK_DEVICE void mok_hw_wgmma_wait_0(void) { emulate_multiply_wait(0); }
MOK_DEVICE void mok_hw_wgmma_hold(float *) {}
MOK_DEVICE void mok_hw_wgmma_k_k(float *acc, uint64_t a, uint64_t b) { emulate_multiply(acc, a, b, 0, 0, 0); }
MOK_DEVICE void mok_hw_wgmma_first_k_k(float *acc, uint64_t a, uint64_t b) { emulate_multiply(acc, a, b, 0, 0, 1); }
MOK_DEVICE void mok_hw_wgmma_k_mn(float *acc, uint64_t a, uint64_t b) { emulate_multiply(acc, a, b, 0, 1, 0); }
MOK_DEVICE void mok_hw_wgmma_first_k_mn(float *acc, uint64_t a, uint64_t b) { emulate_multiply(acc, a, b, 0, 1, 1); }
MOK_DEVICE void mok_hw_wgmma_mn_mn(float *acc, uint64_t a, uint64_t b) { emulate_multiply(acc, a, b, 1, 1, 0); }

#endif
