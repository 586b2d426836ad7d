/*
 * Faults that the checks must catch (docs/numerics.md, "Mutants"). A mutant plays the backend: it is oracle 2 computed again with one
 * thing wrong, slots, sums, gradients and all. Without a fault it must pass; with any, the checks must report it.
 */
#ifndef MOK_REF_MUTANT_H
#define MOK_REF_MUTANT_H

#include "ref/rounded.h"

enum mok_ref_mutant {
    MOK_MUTANT_NONE,
    MOK_MUTANT_ROWS_SWAPPED,        /* two rows of one expert change places on their way back, forward */
    MOK_MUTANT_DX_ROWS_SWAPPED,     /* the same, backward */
    MOK_MUTANT_WEIGHT_OFF,          /* one router weight 1% too large in the last sum of forward */
    MOK_MUTANT_WEIGHT_OFF_BACKWARD, /* one router weight 1% too large in d = w * dh and w * h */
    MOK_MUTANT_ROUTE_DROPPED,       /* one k left out of the sum for y */
    MOK_MUTANT_DX_ROUTE_DROPPED,    /* the same for dx */
    MOK_MUTANT_GATE_UP_EXCHANGED,   /* of one expert */
    MOK_MUTANT_PADDING_COUNTED,     /* one row more, with another route's data, in the weight gradients of one expert */
    MOK_MUTANT_ROWS_SHIFTED,        /* all rows of one expert by one */
    MOK_MUTANT_DW_NEIGHBOUR,        /* dw of one route is that of the next */
    MOK_MUTANT_DG_OFF,              /* one element of dg 2% too large: where it weighs most, in the expert with the fewest rows */
    MOK_MUTANT_WH_NEIGHBOUR,        /* w * h of one row with the weight of the next row, in the expert with the most rows */
    MOK_MUTANT_ROW_LOST,            /* one row of y is still what the row before it is */
    MOK_MUTANT_COUNT
};

const char *mok_ref_mutant_name(enum mok_ref_mutant mutant);

/* outputs_out is from mok_ref_outputs_alloc. The fault is put near the middle of the tokens.
 * Errors: MEMORY; ARGUMENT: the problem has no place for this fault (say, one row in all). */
mok_status mok_ref_mutant_run(const struct mok_ref_problem *problem, enum mok_ref_mutant mutant, struct mok_ref_outputs *outputs_out);

/* Oracle 2 as a backend that plays as `play` says: rows, sums and gradients. outputs_out is from mok_ref_outputs_alloc. Errors: MEMORY. */
mok_status mok_ref_mutant_play(const struct mok_ref_problem *problem, const struct mok_ref_play *play, struct mok_ref_outputs *outputs_out);

#endif
