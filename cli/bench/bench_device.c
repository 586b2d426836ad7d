/*
 * See bench/bench_device.h: the frame around bench/bench_measure.c.
 */
#include "bench/bench_device.h"

#include <inttypes.h>
#include <stdlib.h>

#include "bench/bench_report.h"
#include "bench/bench_sweep.h"

int32_t mok_bench_device_count(void) { return mok_bench_count_gpus(); }

static mok_status open_machine(struct mok_bench_job *job)
{
    char name[256], bus[32];
    int32_t num_sms;
    MOK_TRY(mok_bench_describe_gpu(0, name, sizeof name, bus, sizeof bus, &num_sms));
    mok_bench_machine_open(bus, &job->machine);
    job->facts.gate = mok_bench_gate_alloc();
    return job->facts.gate != NULL ? MOK_OK : mok_cli_fail(MOK_ERR_MEMORY, "no pinned host memory for the gate");
}

static mok_status run_job(const struct mok_bench_settings *settings, struct mok_team *team, struct mok_bench_job *job)
{
    int32_t num_gpus = mok_bench_count_gpus();
    job->facts.settings = settings;
    job->facts.router = &job->router;
    job->facts.num_devices = team->num_ranks < num_gpus ? team->num_ranks : num_gpus;
    MOK_TRY(mok_bench_router_open(settings, &job->router));
    MOK_TRY(open_machine(job));
    mok_status found = mok_bench_cublas_find(&job->facts.cublas);
    if (found == MOK_ERR_ARGUMENT) {
        return found; /* without any cuBLAS there are no dense times, and the report says so; with a wrong name the user waits for them in vain */
    }
    if (settings->sweep != NULL) {
        return mok_bench_sweep(job, team);
    }
    MOK_TRY(mok_team_run(team, mok_bench_measure, job));
    mok_cli_progress_end();
    if (mok_bench_prints_text(settings)) {
        mok_bench_print(job, team);
    }
    return settings->json == NULL ? MOK_OK : mok_bench_write(job, team, settings->json);
}

mok_status mok_bench_device(const struct mok_bench_settings *settings, struct mok_team *team)
{
    struct mok_bench_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return mok_cli_fail(MOK_ERR_MEMORY, "no memory");
    }
    mok_status status = run_job(settings, team, job);
    if (job->facts.gate != NULL) {
        mok_bench_gate_free(job->facts.gate);
    }
    mok_bench_router_close(&job->router);
    free(job);
    return status;
}
