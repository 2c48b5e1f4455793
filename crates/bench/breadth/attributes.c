/* Attributes, extended attributes, working directories. */
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

static void s_thou(struct context *c) {
    char t[300];
    snprintf(t, 300, "%s/thou", c->dir);
    if (mkdir(t, 0755) == 0) for (int i = 0; i<1000; i++) { snprintf(t, 300, "%s/thou/file%d", c->dir, i); close(mk(t, 100)); }
    snprintf(t, 300, "%s/thou", c->dir);
    c->fd = open(t, O_RDONLY | O_DIRECTORY);
    CHECK(c->fd);
}

static void s_link(struct context *c) {
    unlink(P(c, "ln"));
    CHECK(symlink("target/of/link", c->p));
    strcpy(c->q, c->p);
}

static void s_xattr(struct context *c) {
    s_priv(c);
    CHECK(setxattr(P(c, "f"), "user.name", "valuevalue", 10, 0));
    strcpy(c->q, c->p);
}

static void s_fq(struct context *c) {
    s_priv(c);
    strcpy(c->q, P(c, "f"));
}

static void s_shq(struct context *c) {
    s_shared(c);
    strcpy(c->q, S(c, "f"));
}

CALL(c_fstat) {
    struct stat s;
    CHECK(fstat(c->fd, &s));
}

CALL(c_stat) {
    struct stat s;
    CHECK(stat(c->q, &s));
}

CALL(c_statx) {
    struct statx s;
    CHECK(statx(AT_FDCWD, c->q, 0, STATX_ALL, &s));
}

CALL(c_lstatat) {
    struct stat s;
    CHECK(fstatat(c->fd, "file7", &s, AT_SYMLINK_NOFOLLOW));
}

CALL(statrnd) {
    struct stat s;
    CHECK(stat(PN(c, "thou/file", rnd(c)%1000), &s));
}

CALL(c_access) {
    CHECK(access(c->q, R_OK));
}

CALL(c_readlink) {
    CHECK(readlink(c->q, c->buf, 1000));
}

CALL(c_getx) {
    CHECK(getxattr(c->q, "user.name", c->buf, 100));
}

CALL(c_fgetx) {
    CHECK(fgetxattr(c->fd, "user.name", c->buf, 100));
}

CALL(c_getxno) {
    if (getxattr(c->q, "user.none", c->buf, 100) >= 0) fail("x");
}

CALL(c_listx) {
    CHECK(listxattr(c->q, c->buf, 100));
}

CALL(c_setx) {
    CHECK(setxattr(c->q, "user.name", "valuevalue", 10, 0));
}

CALL(c_setx1) {
    CHECK(setxattr(c->q, i&1?"user.t2":"user.t1", c->buf, 200, 0));
}

CALL(c_setrmx) {
    CHECK(setxattr(c->q, "user.tmp", "valuevalue", 10, 0));
    CHECK(removexattr(c->q, "user.tmp"));
}

CALL(c_statfs) {
    struct statfs s;
    CHECK(statfs(c->dir, &s));
}

CALL(c_fstatfs) {
    struct statfs s;
    CHECK(fstatfs(c->fd, &s));
}

CALL(c_chmod) {
    CHECK(chmod(c->q, i&1?0644:0600));
}

CALL(c_fchmod) {
    CHECK(fchmod(c->fd, i&1?0644:0600));
}

CALL(c_chown) {
    CHECK(chown(c->q, i&1, 0));
}

CALL(c_utimens) {
    CHECK(utimensat(AT_FDCWD, c->q, NULL, 0));
}

CALL(c_futimens) {
    struct timespec t[2] = {{i, 5}, {i, 7}};
    CHECK(futimens(c->fd, t));
}

CALL(getcwd_) {
    char b[4096];
    if (!getcwd(b, 4096)) fail("cwd");
}

CALL(chdir_) {
    CHECK(chdir(c->dir));
}

CALL(fchdir_) {
    CHECK(fchdir(c->fd));
}

CALL(realpath_) {
    char b[PATH_MAX];
    if (!realpath(c->q, b)) fail("realpath");
}

CALL(statrel) {
    struct stat s;
    CHECK(stat("f", &s));
}

static void s_cwd(struct context *c) {
    s_fq(c);
    CHECK(chdir(c->dir));
}

const struct operation attributes_operations[] = {
    {"fstat", s_priv, c_fstat, 0, 0},
    {"fstat shared", s_shared, c_fstat, 0, 0},
    {"stat", s_fq, c_stat, 0, 0},
    {"stat shared", s_shq, c_stat, 0, 0},
    {"statx", s_fq, c_statx, 0, 0},
    {"fstatat", s_thou, c_lstatat, 0, 0},
    {"stat random of 1000", s_thou, statrnd, 0, 0},
    {"stat relative", s_cwd, statrel, 0, 0},
    {"access", s_fq, c_access, 0, 0},
    {"readlink", s_link, c_readlink, 0, 0},
    {"getxattr", s_xattr, c_getx, 0, 0},
    {"fgetxattr", s_xattr, c_fgetx, 0, 0},
    {"getxattr ENODATA", s_fq, c_getxno, 0, 0},
    {"listxattr", s_xattr, c_listx, 0, 0},
    {"setxattr", s_xattr, c_setx, 0, 0},
    {"setxattr 200 B", s_xattr, c_setx1, 0, 0},
    {"setxattr removexattr", s_xattr, c_setrmx, 0, 0},
    {"statfs", s_dir, c_statfs, 0, 0},
    {"fstatfs", s_priv, c_fstatfs, 0, 0},
    {"chmod", s_fq, c_chmod, 0, 0},
    {"fchmod", s_priv, c_fchmod, 0, 0},
    {"chown", s_fq, c_chown, 0, 0},
    {"utimensat now", s_fq, c_utimens, 0, 0},
    {"futimens", s_priv, c_futimens, 0, 0},
    {"getcwd", s_cwd, getcwd_, 0, 0},
    {"chdir", s_dir, chdir_, 0, 0},
    {"fchdir", s_thou, fchdir_, 0, 0},
    {"realpath", s_fq, realpath_, 0, 0},
    {0},
};
