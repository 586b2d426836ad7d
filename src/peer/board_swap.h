/*
 * Compare and swap of a word in the memory of any GPU of the group.
 */
#ifndef MOK_PEER_BOARD_SWAP_H
#define MOK_PEER_BOARD_SWAP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the kernel on the current device. Returns a cudaError_t, as the next. */
int mok_peer_load_swap(void);

/* Enqueues on `stream` (cudaStream_t): *found (uint64, pinned host memory) becomes what *word was, which becomes `desired` if that was `expected`. */
int mok_peer_swap_word(void *word, uint64_t expected, uint64_t desired, void *found, void *stream);

#ifdef __cplusplus
}
#endif
#endif
