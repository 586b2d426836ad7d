/*
 * Checks of the group's config: what each field may be, whatever the backend. The ranges of single fields stand in the options table
 * (base/options.c); here are the shape, what belongs to the ranks and the peer, and what sizes grow to.
 */
#include <inttypes.h>

#include "api/check.h"
#include "base/board.h"
#include "base/options.h"
#include "base/status.h"

static mok_status check_range(const char *name, int64_t value, int64_t least, int64_t most, int64_t multiple)
{
    if (value >= least && value <= most && value % multiple == 0) {
        return MOK_OK;
    }
    if (multiple > 1) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s is %" PRId64 ": must be a multiple of %" PRId64 " from %" PRId64 " to %" PRId64, name,
                             value, multiple, least, most);
    }
    return mok_base_fail(MOK_ERR_ARGUMENT, "%s is %" PRId64 ": must be from %" PRId64 " to %" PRId64, name, value, least, most);
}

static mok_status check_format(int32_t format)
{
    switch (format) {
    case MOK_FORMAT_BF16:
        return MOK_OK;
    case MOK_FORMAT_MXFP8:
    case MOK_FORMAT_FP8_BLOCK:
        return mok_base_fail(MOK_ERR_UNSUPPORTED,
                             "config.shape.format is %s (%" PRId32 "): reserved, only MOK_FORMAT_BF16 (0) can be created now",
                             format == MOK_FORMAT_MXFP8 ? "MOK_FORMAT_MXFP8" : "MOK_FORMAT_FP8_BLOCK", format);
    default:
        return mok_base_fail(MOK_ERR_ARGUMENT,
                             "config.shape.format is %" PRId32 ": must be a mok_format; only MOK_FORMAT_BF16 (0) can be created now",
                             format);
    }
}

static mok_status check_shape(const mok_shape *shape)
{
    MOK_TRY(check_range("config.shape.num_experts", shape->num_experts, 1, MOK_MAX_EXPERTS, 1));
    MOK_TRY(check_range("config.shape.top_k", shape->top_k, 1, MOK_MAX_TOP_K, 1));
    MOK_TRY(check_range("config.shape.hidden", shape->hidden, 8, MOK_MAX_WIDTH, 8));
    MOK_TRY(check_range("config.shape.intermediate", shape->intermediate, 8, MOK_MAX_WIDTH, 8));
    MOK_TRY(check_range("config.shape.shared_intermediate", shape->shared_intermediate, 0, MOK_MAX_WIDTH, 8));
    MOK_TRY(check_format(shape->format));
    MOK_TRY(check_range("config.shape.max_tokens", shape->max_tokens, 1, INT32_MAX, 1));
    int64_t routes = shape->max_tokens * shape->top_k;
    if (routes > INT32_MAX) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.shape.max_tokens is %" PRId64 " and top_k %" PRId32 ": their product is %" PRId64
                             ", must be below 2^31", shape->max_tokens, shape->top_k, routes);
    }
    return MOK_OK;
}

struct mok_dims mok_api_dims(const mok_group_config *config)
{
    struct mok_dims dims = {
        .num_ranks = config->num_ranks,
        .rank = config->rank,
        .num_experts = config->shape.num_experts,
        .top_k = config->shape.top_k,
        .hidden = config->shape.hidden,
        .inter = config->shape.intermediate,
        .shared_inter = config->shape.shared_intermediate,
        .max_tokens = config->shape.max_tokens,
    };
    return dims;
}

/* Rows in 31 bits; bytes of all saved objects far below 63. */
static mok_status check_sizes(const mok_group_config *config)
{
    struct mok_dims dims = mok_api_dims(config);
    int64_t rows = mok_plan_max_rows_any(&dims);
    if (rows > INT32_MAX) {
        return mok_base_fail(MOK_ERR_ARGUMENT,
                             "config.shape.max_tokens is %" PRId64 " with %" PRId32 " rank%s and top_k %" PRId32 ": a rank may own %" PRId64
                             " padded rows, must be below 2^31",
                             dims.max_tokens, dims.num_ranks, dims.num_ranks == 1 ? "" : "s", dims.top_k, rows);
    }
    double kept = (double)rows * (dims.hidden + 2.0 * dims.inter) + (double)dims.max_tokens * (dims.hidden + 2.0 * dims.shared_inter);
    if (kept * 2 * config->num_saved > 0x1p60) {
        return mok_base_fail(MOK_ERR_ARGUMENT,
                             "config.num_saved is %" PRId32
                             ": that many saved objects of this shape may take %.3g bytes, must be below 2^60",
                             config->num_saved, kept * 2 * config->num_saved);
    }
    return MOK_OK;
}

mok_status mok_api_check_plan(const mok_group_config *config)
{
    MOK_TRY(mok_api_check_struct("config", config, sizeof *config));
    MOK_TRY(mok_base_options_check(config));
    MOK_TRY(check_range("config.num_ranks", config->num_ranks, 1, MOK_MAX_RANKS, 1));
    MOK_TRY(check_range("config.rank", config->rank, 0, config->num_ranks - 1, 1));
    MOK_TRY(check_shape(&config->shape));
    return check_sizes(config);
}

/* Whether ranks a and b have a byte in common. */
static int overlap(const mok_external *external, int32_t a, int32_t b)
{
    uintptr_t at = (uintptr_t)external->bases[a], other = (uintptr_t)external->bases[b];
    return (at > other ? at - other : other - at) < external->bytes;
}

/* Before the peer meets others on the boards at the head of the regions. That the rest has room, too, is seen when its size is known. */
static mok_status check_external(const mok_external *external, int32_t num_ranks)
{
    MOK_TRY(mok_api_check_struct("config.external", external, sizeof *external));
    MOK_TRY(mok_api_check_given("config.external.bases", external->bases));
    if (external->bytes > INT64_MAX) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.external.bytes is %zu: must be below 2^63", external->bytes);
    }
    size_t boards = (size_t)num_ranks * MOK_BOARD_BYTES;
    if (external->bytes < boards) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.external.bytes is %zu: must be at least %zu to meet %" PRId32 " rank%s", external->bytes,
                             boards, num_ranks, num_ranks == 1 ? "" : "s");
    }
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        const void *base = external->bases[rank];
        if (base == NULL || (uintptr_t)base % 256 != 0) {
            return mok_base_fail(MOK_ERR_ARGUMENT, "config.external.bases[%" PRId32 "] is %p: must be given, a multiple of 256 bytes", rank,
                                 base);
        }
        for (int32_t lower = 0; lower < rank; lower++) {
            if (overlap(external, lower, rank)) {
                return mok_base_fail(MOK_ERR_ARGUMENT,
                                     "config.external.bases[%" PRId32 "] and [%" PRId32
                                     "] are nearer to each other than %zu bytes: must be regions that do not overlap",
                                     lower, rank, external->bytes);
            }
        }
    }
    return MOK_OK;
}

mok_status mok_api_check_config(const mok_group_config *config)
{
    MOK_TRY(mok_api_check_plan(config));
    switch (config->peer) {
    case MOK_PEER_THREADS:
        if (config->hub == NULL && config->num_ranks > 1) {
            return mok_base_fail(MOK_ERR_ARGUMENT, "config.hub is NULL: may be NULL only when num_ranks is 1, and it is %" PRId32,
                                 config->num_ranks);
        }
        return MOK_OK;
    case MOK_PEER_NCCL:
        return mok_api_check_given("config.nccl_id", config->nccl_id);
    case MOK_PEER_EXTERNAL:
        return check_external(config->external, config->num_ranks);
    default:
        return MOK_OK;
    }
}
