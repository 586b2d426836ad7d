/*
 * Fibers, their scheduler, and how they meet. See emulate.h.
 */
#include "emulate_machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

static const size_t STACK_BYTES = 256 * 1024;
static const uint64_t MAX_DELAY = 3000; /* ticks, of a copy; one in RARE takes LONGER times as long */
static const uint64_t RARE = 4, LONGER = 30;
static const uint64_t MAX_TICKS = 4000000000u; /* of a kernel: waits inside it end long before */

struct event {
    uint64_t at;
    std::function<void(void)> work;
};

struct thread *emulate_me;

static struct {
    jmp_buf scheduler;
    void (*kernel)(const void *args);
    const void *args;
    unsigned num_ctas, cluster_size;
    uint64_t ticks, random;
    std::vector<struct event> events;
    uint64_t next_event; /* no event is due before */
    std::vector<struct thread *> live;
    unsigned num_done; /* of live */
} machine;

static uint64_t draw(void)
{
    machine.random ^= machine.random << 13;
    machine.random ^= machine.random >> 7;
    machine.random ^= machine.random << 17;
    return machine.random;
}

/* ---- a thread's view -------------------------------------------------------------------------------------------------------- */

unsigned emulate_thread(void) { return emulate_me->idx; }
unsigned emulate_block(void) { return emulate_me->cta->block; }
unsigned emulate_grid(void) { return machine.num_ctas; }
unsigned emulate_cluster_rank(void) { return emulate_me->cta->rank; }
uint64_t emulate_ticks(void) { return machine.ticks; }
uint8_t (*emulate_shared(void))[] { return (uint8_t(*)[])emulate_me->cta->shared; }

/* Jumps between stacks that are all alive: swapcontext would do the same with two system calls, which were most of a run's time. */
void emulate_yield(void)
{
    if (_setjmp(emulate_me->place) == 0) {
        _longjmp(machine.scheduler, 1);
    }
}

void emulate_wait_word_until(const unsigned *word, unsigned seen, uint64_t until)
{
    if (*word == seen) {
        emulate_me->seen = seen;
        emulate_me->until = until;
        emulate_me->word = word;
        emulate_yield();
    }
}

void emulate_wait_word(const unsigned *word, unsigned seen) { emulate_wait_word_until(word, seen, UINT64_MAX); }

uint64_t emulate_patience(uint64_t most) { return draw() % 2 == 0 ? 0 : draw() % most; }

void emulate_fail(const char *what)
{
    printf("emulated machine: %s (block %u, thread %u)\n", what, emulate_me->cta->block, emulate_me->idx);
    exit(1);
}

static void meet(struct meeting *meeting, int threads)
{
    unsigned round = meeting->round;
    if (++meeting->count == threads) {
        meeting->count = 0;
        meeting->round++;
    }
    emulate_wait_word(&meeting->round, round);
}

void emulate_sync_warp(void) { meet(&emulate_me->cta->warp[emulate_me->idx / EMULATE_WARP], EMULATE_WARP); }
void emulate_sync_cta(void) { meet(&emulate_me->cta->all, EMULATE_THREADS); }

int emulate_sync_cta_and(int value)
{
    struct cta *cta = emulate_me->cta;
    cta->slots[emulate_me->idx] = value != 0;
    emulate_sync_cta();
    int all = std::all_of(cta->slots, cta->slots + EMULATE_THREADS, [](uint64_t slot) { return slot != 0; });
    emulate_sync_cta();
    return all;
}

void emulate_cluster_arrive(void)
{
    struct meeting *all = &emulate_me->cta->cluster->all;
    emulate_me->cluster_round = all->round;
    if (++all->count == EMULATE_THREADS * (int)machine.cluster_size) {
        all->count = 0;
        all->round++;
    }
}

void emulate_cluster_wait(void) { emulate_wait_word(&emulate_me->cta->cluster->all.round, emulate_me->cluster_round); }

void emulate_gather(uint64_t value, uint64_t *slots_out)
{
    unsigned first = emulate_me->idx / EMULATE_WARP * EMULATE_WARP;
    emulate_me->cta->slots[emulate_me->idx] = value;
    emulate_sync_warp();
    memcpy(slots_out, &emulate_me->cta->slots[first], EMULATE_WARP * sizeof *slots_out);
    emulate_sync_warp();
}

void emulate_later(std::function<void(void)> work)
{
    uint64_t delay = draw() % MAX_DELAY * (draw() % RARE == 0 ? LONGER : 1);
    machine.events.push_back({machine.ticks + delay, std::move(work)});
    machine.next_event = std::min(machine.next_event, machine.ticks + delay);
}

void emulate_deed(void (*deed)(void *context), void *context)
{
    emulate_later([deed, context] { deed(context); });
}

/* ---- scheduler -------------------------------------------------------------------------------------------------------------- */

static void begin_thread(void)
{
    machine.kernel(machine.args);
    emulate_me->is_done = 1;
    machine.num_done++;
    emulate_yield();
}

static void start_thread(struct cta *cta, unsigned idx)
{
    struct thread *thread = new struct thread;
    thread->cta = cta;
    thread->idx = idx;
    thread->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&thread->context);
    thread->context.uc_stack.ss_sp = thread->stack;
    thread->context.uc_stack.ss_size = STACK_BYTES;
    thread->context.uc_link = NULL; /* begin_thread does not return */
    makecontext(&thread->context, begin_thread, 0);
    machine.live.push_back(thread);
    cta->threads[idx] = thread;
    cta->cluster->threads_left++;
}

static void start_cluster(struct cluster *cluster, unsigned first_block)
{
    for (unsigned rank = 0; rank < machine.cluster_size; rank++) {
        struct cta *cta = &cluster->ctas[rank];
        cta->shared = (uint8_t *)aligned_alloc(1024, EMULATE_SHARED_BYTES);
        memset(cta->shared, 0xff, EMULATE_SHARED_BYTES); /* whatever was there */
        cta->block = first_block + rank;
        cta->rank = rank;
        cta->cluster = cluster;
        for (unsigned idx = 0; idx < EMULATE_THREADS; idx++) {
            start_thread(cta, idx);
        }
    }
}

/* The thread runs until it yields. */
static void run_thread_on(struct thread *thread)
{
    emulate_me = thread;
    if (_setjmp(machine.scheduler) != 0) {
        return;
    }
    if (thread->has_begun) {
        _longjmp(thread->place, 1);
    }
    thread->has_begun = 1;
    setcontext(&thread->context);
}

/* A stretch of the live threads takes its turn, from a random place on. */
static void run_some(void)
{
    size_t place = draw() % machine.live.size(), count = std::min<size_t>(machine.live.size(), 1 + draw() % EMULATE_THREADS);
    for (size_t i = 0; i < count; i++) {
        struct thread *thread = machine.live[place];
        place = place + 1 < machine.live.size() ? place + 1 : 0;
        if (thread->is_done) {
            continue;
        }
        if (thread->word == NULL || *thread->word != thread->seen || machine.ticks >= thread->until) {
            thread->word = NULL;
            run_thread_on(thread);
        }
        machine.ticks++;
    }
}

static void run_events(uint64_t until)
{
    if (until < machine.next_event) {
        return;
    }
    for (size_t i = 0; i < machine.events.size();) {
        if (machine.events[i].at > until) {
            i++;
            continue;
        }
        std::function<void(void)> work = std::move(machine.events[i].work);
        machine.events[i] = std::move(machine.events.back());
        machine.events.pop_back();
        work();
    }
    machine.next_event = UINT64_MAX;
    for (const struct event &event : machine.events) {
        machine.next_event = std::min(machine.next_event, event.at);
    }
}

/* Threads that are done leave; returns the clusters that are done with them. */
static unsigned bury(void)
{
    unsigned ended = 0;
    for (size_t i = 0; i < machine.live.size() && machine.num_done > 0;) {
        struct thread *thread = emulate_me = machine.live[i];
        if (!thread->is_done) {
            i++;
            continue;
        }
        if (!thread->open.empty()) {
            emulate_fail("a thread left with stores that it had not committed");
        }
        for (auto &group : thread->groups) {
            for (struct store *store : group) {
                if (!store->is_read) {
                    emulate_fail("a thread left while its stores still read shared memory");
                }
            }
        }
        ended += --thread->cta->cluster->threads_left == 0;
        munmap(thread->stack, STACK_BYTES);
        delete thread;
        machine.live[i] = machine.live.back();
        machine.live.pop_back();
        machine.num_done--;
    }
    return ended;
}

void emulate_run(void (*kernel)(const void *args), const void *args, int32_t num_ctas, int32_t cluster, int32_t resident, uint64_t seed)
{
    std::vector<struct cluster> clusters((size_t)(num_ctas / cluster));
    machine.kernel = kernel;
    machine.args = args;
    machine.num_ctas = (unsigned)num_ctas;
    machine.cluster_size = (unsigned)cluster;
    machine.ticks = machine.next_event = machine.num_done = 0;
    machine.random = seed * 0x9e3779b97f4a7c15u + 1;
    unsigned started = 0, ended = 0;
    while (ended < clusters.size()) {
        while (started < clusters.size() && (int32_t)(started - ended + 1) * cluster <= std::max(resident, cluster)) {
            start_cluster(&clusters[started], started * machine.cluster_size);
            started++;
        }
        run_some();
        run_events(machine.ticks);
        if (machine.ticks > MAX_TICKS) {
            emulate_fail("no end");
        }
        ended += bury();
    }
    run_events(UINT64_MAX);
    for (struct cluster &done : clusters) {
        for (int32_t rank = 0; rank < cluster; rank++) {
            free(done.ctas[rank].shared);
        }
    }
}
