/*
 * What the kinds of peers share. See member.h.
 */
#include "peer/member.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"

enum {
    YIELDS = 64,         /* turns of a wait that only yield: peers that run need no more */
    NAP_NS = 50000,      /* then a nap: creation takes milliseconds anyhow */
    MAX_NAMED_RANKS = 12 /* in a message */
};

mok_status mok_peer_create(size_t bytes, const struct mok_peer_ops *ops, const mok_group_config *config, struct mok_peer **peer_out)
{
    struct mok_peer *peer = calloc(1, bytes);
    if (peer == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory for a peer", config->rank);
    }
    peer->base = calloc((size_t)config->num_ranks, sizeof *peer->base);
    peer->device = malloc((size_t)config->num_ranks * sizeof *peer->device);
    if (peer->base == NULL || peer->device == NULL) {
        mok_peer_destroy(peer);
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory for the addresses of %d ranks", config->rank, config->num_ranks);
    }
    for (int32_t r = 0; r < config->num_ranks; r++) {
        peer->device[r] = -1;
    }
    peer->ops = ops;
    peer->rank = config->rank;
    peer->num_ranks = config->num_ranks;
    peer->timeout_ms = config->peer_timeout_ms;
    *peer_out = peer;
    return MOK_OK;
}

void mok_peer_destroy(struct mok_peer *peer)
{
    free(peer->base);
    free(peer->device);
    free(peer);
}

void mok_peer_forget_regions(struct mok_peer *peer)
{
    memset(peer->base, 0, (size_t)peer->num_ranks * sizeof *peer->base);
    peer->bytes = 0;
}

int64_t mok_peer_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t mok_peer_deadline_ns(int64_t timeout_ms)
{
    int64_t now = mok_peer_clock_ns();
    if (timeout_ms <= 0) {
        return now;
    }
    return timeout_ms > (INT64_MAX - now) / 1000000 ? INT64_MAX : now + timeout_ms * 1000000;
}

void mok_peer_pause(int32_t *turns)
{
    if (*turns < YIELDS) {
        (*turns)++;
        sched_yield();
        return;
    }
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

void mok_peer_list_ranks(const uint8_t *is_named, int32_t num_ranks, char *text, size_t size)
{
    int32_t num_named = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        num_named += is_named[r] != 0;
    }
    size_t used = 0;
    int32_t num_written = 0;
    text[0] = '\0';
    for (int32_t r = 0; r < num_ranks && num_written < MAX_NAMED_RANKS && used < size; r++) {
        if (is_named[r]) {
            const char *lead = num_written > 0 ? ", " : num_named == 1 ? "rank " : "ranks ";
            used += (size_t)snprintf(text + used, size - used, "%s%d", lead, r);
            num_written++;
        }
    }
    if (num_named > num_written && used < size) {
        snprintf(text + used, size - used, " and %d more", num_named - num_written);
    }
}

mok_status mok_peer_give_up(int32_t rank, mok_status failure, const char *reason)
{
    char own[32];
    int length = snprintf(own, sizeof own, "rank %d ", rank);
    return strncmp(reason, own, (size_t)length) == 0 ? mok_base_fail(failure, "%s", reason)
                                                     : mok_base_fail(failure, "rank %d gave up, because %s", rank, reason);
}

static mok_status refuse_offer(const struct mok_peer *peer, int32_t rank, const struct mok_peer_offer *offer)
{
    unsigned long long bytes = offer->bytes;
    switch (offer->status) {
    case MOK_ERR_ARGUMENT:
        return mok_base_fail(MOK_ERR_ARGUMENT, "the region of rank %d has %llu bytes, %llu are needed", rank,
                             (unsigned long long)offer->room, bytes);
    case MOK_ERR_UNSUPPORTED:
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "peer %s needs regions in host memory, that of rank %d would be on device %d",
                             peer->ops->name, rank, offer->device);
    default: return mok_base_fail((mok_status)offer->status, "rank %d has no memory for its region of %llu bytes", rank, bytes);
    }
}

static mok_status check_offers(const struct mok_peer *peer, const struct mok_peer_offer *offers)
{
    for (int32_t r = 0; r < peer->num_ranks; r++) {
        if (offers[r].bytes != offers[0].bytes) {
            return mok_base_fail(MOK_ERR_DISAGREE, "rank %d wants a region of %llu bytes, rank 0 of %llu", r,
                                 (unsigned long long)offers[r].bytes, (unsigned long long)offers[0].bytes);
        }
    }
    for (int32_t r = 0; r < peer->num_ranks; r++) {
        if (offers[r].status != MOK_OK) {
            return refuse_offer(peer, r, &offers[r]);
        }
    }
    return MOK_OK;
}

mok_status mok_peer_exchange_offers(struct mok_peer *peer, const struct mok_peer_offer *mine)
{
    struct mok_peer_offer *offers = malloc((size_t)peer->num_ranks * sizeof *offers);
    if (offers == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory for the addresses of %d ranks", peer->rank, peer->num_ranks);
    }
    mok_status status = peer->ops->allgather(peer, mine, sizeof *mine, offers);
    if (status == MOK_OK) {
        status = check_offers(peer, offers);
    }
    for (int32_t r = 0; r < peer->num_ranks && status == MOK_OK; r++) {
        peer->base[r] = (char *)(uintptr_t)offers[r].address;
        peer->device[r] = offers[r].device;
    }
    free(offers);
    return status;
}
