/*
 * Addresses of all ranks' parts of an NCCL symmetric window, through ncclGetLsaPointer: nothing is built on the layout of NCCL's own structs.
 */
#include <nccl.h>
#include <nccl_device.h>

#include "peer/nccl_window.h"

extern "C" __global__ void find_bases(ncclWindow_t window, int32_t num_ranks, void **bases_out)
{
    for (int32_t r = (int32_t)threadIdx.x; r < num_ranks; r += (int32_t)blockDim.x) {
        bases_out[r] = ncclGetLsaPointer(window, 0, r);
    }
}

extern "C" __global__ void check_bases(void *const *bases, int32_t num_ranks, uint32_t *sum_out)
{
    for (int32_t r = (int32_t)threadIdx.x; r < num_ranks; r += (int32_t)blockDim.x) {
        if (*(const volatile uint32_t *)bases[r] == (uint32_t)r + 1) {
            atomicAdd(sum_out, 1u);
        }
    }
}

enum { THREADS = 128 };

int mok_peer_nccl_reachable(void *comm) { return ncclTeamLsa((ncclComm_t)comm).nRanks; }

int mok_peer_nccl_bases(void *window, int32_t num_ranks, void **bases_out, void *stream)
{
    find_bases<<<1, THREADS, 0, (cudaStream_t)stream>>>((ncclWindow_t)window, num_ranks, bases_out);
    return (int)cudaGetLastError();
}

int mok_peer_nccl_check(void *const *bases, int32_t num_ranks, uint32_t *sum_out, void *stream)
{
    check_bases<<<1, THREADS, 0, (cudaStream_t)stream>>>(bases, num_ranks, sum_out);
    return (int)cudaGetLastError();
}
