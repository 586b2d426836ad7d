/*
 * Creating, running and destroying groups again and again: device memory, host memory and descriptors stay flat; the current device stays what it was;
 * memory that was poisoned before a group is made does no harm.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_layer.h"

enum { NUM_RANKS = 2, NUM_ROUNDS = 100, WARM_ROUNDS = 20, POISON_BYTES = 1 << 30 };

/* What may be left over: a page here and there, not a buffer. */
static const int64_t device_slack = 4 << 20, host_slack = 8 << 20;

struct level {
    int64_t device, host, descriptors;
};

static int64_t count_descriptors(void)
{
    int64_t count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory != NULL && readdir(directory) != NULL) {
        count++;
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return count;
}

static struct level look(void)
{
    struct level level = {0, 0, count_descriptors()};
    size_t free_bytes = 0, total = 0;
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    cudaMemGetInfo(&free_bytes, &total);
    if (file == NULL || fscanf(file, "%*s %ld", &pages) != 1) {
        pages = 0;
    }
    if (file != NULL) {
        fclose(file);
    }
    level.device = (int64_t)(total - free_bytes);
    level.host = (int64_t)pages * sysconf(_SC_PAGESIZE);
    return level;
}

struct run {
    mok_hub *hub;
    mok_status status[NUM_RANKS];
    char *first[NUM_RANKS], *now[NUM_RANKS];
    int num_wrong[NUM_RANKS];
    int round;
    int device_moved[NUM_RANKS];
};

static void on_rank(int32_t rank, void *context)
{
    struct run *run = context;
    struct gpu_layer layer;
    mok_group_config config;
    int before = -1, after = -2;
    mok_status status = gpu_layer_config(rank, NUM_RANKS, run->hub, &config);
    memset(&layer, 0, sizeof layer);
    status = status == MOK_OK ? gpu_layer_open(&layer, &config) : status;
    cudaGetDevice(&before);
    if (status == MOK_OK) {
        char **to = run->round == 0 ? &run->first[rank] : &run->now[rank];
        *to = *to == NULL ? malloc(layer.outputs_bytes) : *to;
        gpu_layer_inputs(&layer, 3);
        gpu_layer_poison(&layer, 0xab);
        status = gpu_layer_enqueue(&layer);
        status = status == MOK_OK ? gpu_layer_outputs(&layer, *to) : status;
        run->num_wrong[rank] += run->round > 0 && memcmp(run->first[rank], run->now[rank], layer.outputs_bytes) != 0;
    }
    mok_status left = gpu_layer_close(&layer);
    cudaGetDevice(&after);
    run->device_moved[rank] += before != after;
    status = status == MOK_OK ? left : status;
    if (status != MOK_OK) {
        gpu_check(0, "round %d, rank %d: %s: %s", run->round, rank, mok_status_name(status), mok_last_error());
    }
    run->status[rank] = status;
}

static void poison_device(void)
{
    void *memory = NULL;
    if (cudaMalloc(&memory, POISON_BYTES) == cudaSuccess) {
        cudaMemset(memory, 0xff, POISON_BYTES);
        cudaDeviceSynchronize();
        cudaFree(memory);
    }
}

/* A group for device 1 while device 0 is current: device 0 stays current. */
static void other_device(void)
{
    mok_group_config config;
    mok_group *group = NULL;
    int current = -1;
    cudaSetDevice(0);
    mok_status status = gpu_layer_config(0, 1, NULL, &config);
    config.device = 1;
    status = status == MOK_OK ? mok_group_create(&config, &group) : status;
    cudaGetDevice(&current);
    int ok = status == MOK_OK && current == 0;
    status = mok_group_destroy(group);
    cudaGetDevice(&current);
    gpu_check(ok && status == MOK_OK && current == 0, "a group on device 1 leaves device 0 current");
}

int main(void)
{
    if (gpu_count() == 0) {
        gpu_skip("life: no GPU");
        return gpu_finish();
    }
    struct run run = {.round = 0};
    struct level warm = {0, 0, 0};
    int ok = mok_hub_create(NUM_RANKS, &run.hub) == MOK_OK, num_wrong = 0, num_moved = 0;
    poison_device();
    for (run.round = 0; run.round < NUM_ROUNDS && ok; run.round++) {
        gpu_run_ranks(NUM_RANKS, on_rank, &run);
        ok = run.status[0] == MOK_OK && run.status[1] == MOK_OK;
        if (run.round + 1 == WARM_ROUNDS) {
            warm = look();
        }
    }
    struct level end = look();
    for (int r = 0; r < NUM_RANKS; r++) {
        num_wrong += run.num_wrong[r];
        num_moved += run.device_moved[r];
        free(run.first[r]);
        free(run.now[r]);
    }
    mok_hub_destroy(run.hub);
    gpu_check(ok && num_wrong == 0, "%d rounds of create, run, destroy, on poisoned memory: all outputs have the same bits", run.round);
    gpu_check(end.device - warm.device < device_slack, "device memory in use is flat: %lld bytes after %d rounds, %lld after %d", (long long)warm.device,
              WARM_ROUNDS, (long long)end.device, NUM_ROUNDS);
    gpu_check(end.host - warm.host < host_slack, "host memory is flat: %lld and %lld bytes", (long long)warm.host, (long long)end.host);
    gpu_check(end.descriptors == warm.descriptors, "descriptors are flat: %lld and %lld", (long long)warm.descriptors, (long long)end.descriptors);
    gpu_check(num_moved == 0, "the caller's current device is what it was");
    if (gpu_count() > 1) {
        other_device();
    } else {
        gpu_skip("a group on device 1 while device 0 is current: one GPU");
    }
    return gpu_finish();
}
