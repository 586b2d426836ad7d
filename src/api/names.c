/*
 * Names of waits and of trace events. One list gives the name of a site, of the event of waiting there, and of what its index counts.
 */
#include "api/names.h"

#include "pass/site.h"
#include "plan/walk.h"
#include "trace/event.h"

#define COUNTER_SITE(counter) (MOK_SITE_COUNTER + (counter))
#define SITE_LIST(ENTRY)                                                                    \
    ENTRY(MOK_SITE_NONE, "nothing", "index")                                                \
    ENTRY(MOK_SITE_SCHED_BARRIER, "SCHED barrier", "source rank")                           \
    ENTRY(MOK_SITE_ENTRY_BARRIER, "ENTRY barrier", "source rank")                           \
    ENTRY(MOK_SITE_EXIT_BARRIER, "EXIT barrier", "source rank")                             \
    ENTRY(MOK_SITE_LEFT, "peer left", "rank")                                               \
    ENTRY(MOK_SITE_COPY, "own copies", "index")                                             \
    ENTRY(MOK_SITE_TEAM, "own team", "index")                                               \
    ENTRY(COUNTER_SITE(MOK_COUNT_PULLED), "rows pulled", "minibatch")                       \
    ENTRY(COUNTER_SITE(MOK_COUNT_PLACE_FREE), "place free", "minibatch")                    \
    ENTRY(COUNTER_SITE(MOK_COUNT_H_DONE), "gate+up done", "row tile")                       \
    ENTRY(COUNTER_SITE(MOK_COUNT_Y_DONE), "down done", "row tile")                          \
    ENTRY(COUNTER_SITE(MOK_COUNT_G_DONE), "recompute done", "row tile")                     \
    ENTRY(COUNTER_SITE(MOK_COUNT_D_DONE), "dgrad down done", "row tile")                    \
    ENTRY(COUNTER_SITE(MOK_COUNT_E_DONE), "dgrad gate+up done", "row tile")                 \
    ENTRY(COUNTER_SITE(MOK_COUNT_CARRY_DONE), "wgrad carried", "lap")                       \
    ENTRY(COUNTER_SITE(MOK_COUNT_SHARED_G_DONE), "shared gate+up done", "token tile")       \
    ENTRY(COUNTER_SITE(MOK_COUNT_SHARED_D_DONE), "shared dgrad down done", "token tile")    \
    ENTRY(COUNTER_SITE(MOK_COUNT_SHARED_DONE), "shared expert done", "index")                \
    ENTRY(MOK_SITE_QUEUE, "tile in the queue", "index")

enum { NUM_SITES = MOK_NUM_SITES };

#define SITE_NAME(site, name, index) [site] = name,
#define WAIT_NAME(site, name, index) [site] = "wait " name,
#define INDEX_NAME(site, name, index) [site] = index,

static const char *const site_names[NUM_SITES] = {SITE_LIST(SITE_NAME)};
static const char *const wait_names[NUM_SITES] = {SITE_LIST(WAIT_NAME)};
static const char *const index_names[NUM_SITES] = {SITE_LIST(INDEX_NAME)};

static const char *const work_names[] = {
    [MOK_EVENT_SCHEDULE] = "schedule",
    [MOK_EVENT_PUBLISH] = "publish",
    [MOK_EVENT_PULL] = "pull",
    [MOK_EVENT_PUSH] = "push",
    [MOK_EVENT_SUM] = "sum",
    [MOK_EVENT_TASK + MOK_TASK_NONE] = "no task",
    [MOK_EVENT_TASK + MOK_TASK_SHARED_GATE_UP] = "shared gate+up",
    [MOK_EVENT_TASK + MOK_TASK_SHARED_DOWN] = "shared down",
    [MOK_EVENT_TASK + MOK_TASK_GATE_UP] = "gate+up",
    [MOK_EVENT_TASK + MOK_TASK_DOWN] = "down",
    [MOK_EVENT_TASK + MOK_TASK_SHARED_RECOMPUTE] = "shared recompute",
    [MOK_EVENT_TASK + MOK_TASK_SHARED_DGRAD_DOWN] = "shared dgrad down",
    [MOK_EVENT_TASK + MOK_TASK_SHARED_DGRAD_GATE_UP] = "shared dgrad gate+up",
    [MOK_EVENT_TASK + MOK_TASK_SHARED_WGRAD] = "shared wgrad",
    [MOK_EVENT_TASK + MOK_TASK_RECOMPUTE] = "recompute",
    [MOK_EVENT_TASK + MOK_TASK_DGRAD_DOWN] = "dgrad down",
    [MOK_EVENT_TASK + MOK_TASK_DGRAD_GATE_UP] = "dgrad gate+up",
    [MOK_EVENT_TASK + MOK_TASK_WGRAD] = "wgrad",
    [MOK_EVENT_TASK + MOK_TASK_WGRAD_ZERO] = "wgrad zero",
    [MOK_EVENT_KERNEL] = "kernel",
};

enum { NUM_WORK = sizeof work_names / sizeof work_names[0] };
MOK_STATIC_ASSERT(NUM_WORK <= (int)MOK_EVENT_WAIT, "kinds of work stand below kinds of waiting");

static const char *name_at(const char *const *names, int32_t num, int32_t idx, const char *unknown)
{
    return idx >= 0 && idx < num && names[idx] != NULL ? names[idx] : unknown;
}

const char *mok_site_name(int32_t site) { return name_at(site_names, NUM_SITES, site, "unknown site"); }

const char *mok_api_site_index_name(int32_t site) { return name_at(index_names, NUM_SITES, site, "index"); }

const char *mok_event_name(int32_t kind)
{
    return kind >= MOK_EVENT_WAIT ? name_at(wait_names, NUM_SITES, kind - MOK_EVENT_WAIT, "unknown wait")
                                  : name_at(work_names, NUM_WORK, kind, "unknown work");
}

int32_t mok_event_first_wait(void) { return MOK_EVENT_WAIT; }
