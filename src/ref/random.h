/*
 * Numbers that are the same in every process: a stream is named by a text, a purpose and an index, and hands out its values in order.
 */
#ifndef MOK_REF_RANDOM_H
#define MOK_REF_RANDOM_H

#include <stdint.h>

struct mok_ref_random {
    uint64_t state;
};

/* What a stream is for; streams of different purposes have nothing in common. */
enum mok_ref_purpose {
    MOK_FOR_X,
    MOK_FOR_DY,
    MOK_FOR_IDS,
    MOK_FOR_ROUTER,
    MOK_FOR_SHARED_W,
    MOK_FOR_WEIGHTS,
    MOK_FOR_SHARED_WEIGHTS,
    MOK_FOR_START,
    MOK_FOR_DELAY
};

struct mok_ref_random mok_ref_random_open(const char *name, uint32_t round, enum mok_ref_purpose purpose, uint64_t idx);
uint64_t mok_ref_random_bits(struct mok_ref_random *random);
/* 0 <= result < below. */
int64_t mok_ref_random_below(struct mok_ref_random *random, int64_t below);
/* Uniform in (0, 1). */
double mok_ref_random_unit(struct mok_ref_random *random);
/* Normal, mean 0, variance 1. */
double mok_ref_random_normal(struct mok_ref_random *random);

#endif
