/*
 * A layer given by its sizes on the command line, and a problem with random data of these sizes: for info, bench and trace.
 */
#ifndef MOK_CLI_SHAPE_SETTINGS_H
#define MOK_CLI_SHAPE_SETTINGS_H

#include "command_line.h"
#include "ref/problem.h"

/* Ranks of one process that makes all data itself; a shape that is only counted may have as many as the library takes. */
enum { MOK_SHAPE_MAX_RANKS = 8, MOK_SHAPE_MAX_COUNTED_RANKS = 1024 };

struct mok_shape_settings {
    int64_t experts;
    int64_t top_k;
    int64_t hidden;
    int64_t inter;
    int64_t shared_inter;
    int64_t tokens;    /* of each rank */
    int64_t num_ranks; /* 0 = not given */
    int is_skewed;
};

/* Entries of a command's options table; `type` is its settings, which hold a mok_shape_settings named shape. */
#define MOK_SHAPE_OPTIONS(type, most_ranks)                                                                                          \
    {"experts", MOK_CLI_COUNT, offsetof(type, shape.experts), "N", "Experts over all ranks.", 1, 1 << 20},                           \
        {"top-k", MOK_CLI_COUNT, offsetof(type, shape.top_k), "N", "Experts of a token.", 1, 64},                                    \
        {"hidden", MOK_CLI_COUNT, offsetof(type, shape.hidden), "N", "Width of a token, a multiple of 8.", 1, 1 << 20},              \
        {"intermediate", MOK_CLI_COUNT, offsetof(type, shape.inter), "N", "Width of an expert, a multiple of 8.", 1, 1 << 20},       \
        {"shared", MOK_CLI_COUNT, offsetof(type, shape.shared_inter), "N", "Width of the shared expert, a multiple of 8; 0 = none.", \
         0,        1 << 20},                                                                                                         \
        {"tokens", MOK_CLI_COUNT, offsetof(type, shape.tokens), "N", "Tokens of each rank.", 1, INT32_MAX},                          \
    {                                                                                                                                \
        "ranks", MOK_CLI_COUNT, offsetof(type, shape.num_ranks), "N", "Ranks of the group.", 1, most_ranks                           \
    }

/* The sizes as the library takes them. */
mok_shape mok_shape_of(const struct mok_shape_settings *shape);

/* status, with the library's sentence of it in the words of the command line: --hidden where that says config.shape.hidden. */
mok_status mok_shape_name_options(mok_status status);

/* Whether the library takes these sizes, before any data is made. Errors: ARGUMENT, and what else mok_group_memory finds. */
mok_status mok_shape_check(const struct mok_shape_settings *shape, const mok_group_config *config);

/* Random normal data; every token has top_k different experts, all equally likely, or as a trained router spreads them (is_skewed).
 * name: seed. Errors: MEMORY, ARGUMENT (too many ranks). */
mok_status mok_shape_problem(const struct mok_shape_settings *shape, int32_t num_ranks, const char *name,
                             struct mok_ref_problem *problem_out);

#endif
