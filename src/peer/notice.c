/*
 * Notice boards. See notice.h.
 */
#include "peer/notice.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hd.h"
#include "base/status.h"
#include "peer/member.h"

struct place {
    atomic_ullong round; /* of the data below */
    unsigned long long bytes;
    atomic_ullong verdict; /* 0, 2n: all came to round n, 2n + 1: round n failed, and there will be no other */
    atomic_ullong end;     /* a rank_end; in place 0 only, like verdict and claim */
    atomic_ullong claim;   /* 0, or CLAIMED */
    char padding[MOK_BOARD_HEAD - 5 * 8];
    char data[MOK_BOARD_DATA];
};
MOK_STATIC_ASSERT(sizeof(struct place) == MOK_BOARD_BYTES, "a place fills its share of the board");

/* Why nothing more comes from a rank. */
enum rank_end { END_NONE, END_LEFT, END_CLAIMED_TWICE };

/* "mok rank": what no region holds by chance. */
#define CLAIMED 0x6b6e6172206b6f6dull

static struct place *place_of(const struct mok_notice *notice, int32_t rank, int64_t round)
{
    return (struct place *)notice->boards[rank] + (round & 1);
}

/* ---- words and bytes of a board, wherever it is ---------------------------------------------------------------------------- */

static void note(struct mok_notice *notice, mok_status status)
{
    notice->failure = notice->failure == MOK_OK ? status : notice->failure;
}

/* Acquire. 0 when the board cannot be reached. */
static unsigned long long load(struct mok_notice *notice, const atomic_ullong *word)
{
    unsigned long long value = 0;
    if (notice->access == NULL) {
        return atomic_load_explicit(word, memory_order_acquire);
    }
    note(notice, notice->access->read(notice->access->context, &value, (const void *)word, sizeof value));
    return value;
}

/* Release. */
static void store(struct mok_notice *notice, atomic_ullong *word, unsigned long long value)
{
    if (notice->access == NULL) {
        atomic_store_explicit(word, value, memory_order_release);
    } else {
        note(notice, notice->access->write(notice->access->context, (void *)word, &value, sizeof value));
    }
}

/* 1 = swapped; else *expected is what was there. */
static int swap(struct mok_notice *notice, atomic_ullong *word, unsigned long long *expected, unsigned long long desired)
{
    uint64_t found = 0;
    if (notice->access == NULL) {
        return atomic_compare_exchange_strong(word, expected, desired);
    }
    mok_status status = notice->access->swap(notice->access->context, (void *)word, *expected, desired, &found);
    note(notice, status);
    int is_swapped = status == MOK_OK && found == *expected;
    *expected = found;
    return is_swapped;
}

static void put_bytes(struct mok_notice *notice, void *to, const void *from, size_t bytes)
{
    if (bytes > 0 && notice->access == NULL) {
        memcpy(to, from, bytes);
    } else if (bytes > 0) {
        note(notice, notice->access->write(notice->access->context, to, from, bytes));
    }
}

static void get_bytes(struct mok_notice *notice, void *to, const void *from, size_t bytes)
{
    if (bytes > 0 && notice->access == NULL) {
        memcpy(to, from, bytes);
    } else if (bytes > 0) {
        note(notice, notice->access->read(notice->access->context, to, from, bytes));
    }
}

/* ---- rounds ----------------------------------------------------------------------------------------------------------------- */

static mok_status refuse_region(int32_t rank)
{
    return mok_base_fail(MOK_ERR_ARGUMENT, "the region of rank %d is not zero; every group needs zeroed regions", rank);
}

/* One caller claims the rank; the next one says so on the rank's board, where all see it. */
static mok_status claim_rank(struct mok_notice *notice)
{
    struct place *own = place_of(notice, notice->rank, 0);
    unsigned long long end = load(notice, &own->end), claim = 0;
    if (swap(notice, &own->claim, &claim, CLAIMED) || notice->failure != MOK_OK) {
        return notice->failure;
    }
    if (claim != CLAIMED || end == END_LEFT) {
        return refuse_region(notice->rank);
    }
    store(notice, &own->end, END_CLAIMED_TWICE); /* pairs with look_at_round */
    return mok_base_fail(MOK_ERR_ARGUMENT, "rank %d of %d is claimed by two callers, or its region was not zeroed after another group",
                         notice->rank, notice->num_ranks);
}

mok_status mok_notice_open(struct mok_notice *notice)
{
    notice->round = 0;
    notice->failure = MOK_OK;
    if (notice->num_ranks == 1) {
        return MOK_OK;
    }
    MOK_TRY(claim_rank(notice));
    for (int half = 0; half < 2; half++) {
        struct place *own = place_of(notice, notice->rank, half);
        if (load(notice, &own->round) != 0 || load(notice, &own->end) == END_LEFT) {
            return refuse_region(notice->rank);
        }
    }
    unsigned long long verdict = load(notice, &place_of(notice, 0, 0)->verdict);
    if (notice->failure != MOK_OK) {
        return notice->failure;
    }
    return verdict == 0 || verdict == 3 ? MOK_OK : refuse_region(0); /* 3: round 1 failed before this rank came, which exchange will say */
}

/* Decides the round, unless somebody has; returns 1 when the decision is that all came. */
static int settle(struct mok_notice *notice, int64_t round, int all_came)
{
    atomic_ullong *word = &place_of(notice, 0, 0)->verdict;
    unsigned long long complete = (unsigned long long)round * 2;
    unsigned long long verdict = complete - 2;
    if (swap(notice, word, &verdict, all_came ? complete : complete + 1)) {
        return all_came;
    }
    return verdict != complete + 1; /* a later value than `complete` says that this round was complete */
}

/* Of a rank, and of all together: the last one of theirs. */
enum round_state { ROUND_COMPLETE, ROUND_WAITS, ROUND_BROKEN, ROUND_CLAIMED_TWICE };

/* Looks who has not entered the round. BROKEN: somebody who has not has left, and will never come. is_named_out [num_ranks]: whose state it is. */
static enum round_state look_at_round(struct mok_notice *notice, int64_t round, uint8_t *is_named_out)
{
    enum round_state state = ROUND_COMPLETE;
    for (int32_t r = 0; r < notice->num_ranks; r++) {
        unsigned long long end = load(notice, &place_of(notice, r, 0)->end); /* before round */
        int has_come = load(notice, &place_of(notice, r, round)->round) == (unsigned long long)round;
        enum round_state own = end == END_CLAIMED_TWICE ? ROUND_CLAIMED_TWICE
                               : has_come               ? ROUND_COMPLETE
                               : end == END_LEFT        ? ROUND_BROKEN
                                                        : ROUND_WAITS;
        is_named_out[r] = (uint8_t)own;
        state = own > state ? own : state;
    }
    for (int32_t r = 0; r < notice->num_ranks; r++) {
        is_named_out[r] = is_named_out[r] == (uint8_t)state;
    }
    return state;
}

/* Why the round failed, by what this rank saw of it. */
static mok_status give_up(struct mok_notice *notice, enum round_state seen, const uint8_t *is_named)
{
    char list[128], reason[256];
    mok_peer_list_ranks(is_named, notice->num_ranks, list, sizeof list);
    notice->failure = seen == ROUND_CLAIMED_TWICE ? MOK_ERR_ARGUMENT : seen == ROUND_BROKEN ? MOK_ERR_ABORTED : MOK_ERR_TIMEOUT;
    switch (seen) {
    case ROUND_CLAIMED_TWICE:
        snprintf(reason, sizeof reason, "%s of %d is claimed by two callers: each must have a config.rank of its own", list, notice->num_ranks);
        break;
    case ROUND_BROKEN:
        snprintf(reason, sizeof reason, "%s of %d left during the creation of the group", list, notice->num_ranks);
        break;
    case ROUND_WAITS:
        return mok_base_fail(notice->failure, "rank %d waited %lld ms (peer_timeout_ms) for %s of %d", notice->rank, (long long)notice->timeout_ms,
                             list, notice->num_ranks);
    default:
        return mok_base_fail(notice->failure, "rank %d came too late: another rank of %d has given up", notice->rank, notice->num_ranks);
    }
    return mok_peer_give_up(notice->rank, notice->failure, reason);
}

/* Returns when the round is decided; on failure says so, once. */
static mok_status wait_for_round(struct mok_notice *notice, int64_t round, uint8_t *is_named)
{
    int64_t deadline = mok_peer_deadline_ns(notice->timeout_ms);
    int32_t turns = 0;
    for (;;) {
        enum round_state state = look_at_round(notice, round, is_named);
        int is_late = mok_peer_clock_ns() >= deadline;
        if (notice->failure != MOK_OK) {
            return notice->failure; /* said where the board was not reached */
        }
        if (state == ROUND_WAITS && !is_late) {
            mok_peer_pause(&turns);
            continue;
        }
        int all_came = settle(notice, round, state == ROUND_COMPLETE); /* as whoever was first has decided */
        if (all_came || notice->failure != MOK_OK) {
            return notice->failure;
        }
        return give_up(notice, state, is_named);
    }
}

static mok_status copy_round(struct mok_notice *notice, int64_t round, size_t bytes, void *all_out)
{
    for (int32_t r = 0; r < notice->num_ranks; r++) {
        const struct place *place = place_of(notice, r, round);
        unsigned long long theirs = 0;
        get_bytes(notice, &theirs, &place->bytes, sizeof theirs);
        if (notice->failure == MOK_OK && theirs != bytes) {
            return mok_base_fail(MOK_ERR_DISAGREE, "rank %d exchanges %zu bytes, rank %d %llu", notice->rank, bytes, r, theirs);
        }
        get_bytes(notice, bytes > 0 ? (char *)all_out + (size_t)r * bytes : NULL, place->data, bytes);
    }
    return notice->failure;
}

mok_status mok_notice_exchange(struct mok_notice *notice, const void *mine, size_t bytes, void *all_out)
{
    if (bytes > MOK_BOARD_DATA) {
        return mok_base_fail(MOK_ERR_INTERNAL, "allgather of %zu bytes, at most %d fit", bytes, MOK_BOARD_DATA);
    }
    if (notice->failure != MOK_OK) {
        return mok_base_fail(notice->failure, "rank %d: the creation of the group has failed before", notice->rank);
    }
    if (notice->num_ranks == 1) {
        if (bytes > 0) {
            memcpy(all_out, mine, bytes);
        }
        return MOK_OK;
    }
    uint8_t *is_named = malloc((size_t)notice->num_ranks);
    if (is_named == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "rank %d: no memory to meet %d ranks", notice->rank, notice->num_ranks);
    }
    int64_t round = ++notice->round;
    struct place *own = place_of(notice, notice->rank, round);
    unsigned long long count = bytes;
    put_bytes(notice, &own->bytes, &count, sizeof count);
    put_bytes(notice, own->data, mine, bytes);
    store(notice, &own->round, (unsigned long long)round); /* pairs with look_at_round */
    mok_status status = wait_for_round(notice, round, is_named);
    free(is_named);
    return status == MOK_OK ? copy_round(notice, round, bytes, all_out) : status;
}

void mok_notice_leave(struct mok_notice *notice)
{
    if (notice->num_ranks > 1 && load(notice, &place_of(notice, notice->rank, 0)->end) == END_NONE) { /* what was said before stays */
        store(notice, &place_of(notice, notice->rank, 0)->end, END_LEFT); /* pairs with look_at_round */
    }
}
