/*
 * Files that a command writes. A regular file is written beside its place, as X.partial, and takes the place when it is whole; a link is
 * followed. What is no regular file (a device, a FIFO, standard output under another name) is written where it is, never replaced.
 *
 * Errors: IO. A path is checked before the work and opened behind it, so nothing is left behind by a command that fails in between.
 */
#ifndef MOK_CLI_OUTPUT_FILE_H
#define MOK_CLI_OUTPUT_FILE_H

#include <stdio.h>

#include "message.h"

struct mok_output {
    FILE *file;
    const char *path; /* as given: for sentences */
    char *target;     /* where it goes, links resolved */
    char *partial;    /* NULL: written in place */
};

/* Whether path can be written, as far as can be told without doing it. NULL and "-" (standard output) can. */
mok_status mok_output_check(const char *path);

/* 1 when writing `path` would overwrite `other`: the same file, or the partial one beside `path`. Devices overwrite nothing. NULL and "-"
 * are no files. */
int mok_output_overwrites(const char *path, const char *other);

/* "-" is standard output. */
mok_status mok_output_open(const char *path, struct mok_output *output);
/* Closes; puts a regular file into its place when is_good (nothing has failed so far), else removes what was written. */
mok_status mok_output_close(struct mok_output *output, int is_good);

#endif
