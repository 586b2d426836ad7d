/*
 * Jobs of a group in the order of the calls: the host puts them in and goes on; every worker takes every job, and the last worker to leave
 * a job ends it. The queue has no bound: the host may be many passes ahead.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "base/status.h"
#include "cpu/cpu.h"

mok_status mok_cpu_queue_init(struct mok_cpu_queue *queue)
{
    pthread_condattr_t monotonic;
    int failed = pthread_mutex_init(&queue->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    failed |= pthread_cond_init(&queue->more, NULL);
    failed |= pthread_cond_init(&queue->finished, &monotonic);
    pthread_condattr_destroy(&monotonic);
    queue->head = queue->tail = NULL;
    queue->last_ticket = queue->done_ticket = 0;
    queue->is_closed = 0;
    return failed ? mok_base_fail(MOK_ERR_MEMORY, "job queue: a lock could not be made") : MOK_OK;
}

void mok_cpu_queue_destroy(struct mok_cpu_queue *queue)
{
    pthread_cond_destroy(&queue->finished);
    pthread_cond_destroy(&queue->more);
    pthread_mutex_destroy(&queue->lock);
}

int64_t mok_cpu_queue_put(struct mok_cpu_queue *queue, struct mok_cpu_job *job, int32_t num_workers)
{
    pthread_mutex_lock(&queue->lock);
    int64_t ticket = ++queue->last_ticket;
    job->ticket = ticket;
    job->next = NULL;
    job->num_inside = num_workers;
    if (queue->tail != NULL) {
        queue->tail->next = job;
    } else {
        queue->head = job;
    }
    queue->tail = job;
    pthread_cond_broadcast(&queue->more);
    pthread_mutex_unlock(&queue->lock);
    return ticket;
}

/* Jobs leave at the head, and a worker that is ahead is so by a job or two: this looks at few. */
static struct mok_cpu_job *find_job(const struct mok_cpu_queue *queue, int64_t ticket)
{
    struct mok_cpu_job *job = queue->head;
    while (job != NULL && job->ticket < ticket) {
        job = job->next;
    }
    return job;
}

struct mok_cpu_job *mok_cpu_queue_take(struct mok_cpu_queue *queue, int64_t ticket)
{
    pthread_mutex_lock(&queue->lock);
    struct mok_cpu_job *job = find_job(queue, ticket);
    while (job == NULL && !queue->is_closed) {
        pthread_cond_wait(&queue->more, &queue->lock);
        job = find_job(queue, ticket);
    }
    pthread_mutex_unlock(&queue->lock);
    return job;
}

void mok_cpu_queue_leave(struct mok_cpu_queue *queue, struct mok_cpu_job *job)
{
    pthread_mutex_lock(&queue->lock);
    int is_last = --job->num_inside == 0;
    if (is_last) {
        queue->head = job->next;
        if (queue->head == NULL) {
            queue->tail = NULL;
        }
        queue->done_ticket = job->ticket;
        pthread_cond_broadcast(&queue->finished);
    }
    pthread_mutex_unlock(&queue->lock);
    if (is_last) {
        free(job);
    }
}

void mok_cpu_queue_close(struct mok_cpu_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->is_closed = 1;
    pthread_cond_broadcast(&queue->more);
    pthread_mutex_unlock(&queue->lock);
}

int mok_cpu_queue_wait(struct mok_cpu_queue *queue, int64_t ticket, int64_t timeout_ms)
{
    struct timespec limit;
    clock_gettime(CLOCK_MONOTONIC, &limit);
    if (timeout_ms > 0) {
        limit.tv_sec += timeout_ms / 1000;
        limit.tv_nsec += timeout_ms % 1000 * 1000000;
        limit.tv_sec += limit.tv_nsec / 1000000000;
        limit.tv_nsec %= 1000000000;
    }
    pthread_mutex_lock(&queue->lock);
    int expired = 0;
    while (queue->done_ticket < ticket && !expired) {
        if (timeout_ms < 0) {
            pthread_cond_wait(&queue->finished, &queue->lock);
        } else {
            expired = pthread_cond_timedwait(&queue->finished, &queue->lock, &limit) != 0;
        }
    }
    int is_done = queue->done_ticket >= ticket;
    pthread_mutex_unlock(&queue->lock);
    return is_done;
}

int64_t mok_cpu_queue_last(struct mok_cpu_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    int64_t ticket = queue->last_ticket;
    pthread_mutex_unlock(&queue->lock);
    return ticket;
}

int mok_cpu_queue_is_idle(struct mok_cpu_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    int is_idle = queue->done_ticket == queue->last_ticket;
    pthread_mutex_unlock(&queue->lock);
    return is_idle;
}
