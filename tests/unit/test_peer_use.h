/*
 * What every kind of peer must do for ranks that behave: exchange, zeroed regions, memory that all see. Used by the tests of each kind.
 * Nothing here asserts: ranks may be threads or processes, which report what they found.
 */
#ifndef MOK_TEST_PEER_USE_H
#define MOK_TEST_PEER_USE_H

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "peer/member.h"

enum { MAX_RANKS = 8, REGION_BYTES = 70000 };

static atomic_int num_regions; /* allocated and not freed */

static void *alloc_region(void *context, size_t bytes)
{
    (void)context;
    size_t rounded = (bytes + 255) / 256 * 256;
    void *region = aligned_alloc(256, rounded);
    if (region != NULL) {
        memset(region, 0, rounded);
        atomic_fetch_add(&num_regions, 1);
    }
    return region;
}

static void free_region(void *context, void *region)
{
    (void)context;
    atomic_fetch_sub(&num_regions, 1);
    free(region);
}

static const struct mok_peer_memory host_memory = {.alloc = alloc_region, .free = free_region, .device = -1};

static void nap(int32_t ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static int64_t fingerprint(int32_t rank, int32_t round) { return ((int64_t)rank << 32) * 7 + round * 1000003; }

static mok_status exchange_some(struct mok_peer *peer, int32_t num_rounds, int *num_wrong)
{
    int64_t all[MAX_RANKS];
    for (int32_t round = 0; round < num_rounds; round++) {
        int64_t mine = fingerprint(peer->rank, round);
        mok_status status = peer->ops->allgather(peer, &mine, sizeof mine, all);
        if (status != MOK_OK) {
            return status;
        }
        for (int32_t r = 0; r < peer->num_ranks; r++) {
            *num_wrong += all[r] != fingerprint(r, round);
        }
    }
    return MOK_OK;
}

/* Every byte behind the boards is zero; then each rank writes a byte of its own into all regions, and each finds all of them in its own. */
static mok_status touch_regions(struct mok_peer *peer, int *num_wrong)
{
    const char *own = peer->base[peer->rank];
    for (size_t i = (size_t)peer->num_ranks * MOK_BOARD_BYTES; i < peer->bytes; i++) {
        *num_wrong += own[i] != 0;
    }
    mok_status status = exchange_some(peer, 1, num_wrong); /* all have looked */
    for (int32_t r = 0; r < peer->num_ranks; r++) {
        *num_wrong += ((uintptr_t)peer->base[r] & 255) != 0 || peer->device[r] != -1;
        peer->base[r][peer->bytes - 1 - (size_t)peer->rank] = (char)(peer->rank + 1);
    }
    status = status == MOK_OK ? exchange_some(peer, 1, num_wrong) : status; /* all have written */
    for (int32_t r = 0; r < peer->num_ranks; r++) {
        *num_wrong += own[peer->bytes - 1 - (size_t)r] != r + 1;
    }
    return status == MOK_OK ? exchange_some(peer, 1, num_wrong) : status; /* all have looked */
}

/* The life of a peer between join and leave. */
static mok_status use_peer(struct mok_peer *peer, size_t bytes, const struct mok_peer_memory *memory, int *num_wrong)
{
    mok_status status = exchange_some(peer, 20, num_wrong);
    if (status == MOK_OK) {
        status = peer->ops->map(peer, bytes, memory);
    }
    if (status == MOK_OK) {
        status = touch_regions(peer, num_wrong);
        peer->ops->unmap(peer, 0);
    }
    return status;
}

#endif
