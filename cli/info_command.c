/*
 * mok info: what this build and this machine can do, and how much memory a shape needs.
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

static void print_text(const mok_memory *memory)
{
    printf("%s\n", mok_build_info());
    if (memory == NULL) {
        return;
    }
    printf("\nmemory of a rank (the largest of all ranks), without weights, gradients, x and y\n");
    for (int part = 0; part < NUM_PARTS; part++) {
        printf("  %-18s %15" PRIu64 " bytes %10.1f MiB\n", parts[part].name, bytes_of(memory, part),
               (double)bytes_of(memory, part) / 1048576.0);
    }
    printf("  rows at most       %15" PRId64 "\n  rows kept          %15" PRId64 "\n", memory->max_rows, memory->keep_rows);
}

static mok_status write_json(const mok_memory *memory, const char *path)
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
    if (memory != NULL) {
        cJSON *json = cJSON_AddObjectToObject(root, "memory");
        for (int part = 0; part < NUM_PARTS; part++) {
            cJSON_AddNumberToObject(json, parts[part].key, (double)bytes_of(memory, part));
        }
        cJSON_AddNumberToObject(json, "max_rows", (double)memory->max_rows);
        cJSON_AddNumberToObject(json, "keep_rows", (double)memory->keep_rows);
    }
    return mok_json_write(root, path);
}

/* The largest need of any rank: they differ when experts do not divide evenly. */
static mok_status find_memory(const struct mok_shape_settings *shape, mok_group_config *config, mok_memory *largest)
{
    config->num_ranks = shape->num_ranks == 0 ? 1 : (int32_t)shape->num_ranks;
    config->shape = mok_shape_of(shape);
    for (config->rank = 0; config->rank < config->num_ranks; config->rank++) {
        mok_memory memory = {.struct_size = sizeof memory};
        MOK_TRY(mok_shape_name_options(mok_group_memory(config, &memory)));
        if (config->rank == 0 || memory.total_bytes > largest->total_bytes) {
            *largest = memory;
        }
    }
    return MOK_OK;
}

static int info_command(void *given, mok_group_config *config, int num_names, char **names)
{
    const struct info_settings *settings = given;
    const struct mok_shape_settings *shape = &settings->shape;
    mok_memory memory;
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
    if (!has_shape && mok_cli_refuse_group(NULL, "has no effect without a shape: it is about the memory of one") != MOK_OK) {
        return mok_cli_usage(&mok_command_info, "%s", mok_cli_sentence());
    }
    if (has_shape && find_memory(shape, config, &memory) != MOK_OK) {
        return mok_cli_usage(&mok_command_info, "%s", mok_cli_sentence());
    }
    if (settings->json == NULL || strcmp(settings->json, "-") != 0) {
        print_text(has_shape ? &memory : NULL);
    }
    mok_status status = settings->json == NULL ? MOK_OK : write_json(has_shape ? &memory : NULL, settings->json);
    return status == MOK_OK ? MOK_CLI_EXIT_OK : mok_cli_report(&mok_command_info, status);
}

static const struct mok_cli_useless info_useless[] = {
    {"peer look-ahead peer-timeout local-timeout", "the memory of a rank does not depend on it"},
};

const struct mok_cli_command mok_command_info = {
    .name = "info",
    .summary = "print build, devices and libraries, and the memory that a shape needs",
    .about = "Prints what this build and this machine can do. With --experts, --top-k, --hidden, --intermediate and --tokens (and "
             "--shared, --ranks and\n"
             "group options): the memory that a group of this shape takes on each rank.",
    .options = info_options,
    .num_options = sizeof info_options / sizeof info_options[0],
    .settings_bytes = sizeof(struct info_settings),
    .initial = &info_initial,
    .useless = info_useless,
    .num_useless = sizeof info_useless / sizeof info_useless[0],
    .run = info_command,
};
