/*
 * The one case table: every backend, peer and tool runs these cases. A case is a recipe; generate.c turns it into data, always the same
 * data for the same case and round, in whatever process.
 *
 * The letters in `covers` are those of docs/cases.md: faults that real users met, and promises (P). T, H, I, Is, E and K differ from one
 * another in every case: equal ones hide mix-ups.
 */
#ifndef MOK_REF_CASES_H
#define MOK_REF_CASES_H

#include "ref/problem.h"

/* How ids are drawn. */
enum mok_ref_ids {
    MOK_IDS_DISTINCT,   /* K different experts per token, all equally likely */
    MOK_IDS_ANY,        /* K independent draws: the same expert twice in a token happens */
    MOK_IDS_SKEWED,     /* like a trained router: a few experts get most, some get none */
    MOK_IDS_ONE,        /* every route to expert ids_arg */
    MOK_IDS_FIRST_TWO,  /* every route to expert 0 or 1 */
    MOK_IDS_LAST,       /* every route to expert E - 1 */
    MOK_IDS_HALF,       /* as DISTINCT, then half of the routes become -1 */
    MOK_IDS_NONE,       /* all -1 */
    MOK_IDS_BAD,        /* as DISTINCT, with ids outside [-1, E) strewn in */
    MOK_IDS_SIGNS,      /* the rows [-1,2] [0,-1] [-1,-1] [3,1], over and over (K = 2) */
    MOK_IDS_COUNTS,     /* K = 1: expert counts 1, 8, 16, 32, 63, 64, 65 */
    MOK_IDS_REPEATED,   /* a token's routes all go to one expert, drawn per token */
    MOK_IDS_SHARED_ROW, /* DISTINCT for tokens 0..9, all later tokens repeat token 10's ids */
    MOK_IDS_ORDERED     /* route k of every token to expert k */
};

/* How x, dy and the weights are drawn. */
enum mok_ref_values {
    MOK_VALUES_NORMAL,   /* normal; weights scaled so that g, u and y stay near 1 */
    MOK_VALUES_PROBE,    /* g = probe_gate, u = probe_up in one column, 0 elsewhere; y rows of expert e hold h * outputs[e % 8] in even
                            columns, twice that in odd ones; shared expert: outputs[7] */
    MOK_VALUES_WIDE      /* as NORMAL, with g and u often beyond the clamp */
};

/* How w is drawn. */
enum mok_ref_router {
    MOK_ROUTER_NORMALIZED, /* positive, sums to 1 over a token */
    MOK_ROUTER_SIGNED,     /* normal, so negative ones occur, and some are exactly 0 */
    MOK_ROUTER_ZERO,       /* all 0 */
    MOK_ROUTER_GIVEN       /* weights[k % 4] */
};

/* Where the matrices of one FFN stand in memory. */
enum mok_ref_layout {
    MOK_LAYOUT_SEPARATE,    /* three dense blocks */
    MOK_LAYOUT_PACKED,      /* up right behind gate, expert by expert */
    MOK_LAYOUT_INTERLEAVED, /* rows of gate and up in turn */
    MOK_LAYOUT_STRIDED      /* gaps behind every row and every expert */
};

/* How the group is set up; zeros = automatic. None of it may change y, dx or dw by one bit. */
struct mok_ref_knobs {
    int64_t max_tokens; /* T_max; 0 = the largest T of the case */
    int64_t keep_rows;  /* MOK_KEEP_ALL, 0 = recompute, or a number of rows */
    int32_t minibatch_rows;
    int32_t ring_minibatches;
    int32_t look_ahead;
    int32_t comm_workers;
    int32_t compute_workers;
    int32_t path;        /* mok_path */
    int32_t saved_input; /* 1: x is written into the saved object's own memory (mok_saved_input); 2: into that of another one */
    enum mok_ref_layout weight_layout;
    enum mok_ref_layout grad_layout;
};

enum { MOK_REF_CASE_RANKS = 8 }; /* at most, of a case in the table */

struct mok_ref_case {
    const char *name;
    const char *covers; /* lines of docs/cases.md */
    int32_t num_ranks;
    int32_t num_experts;
    int32_t top_k;
    int32_t hidden;
    int32_t inter;
    int32_t shared_inter;
    int64_t tokens[MOK_REF_CASE_RANKS]; /* T of each rank; num_ranks of them count */
    enum mok_ref_ids ids;
    int32_t ids_arg;
    enum mok_ref_values values;
    enum mok_ref_router router;
    int32_t shared_w; /* 1: a weight per token for the shared expert */
    mok_activation activation; /* limit 0 in the table = plain SwiGLU */
    int32_t grad_dtype;
    int32_t grad_mode;
    struct mok_ref_knobs knobs;
    int32_t nan_x;  /* every nan_x-th token has NaN in x, 0 = none */
    int32_t nan_dy; /* the same in dy */
    int32_t nan_unrouted; /* 1: the ids of NaN tokens are -1 */
    float probe_gate, probe_up; /* MOK_VALUES_PROBE */
    float outputs[8];           /* MOK_VALUES_PROBE: of expert e, outputs[e % 8] */
    float weights[4];           /* MOK_ROUTER_GIVEN */
    float expect_y;             /* known answer for even columns of y (odd ones: twice), rounded to bf16; 0 = none */
    int32_t slow;               /* 1: left out of the quick run */
};

int mok_ref_case_count(void);
/* NULL when idx is out of range. */
const struct mok_ref_case *mok_ref_case_get(int idx);
/* NULL when there is none of this name. */
const struct mok_ref_case *mok_ref_case_find(const char *name);

/* Makes the problem of a case. round: 0 first data, 1, 2, ... the same weights with new tokens and new routing. Errors: MEMORY. */
mok_status mok_ref_generate(const struct mok_ref_case *recipe, uint32_t round, struct mok_ref_problem *problem_out);

/* The same tokens, routes and weights, spread otherwise over num_ranks ranks. Makes a copy. Errors: MEMORY. */
mok_status mok_ref_spread(const struct mok_ref_problem *from, int32_t num_ranks, const int64_t *tokens,
                          struct mok_ref_problem *problem_out);

#endif
