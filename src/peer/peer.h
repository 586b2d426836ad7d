/*
 * Peers: memory that all ranks of a group can address, behind one ops table.
 *
 * Life of a peer:  join -> allgather (any number) -> map -> ... the backend works on base[r] ... -> unmap -> leave.
 * A peer knows nothing of layouts: the backend puts barriers, lists and slots into the region (plan/region.h). The first
 * num_ranks * MOK_BOARD_BYTES of a region belong to the peer. allgather works between map and unmap, too.
 */
#ifndef MOK_PEER_PEER_H
#define MOK_PEER_PEER_H

#include <mok/mok.h>

#include "base/board.h"

/* Where the region of a rank lives. The backend gives it; `threads` calls it, the others own theirs and refuse what they cannot do. */
struct mok_peer_memory {
    /* Zeroed memory of at least `bytes`, 256-byte aligned; NULL when there is none. */
    void *(*alloc)(void *context, size_t bytes);
    void (*free)(void *context, void *memory);
    void *context;
    int32_t device; /* CUDA ordinal of the memory, -1 = host memory */
};

struct mok_peer_ops;

struct mok_peer {
    const struct mok_peer_ops *ops;
    int32_t rank;
    int32_t num_ranks;
    int64_t timeout_ms; /* peer_timeout of the group: bounds every collective below */
    char **base;        /* [num_ranks] address here of each rank's region; filled by map; base[rank] is the own one */
    int32_t *device;    /* [num_ranks] CUDA ordinal of each rank's region, -1 = host memory; filled by map */
    size_t bytes;       /* of each region; 0 before map */
};

/*
 * Contract. Every collective is bounded by peer->timeout_ms and fails with MOK_ERR_TIMEOUT naming the ranks that are missing (mpi in join: those it
 * has not heard from; nccl cannot tell which they are), or, when a rank that is missing has already left, with MOK_ERR_ABORTED at once. What one
 * rank's arguments break fails on every rank.
 * A function that fails leaves nothing behind; the peer can then only be left.
 */
struct mok_peer_ops {
    const char *name;

    /* Local. MOK_OK, or why this kind cannot be used on this machine. */
    mok_status (*probe)(void);

    /* Collective. Meets the other ranks and makes *peer_out; no region yet. Reads config->rank, num_ranks, peer_timeout_ms, the
     * fields of its own kind, and backend (already decided, never AUTO). The config has passed api/check_config.c: a peer refuses only
     * what it alone can see (a hub, a communicator). config need not outlive the call. */
    mok_status (*join)(const mok_group_config *config, struct mok_peer **peer_out);

    /* Collective. Every rank gives `bytes` (at most MOK_BOARD_DATA) and gets all of them: all_out [num_ranks][bytes]. */
    mok_status (*allgather)(struct mok_peer *peer, const void *mine, size_t bytes, void *all_out);

    /* Collective. A zeroed region of `bytes` on every rank, mapped on every rank, before any rank returns. */
    mok_status (*map)(struct mok_peer *peer, size_t bytes, const struct mok_peer_memory *memory);

    /* Local. keep = 0 frees the own region and forgets the others; every peer must have said that it left. keep = 1 forgets all but leaks
     * the own region on purpose, because a peer may still read it. */
    void (*unmap)(struct mok_peer *peer, int keep);

    /* Local. Frees the peer itself. */
    void (*leave)(struct mok_peer *peer);
};

/* Finds the ops of a mok_peer_kind. Errors: MOK_ERR_NOT_BUILT, MOK_ERR_ARGUMENT. */
mok_status mok_peer_find(int32_t kind, const struct mok_peer_ops **ops_out);
/* Finds and probes: MOK_OK, or why ranks cannot meet this way here. */
mok_status mok_peer_probe(int32_t kind);

extern const struct mok_peer_ops mok_peer_threads;
extern const struct mok_peer_ops mok_peer_external;
extern const struct mok_peer_ops mok_peer_mpi;  /* only in builds with MPI (MOK_HAVE_MPI) */
extern const struct mok_peer_ops mok_peer_nccl; /* only in builds with CUDA and NCCL (MOK_HAVE_NCCL) */

#endif
