/*
 * See board_swap.h.
 */
#include "peer/board_swap.h"

/* System scope: ranks on other GPUs swap the same word. */
extern "C" __global__ void swap_word(unsigned long long *word, unsigned long long expected, unsigned long long desired, unsigned long long *found)
{
    *found = atomicCAS_system(word, expected, desired);
    __threadfence_system();
}

int mok_peer_load_swap(void)
{
    cudaFuncAttributes attributes;
    return (int)cudaFuncGetAttributes(&attributes, (const void *)swap_word);
}

int mok_peer_swap_word(void *word, uint64_t expected, uint64_t desired, void *found, void *stream)
{
    swap_word<<<1, 1, 0, (cudaStream_t)stream>>>((unsigned long long *)word, expected, desired, (unsigned long long *)found);
    return (int)cudaGetLastError();
}
