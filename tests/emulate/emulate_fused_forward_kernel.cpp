/*
 * The fused forward kernel's own source, compiled for the emulated machine.
 */
#include "emulate_hw.h"

#include "cuda/fused/fused_args.h" /* before the name of its shared memory becomes a macro */

#define shared_bytes (*emulate_shared())
#include "cuda/fused/forward/fused_forward_kernel.cu"
#undef shared_bytes

static void run_thread(const void *args) { fused_forward(*(const struct mok_fused_args *)args); }

extern "C" void emulate_fused(const void *args, int32_t num_ctas, int32_t cluster, int32_t resident, uint64_t seed)
{
    emulate_run(run_thread, args, num_ctas, cluster, resident, seed);
}

extern "C" void emulate_fused_lose_panel(void)
{
    uint32_t first = (uint32_t)offsetof(mok_fused_shared, panel_full);
    emulate_lose_arrival(first, first + (uint32_t)sizeof(((mok_fused_shared *)NULL)->panel_full));
}
