/*
 * What the calls of a CUDA group ask of the CUDA runtime, on a machine without a GPU: the linker puts the functions below in the runtime's place
 * (tests/CMakeLists.txt), memory is host memory and kernels do nothing. mok_schedule_build, mok_forward and mok_backward may enqueue, and nothing else:
 * no synchronisation, no question whether work is done, no allocation, no free, no copy that waits, no first load of a kernel (docs/protocol.md).
 * That nothing else waits either, gpu_graph shows on a GPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef MOK_HAVE_CUDA

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <mok/mok.h>

#include "api/object.h"
#include "cuda/control.h"
#include "cuda/kernel.h"
#include "cuda/rank_memory.h"
#include "pass/site.h"

enum { TOKENS = 16, EXPERTS = 4, TOP_K = 2, HIDDEN = 64, INTER = 72, SHARED = 40, ROUNDS = 3 };

static int is_in_call, num_enqueued, num_refused;
static const char *refused;
static int fails_at_launch; /* the launch from now on that fails; 0 = none */

/* Of a function that a call may use. */
static cudaError_t enqueue(void)
{
    num_enqueued += is_in_call;
    return cudaSuccess;
}

/* Of one that it may not. */
static cudaError_t wait_for(const char *name)
{
    if (is_in_call) {
        num_refused++;
        refused = name;
    }
    return cudaSuccess;
}

#define FAKE(name, ...)                     \
    cudaError_t __wrap_##name(__VA_ARGS__); \
    cudaError_t __wrap_##name(__VA_ARGS__)

/* ---- questions that nothing waits for --------------------------------------------------------------------------------------------- */

FAKE(cudaGetDeviceCount, int *count) { return *count = 1, cudaSuccess; }
FAKE(cudaGetDevice, int *device) { return *device = 0, cudaSuccess; }
FAKE(cudaSetDevice, int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
FAKE(cudaGetLastError, void) { return cudaSuccess; }
FAKE(cudaStreamIsCapturing, cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    (void)stream;
    return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
FAKE(cudaDeviceGetAttribute, int *value, enum cudaDeviceAttr attribute, int device)
{
    (void)device;
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : attribute == cudaDevAttrMultiProcessorCount ? 132 : 0;
    return cudaSuccess;
}

static CUresult encode_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base, const cuuint64_t *dims,
                             const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    (void)type, (void)rank, (void)base, (void)dims, (void)strides, (void)box, (void)element_strides, (void)interleave, (void)swizzle, (void)promotion;
    (void)fill;
    memset(map, 0, sizeof *map);
    return CUDA_SUCCESS;
}

FAKE(cudaGetDriverEntryPointByVersion, const char *name, void **entry, unsigned version, unsigned long long flags,
     enum cudaDriverEntryPointQueryResult *result)
{
    union {
        void *pointer;
        CUresult (*function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                             const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    } found = {.function = encode_tiled};
    (void)version, (void)flags;
    *result = cudaDriverEntryPointSuccess;
    *entry = found.pointer;
    return strcmp(name, "cuTensorMapEncodeTiled") == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

/* ---- what enqueues ---------------------------------------------------------------------------------------------------------------- */

FAKE(cudaLaunchKernelExC, const cudaLaunchConfig_t *config, const void *function, void **params)
{
    (void)config;
    if (fails_at_launch > 0 && --fails_at_launch == 0) {
        return cudaErrorLaunchFailure;
    }
    if (function == mok_cuda_raise_kernel().function) { /* a group that leaves looks for its own word */
        const struct mok_cuda_raise_args *args = params[0];
        *(uint32_t *)(void *)(args->watch.own + args->word_off) = args->value;
    }
    return enqueue();
}
FAKE(cudaMemsetAsync, void *memory, int byte, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    memset(memory, byte, bytes);
    return enqueue();
}
FAKE(cudaEventRecord, cudaEvent_t event, cudaStream_t stream) { return (void)event, (void)stream, enqueue(); }
FAKE(cudaStreamWaitEvent, cudaStream_t stream, cudaEvent_t event, unsigned flags) { return (void)stream, (void)event, (void)flags, enqueue(); }

/* ---- what waits, or may ------------------------------------------------------------------------------------------------------------ */

FAKE(cudaStreamSynchronize, cudaStream_t stream) { return (void)stream, wait_for("cudaStreamSynchronize"); }
FAKE(cudaDeviceSynchronize, void) { return wait_for("cudaDeviceSynchronize"); }
FAKE(cudaEventSynchronize, cudaEvent_t event) { return (void)event, wait_for("cudaEventSynchronize"); }
FAKE(cudaStreamQuery, cudaStream_t stream) { return (void)stream, wait_for("cudaStreamQuery"); }
FAKE(cudaEventQuery, cudaEvent_t event) { return (void)event, wait_for("cudaEventQuery"); }
FAKE(cudaLaunchHostFunc, cudaStream_t stream, cudaHostFn_t function, void *data)
{
    (void)stream, (void)function, (void)data;
    return wait_for("cudaLaunchHostFunc");
}
FAKE(cudaMemcpy, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    memcpy(to, from, bytes);
    return wait_for("cudaMemcpy");
}
FAKE(cudaMemset, void *memory, int byte, size_t bytes)
{
    memset(memory, byte, bytes);
    return wait_for("cudaMemset");
}
FAKE(cudaMemcpyAsync, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind, (void)stream;
    memcpy(to, from, bytes);
    return wait_for("cudaMemcpyAsync"); /* with pageable memory it waits, with any it stands in a copy engine's queue */
}
FAKE(cudaMalloc, void **memory_out, size_t bytes)
{
    *memory_out = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return wait_for("cudaMalloc");
}
FAKE(cudaHostAlloc, void **memory_out, size_t bytes, unsigned flags)
{
    (void)flags;
    *memory_out = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return wait_for("cudaHostAlloc");
}
FAKE(cudaHostGetDevicePointer, void **pointer_out, void *memory, unsigned flags) { return (void)flags, *pointer_out = memory, cudaSuccess; }
FAKE(cudaFree, void *memory)
{
    free(memory);
    return wait_for("cudaFree");
}
FAKE(cudaFreeHost, void *memory)
{
    free(memory);
    return wait_for("cudaFreeHost");
}
FAKE(cudaMallocAsync, void **memory_out, size_t bytes, cudaStream_t stream)
{
    (void)memory_out, (void)bytes, (void)stream;
    return wait_for("cudaMallocAsync"), cudaErrorMemoryAllocation;
}
FAKE(cudaFreeAsync, void *memory, cudaStream_t stream) { return (void)memory, (void)stream, wait_for("cudaFreeAsync"); }
FAKE(cudaFuncSetAttribute, const void *function, enum cudaFuncAttribute attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return wait_for("cudaFuncSetAttribute");
}
FAKE(cudaFuncGetAttributes, struct cudaFuncAttributes *attributes, const void *function)
{
    (void)function;
    memset(attributes, 0, sizeof *attributes);
    return wait_for("cudaFuncGetAttributes");
}
FAKE(cudaOccupancyMaxActiveClusters, int *num_out, const void *function, const cudaLaunchConfig_t *config)
{
    (void)function, (void)config;
    *num_out = 66;
    return wait_for("cudaOccupancyMaxActiveClusters");
}
FAKE(cudaGetDeviceProperties, struct cudaDeviceProp *properties, int device)
{
    (void)device;
    memset(properties, 0, sizeof *properties);
    properties->multiProcessorCount = 132;
    properties->totalGlobalMem = (size_t)1 << 30;
    properties->uuid.bytes[0] = 1;
    return wait_for("cudaGetDeviceProperties");
}
FAKE(cudaGetDeviceProperties_v2, struct cudaDeviceProp *properties, int device) { return __wrap_cudaGetDeviceProperties(properties, device); }
FAKE(cudaDeviceGetStreamPriorityRange, int *low, int *high) { return *low = *high = 0, cudaSuccess; }
FAKE(cudaStreamCreateWithFlags, cudaStream_t *stream_out, unsigned flags)
{
    (void)flags;
    *stream_out = (cudaStream_t)&is_in_call;
    return wait_for("cudaStreamCreateWithFlags");
}
FAKE(cudaStreamCreateWithPriority, cudaStream_t *stream_out, unsigned flags, int priority)
{
    (void)priority;
    return __wrap_cudaStreamCreateWithFlags(stream_out, flags);
}
FAKE(cudaStreamDestroy, cudaStream_t stream) { return (void)stream, wait_for("cudaStreamDestroy"); }
FAKE(cudaEventCreateWithFlags, cudaEvent_t *event_out, unsigned flags)
{
    (void)flags;
    *event_out = (cudaEvent_t)&is_in_call;
    return wait_for("cudaEventCreateWithFlags");
}
FAKE(cudaEventDestroy, cudaEvent_t event) { return (void)event, wait_for("cudaEventDestroy"); }

/* ---- a layer ----------------------------------------------------------------------------------------------------------------------- */

/* Memory whose content nobody looks at. */
static _Alignas(256) char weights[1 << 20], grads[1 << 20], tensors[1 << 20], outputs[1 << 20];

static mok_ffn place_ffn(char *base, int64_t inter, int32_t dtype, int64_t num)
{
    int64_t count = inter * HIDDEN, bytes = num * count * (dtype == MOK_DTYPE_FP32 ? 4 : 2);
    return (mok_ffn){.dtype = dtype,
                     .gate = {base, count, HIDDEN},
                     .up = {base + bytes, count, HIDDEN},
                     .down = {base + 2 * bytes, count, inter}};
}

struct bed {
    mok_group *group;
    mok_layer *layer;
    mok_schedule *schedule;
    mok_forward_args forward;
    mok_backward_args backward;
};

static void open_bed(struct bed *bed, int32_t path, int64_t keep_rows, int32_t grad_dtype)
{
    mok_group_config config;
    mok_layer_config layer;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    config.backend = MOK_BACKEND_CUDA;
    config.path = path;
    config.keep_rows = keep_rows;
    config.minibatch_rows = 128;
    config.ring_minibatches = 2;
    config.shape = (mok_shape){EXPERTS, TOP_K, HIDDEN, INTER, SHARED, MOK_FORMAT_BF16, TOKENS};
    assert_int_equal(mok_group_create(&config, &bed->group), MOK_OK);
    mok_layer_config_init(&layer);
    layer.routed = place_ffn(weights, INTER, MOK_DTYPE_BF16, EXPERTS);
    layer.shared = place_ffn(weights + sizeof weights / 2, SHARED, MOK_DTYPE_BF16, 1);
    assert_int_equal(mok_layer_create(bed->group, &layer, &bed->layer), MOK_OK);
    assert_int_equal(mok_schedule_create(bed->group, &bed->schedule), MOK_OK);
    mok_forward_args_init(&bed->forward);
    mok_backward_args_init(&bed->backward);
    assert_int_equal(mok_group_saved(bed->group, 0, &bed->backward.saved), MOK_OK);
    bed->forward.x = tensors;
    bed->forward.w = (const float *)(const void *)(tensors + (1 << 16));
    bed->backward.dy = tensors + (1 << 17);
    bed->backward.w = bed->forward.w;
    bed->forward.y = outputs;
    bed->backward.dx = outputs + (1 << 16);
    bed->backward.dw = (float *)(void *)(outputs + (1 << 17));
    bed->backward.grads = place_ffn(grads, INTER, grad_dtype, EXPERTS);
    bed->backward.shared_grads = place_ffn(grads + sizeof grads / 2, SHARED, grad_dtype, 1);
}

static void close_bed(struct bed *bed)
{
    mok_schedule_destroy(bed->schedule);
    mok_layer_destroy(bed->layer);
    assert_int_equal(mok_group_destroy(bed->group), MOK_OK);
}

/* The call has enqueued something, and has done nothing else. */
static void check_call(const char *name, mok_status status)
{
    is_in_call = 0;
    if (status != MOK_OK || num_enqueued == 0 || num_refused > 0) {
        fail_msg("%s: %s (%s); %d enqueued, %d calls that may wait, %s the last", name, mok_status_name(status), mok_last_error(), num_enqueued,
                 num_refused, num_refused > 0 ? refused : "none");
    }
}

static void begin_call(void)
{
    num_enqueued = num_refused = 0;
    is_in_call = 1;
}

static void make_calls(struct bed *bed, mok_stream stream)
{
    const int32_t *ids = (const int32_t *)(const void *)(tensors + (1 << 18));
    begin_call();
    check_call("mok_schedule_build", mok_schedule_build(bed->schedule, ids, TOKENS, stream));
    bed->forward.saved = NULL;
    begin_call();
    check_call("mok_forward without a saved object", mok_forward(bed->layer, bed->schedule, &bed->forward, stream));
    bed->forward.saved = bed->backward.saved;
    begin_call();
    check_call("mok_forward", mok_forward(bed->layer, bed->schedule, &bed->forward, stream));
    begin_call();
    check_call("mok_backward", mok_backward(bed->layer, bed->schedule, &bed->backward, stream));
}

/* ---- tests ------------------------------------------------------------------------------------------------------------------------- */

static void calls_only_enqueue(void **state)
{
    static const int32_t paths[] = {MOK_PATH_STAGED, MOK_PATH_FUSED, MOK_PATH_AUTO}, dtypes[] = {MOK_DTYPE_FP32, MOK_DTYPE_BF16};
    static const int64_t keeps[] = {0, 128, MOK_KEEP_ALL};
    static int streams[2];
    (void)state;
    for (int i = 0; i < 18; i++) {
        struct bed bed;
        open_bed(&bed, paths[i % 3], keeps[i / 3 % 3], dtypes[i / 9]);
        for (int round = 0; round < ROUNDS; round++) {
            make_calls(&bed, &streams[round % 2]);
        }
        close_bed(&bed);
    }
}

/* What waits is seen: mok_schedule_counts blocks. */
static void a_call_that_waits_is_seen(void **state)
{
    struct bed bed;
    int64_t padded;
    (void)state;
    open_bed(&bed, MOK_PATH_AUTO, 0, MOK_DTYPE_FP32);
    make_calls(&bed, &padded);
    begin_call();
    assert_int_equal(mok_schedule_counts(bed.schedule, &padded, NULL, &padded), MOK_OK);
    is_in_call = 0;
    assert_true(num_refused > 0);
    close_bed(&bed);
}

/* What a kernel records that sees an abort word. */
static void record_abort(const struct bed *bed, int32_t raiser)
{
    bed->group->inner->record->rank = raiser;
    bed->group->inner->record->status = MOK_ERR_ABORTED;
}

static void expect_fault(struct bed *bed, mok_status status, int32_t rank, const char *words)
{
    mok_group_state state = {.struct_size = sizeof state};
    assert_int_equal(mok_group_status(bed->group, &state), status);
    assert_int_equal(state.fault.status, status);
    assert_int_equal(state.fault.site, MOK_SITE_NONE);
    assert_int_equal(state.fault.rank, rank);
    assert_non_null(strstr(mok_last_error(), words));
    close_bed(bed);
}

/* Of an abort here and one of a peer the first is told. Which peer the record says. */
static void who_aborted_first_is_told(void **state)
{
    struct bed bed;
    (void)state;
    for (int32_t raiser = -1; raiser < 2; raiser++) { /* none, the own kernels that see the word, a peer */
        open_bed(&bed, MOK_PATH_AUTO, 0, MOK_DTYPE_FP32);
        assert_int_equal(mok_group_abort(bed.group), MOK_OK);
        if (raiser >= 0) {
            record_abort(&bed, raiser);
        }
        expect_fault(&bed, MOK_ERR_ABORTED, 0, "mok_group_abort was called on this rank");
    }
    open_bed(&bed, MOK_PATH_AUTO, 0, MOK_DTYPE_FP32);
    record_abort(&bed, 1);
    assert_int_equal(mok_group_abort(bed.group), MOK_OK);
    expect_fault(&bed, MOK_ERR_ABORTED, 1, "rank 1 gave up first, or aborted the group");
}

/* A call that fails half-way aborts the group: kernels that wait see the word and record it, and the failure is still what is told. */
static void failed_call_is_not_told_as_an_abort(void **state)
{
    struct bed bed;
    (void)state;
    open_bed(&bed, MOK_PATH_AUTO, 0, MOK_DTYPE_FP32);
    fails_at_launch = 2;
    assert_int_equal(mok_schedule_build(bed.schedule, NULL, 0, &bed), MOK_ERR_DEVICE);
    record_abort(&bed, 0);
    expect_fault(&bed, MOK_ERR_DEVICE, 0, "the device or the library reported an error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_aborted_first_is_told),
        cmocka_unit_test(failed_call_is_not_told_as_an_abort),
        cmocka_unit_test(calls_only_enqueue),
        cmocka_unit_test(a_call_that_waits_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) { return 77; }

#endif
