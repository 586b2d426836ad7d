/*
 * What sizes may be, for whoever checks an argument. Beyond MOK_MAX_WIDTH and MOK_MAX_EXPERTS 32-bit task and tile numbers of the plan could
 * overflow.
 */
#ifndef MOK_BASE_LIMITS_H
#define MOK_BASE_LIMITS_H

enum {
    MOK_MAX_RANKS = 1024,
    MOK_MAX_TOP_K = 64,
    MOK_MAX_EXPERTS = 1 << 20,
    MOK_MAX_WIDTH = 1 << 20 /* H, I, Is */
};

#endif
