/*
 * Memory of problems and of outputs, and which rank has what.
 */
#include "ref/problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int64_t mok_ref_first_token(const struct mok_ref_problem *problem, int32_t rank)
{
    int64_t first = 0;
    for (int32_t r = 0; r < rank; r++) {
        first += problem->tokens[r];
    }
    return first;
}

int32_t mok_ref_first_expert(const struct mok_ref_problem *problem, int32_t rank)
{
    return (int32_t)((int64_t)rank * problem->num_experts / problem->num_ranks);
}

int32_t mok_ref_rank_of_token(const struct mok_ref_problem *problem, int64_t token)
{
    int32_t rank = 0;
    while (rank < problem->num_ranks - 1 && token >= problem->tokens[rank]) {
        token -= problem->tokens[rank];
        rank++;
    }
    return rank;
}

double mok_ref_bf16_ulp(double magnitude)
{
    int exponent;
    frexp(magnitude, &exponent); /* magnitude = m * 2^exponent, 0.5 <= m < 1: 8 bits of it are kept */
    return magnitude == 0.0 || exponent < -125 ? ldexp(1.0, -133) : ldexp(1.0, exponent - 8);
}

/* Zeroed; one byte at least, so that an empty array is not NULL. */
static void *zeroed(int64_t count, size_t size, int *failed)
{
    void *memory = calloc((size_t)count + 1, size);
    *failed |= memory == NULL;
    return memory;
}

static void alloc_weights(struct mok_ref_weights *weights, int64_t num, int64_t width, int64_t hidden, int *failed)
{
    weights->gate = zeroed(num * width * hidden, sizeof(mok_bf16), failed);
    weights->up = zeroed(num * width * hidden, sizeof(mok_bf16), failed);
    weights->down = zeroed(num * width * hidden, sizeof(mok_bf16), failed);
}

static void alloc_grads(struct mok_ref_grads *grads, int64_t num, int64_t width, int64_t hidden, int *failed)
{
    grads->gate = zeroed(num * width * hidden, sizeof(float), failed);
    grads->up = zeroed(num * width * hidden, sizeof(float), failed);
    grads->down = zeroed(num * width * hidden, sizeof(float), failed);
}

mok_status mok_ref_problem_alloc(struct mok_ref_problem *problem, struct mok_ref_optional with)
{
    int failed = 0;
    int64_t num = 0;
    for (int32_t r = 0; r < problem->num_ranks; r++) {
        num += problem->tokens[r];
    }
    problem->num_tokens = num;
    problem->x = zeroed(num * problem->hidden, sizeof(mok_bf16), &failed);
    problem->dy = zeroed(num * problem->hidden, sizeof(mok_bf16), &failed);
    problem->ids = zeroed(num * problem->top_k, sizeof(int32_t), &failed);
    problem->w = zeroed(num * problem->top_k, sizeof(float), &failed);
    problem->shared_w = with.shared_w ? zeroed(num, sizeof(float), &failed) : NULL;
    alloc_weights(&problem->routed, problem->num_experts, problem->inter, problem->hidden, &failed);
    memset(&problem->shared, 0, sizeof problem->shared);
    memset(&problem->start, 0, sizeof problem->start);
    memset(&problem->shared_start, 0, sizeof problem->shared_start);
    if (problem->shared_inter > 0) {
        alloc_weights(&problem->shared, 1, problem->shared_inter, problem->hidden, &failed);
    }
    if (problem->grad_mode == MOK_GRAD_ADD) {
        alloc_grads(&problem->start, problem->num_experts, problem->inter, problem->hidden, &failed);
        if (problem->shared_inter > 0) {
            alloc_grads(&problem->shared_start, problem->num_ranks, problem->shared_inter, problem->hidden, &failed);
        }
    }
    if (failed) {
        mok_ref_problem_free(problem);
        return MOK_ERR_MEMORY;
    }
    return MOK_OK;
}

static void free_weights(struct mok_ref_weights *weights)
{
    free(weights->gate);
    free(weights->up);
    free(weights->down);
    memset(weights, 0, sizeof *weights);
}

static void free_grads(struct mok_ref_grads *grads)
{
    free(grads->gate);
    free(grads->up);
    free(grads->down);
    memset(grads, 0, sizeof *grads);
}

void mok_ref_problem_free(struct mok_ref_problem *problem)
{
    free(problem->x);
    free(problem->dy);
    free(problem->ids);
    free(problem->w);
    free(problem->shared_w);
    problem->x = problem->dy = NULL;
    problem->ids = NULL;
    problem->w = problem->shared_w = NULL;
    free_weights(&problem->routed);
    free_weights(&problem->shared);
    free_grads(&problem->start);
    free_grads(&problem->shared_start);
}

/* Next part of the block; with base NULL only the cursor moves, so that one function both measures and lays out. */
static void *part(char *base, size_t *cursor, int64_t count, size_t size)
{
    size_t at = *cursor;
    *cursor = (at + (size_t)count * size + 63) / 64 * 64;
    return base == NULL ? NULL : base + at;
}

static void lay_grads(struct mok_ref_grads *grads, char *base, size_t *cursor, int64_t num, int64_t width, int64_t hidden)
{
    grads->gate = part(base, cursor, num * width * hidden, sizeof(float));
    grads->up = part(base, cursor, num * width * hidden, sizeof(float));
    grads->down = part(base, cursor, num * width * hidden, sizeof(float));
}

static size_t lay_outputs(const struct mok_ref_problem *problem, char *base, struct mok_ref_outputs *outputs)
{
    size_t cursor = 0;
    int64_t elements = problem->num_tokens * problem->hidden;
    memset(outputs, 0, sizeof *outputs);
    outputs->y = part(base, &cursor, elements, sizeof(mok_bf16));
    outputs->dx = part(base, &cursor, elements, sizeof(mok_bf16));
    outputs->dw = part(base, &cursor, problem->num_tokens * problem->top_k, sizeof(float));
    outputs->y_slots = part(base, &cursor, elements * problem->top_k, sizeof(mok_bf16));
    outputs->dx_slots = part(base, &cursor, elements * problem->top_k, sizeof(mok_bf16));
    lay_grads(&outputs->grads, base, &cursor, problem->num_experts, problem->inter, problem->hidden);
    if (problem->shared_inter > 0) {
        outputs->dshared_w = part(base, &cursor, problem->num_tokens, sizeof(float));
        outputs->shared_y = part(base, &cursor, elements, sizeof(mok_bf16));
        outputs->shared_dx = part(base, &cursor, elements, sizeof(mok_bf16));
        lay_grads(&outputs->shared_grads, base, &cursor, problem->num_ranks, problem->shared_inter, problem->hidden);
    }
    return cursor + 64;
}

mok_status mok_ref_outputs_alloc(const struct mok_ref_problem *problem, struct mok_ref_outputs *outputs_out)
{
    struct mok_ref_outputs measured;
    size_t bytes = lay_outputs(problem, NULL, &measured);
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) {
        return MOK_ERR_MEMORY;
    }
    lay_outputs(problem, block, outputs_out);
    return MOK_OK;
}

void mok_ref_outputs_free(const struct mok_ref_problem *problem, struct mok_ref_outputs *outputs)
{
    struct mok_ref_outputs measured;
    if (outputs->y != NULL) {
        munmap(outputs->y, lay_outputs(problem, NULL, &measured)); /* y is the first part of the block */
    }
    memset(outputs, 0, sizeof *outputs);
}
