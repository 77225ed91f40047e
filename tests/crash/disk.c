/* A disk that keeps a diary and fails on request. Preload it: LD_PRELOAD=disk.so
 *
 * DISK_FOLDER   only files below this folder are looked at
 * DISK_DIARY    appended to after every fsync or fdatasync: "sync SIZE PATH", and "gone PATH",
 *               "name FROM TO", "link FROM TO" for unlink, rename and link. What it does not name, a power cut may take.
 *               A rename is also announced before, "naming FROM TO": a process that is killed between
 *               the rename and its line leaves a synced file under a name that no other line has.
 * DISK_KILLS    while this is set, a process dies at that moment of its first rename.
 * DISK_TROUBLE  while this file exists, calls fail as it says: "write 28" (ENOSPC), "fsync 5" (EIO),
 *               "open 30" (EROFS: also write, rename and unlink, as a read-only remount does).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int below(const char *path) {
    const char *folder = getenv("DISK_FOLDER");
    return folder && path && !strncmp(path, folder, strlen(folder));
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return below(path);
}

/* The error that `call` is to fail with now, 0 for none. */
static int trouble(const char *call) {
    const char *name = getenv("DISK_TROUBLE");
    static int (*real)(const char *, int, ...);
    static ssize_t (*real_read)(int, void *, size_t);
    if (!name) return 0;
    if (!real) { real = (void *)dlsym(RTLD_NEXT, "open"); real_read = (void *)dlsym(RTLD_NEXT, "read"); }
    int fd = real(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    char text[64] = {0}, what[32] = {0};
    int number = 0;
    ssize_t got = real_read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0 || sscanf(text, "%31s %d", what, &number) != 2) return 0;
    if (!strcmp(what, call)) return number;
    if (!strcmp(what, "open") && strcmp(call, "fsync")) return number;
    return 0;
}

static void note(const char *format, ...) {
    const char *name = getenv("DISK_DIARY");
    if (!name) return;
    char line[3 * PATH_MAX];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    int fd = REAL(open)(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (REAL(write)(fd, line, size) != size) abort();
    close(fd);
}

#define FAIL_IF(call, value) do { int e = trouble(call); if (e) { errno = e; return value; } } while (0)

static int sync_with(int fd, int (*real)(int)) {
    char path[PATH_MAX];
    struct stat about;
    int ours = path_of(fd, path);
    if (ours) FAIL_IF("fsync", -1);
    int result = real(fd);
    if (!result && ours && !fstat(fd, &about) && S_ISREG(about.st_mode))
        note("sync %lld %s\n", (long long)about.st_size, path);
    return result;
}

int fsync(int fd) { return sync_with(fd, REAL(fsync)); }
int fdatasync(int fd) { return sync_with(fd, REAL(fdatasync)); }

ssize_t write(int fd, const void *data, size_t size) {
    char path[PATH_MAX];
    if (getenv("DISK_TROUBLE") && path_of(fd, path)) FAIL_IF("write", -1);
    return REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    char path[PATH_MAX];
    if (getenv("DISK_TROUBLE") && path_of(fd, path)) FAIL_IF("write", -1);
    return REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    char path[PATH_MAX];
    if (getenv("DISK_TROUBLE") && path_of(fd, path)) FAIL_IF("write", -1);
    return REAL(pwrite64)(fd, data, size, at);
}

/* Python's os.pwritev calls one of these, by the C library it was built with. */
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    char path[PATH_MAX];
    if (getenv("DISK_TROUBLE") && path_of(fd, path)) FAIL_IF("write", -1);
    return REAL(pwritev)(fd, parts, count, at);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    char path[PATH_MAX];
    if (getenv("DISK_TROUBLE") && path_of(fd, path)) FAIL_IF("write", -1);
    return REAL(pwritev2)(fd, parts, count, at, flags);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    char path[PATH_MAX];
    if (getenv("DISK_TROUBLE") && path_of(fd, path)) FAIL_IF("write", -1);
    return REAL(pwritev64)(fd, parts, count, at);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    char path[PATH_MAX];
    if (getenv("DISK_TROUBLE") && path_of(fd, path)) FAIL_IF("write", -1);
    return REAL(pwritev64v2)(fd, parts, count, at, flags);
}

static int opening(const char *path, int flags) {
    return (flags & (O_WRONLY | O_RDWR | O_CREAT)) && below(path) ? trouble("open") : 0;
}

int open(const char *path, int flags, ...) {
    va_list args; va_start(args, flags); mode_t mode = va_arg(args, mode_t); va_end(args);
    int e = opening(path, flags);
    if (e) { errno = e; return -1; }
    return REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list args; va_start(args, flags); mode_t mode = va_arg(args, mode_t); va_end(args);
    int e = opening(path, flags);
    if (e) { errno = e; return -1; }
    return REAL(open64)(path, flags, mode);
}

int rename(const char *from, const char *to) {
    if (below(to)) FAIL_IF("rename", -1);
    if (below(to)) note("naming %s %s\n", from, to);
    int result = REAL(rename)(from, to);
    if (below(to) && getenv("DISK_KILLS")) kill(getpid(), SIGKILL);
    if (!result && below(to)) note("name %s %s\n", from, to);
    return result;
}

int link(const char *from, const char *to) {
    if (below(to)) FAIL_IF("rename", -1);
    int result = REAL(link)(from, to);
    if (!result && below(to)) note("link %s %s\n", from, to);
    return result;
}

int unlink(const char *path) {
    if (below(path)) FAIL_IF("unlink", -1);
    int result = REAL(unlink)(path);
    if (!result && below(path)) note("gone %s\n", path);
    return result;
}
