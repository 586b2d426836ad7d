/*
 * MOK_LANES_ARRIVE = 1: a build for compute-sanitizer's racecheck alone (cmake -DMOK_LANES_ARRIVE=ON; tests/gpu/run.sh --long makes it).
 *
 * As a rule one lane waits or arrives at a barrier for its warp, and __syncwarp stands between it and what the other lanes read and write. Racecheck
 * (2025.3.1) follows a barrier thread by thread, so it reports the accesses of the other lanes; and it does not see stmatrix. In this build every lane
 * waits and arrives for itself, the counts of those barriers are 32 times as large, and stmatrix is ordinary stores. Who waits for whom, and what stands
 * before and behind, is the same, so what racecheck still reports is a fault, or goes through global memory (docs/protocol.md, section 7).
 */
#ifndef MOK_CUDA_HW_LANES_CUH
#define MOK_CUDA_HW_LANES_CUH

#ifndef MOK_LANES_ARRIVE
#define MOK_LANES_ARRIVE 0
#endif

#endif
