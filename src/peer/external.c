/*
 * Ranks whose regions the caller made and mapped: threads or processes, host memory or, with the CUDA backend, memory of their GPUs. The ranks meet on
 * the boards at the head of the regions. Nothing is allocated or freed here but the peer itself.
 */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "peer/device_board.h"
#include "peer/member.h"
#include "peer/notice.h"

struct external_peer {
    struct mok_peer peer; /* first, so that a peer is one of these */
    struct mok_notice notice;
    char **regions; /* [num_ranks] the caller's, copied */
    size_t room;    /* bytes of each region */
    struct mok_device_board *board; /* NULL = host memory */
};

static mok_status external_allgather(struct mok_peer *peer, const void *mine, size_t bytes, void *all_out)
{
    return mok_notice_exchange(&((struct external_peer *)peer)->notice, mine, bytes, all_out);
}

/* Before it has claimed its board: the others must not hear of it. */
static void forget(struct external_peer *self)
{
    mok_peer_device_board_close(self->board);
    free(self->regions);
    mok_peer_destroy(&self->peer);
}

static void external_leave(struct mok_peer *peer)
{
    struct external_peer *self = (struct external_peer *)peer;
    mok_notice_leave(&self->notice);
    forget(self);
}

static mok_status open_boards(struct external_peer *self, const mok_group_config *config)
{
    size_t bytes = (size_t)config->num_ranks * sizeof *self->regions;
    self->room = config->external->bytes;
    self->regions = malloc(bytes);
    if (self->regions == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory for the addresses of %d ranks", config->rank, config->num_ranks);
    }
    memcpy(self->regions, config->external->bases, bytes);
    self->notice = (struct mok_notice){
        .boards = self->regions, .rank = config->rank, .num_ranks = config->num_ranks, .timeout_ms = config->peer_timeout_ms};
    if (config->backend == MOK_BACKEND_CUDA) {
        MOK_TRY(mok_peer_device_board_open(config->device, self->regions, config->num_ranks, &self->board));
        self->notice.access = mok_peer_device_board_access(self->board);
    }
    return mok_notice_open(&self->notice);
}

static mok_status external_join(const mok_group_config *config, struct mok_peer **peer_out)
{
    struct mok_peer *peer = NULL;
    MOK_TRY(mok_peer_create(sizeof(struct external_peer), &mok_peer_external, config, &peer));
    struct external_peer *self = (struct external_peer *)peer;
    mok_status status = open_boards(self, config);
    if (status != MOK_OK) {
        forget(self);
        return status;
    }
    status = mok_notice_exchange(&self->notice, NULL, 0, NULL);
    if (status != MOK_OK) {
        external_leave(peer);
        return status;
    }
    *peer_out = peer;
    return MOK_OK;
}

static mok_status external_map(struct mok_peer *peer, size_t bytes, const struct mok_peer_memory *memory)
{
    struct external_peer *self = (struct external_peer *)peer;
    size_t board = (size_t)peer->num_ranks * MOK_BOARD_BYTES;
    struct mok_peer_offer mine = {.bytes = bytes, .room = self->room, .device = memory->device};
    if (bytes < board) {
        return mok_base_fail(MOK_ERR_INTERNAL, "a region of %zu bytes has no room for the boards of %d ranks", bytes, peer->num_ranks);
    }
    char *own = self->regions[peer->rank] + board; /* zeros, whatever the caller left there */
    if (self->room < bytes) {
        mine.status = MOK_ERR_ARGUMENT;
    } else if ((memory->device >= 0) != (self->board != NULL)) {
        mine.status = MOK_ERR_UNSUPPORTED;
    } else if (self->board != NULL) {
        mine.status = (int32_t)mok_peer_device_board_clear(self->board, own, bytes - board);
    } else {
        memset(own, 0, bytes - board);
    }
    MOK_TRY(mok_peer_exchange_offers(peer, &mine));
    memcpy(peer->base, self->regions, (size_t)peer->num_ranks * sizeof *peer->base);
    peer->bytes = bytes;
    return MOK_OK;
}

/* The regions are the caller's: kept or not, there is nothing to free. */
static void external_unmap(struct mok_peer *peer, int keep)
{
    (void)keep;
    mok_peer_forget_regions(peer);
}

static mok_status external_probe(void) { return MOK_OK; }

const struct mok_peer_ops mok_peer_external = {
    .name = "external",
    .probe = external_probe,
    .join = external_join,
    .allgather = external_allgather,
    .map = external_map,
    .unmap = external_unmap,
    .leave = external_leave,
};
