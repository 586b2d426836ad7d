/*
 * Which ways to meet this build has.
 */
#include <stddef.h>

#include "base/status.h"
#include "peer/peer.h"

mok_status mok_peer_find(int32_t kind, const struct mok_peer_ops **ops_out)
{
    switch (kind) {
    case MOK_PEER_THREADS: *ops_out = &mok_peer_threads; return MOK_OK;
    case MOK_PEER_EXTERNAL: *ops_out = &mok_peer_external; return MOK_OK;
    case MOK_PEER_MPI:
#ifdef MOK_HAVE_MPI
        *ops_out = &mok_peer_mpi;
        return MOK_OK;
#else
        return mok_base_fail(MOK_ERR_NOT_BUILT, "peer is mpi, but this library was built without MPI");
#endif
    case MOK_PEER_NCCL:
#ifdef MOK_HAVE_NCCL
        *ops_out = &mok_peer_nccl;
        return MOK_OK;
#else
        return mok_base_fail(MOK_ERR_NOT_BUILT, "peer is nccl, but this library was built without CUDA and NCCL");
#endif
    }
    return mok_base_fail(MOK_ERR_ARGUMENT, "peer is %d: must be a mok_peer_kind (0..3)", kind);
}

mok_status mok_peer_probe(int32_t kind)
{
    const struct mok_peer_ops *ops = NULL;
    MOK_TRY(mok_peer_find(kind, &ops));
    return ops->probe();
}
