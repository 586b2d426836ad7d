/*
 * mok: the command-line tool. Finds the command; everything else is the command's own.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/blas_room.h"
#include "commands.h"

const struct mok_cli_command *const mok_cli_commands[] = {
    &mok_command_run, &mok_command_verify, &mok_command_info, &mok_command_bench, &mok_command_trace, NULL,
};

static void print_commands(FILE *out)
{
    fputs("usage: mok COMMAND [options]\n\n", out);
    for (int idx = 0; mok_cli_commands[idx] != NULL; idx++) {
        fprintf(out, "  %-8s %s\n", mok_cli_commands[idx]->name, mok_cli_commands[idx]->summary);
    }
    fputs("\nmok COMMAND --help lists a command's options; of one that is given twice the last counts. mok help prints this list, mok --version\n"
          "the version. A file that is read must be a regular one; a FIFO may be written, and the command waits until somebody reads it.\n",
          out);
}

static int is_help(const char *word) { return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0; }

static int run_tool(int argc, char **argv)
{
    if (argc < 2) {
        print_commands(stderr);
        return MOK_CLI_EXIT_USAGE;
    }
    int is_version = strcmp(argv[1], "--version") == 0;
    if (argc > 2 && (is_version || is_help(argv[1]))) {
        fprintf(stderr, "mok %s: argument '%s' is not expected\n", argv[1], argv[2]);
        print_commands(stderr);
        return MOK_CLI_EXIT_USAGE;
    }
    if (is_help(argv[1])) {
        print_commands(stdout);
        return MOK_CLI_EXIT_OK;
    }
    if (is_version) {
        printf("mok %d.%d.%d\n", mok_version() / 10000, mok_version() / 100 % 100, mok_version() % 100);
        return MOK_CLI_EXIT_OK;
    }
    for (int idx = 0; mok_cli_commands[idx] != NULL; idx++) {
        if (strcmp(argv[1], mok_cli_commands[idx]->name) == 0) {
            return mok_cli_dispatch(mok_cli_commands[idx], argc - 2, argv + 2);
        }
    }
    fprintf(stderr, "mok: '%s' is no command\n", argv[1]);
    print_commands(stderr);
    return MOK_CLI_EXIT_USAGE;
}

/* What was said must have arrived: a full disk shows itself only here. */
int main(int argc, char **argv)
{
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit of file size (ulimit -f) is an error of the write, which has a sentence */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* ranks may share a GPU; the first CUDA call reads it */
    int code = run_tool(argc, argv);
    int is_whole = fflush(stdout) == 0 && !ferror(stdout);
    if (!is_whole && code != MOK_CLI_EXIT_ERROR) {
        fprintf(stderr, "mok: standard output cannot be written\n");
        code = MOK_CLI_EXIT_ERROR;
    }
    /* Threads of OpenBLAS that found no memory when the process began still look for it, and the end of the process would wait for them. It has
     * one on each CPU at most. */
    if (!mok_blas_has_room(sysconf(_SC_NPROCESSORS_ONLN))) {
        _exit(code);
    }
    return code;
}
