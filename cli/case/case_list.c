/*
 * See case/case_list.h.
 */
#include "case/case_list.h"

#define BIT(idx) (1u << (unsigned)(idx))

static const struct backend {
    int32_t backend;
    unsigned paths; /* bits of mok_path */
    unsigned ranks; /* bits of enum mok_case_ranks */
} backends[] = {
    /* Workers walk the plan in two roles: that is the fused path, and launches there are none. */
    {MOK_BACKEND_CPU, BIT(MOK_PATH_AUTO) | BIT(MOK_PATH_FUSED),
     BIT(MOK_CASE_THREADS) | BIT(MOK_CASE_EXTERNAL) | BIT(MOK_CASE_PROCESSES) | BIT(MOK_CASE_MPI)},
    /* Peer mpi shares host memory; device memory does not survive a fork. */
    {MOK_BACKEND_CUDA, BIT(MOK_PATH_AUTO) | BIT(MOK_PATH_STAGED) | BIT(MOK_PATH_FUSED), BIT(MOK_CASE_THREADS) | BIT(MOK_CASE_EXTERNAL)},
};

static const struct backend *find(int32_t backend)
{
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if (backends[i].backend == backend) {
            return &backends[i];
        }
    }
    return NULL;
}

int mok_case_has_path(int32_t backend, int32_t path)
{
    const struct backend *found = find(backend);
    return found != NULL && (found->paths & BIT(path)) != 0;
}

int mok_case_has_ranks(int32_t backend, enum mok_case_ranks ranks)
{
    const struct backend *found = find(backend);
    return found != NULL && (found->ranks & BIT(ranks)) != 0;
}

int mok_case_is_listed(const struct mok_ref_case *recipe, const struct mok_case_where *where)
{
    return mok_case_has_ranks(where->backend, where->ranks) && mok_case_has_path(where->backend, recipe->knobs.path);
}
