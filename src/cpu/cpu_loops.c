/*
 * See cpu_loops.h. Bodies are plain C that the compiler vectorises (this file is built with -O3); wrappers give them two targets.
 *
 * exp is made here, not taken from libm: one function for all elements, whether a loop is vectorised or is at its tail, on every machine.
 */
#include "cpu/cpu_loops.h"

#include <math.h>
#include <stddef.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE float float_of_bits(uint32_t bits)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.u = bits;
    return v.f;
}

ALWAYS_INLINE uint32_t bits_of_float(float value)
{
    union {
        float f;
        uint32_t u;
    } v;
    v.f = value;
    return v.u;
}

/* yes when condition is 1, no when it is 0. By masks, because the compiler does not vectorise what it has turned into jumps. */
ALWAYS_INLINE uint32_t select_bits(int condition, uint32_t yes, uint32_t no)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

ALWAYS_INLINE float select_float(int condition, float yes, float no)
{
    return float_of_bits(select_bits(condition, bits_of_float(yes), bits_of_float(no)));
}

/* mok_bf16_from_float. */
ALWAYS_INLINE uint32_t round_bits(float value)
{
    uint32_t bits = bits_of_float(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return select_bits((bits & 0x7fffffffu) > 0x7f800000u, quiet, rounded);
}

/*
 * e^x within 2 ulp: x = n*ln2 + r, a polynomial of degree 6 on r (coefficients of the Cephes library), times 2^n in two steps so that
 * results reach denormals and infinity. The comparisons let NaN through.
 */
ALWAYS_INLINE float exp_of(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits */
    x = select_float(x > 89.0f, 89.0f, x);
    x = select_float(x < -104.0f, -104.0f, x);
    float shifted = x * 1.44269504f + magic;
    float n = shifted - magic;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    int32_t power = (int32_t)(bits_of_float(shifted) - bits_of_float(magic));
    int32_t half = power >> 1;
    uint32_t first = ((uint32_t)half + 127u) << 23, second = ((uint32_t)power - (uint32_t)half + 127u) << 23;
    return p * float_of_bits(first) * float_of_bits(second);
}

/* What act and its derivatives share (numerics.md). NaN in g or u stays NaN. */
struct act_parts {
    float gate; /* min(g, limit) */
    float up;   /* clamp(u, -limit, limit) + up_offset */
    float sigmoid;
    float silu;
};

ALWAYS_INLINE struct act_parts act_of(float limit, float alpha, float up_offset, float g, float u)
{
    struct act_parts parts;
    float clamped = select_float(u > limit, limit, u);
    clamped = select_float(clamped < -limit, -limit, clamped);
    parts.gate = select_float(g > limit, limit, g);
    parts.up = clamped + up_offset;
    parts.sigmoid = 1.0f / (1.0f + exp_of(-(alpha * parts.gate)));
    parts.silu = parts.gate * parts.sigmoid;
    return parts;
}

ALWAYS_INLINE void widen_body(const mok_bf16 *restrict in, int64_t num, float *restrict out)
{
    for (int64_t j = 0; j < num; j++) {
        out[j] = float_of_bits((uint32_t)in[j] << 16);
    }
}

ALWAYS_INLINE void narrow_body(const float *restrict in, int64_t num, mok_bf16 *restrict out)
{
    for (int64_t j = 0; j < num; j++) {
        out[j] = (mok_bf16)round_bits(in[j]);
    }
}

ALWAYS_INLINE void act_body(const mok_activation *activation, const float *restrict gate, const float *restrict up, int64_t num,
                            mok_bf16 *restrict g_out, mok_bf16 *restrict u_out, mok_bf16 *restrict h_out)
{
    const float limit = activation->limit, alpha = activation->alpha, up_offset = activation->up_offset;
    if (g_out != NULL) {
        narrow_body(gate, num, g_out);
        narrow_body(up, num, u_out);
    }
    if (h_out != NULL) {
        for (int64_t j = 0; j < num; j++) {
            float g = float_of_bits(round_bits(gate[j]) << 16), u = float_of_bits(round_bits(up[j]) << 16);
            struct act_parts parts = act_of(limit, alpha, up_offset, g, u);
            h_out[j] = (mok_bf16)round_bits(parts.silu * parts.up);
        }
    }
}

enum { LANES = 8, BLOCK = 64 };

ALWAYS_INLINE float act_backward_body(const mok_activation *activation, float w, const float *restrict dh, const mok_bf16 *restrict g,
                                      const mok_bf16 *restrict u, int64_t num, mok_bf16 *restrict dg_out, mok_bf16 *restrict du_out,
                                      mok_bf16 *restrict wh_out)
{
    const float limit = activation->limit, alpha = activation->alpha, up_offset = activation->up_offset;
    float lane[LANES] = {0};
    float product[BLOCK];
    for (int64_t first = 0; first < num; first += BLOCK) {
        int64_t count = num - first < BLOCK ? num - first : BLOCK;
        for (int64_t i = 0; i < count; i++) {
            int64_t j = first + i;
            float gj = float_of_bits((uint32_t)g[j] << 16), uj = float_of_bits((uint32_t)u[j] << 16);
            struct act_parts parts = act_of(limit, alpha, up_offset, gj, uj);
            float h = float_of_bits(round_bits(parts.silu * parts.up) << 16);
            float slope = parts.sigmoid * (1.0f + alpha * parts.gate * (1.0f - parts.sigmoid));
            float act_g = select_float(gj > limit, 0.0f, slope * parts.up);
            float act_u = select_float(uj > limit, 0.0f, parts.silu);
            act_u = select_float(uj < -limit, 0.0f, act_u);
            float d = w * dh[j];
            product[i] = dh[j] * h;
            dg_out[j] = (mok_bf16)round_bits(d * act_g);
            du_out[j] = (mok_bf16)round_bits(d * act_u);
            wh_out[j] = (mok_bf16)round_bits(w * h);
        }
        for (int64_t i = 0; i < count; i += LANES) {
            for (int l = 0; l < LANES; l++) {
                lane[l] += product[i + l];
            }
        }
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

ALWAYS_INLINE void scale_body(float scale, const mok_bf16 *restrict in, int64_t num, float *restrict sum)
{
    for (int64_t j = 0; j < num; j++) {
        sum[j] = scale * float_of_bits((uint32_t)in[j] << 16);
    }
}

ALWAYS_INLINE void fma_body(float weight, const mok_bf16 *restrict in, int64_t num, float *restrict sum)
{
    for (int64_t j = 0; j < num; j++) {
        sum[j] = fmaf(weight, float_of_bits((uint32_t)in[j] << 16), sum[j]);
    }
}

ALWAYS_INLINE void add_body(const mok_bf16 *restrict in, int64_t num, float *restrict sum)
{
    for (int64_t j = 0; j < num; j++) {
        sum[j] += float_of_bits((uint32_t)in[j] << 16);
    }
}

/* One set of functions with a suffix and a target, and the table of them. */
#define DEFINE_LOOPS(suffix, target)                                                                                                       \
    target static void widen_##suffix(const mok_bf16 *in, int64_t num, float *out) { widen_body(in, num, out); }                           \
    target static void narrow_##suffix(const float *in, int64_t num, mok_bf16 *out) { narrow_body(in, num, out); }                         \
    target static void act_##suffix(const mok_activation *activation, const float *gate, const float *up, int64_t num, mok_bf16 *g_out,    \
                                    mok_bf16 *u_out, mok_bf16 *h_out)                                                                      \
    {                                                                                                                                      \
        act_body(activation, gate, up, num, g_out, u_out, h_out);                                                                          \
    }                                                                                                                                      \
    target static float act_backward_##suffix(const mok_activation *activation, float w, const float *dh, const mok_bf16 *g,               \
                                              const mok_bf16 *u, int64_t num, mok_bf16 *dg_out, mok_bf16 *du_out, mok_bf16 *wh_out)        \
    {                                                                                                                                      \
        return act_backward_body(activation, w, dh, g, u, num, dg_out, du_out, wh_out);                                                    \
    }                                                                                                                                      \
    target static void scale_##suffix(float scale, const mok_bf16 *in, int64_t num, float *sum) { scale_body(scale, in, num, sum); }       \
    target static void fma_##suffix(float weight, const mok_bf16 *in, int64_t num, float *sum) { fma_body(weight, in, num, sum); }         \
    target static void add_##suffix(const mok_bf16 *in, int64_t num, float *sum) { add_body(in, num, sum); }                               \
    const struct mok_cpu_loops mok_cpu_loops_##suffix = {widen_##suffix, narrow_##suffix, act_##suffix, act_backward_##suffix,             \
                                                         scale_##suffix, fma_##suffix,    add_##suffix};

DEFINE_LOOPS(plain, )

#if defined(__x86_64__)
extern const struct mok_cpu_loops mok_cpu_loops_avx2;
DEFINE_LOOPS(avx2, __attribute__((target("avx2,fma"))))

const struct mok_cpu_loops *mok_cpu_loops_find(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &mok_cpu_loops_avx2 : &mok_cpu_loops_plain;
}
#else
const struct mok_cpu_loops *mok_cpu_loops_find(void) { return &mok_cpu_loops_plain; }
#endif
