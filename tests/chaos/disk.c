/* Preloaded into every process of a trial: fails one write under $CHAOS_DISK_ROOT, as a full or broken disk does.

   Writes are counted by class (which part of the workspace the file is in) in a file that all processes map; the n-th of
   one class fails. With ENOSPC a part of it is written and every later write fails too, until the file says that
   space was freed; with EIO this one operation fails alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define CLASSES 16

struct state { /* the harness knows this layout */
    int64_t count[CLASSES];
    int64_t fail_class, fail_at, error, is_failing, is_hit;
    char path[256];
};

static struct state *state;
static const char *root;
static size_t root_length;
static char *classes[CLASSES];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("CHAOS_DISK_STATE"), *names = getenv("CHAOS_DISK_CLASSES");
    root = getenv("CHAOS_DISK_ROOT");
    if (!file || !root || !names) return;
    root_length = strlen(root);
    int handle = REAL(open)(file, O_RDWR | O_CLOEXEC);
    if (handle < 0) return;
    void *mapped = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    close(handle);
    if (mapped == MAP_FAILED) return;
    char *rest = strdup(names), *name;
    for (int i = 0; i < CLASSES && (name = strsep(&rest, ":")); i++) classes[i] = name;
    state = mapped;
}

static int class_of(const char *path) {
    if (strncmp(path, root, root_length) || path[root_length] != '/') return -1;
    for (int i = 0; i < CLASSES && classes[i]; i++)
        if (!strncmp(path + root_length + 1, classes[i], strlen(classes[i]))) return i;
    return -1;
}

static const char *absolute(const char *path, char *space) {
    char here[PATH_MAX];
    if (path[0] == '/' || !getcwd(here, sizeof here)) return path;
    snprintf(space, PATH_MAX, "%s/%s", here, path);
    return space;
}

static const char *path_of(int handle, char *space) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, space, PATH_MAX - 1);
    space[length < 0 ? 0 : length] = 0;
    return space;
}

/* 0: go on; 1: fail with errno set; 2: the write that fills the disk: a part of it goes through */
static int fails(const char *path, int takes_space) {
    if (!state) return 0;
    int found = class_of(path);
    if (found < 0) return 0;
    int64_t number = __atomic_add_fetch(&state->count[found], 1, __ATOMIC_SEQ_CST);
    int is_full = state->error == ENOSPC;
    if (is_full && !takes_space) return 0;
    if (state->is_failing && is_full) {
        errno = ENOSPC;
        return 1;
    }
    if (state->is_hit || found != state->fail_class || number < state->fail_at) return 0;
    state->is_hit = state->is_failing = 1;
    snprintf(state->path, sizeof state->path, "%s", path + root_length + 1);
    errno = (int)state->error;
    return is_full ? 2 : 1;
}

static int fails_at(int handle, int takes_space) {
    char space[PATH_MAX];
    return state ? fails(path_of(handle, space), takes_space) : 0;
}

static int fails_named(const char *path, int takes_space) {
    char space[PATH_MAX];
    return state ? fails(absolute(path, space), takes_space) : 0;
}

static int is_new(const char *path) {
    struct stat found;
    return stat(path, &found) != 0;
}

#define WRITES(type, name, parameters, arguments, size)                                                                      \
    type name parameters {                                                                                                   \
        int how = fails_at(handle, 1);                                                                                       \
        if (how == 1) return -1;                                                                                             \
        if (how == 2) {                                                                                                      \
            if (size < 2) return -1;                                                                                         \
            size = size > 64 ? 32 : size / 2;                                                                                                       \
        }                                                                                                                    \
        return REAL(name) arguments;                                                                                         \
    }

WRITES(ssize_t, write, (int handle, const void *from, size_t length), (handle, from, length), length)
WRITES(ssize_t, pwrite, (int handle, const void *from, size_t length, off_t at), (handle, from, length, at), length)
WRITES(ssize_t, pwrite64, (int handle, const void *from, size_t length, off64_t at), (handle, from, length, at), length)
WRITES(ssize_t, writev, (int handle, const struct iovec *parts, int count), (handle, parts, count), count)
WRITES(ssize_t, sendfile, (int handle, int source, off_t *at, size_t length), (handle, source, at, length), length)
WRITES(ssize_t, sendfile64, (int handle, int source, off64_t *at, size_t length), (handle, source, at, length), length)

ssize_t copy_file_range(int source, off64_t *from, int handle, off64_t *to, size_t length, unsigned flags) {
    int how = fails_at(handle, 1);
    if (how) return -1;
    return REAL(copy_file_range)(source, from, handle, to, length, flags);
}

int fsync(int handle) { return fails_at(handle, 0) ? -1 : REAL(fsync)(handle); }
int fdatasync(int handle) { return fails_at(handle, 0) ? -1 : REAL(fdatasync)(handle); }
int ftruncate(int handle, off_t length) { return fails_at(handle, 0) ? -1 : REAL(ftruncate)(handle, length); }
int rename(const char *from, const char *to) { return fails_named(to, 0) ? -1 : REAL(rename)(from, to); }
int renameat(int a, const char *from, int b, const char *to) { return fails_named(to, 0) ? -1 : REAL(renameat)(a, from, b, to); }
int mkdir(const char *path, mode_t mode) { return is_new(path) && fails_named(path, 1) ? -1 : REAL(mkdir)(path, mode); }

#define OPENS(name, parameters, arguments)                                                                                   \
    int name parameters {                                                                                                    \
        mode_t mode = 0;                                                                                                     \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                                                               \
            va_list rest;                                                                                                    \
            va_start(rest, flags);                                                                                           \
            mode = va_arg(rest, mode_t);                                                                                     \
            va_end(rest);                                                                                                    \
        }                                                                                                                    \
        if ((flags & O_CREAT) && state && is_new(path) && fails_named(path, 1)) return -1;                                   \
        return REAL(name) arguments;                                                                                         \
    }

OPENS(open, (const char *path, int flags, ...), (path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPENS(openat64, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
