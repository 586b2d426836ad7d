/*
 * Times of ranks to times and floors of a run. Ranks that share a GPU add up there: their dense products run one after another, and their
 * bytes go through one memory. Between GPUs the slowest counts.
 */
#include "bench/bench_measure.h"

#include <string.h>

static double larger(double a, double b) { return a > b ? a : b; }

/* A floor as its three terms, of one GPU. */
struct terms {
    double dense_ms, memory_bytes, link_bytes;
};

static double floor_of(const struct terms *terms, const struct mok_bench_run *run, double *bound_out)
{
    double memory_ms = run->memory_rate > 0.0 ? terms->memory_bytes / run->memory_rate : 0.0;
    double link_ms = run->link_rate > 0.0 ? terms->link_bytes / run->link_rate : 0.0;
    double most = larger(terms->dense_ms, larger(memory_ms, link_ms));
    *bound_out = most == link_ms && link_ms > 0.0  ? MOK_BENCH_BY_LINK
                 : most == memory_ms && most > 0.0 ? MOK_BENCH_BY_MEMORY
                                                   : MOK_BENCH_BY_DENSE;
    return most;
}

static void fold_layer(const struct mok_bench_job *job, int32_t num_ranks, struct mok_bench_run *run)
{
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        const struct mok_bench_times *times = &job->times[rank];
        for (int32_t lane = 0; lane < MOK_BENCH_MAX_LANES; lane++) {
            run->layer_ms[lane][0] = larger(run->layer_ms[lane][0], times->layer_ms[lane][0]);
            run->layer_ms[lane][1] = larger(run->layer_ms[lane][1], times->layer_ms[lane][1]);
            run->zero_copy_ms[lane] = larger(run->zero_copy_ms[lane], times->zero_copy_ms[lane]);
            run->schedule_ms[lane] = larger(run->schedule_ms[lane], times->schedule_ms[lane]);
        }
        for (int stage = 0; stage < MOK_BENCH_NUM_STAGES; stage++) {
            run->stage_ms[stage] = larger(run->stage_ms[stage], times->stage_ms[stage]);
        }
    }
}

/* A copy reads and writes. Only the first rank of a GPU copies. */
static void fold_rates(const struct mok_bench_job *job, struct mok_bench_run *run)
{
    double copy_ms = 0.0, link_ms = 0.0;
    for (int32_t device = 0; device < job->facts.num_devices; device++) {
        copy_ms = larger(copy_ms, job->times[device].copy_ms);
        link_ms = larger(link_ms, job->times[device].link_ms);
    }
    run->memory_rate = copy_ms > 0.0 ? 2.0 * MOK_BENCH_COPY_BYTES / copy_ms : 0.0;
    run->link_rate = link_ms > 0.0 ? MOK_BENCH_COPY_BYTES / link_ms : 0.0;
}

static double dense_on(const struct mok_bench_job *job, int32_t num_ranks, int32_t device, int first, int num)
{
    double sum = 0.0;
    for (int32_t rank = device; rank < num_ranks; rank += job->facts.num_devices) {
        for (int gemm = first; gemm < first + num; gemm++) {
            sum += job->times[rank].gemm_ms[gemm];
        }
    }
    return sum;
}

static void fold_dense(const struct mok_bench_job *job, int32_t num_ranks, struct mok_bench_run *run)
{
    const int forward = MOK_BENCH_NUM_FORWARD_GEMMS;
    for (int32_t device = 0; device < job->facts.num_devices; device++) {
        for (int gemm = 0; gemm < MOK_BENCH_NUM_GEMMS; gemm++) {
            run->gemm_ms[gemm] = larger(run->gemm_ms[gemm], dense_on(job, num_ranks, device, gemm, 1));
        }
        run->dense_ms[0] = larger(run->dense_ms[0], dense_on(job, num_ranks, device, 0, forward));
        run->dense_ms[1] = larger(run->dense_ms[1], dense_on(job, num_ranks, device, forward, MOK_BENCH_NUM_GEMMS - forward));
    }
}

static void fold_stage_floor(const struct mok_bench_job *job, int32_t num_ranks, int32_t set, int stage, struct mok_bench_run *run)
{
    const struct mok_bench_stage *what = mok_bench_stage_at(stage);
    for (int32_t device = 0; device < job->facts.num_devices; device++) {
        struct terms terms = {.dense_ms = dense_on(job, num_ranks, device, what->first_gemm, what->num_gemms)};
        double bound;
        for (int32_t rank = device; rank < num_ranks; rank += job->facts.num_devices) {
            terms.memory_bytes += mok_bench_stage_bytes(&job->gpus[rank].sets[set].sizes, stage);
            terms.link_bytes += mok_bench_stage_link_bytes(&job->gpus[rank].sets[set].sizes, stage);
        }
        double least = floor_of(&terms, run, &bound);
        if (least >= run->stage_floor_ms[stage]) {
            run->stage_floor_ms[stage] = least;
            run->bound[stage] = bound;
        }
    }
    run->stage_floors_ms[what->is_backward] += run->stage_floor_ms[stage];
}

static void fold_pass_floor(const struct mok_bench_job *job, int32_t num_ranks, int32_t set, int is_backward, struct mok_bench_run *run)
{
    const int forward = MOK_BENCH_NUM_FORWARD_GEMMS;
    for (int32_t device = 0; device < job->facts.num_devices; device++) {
        int first = is_backward ? forward : 0, num = is_backward ? MOK_BENCH_NUM_GEMMS - forward : forward;
        struct terms terms = {.dense_ms = dense_on(job, num_ranks, device, first, num)};
        double bound;
        for (int32_t rank = device; rank < num_ranks; rank += job->facts.num_devices) {
            terms.memory_bytes += mok_bench_pass_bytes(&job->gpus[rank].sets[set].sizes, is_backward);
            terms.link_bytes += mok_bench_pass_link_bytes(&job->gpus[rank].sets[set].sizes);
        }
        run->floor_ms[is_backward] = larger(run->floor_ms[is_backward], floor_of(&terms, run, &bound));
    }
}

void mok_bench_fold(const struct mok_bench_job *job, int32_t num_ranks, int32_t set, struct mok_bench_run *run_out)
{
    memset(run_out, 0, sizeof *run_out);
    run_out->sample = job->sample;
    fold_layer(job, num_ranks, run_out);
    fold_rates(job, run_out);
    fold_dense(job, num_ranks, run_out);
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        fold_pass_floor(job, num_ranks, set, is_backward, run_out);
    }
    for (int stage = 0; stage < MOK_BENCH_NUM_STAGES; stage++) {
        fold_stage_floor(job, num_ranks, set, stage, run_out);
    }
}
