/*
 * See bench/bench_machine.h. Of NVML only the functions that are called are declared, with the numbers of its enums.
 */
#define _GNU_SOURCE
#include "bench/bench_machine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, SENSOR_GPU = 0 };

static int find_function(void *library, const char *name, void *function_out)
{
    void *address = dlsym(library, name);
    memcpy(function_out, &address, sizeof address);
    return address != NULL;
}

void mok_bench_machine_open(const char *bus, struct mok_bench_machine *machine_out)
{
    int (*init)(void);
    int (*find)(const char *bus_id, void **device);
    int (*limit)(void *device, unsigned *milliwatts);
    int (*driver)(char *text, unsigned size);
    unsigned milliwatts = 0;
    memset(machine_out, 0, sizeof *machine_out);
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL || !find_function(library, "nvmlInit_v2", &init) ||
        !find_function(library, "nvmlDeviceGetHandleByPciBusId_v2", &find) ||
        !find_function(library, "nvmlDeviceGetEnforcedPowerLimit", &limit) ||
        !find_function(library, "nvmlSystemGetDriverVersion", &driver) ||
        !find_function(library, "nvmlDeviceGetClockInfo", &machine_out->clock) ||
        !find_function(library, "nvmlDeviceGetPowerUsage", &machine_out->power) ||
        !find_function(library, "nvmlDeviceGetTemperature", &machine_out->temperature) || init() != 0) {
        return;
    }
    if (driver(machine_out->driver, sizeof machine_out->driver) != 0) {
        machine_out->driver[0] = '\0';
    }
    if (find(bus, &machine_out->device) != 0) {
        machine_out->device = NULL;
    } else if (limit(machine_out->device, &milliwatts) == 0) {
        machine_out->power_limit_watts = milliwatts * 1e-3;
    }
}

struct mok_bench_sample mok_bench_machine_sample(const struct mok_bench_machine *machine)
{
    struct mok_bench_sample sample = {0.0, 0.0, 0.0, 0.0};
    unsigned value;
    if (machine->device == NULL) {
        return sample;
    }
    sample.sm_mhz = machine->clock(machine->device, CLOCK_SM, &value) == 0 ? value : 0.0;
    sample.memory_mhz = machine->clock(machine->device, CLOCK_MEMORY, &value) == 0 ? value : 0.0;
    sample.watts = machine->power(machine->device, &value) == 0 ? value * 1e-3 : 0.0;
    sample.celsius = machine->temperature(machine->device, SENSOR_GPU, &value) == 0 ? value : 0.0;
    return sample;
}

void mok_bench_command_line(char *text, size_t size)
{
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t length = file == NULL ? 0 : fread(text, 1, size - 1, file);
    if (file != NULL) {
        (void)fclose(file);
    }
    text[length] = '\0';
    for (size_t idx = 0; idx + 1 < length; idx++) {
        text[idx] = text[idx] == '\0' ? ' ' : text[idx];
    }
}

void mok_bench_commit(char *text, size_t size)
{
    FILE *git = popen("git describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null", "r");
    text[0] = '\0';
    if (git != NULL && fgets(text, (int)size, git) == NULL) {
        text[0] = '\0';
    }
    if (git != NULL) {
        (void)pclose(git);
    }
    text[strcspn(text, "\n")] = '\0';
}
