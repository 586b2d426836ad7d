/*
 * Where the tensors of a case live: host memory for the CPU backend, device memory for CUDA, behind one table.
 */
#ifndef MOK_CASE_MEMORY_H
#define MOK_CASE_MEMORY_H

#include <mok/mok.h>

struct mok_case_memory {
    const char *name;
    /* Called first in the thread or process of a rank. Picks the device, makes the stream. */
    mok_status (*open)(int32_t rank, int32_t *device_out, mok_stream *stream_out);
    void (*close)(mok_stream stream);
    void *(*alloc)(size_t bytes); /* 256-byte aligned, NULL = none left */
    void (*free)(void *memory);
    /* All four return when the copy is done. */
    mok_status (*upload)(void *to, const void *from, size_t bytes);
    mok_status (*download)(void *to, const void *from, size_t bytes);
    mok_status (*fill)(void *to, int byte, size_t bytes);
};

extern const struct mok_case_memory mok_case_memory_host;
extern const struct mok_case_memory mok_case_memory_cuda; /* only in builds with CUDA (MOK_HAVE_CUDA) */

/* The memory of a backend; NULL when this build has none. */
const struct mok_case_memory *mok_case_memory_of(int32_t backend);

#endif
