/*
 * Graph capture: build + forward + backward captured once on every rank, replayed with new ids and tokens each time, bit for bit equal to the same
 * calls made eagerly, in turn with them on one group; and the rules about streams.
 *
 *   late     the inputs are still being written when the calls are made, and host structs are overwritten right after them
 *   streams  calls on two streams of one group are put in order
 *   held     a kernel that only the host can end holds the stream: all calls return, many passes ahead, and nothing behind it has run. A call that
 *            synchronised, or waited for a peer, would wait until the kernel ends by itself, and this program sees that it has ended
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_layer.h"
#include "gpu_slow.h"

enum { NUM_REPLAYS = 100, NUM_QUEUED = 200, NUM_AHEAD = 16 /* as many as a stream takes without the end of one */, POISON = 0xab };

static const uint64_t hold_limit_ns = 5000000000u;

static mok_status eager(struct gpu_layer *layer, uint32_t seed, char *to)
{
    gpu_layer_inputs(layer, seed);
    gpu_layer_poison(layer, POISON);
    mok_status status = gpu_layer_enqueue(layer);
    return status == MOK_OK ? gpu_layer_outputs(layer, to) : status;
}

/* ---- graph ------------------------------------------------------------------------------------------------------------------ */

static void graph_work(struct gpu_run *run, struct gpu_layer *layer)
{
    char *a = malloc(layer->outputs_bytes), *b = malloc(layer->outputs_bytes);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    mok_group_state state = {.struct_size = sizeof state};
    gpu_layer_inputs(layer, 0);
    gpu_run_note(run, layer->rank, cudaStreamBeginCapture(layer->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess ? MOK_OK : MOK_ERR_DEVICE);
    gpu_run_note(run, layer->rank, gpu_layer_enqueue(layer));
    gpu_run_note(run, layer->rank, cudaStreamEndCapture(layer->stream, &graph) == cudaSuccess ? MOK_OK : MOK_ERR_DEVICE);
    gpu_run_note(run, layer->rank, cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess ? MOK_OK : MOK_ERR_DEVICE);
    gpu_meet();
    for (uint32_t i = 0; i < NUM_REPLAYS && run->status[layer->rank] == MOK_OK; i++) {
        gpu_run_note(run, layer->rank, eager(layer, i, a));
        gpu_layer_poison(layer, POISON);
        gpu_run_note(run, layer->rank, cudaGraphLaunch(exec, layer->stream) == cudaSuccess ? MOK_OK : MOK_ERR_DEVICE);
        gpu_run_note(run, layer->rank, gpu_layer_outputs(layer, b));
        run->num_wrong[layer->rank] += memcmp(a, b, layer->outputs_bytes) != 0;
    }
    gpu_run_note(run, layer->rank, mok_group_status(layer->group, &state));
    run->num_wrong[layer->rank] += state.passes_done != 4 * NUM_REPLAYS;
    gpu_meet();
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    free(a);
    free(b);
}

/* ---- late input ------------------------------------------------------------------------------------------------------------- */

static void late_work(struct gpu_run *run, struct gpu_layer *layer)
{
    char *a = malloc(layer->outputs_bytes), *b = malloc(layer->outputs_bytes);
    char *ready = NULL;
    gpu_run_note(run, layer->rank, eager(layer, 5, a));
    cudaMalloc((void **)&ready, layer->inputs_bytes);
    cudaMemcpyAsync(ready, layer->inputs, layer->inputs_bytes, cudaMemcpyDeviceToDevice, layer->stream);
    cudaMemsetAsync(layer->inputs, 0x7f, layer->inputs_bytes, layer->stream);
    gpu_layer_poison(layer, POISON);
    cudaStreamSynchronize(layer->stream);
    gpu_meet();
    gpu_slow(layer->stream, 200000000u * (1u + (uint32_t)layer->rank % 2));
    cudaMemcpyAsync(layer->inputs, ready, layer->inputs_bytes, cudaMemcpyDeviceToDevice, layer->stream);
    mok_forward_args forward = layer->forward;
    mok_backward_args backward = layer->backward;
    for (int i = 0; i < NUM_QUEUED; i++) {
        layer->forward = forward;
        layer->backward = backward;
        gpu_run_note(run, layer->rank, gpu_layer_enqueue(layer));
        memset(&layer->forward, 0x7f, sizeof layer->forward); /* what a call was given may go when it returns */
        memset(&layer->backward, 0x7f, sizeof layer->backward);
    }
    layer->forward = forward;
    layer->backward = backward;
    gpu_run_note(run, layer->rank, gpu_layer_outputs(layer, b));
    run->num_wrong[layer->rank] += memcmp(a, b, layer->outputs_bytes) != 0;
    gpu_meet();
    cudaFree(ready);
    free(a);
    free(b);
}

/* ---- two streams ------------------------------------------------------------------------------------------------------------ */

static void streams_work(struct gpu_run *run, struct gpu_layer *layer)
{
    char *a = malloc(layer->outputs_bytes), *b = malloc(layer->outputs_bytes);
    cudaStream_t first = layer->stream, second;
    cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
    for (uint32_t i = 0; i < 5; i++) {
        gpu_run_note(run, layer->rank, eager(layer, i, a));
        gpu_layer_poison(layer, POISON);
        cudaStreamSynchronize(first);
        gpu_meet();
        gpu_slow(first, 20000000);
        gpu_run_note(run, layer->rank, mok_schedule_build(layer->schedule, layer->ids, layer->num_tokens, first));
        gpu_run_note(run, layer->rank, mok_forward(layer->layer, layer->schedule, &layer->forward, second));
        gpu_run_note(run, layer->rank, mok_backward(layer->layer, layer->schedule, &layer->backward, first));
        gpu_run_note(run, layer->rank, gpu_layer_outputs(layer, b));
        run->num_wrong[layer->rank] += memcmp(a, b, layer->outputs_bytes) != 0;
    }
    gpu_meet();
    cudaStreamDestroy(second);
    free(a);
    free(b);
}

/* ---- held stream ------------------------------------------------------------------------------------------------------------ */

/* The kernel that holds the stream runs. */
static int hold(struct gpu_layer *layer, volatile uint32_t *words, cudaEvent_t let_go)
{
    uint32_t *device_words = NULL;
    words[0] = words[1] = 0;
    int ok = cudaHostGetDevicePointer((void **)&device_words, (void *)(uintptr_t)words, 0) == cudaSuccess &&
             gpu_hold(layer->stream, 1, device_words, hold_limit_ns) == (int)cudaSuccess && cudaEventRecord(let_go, layer->stream) == cudaSuccess;
    for (int turn = 0; ok && words[0] == 0 && turn < 10000; turn++) {
        usleep(1000);
    }
    return ok && words[0] == 1;
}

static void held_work(struct gpu_run *run, struct gpu_layer *layer)
{
    char *a = malloc(layer->outputs_bytes), *b = malloc(layer->outputs_bytes);
    uint32_t *words = NULL;
    cudaEvent_t let_go = NULL;
    mok_group_state before = {.struct_size = sizeof before}, after = before;
    gpu_run_note(run, layer->rank, eager(layer, 6, a));
    gpu_layer_poison(layer, POISON);
    int ok = cudaHostAlloc((void **)&words, 2 * sizeof *words, cudaHostAllocMapped) == cudaSuccess &&
             cudaEventCreateWithFlags(&let_go, cudaEventDisableTiming) == cudaSuccess && cudaStreamSynchronize(layer->stream) == cudaSuccess;
    ok = ok && hold(layer, words, let_go);
    gpu_meet();
    gpu_run_note(run, layer->rank, mok_group_status(layer->group, &before));
    for (int i = 0; i < NUM_AHEAD && ok; i++) {
        gpu_run_note(run, layer->rank, gpu_layer_enqueue(layer));
    }
    gpu_run_note(run, layer->rank, mok_group_status(layer->group, &after));
    int is_held = ok && cudaEventQuery(let_go) == cudaErrorNotReady && after.passes_done == before.passes_done;
    (void)cudaGetLastError();
    if (!is_held) {
        gpu_check(0, "rank %d: %s", layer->rank, ok ? "a call waited for the device" : "the stream cannot be held");
    }
    gpu_meet();
    if (words != NULL) {
        *(volatile uint32_t *)&words[1] = 1;
    }
    gpu_run_note(run, layer->rank, gpu_layer_outputs(layer, b));
    run->num_wrong[layer->rank] += !is_held || memcmp(a, b, layer->outputs_bytes) != 0;
    gpu_meet(); /* freeing waits for every kernel */
    cudaEventDestroy(let_go);
    cudaFreeHost(words);
    free(a);
    free(b);
}

static int run_all(int32_t num_ranks, void (*work)(struct gpu_run *run, struct gpu_layer *layer))
{
    struct gpu_run run = {.num_ranks = num_ranks, .work = work};
    return gpu_run_all(&run);
}

int main(void)
{
    if (gpu_count() == 0) {
        gpu_skip("graphs and streams: no GPU");
        return gpu_finish();
    }
    static const int32_t ranks[] = {1, 2, 4, 8};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        gpu_check(run_all(ranks[i], graph_work), "graph of build, forward and backward, %d ranks: %d replays equal to eager calls", ranks[i], NUM_REPLAYS);
    }
    gpu_check(run_all(1, late_work), "late input, 1 rank, %d calls queued", NUM_QUEUED);
    gpu_check(run_all(2, late_work), "late input, 2 ranks, %d calls queued", NUM_QUEUED);
    for (int32_t num_ranks = 1; num_ranks <= 4; num_ranks *= 2) {
        gpu_check(run_all(num_ranks, held_work), "held stream, %d ranks: %d passes enqueued while nothing runs", num_ranks, 2 * NUM_AHEAD);
    }
    gpu_check(run_all(2, streams_work), "calls of one group on two streams come in order");
    return gpu_finish();
}
