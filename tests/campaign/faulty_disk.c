/* A library for LD_PRELOAD: a disk that fails or is slow below one folder.

   LRA_FAULTS names a folder with files, which may change at any moment:
     disk   "ERRNO PERMILLE MICROSECONDS": with this probability a call that writes below
            LRA_FAULTS_BELOW fails with this error (0: never), and each call takes so much longer
     calls  "PERMILLE ERRNO KINDS": with this probability a call below that folder of one of these
            kinds (the sum of the numbers of `enum kind`; 0: any) fails with this error (0: one of
            a file server's, drawn)
   Each fault that was applied appends one letter to the file `applied` there: of its kind, or d for
   a call that takes longer. So they are counted.
   Without LRA_FAULTS, everything is as it is. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static long setting(const char *file, long *values, int count) {
    const char *folder = getenv("LRA_FAULTS");
    char path[PATH_MAX], text[128];
    if (!folder || snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return 0;
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return 0;
    long size = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    if (size <= 0) return 0;
    text[size] = 0;
    char *at = text;
    for (int i = 0; i < count; i++) values[i] = strtol(at, &at, 10);
    return 1;
}

static unsigned long draw(void) {
    static __thread unsigned long state;
    if (!state) {
        struct timespec now;
        syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
        state = (unsigned long)now.tv_nsec * 2654435761u + (unsigned long)syscall(SYS_gettid) + 1;
    }
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    return state;
}

/* What a call does; a program reads what it opens for reading. FLUSH is of a folder. */
enum kind { READ = 1, LIST = 2, STAT = 4, WRITE = 8, LOCK = 16, FLUSH = 32, REMOVE = 64 };

static char letter(enum kind kind) {
    switch (kind) {
    case READ: return 'r';
    case LIST: return 'l';
    case STAT: return 's';
    case WRITE: return 'w';
    case LOCK: return 'k';
    case REMOVE: return 'x';
    default: return 'f';
    }
}

static void count(char letter) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/applied", getenv("LRA_FAULTS"));
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return;
    syscall(SYS_write, fd, &letter, 1);
    syscall(SYS_close, fd);
}

/* Whether a call on this path is to fail; `errno` is set then. */
static int fails(const char *path, enum kind kind) {
    const char *below = getenv("LRA_FAULTS_BELOW");
    if (!below || !path || strncmp(path, below, strlen(below))) return 0;
    int before = errno;
    long values[3] = {0, 0, 0};
    setting("disk", values, 3);
    if (values[2] > 0) {
        struct timespec wait = {values[2] / 1000000, values[2] % 1000000 * 1000};
        syscall(SYS_nanosleep, &wait, NULL);
        count('d');
    }
    long often[3] = {0, 0, 0};
    static const int errors[] = {ESTALE, EIO, EAGAIN, ETIMEDOUT, EMFILE, ENOMEM, EBUSY, EPROTO,
                                 ENOTCONN, EHOSTDOWN};
    setting("calls", often, 3);
    errno = before;
    if (often[0] && (!often[2] || often[2] & kind) && (long)(draw() % 1000) < often[0]) {
        count(letter(kind));
        errno = often[1] ? (int)often[1] : errors[draw() % (sizeof errors / sizeof *errors)];
        return 1;
    }
    if (!(kind & (WRITE | FLUSH)) || !values[0] || (long)(draw() % 1000) >= values[1]) return 0;
    count(letter(kind));
    errno = (int)values[0];
    return 1;
}

static const char *path_of(int fd, char *found) {
    char link[64];
    if (fd < 0 || !getenv("LRA_FAULTS")) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long size = syscall(SYS_readlink, link, found, PATH_MAX - 1);
    if (size < 0) return NULL;
    found[size] = 0;
    return found;
}

static const char *joined(int folder, const char *path, char *found) {
    if (!path || path[0] == '/' || folder == AT_FDCWD) return path;
    if (!path_of(folder, found)) return NULL;
    size_t used = strlen(found);
    if (snprintf(found + used, PATH_MAX - used, "/%s", path) >= (int)(PATH_MAX - used)) return NULL;
    return found;
}

#define OPENS(flags) (((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) ? WRITE \
    : ((flags) & O_DIRECTORY) ? LIST : READ)
#define MODE mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); \
        mode = (mode_t)va_arg(more, int); va_end(more); }

int open(const char *path, int flags, ...) {
    MODE
    return fails(path, OPENS(flags)) ? -1 : REAL(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE
    return fails(path, OPENS(flags)) ? -1 : REAL(open64)(path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE
    char whole[PATH_MAX];
    return fails(joined(folder, path, whole), OPENS(flags)) ? -1
        : REAL(openat)(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE
    char whole[PATH_MAX];
    return fails(joined(folder, path, whole), OPENS(flags)) ? -1
        : REAL(openat64)(folder, path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t size) {
    char path[PATH_MAX];
    if (fails(path_of(fd, path), WRITE)) {
        /* Half of the time in the middle: some of it is there, and the next call is refused. */
        if (size < 2 || draw() & 1) return -1;
        return REAL(write)(fd, data, size / 2);
    }
    return REAL(write)(fd, data, size);
}
ssize_t writev(int fd, const struct iovec *parts, int number) {
    char path[PATH_MAX];
    return fails(path_of(fd, path), WRITE) ? -1 : REAL(writev)(fd, parts, number);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    char path[PATH_MAX];
    return fails(path_of(fd, path), WRITE) ? -1 : REAL(pwrite64)(fd, data, size, at);
}
ssize_t read(int fd, void *data, size_t size) {
    char path[PATH_MAX];
    return fails(path_of(fd, path), READ) ? -1 : REAL(read)(fd, data, size);
}
static int folder(int fd) {
    struct stat64 found;
    return getenv("LRA_FAULTS") && !REAL(fstat64)(fd, &found) && S_ISDIR(found.st_mode);
}
int fsync(int fd) {
    char path[PATH_MAX];
    return fails(path_of(fd, path), folder(fd) ? FLUSH : WRITE) ? -1 : REAL(fsync)(fd);
}
int rename(const char *from, const char *to) { return fails(to, WRITE) ? -1 : REAL(rename)(from, to); }
int renameat(int f, const char *from, int t, const char *to) {
    char whole[PATH_MAX];
    return fails(joined(t, to, whole), WRITE) ? -1 : REAL(renameat)(f, from, t, to);
}
int mkdir(const char *path, mode_t mode) { return fails(path, WRITE) ? -1 : REAL(mkdir)(path, mode); }
int rmdir(const char *path) { return fails(path, REMOVE) ? -1 : REAL(rmdir)(path); }
int unlink(const char *path) { return fails(path, REMOVE) ? -1 : REAL(unlink)(path); }
int unlinkat(int folder, const char *path, int flags) {
    char whole[PATH_MAX];
    return fails(joined(folder, path, whole), REMOVE) ? -1 : REAL(unlinkat)(folder, path, flags);
}
int link(const char *from, const char *to) { return fails(to, WRITE) ? -1 : REAL(link)(from, to); }
int linkat(int f, const char *from, int t, const char *to, int flags) {
    char whole[PATH_MAX];
    return fails(joined(t, to, whole), WRITE) ? -1 : REAL(linkat)(f, from, t, to, flags);
}
FILE *fopen64(const char *path, const char *mode) {
    return fails(path, mode[0] == 'r' ? READ : WRITE) ? NULL : REAL(fopen64)(path, mode);
}
int access(const char *path, int mode) { return fails(path, STAT) ? -1 : REAL(access)(path, mode); }
int ftruncate64(int fd, off64_t size) {
    char path[PATH_MAX];
    return fails(path_of(fd, path), WRITE) ? -1 : REAL(ftruncate64)(fd, size);
}
int stat(const char *path, struct stat *found) {
    return fails(path, STAT) ? -1 : REAL(stat)(path, found);
}
int lstat(const char *path, struct stat *found) {
    return fails(path, STAT) ? -1 : REAL(lstat)(path, found);
}

int stat64(const char *path, struct stat64 *found) {
    return fails(path, STAT) ? -1 : REAL(stat64)(path, found);
}
int lstat64(const char *path, struct stat64 *found) {
    return fails(path, STAT) ? -1 : REAL(lstat64)(path, found);
}
int fstatat64(int folder, const char *path, struct stat64 *found, int flags) {
    char whole[PATH_MAX];
    return fails(joined(folder, path, whole), STAT) ? -1
        : REAL(fstatat64)(folder, path, found, flags);
}
int fstat64(int fd, struct stat64 *found) {
    char path[PATH_MAX];
    return fails(path_of(fd, path), STAT) ? -1 : REAL(fstat64)(fd, found);
}
int statx(int folder, const char *restrict path, int flags, unsigned mask,
          struct statx *restrict found) {
    char whole[PATH_MAX];
    return fails(joined(folder, path, whole), STAT) ? -1
        : REAL(statx)(folder, path, flags, mask, found);
}
DIR *opendir(const char *path) { return fails(path, LIST) ? NULL : REAL(opendir)(path); }
struct dirent64 *readdir64(DIR *folder) {
    char path[PATH_MAX];
    return fails(path_of(dirfd(folder), path), LIST) ? NULL : REAL(readdir64)(folder);
}
ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    char path[PATH_MAX];
    return fails(path_of(fd, path), READ) ? -1 : REAL(pread64)(fd, data, size, at);
}
int flock(int fd, int how) {
    char path[PATH_MAX];
    return fails(path_of(fd, path), LOCK) ? -1 : REAL(flock)(fd, how);
}
/* Locks of POSIX, which `fcntl.lockf` asks for; all else passes. */
int fcntl64(int fd, int what, ...) {
    va_list more;
    va_start(more, what);
    void *argument = va_arg(more, void *);
    va_end(more);
    char path[PATH_MAX];
    int locks = what == F_SETLK || what == F_SETLKW || what == F_OFD_SETLK || what == F_OFD_SETLKW;
    if (locks && fails(path_of(fd, path), LOCK)) return -1;
    return REAL(fcntl64)(fd, what, argument);
}
int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    char whole[PATH_MAX];
    return fails(joined(folder, path, whole), WRITE) ? -1
        : REAL(utimensat)(folder, path, times, flags);
}
