/*
 * Checks of a backend's outputs (docs/numerics.md, "How it is checked"): per row or per element, each with its bound, the worst one named.
 * There is no tolerance over a whole tensor: one wrong row in 7,168 fails.
 *
 * A result is its error divided by its bound; above 1 it fails. NaN where the oracle has none (or the reverse) is an infinite error; NaN at
 * the same place on both sides is equal.
 */
#ifndef MOK_REF_COMPARE_H
#define MOK_REF_COMPARE_H

#include "ref/oracle.h"

enum mok_ref_check {
    MOK_CHECK_Y_L2,       /* 1: y row against oracle 1, L2 norm of the error, 2^-6 of the row's norm (H and I >= 32) */
    MOK_CHECK_Y_LARGEST,  /* 1: largest element of the error, 4 bf16 ulp of the row's largest element */
    MOK_CHECK_DX_L2,      /* the same for dx; rows near a clamp bound are left out */
    MOK_CHECK_DX_LARGEST,
    MOK_CHECK_Y,          /* 2: y against oracle 2, 2 bf16 ulp of the row's largest magnitude */
    MOK_CHECK_DX,
    MOK_CHECK_DW,         /* 2: dw; not routed: exactly 0 */
    MOK_CHECK_DSHARED_W,
    MOK_CHECK_DGATE,      /* 2: weight gradients, element by element; experts without rows: exact zeros, or untouched */
    MOK_CHECK_DUP,
    MOK_CHECK_DDOWN,
    MOK_CHECK_SHARED_DGATE,
    MOK_CHECK_SHARED_DUP,
    MOK_CHECK_SHARED_DDOWN,
    MOK_CHECK_Y_SUM,      /* 3: y, bit for bit the sum over the backend's own slots */
    MOK_CHECK_DX_SUM,
    MOK_CHECK_DX_SINGLE,  /* 3: K = 1, H >= 256: dx row against oracle 2, L2 norm of the error, 2^-7.6 of the row's norm */
    MOK_CHECK_Y_SLOT,     /* the same bound for every slot row, whatever K (H and I >= 32): a sum hides what a row shows */
    MOK_CHECK_DX_SLOT,
    MOK_CHECK_COUNT
};

/* The worst of one check. `row` is a token of `rank`, or an expert; `inner` the k of a route or the row inside a matrix; -1 = not meant. */
struct mok_ref_worst {
    int64_t num_checked;
    int64_t num_failed;
    int64_t num_left_out;
    double ratio; /* largest error / bound; 0 when nothing was checked */
    int32_t rank;
    int64_t row;
    int64_t inner;
    int64_t column;
    double got, expected; /* norms for the L2 checks */
    double bound;
};

struct mok_ref_report {
    struct mok_ref_worst worst[MOK_CHECK_COUNT];
};

/* Ranks whose outputs are there: all of them, or one where every rank is a process. */
struct mok_ref_scope {
    int32_t first_rank;
    int32_t num_ranks;
};

const char *mok_ref_check_name(enum mok_ref_check check);

void mok_ref_report_clear(struct mok_ref_report *report);
/* Adds the counts of `from` to `into` and keeps the worse of each. */
void mok_ref_report_merge(struct mok_ref_report *into, const struct mok_ref_report *from);
/* Rows and elements that failed, over all checks. */
int64_t mok_ref_report_failures(const struct mok_ref_report *report);
/* One sentence on one check's worst row or element. */
void mok_ref_report_describe(const struct mok_ref_report *report, enum mok_ref_check check, char *text, size_t size);

/* All checks that apply: 1 and 2 always; 3 when outputs has slots (exact.c). Adds to report. */
void mok_ref_compare(const struct mok_ref_problem *problem, const struct mok_ref_answer *answer, const struct mok_ref_outputs *outputs,
                     struct mok_ref_scope scope, struct mok_ref_report *report);

/* The parts of it. */
void mok_ref_compare_oracle(const struct mok_ref_problem *problem, const struct mok_ref_oracle *oracle,
                            const struct mok_ref_outputs *outputs,
                            struct mok_ref_scope scope, struct mok_ref_report *report);
void mok_ref_compare_rounded(const struct mok_ref_problem *problem, const struct mok_ref_rounded *rounded,
                             const struct mok_ref_outputs *outputs,
                             struct mok_ref_scope scope, struct mok_ref_report *report);
void mok_ref_compare_exact(const struct mok_ref_problem *problem, const struct mok_ref_rounded *rounded,
                           const struct mok_ref_outputs *outputs,
                           struct mok_ref_scope scope, struct mok_ref_report *report);

/* For the files that compare: one result of `check`. */
struct mok_ref_spot {
    int32_t rank;
    int64_t row;
    int64_t inner;
    int64_t column;
};
void mok_ref_report_note(struct mok_ref_report *report, enum mok_ref_check check, struct mok_ref_spot spot, double error, double bound,
                         double got,
                         double expected);

#endif
