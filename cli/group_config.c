/*
 * Questions to a group's config. See group_config.h.
 */
#include "group_config.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/blas_room.h"
#include "case/case_memory.h"
#include "command_line.h"

int mok_config_is_cuda(const mok_group_config *config)
{
    if (config->backend != MOK_BACKEND_AUTO) {
        return config->backend == MOK_BACKEND_CUDA;
    }
    return config->peer != MOK_PEER_MPI && mok_case_memory_of(MOK_BACKEND_CUDA) != NULL && mok_backend_available(MOK_BACKEND_CUDA);
}

const char *mok_config_backend_name(const mok_group_config *config) { return mok_config_is_cuda(config) ? "cuda" : "cpu"; }

const char *mok_config_peer_name(const mok_group_config *config)
{
    static const char *const names[] = {
        [MOK_PEER_THREADS] = "threads", [MOK_PEER_MPI] = "mpi", [MOK_PEER_NCCL] = "nccl", [MOK_PEER_EXTERNAL] = "external"};
    return names[config->peer];
}

mok_status mok_config_check_backend(const mok_group_config *config)
{
    mok_backend backend = mok_config_is_cuda(config) ? MOK_BACKEND_CUDA : MOK_BACKEND_CPU;
    if (mok_case_memory_of(backend) == NULL) {
        return mok_cli_fail(MOK_ERR_NOT_BUILT, "this build has no CUDA backend");
    }
    if (mok_backend_available(backend)) {
        return MOK_OK;
    }
    /* The library tells the reason, but not its status. */
    return mok_cli_check(backend == MOK_BACKEND_CPU && !mok_blas_has_room(1) ? MOK_ERR_MEMORY : MOK_ERR_NO_DEVICE);
}

mok_status mok_config_check_saved(const mok_group_config *config)
{
    return config->num_saved >= 1
               ? MOK_OK
               : mok_cli_fail(MOK_ERR_ARGUMENT, "%s is %" PRId64 ": must be at least 1, for the backward pass of this command",
                              mok_cli_setter("saved"), (int64_t)config->num_saved);
}

void mok_config_warn_workers(const mok_group_config *config, int32_t num_ranks)
{
    enum { MOST_PER_CPU = 4 };
    int64_t num = ((int64_t)config->comm_workers + config->compute_workers) * num_ranks; /* auto is 0 and counts as none */
    int64_t num_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (num > MOST_PER_CPU * num_cpus && !mok_config_is_cuda(config)) {
        mok_cli_progress_end();
        fprintf(stderr, "mok: warning: %" PRId64 " workers of %" PRId32 " rank%s on %" PRId64 " CPU%s: expect slow passes and time-outs\n",
                num, num_ranks, num_ranks == 1 ? "" : "s", num_cpus, num_cpus == 1 ? "" : "s");
    }
}
