/*
 * What the user asked of `mok bench`, and the shapes that have a name.
 */
#ifndef MOK_CLI_BENCH_SETTINGS_H
#define MOK_CLI_BENCH_SETTINGS_H

#include "shape_settings.h"

enum { MOK_BENCH_MAX_REPEATS = 1000, MOK_BENCH_NOT_GIVEN = -1 };

/* Which experts a token chooses. */
enum mok_bench_skew {
    MOK_BENCH_BALANCED, /* top K of normal logits */
    MOK_BENCH_ZIPF,     /* popularity 1/rank over a seeded permutation of the experts, K distinct ones a token */
    MOK_BENCH_HOT,      /* expert 0 is among the K of every token, the others as balanced */
    MOK_BENCH_REAL      /* routes of a trained model, from a file */
};

struct mok_bench_settings {
    struct mok_shape_settings shape; /* numbers that are not given are MOK_BENCH_NOT_GIVEN until mok_bench_resolve */
    const char *shape_name;          /* NULL = none */
    const char *skew_word; /* this, routes and pass_word: NULL = not given, until mok_bench_resolve */
    const char *routes;    /* file with the routes of MOK_BENCH_REAL */
    int has_default_routes; /* it was not given: a path from the repository's folder, which need not be the current one */
    int64_t num_repeats, num_warmups;
    int is_zero_copy; /* CUDA: forward is timed with x in the saved object's memory before the pass, too; in a sweep only so */
    int has_no_stages; /* CUDA: the layer alone is timed */
    const char *sweep;     /* CUDA: points of group options to time instead; NULL = none */
    const char *pass_word; /* of a sweep: forward or backward */
    int64_t num_confirms;  /* of a sweep: runs of its fastest points once more; 0 = none */
    int is_traced;         /* of a sweep: say where the time of each point goes */
    const char *timeline;  /* of a sweep: file for the timeline of its last point */
    int64_t cta_step;      /* of the timeline: only every so many CTAs */
    const char *json;
    const char *commit; /* NULL = ask git */
    enum mok_bench_skew skew;
};

/* What is measured, which decides the options that apply. */
enum mok_bench_what { MOK_BENCH_HOST, MOK_BENCH_DEVICE, MOK_BENCH_GEMMS };

/* Refuses options that would be ignored. Before mok_bench_resolve. Errors: ARGUMENT. */
mok_status mok_bench_check_options(const struct mok_bench_settings *settings, enum mok_bench_what what);

/* Fills in what was not given: from the named shape, else from the defaults of the backend; num_ranks is the default number of ranks.
 * Errors: ARGUMENT (a name that is not known). */
mok_status mok_bench_resolve(struct mok_bench_settings *settings, int is_cuda, int32_t num_ranks);

enum { MOK_BENCH_MAX_PATHS = 2 };

/* CUDA, no sweep: the paths that are timed in turn for a mok_path. Where the library takes the fused path, auto included, that one and the
 * staged one behind it; else the staged one alone. paths_out [MOK_BENCH_MAX_PATHS]. Returns how many. */
int32_t mok_bench_paths(int32_t path, int32_t *paths_out);

/* 1 = backward passes are run. */
int mok_bench_has_backward(const struct mok_bench_settings *settings);
const char *mok_bench_skew_name(enum mok_bench_skew skew);

/* "FILE" of --json: 1 when the text goes to standard output as well. */
int mok_bench_prints_text(const struct mok_bench_settings *settings);

#endif
