/* Opening, making, removing, renaming, listing. */
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

static void s_shthou(struct context *c) {
    char t[300];
    for (int i = 0; i<1000; i++) { snprintf(t, 300, "%s/thou", c->sh); mkdir(t, 0755); snprintf(t, 300, "%s/thou/file%d", c->sh, i); close(mk(t, 100)); }
    snprintf(t, 300, "%s/thou", c->sh);
    c->fd = open(t, O_RDONLY | O_DIRECTORY);
    CHECK(c->fd);
}

static void s_fq(struct context *c) {
    s_priv(c);
    strcpy(c->q, P(c, "f"));
}

static void s_shq(struct context *c) {
    s_shared(c);
    strcpy(c->q, S(c, "f"));
}

CALL(otrunc) {
    int f = open(c->q, O_RDWR | O_TRUNC);
    CHECK(f);
    CHECK(write(f, c->buf, 4096));
    close(f);
}

CALL(openclose) {
    int f = open(c->q, O_RDWR);
    CHECK(f);
    close(f);
}

CALL(openrnd) {
    int f = open(PN(c, "thou/file", rnd(c)%1000), O_RDONLY);
    CHECK(f);
    close(f);
}

CALL(openshrnd) {
    snprintf(c->p, 300, "%s/thou/file%d", c->sh, (int)(rnd(c)%1000));
    int f = open(c->p, O_RDONLY);
    CHECK(f);
    close(f);
}

CALL(openreadclose) {
    int f = open(c->q, O_RDONLY);
    CHECK(f);
    CHECK(read(f, c->buf, 4096));
    close(f);
}

CALL(openatdir) {
    int f = openat(c->fd, "file7", O_RDONLY);
    CHECK(f);
    close(f);
}

CALL(opendirclose) {
    int f = open(c->dir, O_RDONLY | O_DIRECTORY);
    CHECK(f);
    close(f);
}

CALL(openenoentin) {
    int f = open(P(c, "nonexistent"), O_RDONLY);
    if (f >= 0) fail("x");
}

CALL(readdir1000) {
    CHECK(lseek(c->fd, 0, SEEK_SET));
    while (1) { long r = syscall(SYS_getdents64, c->fd, c->buf, 32768); CHECK(r); if (!r) break; }
}

CALL(readdirsmall) {
    int f = open(c->dir, O_RDONLY | O_DIRECTORY);
    CHECK(f);
    while (1) { long r = syscall(SYS_getdents64, f, c->buf, 32768); CHECK(r); if (!r) break; }
    close(f);
}

CALL(create) {
    int f = open(PN(c, "c", i), O_RDWR | O_CREAT | O_EXCL, 0644);
    CHECK(f);
    close(f);
}

static void r_unl(struct context *c, long n) {
    for (long i = 0; i<n; i++) CHECK(unlink(PN(c, "c", i)));
}

CALL(createsh) {
    int f = open(SN(c, "c", i), O_RDWR | O_CREAT | O_EXCL, 0644);
    CHECK(f);
    close(f);
}

static void r_unlsh(struct context *c, long n) {
    for (long i = 0; i<n; i++) CHECK(unlink(SN(c, "c", i)));
}

CALL(c_unlink) {
    CHECK(unlink(PN(c, "u", i)));
}

static void r_mku(struct context *c, long n) {
    if (!n) n = 1000;
    for (long i = 0; i<n; i++) close(mk(PN(c, "u", i), 0));
}

CALL(unlinksh) {
    CHECK(unlink(SN(c, "u", i)));
}

static void r_mkush(struct context *c, long n) {
    if (!n) n = 1000;
    for (long i = 0; i<n; i++) close(mk(SN(c, "u", i), 0));
}

CALL(unlink16k) {
    CHECK(unlink(PN(c, "u", i)));
}

static void r_mku16(struct context *c, long n) {
    if (!n) n = 500;
    for (long i = 0; i<n; i++) close(mk(PN(c, "u", i), 16384));
}

CALL(create16k) {
    int f = open(PN(c, "c", i), O_RDWR | O_CREAT | O_EXCL, 0644);
    CHECK(f);
    CHECK(write(f, c->buf, 16384));
    close(f);
}

CALL(create100) {
    int f = open(PN(c, "c", i), O_RDWR | O_CREAT | O_EXCL, 0644);
    CHECK(f);
    CHECK(write(f, c->buf, 100));
    close(f);
}

CALL(tmpfile_) {
    int f = open(c->dir, O_RDWR | O_TMPFILE, 0600);
    CHECK(f);
    close(f);
}

CALL(renam) {
    CHECK(rename(PN(c, i&1?"b":"a", 0), QN(c, i&1?"a":"b", 0)));
}

static void s_rename(struct context *c) {
    close(mk(P(c, "a0"), 0));
}

static void r_even(struct context *c, long n) {
    if (n&1) CHECK(rename(PN(c, "b", 0), QN(c, "a", 0)));
}

CALL(renamesh) {
    CHECK(rename(SN(c, i&1?"b":"a", 0), QS(c, i&1?"a":"b", 0)));
}

static void s_renamesh(struct context *c) {
    close(mk(SN(c, "a", 0), 0));
}

static void r_evensh(struct context *c, long n) {
    if (n&1) CHECK(rename(SN(c, "b", 0), QS(c, "a", 0)));
}

CALL(renamex) {
    if (i&1) CHECK(rename(SN(c, "b", 0), QN(c, "a", 0))); else CHECK(rename(PN(c, "a", 0), QS(c, "b", 0)));
}

static void r_evenx(struct context *c, long n) {
    if (n&1) CHECK(rename(SN(c, "b", 0), QN(c, "a", 0)));
}

CALL(replace) {
    int f = open(PN(c, "new", 0), O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(f);
    CHECK(write(f, c->buf, 1000));
    close(f);
    CHECK(rename(c->p, QN(c, "old", 0)));
}

CALL(c_symlink) {
    CHECK(symlink("some/target", PN(c, "c", i)));
}

CALL(mkrm) {
    CHECK(mkdir(PN(c, "d", 0), 0755));
    CHECK(rmdir(c->p));
}

CALL(c_mkdir) {
    CHECK(mkdir(PN(c, "d", i), 0755));
}

static void r_rmd(struct context *c, long n) {
    for (long i = 0; i<n; i++) CHECK(rmdir(PN(c, "d", i)));
}

CALL(c_rmdir) {
    CHECK(rmdir(PN(c, "d", i)));
}

static void r_mkd(struct context *c, long n) {
    if (!n) n = 500;
    for (long i = 0; i<n; i++) CHECK(mkdir(PN(c, "d", i), 0755));
}

CALL(linkunl) {
    CHECK(link(c->q, P(c, "l2")));
    CHECK(unlink(c->p));
}

CALL(stdio) {
    FILE*f = fopen(c->q, "r");
    if (!f) fail("fopen");
    char l[200];
    for (int k = 0; k<20; k++) if (!fgets(l, 200, f)) break;
    fclose(f);
}

static void s_text(struct context *c) {
    int fd = open(P(c, "text"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int k = 0; k<100; k++) dprintf(fd, "this is a line of text %d\n", k);
    close(fd);
    strcpy(c->q, P(c, "text"));
}

const struct operation names_operations[] = {
    {"open O_TRUNC, write 4K", s_text, otrunc, 0, 0},
    {"open close private", s_fq, openclose, 0, 0},
    {"open close shared file", s_shq, openclose, 0, 0},
    {"open close random of 1000", s_thou, openrnd, 0, 0},
    {"open close shared random of 1000", s_shthou, openshrnd, 0, 0},
    {"open read close", s_fq, openreadclose, 0, 0},
    {"openat close", s_thou, openatdir, 0, 0},
    {"open close directory", s_dir, opendirclose, 0, 0},
    {"open ENOENT", s_dir, openenoentin, 0, 0},
    {"readdir 1000 private", s_thou, readdir1000, 0, 0},
    {"readdir 1000 shared", s_shthou, readdir1000, 0, 0},
    {"opendir readdir closedir small", s_thou, readdirsmall, 0, 0},
    {"create private", s_dir, create, 1000, r_unl},
    {"create shared dir", s_dir, createsh, 1000, r_unlsh},
    {"create 16K", s_dir, create16k, 500, r_unl},
    {"create 100 B", s_dir, create100, 1000, r_unl},
    {"unlink private", s_dir, c_unlink, 1000, r_mku},
    {"unlink shared", s_dir, unlinksh, 1000, r_mkush},
    {"unlink 16K", s_dir, unlink16k, 500, r_mku16},
    {"O_TMPFILE", s_dir, tmpfile_, 0, 0},
    {"rename private", s_rename, renam, 100000000, r_even},
    {"rename shared dir", s_renamesh, renamesh, 100000000, r_evensh},
    {"rename private to shared", s_rename, renamex, 100000000, r_evenx},
    {"write new, rename over", s_dir, replace, 0, 0},
    {"symlink", s_dir, c_symlink, 1000, r_unl},
    {"mkdir rmdir", s_dir, mkrm, 0, 0},
    {"mkdir", s_dir, c_mkdir, 500, r_rmd},
    {"rmdir", s_dir, c_rmdir, 500, r_mkd},
    {"link unlink", s_fq, linkunl, 0, 0},
    {"fopen 20 fgets fclose", s_text, stdio, 0, 0},
    {0},
};
