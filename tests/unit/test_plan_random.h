/*
 * Random numbers for the plan tests: a fixed sequence per seed, so that a failure can be repeated from the seed it prints.
 */
#ifndef MOK_TEST_PLAN_RANDOM_H
#define MOK_TEST_PLAN_RANDOM_H

#include <stdint.h>

struct plan_random {
    uint64_t state;
};

/* splitmix64 */
static inline uint64_t plan_random_next(struct plan_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* An integer of [low, high]. */
static inline int32_t plan_random_in(struct plan_random *random, int32_t low, int32_t high)
{
    return low + (int32_t)(plan_random_next(random) % ((uint64_t)high - (uint64_t)low + 1));
}

/* 1 with a chance of `percent` in a hundred. */
static inline int plan_random_chance(struct plan_random *random, int32_t percent) { return plan_random_in(random, 0, 99) < percent; }

#endif
