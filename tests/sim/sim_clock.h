/*
 * Vector clocks. Every worker counts its own operations; a release hands its clock on, an acquire joins what was handed on. An access (id,
 * tick) happened before everything that worker w does now exactly when w's clock holds at least `tick` for `id`.
 *
 * A worker has two clock ids and changes between them from pass to pass: on a GPU, CTA i of one kernel and CTA i of the next are ordered by
 * the stream alone, so nothing may lean on "the same worker did it". Its final sum has a third, so that the order of just these reads can
 * be broken.
 */
#ifndef MOK_SIM_CLOCK_H
#define MOK_SIM_CLOCK_H

#include <stdint.h>
#include <string.h>

/* Every clock has a word for each worker of each rank: four ranks unless a program asks for more. */
#ifndef SIM_RANKS
#define SIM_RANKS 4
#endif

enum {
    SIM_MAX_RANKS = SIM_RANKS,
    SIM_MAX_WORKERS = 6, /* of a rank */
    SIM_MAX_ACTORS = SIM_MAX_RANKS * SIM_MAX_WORKERS,
    SIM_IDS = 3, /* of an actor */
    SIM_MAX_IDS = SIM_IDS * SIM_MAX_ACTORS
};

struct sim_clock {
    uint32_t at[SIM_MAX_IDS];
};

static inline void sim_clock_clear(struct sim_clock *clock) { memset(clock, 0, sizeof *clock); }

static inline void sim_clock_join(struct sim_clock *clock, const struct sim_clock *other)
{
    for (int i = 0; i < SIM_MAX_IDS; i++) {
        clock->at[i] = clock->at[i] > other->at[i] ? clock->at[i] : other->at[i];
    }
}

#endif
