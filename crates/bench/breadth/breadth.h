/*
 * What a program can do with files, one operation a line of a table: `main.c` measures them, the tables are in the other files. Each
 * worker has a directory of its own and one that all share.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

/* What a worker has. */
struct context {
    char dir[200], sh[200]; /* its own directory, the shared one */
    int idx;                /* which of the workers it is */
    int fd, fd2, fd3;       /* closed behind it */
    char *buf;              /* 2 MiB */
    char *map;              /* taken away behind it */
    size_t maplen;
    uint64_t random;
    char p[300], q[300]; /* paths */
};

struct operation {
    const char *name;
    void (*setup)(struct context *);
    void (*call)(struct context *, long); /* with a running number */
    long series;                          /* so many calls, numbered from 0; 0: without end */
    void (*renew)(struct context *, long); /* before the first series with 0, behind each with how many there were; not measured */
};

extern const struct operation data_operations[], maps_operations[], names_operations[], attributes_operations[],
    descriptors_operations[];

#define CALL(name) static void name(struct context *c, long i)
#define CHECK(call) do { if ((long)(call) < 0) fail(#call); } while (0)

static inline void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(9);
}

static inline uint64_t rnd(struct context *c) {
    c->random ^= c->random << 13;
    c->random ^= c->random >> 7;
    return c->random ^= c->random << 17;
}

/* Paths: in the worker's directory and in the shared one, with a number, in `p` and in `q`. */
#define PATH(function, into, ...) \
    static inline char *function { snprintf(into, sizeof into, __VA_ARGS__); return into; }
PATH(P(struct context *c, const char *n), c->p, "%s/%s", c->dir, n)
PATH(S(struct context *c, const char *n), c->p, "%s/%s", c->sh, n)
PATH(PN(struct context *c, const char *n, long i), c->p, "%s/%s%ld", c->dir, n, i)
PATH(SN(struct context *c, const char *n, long i), c->p, "%s/%s-%d-%ld", c->sh, n, c->idx, i)
PATH(QN(struct context *c, const char *n, long i), c->q, "%s/%s%ld", c->dir, n, i)
PATH(QS(struct context *c, const char *n, long i), c->q, "%s/%s-%d-%ld", c->sh, n, c->idx, i)

/* Makes a file longer, with bytes. */
static inline void fillto(int fd, off_t length) {
    static char piece[1 << 20];
    struct stat now;
    CHECK(fstat(fd, &now));
    for (off_t at = now.st_size; at < length;) {
        size_t n = length - at > (off_t)sizeof piece ? sizeof piece : (size_t)(length - at);
        CHECK(pwrite(fd, piece, n, at));
        at += n;
    }
}

static inline int mk(const char *path, off_t length) {
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    CHECK(fd);
    fillto(fd, length);
    return fd;
}
