/*
 * The case table. Each row says in `covers` which lines of docs/cases.md it stands for. Sizes are small, and all different; minibatches of
 * 128 rows make several laps of a few rows.
 */
#include "ref/cases.h"

#include <string.h>

#define FP32 .grad_dtype = MOK_DTYPE_FP32
#define BF16 .grad_dtype = MOK_DTYPE_BF16
#define ADD .grad_mode = MOK_GRAD_ADD
#define SHAPE(e, k, h, i, is) .num_experts = e, .top_k = k, .hidden = h, .inter = i, .shared_inter = is
#define TOKENS(r, ...) .num_ranks = r, .tokens = {__VA_ARGS__}

static const struct mok_ref_case cases[] = {
    /* A: experts or ranks without tokens */
    {.name = "one-expert", .covers = "A1 I3", TOKENS(1, 8), SHAPE(4, 1, 72, 40, 0), FP32, .ids = MOK_IDS_ONE, .ids_arg = 2},
    {.name = "one-expert-bf16", .covers = "A1 I3", TOKENS(1, 9), SHAPE(4, 2, 72, 40, 48), BF16, .ids = MOK_IDS_ONE, .ids_arg = 2},
    {.name = "one-expert-add", .covers = "A2", TOKENS(1, 8), SHAPE(4, 1, 72, 40, 0), FP32, ADD, .ids = MOK_IDS_ONE, .ids_arg = 2},
    {.name = "one-expert-add-bf16", .covers = "A2", TOKENS(2, 8, 3), SHAPE(4, 1, 72, 40, 24), BF16, ADD, .ids = MOK_IDS_ONE, .ids_arg = 1},
    {.name = "no-tokens", .covers = "A1 A6 P4", TOKENS(1, 0), SHAPE(4, 1, 72, 40, 16), FP32, .knobs = {.max_tokens = 8}},
    {.name = "no-tokens-add", .covers = "A2 A6", TOKENS(2, 0, 0), SHAPE(4, 3, 72, 40, 16), BF16, ADD, .knobs = {.max_tokens = 5}},
    {.name = "idle-rank", .covers = "A3 I4", TOKENS(2, 16, 11), SHAPE(4, 2, 64, 40, 0), FP32, .ids = MOK_IDS_FIRST_TWO},
    {.name = "empty-source", .covers = "A4", TOKENS(2, 0, 8), SHAPE(4, 2, 64, 40, 48), FP32, .ids = MOK_IDS_FIRST_TWO},
    {.name = "none-routed", .covers = "A6 B2", TOKENS(2, 4, 3), SHAPE(4, 2, 72, 48, 32), FP32, .ids = MOK_IDS_NONE, .shared_w = 1},
    {.name = "none-routed-add", .covers = "A6 A2", TOKENS(3, 4, 0, 6), SHAPE(5, 2, 72, 48, 0), FP32, ADD, .ids = MOK_IDS_NONE},
    {.name = "one-source", .covers = "A7", TOKENS(4, 0, 0, 5, 0), SHAPE(8, 3, 64, 40, 0), FP32, .ids = MOK_IDS_DISTINCT},

    /* B: masked, invalid, duplicate ids */
    {.name = "bad-ids", .covers = "B1 P5", TOKENS(2, 37, 5), SHAPE(8, 2, 72, 40, 16), FP32, .ids = MOK_IDS_BAD},
    {.name = "bad-ids-one-rank", .covers = "B1 P5", TOKENS(1, 200), SHAPE(7, 3, 64, 96, 0), BF16, .ids = MOK_IDS_BAD},
    {.name = "signs", .covers = "B2 D1", TOKENS(2, 6, 13), SHAPE(4, 2, 64, 40, 32), FP32, .ids = MOK_IDS_SIGNS},
    {.name = "unequal-sources", .covers = "B8 B9", TOKENS(2, 1, 128), SHAPE(6, 3, 72, 40, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "duplicates", .covers = "P4", TOKENS(3, 50, 21, 7), SHAPE(5, 4, 96, 56, 0), FP32, .ids = MOK_IDS_ANY},
    {.name = "all-duplicates", .covers = "P4", TOKENS(2, 33, 20), SHAPE(6, 4, 64, 56, 40), BF16, .ids = MOK_IDS_REPEATED},

    /* C: unused slots, NaN, zero weights */
    {.name = "half-masked", .covers = "C1", TOKENS(1, 8), SHAPE(4, 2, 128, 48, 0), FP32, .ids = MOK_IDS_HALF},
    {.name = "half-masked-spare", .covers = "C1 C2", TOKENS(2, 40, 17), SHAPE(9, 5, 128, 48, 72), FP32, ADD, .ids = MOK_IDS_HALF,
     .knobs = {.max_tokens = 120}},
    {.name = "nan-unrouted", .covers = "C4 P6", TOKENS(2, 16, 9), SHAPE(4, 2, 64, 40, 0), FP32, .ids = MOK_IDS_DISTINCT, .nan_x = 5,
     .nan_unrouted = 1},
    {.name = "nan-token", .covers = "C4 P6", TOKENS(2, 16, 9), SHAPE(24, 2, 72, 40, 0), FP32, .ids = MOK_IDS_DISTINCT, .nan_x = 11},
    {.name = "nan-token-shared", .covers = "P6", TOKENS(2, 7, 19), SHAPE(12, 3, 72, 40, 32), BF16, .ids = MOK_IDS_DISTINCT, .nan_x = 13,
     .shared_w = 1},
    {.name = "nan-gradient", .covers = "P6", TOKENS(3, 16, 2, 9), SHAPE(24, 2, 72, 40, 0), FP32, ADD, .ids = MOK_IDS_DISTINCT, .nan_dy = 7},

    /* D: capacity, imbalance */
    {.name = "tiny-ring", .covers = "D5 P1", TOKENS(2, 200, 120), SHAPE(4, 2, 64, 40, 0), FP32, .ids = MOK_IDS_FIRST_TWO,
     .knobs = {.minibatch_rows = 128, .ring_minibatches = 1}},
    {.name = "tiny-ring-bf16", .covers = "D5 P1", TOKENS(2, 190, 210), SHAPE(4, 2, 64, 40, 24), BF16, .ids = MOK_IDS_FIRST_TWO,
     .knobs = {.minibatch_rows = 128, .ring_minibatches = 1}},
    {.name = "last-expert", .covers = "D6 P1", TOKENS(3, 300, 150, 250), SHAPE(7, 1, 48, 32, 0), FP32, .ids = MOK_IDS_LAST,
     .knobs = {.minibatch_rows = 128, .ring_minibatches = 1}},
    {.name = "last-expert-long", .covers = "D6 P1", TOKENS(1, 1024), SHAPE(7, 2, 48, 40, 0), BF16, ADD, .ids = MOK_IDS_LAST,
     .knobs = {.minibatch_rows = 128, .ring_minibatches = 2}},
    {.name = "one-score-for-all", .covers = "D7", TOKENS(8, 30, 31, 29, 0, 28, 33, 27, 5), SHAPE(64, 8, 48, 40, 0), FP32,
     .ids = MOK_IDS_SHARED_ROW},
    {.name = "one-score-for-all-long",
     .covers = "D7", TOKENS(8, 2304, 2304, 2304, 2304, 2304, 2304, 2304, 2304), SHAPE(64, 8, 32, 40, 0), FP32,
     .ids = MOK_IDS_SHARED_ROW, .slow = 1},
    {.name = "around-32-tokens", .covers = "D8", TOKENS(4, 1, 31, 32, 33), SHAPE(8, 3, 64, 40, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "many-tokens", .covers = "D10", TOKENS(2, 9000, 7000), SHAPE(16, 8, 32, 40, 0), FP32, .ids = MOK_IDS_DISTINCT, .slow = 1},
    {.name = "tokens-65536", .covers = "D10", TOKENS(2, 65536, 70), SHAPE(5, 1, 16, 24, 0), FP32, .ids = MOK_IDS_DISTINCT},

    /* E: shapes */
    {.name = "hidden-2880", .covers = "E1", TOKENS(2, 21, 34), SHAPE(6, 4, 2880, 96, 0), FP32, .ids = MOK_IDS_DISTINCT, .slow = 1},
    {.name = "hidden-1536", .covers = "E1", TOKENS(2, 21, 34), SHAPE(4, 2, 1536, 72, 40), BF16, .ids = MOK_IDS_DISTINCT},
    {.name = "hidden-64", .covers = "E1", TOKENS(2, 51, 34), SHAPE(5, 2, 64, 96, 40), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "hidden-72", .covers = "E1", TOKENS(2, 51, 34), SHAPE(5, 2, 72, 136, 40), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "hidden-8", .covers = "E1 P4", TOKENS(2, 33, 40), SHAPE(5, 2, 8, 16, 24), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "inter-8", .covers = "E1 P4", TOKENS(3, 33, 40, 2), SHAPE(6, 2, 48, 8, 16), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "wide-tiles", .covers = "E1", TOKENS(2, 41, 23), SHAPE(3, 2, 1032, 520, 264), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "inter-wider", .covers = "E1", TOKENS(1, 70), SHAPE(3, 2, 40, 1048, 776), BF16, .ids = MOK_IDS_DISTINCT},
    {.name = "counts", .covers = "E2", TOKENS(2, 100, 149), SHAPE(8, 1, 64, 40, 0), FP32, .ids = MOK_IDS_COUNTS},
    {.name = "counts-one-rank", .covers = "E2", TOKENS(1, 249), SHAPE(7, 1, 72, 48, 0), BF16, .ids = MOK_IDS_COUNTS},
    {.name = "top-1", .covers = "E5", TOKENS(2, 65, 130), SHAPE(6, 1, 264, 64, 0), FP32, .ids = MOK_IDS_DISTINCT,
     .router = MOK_ROUTER_SIGNED},
    {.name = "top-3", .covers = "E5", TOKENS(2, 25, 30), SHAPE(7, 3, 64, 40, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "top-9", .covers = "E5", TOKENS(2, 25, 30), SHAPE(11, 9, 64, 40, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "top-10", .covers = "E5", TOKENS(2, 25, 30), SHAPE(17, 10, 64, 40, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "top-16", .covers = "E5", TOKENS(3, 25, 30, 10), SHAPE(40, 16, 64, 48, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "top-all", .covers = "E5", TOKENS(2, 25, 30), SHAPE(12, 12, 64, 40, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "top-64", .covers = "E5", TOKENS(2, 9, 7), SHAPE(80, 64, 48, 40, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "top-64-of-3", .covers = "E5 P4", TOKENS(2, 9, 7), SHAPE(3, 64, 48, 40, 0), FP32, .ids = MOK_IDS_ANY},
    {.name = "tokens-255", .covers = "E6", TOKENS(1, 255), SHAPE(127, 2, 32, 40, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "tokens-256", .covers = "E6", TOKENS(1, 256), SHAPE(128, 2, 32, 40, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "tokens-257", .covers = "E6", TOKENS(2, 257, 1), SHAPE(129, 2, 32, 40, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "tokens-1025", .covers = "E6", TOKENS(2, 1025, 256), SHAPE(257, 3, 32, 40, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "experts-5", .covers = "E7", TOKENS(2, 40, 31), SHAPE(5, 2, 64, 48, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "experts-6", .covers = "E7", TOKENS(2, 40, 31), SHAPE(6, 2, 64, 48, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "experts-256-ranks-3", .covers = "E8 P4", TOKENS(3, 40, 31, 50), SHAPE(256, 4, 32, 48, 0), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "experts-2-ranks-4", .covers = "E8 P4", TOKENS(4, 20, 3, 0, 50), SHAPE(2, 1, 64, 48, 24), FP32, .ids = MOK_IDS_DISTINCT},
    {.name = "one-expert-in-all", .covers = "E8 P4", TOKENS(3, 20, 3, 11), SHAPE(1, 2, 64, 48, 0), FP32, ADD, .ids = MOK_IDS_ANY},

    /* G: weights and scales (the cases that pass through the layer) */
    {.name = "weights-zero", .covers = "G2", TOKENS(2, 20, 13), SHAPE(8, 3, 64, 40, 0), FP32, .ids = MOK_IDS_DISTINCT,
     .router = MOK_ROUTER_ZERO},
    {.name = "weights-zero-shared", .covers = "G2", TOKENS(2, 20, 13), SHAPE(8, 3, 64, 40, 48), BF16, .ids = MOK_IDS_DISTINCT,
     .router = MOK_ROUTER_ZERO, .shared_w = 1},
    {.name = "weight-once", .covers = "G4", TOKENS(2, 6, 5), SHAPE(4, 1, 64, 40, 0), FP32, .ids = MOK_IDS_DISTINCT,
     .router = MOK_ROUTER_GIVEN,
     .weights = {0.5f}, .values = MOK_VALUES_PROBE, .probe_gate = 32.0f, .probe_up = 0.03125f, .outputs = {3, 3, 3, 3}, .expect_y = 1.5f},
    {.name = "scale-once", .covers = "G6", TOKENS(2, 6, 5), SHAPE(4, 2, 64, 40, 48), FP32, .ids = MOK_IDS_DISTINCT,
     .router = MOK_ROUTER_GIVEN,
     .weights = {1.25f, 1.25f}, .values = MOK_VALUES_PROBE, .probe_gate = 32.0f, .probe_up = 0.03125f,
     .outputs = {4, 4, 4, 4, 0, 0, 0, 3}, .expect_y = 13.0f},
    {.name = "scale-any", .covers = "G6 L11", TOKENS(2, 16, 25), SHAPE(7, 2, 64, 40, 48), FP32, .ids = MOK_IDS_DISTINCT,
     .router = MOK_ROUTER_GIVEN,
     .weights = {2.5f, 0.75f}, .shared_w = 1},
    /* Outputs cancel to 2^-12 of their size, so no bound of check 1 fits; hidden below 32 leaves it out. */
    {.name = "weights-fp32", .covers = "G7", TOKENS(1, 6), SHAPE(2, 2, 24, 40, 0), FP32, .ids = MOK_IDS_ORDERED, .router = MOK_ROUTER_GIVEN,
     .weights = {0.5001f, 0.4999f}, .values = MOK_VALUES_PROBE, .probe_gate = 32.0f, .probe_up = 0.03125f, .outputs = {1000, -1000},
     .expect_y = 0.2f},

    /* H: activations */
    {.name = "limit-10", .covers = "H2", TOKENS(2, 6, 9), SHAPE(4, 1, 64, 40, 0), FP32, .ids = MOK_IDS_DISTINCT,
     .router = MOK_ROUTER_GIVEN, .weights = {1},
     .values = MOK_VALUES_PROBE, .activation = {10, 1, 0}, .probe_gate = 50, .probe_up = 50, .outputs = {1, 1, 1, 1}, .expect_y = 99.995f},
    {.name = "limit-1", .covers = "H6", TOKENS(2, 6, 9), SHAPE(4, 1, 64, 40, 0), FP32, .ids = MOK_IDS_DISTINCT,
     .router = MOK_ROUTER_GIVEN, .weights = {1},
     .values = MOK_VALUES_PROBE, .activation = {1, 1, 0}, .probe_gate = 12, .probe_up = 1, .outputs = {1, 1, 1, 1}, .expect_y = 0.7311f},
    {.name = "gpt-oss-known", .covers = "H4", TOKENS(2, 6, 9), SHAPE(4, 1, 64, 40, 0), FP32, .ids = MOK_IDS_DISTINCT,
     .router = MOK_ROUTER_GIVEN, .weights = {1},
     .values = MOK_VALUES_PROBE, .activation = {7, 1.702f, 1}, .probe_gate = 8, .probe_up = 2, .outputs = {1, 1, 1, 1}, .expect_y = 21.0f,
     .knobs = {.weight_layout = MOK_LAYOUT_INTERLEAVED, .grad_layout = MOK_LAYOUT_PACKED}},
    {.name = "gpt-oss", .covers = "H4", TOKENS(2, 60, 39), SHAPE(6, 3, 72, 40, 48), FP32, .ids = MOK_IDS_DISTINCT,
     .values = MOK_VALUES_WIDE,
     .activation = {7, 1.702f, 1}, .knobs = {.weight_layout = MOK_LAYOUT_INTERLEAVED, .grad_layout = MOK_LAYOUT_INTERLEAVED}},
    {.name = "limit-small", .covers = "H2 H6", TOKENS(2, 60, 39), SHAPE(6, 3, 72, 40, 0), BF16, .ids = MOK_IDS_DISTINCT,
     .values = MOK_VALUES_WIDE,
     .activation = {0.75f, 0.5f, -0.25f}},

    /* I: sums */
    {.name = "sum-264", .covers = "I1", TOKENS(1, 5), SHAPE(8, 8, 64, 40, 0), FP32, .ids = MOK_IDS_ORDERED, .router = MOK_ROUTER_GIVEN,
     .weights = {1, 1, 1, 1},
     .values = MOK_VALUES_PROBE, .probe_gate = 32, .probe_up = 0.03125f, .outputs = {256, 1, 1, 1, 1, 1, 1, 1}, .expect_y = 264.0f},
    {.name = "sum-in-order", .covers = "I1", TOKENS(2, 5, 4), SHAPE(3, 3, 64, 40, 0), FP32, .ids = MOK_IDS_ORDERED,
     .router = MOK_ROUTER_GIVEN, .weights = {1, 1, 1},
     .values = MOK_VALUES_PROBE, .probe_gate = 32, .probe_up = 0.03125f, .outputs = {1, 0.001953125f, -1}, .expect_y = 0.001953125f},
    {.name = "top-8-dx", .covers = "I5", TOKENS(2, 40, 55), SHAPE(16, 8, 128, 96, 0), FP32, .ids = MOK_IDS_DISTINCT,
     .router = MOK_ROUTER_SIGNED},

    /* L and the rest: every part at once, all numbers different, layouts, gradients */
    {.name = "all-different", .covers = "L11", TOKENS(3, 61, 29, 43), SHAPE(10, 4, 104, 56, 88), FP32, .ids = MOK_IDS_DISTINCT,
     .shared_w = 1},
    {.name = "all-different-add", .covers = "L11 A2", TOKENS(3, 61, 29, 43), SHAPE(10, 4, 104, 56, 88), BF16, ADD, .ids = MOK_IDS_HALF,
     .shared_w = 1,
     .knobs = {.minibatch_rows = 128, .ring_minibatches = 2}},
    {.name = "packed", .covers = "I3", TOKENS(2, 30, 44), SHAPE(6, 3, 72, 40, 48), FP32, .ids = MOK_IDS_DISTINCT,
     .knobs = {.weight_layout = MOK_LAYOUT_PACKED, .grad_layout = MOK_LAYOUT_PACKED}},
    {.name = "interleaved-bf16", .covers = "I3", TOKENS(2, 30, 44), SHAPE(6, 3, 72, 40, 0), BF16, .ids = MOK_IDS_DISTINCT,
     .knobs = {.weight_layout = MOK_LAYOUT_INTERLEAVED, .grad_layout = MOK_LAYOUT_INTERLEAVED}},
    {.name = "strided", .covers = "I3", TOKENS(2, 30, 44), SHAPE(6, 3, 72, 40, 48), FP32, ADD, .ids = MOK_IDS_DISTINCT,
     .knobs = {.weight_layout = MOK_LAYOUT_STRIDED, .grad_layout = MOK_LAYOUT_STRIDED}},
    {.name = "strided-bf16", .covers = "I3", TOKENS(2, 30, 44), SHAPE(6, 3, 72, 40, 48), BF16, .ids = MOK_IDS_DISTINCT,
     .knobs = {.weight_layout = MOK_LAYOUT_PACKED, .grad_layout = MOK_LAYOUT_STRIDED}},
    {.name = "keep-some", .covers = "P3", TOKENS(2, 260, 200), SHAPE(4, 2, 64, 40, 24), FP32, .ids = MOK_IDS_DISTINCT,
     .knobs = {.keep_rows = 256, .minibatch_rows = 128, .ring_minibatches = 2}},
    {.name = "keep-all", .covers = "P3", TOKENS(2, 260, 200), SHAPE(4, 2, 64, 40, 24), BF16, .ids = MOK_IDS_DISTINCT,
     .knobs = {.keep_rows = MOK_KEEP_ALL, .minibatch_rows = 128, .ring_minibatches = 3}},
    {.name = "carry-bf16", .covers = "P3", TOKENS(2, 400, 300), SHAPE(2, 1, 48, 40, 0), BF16, ADD, .ids = MOK_IDS_DISTINCT,
     .knobs = {.minibatch_rows = 128, .ring_minibatches = 1}},
    {.name = "trained-like", .covers = "P1", TOKENS(2, 150, 110), SHAPE(64, 8, 256, 128, 0), FP32, .ids = MOK_IDS_SKEWED},
    {.name = "staged", .covers = "P3", TOKENS(2, 80, 55), SHAPE(6, 3, 64, 40, 48), FP32, .ids = MOK_IDS_DISTINCT,
     .knobs = {.path = MOK_PATH_STAGED}},
    {.name = "fused", .covers = "P3", TOKENS(2, 80, 55), SHAPE(6, 3, 64, 40, 48), FP32, .ids = MOK_IDS_DISTINCT,
     .knobs = {.path = MOK_PATH_FUSED, .comm_workers = 2, .compute_workers = 3, .minibatch_rows = 128, .ring_minibatches = 2,
     .look_ahead = 1}},
};

int mok_ref_case_count(void) { return (int)(sizeof cases / sizeof cases[0]); }

const struct mok_ref_case *mok_ref_case_get(int idx) { return idx < 0 || idx >= mok_ref_case_count() ? NULL : &cases[idx]; }

const struct mok_ref_case *mok_ref_case_find(const char *name)
{
    for (int i = 0; i < mok_ref_case_count(); i++) {
        if (strcmp(cases[i].name, name) == 0) {
            return &cases[i];
        }
    }
    return NULL;
}
