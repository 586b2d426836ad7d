/*
 * Under racecheck this program shows what that tool sees of a hand-off between two warps, so that what it says of the kernels means something
 * (run.sh --long, docs/protocol.md section 7). Without it, that the hand-offs are right.
 *
 *   gpu_handoff HOW...
 *
 * each-lane: every lane waits and arrives for itself, as in a build with MOK_LANES_ARRIVE; one-lane: one does for its warp, as in the library;
 * with these: across: the writer is in the other CTA of the cluster; early: a fault, the reader lets the writer go on before it has read; matrix: the
 * writer uses stmatrix (not with across)
 */
#include <string.h>

#include "gpu_check.h"
#include "gpu_handoff.h"

enum { ROUNDS = 64 };

int main(int argc, char **argv)
{
    struct gpu_handoff how = {.rounds = ROUNDS};
    uint32_t sum = 0, expected = 0;
    if (gpu_count() == 0) {
        gpu_skip("hand-off: no GPU");
        return gpu_finish();
    }
    for (int i = 1; i < argc; i++) {
        how.each_lane |= strcmp(argv[i], "each-lane") == 0;
        how.across |= strcmp(argv[i], "across") == 0;
        how.early |= strcmp(argv[i], "early") == 0;
        how.matrix |= strcmp(argv[i], "matrix") == 0;
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        expected += 32 * round + 31 * 32 / 2;
    }
    int error = gpu_run_handoff(&how, &sum);
    gpu_check(error == 0 && (how.early || sum == expected), "hand-off: CUDA error %d, sum %u of %u%s", error, (unsigned)sum,
              (unsigned)expected, how.early ? ", a fault on purpose" : "");
    return gpu_finish();
}
