/* Logs what a process does to the files of one folder; loaded by LD_PRELOAD.

A record is a line `<operation> <inode> <offset> <length>` and `length` bytes: the data of a write `W`,
the names of a creation `C`, a removal `U` or a renaming `R`. `T` is a truncation to `offset`, `S` a
sync, of the folder too. A sync does nothing else.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *folder;
static size_t length;
static int out = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    folder = getenv("RECORDED_FOLDER");
    length = strlen(folder);
    out = REAL(open)(getenv("RECORD"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static void note(char kind, long inode, long offset, const void *data, size_t size) {
    char head[100];
    int n = snprintf(head, sizeof head, "%c %ld %ld %zu\n", kind, inode, offset, size);
    struct iovec parts[] = {{head, n}, {(void *)data, size}};
    if (writev(out, parts, 2) != (ssize_t)(n + size)) abort();
}

static int is_inside(const char *path) { return folder && !strncmp(path, folder, length); }

/* The inode of an open file of the folder, or of the folder; 0 for others. */
static long inode_of(int file) {
    char link[40], path[PATH_MAX + 1];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, path, PATH_MAX);
    struct stat found;
    if (n < 0) return 0;
    path[n] = 0;
    return is_inside(path) && !fstat(file, &found) ? (long)found.st_ino : 0;
}

static void note_names(char kind, const char *first, const char *second) {
    char both[2 * PATH_MAX];
    size_t n = snprintf(both, sizeof both, "%s\n%s", strrchr(first, '/') + 1, strrchr(second, '/') + 1);
    note(kind, 0, 0, both, n);
}

static int opened(int file, const char *path, int is_new, int flags) {
    if (file >= 0 && is_new) {
        const char *name = strrchr(path, '/') + 1;
        note('C', inode_of(file), 0, name, strlen(name));
    } else if (file >= 0 && flags & O_TRUNC && is_inside(path)) {
        note('T', inode_of(file), 0, "", 0);
    }
    return file;
}

#define OPEN(name)                                                                         \
    int name(const char *path, int flags, ...) {                                           \
        va_list more;                                                                      \
        va_start(more, flags);                                                             \
        mode_t mode = va_arg(more, mode_t);                                                \
        va_end(more);                                                                      \
        int is_new = is_inside(path) && flags & O_CREAT && access(path, F_OK);             \
        return opened(REAL(name)(path, flags, mode), path, is_new, flags);                 \
    }
OPEN(open)
OPEN(open64)

ssize_t write(int file, const void *data, size_t size) {
    long inode = inode_of(file), at = inode ? lseek(file, 0, SEEK_CUR) : 0;
    ssize_t n = REAL(write)(file, data, size);
    if (inode && n > 0) note('W', inode, at, data, n);
    return n;
}

#define PWRITE(name)                                                      \
    ssize_t name(int file, const void *data, size_t size, off_t at) {     \
        ssize_t n = REAL(name)(file, data, size, at);                     \
        long inode = n > 0 ? inode_of(file) : 0;                          \
        if (inode) note('W', inode, at, data, n);                         \
        return n;                                                         \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define FTRUNCATE(name)                                     \
    int name(int file, off_t size) {                        \
        long inode = inode_of(file);                        \
        int failed = REAL(name)(file, size);                \
        if (inode && !failed) note('T', inode, size, "", 0); \
        return failed;                                      \
    }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

#define SYNC(name)                               \
    int name(int file) {                         \
        long inode = inode_of(file);             \
        if (!inode) return REAL(name)(file);     \
        note('S', inode, 0, "", 0);              \
        return 0;                                \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    int failed = REAL(unlink)(path);
    if (!failed && is_inside(path)) note_names('U', path, "/");
    return failed;
}

int rename(const char *path, const char *other) {
    int failed = REAL(rename)(path, other);
    if (!failed && is_inside(path)) note_names('R', path, other);
    return failed;
}
