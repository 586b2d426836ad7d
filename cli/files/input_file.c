/*
 * Opening a file that is read. See input_file.h.
 */
#include "files/input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

mok_status mok_input_open(const char *path, int *file_out, size_t *bytes_out)
{
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* without O_NONBLOCK a FIFO waits here, before its kind is seen */
    if (file < 0) {
        return mok_cli_fail(MOK_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(file);
        return mok_cli_fail(MOK_ERR_IO, "%s: is no regular file", path);
    }
    *file_out = file;
    *bytes_out = (size_t)about.st_size;
    return MOK_OK;
}
