/*
 * One rank's objects and tensors. In: a problem in host memory. Out: the same problem's results, in host memory again.
 *
 * Weights and gradients are dense [El, I, H] and [El, H, I]; gradients are fp32, or bf16 where the problem says so.
 */
#include "seat.h"

#include <string.h>

#include "group_config.h"

static size_t grad_bytes(const struct mok_ref_problem *problem) { return problem->grad_dtype == MOK_DTYPE_BF16 ? 2 : 4; }

/* Elements of one matrix of one expert. */
static size_t matrix_count(const struct mok_ref_problem *problem, int32_t width) { return (size_t)width * (size_t)problem->hidden; }

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

/* At least 16 bytes, so that a rank without tokens or experts has addresses, too. */
static mok_status allocate(struct mok_seat *seat, size_t bytes, void **memory_out)
{
    *memory_out = seat->memory->alloc(bytes < 16 ? 16 : bytes);
    if (*memory_out == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "rank %d: no memory for %zu bytes on the %s backend", (int)seat->rank, bytes,
                            seat->memory->name);
    }
    return MOK_OK;
}

/* Copies and fills have no sentence of their own. */
static mok_status moved(const struct mok_seat *seat, mok_status status, size_t bytes)
{
    return status == MOK_OK
               ? MOK_OK
               : mok_cli_fail(status, "rank %d: %zu bytes could not be moved in %s memory", (int)seat->rank, bytes, seat->memory->name);
}

static mok_status upload(struct mok_seat *seat, const void *from, size_t bytes, void **memory_out)
{
    MOK_TRY(allocate(seat, bytes, memory_out));
    return bytes == 0 ? MOK_OK : moved(seat, seat->memory->upload(*memory_out, from, bytes), bytes);
}

static mok_status make_output(struct mok_seat *seat, size_t bytes, void **memory_out)
{
    MOK_TRY(allocate(seat, bytes, memory_out));
    return moved(seat, seat->memory->fill(*memory_out, 0xFF, bytes < 16 ? 16 : bytes), bytes);
}

/* num experts, starting with `first`. */
static mok_status upload_ffn(struct mok_seat *seat, const struct mok_ref_weights *weights, int32_t first, int32_t num, int32_t width,
                             struct mok_seat_ffn *ffn)
{
    size_t count = matrix_count(seat->problem, width);
    size_t bytes = (size_t)num * count * sizeof(mok_bf16);
    MOK_TRY(upload(seat, weights->gate + (size_t)first * count, bytes, &ffn->gate));
    MOK_TRY(upload(seat, weights->up + (size_t)first * count, bytes, &ffn->up));
    return upload(seat, weights->down + (size_t)first * count, bytes, &ffn->down);
}

static mok_status make_grads(struct mok_seat *seat, int32_t num, int32_t width, struct mok_seat_ffn *ffn)
{
    size_t bytes = (size_t)num * matrix_count(seat->problem, width) * grad_bytes(seat->problem);
    MOK_TRY(make_output(seat, bytes, &ffn->gate));
    MOK_TRY(make_output(seat, bytes, &ffn->up));
    return make_output(seat, bytes, &ffn->down);
}

/* Gradients that a pass adds to start from zero. */
static mok_status clear_grads(struct mok_seat *seat, int32_t num, int32_t width, const struct mok_seat_ffn *ffn)
{
    size_t bytes = (size_t)num * matrix_count(seat->problem, width) * grad_bytes(seat->problem);
    MOK_TRY(moved(seat, seat->memory->fill(ffn->gate, 0, bytes), bytes));
    MOK_TRY(moved(seat, seat->memory->fill(ffn->up, 0, bytes), bytes));
    return moved(seat, seat->memory->fill(ffn->down, 0, bytes), bytes);
}

static mok_status make_tensors(struct mok_seat *seat)
{
    const struct mok_ref_problem *problem = seat->problem;
    size_t row_bytes = (size_t)problem->hidden * sizeof(mok_bf16);
    size_t first = (size_t)seat->first_token;
    size_t tokens = (size_t)seat->num_tokens;
    size_t routes = tokens * (size_t)problem->top_k;
    size_t first_route = first * (size_t)problem->top_k;
    MOK_TRY(upload_ffn(seat, &problem->routed, seat->first_expert, seat->num_local, problem->inter, &seat->weights));
    MOK_TRY(make_grads(seat, seat->num_local, problem->inter, &seat->grads));
    MOK_TRY(upload(seat, problem->x + first * (size_t)problem->hidden, tokens * row_bytes, &seat->x));
    MOK_TRY(upload(seat, problem->dy + first * (size_t)problem->hidden, tokens * row_bytes, &seat->dy));
    MOK_TRY(upload(seat, problem->ids + first_route, routes * sizeof(int32_t), &seat->ids));
    MOK_TRY(upload(seat, problem->w + first_route, routes * sizeof(float), &seat->w));
    MOK_TRY(make_output(seat, tokens * row_bytes, &seat->y));
    MOK_TRY(make_output(seat, tokens * row_bytes, &seat->dx));
    MOK_TRY(make_output(seat, routes * sizeof(float), &seat->dw));
    if (problem->grad_mode == MOK_GRAD_ADD) {
        MOK_TRY(clear_grads(seat, seat->num_local, problem->inter, &seat->grads));
    }
    if (problem->shared_inter > 0) {
        MOK_TRY(upload_ffn(seat, &problem->shared, 0, 1, problem->shared_inter, &seat->shared_weights));
        MOK_TRY(make_grads(seat, 1, problem->shared_inter, &seat->shared_grads));
        MOK_TRY(make_output(seat, tokens * sizeof(float), &seat->dshared_w));
        if (problem->grad_mode == MOK_GRAD_ADD) {
            MOK_TRY(clear_grads(seat, 1, problem->shared_inter, &seat->shared_grads));
        }
    }
    if (problem->shared_w != NULL) {
        MOK_TRY(upload(seat, problem->shared_w + first, tokens * sizeof(float), &seat->shared_w));
    }
    return MOK_OK;
}

static void free_tensors(struct mok_seat *seat)
{
    void *all[] = {seat->weights.gate,
                   seat->weights.up,
                   seat->weights.down,
                   seat->shared_weights.gate,
                   seat->shared_weights.up,
                   seat->shared_weights.down,
                   seat->grads.gate,
                   seat->grads.up,
                   seat->grads.down,
                   seat->shared_grads.gate,
                   seat->shared_grads.up,
                   seat->shared_grads.down,
                   seat->x,
                   seat->dy,
                   seat->y,
                   seat->dx,
                   seat->ids,
                   seat->w,
                   seat->dw,
                   seat->shared_w,
                   seat->dshared_w};
    for (size_t idx = 0; idx < sizeof all / sizeof all[0]; idx++) {
        if (all[idx] != NULL) {
            seat->memory->free(all[idx]);
        }
    }
}

/* ---- objects ------------------------------------------------------------------------------------------------------------ */

static mok_ffn describe_ffn(const struct mok_ref_problem *problem, int32_t dtype, int32_t width, const struct mok_seat_ffn *ffn)
{
    int64_t count = (int64_t)matrix_count(problem, width);
    mok_ffn described = {.dtype = dtype};
    described.gate = (mok_matrices){.base = ffn->gate, .expert_stride = count, .row_stride = problem->hidden};
    described.up = (mok_matrices){.base = ffn->up, .expert_stride = count, .row_stride = problem->hidden};
    described.down = (mok_matrices){.base = ffn->down, .expert_stride = count, .row_stride = width};
    return described;
}

static mok_status make_objects(struct mok_seat *seat)
{
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.routed = describe_ffn(seat->problem, MOK_DTYPE_BF16, seat->problem->inter, &seat->weights);
    if (seat->problem->shared_inter > 0) {
        config.shared = describe_ffn(seat->problem, MOK_DTYPE_BF16, seat->problem->shared_inter, &seat->shared_weights);
    }
    config.activation = seat->problem->activation;
    MOK_TRY(mok_cli_check(mok_layer_create(seat->group, &config, &seat->layer)));
    MOK_TRY(mok_cli_check(mok_schedule_create(seat->group, &seat->schedule)));
    return mok_cli_check(mok_group_saved(seat->group, 0, &seat->saved));
}

void mok_seat_configure(const struct mok_ref_problem *problem, mok_group_config *config)
{
    config->num_saved = config->num_saved < 1 ? 1 : config->num_saved;
    config->shape = (mok_shape){.num_experts = problem->num_experts,
                                .top_k = problem->top_k,
                                .hidden = problem->hidden,
                                .intermediate = problem->inter,
                                .shared_intermediate = problem->shared_inter,
                                .format = MOK_FORMAT_BF16,
                                .max_tokens = 1};
    for (int32_t rank = 0; rank < problem->num_ranks; rank++) {
        int64_t tokens = problem->tokens[rank];
        config->shape.max_tokens = tokens > config->shape.max_tokens ? tokens : config->shape.max_tokens;
    }
}

mok_status mok_seat_open(const struct mok_ref_problem *problem, const mok_group_config *config, struct mok_seat *seat_out)
{
    mok_group_config own = *config;
    own.backend = mok_config_is_cuda(config) ? MOK_BACKEND_CUDA : MOK_BACKEND_CPU;
    struct mok_seat seat = {.problem = problem, .rank = config->rank, .memory = mok_case_memory_of(own.backend)};
    int32_t device = -1;
    MOK_TRY(mok_config_check_backend(config));
    mok_status opened = seat.memory->open(config->rank, &device, &seat.stream);
    if (opened != MOK_OK) {
        return mok_cli_fail(opened, "rank %d: no device could be opened for %s memory", (int)seat.rank, seat.memory->name);
    }
    seat.is_open = 1;
    own.device = device; /* where the tensors are */
    seat.first_token = mok_ref_first_token(problem, seat.rank);
    seat.num_tokens = problem->tokens[seat.rank];
    seat.first_expert = mok_ref_first_expert(problem, seat.rank);
    seat.num_local = mok_ref_first_expert(problem, seat.rank + 1) - seat.first_expert;
    mok_status status = mok_cli_check(mok_group_create(&own, &seat.group));
    if (status == MOK_OK) {
        status = make_tensors(&seat);
    }
    if (status == MOK_OK) {
        status = make_objects(&seat);
    }
    if (status != MOK_OK) {
        mok_seat_abort(&seat);
        (void)mok_seat_close(&seat); /* the first failure is the one to report */
        return status;
    }
    *seat_out = seat;
    return MOK_OK;
}

void mok_seat_abort(struct mok_seat *seat)
{
    if (seat->group != NULL) {
        (void)mok_group_abort(seat->group); /* the caller reports its own failure */
    }
}

mok_status mok_seat_close(struct mok_seat *seat)
{
    if (!seat->is_open) {
        return MOK_OK;
    }
    mok_schedule_destroy(seat->schedule);
    mok_layer_destroy(seat->layer);
    mok_status status = mok_group_destroy(seat->group);
    free_tensors(seat);
    seat->memory->close(seat->stream);
    memset(seat, 0, sizeof *seat);
    return status;
}

/* ---- passes ------------------------------------------------------------------------------------------------------------- */

mok_status mok_seat_forward(struct mok_seat *seat)
{
    mok_forward_args args;
    mok_forward_args_init(&args);
    args.x = seat->x;
    args.w = seat->w;
    args.shared_w = seat->shared_w;
    args.y = seat->y;
    args.saved = seat->saved;
    MOK_TRY(mok_cli_check(mok_schedule_build(seat->schedule, seat->ids, seat->num_tokens, seat->stream)));
    MOK_TRY(mok_cli_check(mok_forward(seat->layer, seat->schedule, &args, seat->stream)));
    return mok_cli_check(mok_group_wait(seat->group, seat->stream, -1));
}

mok_status mok_seat_backward(struct mok_seat *seat)
{
    const struct mok_ref_problem *problem = seat->problem;
    mok_backward_args args;
    mok_backward_args_init(&args);
    args.saved = seat->saved;
    args.dy = seat->dy;
    args.w = seat->w;
    args.shared_w = seat->shared_w;
    args.dx = seat->dx;
    args.dw = seat->dw;
    args.dshared_w = seat->dshared_w;
    args.grads = describe_ffn(problem, problem->grad_dtype, problem->inter, &seat->grads);
    if (problem->shared_inter > 0) {
        args.shared_grads = describe_ffn(problem, problem->grad_dtype, problem->shared_inter, &seat->shared_grads);
    }
    args.grad_mode = problem->grad_mode;
    MOK_TRY(mok_cli_check(mok_backward(seat->layer, seat->schedule, &args, seat->stream)));
    return mok_cli_check(mok_group_wait(seat->group, seat->stream, -1));
}

static mok_status download(const struct mok_seat *seat, void *to, const void *from, size_t bytes)
{
    return bytes == 0 ? MOK_OK : moved(seat, seat->memory->download(to, from, bytes), bytes);
}

static mok_status read_grads(const struct mok_seat *seat, const struct mok_seat_ffn *from, size_t first, size_t num, int32_t width,
                             const struct mok_ref_grads *to)
{
    size_t count = matrix_count(seat->problem, width);
    size_t bytes = num * count * sizeof(float);
    MOK_TRY(download(seat, to->gate + first * count, from->gate, bytes));
    MOK_TRY(download(seat, to->up + first * count, from->up, bytes));
    return download(seat, to->down + first * count, from->down, bytes);
}

mok_status mok_seat_read(const struct mok_seat *seat, struct mok_ref_outputs *outputs)
{
    const struct mok_ref_problem *problem = seat->problem;
    size_t first = (size_t)seat->first_token * (size_t)problem->hidden;
    size_t bytes = (size_t)seat->num_tokens * (size_t)problem->hidden * sizeof(mok_bf16);
    size_t first_route = (size_t)seat->first_token * (size_t)problem->top_k;
    MOK_TRY(download(seat, outputs->y + first, seat->y, bytes));
    MOK_TRY(download(seat, outputs->dx + first, seat->dx, bytes));
    MOK_TRY(download(seat, outputs->dw + first_route, seat->dw, (size_t)seat->num_tokens * (size_t)problem->top_k * sizeof(float)));
    MOK_TRY(read_grads(seat, &seat->grads, (size_t)seat->first_expert, (size_t)seat->num_local, problem->inter, &outputs->grads));
    if (problem->shared_inter > 0) {
        MOK_TRY(download(seat, outputs->dshared_w + seat->first_token, seat->dshared_w, (size_t)seat->num_tokens * sizeof(float)));
        return read_grads(seat, &seat->shared_grads, (size_t)seat->rank, 1, problem->shared_inter, &outputs->shared_grads);
    }
    return MOK_OK;
}
