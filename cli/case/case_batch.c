/*
 * The tensors of one forward and backward of a rank: loading, enqueueing, and looking at what came back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "case/case_rank.h"

enum {
    GUARD_BYTES = 272, /* leaves tensors on a multiple of 16 bytes and of nothing more, which is all that the API asks for */
    GUARD_PATTERN = 0xa5
};

/* ---- guarded memory ------------------------------------------------------------------------------------------------------- */

static mok_status open_buffer(const struct mok_case_memory *memory, size_t bytes, struct mok_case_buffer *buffer)
{
    bytes = (bytes + 15) / 16 * 16;
    buffer->block = memory->alloc(bytes + 2 * GUARD_BYTES);
    buffer->data = buffer->block == NULL ? NULL : buffer->block + GUARD_BYTES;
    buffer->bytes = bytes;
    buffer->used = 0;
    return buffer->block == NULL ? MOK_ERR_MEMORY : MOK_OK;
}

/* Pattern everywhere, then `used` bytes from `from`, or of `poison` when from is NULL. */
static mok_status load_buffer(const struct mok_case_memory *memory, struct mok_case_buffer *buffer, const void *from, int poison,
                              size_t used)
{
    buffer->used = used;
    MOK_TRY(memory->fill(buffer->block, GUARD_PATTERN, buffer->bytes + 2 * GUARD_BYTES));
    return from != NULL ? memory->upload(buffer->data, from, used) : memory->fill(buffer->data, poison, used);
}

/* NULL for an empty tensor: the API allows it, and a call must not need more. */
static void *data_or_null(const struct mok_case_buffer *buffer) { return buffer->used == 0 ? NULL : buffer->data; }

static void note_difference(int64_t *num_differences, char *difference, size_t size, const char *what, int32_t rank, long long at)
{
    if (*num_differences == 0) {
        snprintf(difference, size, "rank %d: %s, byte %lld", rank, what, at);
    }
    (*num_differences)++;
}

/* What collect has found so far. */
struct finding {
    int64_t *num_differences;
    char *difference;
    size_t size;
};

/* Copies the used bytes to `to` (or compares them with `expected`), and looks at the pattern around them. */
static mok_status collect_buffer(const struct mok_case_batch *batch, const struct mok_case_buffer *buffer, const char *what,
                                 const void *expected, void *to, struct finding finding)
{
    size_t whole = buffer->bytes + 2 * GUARD_BYTES;
    unsigned char *image = malloc(whole);
    mok_status status = image == NULL ? MOK_ERR_MEMORY : batch->rank->memory->download(image, buffer->block, whole);
    for (size_t i = 0; status == MOK_OK && i < whole; i++) {
        int is_used = i >= GUARD_BYTES && i < GUARD_BYTES + buffer->used;
        int should = is_used && expected != NULL ? ((const unsigned char *)expected)[i - GUARD_BYTES] : GUARD_PATTERN;
        if ((!is_used || expected != NULL) && image[i] != should) {
            char text[96];
            snprintf(text, sizeof text, "%s %s", what, is_used ? "(an input) was changed" : "was written outside its range");
            note_difference(finding.num_differences, finding.difference, finding.size, text, batch->rank->rank, (long long)i - GUARD_BYTES);
        }
    }
    if (status == MOK_OK && to != NULL) {
        memcpy(to, image + GUARD_BYTES, buffer->used);
    }
    free(image);
    return status;
}

/* ---- life ----------------------------------------------------------------------------------------------------------------- */

static struct mok_case_buffer *const *all_buffers(struct mok_case_batch *batch, struct mok_case_buffer *list[12])
{
    struct mok_case_buffer *all[] = {&batch->x,  &batch->dy, &batch->ids,       &batch->w,     &batch->shared_w,    &batch->y,
                                     &batch->dx, &batch->dw, &batch->dshared_w, &batch->grads, &batch->shared_grads};
    memcpy(list, all, sizeof all);
    list[11] = NULL;
    return list;
}

static mok_status open_tensors(struct mok_case_batch *batch)
{
    const struct mok_ref_problem *p = batch->rank->problem;
    const struct mok_case_memory *memory = batch->rank->memory;
    size_t tokens = (size_t)batch->rank->max_tokens, rows = tokens * (size_t)p->hidden * sizeof(mok_bf16);
    size_t routes = tokens * (size_t)p->top_k * 4, dtype_bytes = mok_case_dtype_bytes(p->grad_dtype);
    batch->grads_place = mok_case_place_plan(batch->rank->knobs.grad_layout, batch->rank->num_local, p->inter, p->hidden);
    batch->shared_grads_place =
        mok_case_place_plan(batch->rank->knobs.grad_layout, p->shared_inter > 0 ? 1 : 0, p->shared_inter, p->hidden);
    size_t grads_bytes = (size_t)batch->grads_place.elements * dtype_bytes;
    size_t shared_bytes = (size_t)batch->shared_grads_place.elements * dtype_bytes;
    MOK_TRY(open_buffer(memory, rows, &batch->x));
    MOK_TRY(open_buffer(memory, rows, &batch->dy));
    MOK_TRY(open_buffer(memory, routes, &batch->ids));
    MOK_TRY(open_buffer(memory, routes, &batch->w));
    MOK_TRY(open_buffer(memory, tokens * 4, &batch->shared_w));
    MOK_TRY(open_buffer(memory, rows, &batch->y));
    MOK_TRY(open_buffer(memory, rows, &batch->dx));
    MOK_TRY(open_buffer(memory, routes, &batch->dw));
    MOK_TRY(open_buffer(memory, tokens * 4, &batch->dshared_w));
    MOK_TRY(open_buffer(memory, grads_bytes, &batch->grads));
    MOK_TRY(open_buffer(memory, shared_bytes, &batch->shared_grads));
    batch->grads_before = malloc(grads_bytes + 1);
    batch->shared_grads_before = malloc(shared_bytes + 1);
    return batch->grads_before == NULL || batch->shared_grads_before == NULL ? MOK_ERR_MEMORY : MOK_OK;
}

mok_status mok_case_batch_open(struct mok_case_batch *batch, struct mok_case_rank *rank, int32_t saved_idx)
{
    memset(batch, 0, sizeof *batch);
    batch->rank = rank;
    batch->layer = rank->layer.layer;
    mok_status status = mok_schedule_create(rank->group, &batch->schedule);
    if (status == MOK_OK && saved_idx >= 0) {
        status = mok_group_saved(rank->group, saved_idx, &batch->saved);
        mok_saved *owner = batch->saved; /* of the memory that x is written to */
        if (status == MOK_OK && rank->knobs.saved_input == 2) {
            status = mok_group_saved(rank->group, saved_idx + 1, &owner);
        }
        if (status == MOK_OK && rank->knobs.saved_input) {
            status = mok_saved_input(owner, &batch->saved_x);
        }
    }
    if (status == MOK_OK) {
        status = open_tensors(batch);
    }
    if (status != MOK_OK) {
        mok_case_batch_close(batch);
    }
    return status;
}

void mok_case_batch_close(struct mok_case_batch *batch)
{
    struct mok_case_buffer *list[12];
    if (batch->rank != NULL) {
        mok_schedule_destroy(batch->schedule);
        all_buffers(batch, list);
        for (int i = 0; list[i] != NULL; i++) {
            batch->rank->memory->free(list[i]->block);
        }
    }
    free(batch->grads_before);
    free(batch->shared_grads_before);
    memset(batch, 0, sizeof *batch);
}

/* ---- loading -------------------------------------------------------------------------------------------------------------- */

/* The gradient block as the pass finds it: poison, and in add mode the start values. */
static mok_status load_grads(struct mok_case_batch *batch, const struct mok_case_place *place, const struct mok_ref_grads *start,
                             int64_t first, int poison, char *before, struct mok_case_buffer *buffer)
{
    int32_t dtype = batch->rank->problem->grad_dtype;
    size_t bytes = (size_t)place->elements * mok_case_dtype_bytes(dtype);
    memset(before, poison, bytes);
    if (start->gate != NULL) {
        int64_t at = first * place->width * place->hidden;
        const float *dense[3] = {start->gate + at, start->up + at, start->down + at};
        mok_case_place_grads(place, dtype, dense, before);
    }
    return load_buffer(batch->rank->memory, buffer, before, 0, bytes);
}

mok_status mok_case_batch_load(struct mok_case_batch *batch, const struct mok_ref_problem *p, int poison)
{
    const struct mok_case_memory *memory = batch->rank->memory;
    int32_t rank = batch->rank->rank;
    int64_t first = mok_ref_first_token(p, rank);
    size_t tokens = (size_t)p->tokens[rank], rows = tokens * (size_t)p->hidden * sizeof(mok_bf16), routes = tokens * (size_t)p->top_k * 4;
    batch->problem = p;
    batch->num_tokens = p->tokens[rank];
    MOK_TRY(load_buffer(memory, &batch->x, p->x + first * p->hidden, 0, rows));
    MOK_TRY(load_buffer(memory, &batch->dy, p->dy + first * p->hidden, 0, rows));
    MOK_TRY(load_buffer(memory, &batch->ids, p->ids + first * p->top_k, 0, routes));
    MOK_TRY(load_buffer(memory, &batch->w, p->w + first * p->top_k, 0, routes));
    MOK_TRY(load_buffer(memory, &batch->shared_w, p->shared_w == NULL ? NULL : p->shared_w + first, poison, tokens * 4));
    MOK_TRY(load_buffer(memory, &batch->y, NULL, poison, rows));
    MOK_TRY(load_buffer(memory, &batch->dx, NULL, poison, rows));
    MOK_TRY(load_buffer(memory, &batch->dw, NULL, poison, routes));
    MOK_TRY(load_buffer(memory, &batch->dshared_w, NULL, poison, tokens * 4));
    MOK_TRY(load_grads(batch, &batch->grads_place, &p->start, mok_ref_first_expert(p, rank), poison, batch->grads_before, &batch->grads));
    MOK_TRY(
        load_grads(batch, &batch->shared_grads_place, &p->shared_start, rank, poison, batch->shared_grads_before, &batch->shared_grads));
    if (batch->saved_x != NULL) {
        MOK_TRY(memory->upload(batch->saved_x, p->x + first * p->hidden, rows));
    }
    return MOK_OK;
}

/* ---- calls ---------------------------------------------------------------------------------------------------------------- */

mok_status mok_case_batch_build(struct mok_case_batch *batch)
{
    return mok_schedule_build(batch->schedule, data_or_null(&batch->ids), batch->num_tokens, batch->rank->stream);
}

mok_status mok_case_batch_forward(struct mok_case_batch *batch)
{
    mok_forward_args args;
    mok_forward_args_init(&args);
    args.x = batch->saved_x != NULL && batch->num_tokens > 0 ? batch->saved_x : data_or_null(&batch->x);
    args.w = data_or_null(&batch->w);
    args.shared_w = batch->problem->shared_w == NULL ? NULL : data_or_null(&batch->shared_w);
    args.y = data_or_null(&batch->y);
    args.saved = batch->saved;
    return mok_forward(batch->layer, batch->schedule, &args, batch->rank->stream);
}

mok_status mok_case_batch_backward(struct mok_case_batch *batch)
{
    const struct mok_ref_problem *p = batch->problem;
    mok_backward_args args;
    mok_backward_args_init(&args);
    args.saved = batch->saved;
    args.dy = data_or_null(&batch->dy);
    args.w = data_or_null(&batch->w);
    args.shared_w = p->shared_w == NULL ? NULL : data_or_null(&batch->shared_w);
    args.dx = data_or_null(&batch->dx);
    args.dw = data_or_null(&batch->dw);
    args.grads = mok_case_place_ffn(&batch->grads_place, p->grad_dtype, batch->grads.data);
    if (p->shared_inter > 0) {
        args.dshared_w = data_or_null(&batch->dshared_w);
        args.shared_grads = mok_case_place_ffn(&batch->shared_grads_place, p->grad_dtype, batch->shared_grads.data);
    }
    args.grad_mode = p->grad_mode;
    return mok_backward(batch->layer, batch->schedule, &args, batch->rank->stream);
}

mok_status mok_case_batch_wait(struct mok_case_rank *rank) { return mok_group_wait(rank->group, rank->stream, -1); }

/* ---- collecting ----------------------------------------------------------------------------------------------------------- */

static mok_status collect_grads(struct mok_case_batch *batch, const struct mok_case_place *place, const struct mok_case_buffer *buffer,
                                const char *what, const char *before, const struct mok_ref_grads *to, int64_t first, struct finding finding)
{
    int32_t dtype = batch->rank->problem->grad_dtype;
    int64_t at = first * place->width * place->hidden;
    float *dense[3] = {to->gate + at, to->up + at, to->down + at};
    char *image = malloc(buffer->used + 1);
    mok_status status = image == NULL ? MOK_ERR_MEMORY : collect_buffer(batch, buffer, what, NULL, image, finding);
    if (status == MOK_OK) {
        mok_case_take_grads(place, dtype, image, before, dense);
        for (size_t i = 0; i < buffer->used; i++) {
            if (image[i] != before[i]) {
                char text[96];
                snprintf(text, sizeof text, "%s was written between its matrices", what);
                note_difference(finding.num_differences, finding.difference, finding.size, text, batch->rank->rank, (long long)i);
            }
        }
    }
    free(image);
    return status;
}

mok_status mok_case_batch_collect(struct mok_case_batch *batch, struct mok_ref_outputs *outputs, int64_t *num_differences, char *difference,
                                  size_t size)
{
    const struct mok_ref_problem *p = batch->problem;
    struct finding finding = {num_differences, difference, size};
    int32_t rank = batch->rank->rank;
    int64_t first = mok_ref_first_token(p, rank);
    MOK_TRY(collect_buffer(batch, &batch->x, "x", p->x + first * p->hidden, NULL, finding));
    MOK_TRY(collect_buffer(batch, &batch->ids, "ids", p->ids + first * p->top_k, NULL, finding));
    MOK_TRY(collect_buffer(batch, &batch->w, "w", p->w + first * p->top_k, NULL, finding));
    MOK_TRY(collect_buffer(batch, &batch->shared_w, "shared_w", p->shared_w == NULL ? NULL : p->shared_w + first, NULL, finding));
    MOK_TRY(collect_buffer(batch, &batch->y, "y", NULL, outputs->y + first * p->hidden, finding));
    if (batch->saved == NULL) {
        return MOK_OK;
    }
    MOK_TRY(collect_buffer(batch, &batch->dy, "dy", p->dy + first * p->hidden, NULL, finding));
    MOK_TRY(collect_buffer(batch, &batch->dx, "dx", NULL, outputs->dx + first * p->hidden, finding));
    MOK_TRY(collect_buffer(batch, &batch->dw, "dw", NULL, outputs->dw + first * p->top_k, finding));
    MOK_TRY(collect_grads(batch, &batch->grads_place, &batch->grads, "gradients", batch->grads_before, &outputs->grads,
                          mok_ref_first_expert(p, rank), finding));
    if (p->shared_inter > 0) {
        MOK_TRY(collect_buffer(batch, &batch->dshared_w, "dshared_w", NULL, outputs->dshared_w + first, finding));
        MOK_TRY(collect_grads(batch, &batch->shared_grads_place, &batch->shared_grads, "shared gradients", batch->shared_grads_before,
                              &outputs->shared_grads, rank, finding));
    }
    return MOK_OK;
}
