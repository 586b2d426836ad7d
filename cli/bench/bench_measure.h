/*
 * The runs of `mok bench` on GPUs, and what is made of one run over all ranks.
 *
 * Rounds. First the layer: per run forward, backward (each behind a gate, caches overwritten before), the dense products one by one, a
 * memory copy, a copy over links. Then the stages: the same with the staged path's stages timed by the library's trace.
 */
#ifndef MOK_CLI_BENCH_MEASURE_H
#define MOK_CLI_BENCH_MEASURE_H

#include "bench/bench_gpu.h"
#include "bench/bench_machine.h"
#include "team.h"

/* What a run of the layer is. Forward passes have their schedule in front. */
enum mok_bench_pass {
    MOK_BENCH_FORWARD,
    MOK_BENCH_BACKWARD,
    MOK_BENCH_ZERO_COPY /* a forward pass that finds x in the saved object's memory: it was put there before the clock starts */
};

/* Which term of a floor is the largest. */
enum mok_bench_bound { MOK_BENCH_BY_DENSE, MOK_BENCH_BY_MEMORY, MOK_BENCH_BY_LINK };

/* One run, folded over ranks: times are those of the slowest rank or GPU, rates (bytes a millisecond) those of the slowest GPU. 0 = not
 * measured. */
struct mok_bench_run {
    double layer_ms[MOK_BENCH_MAX_LANES][2]; /* [lane][is_backward] */
    double zero_copy_ms[MOK_BENCH_MAX_LANES]; /* forward */
    double schedule_ms[MOK_BENCH_MAX_LANES];
    double gemm_ms[MOK_BENCH_NUM_GEMMS];
    double dense_ms[2];
    double memory_rate, link_rate;
    double floor_ms[2];        /* of a pass */
    double stage_floors_ms[2]; /* sum of the floors of its stages */
    double stage_ms[MOK_BENCH_NUM_STAGES];
    double stage_floor_ms[MOK_BENCH_NUM_STAGES];
    double bound[MOK_BENCH_NUM_STAGES]; /* mok_bench_bound */
    struct mok_bench_sample sample;     /* GPU 0 while the dense products run */
};

/* One rank's times of the run that is going on, milliseconds. */
struct mok_bench_times {
    double layer_ms[MOK_BENCH_MAX_LANES][2];
    double zero_copy_ms[MOK_BENCH_MAX_LANES];
    double schedule_ms[MOK_BENCH_MAX_LANES];
    double gemm_ms[MOK_BENCH_NUM_GEMMS];
    double copy_ms, link_ms;
    double stage_ms[MOK_BENCH_NUM_STAGES];
};

struct mok_bench_job {
    struct mok_bench_facts facts;
    struct mok_bench_router router;
    struct mok_bench_machine machine; /* of GPU 0 */
    struct mok_bench_gpu gpus[MOK_SHAPE_MAX_RANKS];
    struct mok_bench_times times[MOK_SHAPE_MAX_RANKS];
    struct mok_bench_sample sample;
    struct mok_bench_run layer_runs[MOK_BENCH_MAX_REPEATS];
    struct mok_bench_run stage_runs[MOK_BENCH_MAX_REPEATS];
    /* kept for the report when the ranks have closed */
    struct mok_bench_sizes sizes[MOK_SHAPE_MAX_RANKS]; /* of the last set */
    int32_t paths[MOK_BENCH_MAX_LANES];
    int32_t num_lanes;
    int cublas_version;
};

/* One rank and what it works with. */
struct mok_bench_seat {
    struct mok_bench_job *job;
    struct mok_team *team;
    struct mok_bench_gpu *gpu;
    struct mok_bench_times *times;
    mok_event *events; /* of the stages */
    uint32_t round;    /* of the gate; the same on all ranks */
};

/* A pass on all ranks at once, started by one word behind the gate, caches overwritten before. Every rank comes, also one that has failed; on
 * failure the rank's groups are aborted. Returns the rank's own status. */
mok_status mok_bench_run_pass(struct mok_bench_seat *seat, mok_status status, enum mok_bench_pass pass, int32_t lane, int32_t set,
                              double *ms_out);
/* Likewise: dense products, copies. Out: the rank's times. */
mok_status mok_bench_run_yardsticks(struct mok_bench_seat *seat, mok_status status, int32_t set);

/* One rank: opens, measures, closes. For mok_team_run; context: the job. */
mok_status mok_bench_measure(void *context, struct mok_team *team, const mok_group_config *config);

/* Times of all ranks in one run with one set of routes to a run. Pure (bench/bench_fold.c). */
void mok_bench_fold(const struct mok_bench_job *job, int32_t num_ranks, int32_t set, struct mok_bench_run *run_out);

#endif
