/*
 * Peer access between the GPUs of one process.
 */
#ifndef MOK_PEER_ACCESS_H
#define MOK_PEER_ACCESS_H

#include <mok/mok.h>

/* Lets `device` load from and store to the memory of `peer`, another device of this process that cudaDeviceCanAccessPeer has said yes to. Done once
 * for a pair, however many groups ask. The current device is what it was. Errors: UNSUPPORTED, DEVICE. Only in builds with CUDA. */
mok_status mok_peer_enable_access(int32_t device, int32_t peer);

#endif
