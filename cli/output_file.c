/*
 * Paths to places. In: paths that the user gave. Out: whole files, or none.
 */
#include "output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum place_kind { PLACE_REGULAR, PLACE_MISSING, PLACE_SPECIAL };

struct place {
    enum place_kind kind;
    int stream;            /* STDOUT_FILENO or STDERR_FILENO when it is that, else -1 */
    struct stat about;     /* unless it is missing */
    char target[PATH_MAX]; /* links resolved */
    char partial[PATH_MAX + sizeof ".partial"];
};

static int is_stdout(const char *path) { return strcmp(path, "-") == 0; }

static int is_same_inode(const struct stat *one, const struct stat *other)
{
    return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

/* Path of a file that is not there yet: its folder resolved, and its name. 0, or an errno. */
static int resolve_missing(const char *path, char *target)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    char folder[PATH_MAX];
    char resolved[PATH_MAX];
    int length = slash == NULL ? snprintf(folder, sizeof folder, ".") : snprintf(folder, sizeof folder, "%.*s/", (int)(slash - path), path);
    if (length >= (int)sizeof folder) {
        return ENAMETOOLONG;
    }
    if (realpath(folder, resolved) == NULL) {
        return errno;
    }
    if (name[0] == '\0') {
        return EISDIR;
    }
    return snprintf(target, PATH_MAX, "%s/%s", resolved, name) >= PATH_MAX ? ENAMETOOLONG : 0;
}

/* A descriptor of this process under a name: to replace the file behind it would take the file from whoever else writes to it. */
static int is_descriptor(const char *path)
{
    return strncmp(path, "/dev/fd/", 8) == 0 || strncmp(path, "/proc/", 6) == 0 || strcmp(path, "/dev/stdin") == 0;
}

/* 0, or the errno that says why nothing can be written there. */
static int find_place(const char *path, struct place *place)
{
    struct stat link, stream;
    memset(place, 0, sizeof *place);
    place->stream = -1;
    if (stat(path, &place->about) != 0) {
        int error = errno;
        place->kind = PLACE_MISSING;
        if (error == ENOENT && lstat(path, &link) == 0) {
            place->kind = PLACE_SPECIAL; /* a link to what is not there yet: opened through the link, which makes it */
            return snprintf(place->target, sizeof place->target, "%s", path) >= (int)sizeof place->target ? ENAMETOOLONG : 0;
        }
        error = error == ENOENT ? resolve_missing(path, place->target) : error;
        snprintf(place->partial, sizeof place->partial, "%s.partial", place->target);
        return error;
    }
    if (S_ISDIR(place->about.st_mode)) {
        return EISDIR;
    }
    for (int number = STDOUT_FILENO; number <= STDERR_FILENO; number++) {
        if (fstat(number, &stream) == 0 && is_same_inode(&stream, &place->about)) {
            place->stream = number;
            break;
        }
    }
    int is_regular = S_ISREG(place->about.st_mode) && place->stream < 0 && !is_descriptor(path);
    place->kind = is_regular ? PLACE_REGULAR : PLACE_SPECIAL;
    if (realpath(path, place->target) == NULL && snprintf(place->target, PATH_MAX, "%s", path) >= PATH_MAX) {
        return ENAMETOOLONG; /* a pipe has no path of its own */
    }
    snprintf(place->partial, sizeof place->partial, "%s.partial", place->target);
    return 0;
}

/* folder_out [PATH_MAX]: where the file and its partial one stand. Only for places that have a partial file: their target is absolute. */
static void find_folder(const struct place *place, char *folder_out)
{
    snprintf(folder_out, PATH_MAX, "%s", place->target);
    char *slash = strrchr(folder_out, '/');
    slash[slash == folder_out ? 1 : 0] = '\0';
}

/* 0, or an errno: the folder must take the partial file, and what stands under its name must be one that may go. */
static int check_folder(const struct place *place)
{
    struct stat about;
    char folder[PATH_MAX];
    find_folder(place, folder);
    if (access(folder, W_OK | X_OK) != 0) {
        return errno;
    }
    if (lstat(place->partial, &about) == 0) {
        return S_ISREG(about.st_mode) ? 0 : EEXIST;
    }
    return errno == ENOENT ? 0 : errno;
}

static mok_status fail(const char *path, int error)
{
    return mok_cli_fail(MOK_ERR_IO, "%s: cannot be written: %s", path, strerror(error));
}

/* The partial file cannot be made: who reads that the file cannot be written, and can write it, looks for another one and its folder. */
static mok_status fail_partial(const char *path, const struct place *place, int error)
{
    char folder[PATH_MAX];
    find_folder(place, folder);
    return mok_cli_fail(MOK_ERR_IO, "%s: cannot be written: %s: %s is made first, in the folder %s", path, strerror(error),
                        strrchr(place->partial, '/') + 1, folder);
}

mok_status mok_output_check(const char *path)
{
    struct place place;
    if (path == NULL || is_stdout(path)) {
        return MOK_OK;
    }
    int error = find_place(path, &place);
    if (error == 0 && place.kind != PLACE_MISSING && place.stream < 0 && place.about.st_nlink > 0 && access(path, W_OK) != 0) {
        error = errno;
    }
    if (error != 0 || place.kind == PLACE_SPECIAL) {
        return error == 0 ? MOK_OK : fail(path, error);
    }
    error = check_folder(&place);
    return error == 0 ? MOK_OK : fail_partial(path, &place, error);
}

int mok_output_overwrites(const char *path, const char *other)
{
    struct place place, second;
    struct stat partial;
    if (path == NULL || other == NULL || is_stdout(path) || is_stdout(other) || find_place(path, &place) != 0 ||
        find_place(other, &second) != 0) {
        return 0;
    }
    if (strcmp(place.target, second.target) == 0) {
        return place.kind == PLACE_MISSING || !S_ISCHR(place.about.st_mode);
    }
    if (place.kind != PLACE_SPECIAL && strcmp(place.partial, second.target) == 0) {
        return 1;
    }
    if (second.kind == PLACE_MISSING || S_ISCHR(second.about.st_mode)) {
        return 0;
    }
    int is_hit = place.kind != PLACE_MISSING && is_same_inode(&place.about, &second.about);
    is_hit |= place.kind != PLACE_SPECIAL && stat(place.partial, &partial) == 0 && is_same_inode(&partial, &second.about);
    return is_hit;
}

/* A new file under the partial name, with the rights of the file that it will replace. */
static FILE *open_partial(const struct place *place)
{
    int file = open(place->partial, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (file < 0) {
        return NULL;
    }
    if (place->kind == PLACE_REGULAR) {
        (void)fchmod(file, place->about.st_mode & 0777); /* the rights of a file are no reason to lose its contents */
    }
    return fdopen(file, "wb");
}

static FILE *open_in_place(const struct place *place, const char *path)
{
    if (place->stream < 0) {
        return fopen(path, "wb");
    }
    fflush(stdout); /* what was said so far stands before it */
    int file = dup(place->stream);
    return file < 0 ? NULL : fdopen(file, "wb");
}

mok_status mok_output_open(const char *path, struct mok_output *output)
{
    struct place place;
    memset(output, 0, sizeof *output);
    output->path = path;
    if (is_stdout(path)) {
        output->file = stdout;
        return MOK_OK;
    }
    int error = find_place(path, &place);
    if (error != 0) {
        return fail(path, error);
    }
    int is_special = place.kind == PLACE_SPECIAL;
    output->target = strdup(place.target);
    output->partial = is_special ? NULL : strdup(place.partial);
    int has_names = output->target != NULL && (is_special || output->partial != NULL);
    if (has_names) {
        output->file = is_special ? open_in_place(&place, path) : open_partial(&place);
        error = errno;
    }
    if (output->file == NULL) {
        free(output->target);
        free(output->partial);
        return has_names && !is_special ? fail_partial(path, &place, error) : fail(path, has_names ? error : ENOMEM);
    }
    return MOK_OK;
}

mok_status mok_output_close(struct mok_output *output, int is_good)
{
    int error = is_good ? 0 : errno == 0 ? EIO : errno;
    int failure = output->file == stdout ? fflush(stdout) : fclose(output->file);
    if (failure != 0 && error == 0) {
        error = errno;
    }
    if (output->partial != NULL) {
        if (error == 0 && rename(output->partial, output->target) != 0) {
            error = errno;
        }
        if (error != 0) {
            remove(output->partial);
        }
    }
    free(output->target);
    free(output->partial);
    return error == 0 ? MOK_OK : fail(output->path, error);
}
