/*
 * mok run many times in one process, because starting CUDA takes seconds and processes take turns at it. Reads lines "NAME ARGUMENTS" from standard
 * input; NAME.table is what mok run printed, NAME.code its exit code. gpu_files.sh writes the lines and looks at the tables.
 *
 *   gpu_files FOLDER
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "gpu_check.h"

enum { MAX_WORDS = 64, MAX_LINE = 4096 };

/* Standard output and error go to `path` until restored. */
static int redirect(const char *path, int *before)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    fflush(NULL);
    before[0] = dup(STDOUT_FILENO);
    before[1] = dup(STDERR_FILENO);
    int ok = file >= 0 && before[0] >= 0 && before[1] >= 0 && dup2(file, STDOUT_FILENO) >= 0 && dup2(file, STDERR_FILENO) >= 0;
    if (file >= 0) {
        close(file);
    }
    return ok;
}

static void restore(const int *before)
{
    fflush(NULL);
    dup2(before[0], STDOUT_FILENO);
    dup2(before[1], STDERR_FILENO);
    close(before[0]);
    close(before[1]);
}

static int run_line(const char *folder, char *line)
{
    char *words[MAX_WORDS], path[MAX_LINE];
    int num = 0, before[2];
    for (char *word = strtok(line, " \n"); word != NULL && num < MAX_WORDS; word = strtok(NULL, " \n")) {
        words[num++] = word;
    }
    if (num == 0) {
        return 1;
    }
    snprintf(path, sizeof path, "%s/%s.table", folder, words[0]);
    if (!redirect(path, before)) {
        return 0;
    }
    int code = mok_cli_dispatch(&mok_command_run, num - 1, words + 1);
    restore(before);
    snprintf(path, sizeof path, "%s/%s.code", folder, words[0]);
    FILE *file = fopen(path, "w");
    return file != NULL && fprintf(file, "%d\n", code) > 0 && fclose(file) == 0;
}

int main(int argc, char **argv)
{
    static char line[MAX_LINE];
    if (argc != 2) {
        fprintf(stderr, "usage: gpu_files FOLDER\n");
        return 2;
    }
    (void)gpu_count(); /* sets what ranks that share a GPU need */
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (!run_line(argv[1], line)) {
            perror("gpu_files");
            return 1;
        }
    }
    return 0;
}
