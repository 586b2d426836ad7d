/*
 * Addresses of all ranks' parts of an NCCL symmetric window. They can be asked for on the device only.
 */
#ifndef MOK_PEER_NCCL_WINDOW_H
#define MOK_PEER_NCCL_WINDOW_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ranks of a communicator (ncclComm_t) that can load from each other's memory. */
int mok_peer_nccl_reachable(void *comm);

/* Enqueues a kernel on `stream` (cudaStream_t) that writes bases_out[r], device memory, for every rank of the window's team. Returns a cudaError_t. */
int mok_peer_nccl_bases(void *window, int32_t num_ranks, void **bases_out, void *stream);

/* ... and one that adds up what the first word of every rank's part says: *sum_out, device memory, becomes the number of ranks r whose word is r + 1. */
int mok_peer_nccl_check(void *const *bases, int32_t num_ranks, uint32_t *sum_out, void *stream);

#ifdef __cplusplus
}
#endif
#endif
