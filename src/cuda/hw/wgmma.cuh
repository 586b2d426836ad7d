/*
 * Matrix multiply of a warpgroup (wgmma, sm_90a): 64 x 256 += (64 x 16) * (16 x 256), bf16 operands in shared memory, fp32 accumulators in
 * registers.
 *
 * Accumulator. Thread t of the warpgroup, warp v = t / 32, lane l = t % 32: acc[4j + i] is the element of row 16v + l/4 + 8*(i/2), column
 * 8j + 2*(l%4) + i%2.
 *
 * Operands lie in shared memory as TMA writes them with 128-byte swizzle, in blocks that start at multiples of 1024 bytes:
 *   K-major    rows of 64 k values (128 bytes); 8 rows make 1024 bytes. One step of 16 k advances the address by 32 bytes.
 *   MN-major   blocks of 64 m or n values (128 bytes) by 64 k; the next 64 m or n are 8192 bytes on. One step of 16 k advances by 2048
 *              bytes.
 */
#ifndef MOK_CUDA_HW_WGMMA_CUH
#define MOK_CUDA_HW_WGMMA_CUH

#include "cuda/hw/address.cuh"

enum {
    MOK_HW_K_MAJOR = 0,
    MOK_HW_MN_MAJOR = 1,
    /* Steps of 16 k, in the units of a descriptor's address (16 bytes). */
    MOK_HW_K_MAJOR_STEP = 32 / 16,
    MOK_HW_MN_MAJOR_STEP = 2048 / 16
};

/* Descriptor of an operand block: address, stride between 64-wide blocks (MN-major) and between groups of 8 rows; swizzle 128 bytes. */
MOK_DEVICE uint64_t mok_hw_wgmma_operand(const void *block)
{
    const uint64_t swizzle_128 = (uint64_t)1 << 62;
    const uint64_t block_stride = (uint64_t)(8192 / 16) << 16;
    const uint64_t group_stride = (uint64_t)(1024 / 16) << 32;
    return swizzle_128 | group_stride | block_stride | ((mok_hw_shared_address(block) & 0x3ffff) >> 4);
}

/* Before the first wgmma, and whenever other instructions wrote the accumulators. */
MOK_DEVICE void mok_hw_wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MOK_DEVICE void mok_hw_wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Until at most one, or none, of the committed groups is still running. */
MOK_DEVICE void mok_hw_wgmma_wait_1(void) { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
MOK_DEVICE void mok_hw_wgmma_wait_0(void) { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

/* No instruction: keeps the compiler from moving uses of the accumulators across this point. */
MOK_DEVICE void mok_hw_wgmma_hold(float *acc)
{
#pragma unroll
    for (int i = 0; i < 128; i++) {
        asm volatile("" : "+f"(acc[i])::"memory");
    }
}

#define MOK_HW_ACC4(io, i) io(acc[i]), io(acc[(i) + 1]), io(acc[(i) + 2]), io(acc[(i) + 3])
#define MOK_HW_ACC16(io, i) MOK_HW_ACC4(io, i), MOK_HW_ACC4(io, (i) + 4), MOK_HW_ACC4(io, (i) + 8), MOK_HW_ACC4(io, (i) + 12)
#define MOK_HW_ACC64(io, i) MOK_HW_ACC16(io, i), MOK_HW_ACC16(io, (i) + 16), MOK_HW_ACC16(io, (i) + 32), MOK_HW_ACC16(io, (i) + 48)

/* io: "+f" for acc += A B; "=f" with accumulate 0 for acc = A B, where the old values must not count as used, or they would hold 128
 * registers from tile to tile. */
#define MOK_HW_DEFINE_WGMMA(name, io, accumulate, a_major, b_major)                                                                        \
    MOK_DEVICE void name(float *acc, uint64_t a, uint64_t b)                                                                               \
    {                                                                                                                                      \
        asm volatile("{\n"                                                                                                                 \
                     ".reg .pred p;\n"                                                                                                     \
                     "setp.ne.b32 p, " #accumulate ", 0;\n"                                                                                \
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"                                                             \
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                              \
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                                    \
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                                    \
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                                    \
                     "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                                    \
                     "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                                    \
                     "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "                        \
                     "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "                   \
                     "%128, %129, p, 1, 1, " #a_major ", " #b_major ";\n"                                                                  \
                     "}"                                                                                                                   \
                     : MOK_HW_ACC64(io, 0), MOK_HW_ACC64(io, 64)                                                                           \
                     : "l"(a), "l"(b));                                                                                                    \
    }

#define MOK_HW_IN_OUT "+f"
#define MOK_HW_OUT "=f"
MOK_HW_DEFINE_WGMMA(mok_hw_wgmma_k_k, MOK_HW_IN_OUT, 1, 0, 0)         /* acc += A B; A K-major, B K-major */
MOK_HW_DEFINE_WGMMA(mok_hw_wgmma_first_k_k, MOK_HW_OUT, 0, 0, 0)      /* acc  = A B */
MOK_HW_DEFINE_WGMMA(mok_hw_wgmma_k_mn, MOK_HW_IN_OUT, 1, 0, 1)        /* A K-major, B MN-major */
MOK_HW_DEFINE_WGMMA(mok_hw_wgmma_first_k_mn, MOK_HW_OUT, 0, 0, 1)
MOK_HW_DEFINE_WGMMA(mok_hw_wgmma_mn_mn, MOK_HW_IN_OUT, 1, 1, 1)       /* both MN-major */

#endif
