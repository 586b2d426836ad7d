/*
 * From a checked config to what a backend is created with. In: config. Out: mok_pass_setup, with every automatic value filled in.
 */
#include "api/setup.h"

#include <string.h>

#include "api/check.h"
#include "base/log.h"
#include "base/status.h"

#ifdef MOK_HAVE_CUDA
/* AUTO asks; that there is no GPU is an answer, not a failure. */
static int is_cuda_usable(void)
{
    mok_base_log_pause();
    int is_usable = mok_pass_cuda.probe() == MOK_OK;
    mok_base_log_resume();
    return is_usable;
}
#endif

mok_status mok_api_find_backend(int32_t backend, const struct mok_pass_ops **ops_out)
{
#ifdef MOK_HAVE_CUDA
    if (backend == MOK_BACKEND_CUDA || (backend == MOK_BACKEND_AUTO && is_cuda_usable())) {
        *ops_out = &mok_pass_cuda;
        return MOK_OK;
    }
#else
    if (backend == MOK_BACKEND_CUDA) {
        return mok_base_fail(MOK_ERR_NOT_BUILT, "config.backend is cuda: this build of the library has no CUDA backend");
    }
#endif
#ifdef MOK_HAVE_CPU
    *ops_out = &mok_pass_cpu;
    return MOK_OK;
#else
    return mok_base_fail(MOK_ERR_NOT_BUILT,
                         "config.backend is %d: this build of the library has no CPU backend (it was built without OpenBLAS), and %s",
                         backend, backend == MOK_BACKEND_CPU ? "cpu was asked for" : "no GPU can be used");
#endif
}

/* keep_rows as it will be used: the same on all ranks, so the bound is that of the rank that can own most. */
static int64_t kept_rows(const mok_group_config *config, const struct mok_dims *dims)
{
    int64_t most = mok_plan_max_rows_any(dims);
    int64_t wanted = config->keep_rows == MOK_KEEP_ALL ? most : mok_min64(config->keep_rows, most);
    return wanted / MOK_TILE_ROWS * MOK_TILE_ROWS;
}

static int is_ring_sound(const struct mok_ring *ring, int64_t keep_rows)
{
    return ring->minibatch_rows > 0 && ring->minibatch_rows % MOK_TILE_ROWS == 0 && ring->num_places >= 1 && ring->look_ahead >= 0 &&
           ring->look_ahead < ring->num_places && ring->keep_rows == keep_rows;
}

mok_status mok_api_setup(const mok_group_config *config, const struct mok_pass_ops *ops, struct mok_pass_setup *setup_out)
{
    struct mok_pass_setup setup;
    memset(&setup, 0, sizeof setup);
    setup.dims = mok_api_dims(config);
    setup.region = mok_plan_region(&setup.dims, config->num_saved);
    setup.num_saved = config->num_saved;
    setup.num_local = mok_plan_num_local(setup.dims.num_experts, setup.dims.num_ranks, setup.dims.rank);
    setup.first_expert = mok_plan_first_expert(setup.dims.num_experts, setup.dims.num_ranks, setup.dims.rank);
    setup.path = config->path;
    setup.comm_workers = config->comm_workers;
    setup.compute_workers = config->compute_workers;
    setup.device = config->device;
    setup.peer_timeout_ns = config->peer_timeout_ms * 1000000;
    setup.local_timeout_ns = config->local_timeout_ms * 1000000;
    int64_t keep_rows = kept_rows(config, &setup.dims);
    setup.ring_forward.keep_rows = keep_rows;
    setup.ring_backward.keep_rows = keep_rows;
    MOK_TRY(ops->choose(config, &setup));
    if (setup.path == MOK_PATH_AUTO || setup.comm_workers < 1 || setup.compute_workers < 1 ||
        !is_ring_sound(&setup.ring_forward, keep_rows) || !is_ring_sound(&setup.ring_backward, keep_rows)) {
        return mok_base_fail(MOK_ERR_INTERNAL,
                             "backend %s chose path %d, %d communication and %d computation workers: a value breaks plan/ring.h", ops->name,
                             (int)setup.path, (int)setup.comm_workers, (int)setup.compute_workers);
    }
    *setup_out = setup;
    return MOK_OK;
}
