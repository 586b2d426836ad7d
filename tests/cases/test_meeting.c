/*
 * Ranks in step: nobody goes on before all are here, who leaves is not waited for, and a case gives the same with ranks in step, also when one fails.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "case/case_meeting.h"
#include "case/case_run.h"

enum { MEMBERS = 5, ROUNDS = 200 };

struct member {
    struct mok_case_meeting *meeting;
    const struct member *all; /* [MEMBERS] */
    int rounds;               /* then it leaves */
    int passed;               /* rounds that are over */
    int num_early;            /* times that it went on before another was there */
};

static void *attend(void *argument)
{
    struct member *self = argument;
    for (int round = 0; round < self->rounds; round++) {
        __atomic_store_n(&self->passed, round + 1, __ATOMIC_SEQ_CST);
        mok_case_meet(self->meeting);
        for (int m = 0; m < MEMBERS; m++) {
            int theirs = __atomic_load_n(&self->all[m].passed, __ATOMIC_SEQ_CST);
            self->num_early += theirs < (round < self->all[m].rounds ? round + 1 : self->all[m].rounds);
        }
    }
    mok_case_meet_no_more(self->meeting);
    return NULL;
}

static void test_meet(void **state)
{
    struct mok_case_meeting meeting;
    struct member members[MEMBERS];
    pthread_t threads[MEMBERS];
    (void)state;
    mok_case_meeting_open(&meeting, MEMBERS);
    for (int m = 0; m < MEMBERS; m++) {
        members[m] = (struct member){.meeting = &meeting, .all = members, .rounds = m == 0 ? 0 : ROUNDS / m};
    }
    for (int m = 0; m < MEMBERS; m++) {
        assert_int_equal(pthread_create(&threads[m], NULL, attend, &members[m]), 0);
    }
    for (int m = 0; m < MEMBERS; m++) {
        pthread_join(threads[m], NULL);
        assert_int_equal(members[m].num_early, 0);
        assert_int_equal(members[m].passed, members[m].rounds);
    }
    mok_case_meeting_close(&meeting);
    mok_case_meet(NULL);
    mok_case_meet_no_more(NULL);
}

static mok_status fail_on_poison(mok_group *group, int byte)
{
    (void)group;
    static int num_calls;
    return byte == 0x7f && __atomic_fetch_add(&num_calls, 1, __ATOMIC_SEQ_CST) == 0 ? MOK_ERR_MEMORY : MOK_OK;
}

static void test_case_in_step(void **state)
{
    static const enum mok_case_ranks kinds[] = {MOK_CASE_THREADS, MOK_CASE_EXTERNAL};
    struct mok_case_result result;
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct mok_case_where where = {.backend = MOK_BACKEND_CPU, .ranks = kinds[k], .in_step = 1};
        mok_case_run(mok_ref_case_find("all-different"), &where, &result);
        if (mok_case_skipped(&result)) {
            skip();
        }
        assert_true(mok_case_passed(&result));
    }
}

/* One rank fails in the second step, in front of a meeting: the others come to an end, and its failure is the verdict. */
static void test_failure_in_step(void **state)
{
    struct mok_case_where where = {.backend = MOK_BACKEND_CPU, .ranks = MOK_CASE_THREADS, .in_step = 1, .poison = fail_on_poison};
    struct mok_case_result result;
    (void)state;
    mok_case_run(mok_ref_case_find("all-different"), &where, &result);
    if (mok_case_skipped(&result)) {
        skip();
    }
    assert_int_equal(result.status, MOK_ERR_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meet),
        cmocka_unit_test(test_case_in_step),
        cmocka_unit_test(test_failure_in_step),
    };
    return cmocka_run_group_tests_name("meeting", tests, NULL, NULL);
}
