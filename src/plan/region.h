/*
 * Layout of the peer-visible region: one per rank, the same offsets on every rank (protocol.md section 1).
 *
 * | part        | type [shape]              | written by / read by           | may be written again because                        |
 * | board       | bytes                     | creation only                  | -                                                   |
 * | sched, entry, exit, left | uint32 [R]   | peers (word s: source s) / self| only grow; `left` is written once                   |
 * | entry_tag   | uint64 [R]                | as entry, before it / self     | ENTRY(n+1) of a source comes after EXIT(n) of all   |
 * | abort       | uint32                    | anybody / self                 | never cleared; 1 + rank of the raiser               |
 * | offset[2]   | int32 [E + 2]             | self / owners                  | SCHED(n+1): reading of n is over, n+2 takes n's half |
 * | list[2]     | int32 [T_max * K]         | self / owners                  | the same                                            |
 * | rows        | bf16 [T_max, H]           | self / owners pull             | EXIT of the pass                                    |
 * | w           | fp32 [T_max, K]           | self / owners pull (backward)  | EXIT of the pass                                    |
 * | slots       | bf16 [T_max * K, H]       | owners push / self sums        | ENTRY(n+1) comes after the sum of n                 |
 * | slot_dw     | fp32 [T_max * K]          | owners push / self (backward)  | the same                                            |
 * | saved_x[i]  | bf16 [T_max, H]           | self / owners pull, also again in backward | EXIT of that backward                   |
 * offset[E] is the number of routed routes, offset[E + 1] the number of bad ids.
 * entry_tag[s] says which pass source s entered: all ranks must enter the same one. It stands from ENTRY to this rank's own EXIT.
 */
#ifndef MOK_PLAN_REGION_H
#define MOK_PLAN_REGION_H

#include "base/board.h"
#include "plan/shape.h"

enum { MOK_REGION_ALIGN = 256 };

struct mok_region {
    int64_t board;     /* MOK_BOARD_BYTES per rank */
    int64_t sched;
    int64_t entry;
    int64_t exit;
    int64_t left;
    int64_t entry_tag;
    int64_t abort;
    int64_t offset[2];
    int64_t list[2];
    int64_t rows;
    int64_t w;
    int64_t slots;
    int64_t slot_dw;
    int64_t saved_x;        /* of saved object 0 */
    int64_t saved_x_stride; /* bytes from one saved object to the next */
    int64_t bytes;          /* of the whole region */
};

MOK_HD int64_t mok_region_take(int64_t *cursor, int64_t bytes)
{
    int64_t at = *cursor;
    *cursor = mok_round_up(at + bytes, MOK_REGION_ALIGN);
    return at;
}

/* What all ranks give the same value of in one pass. */
struct mok_entry {
    int32_t backward;
    int32_t saved;  /* index of the saved object; -1 = none */
    uint32_t build; /* of the schedule: counts the builds on the group, which are collective */
};

/* Never negative as an int64. */
MOK_HD uint64_t mok_plan_entry_tag(struct mok_entry entry)
{
    return (uint64_t)(entry.backward != 0) << 62 | (uint64_t)(uint32_t)(entry.saved + 1) << 32 | entry.build;
}

MOK_HD struct mok_entry mok_plan_entry_of(uint64_t tag)
{
    struct mok_entry entry;
    entry.backward = (int32_t)(tag >> 62);
    entry.saved = (int32_t)(tag >> 32 & 0x3fffffff) - 1;
    entry.build = (uint32_t)tag;
    return entry;
}

MOK_HD struct mok_region mok_plan_region(const struct mok_dims *dims, int32_t num_saved)
{
    struct mok_region region;
    int64_t cursor = 0;
    int64_t routes = dims->max_tokens * dims->top_k;
    int64_t row_bytes = (int64_t)dims->hidden * 2;
    int64_t words = (int64_t)dims->num_ranks * 4;
    region.board = mok_region_take(&cursor, (int64_t)dims->num_ranks * MOK_BOARD_BYTES);
    region.sched = mok_region_take(&cursor, words);
    region.entry = mok_region_take(&cursor, words);
    region.exit = mok_region_take(&cursor, words);
    region.left = mok_region_take(&cursor, words);
    region.entry_tag = mok_region_take(&cursor, words * 2);
    region.abort = mok_region_take(&cursor, 4);
    for (int i = 0; i < 2; i++) {
        region.offset[i] = mok_region_take(&cursor, ((int64_t)dims->num_experts + 2) * 4);
        region.list[i] = mok_region_take(&cursor, routes * 4);
    }
    region.rows = mok_region_take(&cursor, dims->max_tokens * row_bytes);
    region.w = mok_region_take(&cursor, routes * 4);
    region.slots = mok_region_take(&cursor, routes * row_bytes);
    region.slot_dw = mok_region_take(&cursor, routes * 4);
    region.saved_x_stride = mok_round_up(dims->max_tokens * row_bytes, MOK_REGION_ALIGN);
    region.saved_x = mok_region_take(&cursor, num_saved * region.saved_x_stride);
    region.bytes = cursor;
    return region;
}

#endif
