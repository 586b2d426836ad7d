/*
 * What the library says of MOK_* variables that it does not know, and of a MOK_LOG that it does not understand. The warning comes once in a
 * process, so each case is a process of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/environment.h"

/* "NAME=VALUE" of each, NULL at the end. */
struct scene {
    const char *settings[4];
    const char *said; /* on stderr by two calls of mok_group_config_init, word for word */
    mok_status status;
    const char *sentence;
};

#define WARNING(name, nearest) "mok: warning: " name " is set in the environment and nobody reads it; the nearest known name is " nearest "\n"
#define FAR_WARNING(name) "mok: warning: " name " is set in the environment and nobody reads it\n"
#define OWN_WARNING(name) "mok: warning: " name " is set in the environment and nobody reads it; ranks and sizes have no variables\n"
#define BAD_DELAY(value) "MOK_TEST_DELAY_US is '" value "': must be a whole number from 0 to 999999999"
#define BAD_LOG(value) "MOK_LOG is '" value "': must be 0 (nothing), 1 (failures) or 2 (choices as well)"

static const struct scene scenes[] = {
    {{"PATH=/"}, "", MOK_OK, ""},
    {{"MOK_RING=3", "MOK_LOG=2", "MOK_CUBLAS=f", "MOK_TEST_ANYTHING=1"}, "", MOK_OK, ""},
    /* typing errors: one letter changed, added, left out; two */
    {{"MOK_MINIBACH=256"}, WARNING("MOK_MINIBACH", "MOK_MINIBATCH"), MOK_OK, ""},
    {{"MOK_RINGS=3"}, WARNING("MOK_RINGS", "MOK_RING"), MOK_OK, ""},
    {{"MOK_PATE=fused"}, WARNING("MOK_PATE", "MOK_PATH"), MOK_OK, ""},
    {{"MOK_LOGS=1"}, WARNING("MOK_LOGS", "MOK_LOG"), MOK_OK, ""},
    {{"MOK_PEER_TIMOUTS=1"}, WARNING("MOK_PEER_TIMOUTS", "MOK_PEER_TIMEOUT"), MOK_OK, ""},
    {{"MOK_RINGS=3", "MOK_LOG="}, WARNING("MOK_RINGS", "MOK_RING"), MOK_OK, ""},
    {{"MOK_RINGS=3", "MOK_LOG=0"}, "", MOK_OK, ""},
    /* a known name with words added: as the config's fields have them, before, behind, both */
    {{"MOK_PEER_TIMEOUT_MS=1"}, WARNING("MOK_PEER_TIMEOUT_MS", "MOK_PEER_TIMEOUT"), MOK_OK, ""},
    {{"MOK_LOCAL_TIMEOUT_MS=1"}, WARNING("MOK_LOCAL_TIMEOUT_MS", "MOK_LOCAL_TIMEOUT"), MOK_OK, ""},
    {{"MOK_MINIBATCH_ROWS=256"}, WARNING("MOK_MINIBATCH_ROWS", "MOK_MINIBATCH"), MOK_OK, ""},
    {{"MOK_RING_MINIBATCHES=3"}, WARNING("MOK_RING_MINIBATCHES", "MOK_RING"), MOK_OK, ""},
    {{"MOK_NUM_SAVED=2"}, WARNING("MOK_NUM_SAVED", "MOK_SAVED"), MOK_OK, ""},
    {{"MOK_NUM_COMM_WORKERS_PER_RANK=2"}, WARNING("MOK_NUM_COMM_WORKERS_PER_RANK", "MOK_COMM_WORKERS"), MOK_OK, ""},
    {{"MOK_PEER_LOCAL_TIMEOUT=1"}, WARNING("MOK_PEER_LOCAL_TIMEOUT", "MOK_LOCAL_TIMEOUT"), MOK_OK, ""},
    {{"MOK_RINGS_MINIBATCHES=3"}, "", MOK_OK, ""},
    {{"MOK_NUM_SAVED=2", "MOK_LOG=0"}, "", MOK_OK, ""},
    /* the config's own fields that no variable sets */
    {{"MOK_RANK=1"}, OWN_WARNING("MOK_RANK"), MOK_OK, ""},
    {{"MOK_RANKS=2"}, OWN_WARNING("MOK_RANKS"), MOK_OK, ""},
    {{"MOK_NUM_RANKS=2"}, OWN_WARNING("MOK_NUM_RANKS"), MOK_OK, ""},
    {{"MOK_MAX_TOKENS=2"}, OWN_WARNING("MOK_MAX_TOKENS"), MOK_OK, ""},
    {{"MOK_RANKS=2", "MOK_LOG=0"}, "", MOK_OK, ""},
    /* somebody else's names */
    {{"MOK_COMPUTE_FOLDER=f"}, "", MOK_OK, ""},
    {{"MOK_COMPUTE_FOLDER=f", "MOK_LOG=1"}, FAR_WARNING("MOK_COMPUTE_FOLDER"), MOK_OK, ""},
    {{"MOK_WHATEVER=3", "MOK_LOG=1"}, FAR_WARNING("MOK_WHATEVER"), MOK_OK, ""},
    {{"MOK_RIGS=3", "MOK_LOG=1"}, WARNING("MOK_RIGS", "MOK_RING"), MOK_OK, ""},
    {{"MOKA=1", "NOMOK_RING=2"}, "", MOK_OK, ""},
    {{"MOK_LOG=abc"}, "", MOK_ERR_ARGUMENT, BAD_LOG("abc")},
    {{"MOK_LOG=1x"}, "", MOK_ERR_ARGUMENT, BAD_LOG("1x")},
    {{"MOK_LOG=-1"}, "", MOK_ERR_ARGUMENT, BAD_LOG("-1")},
    {{"MOK_LOG=3"}, "", MOK_ERR_ARGUMENT, BAD_LOG("3")},
    {{"MOK_TEST_DELAY_US=300", "MOK_TEST_DELAY_US="}, "", MOK_OK, ""},
    {{"MOK_TEST_DELAY_US=999999999"}, "", MOK_OK, ""},
    {{"MOK_TEST_DELAY_US=abc"}, "", MOK_ERR_ARGUMENT, BAD_DELAY("abc")},
    {{"MOK_TEST_DELAY_US=1x"}, "", MOK_ERR_ARGUMENT, BAD_DELAY("1x")},
    {{"MOK_TEST_DELAY_US=-1"}, "", MOK_ERR_ARGUMENT, BAD_DELAY("-1")},
    {{"MOK_TEST_DELAY_US=1000000000"}, "", MOK_ERR_ARGUMENT, BAD_DELAY("1000000000")},
    {{"MOK_LOG= 1"}, "", MOK_ERR_ARGUMENT, BAD_LOG(" 1")},
};

/* In the child. Returns its exit code. */
static int play(const struct scene *scene)
{
    mok_group_config config;
    clearenv();
    for (size_t idx = 0; idx < sizeof scene->settings / sizeof scene->settings[0] && scene->settings[idx] != NULL; idx++) {
        putenv((char *)(uintptr_t)scene->settings[idx]);
    }
    for (int turn = 0; turn < 2; turn++) {
        if (mok_group_config_init(&config) != scene->status) {
            return 2;
        }
        if (scene->status != MOK_OK && strcmp(mok_last_error(), scene->sentence) != 0) {
            return 3;
        }
    }
    return 0;
}

static void test_scenes(void **state)
{
    (void)state;
    for (size_t idx = 0; idx < sizeof scenes / sizeof scenes[0]; idx++) {
        const char *first = scenes[idx].settings[0];
        int pipe_ends[2];
        assert_int_equal(pipe(pipe_ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            (void)dup2(pipe_ends[1], STDERR_FILENO);
            _exit(play(&scenes[idx]));
        }
        close(pipe_ends[1]);
        char text[4096] = "";
        size_t used = 0;
        for (ssize_t got; used < sizeof text - 1 && (got = read(pipe_ends[0], text + used, sizeof text - 1 - used)) > 0;) {
            used += (size_t)got;
        }
        close(pipe_ends[0]);
        int how = 0;
        assert_int_equal(waitpid(child, &how, 0), child);
        if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) {
            fail_msg("scene %zu, %s: exit code %d (2: status, 3: sentence)", idx, first, WEXITSTATUS(how));
        }
        if (strcmp(text, scenes[idx].said) != 0) {
            fail_msg("scene %zu, %s: said\n%s", idx, first, text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scenes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
