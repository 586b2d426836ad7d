/*
 * Room for the buffers of OpenBLAS. Each thread inside a call holds one, and a thread that cannot allocate it tries again for ever: under a
 * limit of address space (ulimit -v, batch systems) the call never comes back. So whoever is about to call looks first.
 */
#ifndef MOK_BASE_BLAS_ROOM_H
#define MOK_BASE_BLAS_ROOM_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* 128 MiB in OpenBLAS for servers (BUFFER_SIZE), a page behind it, and what malloc adds. */
#define MOK_BLAS_BUFFER_BYTES (((size_t)128 << 20) + ((size_t)64 << 10))

/* 1 when `num` buffers can be had now, all at once; none is kept, no page is touched. One by one, as OpenBLAS does: a single mapping of them
 * all may be refused where they are not. */
static inline int mok_blas_has_room(int64_t num)
{
    void **buffers = (void **)calloc((size_t)num + 1, sizeof *buffers);
    int64_t got = 0;
    while (buffers != NULL && got < num) {
        void *buffer = mmap(NULL, MOK_BLAS_BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (buffer == MAP_FAILED) {
            break;
        }
        buffers[got++] = buffer;
    }
    for (int64_t idx = 0; idx < got; idx++) {
        munmap(buffers[idx], MOK_BLAS_BUFFER_BYTES);
    }
    int has_room = buffers != NULL && got == num;
    free(buffers);
    return has_room;
}

#endif
