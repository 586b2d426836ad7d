/*
 * The source of the barriers between ranks, compiled for the emulated machine: one rank's kernel, and what its peers do meanwhile.
 */
#include "emulate_hw.h"

#include "cuda/barrier.cu"
#include "emulate_meet.h"

struct meeting_of_ranks {
    const struct mok_cuda_barrier_args *args;
    void (*deed)(void *context);
    void *context;
};

static void run_thread(const void *meeting)
{
    const struct meeting_of_ranks *meet = (const struct meeting_of_ranks *)meeting;
    if (emulate_thread() == 0 && meet->deed != NULL) {
        emulate_deed(meet->deed, meet->context);
    }
    barrier_between_ranks(*meet->args);
}

extern "C" void emulate_barrier(const struct mok_cuda_barrier_args *args, void (*deed)(void *context), void *context, uint64_t seed)
{
    struct meeting_of_ranks meet = {args, deed, context};
    emulate_run(run_thread, &meet, 1, 1, 1, seed);
}
