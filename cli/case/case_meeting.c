/*
 * See case/case_meeting.h.
 */
#include "case/case_meeting.h"

#include <stddef.h>

void mok_case_meeting_open(struct mok_case_meeting *meeting, int32_t num_members)
{
    pthread_mutex_init(&meeting->lock, NULL);
    pthread_cond_init(&meeting->changed, NULL);
    meeting->num_members = num_members;
    meeting->num_here = 0;
    meeting->round = 0;
}

void mok_case_meeting_close(struct mok_case_meeting *meeting)
{
    pthread_cond_destroy(&meeting->changed);
    pthread_mutex_destroy(&meeting->lock);
}

/* Under the lock. */
static void end_if_complete(struct mok_case_meeting *meeting)
{
    if (meeting->num_here >= meeting->num_members) {
        meeting->num_here = 0;
        meeting->round++;
        pthread_cond_broadcast(&meeting->changed);
    }
}

void mok_case_meet(struct mok_case_meeting *meeting)
{
    if (meeting == NULL) {
        return;
    }
    pthread_mutex_lock(&meeting->lock);
    uint32_t round = meeting->round;
    meeting->num_here++;
    end_if_complete(meeting);
    while (meeting->round == round) {
        pthread_cond_wait(&meeting->changed, &meeting->lock);
    }
    pthread_mutex_unlock(&meeting->lock);
}

void mok_case_meet_no_more(struct mok_case_meeting *meeting)
{
    if (meeting == NULL) {
        return;
    }
    pthread_mutex_lock(&meeting->lock);
    meeting->num_members--;
    end_if_complete(meeting);
    pthread_mutex_unlock(&meeting->lock);
}
