/*
 * What the CUDA backend decides on the host, checked where there is no GPU: windows of rows, memory, automatic values, how rows are cut into copies, and
 * the answer of a machine without a GPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#ifdef MOK_HAVE_CUDA

#include "api/setup.h"
#include "cuda/device.h"
#include "cuda/fused/fused_host.h"
#include "cuda/staged/staged_rows.h"

/* A config of one rank; the setup as the API makes it. */
static struct mok_pass_setup setup_of(int32_t num_ranks, int64_t max_tokens, int64_t keep_rows, int32_t minibatch, int32_t places)
{
    mok_group_config config;
    struct mok_pass_setup setup;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CUDA;
    config.path = MOK_PATH_STAGED;
    config.num_ranks = num_ranks;
    config.shape = (mok_shape){12, 2, 64, 40, 24, MOK_FORMAT_BF16, max_tokens};
    config.num_saved = 2;
    config.keep_rows = keep_rows;
    config.minibatch_rows = minibatch;
    config.ring_minibatches = places;
    assert_int_equal(mok_api_setup(&config, &mok_pass_cuda, &setup), MOK_OK);
    return setup;
}

/* ---- windows ---------------------------------------------------------------------------------------------------------------- */

/* Every padded row is in exactly one window; a window lies in one lap, is kept or not as a whole, and fits its buffers. */
static void check_windows(struct mok_pass_setup setup)
{
    struct mok_pass_group group = {.setup = setup, .layout = mok_cuda_plan_layout(&setup)};
    struct mok_cuda_pass pass = {.group = &group, .ring = &group.setup.ring_backward, .kept_rows = group.layout.kept_rows};
    struct mok_window window = {0, 0, 0, 0};
    int64_t end = 0, ring_rows = mok_plan_ring_rows(pass.ring);
    int num_windows = 0;
    while (mok_cuda_next_window(&pass, &window)) {
        assert_int_equal(window.first, end);
        assert_true(window.rows > 0);
        assert_int_equal(window.rows % MOK_TILE_ROWS, 0);
        end = window.first + window.rows;
        assert_int_equal(window.lap, window.first / ring_rows);
        assert_int_equal(window.lap, (end - 1) / ring_rows);
        assert_int_equal(window.is_kept, window.first < pass.kept_rows);
        assert_true(!window.is_kept || end <= pass.kept_rows);
        assert_true(mok_plan_ring_row(pass.ring, window.first) + window.rows <= ring_rows);
        num_windows++;
    }
    assert_int_equal(end, mok_plan_max_rows(&setup.dims));
    assert_int_equal(group.layout.spans_windows, num_windows > 1);
}

static void test_windows(void **state)
{
    static const int64_t keeps[] = {0, 128, 256, 640, 1280, MOK_KEEP_ALL};
    static const int32_t minibatches[] = {0, 128, 384}, rings[] = {0, 1, 2, 5};
    (void)state;
    for (size_t k = 0; k < sizeof keeps / sizeof keeps[0]; k++) {
        for (size_t m = 0; m < sizeof minibatches / sizeof minibatches[0]; m++) {
            for (size_t r = 0; r < sizeof rings / sizeof rings[0]; r++) {
                check_windows(setup_of(1, 1, keeps[k], minibatches[m], rings[r]));
                check_windows(setup_of(1, 400, keeps[k], minibatches[m], rings[r]));
                check_windows(setup_of(3, 277, keeps[k], minibatches[m], rings[r]));
            }
        }
    }
}

/* ---- memory and automatic values -------------------------------------------------------------------------------------------- */

static void test_memory(void **state)
{
    (void)state;
    struct mok_pass_setup setup = setup_of(2, 500, 512, 128, 2);
    struct mok_cuda_layout layout = mok_cuda_plan_layout(&setup);
    mok_memory memory = {.struct_size = sizeof memory};
    mok_pass_cuda.memory(&setup, &memory);
    assert_int_equal(memory.ring_bytes, layout.ring_bytes);
    assert_int_equal(memory.saved_bytes, 2 * layout.saved_stride);
    assert_int_equal(memory.other_bytes, layout.other_bytes + mok_cuda_plan_schedule(&setup).bytes);
    assert_int_equal(layout.kept_rows, 512);
    /* x, y, h and, for backward, dy, dg, du of 256 rows, at least */
    assert_true(layout.ring_bytes >= 256 * 2 * (3 * 64 + 3 * 40));
    assert_true(layout.saved_stride >= 512 * 2 * (64 + 2 * 40));
}

/* One lap over the worst case where that fits, several where it does not. */
static void test_automatic_ring(void **state)
{
    mok_group_config config;
    struct mok_pass_setup setup;
    (void)state;
    setup = setup_of(2, 500, 0, 0, 0);
    assert_true(mok_plan_ring_rows(&setup.ring_forward) >= mok_plan_max_rows_any(&setup.dims));
    assert_true(mok_plan_ring_rows(&setup.ring_backward) >= mok_plan_max_rows_any(&setup.dims));
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CUDA;
    config.path = MOK_PATH_STAGED;
    config.num_ranks = 64;
    config.shape = (mok_shape){384, 8, 7168, 2048, 2048, MOK_FORMAT_BF16, 8192};
    config.num_saved = 1;
    assert_int_equal(mok_api_setup(&config, &mok_pass_cuda, &setup), MOK_OK);
    assert_true(mok_plan_ring_rows(&setup.ring_forward) < mok_plan_max_rows_any(&setup.dims));
    assert_true(mok_cuda_plan_layout(&setup).ring_bytes < (int64_t)20 << 30);
}

/* ---- four and eight ranks --------------------------------------------------------------------------------------------------- */

/* A GPU's part of a group: what it gets by itself, with a GPU for each rank. */
static struct mok_pass_setup large_setup(mok_shape shape, int32_t num_ranks, mok_path path)
{
    mok_group_config config;
    struct mok_pass_setup setup;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CUDA;
    config.path = path;
    config.num_ranks = num_ranks;
    config.compute_workers = config.comm_workers = 132;
    config.shape = shape;
    config.num_saved = 1;
    assert_int_equal(mok_api_setup(&config, &mok_pass_cuda, &setup), MOK_OK);
    return setup;
}

/* The worst case of rows grows with the number of ranks, what a rank has to do does not: so minibatches, places and look-ahead stay as they are with
 * two ranks, and a backward pass with four times the rows of an even spread still has one lap. Ring and saved object leave two thirds of the memory
 * of an H200 to weights, gradients and the caller. */
static void test_many_ranks(void **state)
{
    static const mok_shape shapes[] = {
        {128, 8, 2048, 768, 0, MOK_FORMAT_BF16, 8192},      {8, 2, 4096, 14336, 0, MOK_FORMAT_BF16, 8192},
        {384, 8, 7168, 2048, 2048, MOK_FORMAT_BF16, 8192},  {12, 8, 7168, 2048, 2048, MOK_FORMAT_BF16, 8192},
        {256, 8, 6144, 2048, 2048, MOK_FORMAT_BF16, 8192},  {8, 8, 6144, 2048, 2048, MOK_FORMAT_BF16, 8192},
        {512, 10, 4096, 1024, 1024, MOK_FORMAT_BF16, 8192}, {16, 10, 4096, 1024, 1024, MOK_FORMAT_BF16, 8192},
        {384, 6, 7168, 3072, 3072, MOK_FORMAT_BF16, 8192},  {12, 6, 7168, 3072, 3072, MOK_FORMAT_BF16, 8192},
        {128, 8, 2048, 768, 0, MOK_FORMAT_BF16, 2048},      {12, 8, 7168, 2048, 2048, MOK_FORMAT_BF16, 2048},
    };
    static const int32_t counts[] = {4, 8};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            struct mok_pass_setup two = large_setup(shapes[i], 2, MOK_PATH_FUSED), many = large_setup(shapes[i], counts[c], MOK_PATH_FUSED);
            struct mok_cuda_layout layout = mok_cuda_plan_layout(&many);
            int64_t even_rows = shapes[i].max_tokens * shapes[i].top_k;
            if (2 * even_rows > 256 * (int64_t)shapes[i].num_experts) { /* else more ranks bring more rows to an expert, and other minibatches */
                assert_int_equal(many.ring_forward.minibatch_rows, two.ring_forward.minibatch_rows);
                assert_int_equal(many.ring_backward.minibatch_rows, two.ring_backward.minibatch_rows);
            }
            assert_int_equal(many.ring_forward.num_places, two.ring_forward.num_places);
            assert_int_equal(many.ring_forward.look_ahead, two.ring_forward.look_ahead);
            assert_true(mok_plan_ring_rows(&many.ring_backward) >= mok_min64(4 * even_rows, mok_plan_max_rows_any(&many.dims)));
            assert_true(layout.ring_bytes + layout.saved_bytes + layout.other_bytes + many.region.bytes < ((int64_t)140 << 30) / 3);
        }
    }
}

/* The counters of a pass have places for the worst case of rows; their sums and indices fit 32 bits. */
static void test_counters_of_many_ranks(void **state)
{
    static const int32_t counts[] = {1, 2, 4, 8, 64};
    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        struct mok_pass_setup setup = large_setup((mok_shape){384, 8, 7168, 2048, 2048, MOK_FORMAT_BF16, 8192}, counts[c], MOK_PATH_FUSED);
        struct mok_limits forward = mok_plan_limits(&setup.dims, &setup.ring_forward), backward = mok_plan_limits(&setup.dims, &setup.ring_backward);
        int64_t words = mok_max64(mok_plan_counter_base(&forward, MOK_NUM_COUNTERS), mok_plan_counter_base(&backward, MOK_NUM_COUNTERS));
        assert_true(forward.max_rows >= (int64_t)counts[c] * 8192 * 8);
        assert_true(forward.max_tiles * MOK_TILE_ROWS == forward.max_rows);
        assert_true(mok_cuda_plan_layout(&setup).counter_bytes >= 4 * (words + MOK_CUDA_STATE_WORDS));
        assert_true(words < INT32_MAX / 4);
    }
}

static struct mok_ring fused_ring(mok_shape shape, int64_t minibatch_rows, int64_t places, int64_t look_ahead, struct mok_ring *ring_backward_out)
{
    mok_group_config config;
    struct mok_pass_setup setup;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CUDA;
    config.path = MOK_PATH_FUSED;
    config.num_ranks = 2;
    config.compute_workers = config.comm_workers = 132;
    config.shape = shape;
    config.minibatch_rows = minibatch_rows;
    config.ring_minibatches = (int32_t)places;
    config.look_ahead = (int32_t)look_ahead;
    config.num_saved = 1;
    assert_int_equal(mok_api_setup(&config, &mok_pass_cuda, &setup), MOK_OK);
    assert_int_equal(setup.path, MOK_PATH_FUSED);
    if (ring_backward_out != NULL) {
        *ring_backward_out = setup.ring_backward;
    }
    return setup.ring_forward;
}

/* What the fused forward pass takes by itself, and that it takes what is given. */
static void test_fused_ring(void **state)
{
    static const struct {
        mok_shape shape;
        int64_t minibatch_rows;
    } known[] = {
        /* nothing hides the first pull: as many as fill all CTAs twice, whatever T is */
        {{128, 8, 2048, 768, 0, MOK_FORMAT_BF16, 8192}, 5632},
        {{128, 8, 2048, 768, 0, MOK_FORMAT_BF16, 4096}, 5632},
        {{132, 9, 3008, 832, 0, MOK_FORMAT_BF16, 8192}, 5376},
        {{8, 2, 4096, 14336, 0, MOK_FORMAT_BF16, 8192}, 2304},
        {{94, 3, 6528, 1984, 0, MOK_FORMAT_BF16, 8192}, 2304},
        /* a shared expert does */
        {{12, 8, 7168, 2048, 2048, MOK_FORMAT_BF16, 8192}, 8192},
        {{16, 10, 4096, 1024, 1024, MOK_FORMAT_BF16, 8192}, 8192},
        {{12, 8, 7168, 2048, 2048, MOK_FORMAT_BF16, 1024}, 4096},
        /* narrow experts: moving rows takes longer than multiplying them */
        {{22, 8, 3648, 320, 320, MOK_FORMAT_BF16, 8192}, 4096},
        {{22, 8, 3648, 320, 0, MOK_FORMAT_BF16, 8192}, 4096},
        /* 256 rows an expert or fewer: x and h are to stay in L2 */
        {{384, 6, 7168, 3072, 3072, MOK_FORMAT_BF16, 8192}, 1024},
        {{228, 2, 3584, 3392, 3392, MOK_FORMAT_BF16, 8192}, 1536},
        {{128, 8, 2048, 768, 0, MOK_FORMAT_BF16, 2048}, 3840},
        {{384, 8, 7168, 2048, 2048, MOK_FORMAT_BF16, 8192}, 8192}, /* 341 */
        {{16, 2, 1024, 4096, 0, MOK_FORMAT_BF16, 8192}, 8448}, /* not these: a row of little width, multiplied by much */
    };
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct mok_ring ring = fused_ring(known[i].shape, 0, 0, 0, NULL);
        assert_int_equal(ring.minibatch_rows, known[i].minibatch_rows);
        assert_int_equal(ring.num_places, 4);
        assert_int_equal(ring.look_ahead, 1);
    }
    struct mok_ring given = fused_ring(known[0].shape, 1024, 8, 3, NULL);
    assert_int_equal(given.minibatch_rows, 1024);
    assert_int_equal(given.num_places, 8);
    assert_int_equal(given.look_ahead, 3);
    struct mok_ring few = fused_ring((mok_shape){2, 1, 256, 128, 0, MOK_FORMAT_BF16, 10}, 0, 0, 0, NULL); /* one minibatch */
    assert_int_equal(few.num_places, 1);
    assert_int_equal(few.look_ahead, 0);
    struct mok_ring backward;
    fused_ring((mok_shape){22, 8, 3648, 320, 320, MOK_FORMAT_BF16, 8192}, 0, 0, 0, &backward); /* narrow */
    assert_int_equal(backward.minibatch_rows, 4096);
    fused_ring((mok_shape){384, 6, 7168, 3072, 3072, MOK_FORMAT_BF16, 8192}, 0, 0, 0, &backward); /* few rows */
    assert_int_equal(backward.minibatch_rows, 1024);
    fused_ring((mok_shape){128, 8, 2048, 768, 0, MOK_FORMAT_BF16, 8192}, 0, 0, 0, &backward);
    assert_int_equal(backward.minibatch_rows, 5632);
}

/* The public call tells the same; without a GPU, of an H200. */
static void test_choice(void **state)
{
    mok_group_config config;
    mok_choice choice = {.struct_size = sizeof choice};
    (void)state;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CUDA;
    config.num_ranks = 2;
    config.comm_workers = config.compute_workers = 132;
    config.shape = (mok_shape){128, 8, 2048, 768, 0, MOK_FORMAT_BF16, 8192};
    assert_int_equal(mok_group_choose(&config, &choice), MOK_OK);
    assert_int_equal(choice.backend, MOK_BACKEND_CUDA);
    assert_int_equal(choice.path, MOK_PATH_FUSED);
    assert_int_equal(choice.comm_workers, 132);
    assert_int_equal(choice.forward.minibatch_rows, 5632);
    assert_int_equal(choice.forward.ring_minibatches, 4);
    assert_int_equal(choice.forward.look_ahead, 1);
    assert_int_equal(choice.backward.minibatch_rows, 5632);
    config.path = MOK_PATH_STAGED;
    assert_int_equal(mok_group_choose(&config, &choice), MOK_OK);
    assert_int_equal(choice.path, MOK_PATH_STAGED);
}

/* AUTO: fused. */
static void test_automatic_path(void **state)
{
    mok_group_config config;
    struct mok_pass_setup setup;
    (void)state;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CUDA;
    config.shape = (mok_shape){16, 8, 2048, 768, 0, MOK_FORMAT_BF16, 100};
    assert_int_equal(mok_api_setup(&config, &mok_pass_cuda, &setup), MOK_OK);
    assert_int_equal(setup.path, MOK_PATH_FUSED);
    config.path = MOK_PATH_STAGED;
    assert_int_equal(mok_api_setup(&config, &mok_pass_cuda, &setup), MOK_OK);
    assert_int_equal(setup.path, MOK_PATH_STAGED);
}

static void test_refusals(void **state)
{
    mok_group_config config;
    struct mok_pass_setup setup;
    (void)state;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CUDA;
    assert_int_equal(MOK_CUDA_MAX_EXPERTS, 17058); /* as mok.h, README.md and docs/cases.md have it */
    config.shape = (mok_shape){MOK_CUDA_MAX_EXPERTS + 1, 1, 8, 8, 0, MOK_FORMAT_BF16, 1};
    assert_int_equal(mok_api_setup(&config, &mok_pass_cuda, &setup), MOK_ERR_UNSUPPORTED);
    assert_non_null(strstr(mok_last_error(), "num_experts"));
    config.shape.num_experts = 4;
    config.reserve_sms = 10000;
    assert_int_equal(mok_api_setup(&config, &mok_pass_cuda, &setup), MOK_ERR_ARGUMENT);
    assert_non_null(strstr(mok_last_error(), "reserve_sms"));
}

/* Whatever is reserved or asked for, there is a worker of each role, and never more than there are SMs. */
static void test_any_number_of_sms(void **state)
{
    (void)state;
    for (int32_t reserved = 0; reserved < 132; reserved++) {
        mok_group_config config;
        struct mok_pass_setup setup;
        int32_t wanted = reserved % 7 * 30, sms = 132 - reserved; /* of the H200 that is assumed where there is no GPU */
        assert_int_equal(mok_group_config_init(&config), MOK_OK);
        config.backend = MOK_BACKEND_CUDA;
        config.shape = (mok_shape){8, 2, 256, 256, 0, MOK_FORMAT_BF16, 1024};
        config.reserve_sms = reserved;
        config.comm_workers = wanted;
        if (mok_backend_available(MOK_BACKEND_CUDA)) {
            skip(); /* this GPU may have another number */
        }
        assert_int_equal(mok_api_setup(&config, &mok_pass_cuda, &setup), MOK_OK);
        assert_int_equal(setup.compute_workers, sms);
        assert_int_equal(setup.comm_workers, wanted == 0 || wanted > sms ? sms : wanted);
    }
}

/* The persistent kernels' CTAs on a share of a GPU: whole clusters, one at least, and a mover among them. */
static void test_any_share_of_sms(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 133 * 133 * 4; i++) {
        int32_t cluster = 1 + i % 2, num_comm = 0;
        struct mok_pass_group group = {.gemm_ctas = i / 4 % 133 + 1, .move_ctas = i / 4 / 133 + 1, .fused_apart = i / 2 % 2};
        int32_t ctas = mok_cuda_fused_share_ctas(&group, cluster, &num_comm);
        int32_t least = group.fused_apart ? 2 * cluster : cluster; /* apart: a cluster that moves and one that multiplies */
        assert_int_equal(ctas % cluster, 0);
        assert_true(ctas >= least && (ctas <= group.gemm_ctas || ctas == least));
        assert_true(num_comm >= 1 && num_comm <= (group.fused_apart ? ctas - cluster : ctas));
        assert_true(num_comm <= group.move_ctas + cluster - 1);
    }
}

/* ---- copies ----------------------------------------------------------------------------------------------------------------- */

/* The bytes of a row are covered, copies begin at lines of 128 bytes, and the places of a block fit an SM. */
static void test_cut_rows(void **state)
{
    (void)state;
    for (int32_t row_bytes = 16; row_bytes <= 1 << 21; row_bytes += row_bytes < 40000 ? 16 : 1008) {
        struct mok_cuda_move_args args = {.row_bytes = row_bytes};
        size_t shared_bytes = mok_cuda_cut_rows(&args);
        assert_true(args.lanes >= 12 && args.lanes <= 32);
        assert_int_equal(args.chunk_bytes % 128, 0);
        assert_true((int64_t)args.chunk_bytes * args.row_chunks >= row_bytes);
        assert_true((int64_t)args.chunk_bytes * (args.row_chunks - 1) < row_bytes);
        assert_true(shared_bytes >= 4 * (size_t)args.lanes * (size_t)args.chunk_bytes);
        assert_true(shared_bytes <= MOK_CUDA_MAX_SHARED);
    }
}

/* Whatever the ranks, the tables of the largest schedule fit an SM. */
static void test_route_tables(void **state)
{
    (void)state;
    for (int64_t num_ranks = 1; num_ranks <= 1024; num_ranks++) {
        int64_t num_local = (MOK_CUDA_MAX_EXPERTS + num_ranks - 1) / num_ranks;
        assert_true(mok_cuda_routes_shared_bytes(num_ranks, num_local) <= MOK_CUDA_MAX_SHARED);
    }
}

/* ---- kernels and devices ---------------------------------------------------------------------------------------------------- */

static void test_argument_structs(void **state)
{
    (void)state;
    assert_int_equal(mok_cuda_count_kernel().args_bytes, sizeof(struct mok_cuda_sort_args));
    assert_int_equal(mok_cuda_scatter_kernel().args_bytes, sizeof(struct mok_cuda_sort_args));
    assert_int_equal(mok_cuda_routes_kernel().args_bytes, sizeof(struct mok_cuda_own_args));
    assert_int_equal(mok_cuda_barrier_kernel().args_bytes, sizeof(struct mok_cuda_barrier_args));
    assert_int_equal(mok_cuda_publish_kernel().args_bytes, sizeof(struct mok_cuda_publish_args));
    assert_int_equal(mok_cuda_pull_kernel().args_bytes, sizeof(struct mok_cuda_move_args));
    assert_int_equal(mok_cuda_push_kernel().args_bytes, sizeof(struct mok_cuda_move_args));
    assert_int_equal(mok_cuda_sum_y_kernel().args_bytes, sizeof(struct mok_cuda_sum_y_args));
    assert_int_equal(mok_cuda_sum_dx_kernel().args_bytes, sizeof(struct mok_cuda_sum_dx_args));
    assert_int_equal(mok_cuda_raise_kernel().args_bytes, sizeof(struct mok_cuda_raise_args));
    assert_int_equal(mok_cuda_stamp_kernel().args_bytes, sizeof(struct mok_cuda_stamp_args));
}

static void test_no_gpu(void **state)
{
    mok_group_config config;
    mok_group *group = NULL;
    (void)state;
    if (mok_cuda_probe() == MOK_OK) {
        skip();
    }
    assert_int_equal(mok_cuda_probe(), MOK_ERR_NO_DEVICE);
    assert_non_null(strstr(mok_last_error(), "no usable GPU"));
    assert_int_equal(mok_backend_available(MOK_BACKEND_CUDA), 0);
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CUDA;
    config.shape = (mok_shape){4, 2, 64, 40, 0, MOK_FORMAT_BF16, 16};
    assert_int_equal(mok_group_create(&config, &group), MOK_ERR_NO_DEVICE);
    assert_null(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),          cmocka_unit_test(test_memory),   cmocka_unit_test(test_automatic_ring),
        cmocka_unit_test(test_fused_ring),       cmocka_unit_test(test_many_ranks), cmocka_unit_test(test_counters_of_many_ranks),
        cmocka_unit_test(test_automatic_path), cmocka_unit_test(test_choice),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_any_number_of_sms), cmocka_unit_test(test_any_share_of_sms),         cmocka_unit_test(test_cut_rows), cmocka_unit_test(test_route_tables),
        cmocka_unit_test(test_argument_structs),
        cmocka_unit_test(test_no_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    printf("this build has no CUDA backend\n");
    return 77;
}

#endif
