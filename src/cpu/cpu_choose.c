/*
 * The ops table of the CPU backend, the values it chooses when the caller leaves them open, and its sizes.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cpu/cpu.h"
#include "cpu/cpu_calls.h"

enum {
    LEAST_MINIBATCH = 1024, /* rows: a widened weight tile then serves several row tiles of an expert */
    RING_MINIBATCHES = 4,
    COMM_SHARE = 8 /* one core in so many is given to communication, which borrows tasks while it waits */
};

static mok_status probe(void)
{
    struct mok_cpu_call call;
    return mok_cpu_gemm_probe(&call);
}

/* Cores that this process may use. */
static int32_t num_cores(void)
{
    cpu_set_t set;
    int32_t num = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return num < 1 ? 1 : num;
}

/* keep_rows has been settled before: one number for the group. */
static void choose_ring(const mok_group_config *config, const struct mok_pass_setup *setup, int backward, struct mok_ring *ring)
{
    int64_t max_rows = mok_plan_max_rows_any(&setup->dims);
    ring->minibatch_rows = config->minibatch_rows;
    if (ring->minibatch_rows == 0) {
        ring->minibatch_rows = mok_max64(mok_plan_minibatch_rows(&setup->dims, setup->compute_workers, backward), LEAST_MINIBATCH);
    }
    ring->minibatch_rows = mok_min64(ring->minibatch_rows, max_rows);
    int64_t most = mok_ceil_div(max_rows, ring->minibatch_rows);
    ring->num_places = (int32_t)mok_min64(config->ring_minibatches == 0 ? RING_MINIBATCHES : config->ring_minibatches, most);
    ring->look_ahead = (int32_t)mok_min64(config->look_ahead == 0 ? 1 : config->look_ahead, ring->num_places - 1);
}

/* Ranks share the cores of one machine: threads and external regions surely, MPI ranks because their memory is of one host. */
static mok_status choose(const mok_group_config *config, struct mok_pass_setup *setup)
{
    if (config->path == MOK_PATH_STAGED) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "config.path is staged: must be auto or fused, the CPU backend has the fused path only");
    }
    int32_t cores = num_cores() / setup->dims.num_ranks;
    setup->path = MOK_PATH_FUSED;
    setup->comm_workers = config->comm_workers != 0 ? config->comm_workers : (int32_t)mok_max64(1, cores / COMM_SHARE);
    setup->compute_workers = config->compute_workers != 0 ? config->compute_workers : (int32_t)mok_max64(1, cores - setup->comm_workers);
    setup->device = -1;
    choose_ring(config, setup, 0, &setup->ring_forward);
    choose_ring(config, setup, 1, &setup->ring_backward);
    return MOK_OK;
}

static void memory(const struct mok_pass_setup *setup, mok_memory *memory_out)
{
    struct mok_cpu_layout layout = mok_cpu_plan_layout(setup);
    struct mok_cpu_schedule_layout schedule = mok_cpu_plan_schedule(setup);
    memory_out->ring_bytes = (uint64_t)layout.ring_bytes;
    memory_out->saved_bytes = (uint64_t)layout.saved_bytes;
    memory_out->other_bytes = (uint64_t)(layout.other_bytes + schedule.bytes);
}

static void *alloc_region(void *context, size_t bytes)
{
    (void)context;
    void *region = mok_cpu_alloc((int64_t)bytes);
    if (region != NULL) {
        memset(region, 0, bytes);
    }
    return region;
}

static void free_region(void *context, void *region)
{
    (void)context;
    free(region);
}

static mok_status peer_memory(const struct mok_pass_setup *setup, struct mok_peer_memory *memory_out)
{
    (void)setup;
    struct mok_peer_memory host = {alloc_region, free_region, NULL, -1};
    *memory_out = host;
    return MOK_OK;
}

const struct mok_pass_ops mok_pass_cpu = {
    .name = "cpu",
    .backend = MOK_BACKEND_CPU,
    .probe = probe,
    .choose = choose,
    .memory = memory,
    .peer_memory = peer_memory,
    .create = mok_cpu_create,
    .destroy = mok_cpu_destroy,
    .schedule_create = mok_cpu_schedule_create,
    .schedule_destroy = mok_cpu_schedule_destroy,
    .schedule_build = mok_cpu_schedule_build,
    .schedule_counts = mok_cpu_schedule_counts,
    .schedule_dump = mok_cpu_schedule_dump,
    .saved = mok_cpu_saved,
    .saved_input = mok_cpu_saved_input,
    .forward = mok_cpu_forward,
    .backward = mok_cpu_backward,
    .state = mok_cpu_state,
    .wait = mok_cpu_wait,
    .abort = mok_cpu_abort,
    .trace = mok_cpu_trace,
    .trace_take = mok_cpu_trace_take,
};
