/*
 * What stands beside a figure so that it can be judged later: the machine's state, the command, the commit.
 */
#ifndef MOK_CLI_BENCH_MACHINE_H
#define MOK_CLI_BENCH_MACHINE_H

#include <stddef.h>

/* The driver's management library; found when the tool runs. Without it the samples are 0 and the driver is "". */
struct mok_bench_machine {
    void *device; /* NULL = not known */
    int (*clock)(void *device, int type, unsigned *mhz);
    int (*power)(void *device, unsigned *milliwatts);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
    char driver[80];
    double power_limit_watts;
};

struct mok_bench_sample {
    double sm_mhz, memory_mhz, watts, celsius;
};

/* bus: the GPU's address on the PCI bus, "0000:19:00.0". */
void mok_bench_machine_open(const char *bus, struct mok_bench_machine *machine_out);
struct mok_bench_sample mok_bench_machine_sample(const struct mok_bench_machine *machine);

/* The command line of this process, words joined by spaces. */
void mok_bench_command_line(char *text, size_t size);
/* What git says of the working directory: the commit, with "-dirty" when files differ; "" when it says nothing. */
void mok_bench_commit(char *text, size_t size);

#endif
