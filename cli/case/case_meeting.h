/*
 * A meeting of ranks that are threads, on the host and beside the library: for tools under which a rank may not wait for another on the GPU before
 * that one has enqueued everything.
 */
#ifndef MOK_CASE_MEETING_H
#define MOK_CASE_MEETING_H

#include <pthread.h>
#include <stdint.h>

struct mok_case_meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t num_members;
    int32_t num_here;
    uint32_t round; /* meetings that are over */
};

void mok_case_meeting_open(struct mok_case_meeting *meeting, int32_t num_members);
void mok_case_meeting_close(struct mok_case_meeting *meeting);

/* Returns when all members are here. Nothing for meeting NULL. */
void mok_case_meet(struct mok_case_meeting *meeting);
/* The others no longer wait for the caller. */
void mok_case_meet_no_more(struct mok_case_meeting *meeting);

#endif
