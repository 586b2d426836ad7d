/*
 * Inside of the machine: what emulate.cpp (fibers, collectives) and emulate_copy.cpp (copies, barriers, products) share.
 */
#ifndef MOK_EMULATE_MACHINE_H
#define MOK_EMULATE_MACHINE_H

#include <setjmp.h>
#include <ucontext.h>

#include <deque>
#include <functional>
#include <vector>

#include "emulate.h"

enum { EMULATE_WARP = 32 };

/* Threads that meet: the last one to come opens the next round. */
struct meeting {
    int count = 0;
    unsigned round = 0;
};

struct cluster;
struct thread;

struct cta {
    uint8_t *shared;
    struct thread *threads[EMULATE_THREADS];
    unsigned block, rank;
    struct cluster *cluster;
    struct meeting all;
    struct meeting warp[EMULATE_THREADS / EMULATE_WARP];
    uint64_t slots[EMULATE_THREADS];
};

struct cluster {
    struct cta ctas[EMULATE_MAX_CLUSTER];
    struct meeting all;
    int threads_left = 0;
};

/* A store of the copy engine, in two steps. */
struct store {
    unsigned is_read = 0, is_written = 0;
};

struct product {
    float *acc;
    uint32_t a, b;
    int a_mn, b_mn, first;
};

struct thread {
    ucontext_t context; /* where it begins */
    jmp_buf place;      /* where it goes on */
    int has_begun = 0;
    void *stack;
    struct cta *cta;
    unsigned idx;
    unsigned cluster_round;
    const unsigned *word = NULL; /* what it waits for: that this is no longer `seen`; NULL = nothing. Until then its turns pass without it */
    unsigned seen;
    uint64_t until; /* and no longer than to this tick */
    int is_done = 0;
    std::vector<struct store *> open;
    std::deque<std::vector<struct store *>> groups;
    std::vector<struct product> open_products;
    std::deque<std::vector<struct product>> products;
};

extern struct thread *emulate_me;

/* Goes on in a turn that finds another value in the word than `seen`. As often as a loop around emulate_yield would, and without its jumps. */
void emulate_wait_word(const unsigned *word, unsigned seen);
/* The same, at most up to the tick `until`. */
void emulate_wait_word_until(const unsigned *word, unsigned seen, uint64_t until);
/* Less than `most` ticks, drawn at random; as often as not none. */
uint64_t emulate_patience(uint64_t most);

/* Runs `work` at a random moment from now on. */
void emulate_later(std::function<void(void)> work);

/* Where an address of a cluster is. */
static inline uint8_t *emulate_locate(struct cluster *cluster, uint32_t address)
{
    return cluster->ctas[address >> 24].shared + (address & 0xffffff);
}

#endif
