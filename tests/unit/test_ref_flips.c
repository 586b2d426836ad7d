/*
 * The allowance for flips (src/ref/operand.h), against two kinds of fp32 arithmetic made by hand: a vector unit, which rounds after each
 * addition, and a tensor core, which adds 16 products at a time and cuts. Oracle 2 run with the products of such a unit is a correct
 * backend; it exceeds the bounds that have no allowance, and stays within those that have one.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ref/cases.h"
#include "ref/compare.h"
#include "ref/mutant.h"
#include "ref/operand.h"
#include "ref/product.h"
#include "ref/random.h"

/* ---- units ------------------------------------------------------------------------------------------------------------------ */

enum unit {
    UNIT_VECTOR,
    UNIT_TENSOR
};

static enum unit unit; /* of the products below */

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double of_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The power of two of a number, 0 for 0. */
static double power_of(double value) { return of_bits(bits_of(value) & 0x7ff0000000000000u); }

/* To 24 significant bits, towards zero. */
static double cut_to_fp32(double value) { return of_bits(bits_of(value) & ~(uint64_t)0x1fffffff); }

enum {
    DEPTH = 16 /* products that a tensor core adds at a time */
};

/* In units of the largest of them: 23 bits of fp32, and two. */
#define SMALLEST_KEPT 0x1p-25

/* sum + the 16 products. A product counts as large as its factors' powers say, whatever their fractions make of it. */
static double tensor_step(double sum, const double *a, const double *a_power, const double *b, const double *b_power)
{
    double top = power_of(sum);
    for (int i = 0; i < DEPTH; i++) {
        double power = a_power[i] * b_power[i];
        top = power > top ? power : top;
    }
    if (top == 0.0 || !isfinite(top)) {
        return top == 0.0 ? 0.0 : NAN;
    }
    double scale = 1.0 / (SMALLEST_KEPT * top), whole = (double)(int32_t)(sum * scale);
    for (int i = 0; i < DEPTH; i++) {
        whole += (double)(int32_t)(a[i] * b[i] * scale);
    }
    return cut_to_fp32(whole * (SMALLEST_KEPT * top));
}

/* One operand, its vectors of length k behind one another, filled up with zeros to a multiple of DEPTH. */
struct packed {
    int64_t stride;
    double *values, *powers;
};

static struct packed pack(int64_t num, int64_t k, const double *from, int64_t row, int64_t step)
{
    struct packed packed = {(k + DEPTH - 1) / DEPTH * DEPTH, NULL, NULL};
    packed.values = calloc((size_t)(num * packed.stride) + 1, sizeof(double));
    packed.powers = calloc((size_t)(num * packed.stride) + 1, sizeof(double));
    assert_true(packed.values != NULL && packed.powers != NULL);
    for (int64_t i = 0; i < num * k; i++) {
        double value = from[i / k * row + i % k * step];
        packed.values[i / k * packed.stride + i % k] = value;
        packed.powers[i / k * packed.stride + i % k] = power_of(value);
    }
    return packed;
}

/* c[m, n] += op(a) op(b); element (i, p) of op(a) is a[i * a_row + p * a_step], element (p, j) of op(b) b[j * b_row + p * b_step]. */
static void multiply(int64_t m, int64_t n, int64_t k, const double *a, int64_t a_row, int64_t a_step, const double *b, int64_t b_row,
                     int64_t b_step, double *c)
{
    struct packed left = pack(m, k, a, a_row, a_step), right = pack(n, k, b, b_row, b_step);
    for (int64_t i = 0; i < m * n; i++) {
        int64_t at = i / n * left.stride, to = i % n * right.stride;
        double sum = (double)(float)c[i];
        float rounded = (float)c[i];
        for (int64_t p = 0; p < left.stride && unit == UNIT_TENSOR; p += DEPTH) {
            sum = tensor_step(sum, left.values + at + p, left.powers + at + p, right.values + to + p, right.powers + to + p);
        }
        for (int64_t p = 0; p < k && unit == UNIT_VECTOR; p++) {
            rounded += (float)(left.values[at + p] * right.values[to + p]); /* the product of two bf16 numbers is exact in fp32 */
        }
        c[i] = unit == UNIT_TENSOR ? sum : (double)rounded;
    }
    free(left.values);
    free(left.powers);
    free(right.values);
    free(right.powers);
}

static void product_nt(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c)
{
    multiply(m, n, k, a, k, 1, b, k, 1, c);
}

static void product_nn(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c)
{
    multiply(m, n, k, a, k, 1, b, 1, n, c);
}

static void product_tn(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c)
{
    multiply(m, n, k, a, 1, m, b, 1, n, c);
}

/* ---- sums ------------------------------------------------------------------------------------------------------------------- */

static double *draw(struct mok_ref_random *random, int64_t count, double tail)
{
    double *values = malloc((size_t)count * sizeof(double));
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) {
        double value = mok_ref_random_normal(random);
        values[i] = mok_ref_operand_round(value * exp(tail * mok_ref_random_normal(random)));
    }
    return values;
}

/* The largest error of m * n sums of k products, in units of what mok_ref_operand_sum says. */
static double worst_sum(int64_t m, int64_t n, int64_t k, double tail)
{
    struct mok_ref_random random = mok_ref_random_open("sums", (uint32_t)k, MOK_FOR_X, (uint64_t)(8.0 * tail));
    double *a = draw(&random, m * k, tail), *b = draw(&random, n * k, tail), worst = 0.0;
    double *results = calloc((size_t)(3 * m * n), sizeof(double));
    assert_non_null(results);
    double *got = results, *exact = results + m * n, *squares = results + 2 * m * n;
    product_nt(m, n, k, a, b, got);
    mok_ref_product_nt(m, n, k, a, b, exact);
    for (int64_t i = 0; i < m * k; i++) {
        a[i] *= a[i];
    }
    for (int64_t i = 0; i < n * k; i++) {
        b[i] *= b[i];
    }
    mok_ref_product_nt(m, n, k, a, b, squares);
    for (int64_t i = 0; i < m * n; i++) {
        worst = fmax(worst, fabs(got[i] - exact[i]) / mok_ref_operand_sum(k, exact[i], squares[i]).error);
    }
    free(a);
    free(b);
    free(results);
    return worst;
}

/* The error of an fp32 sum stays within what is said of it, for short and long sums, terms of one size and of many; and not far within. */
static void test_sums(void **state)
{
    static const char *const names[] = {"vector unit", "tensor core"};
    (void)state;
    for (unit = UNIT_VECTOR; unit <= UNIT_TENSOR; unit++) {
        double worst = 0.0;
        for (int64_t k = 8; k <= 8192; k *= 4) {
            for (double tail = 0.0; tail < 2.0; tail += 0.75) {
                double here = worst_sum(64, k >= 2048 ? 64 : 256, k, tail);
                worst = fmax(worst, here);
                if (!(here < 1.0)) {
                    fail_msg("%s: a sum of %lld products, tail %.2f, is off by %.2f of what it may", names[unit], (long long)k, tail, here);
                }
            }
        }
        print_message("%s: sums are off by at most %.2f of what they may\n", names[unit], worst);
        assert_true(worst > 0.25);
    }
}

/* ---- one operand ------------------------------------------------------------------------------------------------------------ */

static void test_operand(void **state)
{
    const mok_activation plain = {INFINITY, 1.0f, 0.0f}, limited = {2.0f, 1.0f, 0.0f};
    struct mok_ref_inexact u = {1.0, 1e-7}, dh = {0.5, 1e-7};
    struct mok_ref_operand made, allowance;
    (void)state;
    /* In the middle between two boundaries nothing flips; next to one, 3 + 2^-7, g may be 3 or 3 + 2^-6. */
    mok_ref_operand_make(&plain, 3.0, 1.0, 0.5f, 0.75f, &made);
    mok_ref_operand_allow(&plain, (struct mok_ref_inexact){3.0, 1e-6}, u, dh, 0.75f, &made, &allowance);
    assert_true(allowance.h == 0.0 && allowance.wh == 0.0 && allowance.dg == 0.0 && allowance.du == 0.0);
    mok_ref_operand_allow(&plain, (struct mok_ref_inexact){3.0078124, 1e-6}, u, dh, 0.75f, &made, &allowance);
    assert_true(allowance.h == 0x1p-6 && allowance.wh > 0.0 && allowance.wh <= 0x1p-6 && allowance.du > 0.0);
    /* Far below 0 silu is steep for its size: at -6 one ulp of g is more than five of h. */
    mok_ref_operand_make(&plain, -6.0, 1.0, 0.5f, 1.0f, &made);
    mok_ref_operand_allow(&plain, (struct mok_ref_inexact){-6.0156249, 1e-6}, u, dh, 1.0f, &made, &allowance);
    assert_true(allowance.h >= 5.0 * mok_ref_bf16_ulp(made.h) && allowance.dg >= 4.0 * mok_ref_bf16_ulp(made.dg));
    /* Across the clamp the derivative is there or not; a NaN has no allowance. */
    mok_ref_operand_make(&limited, 2.0, 1.0, 0.5f, 1.0f, &made);
    mok_ref_operand_allow(&limited, (struct mok_ref_inexact){2.0078124, 1e-6}, u, dh, 1.0f, &made, &allowance);
    assert_true(made.dg != 0.0 && allowance.dg == fabs(made.dg) && allowance.h == 0.0);
    mok_ref_operand_make(&plain, NAN, 1.0, 0.5f, 1.0f, &made);
    mok_ref_operand_allow(&plain, (struct mok_ref_inexact){NAN, NAN}, u, dh, 1.0f, &made, &allowance);
    assert_true(allowance.h == 0.0 && allowance.wh == 0.0 && allowance.dg == 0.0 && allowance.du == 0.0);
}

/* ---- whole layers ----------------------------------------------------------------------------------------------------------- */

/* dg, du and w*h of all rows of a run of oracle 2, in the order in which it shows them, and those of the run with another unit. */
struct watch {
    double *values, *allowances; /* [num] of the first run */
    int64_t num;
    int is_second;
    int64_t at;
    int64_t num_allowed;   /* have an allowance */
    int64_t num_different; /* are not the same in the second run */
    int64_t num_outside;   /* differ by more than their allowance */
};

static void look(struct watch *watch, const double *values, const double *allowances, int64_t count)
{
    for (int64_t i = 0; i < count; i++, watch->at++) {
        assert_true(watch->at < watch->num);
        if (!watch->is_second) {
            watch->values[watch->at] = values[i];
            watch->allowances[watch->at] = allowances[i];
            watch->num_allowed += allowances[i] != 0.0;
        } else if (values[i] != watch->values[watch->at] && !(isnan(values[i]) && isnan(watch->values[watch->at]))) {
            watch->num_different++;
            watch->num_outside += !(fabs(values[i] - watch->values[watch->at]) <= watch->allowances[watch->at]);
        }
    }
}

static void watch_operands(void *context, const struct mok_ref_rows *rows)
{
    int64_t count = rows->num_rows * rows->width;
    look(context, rows->dg, rows->dg_allowance, count);
    look(context, rows->du, rows->du_allowance, count);
    look(context, rows->wh, rows->wh_allowance, count);
}

static struct watch open_watch(const struct mok_ref_problem *p)
{
    struct watch watch = {.num = 0};
    for (int64_t route = 0; route < p->num_tokens * p->top_k; route++) {
        watch.num += mok_ref_is_routed(p, route) ? 3 * p->inter : 0;
    }
    watch.num += 3 * p->num_tokens * p->shared_inter;
    watch.values = calloc((size_t)watch.num, sizeof(double));
    watch.allowances = calloc((size_t)watch.num, sizeof(double));
    assert_true(watch.values != NULL && watch.allowances != NULL);
    return watch;
}

/* The worst gradient element and how many fail. */
struct judgement {
    double ratio;
    int64_t num_failed;
};

static struct judgement judge(const struct mok_ref_problem *p, const struct mok_ref_rounded *rounded, const struct mok_ref_outputs *outputs)
{
    struct judgement judgement = {0.0, 0};
    struct mok_ref_report report;
    mok_ref_report_clear(&report);
    mok_ref_compare_rounded(p, rounded, outputs, (struct mok_ref_scope){0, p->num_ranks}, &report);
    assert_int_equal(report.worst[MOK_CHECK_Y].num_failed + report.worst[MOK_CHECK_DX].num_failed + report.worst[MOK_CHECK_DW].num_failed,
                     0);
    for (int check = MOK_CHECK_DGATE; check <= MOK_CHECK_SHARED_DDOWN; check++) {
        judgement.ratio = fmax(judgement.ratio, report.worst[check].ratio);
        judgement.num_failed += report.worst[check].num_failed;
    }
    return judgement;
}

static void drop_allowances(const struct mok_ref_problem *p, struct mok_ref_rounded *rounded)
{
    size_t routed = (size_t)p->num_experts * (size_t)p->inter * (size_t)p->hidden * sizeof(double);
    size_t shared = (size_t)p->num_ranks * (size_t)p->shared_inter * (size_t)p->hidden * sizeof(double);
    memset(rounded->grads_allowance.gate, 0, routed);
    memset(rounded->grads_allowance.up, 0, routed);
    memset(rounded->grads_allowance.down, 0, routed);
    if (shared > 0) {
        memset(rounded->shared_grads_allowance.gate, 0, shared);
        memset(rounded->shared_grads_allowance.up, 0, shared);
        memset(rounded->shared_grads_allowance.down, 0, shared);
    }
}

/* Runs one round of a case on the unit. Returns the judgement without allowances; with them nothing may fail. */
static struct judgement try_unit(const struct mok_ref_case *recipe, uint32_t round)
{
    struct mok_ref_problem p;
    struct mok_ref_rounded rounded;
    struct mok_ref_outputs outputs;
    assert_int_equal(mok_ref_generate(recipe, round, &p), MOK_OK);
    assert_int_equal(mok_ref_outputs_alloc(&p, &outputs), MOK_OK);
    struct watch watch = open_watch(&p);
    struct mok_ref_play play = mok_ref_plain_play;
    play.operands = watch_operands;
    play.context = &watch;
    assert_int_equal(mok_ref_rounded_play(&p, &play, &rounded), MOK_OK);
    assert_int_equal(watch.at, watch.num);
    play.product_nt = product_nt;
    play.product_nn = product_nn;
    play.product_tn = product_tn;
    watch.is_second = 1;
    watch.at = 0;
    assert_int_equal(mok_ref_mutant_play(&p, &play, &outputs), MOK_OK);
    struct judgement with = judge(&p, &rounded, &outputs);
    drop_allowances(&p, &rounded);
    struct judgement without = judge(&p, &rounded, &outputs);
    print_message("%-14s round %u: %lld operands, %.2f%% may flip, %.3f%% do; worst gradient %.3f of its bound, without allowances %.3f, "
                  "%lld beyond\n",
                  recipe->name, round, (long long)watch.num, 100.0 * (double)watch.num_allowed / (double)watch.num,
                  100.0 * (double)watch.num_different / (double)watch.num, with.ratio, without.ratio, (long long)without.num_failed);
    assert_int_equal(watch.num_outside, 0);
    assert_true(watch.num_allowed * 20 < watch.num);
    assert_int_equal(with.num_failed, 0);
    free(watch.values);
    free(watch.allowances);
    mok_ref_rounded_free(&rounded);
    mok_ref_outputs_free(&p, &outputs);
    mok_ref_problem_free(&p);
    return without;
}

/* What a Hopper GPU measured before there were allowances: how many elements were beyond their bound, and how far the worst was. */
static void test_measured(void **state)
{
    static const struct {
        const char *name;
        uint32_t round;
        int64_t num_failed;
        double ratio;
    } measured[] = {{"hidden-1536", 0, 22, 1.19}, {"wide-tiles", 1, 25, 1.25}, {"tokens-1025", 0, 1, 1.02}, {"trained-like", 1, 4, 1.06}};
    (void)state;
    unit = UNIT_TENSOR;
    for (size_t i = 0; i < sizeof measured / sizeof measured[0]; i++) {
        struct judgement without = try_unit(mok_ref_case_find(measured[i].name), measured[i].round);
        assert_int_equal(without.num_failed, measured[i].num_failed);
        assert_true(fabs(without.ratio - measured[i].ratio) <= 0.006);
    }
}

/* Seeds of the trained layer's shape (64 experts, top-8, H 256, I 128), and cases with clamps, NaN, short sums, bf16: on both units. */
static void test_seeds(void **state)
{
    static const char *const names[] = {"hidden-8", "inter-8",    "gpt-oss",  "limit-small", "nan-token", "nan-gradient",
                                        "top-1",    "carry-bf16", "limit-10", "weights-zero", "all-different"};
    struct mok_ref_case recipe = *mok_ref_case_find("trained-like");
    (void)state;
    recipe.name = "trained-shape";
    for (unit = UNIT_VECTOR; unit <= UNIT_TENSOR; unit++) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            try_unit(mok_ref_case_find(names[i]), 0);
        }
        int64_t num_beyond = 0;
        for (uint32_t seed = unit == UNIT_VECTOR ? 2 : 0; seed < 3; seed++) {
            num_beyond += try_unit(&recipe, seed).num_failed;
        }
        assert_true(num_beyond > 0); /* else the allowances were for nothing */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_operand),
        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_seeds),
    };
    return cmocka_run_group_tests_name("ref_flips", tests, NULL, NULL);
}
