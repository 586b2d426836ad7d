/*
 * Hooks for tests: random delays that stir the order in which workers meet, a standstill that lasts until it is noticed, and poison that
 * shows what is read without having been written. All are off by default.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu/cpu.h"

void mok_cpu_set_delay(struct mok_pass_group *group, int64_t max_us) { group->delay_us = max_us; }

void mok_cpu_read_delay(struct mok_pass_group *group)
{
    const char *value = getenv("MOK_TEST_DELAY_US");
    group->delay_us = value != NULL ? strtoll(value, NULL, 10) : 0;
}

/* Half of the draws do not delay at all, so that fast and slow workers mix. */
void mok_cpu_delay(struct mok_cpu_worker *worker)
{
    int64_t longest = worker->group->delay_us;
    if (longest <= 0) {
        return;
    }
    worker->random_state = worker->random_state * 6364136223846793005u + 1442695040888963407u;
    uint64_t draw = worker->random_state >> 20; /* 44 bits: any delay that a test may ask for */
    if (draw % 2 == 0) {
        return;
    }
    int64_t delay_ns = (int64_t)(draw / 2 % ((uint64_t)longest * 1000 + 1));
    struct timespec pause = {delay_ns / 1000000000, delay_ns % 1000000000};
    nanosleep(&pause, NULL);
}

void mok_cpu_set_stuck(struct mok_pass_group *group) { group->is_stuck = 1; }

void mok_cpu_stand_still(const struct mok_cpu_worker *worker)
{
    while (worker->group->is_stuck && !mok_cpu_is_aborted(worker->group)) {
        mok_cpu_relax(1000);
    }
}

void mok_cpu_poison(struct mok_pass_group *group, int byte)
{
    const struct mok_pass_setup *setup = &group->setup;
    const struct mok_dims *dims = &setup->dims;
    const struct mok_region *region = &setup->region;
    char *own = group->peer->base[dims->rank];
    memset(group->ring_block, byte, (size_t)group->layout.ring_bytes);
    memset(group->other_block, byte, (size_t)group->layout.other_bytes);
    memset(own + region->rows, byte, (size_t)(region->saved_x - region->rows)); /* rows, w, slots, slot_dw */
    for (int32_t i = 0; i < setup->num_saved; i++) {
        if (!atomic_load(&group->saved[i].is_full)) {
            memset(group->saved_block + i * group->layout.saved_stride, byte, (size_t)group->layout.saved_stride);
            memset(group->saved[i].own_x, byte, (size_t)region->saved_x_stride);
        }
    }
}
