/*
 * Problems of the ladder: tables, weights and rows on the device, filled with normal random data; outputs poisoned with NaN patterns.
 */
#include <math.h>
#include <string.h>

#include "ladder.h"

static __device__ uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static __device__ float normal(uint64_t seed, int64_t idx)
{
    uint64_t bits = mix(mix(seed) ^ (uint64_t)idx);
    float a = ((uint32_t)(bits >> 40) + 1) * (1.0f / 16777217.0f);
    float b = (uint32_t)(bits & 0xffffff) * (1.0f / 16777216.0f);
    return sqrtf(-2.0f * logf(a)) * cospif(2.0f * b);
}

static __global__ void fill_bf16_kernel(uint16_t *to, int64_t count, float scale, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t bits = __float_as_uint(scale * normal(seed, i));
        to[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
}

static __global__ void fill_fp32_kernel(float *to, int64_t count, float scale, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        to[i] = scale * normal(seed, i);
    }
}

/* Padding rows of each expert: zeros to the next multiple of 64, as the contract of the weight gradients asks; NaN behind. */
static __global__ void fill_padding_kernel(uint16_t *to, int64_t cols, const int32_t *first, const int32_t *rows)
{
    int64_t begin = first[blockIdx.x] + rows[blockIdx.x];
    int64_t zeros = first[blockIdx.x] + (rows[blockIdx.x] + 63) / 64 * 64, end = first[blockIdx.x] + (rows[blockIdx.x] + 127) / 128 * 128;
    for (int64_t i = begin * cols + threadIdx.x; i < end * cols; i += blockDim.x) {
        to[i] = i < zeros * cols ? 0 : 0xffff;
    }
}

void ladder_fill_bf16(uint16_t *to, int64_t count, float scale, uint64_t seed)
{
    fill_bf16_kernel<<<2048, 256>>>(to, count, scale, seed);
    LADDER_CUDA(cudaGetLastError());
}

void ladder_fill_fp32(float *to, int64_t count, float scale, uint64_t seed)
{
    fill_fp32_kernel<<<2048, 256>>>(to, count, scale, seed);
    LADDER_CUDA(cudaGetLastError());
}

void ladder_poison(void *to, int64_t bytes) { LADDER_CUDA(cudaMemset(to, 0xff, (size_t)bytes)); }

static void *allocate(int64_t bytes)
{
    void *to = NULL;
    LADDER_CUDA(cudaMalloc(&to, (size_t)(bytes > 0 ? bytes : 16)));
    return to;
}

static const int32_t *upload(const int32_t *from, int64_t count)
{
    int32_t *to = (int32_t *)allocate(count * 4);
    LADDER_CUDA(cudaMemcpy(to, from, (size_t)count * 4, cudaMemcpyHostToDevice));
    return to;
}

static void make_tables(struct ladder_problem *p, const int32_t *counts)
{
    int32_t num_experts = p->num_experts, tiles = 0;
    p->counts = (int32_t *)malloc(sizeof(int32_t) * (size_t)num_experts);
    p->first = (int32_t *)malloc(sizeof(int32_t) * (size_t)num_experts);
    for (int32_t e = 0; e < num_experts; e++) {
        p->counts[e] = counts[e];
        p->first[e] = tiles * 128;
        p->real_rows += counts[e];
        tiles += (counts[e] + 127) / 128;
    }
    int32_t *tile_expert = (int32_t *)malloc(sizeof(int32_t) * (size_t)(tiles + 1));
    for (int32_t e = 0, t = 0; e < num_experts; e++) {
        for (int32_t i = 0; i < (counts[e] + 127) / 128; i++) {
            tile_expert[t++] = e;
        }
    }
    p->num_tiles = tiles;
    p->buffer_rows = (int64_t)tiles * 128 + 256;
    p->rows.num_tiles = upload(&tiles, 1);
    p->rows.tile_expert = upload(tile_expert, tiles);
    p->rows.expert_first = upload(p->first, num_experts);
    p->rows.expert_rows = upload(p->counts, num_experts);
    p->rows.buffer_rows = p->buffer_rows;
    p->rows.num_experts = num_experts;
    free(tile_expert);
}

/* Places three matrices per expert in one region; returns its length in elements. */
static int64_t place_ffn(const struct ladder_problem *p, const struct ladder_layout *layout, mok_matrices *gate, mok_matrices *up,
                         mok_matrices *down, int64_t *up_off, int64_t *down_off)
{
    int64_t gap = layout->gaps ? 24 : 0;
    int64_t row = p->hidden + gap;
    gate->row_stride = up->row_stride = layout->interleaved ? 2 * row : row;
    gate->expert_stride = up->expert_stride = 2 * p->inter * row + 8 * gap;
    *up_off = layout->interleaved ? row : p->inter * row;
    *down_off = p->num_experts * gate->expert_stride;
    down->row_stride = p->inter + gap;
    down->expert_stride = p->hidden * down->row_stride + 8 * gap;
    return *down_off + p->num_experts * down->expert_stride;
}

void ladder_problem_create(struct ladder_problem *p, int32_t num_experts, const int32_t *counts, int32_t hidden, int32_t inter,
                           const struct ladder_layout *layout, uint64_t seed)
{
    int64_t up_off, down_off;
    memset(p, 0, sizeof *p);
    p->num_experts = num_experts;
    p->hidden = hidden;
    p->inter = inter;
    p->activation.limit = INFINITY;
    p->activation.alpha = 1.0f;
    make_tables(p, counts);
    p->weights_count = place_ffn(p, layout, &p->gate, &p->up, &p->down, &up_off, &down_off);
    p->weights = (uint16_t *)allocate(p->weights_count * 2);
    p->gate.base = p->weights;
    p->up.base = p->weights + up_off;
    p->down.base = p->weights + down_off;
    ladder_fill_bf16(p->weights, down_off, 1.0f / sqrtf((float)hidden), seed + 1);
    ladder_fill_bf16(p->weights + down_off, p->weights_count - down_off, 1.0f / sqrtf((float)inter), seed + 2);
    int64_t size = layout->grad_dtype == MOK_DTYPE_BF16 ? 2 : 4;
    p->grad_dtype = layout->grad_dtype;
    p->grads_bytes = size * place_ffn(p, layout, &p->grad_gate, &p->grad_up, &p->grad_down, &up_off, &down_off);
    p->grads = allocate(p->grads_bytes);
    p->grad_gate.base = p->grads;
    p->grad_up.base = (uint8_t *)p->grads + up_off * size;
    p->grad_down.base = (uint8_t *)p->grads + down_off * size;
    uint16_t **wide[] = {&p->x, &p->y, &p->dy, &p->dx}, **narrow[] = {&p->h, &p->g, &p->u, &p->dg, &p->du, &p->wh};
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
        *wide[i] = (uint16_t *)allocate(p->buffer_rows * hidden * 2);
        ladder_poison(*wide[i], p->buffer_rows * hidden * 2);
    }
    for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++) {
        *narrow[i] = (uint16_t *)allocate(p->buffer_rows * inter * 2);
        ladder_poison(*narrow[i], p->buffer_rows * inter * 2);
    }
    int64_t partials = p->buffer_rows * ((inter + 127) / 128);
    p->w = (float *)allocate(p->buffer_rows * 4);
    p->dw_partial = (float *)allocate(partials * 4);
    ladder_poison(p->dw_partial, partials * 4);
    ladder_fill_bf16(p->x, (int64_t)p->num_tiles * 128 * hidden, 1.0f, seed + 3);
    ladder_fill_bf16(p->dy, (int64_t)p->num_tiles * 128 * hidden, 1.0f, seed + 4);
    ladder_fill_fp32(p->w, (int64_t)p->num_tiles * 128, 0.5f, seed + 5);
    fill_padding_kernel<<<num_experts, 256>>>(p->x, hidden, p->rows.expert_first, p->rows.expert_rows);
    fill_padding_kernel<<<num_experts, 256>>>(p->dy, hidden, p->rows.expert_first, p->rows.expert_rows);
    LADDER_CUDA(cudaDeviceSynchronize());
}

void ladder_problem_destroy(struct ladder_problem *p)
{
    void *all[] = {p->weights,
                   p->grads,
                   p->x,
                   p->y,
                   p->dy,
                   p->dx,
                   p->h,
                   p->g,
                   p->u,
                   p->dg,
                   p->du,
                   p->wh,
                   p->w,
                   p->dw_partial,
                   (void *)p->rows.num_tiles,
                   (void *)p->rows.tile_expert,
                   (void *)p->rows.expert_first,
                   (void *)p->rows.expert_rows};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        LADDER_CUDA(cudaFree(all[i]));
    }
    free(p->counts);
    free(p->first);
}

struct mok_gate_up_args ladder_gate_up_args(const struct ladder_problem *p, int keep)
{
    struct mok_gate_up_args args;
    memset(&args, 0, sizeof args);
    args.rows = p->rows;
    args.hidden = p->hidden;
    args.inter = p->inter;
    args.activation = p->activation;
    args.x = p->x;
    args.gate = p->gate;
    args.up = p->up;
    args.h = p->h;
    args.g = keep ? p->g : NULL;
    args.u = keep ? p->u : NULL;
    args.keep_rows = keep ? p->buffer_rows : 0;
    return args;
}

struct mok_down_args ladder_down_args(const struct ladder_problem *p)
{
    struct mok_down_args args;
    memset(&args, 0, sizeof args);
    args.rows = p->rows;
    args.hidden = p->hidden;
    args.inter = p->inter;
    args.h = p->h;
    args.down = p->down;
    args.y = p->y;
    return args;
}

struct mok_dgrad_down_args ladder_dgrad_down_args(const struct ladder_problem *p)
{
    struct mok_dgrad_down_args args;
    memset(&args, 0, sizeof args);
    args.rows = p->rows;
    args.hidden = p->hidden;
    args.inter = p->inter;
    args.activation = p->activation;
    args.dy = p->dy;
    args.down = p->down;
    args.g = p->g;
    args.u = p->u;
    args.w = p->w;
    args.dg = p->dg;
    args.du = p->du;
    args.wh = p->wh;
    args.dw_partial = p->dw_partial;
    return args;
}

struct mok_dgrad_gate_up_args ladder_dgrad_gate_up_args(const struct ladder_problem *p)
{
    struct mok_dgrad_gate_up_args args;
    memset(&args, 0, sizeof args);
    args.rows = p->rows;
    args.hidden = p->hidden;
    args.inter = p->inter;
    args.dg = p->dg;
    args.du = p->du;
    args.gate = p->gate;
    args.up = p->up;
    args.dx = p->dx;
    return args;
}

struct mok_wgrad_args ladder_wgrad_gate_up_args(const struct ladder_problem *p, int32_t mode)
{
    struct mok_wgrad_args args;
    memset(&args, 0, sizeof args);
    args.rows = p->rows;
    args.num_parts = 2;
    args.out = p->inter;
    args.in = p->hidden;
    args.dtype = p->grad_dtype;
    args.mode = mode;
    args.a[0] = p->dg;
    args.a[1] = p->du;
    args.b = p->x;
    args.grad[0] = p->grad_gate;
    args.grad[1] = p->grad_up;
    return args;
}

struct mok_wgrad_args ladder_wgrad_down_args(const struct ladder_problem *p, int32_t mode)
{
    struct mok_wgrad_args args;
    memset(&args, 0, sizeof args);
    args.rows = p->rows;
    args.num_parts = 1;
    args.out = p->hidden;
    args.in = p->inter;
    args.dtype = p->grad_dtype;
    args.mode = mode;
    args.a[0] = p->dy;
    args.b = p->wh;
    args.grad[0] = p->grad_down;
    return args;
}
