/*
 * Hooks into the CPU backend for tests of this folder, and the choice of a backend that this build has.
 */
#ifndef MOK_TESTS_CPU_HOOKS_H
#define MOK_TESTS_CPU_HOOKS_H

#include "api/object.h"

#ifdef MOK_HAVE_CPU
#include "cpu/cpu.h"

/* Poison in the ring, the scratch and what is free of the peer region. */
static inline mok_status poison_workspace(mok_group *group, int byte)
{
    mok_cpu_poison(group->inner, byte);
    return MOK_OK;
}

/* The same, and every worker pauses at random up to 0.3 ms, so that workers meet in other orders. */
static inline mok_status poison_and_delay(mok_group *group, int byte)
{
    mok_cpu_poison(group->inner, byte);
    mok_cpu_set_delay(group->inner, 300);
    return MOK_OK;
}
#else
static inline mok_status poison_workspace(mok_group *group, int byte)
{
    (void)group;
    (void)byte;
    return MOK_OK;
}

static inline mok_status poison_and_delay(mok_group *group, int byte) { return poison_workspace(group, byte); }
#endif

#endif
