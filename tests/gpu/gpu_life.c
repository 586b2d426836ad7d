/*
 * Creating, running and destroying groups again and again: device memory, host memory and descriptors stay flat; the current device stays what it was;
 * memory that was poisoned before a group is made does no harm. Two ranks, and with more than two GPUs also a rank on each.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_layer.h"

enum { POISON_BYTES = 1 << 30 };

/* What may be left over: a page here and there, not a buffer. */
static const int64_t device_slack = 4 << 20, host_slack = 8 << 20;

struct level {
    int64_t device; /* in use on all devices that the ranks are on */
    int64_t host, descriptors;
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

static struct level look(int num_devices)
{
    struct level level = {0, 0, count_descriptors()};
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    for (int device = num_devices - 1; device >= 0; device--) { /* 0 is current in the end */
        size_t free_bytes = 0, total = 0;
        cudaSetDevice(device);
        cudaMemGetInfo(&free_bytes, &total);
        level.device += (int64_t)(total - free_bytes);
    }
    if (file == NULL || fscanf(file, "%*s %ld", &pages) != 1) {
        pages = 0;
    }
    if (file != NULL) {
        fclose(file);
    }
    level.host = (int64_t)pages * sysconf(_SC_PAGESIZE);
    return level;
}

struct run {
    int32_t num_ranks;
    int num_rounds, warm_rounds;
    mok_hub *hub;
    mok_status status[GPU_RUN_RANKS];
    char *first[GPU_RUN_RANKS], *now[GPU_RUN_RANKS];
    int num_wrong[GPU_RUN_RANKS];
    int round;
    int device_moved[GPU_RUN_RANKS];
};

static void on_rank(int32_t rank, void *context)
{
    struct run *run = context;
    struct gpu_layer layer;
    mok_group_config config;
    int before = -1, after = -2;
    mok_status status = gpu_layer_config(rank, run->num_ranks, run->hub, &config);
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

static void poison_device(int device)
{
    void *memory = NULL;
    if (cudaSetDevice(device) == cudaSuccess && cudaMalloc(&memory, POISON_BYTES) == cudaSuccess) {
        cudaMemset(memory, 0xff, POISON_BYTES);
        cudaDeviceSynchronize();
        cudaFree(memory);
    }
}

/* A group for another device while device 0 is current: device 0 stays current. */
static void other_device(int device)
{
    mok_group_config config;
    mok_group *group = NULL;
    int current = -1;
    cudaSetDevice(0);
    mok_status status = gpu_layer_config(0, 1, NULL, &config);
    config.device = device;
    status = status == MOK_OK ? mok_group_create(&config, &group) : status;
    cudaGetDevice(&current);
    int ok = status == MOK_OK && current == 0;
    status = mok_group_destroy(group);
    cudaGetDevice(&current);
    gpu_check(ok && status == MOK_OK && current == 0, "a group on device %d leaves device 0 current", device);
}

/* Returns whether every round could be run. */
static int run_rounds(struct run *run, int num_devices, struct level *warm_out)
{
    int ok = mok_hub_create(run->num_ranks, &run->hub) == MOK_OK;
    for (run->round = 0; run->round < run->num_rounds && ok; run->round++) {
        gpu_run_ranks(run->num_ranks, on_rank, run);
        for (int32_t r = 0; r < run->num_ranks; r++) {
            ok = ok && run->status[r] == MOK_OK;
        }
        if (run->round + 1 == run->warm_rounds) {
            *warm_out = look(num_devices);
        }
    }
    mok_hub_destroy(run->hub);
    return ok;
}

static void try_life(int32_t num_ranks, int num_rounds, int warm_rounds)
{
    struct run run = {.num_ranks = num_ranks, .num_rounds = num_rounds, .warm_rounds = warm_rounds};
    struct level warm = {0, 0, 0};
    int num_wrong = 0, num_moved = 0, num_devices = gpu_count() < num_ranks ? gpu_count() : num_ranks;
    for (int device = num_devices - 1; device >= 0; device--) {
        poison_device(device);
    }
    int ok = run_rounds(&run, num_devices, &warm);
    struct level end = look(num_devices);
    for (int32_t r = 0; r < num_ranks; r++) {
        num_wrong += run.num_wrong[r];
        num_moved += run.device_moved[r];
        free(run.first[r]);
        free(run.now[r]);
    }
    gpu_check(ok && num_wrong == 0, "%d ranks, %d rounds of create, run, destroy, on poisoned memory: all outputs have the same bits", num_ranks, run.round);
    gpu_check(end.device - warm.device < device_slack, "memory in use on %d devices is flat: %lld bytes after %d rounds, %lld after %d", num_devices,
              (long long)warm.device, warm_rounds, (long long)end.device, num_rounds);
    gpu_check(end.host - warm.host < host_slack, "host memory is flat: %lld and %lld bytes", (long long)warm.host, (long long)end.host);
    gpu_check(end.descriptors == warm.descriptors, "descriptors are flat: %lld and %lld", (long long)warm.descriptors, (long long)end.descriptors);
    gpu_check(num_moved == 0, "the caller's current device is what it was");
}

int main(void)
{
    int num_gpus = gpu_count();
    if (num_gpus == 0) {
        gpu_skip("life: no GPU");
        return gpu_finish();
    }
    try_life(2, 100, 20);
    if (num_gpus > 2) {
        try_life(num_gpus < GPU_RUN_RANKS ? num_gpus : GPU_RUN_RANKS, 40, 10);
    }
    for (int device = 1; device < num_gpus; device++) {
        other_device(device);
    }
    if (num_gpus == 1) {
        gpu_skip("a group on device 1 while device 0 is current: one GPU");
    }
    return gpu_finish();
}
