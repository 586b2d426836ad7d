/*
 * What this build is, what this machine can do, and which experts are local.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifdef MOK_HAVE_CPU
#include <cblas.h>
#endif
#ifdef MOK_HAVE_MPI
#include <mpi.h>
#endif

#include "api/check.h"
#include "base/log.h"
#include "base/status.h"

int mok_version(void) { return MOK_VERSION; }

mok_status mok_local_experts(int32_t num_experts, int32_t num_ranks, int32_t rank, int32_t *first_out, int32_t *num_out)
{
    if (num_experts < 1 || num_experts > MOK_MAX_EXPERTS) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "num_experts is %" PRId32 ": must be from 1 to %d", num_experts, MOK_MAX_EXPERTS);
    }
    if (num_ranks < 1 || num_ranks > MOK_MAX_RANKS) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "num_ranks is %" PRId32 ": must be from 1 to %d", num_ranks, MOK_MAX_RANKS);
    }
    if (rank < 0 || rank >= num_ranks) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "rank is %" PRId32 ": must be from 0 to num_ranks - 1, %" PRId32, rank, num_ranks - 1);
    }
    MOK_TRY(mok_api_check_given("first_out", first_out));
    MOK_TRY(mok_api_check_given("num_out", num_out));
    *first_out = mok_plan_first_expert(num_experts, num_ranks, rank);
    *num_out = mok_plan_num_local(num_experts, num_ranks, rank);
    return MOK_OK;
}

/* Whoever asks what there is gets the reason as an answer; the log is for failures. */
static mok_status probe_quietly(mok_status (*probe)(int32_t), int32_t kind)
{
    mok_base_log_pause();
    mok_status status = probe(kind);
    mok_base_log_resume();
    return status;
}

static mok_status probe_backend(int32_t backend)
{
    switch ((mok_backend)backend) {
    case MOK_BACKEND_AUTO:
    case MOK_BACKEND_CPU:
#ifdef MOK_HAVE_CPU
        return mok_pass_cpu.probe();
#else
        return mok_base_fail(MOK_ERR_NOT_BUILT, "this build of the library has no CPU backend");
#endif
    case MOK_BACKEND_CUDA:
#ifdef MOK_HAVE_CUDA
        return mok_pass_cuda.probe();
#else
        return mok_base_fail(MOK_ERR_NOT_BUILT, "this build of the library has no CUDA backend");
#endif
    }
    return mok_base_fail(MOK_ERR_ARGUMENT, "backend is %d: must be a mok_backend (0..2)", backend);
}

int mok_backend_available(mok_backend backend) { return probe_quietly(probe_backend, (int32_t)backend) == MOK_OK; }

int mok_peer_available(mok_peer_kind peer) { return probe_quietly(mok_peer_probe, (int32_t)peer) == MOK_OK; }

/* ---- build info ---------------------------------------------------------------------------------------------------------- */

static char info_text[2048];
static size_t info_used;
static pthread_once_t info_once = PTHREAD_ONCE_INIT;

__attribute__((format(printf, 1, 2))) static void add_line(const char *format, ...)
{
    size_t room = sizeof info_text - info_used;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(info_text + info_used, room, format, args);
    va_end(args);
    info_used += length < 0 ? 0 : (size_t)length < room ? (size_t)length : room - 1;
}

static void add_backend(const char *name, mok_backend backend)
{
    mok_status status = probe_quietly(probe_backend, (int32_t)backend);
    add_line("backend %s: %s%s%s\n", name, status == MOK_OK ? "usable" : mok_status_name(status), status == MOK_OK ? "" : ", ",
             status == MOK_OK ? "" : mok_last_error());
}

static void make_info(void)
{
    static const char *const peers[] = {"threads", "mpi", "nccl", "external"};
    add_line("libmok %d.%d.%d\n", MOK_VERSION_MAJOR, MOK_VERSION_MINOR, MOK_VERSION_PATCH);
#ifdef __clang__
    add_line("compiler: clang %s\n", __clang_version__);
#else
    add_line("compiler: gcc %s\n", __VERSION__);
#endif
#ifdef MOK_HAVE_CPU
    add_line("BLAS: %s\n", openblas_get_config());
#endif
#ifdef MOK_HAVE_MPI
    char mpi[MPI_MAX_LIBRARY_VERSION_STRING];
    int mpi_length = 0;
    MPI_Get_library_version(mpi, &mpi_length);
    add_line("MPI: %.*s\n", (int)strcspn(mpi, ",\n"), mpi);
#endif
    add_backend("cpu", MOK_BACKEND_CPU);
    add_backend("cuda", MOK_BACKEND_CUDA);
    for (int kind = 0; kind < (int)(sizeof peers / sizeof peers[0]); kind++) {
        mok_status status = probe_quietly(mok_peer_probe, kind);
        add_line("peer %s: %s%s%s\n", peers[kind], status == MOK_OK ? "usable" : mok_status_name(status), status == MOK_OK ? "" : ", ",
                 status == MOK_OK ? "" : mok_last_error());
    }
    /* The last line carries no line end: '\n' separates. */
    if (info_used > 0 && info_text[info_used - 1] == '\n') {
        info_text[--info_used] = '\0';
    }
}

const char *mok_build_info(void)
{
    pthread_once(&info_once, make_info);
    return info_text;
}
