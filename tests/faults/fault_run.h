/*
 * Ranks as processes of their own, so that one of them can die, stop or sleep while the others live. Regions stand in POSIX shared memory
 * that every process maps for itself, at addresses of its own; what the ranks saw goes back to the test through one shared block.
 *
 * Nothing here can hang: children have an alarm, die with the test, and are waited for with a limit.
 */
#ifndef MOK_FAULT_RUN_H
#define MOK_FAULT_RUN_H

#include <stdatomic.h>
#include <sys/types.h>

#include <mok/mok.h>

enum { FAULT_MAX_RANKS = 4, FAULT_HARD_LIMIT_S = 120 };

/* Where a sanitizer slows everything down, limits grow with it. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FAULT_SLOWNESS 2
#else
#define FAULT_SLOWNESS 1
#endif

/* What one rank saw. Written by it, read by the test after it has ended. */
struct fault_note {
    int32_t is_complete;
    mok_status created;
    mok_status status;    /* of the first call that failed */
    mok_status destroyed;
    mok_fault fault;
    int64_t fault_ns;     /* bad rank: when it did what it did */
    int64_t called_ns;    /* begin of the call that failed, its end, end of destroy */
    int64_t failed_ns;
    int64_t destroyed_ns;
    uint64_t passes_done;
    int32_t num_later;       /* later calls on the group */
    int32_t num_later_wrong; /* of these, not with the same status */
    int64_t num_failures;    /* rows and elements outside their bounds */
    int32_t entry_seen, exit_seen; /* bad rank: had it arrived at ENTRY and EXIT of the pass when it did it? */
    char message[512];       /* mok_last_error of the call that failed */
};

struct fault_shared {
    atomic_int released; /* set by the test: sleepers go on */
    struct fault_note note[FAULT_MAX_RANKS];
};

struct fault_run {
    int32_t num_ranks;
    size_t region_bytes;
    struct fault_shared *shared;
    int region[FAULT_MAX_RANKS]; /* descriptors of the shared memory */
    pid_t child[FAULT_MAX_RANKS];
};

/* Runs in a process of its own; its result is the exit status. */
typedef int fault_rank_main(struct fault_run *run, int32_t rank, const void *context);

int64_t fault_now_ns(void);
void fault_sleep_ms(int64_t ms);

/* Makes regions and the shared block. Asserts on failure, as all functions of the test process do. */
void fault_run_open(struct fault_run *run, int32_t num_ranks, size_t region_bytes);
void fault_run_start(struct fault_run *run, fault_rank_main *rank_main, const void *context);
/* Waits until a rank has ended: its exit status, or -signal. Fails the test (and ends all ranks) when limit_ms is over. */
int fault_run_wait(struct fault_run *run, int32_t rank, int64_t limit_ms);
/* Waits until a rank has stopped. */
void fault_run_wait_stopped(struct fault_run *run, int32_t rank, int64_t limit_ms);
void fault_run_continue(struct fault_run *run, int32_t rank);
/* Ends what still runs and gives everything back. */
void fault_run_close(struct fault_run *run);

/* In a rank: maps all regions; bases_out [num_ranks]. */
int fault_run_map(const struct fault_run *run, int32_t rank, void **bases_out);

#endif
