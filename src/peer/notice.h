/*
 * Notice boards: a bounded exchange between ranks that share memory, threads or processes, with nothing but loads and stores.
 * `external` has them at the head of the caller's regions, `mpi` in a small object of its own. Boards in the memory of a GPU are reached through an
 * access table (peer/device_board.h), one word or one copy at a time.
 *
 * Each rank's board is two places of MOK_BOARD_BYTES that take turns by the parity of the round: who enters round n + 1 has seen all enter
 * round n, so all have copied round n - 1 out, and its place may be written. A rank writes only its own board, but for the verdict on
 * each round, a word on rank 0's board: it is decided once, by compare and swap, so that no rank can succeed where another gave up.
 *
 * | word    | written by                         | release / acquire pair                                                           |
 * | round   | own rank, after bytes, data        | exchange / look_at_round: bytes and data are there                               |
 * | end     | own rank, or who claims it as well | leave, claim / look_at_round, read before round: a rank that left enters no more |
 * | claim   | any that claims the rank           | claim / claim: who comes second writes `end`                                     |
 * | verdict | any, on rank 0's board             | settle / settle                                                                  |
 */
#ifndef MOK_PEER_NOTICE_H
#define MOK_PEER_NOTICE_H

#include "peer/peer.h"

enum { MOK_NOTICE_BYTES = 2 * MOK_BOARD_BYTES }; /* of one rank's board, when there is more than one rank */

/* Boards that the host cannot load from. Each call is over when it returns, for every observer, and in the order of the calls. */
struct mok_notice_access {
    mok_status (*read)(void *context, void *to, const void *from, size_t bytes);
    mok_status (*write)(void *context, void *to, const void *from, size_t bytes);
    /* Compare and swap between all ranks; *found_out is what was there. */
    mok_status (*swap)(void *context, void *word, uint64_t expected, uint64_t desired, uint64_t *found_out);
    void *context;
};

struct mok_notice {
    char **boards;      /* [num_ranks] address here; the caller's array, must outlive this. Not touched when num_ranks is 1. */
    const struct mok_notice_access *access; /* NULL = host memory */
    int32_t rank;
    int32_t num_ranks;
    int64_t timeout_ms;
    int64_t round;      /* entered so far */
    mok_status failure; /* MOK_OK, or why every further exchange fails; a board that cannot be reached is one reason */
};

/* The boards are zero before any rank opens. Fails with MOK_ERR_ARGUMENT when they are seen not to be, and when another caller has opened the
 * board of this rank: every exchange fails then, for that one and for all. Local. */
mok_status mok_notice_open(struct mok_notice *notice);

/* Collective. As allgather of struct mok_peer_ops, but that all_out may be NULL when bytes is 0. */
mok_status mok_notice_exchange(struct mok_notice *notice, const void *mine, size_t bytes, void *all_out);

/* Local. Peers that wait for this rank in an exchange fail at once. */
void mok_notice_leave(struct mok_notice *notice);

#endif
