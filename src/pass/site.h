/*
 * Names of all waits: the `site` of a fault record. Values are stable; mok_site_name (src/api) gives the text.
 */
#ifndef MOK_PASS_SITE_H
#define MOK_PASS_SITE_H

#include "base/hd.h"
#include "plan/ring.h"

enum mok_site {
    MOK_SITE_NONE,
    MOK_SITE_SCHED_BARRIER, /* index = source rank */
    MOK_SITE_ENTRY_BARRIER,
    MOK_SITE_EXIT_BARRIER,
    MOK_SITE_LEFT,          /* destroy: a peer's `left` word */
    MOK_SITE_COPY,          /* own bulk copies that did not land */
    MOK_SITE_TEAM,          /* workers of one rank that meet between phases */
    MOK_SITE_COUNTER,       /* MOK_SITE_COUNTER + mok_counter; index = minibatch, row tile or lap */
    MOK_SITE_QUEUE = MOK_SITE_COUNTER + MOK_NUM_COUNTERS, /* inside a CTA (cluster): for the next tile; index 0 */
    MOK_NUM_SITES
};

MOK_HD int32_t mok_site_of_counter(int32_t counter) { return MOK_SITE_COUNTER + counter; }

#endif
