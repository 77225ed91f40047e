/* Records the calls that change files below a directory, with their data. Preload it: LD_PRELOAD=recorder.so
 *
 * RECORDED   the directory
 * RECORD     the file that gets the calls, in their order: a line, and the data behind it
 *
 *   file INODE PATH      a new file          folder INODE PATH    a new directory
 *   name INODE PATH      a further name      gone PATH            a name is removed
 *   renamed FROM TO                          symlink INODE SIZE PATH   (its target)
 *   write INODE OFFSET SIZE   (data)         cut INODE SIZE
 *   sync INODE           of a file or a directory
 *
 * One call after the other, whatever threads make them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define PARTS_MAX 1024

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

static int below(const char *path) {
    const char *directory = getenv("RECORDED");
    size_t length = directory ? strlen(directory) : 0;
    return length && path && !strncmp(path, directory, length) && (path[length] == '/' || !path[length]);
}

/* The path of NAME in the directory DIRFD; 1 if it is recorded. */
static int path_at(int dirfd, const char *name, char *path) {
    char link[64], directory[PATH_MAX];
    if (!name) return 0;
    if (name[0] == '/' || dirfd == AT_FDCWD) return snprintf(path, PATH_MAX, "%s", name) > 0 && below(path);
    snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
    ssize_t size = readlink(link, directory, sizeof directory - 1);
    if (size < 0) return 0;
    directory[size] = 0;
    return snprintf(path, PATH_MAX, "%s/%s", directory, name) > 0 && below(path);
}

static unsigned long long inode_of(const char *path) {
    struct stat found;
    return lstat(path, &found) ? 0 : (unsigned long long)found.st_ino;
}

/* The inode of an open file or directory below the directory; 0 for another one. */
static unsigned long long recorded(int fd) {
    char link[64], path[PATH_MAX];
    struct stat found;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return below(path) && !fstat(fd, &found) ? (unsigned long long)found.st_ino : 0;
}

static void put(const struct iovec *data, int count, const char *format, ...) {
    char line[3 * PATH_MAX];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    int fd = REAL(open)(getenv("RECORD"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || REAL(write)(fd, line, size) != size) abort();
    for (int n = 0; n < count; n++)
        if (REAL(write)(fd, data[n].iov_base, data[n].iov_len) != (ssize_t)data[n].iov_len) abort();
    close(fd);
}

/* WRITTEN bytes of PARTS went to FD at AT. */
static void put_write(int fd, const struct iovec *parts, int count, off_t at, ssize_t written) {
    struct iovec left[PARTS_MAX];
    unsigned long long inode = written > 0 ? recorded(fd) : 0;
    ssize_t size = written;
    int used = 0;
    if (!inode) return;
    for (; used < count && used < PARTS_MAX && size > 0; used++) {
        left[used] = parts[used];
        if ((ssize_t)left[used].iov_len > size) left[used].iov_len = size;
        size -= left[used].iov_len;
    }
    put(left, used, "write %llu %lld %lld\n", inode, (long long)at, (long long)written);
}

#define LOCKED(type, call) pthread_mutex_lock(&one); type result = call; int failure = errno
#define UNLOCK() pthread_mutex_unlock(&one); errno = failure; return result

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec part = {(void *)data, size};
    LOCKED(ssize_t, REAL(write)(fd, data, size));
    if (result > 0 && recorded(fd)) put_write(fd, &part, 1, lseek(fd, 0, SEEK_CUR) - result, result);
    UNLOCK();
}

#define PWRITE(name, offset) \
    ssize_t name(int fd, const void *data, size_t size, offset at) { \
        struct iovec part = {(void *)data, size}; \
        LOCKED(ssize_t, REAL(name)(fd, data, size, at)); \
        put_write(fd, &part, 1, at, result); \
        UNLOCK(); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define PWRITEV(name, offset) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset at) { \
        LOCKED(ssize_t, REAL(name)(fd, parts, count, at)); \
        put_write(fd, parts, count, at, result); \
        UNLOCK(); \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define PWRITEV2(name, offset) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset at, int flags) { \
        LOCKED(ssize_t, REAL(name)(fd, parts, count, at, flags)); \
        put_write(fd, parts, count, at, result); \
        UNLOCK(); \
    }
PWRITEV2(pwritev2, off_t)
PWRITEV2(pwritev64v2, off64_t)

#define TRUNCATE(name, offset) \
    int name(int fd, offset size) { \
        LOCKED(int, REAL(name)(fd, size)); \
        if (!result && recorded(fd)) put(NULL, 0, "cut %llu %lld\n", recorded(fd), (long long)size); \
        UNLOCK(); \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define SYNC(name) \
    int name(int fd) { \
        LOCKED(int, REAL(name)(fd)); \
        if (!result && recorded(fd)) put(NULL, 0, "sync %llu\n", recorded(fd)); \
        UNLOCK(); \
    }
SYNC(fsync)
SYNC(fdatasync)

/* The file PATH was opened as FD; before, its inode was OLD, 0 for none. */
static void put_open(int fd, const char *path, int flags, unsigned long long old) {
    unsigned long long inode = fd < 0 ? 0 : recorded(fd);
    if (!inode) return;
    if (!old) put(NULL, 0, "file %llu %s\n", inode, path);
    else if (flags & O_TRUNC) put(NULL, 0, "cut %llu 0\n", inode);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list args; va_start(args, flags); mode_t mode = va_arg(args, mode_t); va_end(args); \
        if (!(flags & (O_CREAT | O_TRUNC)) || !below(path)) return REAL(name)(path, flags, mode); \
        unsigned long long old = inode_of(path); \
        LOCKED(int, REAL(name)(path, flags, mode)); \
        put_open(result, path, flags, old); \
        UNLOCK(); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int dirfd, const char *name_in, int flags, ...) { \
        char path[PATH_MAX]; \
        va_list args; va_start(args, flags); mode_t mode = va_arg(args, mode_t); va_end(args); \
        if (!(flags & (O_CREAT | O_TRUNC)) || !path_at(dirfd, name_in, path)) \
            return REAL(name)(dirfd, name_in, flags, mode); \
        unsigned long long old = inode_of(path); \
        LOCKED(int, REAL(name)(dirfd, name_in, flags, mode)); \
        put_open(result, path, flags, old); \
        UNLOCK(); \
    }
OPENAT(openat)
OPENAT(openat64)

static int put_renamed(int result, const char *from, const char *to) {
    if (!result) put(NULL, 0, "renamed %s %s\n", from, to);
    return result;
}

int rename(const char *from, const char *to) {
    if (!below(to)) return REAL(rename)(from, to);
    LOCKED(int, put_renamed(REAL(rename)(from, to), from, to));
    UNLOCK();
}

static int put_name(int result, const char *what, const char *path) {
    if (!result) put(NULL, 0, "%s %llu %s\n", what, inode_of(path), path);
    return result;
}

int link(const char *from, const char *to) {
    if (!below(to)) return REAL(link)(from, to);
    LOCKED(int, put_name(REAL(link)(from, to), "name", to));
    UNLOCK();
}

int linkat(int fromfd, const char *from, int tofd, const char *to, int flags) {
    char path[PATH_MAX];
    if (!path_at(tofd, to, path)) return REAL(linkat)(fromfd, from, tofd, to, flags);
    LOCKED(int, put_name(REAL(linkat)(fromfd, from, tofd, to, flags), "name", path));
    UNLOCK();
}

static int put_symlink(int result, const char *target, const char *path) {
    struct iovec data = {(void *)target, strlen(target)};
    if (!result) put(&data, 1, "symlink %llu %zu %s\n", inode_of(path), data.iov_len, path);
    return result;
}

int symlink(const char *target, const char *path) {
    if (!below(path)) return REAL(symlink)(target, path);
    LOCKED(int, put_symlink(REAL(symlink)(target, path), target, path));
    UNLOCK();
}

int mkdir(const char *path, mode_t mode) {
    if (!below(path)) return REAL(mkdir)(path, mode);
    LOCKED(int, put_name(REAL(mkdir)(path, mode), "folder", path));
    UNLOCK();
}

int mkdirat(int dirfd, const char *name, mode_t mode) {
    char path[PATH_MAX];
    if (!path_at(dirfd, name, path)) return REAL(mkdirat)(dirfd, name, mode);
    LOCKED(int, put_name(REAL(mkdirat)(dirfd, name, mode), "folder", path));
    UNLOCK();
}

static int put_gone(int result, const char *path) {
    if (!result) put(NULL, 0, "gone %s\n", path);
    return result;
}

int unlink(const char *path) {
    if (!below(path)) return REAL(unlink)(path);
    LOCKED(int, put_gone(REAL(unlink)(path), path));
    UNLOCK();
}

int unlinkat(int dirfd, const char *name, int flags) {
    char path[PATH_MAX];
    if (!path_at(dirfd, name, path)) return REAL(unlinkat)(dirfd, name, flags);
    LOCKED(int, put_gone(REAL(unlinkat)(dirfd, name, flags), path));
    UNLOCK();
}

int rmdir(const char *path) {
    if (!below(path)) return REAL(rmdir)(path);
    LOCKED(int, put_gone(REAL(rmdir)(path), path));
    UNLOCK();
}
