/*
 * Training steps of two MoE layers, one process a GPU: route, forward, forward, backward, backward. The step is captured once as a CUDA graph and replayed with
 * new routes. Build against the installed package, CUDA's runtime and NCCL:
 *   cc gpu_training.c $(pkg-config --cflags --libs mok) -lcudart -lnccl -o gpu_training
 * with -I and -L of CUDA and NCCL where the compiler does not look by itself.
 *   ./gpu_training 2        # ranks, a GPU each
 *
 * What stands between the layers in a real model (attention, norms, the residual stream) is left out: the output of one layer is the input of the next.
 */
#include <cuda_runtime_api.h>
#include <mok/mok.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 2, STEPS = 20, MOST_RANKS = 8 };
enum { E = 64, K = 8, H = 1024, I = 512, T_MAX = 4096 };

/* One rank. Memory is the device's, but for logits and routes. */
struct rank {
    int32_t rank, num_ranks, num_tokens, num_local;
    mok_group *group;
    cudaStream_t stream;
    mok_layer *layer[LAYERS];
    mok_schedule *schedule[LAYERS];
    mok_forward_args forward[LAYERS];
    mok_backward_args backward[LAYERS];
    int32_t *ids[LAYERS];
    float *w[LAYERS];
    float *logits, *host_w;
    int32_t *host_ids;
};

static struct rank self;

/* A rank that gives up tells its peers, so that they do not wait for it. */
static void give_up(const char *call, const char *reason)
{
    fprintf(stderr, "rank %d: %s: %s\n", self.rank, call, reason);
    if (self.group != NULL) {
        mok_group_abort(self.group);
    }
    _exit(1);
}

#define MOK(call)                           \
    do {                                    \
        if ((call) != MOK_OK) {             \
            give_up(#call, mok_last_error()); \
        }                                   \
    } while (0)

#define CUDA(call)                                      \
    do {                                                \
        cudaError_t error = (call);                     \
        if (error != cudaSuccess) {                     \
            give_up(#call, cudaGetErrorString(error)); \
        }                                               \
    } while (0)

static void *device_memory(size_t bytes)
{
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, bytes));
    return memory;
}

/* bf16 values between -scale and scale, cut. */
static void *random_bf16(size_t count, float scale)
{
    uint16_t *values = malloc(count * 2);
    for (size_t i = 0; i < count; i++) {
        float value = scale * ((float)rand() / (float)RAND_MAX * 2.0f - 1.0f);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        values[i] = (uint16_t)(bits >> 16);
    }
    void *memory = device_memory(count * 2);
    CUDA(cudaMemcpy(memory, values, count * 2, cudaMemcpyHostToDevice));
    free(values);
    return memory;
}

/* [num, rows, cols] without gaps. */
static mok_matrices dense(void *base, int64_t rows, int64_t cols)
{
    mok_matrices matrices = {base, rows * cols, cols};
    return matrices;
}

static void make_group(const ncclUniqueId *id)
{
    mok_group_config config;
    MOK(mok_group_config_init(&config));
    config.backend = MOK_BACKEND_CUDA;
    config.peer = MOK_PEER_NCCL;
    config.nccl_id = id;
    config.rank = self.rank;
    config.num_ranks = self.num_ranks;
    config.device = self.rank;
    config.num_saved = LAYERS; /* as many forward passes as wait for their backward pass at one time */
    config.peer_timeout_ms = 60000;
    config.shape = (mok_shape){.num_experts = E, .top_k = K, .hidden = H, .intermediate = I, .max_tokens = T_MAX};
    mok_memory memory = {.struct_size = sizeof memory};
    MOK(mok_group_memory(&config, &memory));
    MOK(mok_group_create(&config, &self.group));
    int32_t first;
    MOK(mok_local_experts(E, self.num_ranks, self.rank, &first, &self.num_local));
    printf("rank %d: %d tokens, experts %d..%d, %.0f MiB of the library's own\n", self.rank, self.num_tokens, first,
           first + self.num_local - 1, (double)memory.total_bytes / 1048576.0);
}

/* Weights, gradients, and where the tensors of one layer are. Layers hand tensors on in zero-copy memory: what one writes as y its peers pull as x of the
 * next, with no copy in between. */
static void make_layer(int idx)
{
    size_t matrix = (size_t)self.num_local * I * H, tokens = (size_t)T_MAX * H;
    mok_layer_config weights;
    mok_layer_config_init(&weights);
    weights.routed.gate = dense(random_bf16(matrix, 0.05f), I, H);
    weights.routed.up = dense(random_bf16(matrix, 0.05f), I, H);
    weights.routed.down = dense(random_bf16(matrix, 0.05f), H, I);
    MOK(mok_layer_create(self.group, &weights, &self.layer[idx]));
    MOK(mok_schedule_create(self.group, &self.schedule[idx]));
    self.ids[idx] = device_memory(sizeof(int32_t) * T_MAX * K);
    self.w[idx] = device_memory(sizeof(float) * T_MAX * K);

    mok_forward_args *forward = &self.forward[idx];
    mok_forward_args_init(forward);
    MOK(mok_group_saved(self.group, idx, &forward->saved));
    void *x;
    MOK(mok_saved_input(forward->saved, &x));
    forward->x = x;
    forward->w = self.w[idx];
    if (idx > 0) {
        self.forward[idx - 1].y = x;
    }
    forward->y = idx == LAYERS - 1 ? device_memory(tokens * 2) : NULL;

    mok_backward_args *backward = &self.backward[idx];
    mok_backward_args_init(backward);
    backward->saved = forward->saved;
    backward->w = self.w[idx];
    backward->dx = device_memory(tokens * 2);
    backward->dw = device_memory(sizeof(float) * T_MAX * K); /* for the router's backward pass */
    backward->dy = idx == LAYERS - 1 ? random_bf16(tokens, 1.0f) : NULL;
    if (idx > 0) {
        self.backward[idx - 1].dy = backward->dx;
    }
    backward->grads.dtype = MOK_DTYPE_FP32;
    backward->grads.gate = dense(device_memory(matrix * 4), I, H);
    backward->grads.up = dense(device_memory(matrix * 4), I, H);
    backward->grads.down = dense(device_memory(matrix * 4), H, I);
    backward->grad_mode = MOK_GRAD_OVERWRITE; /* ADD to accumulate over microbatches */
}

/* Nothing here waits for the GPU: the calls enqueue, whatever the routes are. */
static void enqueue_step(void)
{
    for (int idx = 0; idx < LAYERS; idx++) {
        MOK(mok_schedule_build(self.schedule[idx], self.ids[idx], self.num_tokens, self.stream));
        MOK(mok_forward(self.layer[idx], self.schedule[idx], &self.forward[idx], self.stream));
    }
    for (int idx = LAYERS - 1; idx >= 0; idx--) {
        MOK(mok_backward(self.layer[idx], self.schedule[idx], &self.backward[idx], self.stream));
    }
}

/* A real router runs on the device. This one has made-up logits, and libmok's helper for the host. */
static void route(int idx)
{
    mok_router_config router;
    mok_router_config_init(&router);
    router.num_experts = E;
    router.top_k = K;
    for (size_t i = 0; i < (size_t)self.num_tokens * E; i++) {
        self.logits[i] = (float)rand() / (float)RAND_MAX;
    }
    MOK(mok_router_choose(&router, self.logits, self.num_tokens, self.host_ids, self.host_w));
    size_t routes = (size_t)self.num_tokens * K;
    CUDA(cudaMemcpyAsync(self.ids[idx], self.host_ids, routes * sizeof(int32_t), cudaMemcpyHostToDevice, self.stream));
    CUDA(cudaMemcpyAsync(self.w[idx], self.host_w, routes * sizeof(float), cudaMemcpyHostToDevice, self.stream));
    CUDA(cudaStreamSynchronize(self.stream)); /* host_ids and host_w are filled anew */
}

static void train(void)
{
    cudaGraph_t graph;
    cudaGraphExec_t step;
    cudaEvent_t begin, end;
    float ms, sum = 0.0f;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeThreadLocal));
    enqueue_step();
    CUDA(cudaStreamEndCapture(self.stream, &graph));
    CUDA(cudaGraphInstantiate(&step, graph, 0));
    for (int count = 0; count < STEPS; count++) {
        for (int idx = 0; idx < LAYERS; idx++) {
            route(idx);
        }
        CUDA(cudaEventRecord(begin, self.stream));
        CUDA(cudaGraphLaunch(step, self.stream));
        CUDA(cudaEventRecord(end, self.stream));
        MOK(mok_group_wait(self.group, self.stream, -1)); /* to print; a training loop goes on, and looks at mok_group_status now and then */
        CUDA(cudaEventElapsedTime(&ms, begin, end));
        sum += count > 0 ? ms : 0.0f; /* the first waits for peers that are still starting */
    }
    float dw;
    CUDA(cudaMemcpy(&dw, self.backward[0].dw, sizeof dw, cudaMemcpyDeviceToHost));
    printf("rank %d: %d steps, %.3f ms a step, dw of the first route %.6f\n", self.rank, STEPS, (double)sum / (STEPS - 1), (double)dw);
    CUDA(cudaGraphExecDestroy(step));
    CUDA(cudaGraphDestroy(graph));
}

static int run_rank(const ncclUniqueId *id)
{
    self.num_tokens = T_MAX - 100 * self.rank; /* ranks need not bring the same number */
    self.logits = malloc(sizeof(float) * T_MAX * E);
    self.host_w = malloc(sizeof(float) * T_MAX * K);
    self.host_ids = malloc(sizeof(int32_t) * T_MAX * K);
    srand(1u + (unsigned)self.rank);
    CUDA(cudaSetDevice(self.rank));
    CUDA(cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking));
    make_group(id);
    for (int idx = 0; idx < LAYERS; idx++) {
        make_layer(idx);
    }
    CUDA(cudaMemcpy((void *)self.forward[0].x, random_bf16((size_t)T_MAX * H, 1.0f), (size_t)T_MAX * H * 2, cudaMemcpyDeviceToDevice));
    train();
    for (int idx = 0; idx < LAYERS; idx++) {
        mok_schedule_destroy(self.schedule[idx]);
        mok_layer_destroy(self.layer[idx]);
    }
    mok_group *group = self.group;
    self.group = NULL; /* gone in any case, also when a peer did not leave */
    MOK(mok_group_destroy(group));
    return 0; /* an example: the tensors go with the process */
}

/* Rank 0 makes NCCL's id and tells the others through a pipe, which ends without a word when it fails. */
static ncclUniqueId share_id(int rank, int num_ranks, const int *ends)
{
    ncclUniqueId id;
    if (rank == 0) {
        ncclResult_t result = ncclGetUniqueId(&id);
        if (result != ncclSuccess) {
            give_up("ncclGetUniqueId", ncclGetErrorString(result));
        }
        for (int peer = 1; peer < num_ranks; peer++) {
            if (write(ends[1], &id, sizeof id) != (ssize_t)sizeof id) {
                give_up("write", "the others cannot be told the id");
            }
        }
    }
    close(ends[1]);
    if (rank > 0 && read(ends[0], &id, sizeof id) != (ssize_t)sizeof id) {
        give_up("read", "rank 0 gave no id");
    }
    return id;
}

/* Ranks are forked before CUDA starts. mpirun or torchrun would start them, and hand the id round. */
int main(int argc, char **argv)
{
    int num_ranks = argc > 1 ? atoi(argv[1]) : 1, ends[2], status, failed = 0;
    if (num_ranks < 1 || num_ranks > MOST_RANKS || pipe(ends) != 0) {
        fprintf(stderr, "usage: gpu_training RANKS, 1 to %d\n", MOST_RANKS);
        return 2;
    }
    for (int rank = 0; rank < num_ranks; rank++) {
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            break; /* the others see that a rank is missing when peer_timeout_ms is over */
        }
        if (child == 0) {
            self.rank = rank;
            self.num_ranks = num_ranks;
            ncclUniqueId id = share_id(rank, num_ranks, ends);
            exit(run_rank(&id));
        }
    }
    close(ends[0]);
    close(ends[1]);
    for (int rank = 0; rank < num_ranks; rank++) {
        failed += wait(&status) < 0 || status != 0; /* one that was never started, too */
    }
    return failed > 0;
}
