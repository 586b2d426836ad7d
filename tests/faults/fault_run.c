/*
 * Processes, shared memory and limits of the fault tests.
 */
#define _GNU_SOURCE
#include "fault_run.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

int64_t fault_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void fault_sleep_ms(int64_t ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&pause, &pause) != 0 && errno == EINTR) {
    }
}

/* Shared memory that has a name only until it is open. */
static int open_region(size_t bytes, int32_t rank)
{
    char name[64];
    snprintf(name, sizeof name, "/mok-fault-%ld-%d", (long)getpid(), rank);
    int region = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(region >= 0);
    assert_int_equal(shm_unlink(name), 0);
    assert_int_equal(ftruncate(region, (off_t)bytes), 0);
    return region;
}

void fault_run_open(struct fault_run *run, int32_t num_ranks, size_t region_bytes)
{
    memset(run, 0, sizeof *run);
    run->num_ranks = num_ranks;
    run->region_bytes = region_bytes;
    run->shared = mmap(NULL, sizeof *run->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(run->shared != MAP_FAILED);
    for (int32_t r = 0; r < num_ranks; r++) {
        run->region[r] = open_region(region_bytes, r);
    }
}

int fault_run_map(const struct fault_run *run, int32_t rank, void **bases_out)
{
    for (int32_t i = 0; i < run->num_ranks; i++) {
        int32_t r = (rank + i) % run->num_ranks; /* another order, and so other addresses, in each process */
        bases_out[r] = mmap(NULL, run->region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, run->region[r], 0);
        if (bases_out[r] == MAP_FAILED) {
            return 0;
        }
    }
    return 1;
}

void fault_run_start(struct fault_run *run, fault_rank_main *rank_main, const void *context)
{
    fflush(NULL);
    for (int32_t r = 0; r < run->num_ranks; r++) {
        run->child[r] = fork();
        assert_true(run->child[r] >= 0);
        if (run->child[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(FAULT_HARD_LIMIT_S);
            exit(rank_main(run, r, context));
        }
    }
}

static void end_all(struct fault_run *run)
{
    for (int32_t r = 0; r < run->num_ranks; r++) {
        if (run->child[r] > 0) {
            kill(run->child[r], SIGKILL);
            waitpid(run->child[r], NULL, 0);
            run->child[r] = 0;
        }
    }
}

/* Waits for a change of the rank's process: ended, or (with WUNTRACED) stopped. */
static int wait_for_change(struct fault_run *run, int32_t rank, int options, int64_t limit_ms)
{
    int64_t deadline = fault_now_ns() + limit_ms * 1000000;
    int state = 0;
    for (;;) {
        pid_t changed = waitpid(run->child[rank], &state, options | WNOHANG);
        if (changed == run->child[rank]) {
            return state;
        }
        if (changed < 0 || fault_now_ns() > deadline) {
            end_all(run);
            fail_msg("rank %d did not %s within %lld ms", rank, options & WUNTRACED ? "stop" : "end", (long long)limit_ms);
        }
        fault_sleep_ms(2);
    }
}

int fault_run_wait(struct fault_run *run, int32_t rank, int64_t limit_ms)
{
    int state = wait_for_change(run, rank, 0, limit_ms);
    run->child[rank] = 0;
    return WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
}

void fault_run_wait_stopped(struct fault_run *run, int32_t rank, int64_t limit_ms)
{
    int state = wait_for_change(run, rank, WUNTRACED, limit_ms);
    if (!WIFSTOPPED(state)) {
        run->child[rank] = 0;
        end_all(run);
        fail_msg("rank %d ended instead of stopping", rank);
    }
}

void fault_run_continue(struct fault_run *run, int32_t rank) { assert_int_equal(kill(run->child[rank], SIGCONT), 0); }

void fault_run_close(struct fault_run *run)
{
    end_all(run);
    for (int32_t r = 0; r < run->num_ranks; r++) {
        close(run->region[r]);
    }
    munmap(run->shared, sizeof *run->shared);
}
