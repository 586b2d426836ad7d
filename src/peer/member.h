/*
 * What the kinds of peers share: making a peer and its fields, bounded waiting, naming of ranks, and the exchange that ends `map`.
 */
#ifndef MOK_PEER_MEMBER_H
#define MOK_PEER_MEMBER_H

#include "peer/peer.h"

/* A peer of the kind `ops`: an object of `bytes` that begins with its struct mok_peer and is zero behind it. Errors: MEMORY. */
mok_status mok_peer_create(size_t bytes, const struct mok_peer_ops *ops, const mok_group_config *config, struct mok_peer **peer_out);
void mok_peer_destroy(struct mok_peer *peer);

/* The end of unmap: no region has an address here any more. */
void mok_peer_forget_regions(struct mok_peer *peer);

/* Monotonic clock, and the moment timeout_ms from now; a limit that does not fit is no earlier than the end of the clock. */
int64_t mok_peer_clock_ns(void);
int64_t mok_peer_deadline_ns(int64_t timeout_ms);

/* One turn of a polling wait: yields at first, then sleeps for moments, so that ranks that share a core let each other run. */
void mok_peer_pause(int32_t *turns);

/* Writes "rank 3" or "ranks 1, 2, 5" into text: those with is_named[rank] != 0. A long list is cut and its rest counted. */
void mok_peer_list_ranks(const uint8_t *is_named, int32_t num_ranks, char *text, size_t size);

/* Fails with a reason that a rank saw and that holds for all; the sentence begins with this rank, in its own words or as one who was told. */
mok_status mok_peer_give_up(int32_t rank, mok_status failure, const char *reason);

/* What each rank says at the end of map. */
struct mok_peer_offer {
    uint64_t address; /* of the own region, where ranks share an address space, else 0 */
    uint64_t bytes;   /* wanted */
    uint64_t room;    /* bytes that there are */
    int32_t device;
    int32_t status; /* MOK_OK, or why this rank cannot map: MEMORY, ARGUMENT (less room than bytes), UNSUPPORTED (device memory) */
};

/* Collective. Exchanges offers; fails on every rank when one rank cannot map or the sizes differ. Fills peer->base and peer->device. */
mok_status mok_peer_exchange_offers(struct mok_peer *peer, const struct mok_peer_offer *mine);

#endif
