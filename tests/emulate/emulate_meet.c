/*
 * Ranks that come late, leave, abort or stay away while another waits at a barrier between ranks, on the emulated machine: rank HERE runs the kernel's own
 * source, what the others do are stores, before it begins or at a random moment of it. What the barrier says, what it records, and which abort words it
 * raises must be the same with any seed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulate_meet.h"
#include "pass/site.h"
#include "plan/region.h"

enum { RANKS = 3, HERE = 0, LATE = 1, OTHER = 2, NUMBER = 5 /* of the barrier */, BUILD = 3, LIMIT_TICKS = 400000, SEEDS = 40 };

/* OTHER has come to the barrier already, LATE has not. */
struct scene {
    int32_t site;
    struct mok_region layout;
    char *region[RANKS];
    struct mok_cuda_control control;
    struct mok_cuda_record record;
};

static int64_t words_off(const struct scene *scene)
{
    const struct mok_region *layout = &scene->layout;
    return scene->site == MOK_SITE_SCHED_BARRIER ? layout->sched : scene->site == MOK_SITE_ENTRY_BARRIER ? layout->entry : layout->exit;
}

static uint32_t *word_of(const struct scene *scene, int32_t rank, int64_t offset) { return (uint32_t *)(scene->region[rank] + offset); }

/* ---- what the others do ------------------------------------------------------------------------------------------------------------ */

static void comes(void *context) { word_of(context, HERE, words_off(context))[LATE] = NUMBER; }
static void leaves(void *context) { word_of(context, HERE, ((struct scene *)context)->layout.left)[LATE] = 1; }
static void is_aborted(void *context) { *word_of(context, HERE, ((struct scene *)context)->layout.abort) = 1 + OTHER; }

static void comes_and_leaves(void *context)
{
    comes(context);
    leaves(context);
}

/* The abort of OTHER has reached LATE, and not yet HERE. */
static void leaves_dead(void *context)
{
    *word_of(context, LATE, ((struct scene *)context)->layout.abort) = 1 + OTHER;
    leaves(context);
}

/* ---- cases ------------------------------------------------------------------------------------------------------------------------- */

static const struct meet_case {
    const char *name;
    void (*before)(void *scene), (*during)(void *scene);
    mok_status status;
    int32_t rank;           /* of the record */
    int32_t names_wait;     /* the record says that HERE waited for LATE */
    uint32_t raised[RANKS]; /* the abort words in the end */
    int32_t stays_away;     /* HERE does not arrive */
} cases[] = {
    {"comes late", NULL, comes, MOK_OK, 0, 0, {0, 0, 0}, 0},
    {"comes and leaves", NULL, comes_and_leaves, MOK_OK, 0, 0, {0, 0, 0}, 0},
    {"had come, leaves", comes, leaves, MOK_OK, 0, 0, {0, 0, 0}, 0},
    {"had come and left", comes_and_leaves, NULL, MOK_OK, 0, 0, {0, 0, 0}, 0},
    {"leaves", NULL, leaves, MOK_ERR_ABORTED, LATE, 1, {1 + HERE, 1 + HERE, 1 + HERE}, 0},
    {"had left", leaves, NULL, MOK_ERR_ABORTED, LATE, 1, {1 + HERE, 1 + HERE, 1 + HERE}, 0},
    {"leaves a dead group", NULL, leaves_dead, MOK_ERR_ABORTED, OTHER, 0, {1 + OTHER, 1 + OTHER, 0}, 0},
    {"had left a dead group", leaves_dead, NULL, MOK_ERR_ABORTED, OTHER, 0, {1 + OTHER, 1 + OTHER, 0}, 0},
    {"does not come, another aborts", NULL, is_aborted, MOK_ERR_ABORTED, OTHER, 0, {1 + OTHER, 0, 0}, 0},
    {"does not come, another had aborted", is_aborted, NULL, MOK_ERR_ABORTED, OTHER, 0, {1 + OTHER, 0, 0}, 1},
    {"does not come", NULL, NULL, MOK_ERR_TIMEOUT, HERE, 1, {1 + HERE, 1 + HERE, 1 + HERE}, 0},
};

/* Arguments as rank_calls.c makes them; SCHED, which a kernel of the schedule waits for by the same function, like EXIT. */
static struct mok_cuda_barrier_args args_of(struct scene *scene, const uint32_t *build)
{
    int is_entry = scene->site == MOK_SITE_ENTRY_BARRIER;
    struct mok_cuda_barrier_args args = {
        .watch = {.base = scene->region,
                  .own = scene->region[HERE],
                  .control = &scene->control,
                  .record = &scene->record,
                  .abort_off = scene->layout.abort,
                  .left_off = scene->layout.left,
                  .peer_limit_ns = LIMIT_TICKS,
                  .local_limit_ns = LIMIT_TICKS,
                  .rank = HERE,
                  .num_ranks = RANKS},
        .words_off = words_off(scene),
        .epoch = &scene->control.pass,
        .ok = &scene->control.pass_ok,
        .needs = is_entry ? NULL : &scene->control.pass_ok,
        .tags_off = is_entry ? scene->layout.entry_tag : 0,
        .build = build,
        .ahead = is_entry,
        .arrives = 1,
        .waits = 1,
        .site = scene->site,
    };
    return args;
}

static void open_scene(struct scene *scene, int32_t site)
{
    struct mok_dims dims = {.num_ranks = RANKS, .num_experts = 4, .top_k = 1, .hidden = 8, .inter = 8, .max_tokens = 4};
    memset(scene, 0, sizeof *scene);
    scene->site = site;
    scene->layout = mok_plan_region(&dims, 0);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        scene->region[rank] = calloc(1, (size_t)scene->layout.bytes);
    }
    for (int32_t source = 0; source < RANKS; source++) {
        word_of(scene, HERE, words_off(scene))[source] = source == OTHER ? NUMBER : NUMBER - 1;
        ((uint64_t *)(scene->region[HERE] + scene->layout.entry_tag))[source] = BUILD;
    }
    scene->control.pass = site == MOK_SITE_ENTRY_BARRIER ? NUMBER - 1 : NUMBER;
    scene->control.pass_ok = 1;
}

/* Says what is not as it must be; NULL = nothing. */
static const char *look(const struct scene *scene, const struct meet_case *expected)
{
    const struct mok_cuda_record *record = &scene->record;
    int is_ok = expected->status == MOK_OK, is_named = record->site == scene->site && record->index == LATE && record->expected == NUMBER &&
                                                       record->seen == NUMBER - 1;
    if (scene->control.pass_ok != (uint32_t)is_ok || (is_ok && scene->control.pass != NUMBER)) {
        return "what the barrier says";
    }
    if (record->status != (int32_t)expected->status || record->rank != expected->rank) {
        return "status and rank of the record";
    }
    if (expected->names_wait ? !is_named : record->site != MOK_SITE_NONE) {
        return "the wait that the record names";
    }
    for (int32_t rank = 0; rank < RANKS; rank++) {
        if (*word_of(scene, rank, scene->layout.abort) != expected->raised[rank]) {
            return "abort words";
        }
        int has_arrived = word_of(scene, rank, words_off(scene))[HERE] == NUMBER;
        if (has_arrived ? expected->stays_away : is_ok) {
            return "arrival";
        }
    }
    return NULL;
}

static int run(const struct meet_case *expected, int32_t site, uint64_t seed)
{
    struct scene scene;
    const uint32_t build = BUILD;
    open_scene(&scene, site);
    if (expected->before != NULL) {
        expected->before(&scene);
    }
    const struct mok_cuda_barrier_args args = args_of(&scene, &build);
    emulate_barrier(&args, expected->during, &scene, seed);
    const char *wrong = look(&scene, expected);
    if (wrong != NULL) {
        const struct mok_cuda_record *record = &scene.record;
        printf("    site %d, seed %d: %s; record: status %d, rank %d, site %d, index %lld: %lld of %lld\n", site, (int)seed, wrong, record->status,
               record->rank, record->site, (long long)record->index, (long long)record->seen, (long long)record->expected);
    }
    for (int32_t rank = 0; rank < RANKS; rank++) {
        free(scene.region[rank]);
    }
    return wrong == NULL;
}

int main(void)
{
    static const int32_t sites[] = {MOK_SITE_SCHED_BARRIER, MOK_SITE_ENTRY_BARRIER, MOK_SITE_EXIT_BARRIER};
    int num = (int)(sizeof cases / sizeof cases[0]), num_failed = 0;
    for (int i = 0; i < num; i++) {
        int ok = 1;
        for (int turn = 0; turn < 3 * SEEDS && ok; turn++) {
            ok = run(&cases[i], sites[turn % 3], (uint64_t)(turn + 1));
        }
        printf("%s a rank %s\n", ok ? "ok    " : "FAILED", cases[i].name);
        num_failed += !ok;
    }
    printf("%d passed, %d failed, 0 skipped\n", num - num_failed, num_failed);
    return num_failed > 0;
}
