/*
 * A counter run through a 64-bit mixing function; the key is FNV-1a over the name.
 */
#include "ref/random.h"

#include <math.h>

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct mok_ref_random mok_ref_random_open(const char *name, uint32_t round, enum mok_ref_purpose purpose, uint64_t idx)
{
    uint64_t key = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++) {
        key = (key ^ (uint8_t)*name) * 0x100000001b3u;
    }
    key = mix(key ^ ((uint64_t)round << 32) ^ (uint64_t)purpose);
    return (struct mok_ref_random){mix(key ^ idx)};
}

uint64_t mok_ref_random_bits(struct mok_ref_random *random)
{
    random->state += 0x9e3779b97f4a7c15u;
    return mix(random->state);
}

int64_t mok_ref_random_below(struct mok_ref_random *random, int64_t below)
{
    return (int64_t)(mok_ref_random_bits(random) % (uint64_t)below);
}

double mok_ref_random_unit(struct mok_ref_random *random) { return ((double)(mok_ref_random_bits(random) >> 11) + 0.5) * 0x1p-53; }

double mok_ref_random_normal(struct mok_ref_random *random)
{
    double radius = sqrt(-2.0 * log(mok_ref_random_unit(random)));
    return radius * cos(6.283185307179586 * mok_ref_random_unit(random));
}
