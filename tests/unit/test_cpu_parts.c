/*
 * Parts of the CPU backend by themselves: loops over a row, the BLAS calls that row bits rest on, trace lanes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <cblas.h>

#include "base/status.h"
#include "test_cpu_run.h"

enum { NUM = 1000 }; /* a multiple of 8 that is none of 64 */

static uint32_t random_state = 12345;

static uint32_t draw(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

static float draw_float(float scale) { return ((float)draw() / 8388608.0f - 1.0f) * scale; }

/* Values of every kind: ordinary, huge, tiny, NaN, infinities, zeros. */
static void fill(float *values, int64_t num, float scale)
{
    static const float specials[] = {0.0f, -0.0f, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-40f, 88.5f, -88.5f, 104.5f, -200.0f, 1e30f};
    for (int64_t i = 0; i < num; i++) {
        values[i] = i % 13 == 5 ? specials[i / 13 % 12] : i % 101 == 7 ? NAN : draw_float(scale);
    }
}

struct row_data {
    float a[NUM], b[NUM], c[NUM];
    mok_bf16 g[NUM], u[NUM], out[6][NUM];
    float sum[3][NUM];
    float partial;
};

static void fill_row(struct row_data *data)
{
    fill(data->a, NUM, 6.0f);
    fill(data->b, NUM, 6.0f);
    fill(data->c, NUM, 6.0f);
    for (int i = 0; i < NUM; i++) {
        data->g[i] = mok_bf16_from_float(data->a[i]);
        data->u[i] = mok_bf16_from_float(data->b[i]);
    }
}

/* Everything that a table of loops computes. The partial sum of a row with NaN is NaN, so it is taken of a part without. */
static void run_loops(const struct mok_cpu_loops *loops, const mok_activation *activation, struct row_data *data)
{
    loops->narrow(data->a, NUM, data->out[0]);
    loops->act(activation, data->a, data->b, NUM, data->out[1], data->out[2], data->out[3]);
    loops->act_backward(activation, 0.7f, data->c, data->g, data->u, NUM, data->out[4], data->out[5], data->out[0]);
    loops->scale(1.7f, data->g, NUM, data->sum[0]);
    loops->widen(data->u, NUM, data->sum[1]);
    loops->fma(-0.3f, data->g, NUM, data->sum[1]);
    loops->widen(data->u, NUM, data->sum[2]);
    loops->add(data->g, NUM, data->sum[2]);
}

/* Equal, but that a NaN is a NaN: its sign and payload are the machine's. */
static void expect_same_floats(const float *a, const float *b, int64_t num)
{
    for (int64_t i = 0; i < num; i++) {
        if (!(isnan(a[i]) && isnan(b[i])) && memcmp(&a[i], &b[i], sizeof a[i]) != 0) {
            fail_msg("element %lld: %a and %a", (long long)i, (double)a[i], (double)b[i]);
        }
    }
}

static void expect_same_bf16(const mok_bf16 *a, const mok_bf16 *b, int64_t num)
{
    for (int64_t i = 0; i < num; i++) {
        float x = mok_bf16_to_float(a[i]), y = mok_bf16_to_float(b[i]);
        expect_same_floats(&x, &y, 1);
    }
}

static const mok_activation activations[] = {{INFINITY, 1.0f, 0.0f}, {7.0f, 1.702f, 1.0f}, {1.0f, 1.0f, 0.0f}};

static void both_sets_of_loops_give_the_same_bits(void **state)
{
    (void)state;
    static struct row_data plain, fast;
    const struct mok_cpu_loops *loops = mok_cpu_loops_find();
    if (loops == &mok_cpu_loops_plain) {
        skip();
    }
    for (int round = 0; round < 30; round++) {
        memset(&plain, 0, sizeof plain);
        fill_row(&plain);
        fast = plain;
        run_loops(&mok_cpu_loops_plain, &activations[round % 3], &plain);
        run_loops(loops, &activations[round % 3], &fast);
        for (int i = 0; i < 6; i++) {
            expect_same_bf16(plain.out[i], fast.out[i], NUM);
        }
        for (int i = 0; i < 3; i++) {
            expect_same_floats(plain.sum[i], fast.sum[i], NUM);
        }
        for (int i = 0; i < NUM; i++) {
            plain.c[i] = draw_float(1.0f);
            plain.g[i] = mok_bf16_from_float(draw_float(3.0f));
            plain.u[i] = mok_bf16_from_float(draw_float(3.0f));
        }
        float a = mok_cpu_loops_plain.act_backward(&activations[round % 3], 0.7f, plain.c, plain.g, plain.u, NUM, plain.out[0],
                                                   plain.out[1], plain.out[2]);
        float b = loops->act_backward(&activations[round % 3], 0.7f, plain.c, plain.g, plain.u, NUM, fast.out[0], fast.out[1], fast.out[2]);
        assert_memory_equal(&a, &b, sizeof a);
    }
}

static void rounding_is_that_of_base(void **state)
{
    (void)state;
    static float values[65536 * 4];
    static mok_bf16 got[65536 * 4];
    for (uint32_t i = 0; i < 65536 * 4; i++) { /* every bf16, and above it below half, half, and more than half of an ulp */
        static const uint32_t below[] = {0, 0x7fff, 0x8000, 0x8001};
        uint32_t bits = (i / 4) << 16 | below[i % 4];
        memcpy(&values[i], &bits, 4);
    }
    mok_cpu_loops_find()->narrow(values, 65536 * 4, got);
    for (uint32_t i = 0; i < 65536 * 4; i++) {
        assert_int_equal(got[i], mok_bf16_from_float(values[i]));
    }
}

/* act and its derivatives against double, over all finite bf16 g: within the rounding of the result and a little. */
static void activation_is_exact_enough(void **state)
{
    (void)state;
    for (int a = 0; a < 3; a++) {
        const mok_activation *activation = &activations[a];
        for (uint32_t bits = 0; bits < 65536; bits++) {
            mok_bf16 g = (mok_bf16)bits, u = mok_bf16_from_float(0.75f), h, row[8], dg[8], du[8], wh[8];
            float gate = mok_bf16_to_float(g), up = 0.75f, ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
            mok_bf16 us[8];
            if (!isfinite(gate) || fabsf(gate) > 1e30f) {
                continue;
            }
            mok_cpu_loops_find()->act(activation, &gate, &up, 1, row, row + 1, &h);
            double z = fmin(gate, activation->limit), s = 1.0 / (1.0 + exp(-(double)activation->alpha * z)),
                   v = 0.75 + activation->up_offset;
            double slope = gate > activation->limit ? 0.0 : s * (1.0 + activation->alpha * z * (1.0 - s)) * v;
            for (int i = 0; i < 8; i++) {
                row[i] = g;
                us[i] = u;
            }
            mok_cpu_loops_find()->act_backward(activation, 1.0f, ones, row, us, 8, dg, du, wh);
            double tolerance = 0x1p-8 * 1.01; /* half a bf16 ulp; below 1e-35 exp(-z) is infinite in fp32, and act 0 */
            assert_true(fabs(mok_bf16_to_float(h) - z * s * v) <= tolerance * fabs(z * s * v) + 1e-35);
            assert_true(fabs(mok_bf16_to_float(du[7]) - z * s) <= tolerance * fabs(z * s) + 1e-35);
            /* The slope passes through zero: there the error is that of its terms. */
            assert_true(fabs(mok_bf16_to_float(dg[7]) - slope) <=
                        tolerance * fabs(slope) + 1e-6 * s * v * (1.0 + fabs(activation->alpha * z * (1.0 - s))) + 1e-35);
            assert_int_equal(wh[3], h);
        }
    }
}

/* ---- BLAS ---------------------------------------------------------------------------------------------------------------------- */

/* The bits of a row must not depend on its place, for shapes that the probe did not try. */
static void rows_keep_their_bits_at_any_place(void **state)
{
    (void)state;
    static const int32_t depths[] = {8, 64, 256, 1000, 1024, 1536, 2880}, widths[] = {8, 16, 64, 136, 248, 256};
    struct mok_cpu_call call;
    assert_int_equal(mok_cpu_gemm_probe(&call), MOK_OK);
    assert_int_equal(mok_cpu_gemm_join(0, 1), MOK_OK);
    print_message("height %d, margin %d\n", call.height, call.margin);
    float *a = malloc(sizeof(float) * MOK_CPU_MAX_HEIGHT * 2880), *moved = malloc(sizeof(float) * MOK_CPU_MAX_HEIGHT * 2880);
    float *b = malloc(sizeof(float) * MOK_CPU_MAX_PANEL * 2880);
    float *c = malloc(sizeof(float) * MOK_CPU_MAX_HEIGHT * MOK_CPU_MAX_PANEL),
          *d = malloc(sizeof(float) * MOK_CPU_MAX_HEIGHT * MOK_CPU_MAX_PANEL);
    for (int64_t i = 0; i < MOK_CPU_MAX_PANEL * 2880; i++) {
        b[i] = draw_float(1.0f);
    }
    for (int shape = 0; shape < 7 * 6 * 2; shape++) {
        int32_t depth = depths[shape / 12], width = widths[shape / 2 % 6], cols = width + 2 * call.margin;
        for (int64_t i = 0; i < (int64_t)call.height * depth; i++) {
            a[i] = draw_float(1.0f);
        }
        for (int32_t row = 0; row < MOK_TILE_ROWS; row++) {
            int32_t to = (row * 37 + 11) % MOK_TILE_ROWS;
            memcpy(moved + (int64_t)to * depth, a + (int64_t)row * depth, sizeof(float) * (size_t)depth);
        }
        memset(moved + (int64_t)MOK_TILE_ROWS * depth, 0, sizeof(float) * (size_t)(call.height - MOK_TILE_ROWS) * (size_t)depth);
        CBLAS_TRANSPOSE trans = shape % 2 ? CblasTrans : CblasNoTrans;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, trans, call.height, cols, depth, 1.0f, a, depth, b, shape % 2 ? depth : cols, 0.0f, c,
                    cols);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, trans, call.height, cols, depth, 1.0f, moved, depth, b, shape % 2 ? depth : cols, 0.0f, d,
                    cols);
        for (int32_t row = 0; row < MOK_TILE_ROWS; row++) {
            int64_t to = (row * 37 + 11) % MOK_TILE_ROWS;
            assert_memory_equal(c + (int64_t)row * cols + call.margin, d + to * cols + call.margin, sizeof(float) * (size_t)width);
        }
    }
    mok_cpu_gemm_leave(1);
    free(d);
    free(c);
    free(b);
    free(moved);
    free(a);
}

/* ---- trace --------------------------------------------------------------------------------------------------------------------- */

static void lanes_keep_order_and_count_what_they_drop(void **state)
{
    (void)state;
    struct mok_trace *trace;
    mok_event events[8];
    int64_t num, dropped;
    assert_int_equal(mok_trace_create(2, INT64_MAX, &trace), MOK_ERR_MEMORY);
    assert_non_null(strstr(mok_last_error(), "max_events is 9223372036854775807: no memory for so many"));
    assert_int_equal(mok_trace_create(2, 3, &trace), MOK_OK);
    for (int i = 0; i < 5; i++) {
        mok_trace_add(trace, 1, MOK_EVENT_PULL, i, 7, i * 10, i * 10 + 5);
    }
    mok_trace_add(trace, 0, MOK_EVENT_SUM, 9, 7, 100, 200);
    mok_trace_take(trace, events, 2, &num, &dropped);
    assert_int_equal(num, 4);
    assert_int_equal(dropped, 2);
    assert_int_equal(events[0].worker, 0);
    assert_int_equal(events[0].kind, MOK_EVENT_SUM);
    assert_int_equal(events[1].worker, 1);
    assert_int_equal(events[1].begin_ns, 0);
    mok_trace_take(trace, events, 8, &num, &dropped);
    assert_int_equal(num, 0);
    assert_int_equal(dropped, 0);
    mok_trace_add(NULL, 0, MOK_EVENT_SUM, 0, 0, 0, 0);
    mok_trace_destroy(trace);
    mok_trace_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sets_of_loops_give_the_same_bits),
        cmocka_unit_test(rounding_is_that_of_base),
        cmocka_unit_test(activation_is_exact_enough),
        cmocka_unit_test(rows_keep_their_bits_at_any_place),
        cmocka_unit_test(lanes_keep_order_and_count_what_they_drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
