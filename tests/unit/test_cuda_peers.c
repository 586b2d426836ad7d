/*
 * GPUs that cannot load from each other's memory, as a machine without such GPUs can show it: the CUDA runtime's calls on the way to that question are
 * replaced by the linker (tests/CMakeLists.txt). Creation must name the pair and leave nothing.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef MOK_HAVE_CUDA

#include <cuda_runtime_api.h>

#include <mok/mok.h>

enum { DEVICES = 3 };

/* can_load[a][b]: a may load from b. */
static int can_load[DEVICES][DEVICES];
static _Thread_local int current;
static atomic_int num_memories, num_streams, num_asked;

/* Memory begins with its device. */
struct memory {
    int device;
    char padding[252];
};

#define FAKE(name, ...)                   \
    cudaError_t __wrap_##name(__VA_ARGS__); \
    cudaError_t __wrap_##name(__VA_ARGS__)

FAKE(cudaGetDeviceCount, int *count) { return *count = DEVICES, cudaSuccess; }
FAKE(cudaGetDevice, int *device) { return *device = current, cudaSuccess; }
FAKE(cudaSetDevice, int device) { return current = device, cudaSuccess; }
FAKE(cudaGetLastError, void) { return cudaSuccess; }
FAKE(cudaDeviceGetAttribute, int *value, enum cudaDeviceAttr attribute, int device)
{
    (void)device;
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0; /* 9.0 */
    return cudaSuccess;
}
FAKE(cudaGetDeviceProperties, struct cudaDeviceProp *properties, int device)
{
    memset(properties, 0, sizeof *properties);
    properties->multiProcessorCount = 132;
    properties->totalGlobalMem = (size_t)80 << 30;
    properties->uuid.bytes[0] = (char)(device + 1);
    return cudaSuccess;
}
FAKE(cudaGetDeviceProperties_v2, struct cudaDeviceProp *properties, int device) { return __wrap_cudaGetDeviceProperties(properties, device); }
FAKE(cudaDeviceCanAccessPeer, int *can, int device, int peer)
{
    atomic_fetch_add(&num_asked, 1);
    return *can = can_load[device][peer], cudaSuccess;
}
FAKE(cudaMalloc, void **pointer_out, size_t bytes)
{
    struct memory *memory = aligned_alloc(256, (sizeof *memory + bytes + 255) / 256 * 256);
    memory->device = current;
    atomic_fetch_add(&num_memories, 1);
    *pointer_out = memory + 1;
    return cudaSuccess;
}
FAKE(cudaFree, void *pointer)
{
    if (pointer != NULL) {
        atomic_fetch_sub(&num_memories, 1);
        free((struct memory *)pointer - 1);
    }
    return cudaSuccess;
}
FAKE(cudaFreeHost, void *pointer) { return pointer == NULL ? cudaSuccess : cudaErrorInvalidValue; } /* nobody came so far */
FAKE(cudaMemsetAsync, void *pointer, int byte, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    memset(pointer, byte, bytes);
    return cudaSuccess;
}
FAKE(cudaStreamCreateWithFlags, cudaStream_t *stream_out, unsigned flags)
{
    (void)flags;
    atomic_fetch_add(&num_streams, 1);
    *stream_out = (cudaStream_t)&num_streams;
    return cudaSuccess;
}
FAKE(cudaStreamDestroy, cudaStream_t stream)
{
    (void)stream;
    atomic_fetch_sub(&num_streams, 1);
    return cudaSuccess;
}
FAKE(cudaStreamSynchronize, cudaStream_t stream) { return (void)stream, cudaSuccess; }
FAKE(cudaPointerGetAttributes, struct cudaPointerAttributes *attributes, const void *pointer)
{
    memset(attributes, 0, sizeof *attributes);
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = ((const struct memory *)pointer - 1)->device;
    return cudaSuccess;
}

/* ---- ranks, one on each device -------------------------------------------------------------------------------------------------- */

struct member {
    pthread_t thread;
    mok_group_config config;
    mok_status status;
    char error[512];
};

static void *create(void *argument)
{
    struct member *member = argument;
    mok_group *group = NULL;
    member->status = mok_group_create(&member->config, &group);
    snprintf(member->error, sizeof member->error, "%s", mok_last_error());
    return NULL;
}

static void configure(struct member *member, int32_t rank, int32_t num_ranks)
{
    memset(member, 0, sizeof *member);
    assert_int_equal(mok_group_config_init(&member->config), MOK_OK);
    member->config.backend = MOK_BACKEND_CUDA;
    member->config.rank = rank;
    member->config.num_ranks = num_ranks;
    member->config.device = rank;
    member->config.peer_timeout_ms = 20000;
    member->config.shape = (mok_shape){.num_experts = 8, .top_k = 2, .hidden = 64, .intermediate = 32, .max_tokens = 16};
}

static void run_all(struct member *members)
{
    for (int32_t r = 0; r < DEVICES; r++) {
        assert_int_equal(pthread_create(&members[r].thread, NULL, create, &members[r]), 0);
    }
    for (int32_t r = 0; r < DEVICES; r++) {
        pthread_join(members[r].thread, NULL);
    }
}

static void expect_refusal(const struct member *member, const char *text)
{
    if (member->status != MOK_ERR_UNSUPPORTED || strstr(member->error, text) == NULL) {
        fail_msg("rank %d: %s, '%s' should say '%s'", member->config.rank, mok_status_name(member->status), member->error, text);
    }
}

static int allow_all(void **state)
{
    (void)state;
    for (int a = 0; a < DEVICES; a++) {
        for (int b = 0; b < DEVICES; b++) {
            can_load[a][b] = 1;
        }
    }
    return 0;
}

/* No pair: each rank names one of its own. */
static void test_gpus_without_peer_access_are_named(void **state)
{
    (void)state;
    struct member members[DEVICES];
    mok_hub *hub = NULL;
    memset(can_load, 0, sizeof can_load);
    assert_int_equal(mok_hub_create(DEVICES, &hub), MOK_OK);
    for (int32_t r = 0; r < DEVICES; r++) {
        configure(&members[r], r, DEVICES);
        members[r].config.hub = hub;
    }
    run_all(members);
    for (int32_t r = 0; r < DEVICES; r++) {
        char text[160];
        int32_t other = r == 0 ? 1 : 0;
        snprintf(text, sizeof text, "rank %d on device %d cannot load from the memory of rank %d on device %d: no peer access between the two", r, r,
                 other, other);
        expect_refusal(&members[r], text);
    }
    assert_int_equal(num_memories, 0);
    assert_int_equal(num_streams, 0);
    mok_hub_destroy(hub);
}

/* Regions of the caller: the pair is found before the ranks meet. */
static void test_regions_on_gpus_without_peer_access_are_named(void **state)
{
    (void)state;
    struct member member;
    mok_memory memory = {.struct_size = sizeof memory};
    void *bases[DEVICES];
    can_load[2][1] = 0;
    configure(&member, 2, DEVICES);
    assert_int_equal(mok_group_memory(&member.config, &memory), MOK_OK);
    for (int device = 0; device < DEVICES; device++) {
        assert_int_equal(__wrap_cudaSetDevice(device), cudaSuccess);
        assert_int_equal(__wrap_cudaMalloc(&bases[device], memory.peer_bytes), cudaSuccess);
        memset(bases[device], 0, memory.peer_bytes);
    }
    can_load[2][0] = 0; /* the first that is looked at */
    const mok_external external = {sizeof external, bases, memory.peer_bytes};
    member.config.peer = MOK_PEER_EXTERNAL;
    member.config.external = &external;
    create(&member);
    expect_refusal(&member, "external.bases[0] is memory of device 0, which device 2 cannot load from");
    assert_int_equal(num_memories, DEVICES);
    for (int device = 0; device < DEVICES; device++) {
        __wrap_cudaFree(bases[device]);
    }
    assert_int_equal(num_memories, 0);
    assert_int_equal(num_streams, 0);
    assert_true(num_asked > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_gpus_without_peer_access_are_named, allow_all),
        cmocka_unit_test_setup(test_regions_on_gpus_without_peer_access_are_named, allow_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) { return 77; }

#endif
