/* Descriptors and locks, and calls that are the host's. */
#include "breadth.h"

static void s_priv(struct context *c) {
    c->fd = mk(P(c, "f"), 16 << 20);
}

static void s_shared(struct context *c) {
    c->fd = mk(S(c, "f"), 16 << 20);
}

static void s_dir(struct context *c) {
    (void)c;
}

static void s_two(struct context *c) {
    s_priv(c);
    c->fd2 = open(P(c, "g"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(c->fd2);
}

static void s_null(struct context *c) {
    s_priv(c);
    c->fd2 = open("/dev/null", O_WRONLY);
    CHECK(c->fd2);
}

CALL(empty) {}

CALL(openenoent) {
    int f = open("/nonexistent", O_RDONLY);
    if (f >= 0) fail("x");
}

CALL(dupclose) {
    int f = dup(c->fd);
    CHECK(f);
    close(f);
}

CALL(dup2_) {
    int f = dup2(c->fd, c->fd2);
    CHECK(f);
}

CALL(fcntlgetfl) {
    CHECK(fcntl(c->fd, F_GETFL));
}

CALL(fcntlgetfd) {
    CHECK(fcntl(c->fd, F_GETFD));
}

CALL(fcntlsetfd) {
    CHECK(fcntl(c->fd, F_SETFD, FD_CLOEXEC));
}

CALL(fcntlsetfl) {
    CHECK(fcntl(c->fd, F_SETFL, i&1?O_APPEND:0));
}

static void lk(int fd, int cmd, int t, off_t at, off_t len) {
    struct flock l = {.l_type = t, .l_whence = SEEK_SET, .l_start = at, .l_len = len};
    CHECK(fcntl(fd, cmd, &l));
}

CALL(lockpriv) {
    lk(c->fd, F_SETLKW, F_WRLCK, 0, 100);
    lk(c->fd, F_SETLKW, F_UNLCK, 0, 100);
}

CALL(lockshr) {
    lk(c->fd, F_SETLKW, F_RDLCK, 0, 1);
    lk(c->fd, F_SETLKW, F_UNLCK, 0, 1);
}

CALL(lockranges) {
    lk(c->fd, F_SETLKW, F_WRLCK, 1000*c->idx, 10);
    lk(c->fd, F_SETLKW, F_UNLCK, 1000*c->idx, 10);
}

CALL(lockofd) {
    lk(c->fd, F_OFD_SETLKW, F_WRLCK, 0, 100);
    lk(c->fd, F_OFD_SETLKW, F_UNLCK, 0, 100);
}

CALL(getlk) {
    lk(c->fd, F_GETLK, F_WRLCK, 0, 100);
}

CALL(lockmany) {
    lk(c->fd, F_SETLKW, F_WRLCK, (i%64)*10, 5);
}

static void r_unlockall(struct context *c, long n) {
    lk(c->fd, F_SETLKW, F_UNLCK, 0, 0);
}

CALL(c_flock) {
    CHECK(flock(c->fd, LOCK_EX));
    CHECK(flock(c->fd, LOCK_UN));
}

CALL(c_flocksh) {
    CHECK(flock(c->fd, LOCK_SH));
    CHECK(flock(c->fd, LOCK_UN));
}

static void s_pipe(struct context *c) {
    s_priv(c);
    int p[2];
    CHECK(pipe(p));
    c->fd2 = p[0];
    c->fd3 = p[1];
}

CALL(pipewr) {
    CHECK(write(c->fd3, c->buf, 64));
    CHECK(read(c->fd2, c->buf, 64));
}

CALL(devnull) {
    CHECK(write(c->fd2, c->buf, 64));
}

CALL(poll_) {
    struct pollfd p = {c->fd, POLLIN, 0};
    CHECK(poll(&p, 1, 0));
}

CALL(ioctl_) {
    int v;
    if (syscall(SYS_ioctl, c->fd, 0x541B, &v)<0 && errno != ENOTTY) fail("ioctl");
}

CALL(isatty_) {
    if (isatty(c->fd)) fail("tty");
}

CALL(getpid_) {
    syscall(SYS_getppid);
}

CALL(hoststat) {
    struct stat s;
    CHECK(stat("/etc/passwd", &s));
}

CALL(hostopen) {
    int f = open("/etc/passwd", O_RDONLY);
    CHECK(f);
    close(f);
}

CALL(umask_) {
    umask(022);
}

const struct operation descriptors_operations[] = {
    {"empty loop", s_dir, empty, 0, 0},
    {"open ENOENT host", s_dir, openenoent, 0, 0},
    {"dup close", s_priv, dupclose, 0, 0},
    {"dup2", s_two, dup2_, 0, 0},
    {"fcntl GETFL", s_priv, fcntlgetfl, 0, 0},
    {"fcntl GETFD", s_priv, fcntlgetfd, 0, 0},
    {"fcntl SETFD", s_priv, fcntlsetfd, 0, 0},
    {"fcntl SETFL", s_priv, fcntlsetfl, 0, 0},
    {"fcntl lock unlock own file", s_priv, lockpriv, 0, 0},
    {"fcntl read lock shared file", s_shared, lockshr, 0, 0},
    {"fcntl own ranges shared file", s_shared, lockranges, 0, 0},
    {"OFD lock unlock", s_priv, lockofd, 0, 0},
    {"F_GETLK", s_priv, getlk, 0, 0},
    {"fcntl 64 locks held", s_priv, lockmany, 10000, r_unlockall},
    {"flock EX UN", s_priv, c_flock, 0, 0},
    {"flock SH UN shared file", s_shared, c_flocksh, 0, 0},
    {"poll", s_priv, poll_, 0, 0},
    {"ioctl FIONREAD", s_priv, ioctl_, 0, 0},
    {"isatty", s_priv, isatty_, 0, 0},
    {"getppid", s_dir, getpid_, 0, 0},
    {"host stat", s_dir, hoststat, 0, 0},
    {"host open close", s_dir, hostopen, 0, 0},
    {"umask", s_dir, umask_, 0, 0},
    {"pipe write read", s_pipe, pipewr, 0, 0},
    {"/dev/null write", s_null, devnull, 0, 0},
    {0},
};
