/*
 * A group comes and goes: mok_group_create, mok_group_memory, mok_group_destroy.
 *
 * Creation. Each arrow is a meeting of all ranks, bounded by peer_timeout_ms; a rank that failed still comes to the next one, so that the
 * others hear why:   check, choose -> join -> agree on the setup -> map -> create the backend's part -> agree that all could. Destruction
 * waits, inside the backend, for each peer's `left` word.
 */
#include "api/create.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/agree.h"
#include "api/check.h"
#include "api/object.h"
#include "api/setup.h"
#include "base/log.h"
#include "base/status.h"

/* Which memory a peer kind can show to the others. */
static mok_status check_pair(int32_t backend, int32_t peer)
{
    if (backend == MOK_BACKEND_CPU && peer == MOK_PEER_NCCL) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "config.peer is nccl: it shares GPU memory, and the backend is cpu");
    }
    if (backend == MOK_BACKEND_CUDA && peer == MOK_PEER_MPI) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "config.peer is mpi: it shares host memory, and the backend is cuda");
    }
    return MOK_OK;
}

static mok_status check_room(const mok_group_config *config, const struct mok_pass_setup *setup)
{
    if (config->peer == MOK_PEER_EXTERNAL && config->external->bytes < (uint64_t)setup->region.bytes) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.external.bytes is %zu: must be at least mok_memory.peer_bytes, %" PRId64,
                             config->external->bytes, setup->region.bytes);
    }
    return MOK_OK;
}

/* What a rank finds out alone about this machine; a failure is told to the others. */
static mok_status prepare(const mok_group_config *config, const struct mok_pass_ops *ops, struct mok_pass_setup *setup_out)
{
    MOK_TRY(ops->probe());
    return mok_api_setup(config, ops, setup_out);
}

static void log_choices(const mok_group *group)
{
    const struct mok_pass_setup *setup = &group->setup;
    mok_base_log(
        MOK_LOG_CHOICES,
        "rank %" PRId32 " of %" PRId32 ": backend %s, peer %s, path %s, %" PRId32 "+%" PRId32 " workers, minibatch %" PRId64 "/%" PRId64
        " rows, ring %" PRId32 "/%" PRId32 ", look-ahead %" PRId32 "/%" PRId32 ", keep %" PRId64 " rows, peer memory %" PRId64 " bytes",
        setup->dims.rank, setup->dims.num_ranks, group->ops->name, group->peer->ops->name,
        setup->path == MOK_PATH_FUSED ? "fused" : "staged", setup->comm_workers, setup->compute_workers, setup->ring_forward.minibatch_rows,
        setup->ring_backward.minibatch_rows, setup->ring_forward.num_places, setup->ring_backward.num_places,
        setup->ring_forward.look_ahead, setup->ring_backward.look_ahead, setup->ring_forward.keep_rows, setup->region.bytes);
}

/* The host-side part; the backend's and the peer's come later. */
static mok_status make_group(const struct mok_pass_ops *ops, int32_t num_saved, mok_group **group_out)
{
    mok_group *group = calloc(1, sizeof *group);
    struct mok_saved *saved = calloc(num_saved > 0 ? (size_t)num_saved : 1, sizeof *saved);
    if (group == NULL || saved == NULL) {
        free(group);
        free(saved);
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for a group with %" PRId32 " saved objects", num_saved);
    }
    pthread_mutex_init(&group->lock, NULL);
    pthread_mutex_init(&group->fault_lock, NULL);
    group->ops = ops;
    group->process = getpid();
    group->saved = saved;
    for (int32_t idx = 0; idx < num_saved; idx++) {
        saved[idx].group = group;
        saved[idx].idx = idx;
    }
    *group_out = group;
    return MOK_OK;
}

static void free_group(mok_group *group)
{
    if (group != NULL) {
        pthread_mutex_destroy(&group->fault_lock);
        pthread_mutex_destroy(&group->lock);
        free(group->saved);
        free(group);
    }
}

/* Memory of the region, the same on all ranks, mapped on all ranks. */
static mok_status map_region(mok_group *group)
{
    struct mok_peer_memory memory;
    memset(&memory, 0, sizeof memory);
    mok_status status = group->ops->peer_memory(&group->setup, &memory);
    MOK_TRY(mok_api_agree_success(group->peer, status));
    return group->peer->ops->map(group->peer, (size_t)group->setup.region.bytes, &memory);
}

/*
 * After map. When one rank could not create its part, the others undo theirs: no pass has begun, so an abort lets them leave without
 * waiting. All meet once more before memory goes, because an undone rank still writes words into its peers' regions.
 */
static mok_status create_inner(mok_group *group)
{
    mok_status own = group->ops->create(&group->setup, group->peer, &group->inner);
    mok_status status = mok_api_agree_success(group->peer, own);
    if (status == MOK_OK) {
        return MOK_OK;
    }
    struct mok_kept failure = mok_base_keep(status);
    if (own == MOK_OK) {
        group->ops->abort(group->inner);
        (void)group->ops->destroy(group->inner); /* it can but say that the peers did not leave in the ordinary way */
    }
    mok_status gone = mok_api_agree_success(group->peer, MOK_OK);
    group->peer->ops->unmap(group->peer, gone != MOK_OK);
    return mok_base_repeat_kept(&failure);
}

/* From the first meeting to the last. `own`: what this rank has found out alone; where it is a failure, group is NULL. */
static mok_status create_together(mok_group *group, struct mok_peer *peer, const mok_group_config *config, const struct mok_pass_setup *setup,
                                  mok_status own)
{
    MOK_TRY(mok_api_agree_setup(peer, config, setup, own));
    group->peer = peer;
    group->setup = *setup;
    MOK_TRY(map_region(group));
    MOK_TRY(create_inner(group)); /* undoes the map */
    for (int32_t idx = 0; idx < setup->num_saved; idx++) {
        group->saved[idx].inner = group->ops->saved(group->inner, idx);
    }
    return MOK_OK;
}

mok_status mok_api_create(const mok_group_config *wanted, const struct mok_pass_ops *ops, const struct mok_peer_ops *peer_ops,
                          mok_group **group_out)
{
    mok_group_config decided = *wanted, *config = &decided;
    config->backend = ops->backend;
    MOK_TRY(check_pair(config->backend, config->peer));
    mok_group *group = NULL;
    struct mok_pass_setup setup;
    memset(&setup, 0, sizeof setup);
    mok_status alone = prepare(config, ops, &setup);
    if (alone == MOK_OK) {
        MOK_TRY(check_room(config, &setup));
        alone = make_group(ops, config->num_saved, &group);
    }
    struct mok_kept own = mok_base_keep(alone);
    struct mok_peer *peer = NULL;
    mok_status status = peer_ops->join(config, &peer);
    if (status != MOK_OK) {
        free_group(group);
        return own.status != MOK_OK ? mok_base_repeat_kept(&own) : status;
    }
    status = create_together(group, peer, config, &setup, own.status);
    if (status != MOK_OK) {
        peer_ops->leave(peer);
        free_group(group);
        return status;
    }
    log_choices(group);
    *group_out = group;
    return MOK_OK;
}

mok_status mok_group_create(const mok_group_config *config, mok_group **group_out)
{
    MOK_TRY(mok_api_check_given("group_out", group_out));
    MOK_TRY(mok_api_check_config(config));
    const struct mok_peer_ops *peer_ops = NULL;
    const struct mok_pass_ops *ops = NULL;
    MOK_TRY(mok_peer_find(config->peer, &peer_ops));
    MOK_TRY(mok_api_find_backend(config->backend, &ops));
    return mok_api_create(config, ops, peer_ops, group_out);
}

/* What mok_group_create would begin with: the backend, and every value that it chooses. */
static mok_status plan(const mok_group_config *config, const struct mok_pass_ops **ops_out, struct mok_pass_setup *setup_out)
{
    MOK_TRY(mok_api_check_plan(config));
    MOK_TRY(mok_api_find_backend(config->backend, ops_out));
    MOK_TRY(check_pair((*ops_out)->backend, config->peer));
    return mok_api_setup(config, *ops_out, setup_out);
}

mok_status mok_group_memory(const mok_group_config *config, mok_memory *memory_out)
{
    MOK_TRY(mok_api_check_struct("memory_out", memory_out, sizeof *memory_out));
    const struct mok_pass_ops *ops = NULL;
    struct mok_pass_setup setup;
    MOK_TRY(plan(config, &ops, &setup));
    mok_memory memory;
    memset(&memory, 0, sizeof memory);
    ops->memory(&setup, &memory);
    memory.struct_size = sizeof memory;
    memory.peer_bytes = (uint64_t)setup.region.bytes;
    memory.total_bytes = memory.peer_bytes + memory.ring_bytes + memory.saved_bytes + memory.other_bytes;
    memory.keep_rows = setup.num_saved > 0 ? setup.ring_forward.keep_rows : 0;
    memory.max_rows = mok_plan_max_rows(&setup.dims);
    *memory_out = memory;
    return MOK_OK;
}

static mok_ring_choice ring_choice(const struct mok_ring *ring)
{
    mok_ring_choice choice = {ring->minibatch_rows, ring->num_places, ring->look_ahead};
    return choice;
}

static mok_choice choice_of(const struct mok_pass_ops *ops, const struct mok_pass_setup *setup)
{
    mok_choice choice = {.struct_size = sizeof choice,
                         .backend = ops->backend,
                         .path = setup->path,
                         .comm_workers = setup->comm_workers,
                         .compute_workers = setup->compute_workers,
                         .forward = ring_choice(&setup->ring_forward),
                         .backward = ring_choice(&setup->ring_backward)};
    if (setup->num_saved == 0) { /* no backward pass */
        choice.backward = (mok_ring_choice){0, 0, 0};
    }
    return choice;
}

mok_status mok_group_choose(const mok_group_config *config, mok_choice *choice_out)
{
    MOK_TRY(mok_api_check_struct("choice_out", choice_out, sizeof *choice_out));
    const struct mok_pass_ops *ops = NULL;
    struct mok_pass_setup setup;
    MOK_TRY(plan(config, &ops, &setup));
    *choice_out = choice_of(ops, &setup);
    return MOK_OK;
}

mok_status mok_group_choice(const mok_group *group, mok_choice *choice_out)
{
    MOK_TRY(mok_api_check_given("group", group));
    MOK_TRY(mok_api_check_struct("choice_out", choice_out, sizeof *choice_out));
    MOK_TRY(mok_api_check_process(group));
    *choice_out = choice_of(group->ops, &group->setup);
    return MOK_OK;
}

mok_status mok_group_destroy(mok_group *group)
{
    if (group == NULL) {
        return MOK_OK;
    }
    MOK_TRY(mok_api_check_process(group));
    pthread_mutex_lock(&group->lock);
    int64_t num_layers = group->num_layers, num_schedules = group->num_schedules;
    pthread_mutex_unlock(&group->lock);
    if (num_layers > 0 || num_schedules > 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "group has %" PRId64 " layers and %" PRId64 " schedules: they must be destroyed before it",
                             num_layers, num_schedules);
    }
    const struct mok_peer_ops *peer_ops = group->peer->ops;
    mok_status status = group->ops->destroy(group->inner);
    peer_ops->unmap(group->peer, status != MOK_OK);
    peer_ops->leave(group->peer);
    free_group(group);
    return status;
}
