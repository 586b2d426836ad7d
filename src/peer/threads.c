/*
 * Ranks of one process. They meet in a hub; the region of a rank is memory of its backend, and its address is good for all.
 *
 * A hub holds the meeting that is still open: not failed, and some rank has not come. A rank that joins takes its seat there, or opens the next:
 * so the n-th group of one rank meets the n-th of the others. A seat that is taken has two callers who claim one rank, for a rank
 * comes to its next meeting when the last has let it go; that fails the meeting at once. A meeting that failed is over: a rank that comes too
 * late finds the next one, and the hub is as good as before.
 *
 * A meeting works in rounds; joining is round 1 and each allgather one more. Two halves of a seat take turns: who enters round n + 1 has
 * seen all enter round n, so all have copied round n - 1 out, and its half may be written. Everything is guarded by the hub's lock.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/limits.h"
#include "base/status.h"
#include "peer/member.h"

struct seat {
    int is_taken;
    int64_t rounds; /* entered so far */
    int has_left;
    size_t bytes[2];
    char data[2][MOK_BOARD_DATA];
};

struct meeting {
    int32_t num_peers;    /* that hold it */
    mok_status failure;   /* MOK_OK, or why every further round fails */
    char reason[256];
    struct seat seats[]; /* [num_ranks] */
};

struct mok_hub {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* some seat or failure of some meeting */
    int32_t num_ranks;
    int32_t num_holders;  /* the caller, and every peer */
    struct meeting *open; /* NULL = none */
};

struct threads_peer {
    struct mok_peer peer; /* first, so that a peer is one of these */
    mok_hub *hub;
    struct meeting *meeting;
    struct mok_peer_memory memory; /* of the own region, once mapped */
};

/* ---- hub ---------------------------------------------------------------------------------------------------------------- */

mok_status mok_hub_create(int32_t num_ranks, mok_hub **hub_out)
{
    if (hub_out == NULL) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "hub_out is NULL: must be given");
    }
    if (num_ranks < 1 || num_ranks > MOK_MAX_RANKS) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "num_ranks is %d: must be from 1 to %d", num_ranks, MOK_MAX_RANKS);
    }
    mok_hub *hub = calloc(1, sizeof *hub);
    pthread_condattr_t monotonic;
    if (hub == NULL || pthread_condattr_init(&monotonic) != 0) {
        free(hub);
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for a hub");
    }
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    int cond_error = pthread_cond_init(&hub->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (cond_error != 0) {
        free(hub);
        return mok_base_fail(MOK_ERR_MEMORY, "no condition variable for a hub: error %d", cond_error);
    }
    pthread_mutex_init(&hub->lock, NULL);
    hub->num_ranks = num_ranks;
    hub->num_holders = 1;
    *hub_out = hub;
    return MOK_OK;
}

/* A hub lives until its caller and all peers have let go of it: one destroyed too early does no harm. */
static void hub_release(mok_hub *hub)
{
    pthread_mutex_lock(&hub->lock);
    int is_last = --hub->num_holders == 0;
    pthread_mutex_unlock(&hub->lock);
    if (is_last) {
        pthread_cond_destroy(&hub->changed);
        pthread_mutex_destroy(&hub->lock);
        free(hub);
    }
}

void mok_hub_destroy(mok_hub *hub)
{
    if (hub != NULL) {
        hub_release(hub);
    }
}

/* ---- meetings; the hub's lock is held ----------------------------------------------------------------------------------- */

static void close_meeting(mok_hub *hub, const struct meeting *meeting)
{
    hub->open = hub->open == meeting ? NULL : hub->open;
}

static void fail_meeting(mok_hub *hub, struct meeting *meeting, mok_status failure, const char *reason)
{
    meeting->failure = failure;
    snprintf(meeting->reason, sizeof meeting->reason, "%s", reason);
    close_meeting(hub, meeting);
    pthread_cond_broadcast(&hub->changed);
}

enum round_state { ROUND_WAITS, ROUND_COMPLETE, ROUND_BROKEN };

/* Looks who has not entered the round. BROKEN: somebody who has not has left, and will never come; then only those are named.
 * is_named_out [num_ranks]. */
static enum round_state look_at_round(const mok_hub *hub, const struct meeting *meeting, int64_t round, uint8_t *is_named_out)
{
    int32_t num_missing = 0;
    int32_t num_gone = 0;
    for (int32_t r = 0; r < hub->num_ranks; r++) {
        int is_missing = meeting->seats[r].rounds < round;
        num_missing += is_missing;
        num_gone += is_missing && meeting->seats[r].has_left;
    }
    for (int32_t r = 0; r < hub->num_ranks; r++) {
        is_named_out[r] = meeting->seats[r].rounds < round && (num_gone == 0 || meeting->seats[r].has_left);
    }
    return num_gone > 0 ? ROUND_BROKEN : num_missing > 0 ? ROUND_WAITS : ROUND_COMPLETE;
}

/* Blocks until all have entered the round, the meeting has failed, or the peer's limit is over (which fails the meeting). */
static void wait_for_round(struct threads_peer *self, int64_t round, uint8_t *is_named)
{
    struct meeting *meeting = self->meeting;
    int64_t deadline = mok_peer_deadline_ns(self->peer.timeout_ms);
    struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000), .tv_nsec = (long)(deadline % 1000000000)};
    char list[128];
    char reason[256];
    for (;;) {
        enum round_state state = look_at_round(self->hub, meeting, round, is_named);
        if (state == ROUND_COMPLETE || meeting->failure != MOK_OK) {
            return;
        }
        mok_peer_list_ranks(is_named, self->hub->num_ranks, list, sizeof list);
        if (state == ROUND_BROKEN) {
            snprintf(reason, sizeof reason, "%s of %d left during the creation of the group", list, self->hub->num_ranks);
            fail_meeting(self->hub, meeting, MOK_ERR_ABORTED, reason);
        } else if (mok_peer_clock_ns() >= deadline) {
            snprintf(reason, sizeof reason, "rank %d waited %lld ms (peer_timeout_ms) for %s of %d", self->peer.rank,
                     (long long)self->peer.timeout_ms, list, self->hub->num_ranks);
            fail_meeting(self->hub, meeting, MOK_ERR_TIMEOUT, reason);
        } else {
            pthread_cond_timedwait(&self->hub->changed, &self->hub->lock, &until);
        }
    }
}

/* One round, with the lock held. bytes_out [num_ranks]: what each rank gave. all_out may be NULL. */
static void run_round(struct threads_peer *self, const void *mine, size_t bytes, void *all_out, size_t *bytes_out, uint8_t *is_named)
{
    struct meeting *meeting = self->meeting;
    struct seat *seat = &meeting->seats[self->peer.rank];
    if (meeting->failure != MOK_OK) {
        return;
    }
    int64_t round = ++seat->rounds;
    seat->bytes[round & 1] = bytes;
    if (bytes > 0) {
        memcpy(seat->data[round & 1], mine, bytes);
    }
    pthread_cond_broadcast(&self->hub->changed);
    wait_for_round(self, round, is_named);
    if (meeting->failure != MOK_OK) {
        return;
    }
    close_meeting(self->hub, meeting); /* all have come, or had come long ago */
    for (int32_t r = 0; r < self->hub->num_ranks; r++) {
        bytes_out[r] = meeting->seats[r].bytes[round & 1];
        if (bytes > 0 && bytes_out[r] == bytes) {
            memcpy((char *)all_out + (size_t)r * bytes, meeting->seats[r].data[round & 1], bytes);
        }
    }
}

/* ---- ops ---------------------------------------------------------------------------------------------------------------- */

static mok_status threads_allgather(struct mok_peer *peer, const void *mine, size_t bytes, void *all_out)
{
    struct threads_peer *self = (struct threads_peer *)peer;
    if (bytes > MOK_BOARD_DATA) {
        return mok_base_fail(MOK_ERR_INTERNAL, "allgather of %zu bytes, at most %d fit", bytes, MOK_BOARD_DATA);
    }
    size_t *bytes_of = calloc((size_t)peer->num_ranks, sizeof *bytes_of + 1);
    if (bytes_of == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory to meet %d ranks", peer->rank, peer->num_ranks);
    }
    uint8_t *is_named = (uint8_t *)(bytes_of + peer->num_ranks);
    pthread_mutex_lock(&self->hub->lock);
    run_round(self, mine, bytes, all_out, bytes_of, is_named);
    mok_status failure = self->meeting->failure;
    pthread_mutex_unlock(&self->hub->lock);
    if (failure != MOK_OK) {
        free(bytes_of);
        return mok_peer_give_up(self->peer.rank, failure, self->meeting->reason); /* written once, before the failure */
    }
    for (int32_t r = 0; r < peer->num_ranks; r++) {
        if (bytes_of[r] != bytes) {
            size_t other = bytes_of[r];
            free(bytes_of);
            return mok_base_fail(MOK_ERR_DISAGREE, "rank %d exchanges %zu bytes, rank %d %zu", peer->rank, bytes, r, other);
        }
    }
    free(bytes_of);
    return MOK_OK;
}

static void threads_leave(struct mok_peer *peer)
{
    struct threads_peer *self = (struct threads_peer *)peer;
    if (self->meeting != NULL) {
        pthread_mutex_lock(&self->hub->lock);
        self->meeting->seats[peer->rank].has_left = 1;
        int is_last = --self->meeting->num_peers == 0;
        if (is_last) {
            close_meeting(self->hub, self->meeting);
        }
        pthread_cond_broadcast(&self->hub->changed);
        pthread_mutex_unlock(&self->hub->lock);
        if (is_last) {
            free(self->meeting);
        }
    }
    hub_release(self->hub);
    mok_peer_destroy(peer);
}

/* The open meeting's seat, or one in a new meeting. With the hub's lock held. */
static mok_status take_seat_locked(struct threads_peer *self)
{
    mok_hub *hub = self->hub;
    int32_t rank = self->peer.rank;
    if (hub->open != NULL && hub->open->seats[rank].is_taken) {
        char reason[128];
        snprintf(reason, sizeof reason, "rank %d of %d is claimed by two callers: each must have a config.rank of its own", rank, hub->num_ranks);
        fail_meeting(hub, hub->open, MOK_ERR_ARGUMENT, reason); /* the others would wait for a rank that nobody is */
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s", reason);
    }
    if (hub->open == NULL) {
        hub->open = calloc(1, sizeof *hub->open + (size_t)hub->num_ranks * sizeof hub->open->seats[0]);
    }
    if (hub->open == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory to meet %d ranks", rank, self->peer.num_ranks);
    }
    self->meeting = hub->open;
    self->meeting->seats[rank].is_taken = 1;
    self->meeting->num_peers++;
    return MOK_OK;
}

static mok_status take_seat(struct threads_peer *self)
{
    pthread_mutex_lock(&self->hub->lock);
    mok_status status = take_seat_locked(self);
    pthread_mutex_unlock(&self->hub->lock);
    return status;
}

static mok_status find_hub(const mok_group_config *config, mok_hub **hub_out)
{
    if (config->hub == NULL) { /* one rank: with more, the config was refused */
        return mok_hub_create(1, hub_out);
    }
    if (config->hub->num_ranks != config->num_ranks) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "num_ranks is %d, but the hub was made for %d", config->num_ranks, config->hub->num_ranks);
    }
    pthread_mutex_lock(&config->hub->lock);
    config->hub->num_holders++;
    pthread_mutex_unlock(&config->hub->lock);
    *hub_out = config->hub;
    return MOK_OK;
}

static mok_status threads_join(const mok_group_config *config, struct mok_peer **peer_out)
{
    struct mok_peer *peer = NULL;
    MOK_TRY(mok_peer_create(sizeof(struct threads_peer), &mok_peer_threads, config, &peer));
    struct threads_peer *self = (struct threads_peer *)peer;
    mok_status status = find_hub(config, &self->hub);
    if (status != MOK_OK) {
        mok_peer_destroy(peer);
        return status;
    }
    status = take_seat(self);
    if (status == MOK_OK) {
        status = threads_allgather(peer, NULL, 0, NULL);
    }
    if (status != MOK_OK) {
        threads_leave(peer);
        return status;
    }
    *peer_out = peer;
    return MOK_OK;
}

static mok_status threads_map(struct mok_peer *peer, size_t bytes, const struct mok_peer_memory *memory)
{
    struct threads_peer *self = (struct threads_peer *)peer;
    void *region = memory->alloc(memory->context, bytes);
    struct mok_peer_offer mine = {.address = (uintptr_t)region, .bytes = bytes, .room = bytes, .device = memory->device};
    if (region == NULL) {
        mine.status = MOK_ERR_MEMORY;
    }
    mok_status status = mok_peer_exchange_offers(peer, &mine);
    if (status != MOK_OK) {
        if (region != NULL) {
            memory->free(memory->context, region);
        }
        return status;
    }
    peer->bytes = bytes;
    self->memory = *memory;
    return MOK_OK;
}

static void threads_unmap(struct mok_peer *peer, int keep)
{
    struct threads_peer *self = (struct threads_peer *)peer;
    if (peer->bytes > 0 && !keep) {
        self->memory.free(self->memory.context, peer->base[peer->rank]);
    }
    mok_peer_forget_regions(peer);
}

static mok_status threads_probe(void) { return MOK_OK; }

const struct mok_peer_ops mok_peer_threads = {
    .name = "threads",
    .probe = threads_probe,
    .join = threads_join,
    .allgather = threads_allgather,
    .map = threads_map,
    .unmap = threads_unmap,
    .leave = threads_leave,
};
