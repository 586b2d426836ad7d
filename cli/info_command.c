/*
 * mok info: what this build and this machine can do, how much memory a shape needs, and what a group takes for it.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "json_file.h"
#include "shape_settings.h"

struct info_settings {
    struct mok_shape_settings shape;
    const char *json;
};

static const struct mok_cli_option info_options[] = {
    MOK_SHAPE_OPTIONS(struct info_settings, MOK_SHAPE_MAX_COUNTED_RANKS),
    {"json", MOK_CLI_TEXT, offsetof(struct info_settings, json), "FILE",
     "Write the same as JSON; - is standard output, without the text.", 0, 0},
};

static const struct info_settings info_initial = {.json = NULL};

static const struct {
    const char *name;
    const char *key;
    size_t offset;
} parts[] = {
    {"peer-visible", "peer_bytes", offsetof(mok_memory, peer_bytes)},
    {"ring", "ring_bytes", offsetof(mok_memory, ring_bytes)},
    {"kept for backward", "saved_bytes", offsetof(mok_memory, saved_bytes)},
    {"other", "other_bytes", offsetof(mok_memory, other_bytes)},
    {"total", "total_bytes", offsetof(mok_memory, total_bytes)},
};

enum { NUM_PARTS = sizeof parts / sizeof parts[0] };

static uint64_t bytes_of(const mok_memory *memory, int part)
{
    uint64_t bytes;
    memcpy(&bytes, (const char *)memory + parts[part].offset, sizeof bytes);
    return bytes;
}

/* What a group of a shape takes. */
struct needs {
    mok_memory memory; /* of the rank that needs most */
    mok_choice choice; /* of rank 0 */
};

static const struct {
    const char *name;
    size_t offset;
} passes[] = {{"forward", offsetof(mok_choice, forward)}, {"backward", offsetof(mok_choice, backward)}};

static const mok_ring_choice *ring_of(const mok_choice *choice, int pass)
{
    return (const mok_ring_choice *)((const char *)choice + passes[pass].offset);
}

static const char *backend_name(const mok_choice *choice) { return choice->backend == MOK_BACKEND_CUDA ? "cuda" : "cpu"; }
static const char *path_name(const mok_choice *choice) { return choice->path == MOK_PATH_STAGED ? "staged" : "fused"; }

static void print_choice(const mok_choice *choice)
{
    printf("\nwhat a group takes here\n  backend %s, path %s, %" PRId32 " workers that move and %" PRId32 " that multiply\n", backend_name(choice),
           path_name(choice), choice->comm_workers, choice->compute_workers);
    for (int pass = 0; pass < 2; pass++) {
        const mok_ring_choice *ring = ring_of(choice, pass);
        if (ring->ring_minibatches == 0) {
            printf("  %-8s  none: --saved 0\n", passes[pass].name);
            continue;
        }
        printf("  %-8s  minibatch %" PRId64 " rows, ring %" PRId32 ", look-ahead %" PRId32 "\n", passes[pass].name, ring->minibatch_rows,
               ring->ring_minibatches, ring->look_ahead);
    }
}

static void print_text(const struct needs *needs)
{
    printf("%s\n", mok_build_info());
    if (needs == NULL) {
        return;
    }
    const mok_memory *memory = &needs->memory;
    printf("\nmemory of a rank (the largest of all ranks), without weights, gradients, x and y\n");
    for (int part = 0; part < NUM_PARTS; part++) {
        printf("  %-18s %15" PRIu64 " bytes %10.1f MiB\n", parts[part].name, bytes_of(memory, part),
               (double)bytes_of(memory, part) / 1048576.0);
    }
    printf("  rows at most       %15" PRId64 "\n  rows kept          %15" PRId64 "\n", memory->max_rows, memory->keep_rows);
    print_choice(&needs->choice);
}

static void add_choice(cJSON *root, const mok_choice *choice)
{
    cJSON *json = cJSON_AddObjectToObject(root, "choice");
    cJSON_AddStringToObject(json, "backend", backend_name(choice));
    cJSON_AddStringToObject(json, "path", path_name(choice));
    cJSON_AddNumberToObject(json, "comm_workers", choice->comm_workers);
    cJSON_AddNumberToObject(json, "compute_workers", choice->compute_workers);
    for (int pass = 0; pass < 2; pass++) {
        const mok_ring_choice *ring = ring_of(choice, pass);
        cJSON *part = cJSON_AddObjectToObject(json, passes[pass].name);
        cJSON_AddNumberToObject(part, "minibatch_rows", (double)ring->minibatch_rows);
        cJSON_AddNumberToObject(part, "ring_minibatches", ring->ring_minibatches);
        cJSON_AddNumberToObject(part, "look_ahead", ring->look_ahead);
    }
}

static mok_status write_json(const struct needs *needs, const char *path)
{
    static const char *const peers[] = {"threads", "mpi", "nccl", "external"};
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "command", "info");
    cJSON_AddStringToObject(root, "build", mok_build_info());
    cJSON *list = cJSON_AddObjectToObject(root, "backends");
    cJSON_AddBoolToObject(list, "cpu", mok_backend_available(MOK_BACKEND_CPU));
    cJSON_AddBoolToObject(list, "cuda", mok_backend_available(MOK_BACKEND_CUDA));
    list = cJSON_AddObjectToObject(root, "peers");
    for (int peer = MOK_PEER_THREADS; peer <= MOK_PEER_EXTERNAL; peer++) {
        cJSON_AddBoolToObject(list, peers[peer], mok_peer_available((mok_peer_kind)peer));
    }
    if (needs != NULL) {
        const mok_memory *memory = &needs->memory;
        cJSON *json = cJSON_AddObjectToObject(root, "memory");
        for (int part = 0; part < NUM_PARTS; part++) {
            cJSON_AddNumberToObject(json, parts[part].key, (double)bytes_of(memory, part));
        }
        cJSON_AddNumberToObject(json, "max_rows", (double)memory->max_rows);
        cJSON_AddNumberToObject(json, "keep_rows", (double)memory->keep_rows);
        add_choice(root, &needs->choice);
    }
    return mok_json_write(root, path);
}

/* The memory of ranks differs when experts do not divide evenly. */
static mok_status find_needs(const struct mok_shape_settings *shape, mok_group_config *config, struct needs *needs_out)
{
    mok_memory *largest = &needs_out->memory;
    config->num_ranks = shape->num_ranks == 0 ? 1 : (int32_t)shape->num_ranks;
    config->shape = mok_shape_of(shape);
    config->peer = MOK_PEER_THREADS; /* neither memory nor choice depends on it */
    for (config->rank = 0; config->rank < config->num_ranks; config->rank++) {
        mok_memory memory = {.struct_size = sizeof memory};
        MOK_TRY(mok_shape_name_options(mok_group_memory(config, &memory)));
        if (config->rank == 0 || memory.total_bytes > largest->total_bytes) {
            *largest = memory;
        }
    }
    config->rank = 0;
    needs_out->choice.struct_size = sizeof needs_out->choice;
    return mok_shape_name_options(mok_group_choose(config, &needs_out->choice));
}

static int info_command(void *given, mok_group_config *config, int num_names, char **names)
{
    const struct info_settings *settings = given;
    const struct mok_shape_settings *shape = &settings->shape;
    struct needs needs;
    (void)num_names;
    (void)names;
    int64_t needed[] = {shape->experts, shape->top_k, shape->hidden, shape->inter, shape->tokens};
    int num_given = 0;
    for (int idx = 0; idx < 5; idx++) {
        num_given += needed[idx] != 0;
    }
    int has_shape = num_given > 0 || shape->shared_inter != 0 || shape->num_ranks != 0;
    if (has_shape && num_given < 5) {
        return mok_cli_usage(&mok_command_info, "a shape needs --experts, --top-k, --hidden, --intermediate and --tokens");
    }
    if (!has_shape && mok_cli_refuse_group(NULL, "has no effect without a shape: it is about a group of one") != MOK_OK) {
        return mok_cli_usage(&mok_command_info, "%s", mok_cli_sentence());
    }
    if (has_shape && find_needs(shape, config, &needs) != MOK_OK) {
        return mok_cli_usage(&mok_command_info, "%s", mok_cli_sentence());
    }
    if (settings->json == NULL || strcmp(settings->json, "-") != 0) {
        print_text(has_shape ? &needs : NULL);
    }
    mok_status status = settings->json == NULL ? MOK_OK : write_json(has_shape ? &needs : NULL, settings->json);
    return status == MOK_OK ? MOK_CLI_EXIT_OK : mok_cli_report(&mok_command_info, status);
}

static const struct mok_cli_useless info_useless[] = {
    {"peer peer-timeout local-timeout", "neither memory nor choice of a rank depends on it"},
};

const struct mok_cli_command mok_command_info = {
    .name = "info",
    .summary = "print build, devices and libraries, the memory that a shape needs, and what a group takes for it",
    .about = "Prints what this build and this machine can do. With --experts, --top-k, --hidden, --intermediate and --tokens (and "
             "--shared, --ranks and\n"
             "group options): the memory that a group of this shape takes on each rank, and its path, workers, minibatches and ring.",
    .options = info_options,
    .num_options = sizeof info_options / sizeof info_options[0],
    .settings_bytes = sizeof(struct info_settings),
    .initial = &info_initial,
    .useless = info_useless,
    .num_useless = sizeof info_useless / sizeof info_useless[0],
    .run = info_command,
};
