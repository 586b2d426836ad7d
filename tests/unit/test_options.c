/*
 * The options table: defaults, environment, setting by name, ranges, and the words of every refusal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/options.h"

static void forget_environment(void)
{
    for (int32_t idx = 0; idx < mok_option_count(); idx++) {
        unsetenv(mok_option_get(idx)->env);
    }
}

static int setup(void **state)
{
    (void)state;
    forget_environment();
    return 0;
}

static mok_group_config fresh(void)
{
    mok_group_config config;
    assert_int_equal(mok_group_config_init(&config), MOK_OK);
    return config;
}

static void sentence_has(const char *word)
{
    if (strstr(mok_last_error(), word) == NULL) {
        fail_msg("'%s' does not say '%s'", mok_last_error(), word);
    }
}

static void test_defaults(void **state)
{
    (void)state;
    mok_group_config config = fresh();
    assert_int_equal(config.struct_size, sizeof config);
    assert_int_equal(config.backend, MOK_BACKEND_AUTO);
    assert_int_equal(config.peer, MOK_PEER_THREADS);
    assert_int_equal(config.rank, 0);
    assert_int_equal(config.num_ranks, 1);
    assert_int_equal(config.device, -1);
    assert_int_equal(config.num_saved, 1);
    assert_int_equal(config.keep_rows, MOK_KEEP_ALL);
    assert_int_equal(config.path, MOK_PATH_AUTO);
    assert_int_equal(config.minibatch_rows, 0);
    assert_int_equal(config.ring_minibatches, 0);
    assert_int_equal(config.look_ahead, 0);
    assert_int_equal(config.comm_workers, 0);
    assert_int_equal(config.compute_workers, 0);
    assert_int_equal(config.reserve_sms, 0);
    assert_int_equal(config.peer_timeout_ms, 600000);
    assert_int_equal(config.local_timeout_ms, 10000);
    assert_null(config.hub);
    assert_null(config.external);
    assert_int_equal(mok_base_options_check(&config), MOK_OK);
}

/* The entries themselves: complete, unique, and the variable is the name in capitals. */
static void test_entries(void **state)
{
    (void)state;
    assert_true(mok_option_count() >= 14);
    assert_null(mok_option_get(-1));
    assert_null(mok_option_get(mok_option_count()));
    for (int32_t idx = 0; idx < mok_option_count(); idx++) {
        const mok_option *option = mok_option_get(idx);
        assert_non_null(option);
        char env[64] = "MOK_";
        for (size_t at = 0; at <= strlen(option->name); at++) {
            char letter = option->name[at];
            env[4 + at] = (char)(letter == '-' ? '_' : letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter);
        }
        assert_string_equal(option->env, env);
        assert_true(strlen(option->value) > 0);
        assert_true(option->help[strlen(option->help) - 1] == '.');
        mok_group_config config = fresh();
        assert_int_equal(mok_option_set(&config, option->name, option->initial), MOK_OK);
        for (int32_t other = 0; other < idx; other++) {
            assert_string_not_equal(option->name, mok_option_get(other)->name);
        }
    }
}

struct legal {
    const char *name;
    const char *value;
    size_t offset;
    size_t size;
    int64_t expected;
};

#define AT(member) offsetof(mok_group_config, member), sizeof(((mok_group_config *)0)->member)

static const struct legal legal_values[] = {
    {"backend", "cpu", AT(backend), MOK_BACKEND_CPU},
    {"backend", "cuda", AT(backend), MOK_BACKEND_CUDA},
    {"peer", "mpi", AT(peer), MOK_PEER_MPI},
    {"peer", "nccl", AT(peer), MOK_PEER_NCCL},
    {"peer", "external", AT(peer), MOK_PEER_EXTERNAL},
    {"path", "staged", AT(path), MOK_PATH_STAGED},
    {"path", "fused", AT(path), MOK_PATH_FUSED},
    {"device", "3", AT(device), 3},
    {"saved", "7", AT(num_saved), 7},
    {"keep-rows", "384", AT(keep_rows), 384},
    {"keep-rows", "all", AT(keep_rows), -1},
    {"minibatch", "256", AT(minibatch_rows), 256},
    {"minibatch", "auto", AT(minibatch_rows), 0},
    {"ring", "6", AT(ring_minibatches), 6},
    {"look-ahead", "2", AT(look_ahead), 2},
    {"comm-workers", "1", AT(comm_workers), 1},
    {"compute-workers", "2", AT(compute_workers), 2},
    {"reserve-sms", "4", AT(reserve_sms), 4},
    {"peer-timeout", "5000000000", AT(peer_timeout_ms), 5000000000},
    {"local-timeout", "25", AT(local_timeout_ms), 25},
};

static int64_t read_field(const mok_group_config *config, const struct legal *row)
{
    int32_t narrow;
    int64_t wide;
    memcpy(&narrow, (const char *)config + row->offset, sizeof narrow);
    memcpy(&wide, (const char *)config + row->offset, row->size == 8 ? sizeof wide : sizeof narrow);
    return row->size == 8 ? wide : narrow;
}

/* Sets exactly the field of its name: everything else stays as it was. */
static void test_set(void **state)
{
    (void)state;
    for (size_t idx = 0; idx < sizeof legal_values / sizeof legal_values[0]; idx++) {
        const struct legal *row = &legal_values[idx];
        mok_group_config config, before;
        memset(&config, 0, sizeof config);
        config = fresh();
        memcpy(&before, &config, sizeof before);
        assert_int_equal(mok_option_set(&config, row->name, row->value), MOK_OK);
        assert_int_equal(read_field(&config, row), row->expected);
        memcpy((char *)&config + row->offset, (char *)&before + row->offset, row->size);
        assert_memory_equal(&config, &before, sizeof config);
    }
}

/* Every option is reached through its variable as through its name. */
static void test_environment(void **state)
{
    (void)state;
    for (size_t idx = 0; idx < sizeof legal_values / sizeof legal_values[0]; idx++) {
        const struct legal *row = &legal_values[idx];
        for (int32_t option = 0; option < mok_option_count(); option++) {
            if (strcmp(mok_option_get(option)->name, row->name) == 0 && row->expected != 0) {
                setenv(mok_option_get(option)->env, row->value, 1);
                mok_group_config config = fresh();
                assert_int_equal(read_field(&config, row), row->expected);
                unsetenv(mok_option_get(option)->env);
            }
        }
    }
    setenv("MOK_RING", "", 1); /* empty is as good as not set */
    assert_int_equal(fresh().ring_minibatches, 0);
    unsetenv("MOK_RING");
}

static void test_bad_environment(void **state)
{
    (void)state;
    mok_group_config config, before;
    memset(&config, 0x5a, sizeof config);
    memcpy(&before, &config, sizeof before);
    setenv("MOK_MINIBATCH", "100", 1);
    assert_int_equal(mok_group_config_init(&config), MOK_ERR_ARGUMENT);
    sentence_has("MOK_MINIBATCH");
    sentence_has("'100'");
    sentence_has("a multiple of 128");
    assert_memory_equal(&config, &before, sizeof config);
    unsetenv("MOK_MINIBATCH");
    assert_int_equal(mok_group_config_init(NULL), MOK_ERR_ARGUMENT);
    sentence_has("config_out");
}

static const struct {
    const char *name;
    const char *value;
    const char *rule;
} refused[] = {
    {"backend", "gpu", "one of auto|cpu|cuda"},
    {"backend", "", "one of auto|cpu|cuda"},
    {"backend", "CPU", "one of auto|cpu|cuda"},
    {"backend", "cp", "one of auto|cpu|cuda"},
    {"backend", "cpu|cuda", "one of auto|cpu|cuda"},
    {"peer", "0", "one of threads|mpi|nccl|external"},
    {"path", "fast", "one of auto|staged|fused"},
    {"device", "-2", "from -1 to 1023"},
    {"saved", "-1", "from 0 to 65536"},
    {"saved", "all", "a whole number"},
    {"keep-rows", "-2", "or all (-1)"},
    {"keep-rows", "5000000000", "to 2147483647"},
    {"minibatch", "127", "a multiple of 128"},
    {"minibatch", "-128", "from 0"},
    {"minibatch", "128x", "a whole number"},
    {"minibatch", "1e3", "a whole number"},
    {"minibatch", " 128", "a whole number"},
    {"minibatch", "", "a whole number"},
    {"minibatch", "99999999999999999999", "a whole number"},
    {"ring", "4.5", "a whole number"},
    {"comm-workers", "5000", "to 4096"},
    {"peer-timeout", "0", "from 1"},
    {"local-timeout", "10000000001", "to 10000000000"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t idx = 0; idx < sizeof refused / sizeof refused[0]; idx++) {
        mok_group_config config = fresh(), before;
        memcpy(&before, &config, sizeof before);
        assert_int_equal(mok_option_set(&config, refused[idx].name, refused[idx].value), MOK_ERR_ARGUMENT);
        char quoted[64];
        snprintf(quoted, sizeof quoted, "%s is '%s'", refused[idx].name, refused[idx].value);
        sentence_has(quoted);
        sentence_has(refused[idx].rule);
        assert_memory_equal(&config, &before, sizeof config);
    }
}

static void test_set_misused(void **state)
{
    (void)state;
    mok_group_config config = fresh();
    assert_int_equal(mok_option_set(&config, "speed", "1"), MOK_ERR_ARGUMENT);
    sentence_has("'speed'");
    assert_int_equal(mok_option_set(NULL, "ring", "1"), MOK_ERR_ARGUMENT);
    sentence_has("config is NULL");
    assert_int_equal(mok_option_set(&config, NULL, "1"), MOK_ERR_ARGUMENT);
    sentence_has("name is NULL");
    assert_int_equal(mok_option_set(&config, "ring", NULL), MOK_ERR_ARGUMENT);
    sentence_has("value is NULL");
    config.struct_size = 8;
    assert_int_equal(mok_option_set(&config, "ring", "1"), MOK_ERR_ARGUMENT);
    sentence_has("struct_size is 8");
}

/* The ranges hold for fields that were set without a name, too, and the sentence names the field. */
static void test_check(void **state)
{
    (void)state;
    mok_group_config config = fresh();
    config.minibatch_rows = 130;
    assert_int_equal(mok_base_options_check(&config), MOK_ERR_ARGUMENT);
    sentence_has("config.minibatch_rows is 130");
    config = fresh();
    config.backend = 3;
    assert_int_equal(mok_base_options_check(&config), MOK_ERR_ARGUMENT);
    sentence_has("config.backend is 3");
    config = fresh();
    config.path = -1;
    assert_int_equal(mok_base_options_check(&config), MOK_ERR_ARGUMENT);
    sentence_has("config.path is -1");
    config = fresh();
    config.keep_rows = -7;
    assert_int_equal(mok_base_options_check(&config), MOK_ERR_ARGUMENT);
    sentence_has("config.keep_rows is -7");
}

static void test_print(void **state)
{
    (void)state;
    char text[32];
    mok_base_option_print("backend", MOK_BACKEND_CUDA, text, sizeof text);
    assert_string_equal(text, "cuda");
    mok_base_option_print("backend", 9, text, sizeof text);
    assert_string_equal(text, "9");
    mok_base_option_print("keep-rows", MOK_KEEP_ALL, text, sizeof text);
    assert_string_equal(text, "all");
    mok_base_option_print("keep-rows", 256, text, sizeof text);
    assert_string_equal(text, "256");
    mok_base_option_print(NULL, 12, text, sizeof text);
    assert_string_equal(text, "12");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_defaults, setup),        cmocka_unit_test_setup(test_entries, setup),
        cmocka_unit_test_setup(test_set, setup),             cmocka_unit_test_setup(test_environment, setup),
        cmocka_unit_test_setup(test_bad_environment, setup), cmocka_unit_test_setup(test_refused, setup),
        cmocka_unit_test_setup(test_set_misused, setup),     cmocka_unit_test_setup(test_check, setup),
        cmocka_unit_test_setup(test_print, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
