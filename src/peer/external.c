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

static void external_leave(struct mok_peer *peer)
{
    struct external_peer *self = (struct external_peer *)peer;
    mok_notice_leave(&self->notice);
    mok_peer_device_board_close(self->board);
    free(self->regions);
    mok_peer_fini(peer);
    free(self);
}

static mok_status external_join(const mok_group_config *config, struct mok_peer **peer_out)
{
    struct external_peer *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory for a peer", config->rank);
    }
    mok_status status = mok_peer_init(&self->peer, &mok_peer_external, config);
    if (status != MOK_OK) {
        goto err_self;
    }
    self->room = config->external->bytes;
    self->regions = malloc((size_t)config->num_ranks * sizeof *self->regions);
    if (self->regions == NULL) {
        status = mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory for the addresses of %d ranks", config->rank, config->num_ranks);
        goto err_init;
    }
    memcpy(self->regions, config->external->bases, (size_t)config->num_ranks * sizeof *self->regions);
    self->notice = (struct mok_notice){
        .boards = self->regions, .rank = config->rank, .num_ranks = config->num_ranks, .timeout_ms = config->peer_timeout_ms};
    if (config->backend == MOK_BACKEND_CUDA) {
        status = mok_peer_device_board_open(config->device, self->regions, config->num_ranks, &self->board);
        if (status != MOK_OK) {
            goto err_regions;
        }
        self->notice.access = mok_peer_device_board_access(self->board);
    }
    status = mok_notice_open(&self->notice);
    if (status != MOK_OK) {
        goto err_board;
    }
    status = mok_notice_exchange(&self->notice, NULL, 0, NULL);
    if (status != MOK_OK) {
        external_leave(&self->peer);
        return status;
    }
    *peer_out = &self->peer;
    return MOK_OK;

err_board:
    mok_peer_device_board_close(self->board);
err_regions:
    free(self->regions);
err_init:
    mok_peer_fini(&self->peer);
err_self:
    free(self);
    return status;
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
    memset(peer->base, 0, (size_t)peer->num_ranks * sizeof *peer->base);
    peer->bytes = 0;
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
