// Who may do what with files of mixed owners and modes, as a program changes who it is: each line tells a call and its result. Run by root in a
// directory given. The same on every file system.
#include "say.h"
#include <sys/prctl.h>

enum { ONE = 1001, TWO, GROUP };
static const char *home;
static const char *names[] = {"r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "d0", "d1", "d2", "d3", "sticky/root", "sticky/one", "sticky/two", "acl", "sg/file", "x0", "x1", 0};

static int opens(const char *name, int flags) { int f = open(name, flags, 0666); if (f >= 0) close(f); return f < 0 ? -1 : 0; }
static int may(const char *name, int mode, int flags) { return S(faccessat2, AT_FDCWD, name, mode, flags); }
static void own(const char *name, int user, int group, int mode) { if (chown(name, user, group) || chmod(name, mode)) say("own %s: %s", name, strerrorname_np(errno)); }
static void owned(const char *name, int user, int group, int mode) { make(name, "content"); own(name, user, group, mode); }
static void set_list(const char *name, const char *which, int user, int for_user, int group, int for_group, int mask) {
    uint32_t a[] = {2, 0x00060001, -1, for_user << 16 | 2, user, 0x00040004, -1, for_group << 16 | 8, group, mask << 16 | 0x10, -1, 0x20, -1};
    R(setxattr(name, which, a, sizeof a, 0));
}
static void copy(const char *from, const char *to) {
    int in = open(from, O_RDONLY), out = open(to, O_CREAT | O_WRONLY, 0600);
    while (sendfile(out, in, 0, 1 << 20) > 0);
    close(in); close(out);
}
static void begin(void) {
    struct { int user, group, mode; } files[] = {{ONE, ONE, 0600}, {TWO, ONE, 0640}, {TWO, TWO, 0604}, {ONE, TWO, 0066}, {TWO, ONE, 0606}, {0, 0, 0644}, {TWO, ONE, 04755}, {TWO, ONE, 02755}};
    for (int i = 0; i < 8; i++) owned(names[i], files[i].user, files[i].group, files[i].mode);
    struct { int user, group, mode; } directories[] = {{ONE, ONE, 0700}, {TWO, ONE, 0750}, {TWO, TWO, 0711}, {TWO, TWO, 0744}};
    for (int i = 0; i < 4; i++) {
        char path[40]; snprintf(path, sizeof path, "%s/in", names[8 + i]);
        mkdir(names[8 + i], 0777); owned(path, TWO, TWO, 0644); own(names[8 + i], directories[i].user, directories[i].group, directories[i].mode);
    }
    mkdir("sticky", 0777); owned("sticky/root", 0, 0, 0644); owned("sticky/one", ONE, ONE, 0644); owned("sticky/two", TWO, TWO, 0644); own("sticky", TWO, TWO, 01777);
    owned("acl", TWO, TWO, 0640); set_list("acl", "system.posix_acl_access", ONE, 6, GROUP, 4, 5);
    mkdir("sg", 0777); owned("sg/file", ONE, GROUP, 0664); own("sg", TWO, GROUP, 02777);
    mkdir("da", 0777); own("da", TWO, TWO, 0777); set_list("da", "system.posix_acl_default", ONE, 7, GROUP, 5, 7);
    copy("/bin/true", "x0"); own("x0", TWO, TWO, 0711); copy("/bin/true", "x1"); own("x1", TWO, TWO, 0640);
    own(".", TWO, TWO, 0777);
}
static int runs(const char *path) {
    pid_t child = vfork();
    if (!child) { char *arguments[] = {(char *)path, 0}, *none[] = {0}; execve(path, arguments, none); _exit(100 + errno); }
    int s; waitpid(child, &s, 0); return WIFEXITED(s) ? WEXITSTATUS(s) : -2;
}
static void each(const char *n) {
    say("-- %s", n);
    R(opens(n, O_RDONLY)); R(opens(n, O_WRONLY)); R(opens(n, O_RDWR)); R(opens(n, O_WRONLY | O_TRUNC | O_APPEND)); R(opens(n, O_RDONLY | O_NOATIME)); R(opens(n, O_PATH)); R(opens(n, O_CREAT | O_RDWR)); R(opens(n, O_CREAT | O_RDONLY));
    for (int m = 0; m < 8; m++) { R(access(n, m)); R(may(n, m, AT_EACCESS)); R(may(n, m, AT_SYMLINK_NOFOLLOW)); }
    R(truncate(n, 7)); R(chmod(n, 0)); R(chown(n, ONE, -1)); R(chown(n, -1, GROUP)); R(chown(n, -1, ONE)); R(chown(n, -1, -1)); look(n);
    struct timespec set[2] = {{5, 0}, {5, 0}}, one[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}}; R(utimensat(AT_FDCWD, n, 0, 0)); R(utimensat(AT_FDCWD, n, set, 0)); R(utimensat(AT_FDCWD, n, one, 0));
    R(setxattr(n, "user.a", "1", 1, 0)); R(getxattr(n, "user.a", 0, 0)); R(removexattr(n, "user.a")); R(setxattr(n, "trusted.a", "1", 1, 0)); R(setxattr(n, "security.a", "1", 1, 0)); R(getxattr(n, "trusted.a", 0, 0)); R(getxattr(n, "system.posix_acl_access", 0, 0)); R(listxattr(n, 0, 0));
    R(link(n, "hard")); unlink("hard"); R(chdir(n)); chdir(home);
    int f = open(n, O_PATH); char path[40]; snprintf(path, sizeof path, "/proc/self/fd/%d", f);
    R(opens(path, O_RDONLY)); R(faccessat(f, "", R_OK, AT_EMPTY_PATH | AT_EACCESS)); R(may("", 4, AT_EMPTY_PATH)); R(linkat(AT_FDCWD, path, AT_FDCWD, "hard", AT_SYMLINK_FOLLOW)); unlink("hard"); R(fchmod(f, 0600)); R(fchownat(f, "", ONE, -1, AT_EMPTY_PATH)); close(f);
    f = open(n, O_RDONLY | O_NONBLOCK); uint64_t hint = 2; R(fcntl(f, F_SET_RW_HINT, &hint)); close(f);
}
static void probe(const char *who) {
    section = who;
    // So that /proc is one's own, too.
    prctl(PR_SET_DUMPABLE, 1);
    say("%d %d %d %d", getuid(), geteuid(), getgid(), getegid());
    for (int i = 0; names[i]; i++) each(names[i]);
    R(opens("d0/in", O_RDONLY)); R(opens("d1/in", O_RDONLY)); R(opens("d2/in", O_RDONLY)); R(opens("d3/in", O_RDONLY)); R(opens("d3", O_RDONLY | O_DIRECTORY)); R(opens("d2", O_RDONLY | O_DIRECTORY));
    R(mkdir("d0/n", 0777)); R(mkdir("d1/n", 0777)); R(mkdir("d2/n", 0777)); R(mkdir("d3/n", 0777)); R(rmdir("d0/n"));
    R(rename("sticky/root", "sticky/x")); R(rename("sticky/one", "sticky/x")); R(rename("sticky/x", "sticky/one")); R(rename("sticky/one", "sticky/two")); R(rename("sticky/two", "sticky/y")); R(renameat2(AT_FDCWD, "sticky/one", AT_FDCWD, "sticky/two", RENAME_EXCHANGE)); R(unlink("sticky/two"));
    R(opens("sticky/two", O_CREAT | O_RDWR)); R(opens("sticky/one", O_CREAT | O_RDWR)); R(opens("sticky/new", O_CREAT | O_RDWR)); look("sticky/new"); R(unlink("sticky/new"));
    R(mkfifo("sticky/f", 0666)); R(unlink("sticky/f")); R(symlink("one", "sticky/l")); R(opens("sticky/l", O_RDWR)); R(unlink("sticky/l"));
    R(mkdir("sg/d", 0777)); look("sg/d"); R(opens("sg/n", O_CREAT | O_RDWR)); look("sg/n"); int f = open("sg/s", O_CREAT | O_RDWR, 02775); close(f); look("sg/s"); R(chmod("sg/n", 02770)); look("sg/n"); R(chown("sg/n", -1, ONE)); look("sg/n"); R(mknod("sg/m", S_IFREG | 02777, 0)); look("sg/m"); R(mkdir("sg/dd", 02777)); look("sg/dd");
    R(unlink("sg/n")); R(unlink("sg/s")); R(unlink("sg/m")); R(rmdir("sg/d")); R(rmdir("sg/dd"));
    R(opens("da/n", O_CREAT | O_RDWR)); look("da/n"); R(mkdir("da/d", 0750)); look("da/d"); R(getxattr("da/d", "system.posix_acl_default", 0, 0)); R(unlink("da/n")); R(rmdir("da/d"));
    R(opens("mine", O_CREAT | O_RDWR)); look("mine"); R(chmod("mine", 06777)); look("mine"); f = open("mine", O_WRONLY); R(write(f, "x", 1)); close(f); look("mine"); R(chmod("mine", 06777)); R(truncate("mine", 0)); look("mine"); R(chown("mine", -1, getegid())); look("mine"); R(chmod("mine", 0)); R(opens("mine", O_RDONLY)); R(opens("mine", O_CREAT | O_EXCL)); R(unlink("mine"));
    R(opens(".", O_TMPFILE | O_RDWR)); R(mknod("device", S_IFCHR | 0666, makedev(1, 3))); unlink("device"); R(mknod("socket", S_IFSOCK | 0666, 0)); unlink("socket");
    R(runs("./x0")); R(runs("./x1"));
    f = open("d2", O_PATH | O_DIRECTORY); R(openat(f, "in", O_RDONLY) < 0 ? -1 : 0); R(openat(f, "new", O_CREAT | O_RDWR, 0600) < 0 ? -1 : 0); close(f); unlink("d2/new");
}

int main(int count, char **arguments) {
    if (count < 2 || chdir(home = arguments[1])) return 2;
    umask(0); section = "begin"; begin();
    probe("root");
    gid_t groups[] = {GROUP};
    R(setgroups(1, groups)); R(setegid(ONE)); R(seteuid(ONE)); probe("effective");
    R(seteuid(0)); R(setegid(0)); probe("root again");
    R(setfsgid(ONE)); R(setfsuid(ONE)); probe("file system's"); R(setfsuid(0)); R(setfsgid(0));
    R(setresgid(ONE, 0, 0)); R(setresuid(ONE, 0, 0)); probe("real"); R(setresuid(ONE, ONE, 0)); probe("saved"); R(setresuid(-1, 0, -1));
    R(setgroups(0, 0)); R(setresgid(TWO, TWO, TWO)); R(setresuid(TWO, TWO, TWO)); probe("another"); R(seteuid(0)); R(setuid(ONE));
    section = "done"; say("all");
    return 0;
}
