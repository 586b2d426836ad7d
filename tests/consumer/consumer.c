/*
 * A program that knows nothing but the installed package, in C17 and, included by consumer.cpp, in C++17: one rank, one expert, one token,
 * one value in each matrix, so that every number can be worked out by hand.
 *
 *   g = 1, u = 2, silu(1) = 0.731059:  h = bf16(1.462117) = 187/128;  y = h/2;  dw = h;  dWd = bf16(h/2);  dWu = du = bf16(silu(1)/2) =
 * 187/512 silu'(1) = 0.927671:               dWg = dg = bf16(2*silu'(1)/2) = 237/256;  dx = dg*1 + du*2 = 212/128
 */
#include <stdio.h>
#include <string.h>

#include <mok/mok.h>

enum { WIDTH = 8, ONE = 0x3f80, TWO = 0x4000, HALF_H = 0x3f3b, DX = 0x3fd4 }; /* bf16 bits; 187/256, 212/128 */

#ifdef __cplusplus
#define ALIGNED alignas(16)
#else
#define ALIGNED _Alignas(16)
#endif

struct tensors {
    ALIGNED uint16_t gate[WIDTH * WIDTH];
    ALIGNED uint16_t up[WIDTH * WIDTH];
    ALIGNED uint16_t down[WIDTH * WIDTH];
    ALIGNED float grad[3][WIDTH * WIDTH];
    ALIGNED uint16_t x[WIDTH], y[WIDTH], dy[WIDTH], dx[WIDTH];
    ALIGNED float w[4], dw[4];
    ALIGNED int32_t ids[4];
};

#define CHECK(call)                                                                                \
    do {                                                                                           \
        mok_status check_status = (call);                                                          \
        if (check_status != MOK_OK) {                                                              \
            fprintf(stderr, "%s: %s: %s\n", #call, mok_status_name(check_status), mok_last_error()); \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static mok_matrices matrices(void *base)
{
    mok_matrices result;
    result.base = base;
    result.expert_stride = WIDTH * WIDTH;
    result.row_stride = WIDTH;
    return result;
}

static int is_value(const char *name, double seen, double expected)
{
    if (seen != expected) {
        fprintf(stderr, "%s is %.9g, by hand it is %.9g\n", name, seen, expected);
    }
    return seen == expected;
}

static int run_layer(mok_group *group, struct tensors *tensor)
{
    mok_layer_config config;
    mok_layer *layer = NULL;
    mok_schedule *schedule = NULL;
    mok_forward_args forward;
    mok_backward_args backward;
    mok_saved *saved = NULL;

    mok_layer_config_init(&config);
    config.routed.gate = matrices(tensor->gate);
    config.routed.up = matrices(tensor->up);
    config.routed.down = matrices(tensor->down);
    CHECK(mok_layer_create(group, &config, &layer));
    CHECK(mok_schedule_create(group, &schedule));
    CHECK(mok_group_saved(group, 0, &saved));
    CHECK(mok_schedule_build(schedule, tensor->ids, 1, NULL));

    mok_forward_args_init(&forward);
    forward.x = tensor->x;
    forward.w = tensor->w;
    forward.y = tensor->y;
    forward.saved = saved;
    CHECK(mok_forward(layer, schedule, &forward, NULL));

    mok_backward_args_init(&backward);
    backward.saved = saved;
    backward.dy = tensor->dy;
    backward.w = tensor->w;
    backward.dx = tensor->dx;
    backward.dw = tensor->dw;
    backward.grads.gate = matrices(tensor->grad[0]);
    backward.grads.up = matrices(tensor->grad[1]);
    backward.grads.down = matrices(tensor->grad[2]);
    CHECK(mok_backward(layer, schedule, &backward, NULL));
    CHECK(mok_group_wait(group, NULL, -1));
    mok_schedule_destroy(schedule);
    mok_layer_destroy(layer);
    return 0;
}

int main(void)
{
    static struct tensors tensor;
    mok_group_config config;
    mok_group *group = NULL;
    int ok = mok_version() == MOK_VERSION;

    tensor.gate[0] = ONE;
    tensor.up[0] = TWO;
    tensor.down[0] = ONE;
    tensor.x[0] = ONE;
    tensor.dy[0] = ONE;
    tensor.w[0] = 0.5f;
    CHECK(mok_group_config_init(&config));
    config.backend = MOK_BACKEND_CPU;
    config.num_saved = 1;
    config.comm_workers = 1;
    config.compute_workers = 1;
    config.shape.num_experts = 1;
    config.shape.top_k = 1;
    config.shape.hidden = WIDTH;
    config.shape.intermediate = WIDTH;
    config.shape.max_tokens = 1;
    CHECK(mok_group_create(&config, &group));
    if (run_layer(group, &tensor) != 0) {
        return 1;
    }
    CHECK(mok_group_destroy(group));
    ok &= is_value("y[0] as bits", tensor.y[0], HALF_H);
    ok &= is_value("y[1] as bits", tensor.y[1], 0);
    ok &= is_value("dx[0] as bits", tensor.dx[0], DX);
    ok &= is_value("dw[0]", tensor.dw[0], 187.0 / 128);
    ok &= is_value("dWd[0,0]", tensor.grad[2][0], 187.0 / 256);
    ok &= is_value("dWg[0,0]", tensor.grad[0][0], 237.0 / 256);
    ok &= is_value("dWu[0,0]", tensor.grad[1][0], 187.0 / 512);
    ok &= is_value("dWu[0,1]", tensor.grad[1][1], 0);
    printf("libmok %d.%d.%d: %s\n", mok_version() / 10000, mok_version() / 100 % 100, mok_version() % 100, ok ? "as by hand" : "WRONG");
    return ok ? 0 : 1;
}
