/*
 * The fused backward kernel's own source, compiled for the emulated machine.
 */
#include "emulate_hw.h"

#include "cuda/fused/backward/fused_backward_args.h" /* before the name of its shared memory becomes a macro */

#define shared_bytes (*emulate_shared())
#include "cuda/fused/backward/fused_backward_kernel.cu"
#undef shared_bytes

static void run_thread(const void *args) { fused_backward(*(const struct mok_fused_backward_args *)args); }

extern "C" void emulate_fused_backward(const void *args, int32_t num_ctas, int32_t cluster, int32_t resident, uint64_t seed)
{
    emulate_run(run_thread, args, num_ctas, cluster, resident, seed);
}
