/*
 * Notice boards in the memory of GPUs: the access table that peer/notice.h asks for. Words are copied by the GPU's copy engine through pinned memory, and
 * swapped by a kernel of one thread. Slow, some tens of microseconds a word, and used while a group is made and nowhere else.
 */
#ifndef MOK_PEER_DEVICE_BOARD_H
#define MOK_PEER_DEVICE_BOARD_H

#include "peer/notice.h"

struct mok_device_board;

/* Lets `device` reach the regions: those of other devices of this process get peer access; regions that another process made are mapped already.
 * regions [num_ranks], addresses on `device`. Errors: ARGUMENT (no device memory), UNSUPPORTED (no peer access), MEMORY, DEVICE. */
mok_status mok_peer_device_board_open(int32_t device, char *const *regions, int32_t num_ranks, struct mok_device_board **board_out);
/* NULL is accepted. */
void mok_peer_device_board_close(struct mok_device_board *board);

const struct mok_notice_access *mok_peer_device_board_access(const struct mok_device_board *board);
/* Zeros, there when it returns. */
mok_status mok_peer_device_board_clear(struct mok_device_board *board, void *to, size_t bytes);

#endif
