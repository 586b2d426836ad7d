/*
 * A machine that runs a Hopper kernel on the CPU, thread by thread, so that its waits and hand-overs are tested where no GPU is. Not a
 * model of time.
 *
 * Threads of all CTAs are fibers of one thread of the host; whoever waits gives the turn to a fiber drawn at random from a seed. Copies of
 * the copy engine and matrix products happen late, at a random moment that their completion mechanism allows: so what is overwritten too
 * early or read too soon comes out wrong. Memory is coherent: missing fences are not found.
 *
 * An address of shared memory is 24 bits of offset, and the CTA's rank in its cluster above them, as mapa would give it.
 */
#ifndef MOK_EMULATE_H
#define MOK_EMULATE_H

#include <stddef.h>
#include <stdint.h>

enum { EMULATE_THREADS = 384, EMULATE_SHARED_BYTES = 227 * 1024, EMULATE_MAX_CLUSTER = 2 };

/* What a tensor map holds here, in front of the 128 bytes of a CUtensorMap. */
struct emulate_map {
    char *base;
    int64_t cols, rows;
    int64_t row_bytes, matrix_bytes;
    int32_t box_cols, box_rows;
    int32_t element_bytes;
};

/* A function whose fmaf is one instruction where the machine has it, and a call elsewhere: the bits are the same. */
#if defined(__x86_64__) && !defined(__clang__)
#define EMULATE_FMA __attribute__((target_clones("fma", "default")))
#else
#define EMULATE_FMA
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Runs `num_ctas` CTAs of kernel(args), in clusters of `cluster`. No more than `resident` CTAs are there at one time; the next cluster comes
 * when one is done. */
void emulate_run(void (*kernel)(const void *args), const void *args, int32_t num_ctas, int32_t cluster, int32_t resident, uint64_t seed);

/* From a running thread: deed(context) happens at a random moment from now on. */
void emulate_deed(void (*deed)(void *context), void *context);

/* The next arrival at one of the barriers that stand in bytes [first, end) of a CTA's shared memory is lost, once: for tests of limits. */
void emulate_lose_arrival(uint32_t first, uint32_t end);

/* The next announcement of the counter `word` is lost, once: likewise. */
void emulate_lose_count(const uint32_t *word);

/* ---- what a running thread may call; they may give the turn away ---------------------------------------------------------------- */

unsigned emulate_thread(void);
unsigned emulate_block(void);
unsigned emulate_grid(void);
unsigned emulate_cluster_rank(void);
uint8_t (*emulate_shared(void))[]; /* of the CTA */
uint64_t emulate_ticks(void);
void emulate_yield(void);
/* Says what is wrong and ends the process. */
void emulate_fail(const char *what);

void emulate_sync_warp(void);
void emulate_sync_cta(void);
/* Whether all threads of the CTA gave a value other than 0. */
int emulate_sync_cta_and(int value);
void emulate_cluster_arrive(void);
void emulate_cluster_wait(void);
/* Each lane gives a value; slots[lane] of all lanes come back. */
void emulate_gather(uint64_t value, uint64_t *slots_out);

uint32_t emulate_address(const void *shared);
uint8_t *emulate_at(uint32_t address);

void emulate_barrier_init(uint32_t barrier, uint32_t arrivals);
void emulate_barrier_arrive(uint32_t barrier, int64_t expected_bytes);
int emulate_barrier_passed(uint32_t barrier, uint32_t parity);
/* The same after a while, if it is not so at once. */
int emulate_barrier_try_wait(uint32_t barrier, uint32_t parity);

/* 1: this announcement is the one that is lost. */
int emulate_loses_count(const uint32_t *word);

/* ctas: bit mask over the cluster. */
void emulate_load_box(uint32_t to, const void *map, uint32_t barrier, uint32_t ctas, int32_t c0, int32_t c1, int32_t c2);
void emulate_store_box(const void *map, uint32_t from, int32_t c0, int32_t c1, int32_t c2);
void emulate_load_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
void emulate_store_bytes(void *to, uint32_t from, uint32_t bytes);
void emulate_commit(void);
/* Until at most `count` of the thread's groups are unfinished: with their reading, or altogether. */
void emulate_wait_groups(int count, int reading);

/* acc = or += A B of a warpgroup, operands at these descriptors' addresses, K-major or (mn) MN-major; done when it is waited for. */
void emulate_multiply(float *acc, uint64_t a, uint64_t b, int a_mn, int b_mn, int first);
void emulate_multiply_commit(void);
void emulate_multiply_wait(int count);

#ifdef __cplusplus
}
#endif
#endif
