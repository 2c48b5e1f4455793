// What files look like, and who may do what, in user namespaces: made by unshare, clone, clone3 and setns, with maps written by the process
// itself, by its parent, or not at all. Run by root in a directory given. The same on every file system whose ids are those of outside.
#include "say.h"
#include <linux/sched.h>
#include <sys/prctl.h>

// A child runs `work`; what it says comes before what follows.
#define CHILD(...) do { pid_t c_ = fork(); if (!c_) { __VA_ARGS__; _exit(0); } int s_; waitpid(c_, &s_, 0); if (s_) say("child %x", s_); } while (0)

static void put(pid_t process, const char *name, const char *text) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", process, name);
    int file = open(path, O_WRONLY);
    if (write(file, text, strlen(text)) < 0) say("%s: %s", name, strerrorname_np(errno));
    close(file);
}
static void map(pid_t process, const char *users, const char *groups, int deny) {
    if (deny) put(process, "setgroups", "deny");
    if (users) put(process, "uid_map", users);
    if (groups) put(process, "gid_map", groups);
}
// A child of who is another than who has the volume open may not join it: a known limit of `gannet run`.
static int may_fork = 1;
static void become(int user, int group) { may_fork = 0; setgroups(0, 0); if (setresgid(group, group, group) || setresuid(user, user, user)) say("become: %s", strerrorname_np(errno)); }
static void owner(const char *name) { struct stat s; struct statx x; if (lstat(name, &s) || statx(AT_FDCWD, name, 0, STATX_ALL, &x)) say("  %s: %s", name, strerrorname_np(errno)); else say("  %s is %u:%u %u:%u %o", name, s.st_uid, s.st_gid, x.stx_uid, x.stx_gid, s.st_mode & 07777); }
static int opens(const char *name, int flags) { int f = open(name, flags, 0640); if (f >= 0) close(f); return f < 0 ? -1 : 0; }
static void list(const char *name, const char *which) {
    unsigned char b[256]; long n = getxattr(name, which, b, sizeof b);
    if (n < 0) { say("  list of %s: %s", name, strerrorname_np(errno)); return; }
    for (long i = 4; i < n; i += 8) say("  list of %s: %d %d %d", name, b[i], b[i + 2], *(int *)(b + i + 4));
}
static int set_list(const char *name, const char *which, int user, int group) {
    uint32_t a[] = {2, 0x00060001, -1, 0x00070002, user, 0x00040004, -1, 0x00070008, group, 0x00070010, -1, 0x00040020, -1};
    return setxattr(name, which, a, sizeof a, 0);
}
static const char *files[] = {"root", "root-rw", "user", "group", "mapped", "mapped-0", "mapped-user", "mapped-group", "listed", "directory", "sticky", "sticky/of-root", "sticky/of-user", "closed", 0};
static void begin(void) {
    umask(0);
    make("root", "r"); chmod("root", 0600);
    make("root-rw", "r"); chmod("root-rw", 0666);
    make("user", "u"); chown("user", 1234, 1234); chmod("user", 06750);
    make("group", "g"); chown("group", 0, 1235); chmod("group", 0060);
    make("mapped", "m"); chown("mapped", 100005, 100005); chmod("mapped", 0);
    make("mapped-0", "m"); chown("mapped-0", 100000, 100000); chmod("mapped-0", 0600);
    make("mapped-user", "m"); chown("mapped-user", 100005, 5); chmod("mapped-user", 0);
    make("mapped-group", "m"); chown("mapped-group", 5, 100005); chmod("mapped-group", 0);
    make("listed", "l"); chown("listed", 1234, 1234); R(set_list("listed", "system.posix_acl_access", 100007, 1235));
    mkdir("directory", 0777); chmod("directory", 02777); chown("directory", 0, 1235); chmod("directory", 02777);
    mkdir("sticky", 01777); make("sticky/of-root", ""); make("sticky/of-user", ""); chown("sticky/of-user", 1234, 1234);
    mkdir("closed", 0700); chown("closed", 100005, 100005); make("closed/in", "in"); chown("closed/in", 100005, 100005);
    R(setxattr("user", "trusted.t", "1", 1, 0));
}
// What this process is told, and what it may. Changes nothing that lasts.
static void look_around(void) {
    say("ids %d %d", getuid(), getgid());
    for (int i = 0; files[i]; i++) { owner(files[i]); if (strncmp(files[i], "sticky/", 7)) { say("  %s", files[i]); result("   reads", opens(files[i], O_RDONLY)); result("   access", access(files[i], R_OK)); result("   effective", faccessat(AT_FDCWD, files[i], W_OK, AT_EACCESS)); } }
    list("listed", "system.posix_acl_access");
    R(opens("closed/in", O_RDONLY));
    R(opens("root", O_RDWR)); R(opens("group", O_RDWR)); R(opens("mapped", O_RDWR)); R(opens("mapped-user", O_RDWR));
    R(opens("user", O_RDONLY | O_NOATIME)); R(opens("root-rw", O_RDONLY | O_NOATIME));
    char b[8]; R(getxattr("user", "trusted.t", b, 8)); R(setxattr("user", "trusted.t", "1", 1, 0)); R(setxattr("root-rw", "user.a", "1", 1, 0)); R(setxattr("mapped", "security.s", "1", 1, 0));
    R(listxattr("user", b, 0));
    int f = open("mapped-0", O_RDONLY), flags = FS_IMMUTABLE_FL; if (f >= 0) { R(ioctl(f, FS_IOC_SETFLAGS, &flags)); flags = 0; ioctl(f, FS_IOC_SETFLAGS, &flags); close(f); }
    R(mknod("directory/device", S_IFCHR | 0600, makedev(1, 3)));
}
// What it may change; what is changed is set right again by root afterwards.
static void change(void) {
    R(opens("directory/new", O_CREAT | O_EXCL | O_RDWR)); owner("directory/new");
    R(mkdir("directory/sub", 0777)); owner("directory/sub");
    R(symlink("x", "directory/link")); owner("directory/link");
    R(chmod("directory/new", 02770)); owner("directory/new");
    R(chown("directory/new", 0, 0)); R(chown("directory/new", 3, -1)); R(chown("directory/new", -1, 4)); R(chown("directory/new", 70000, -1)); R(lchown("directory/link", 0, -1)); owner("directory/new"); owner("directory/link");
    R(chown("user", 0, 0)); R(chown("user", -1, -1)); R(chown("mapped", 0, 0)); owner("mapped"); R(chown("mapped-user", 7, -1)); R(chown("root", 0, 0)); R(chown("mapped", 5, 5));
    R(chmod("root", 0600)); R(chmod("user", 06750)); owner("user"); R(chmod("mapped", 0)); R(chmod("mapped-user", 02000)); owner("mapped-user"); R(chmod("mapped-user", 0)); R(chmod("mapped-group", 0));
    R(set_list("listed", "system.posix_acl_access", 7, 7)); list("listed", "system.posix_acl_access");
    R(set_list("directory/new", "system.posix_acl_access", 0, 0)); list("directory/new", "system.posix_acl_access");
    R(set_list("directory/new", "system.posix_acl_access", 70000, 0)); R(set_list("directory/sub", "system.posix_acl_default", 0, 0)); list("directory/sub", "system.posix_acl_default");
    R(unlink("sticky/of-root")); R(unlink("sticky/of-user")); R(utimensat(AT_FDCWD, "root-rw", 0, 0)); struct timespec t[2] = {{5, 0}, {5, 0}}; R(utimensat(AT_FDCWD, "root-rw", t, 0)); R(utimensat(AT_FDCWD, "mapped", t, 0)); R(utimensat(AT_FDCWD, "mapped-user", t, 0));
    R(link("root", "directory/hard")); R(link("mapped", "directory/hard")); R(truncate("root-rw", 1)); R(truncate("mapped", 1));
    if (may_fork) CHILD(say("in a child"); owner("directory/new"); R(opens("root", O_RDONLY)); R(opens("directory/new", O_RDWR)));
}
static void set_right(void) {
    static const char *made[] = {"directory/new", "directory/link", "directory/hard", 0};
    for (int i = 0; made[i]; i++) { owner(made[i]); list(made[i], "system.posix_acl_access"); unlink(made[i]); }
    owner("directory/sub"); list("directory/sub", "system.posix_acl_default"); rmdir("directory/sub");
    for (int i = 0; files[i]; i++) owner(files[i]);
    list("listed", "system.posix_acl_access");
    unlink("closed/in"); unlink("directory/nobodys");
    for (int i = 0; files[i]; i++) unlink(files[i]);
    rmdir("sticky"); rmdir("closed"); rmdir("directory");
    begin();
}
// Runs `work` in a child in a namespace of its own, whose maps this process writes.
static void by_parent(const char *how, int user, const char *users, const char *groups, void (*work)(void)) {
    section = how;
    int go[2], ready[2]; pipe(go); pipe(ready);
    pid_t middle = fork();
    if (!middle) {
        if (user) become(user, user);
        prctl(PR_SET_DUMPABLE, 1);
        if (unshare(CLONE_NEWUSER)) { say("unshare: %s", strerrorname_np(errno)); write(ready[1], "x", 1); _exit(0); }
        owner("user"); R(opens("root", O_RDONLY)); R(opens("user", O_RDWR));
        write(ready[1], "x", 1); char c; read(go[0], &c, 1);
        work(); _exit(0);
    }
    char c; read(ready[0], &c, 1); map(middle, users, groups, 0); write(go[1], "x", 1);
    int s; waitpid(middle, &s, 0); if (s) say("child %x", s);
    close(go[0]); close(go[1]); close(ready[0]); close(ready[1]);
    set_right();
}

static void both(void) { look_around(); change(); }
static void as_its_root(void) { may_fork = 0; R(setresgid(0, 0, 0)); R(setresuid(0, 0, 0)); R(setgroups(0, 0)); both(); }
static void as_its_user(void) { R(setgroups(0, 0)); R(setresgid(5, 5, 5)); R(setresuid(5, 5, 5)); may_fork = 0; both(); }
static void as_its_nobody(void) { gid_t g[] = {5, 65534}; R(setgroups(2, g)); R(setresgid(65534, 65534, 65534)); R(setresuid(65534, 65534, 65534)); R(opens("directory/nobodys", O_CREAT | O_RDWR)); owner("directory/nobodys"); R(opens("user", O_RDONLY)); }
// What does not change who it is: a vfork child, a call that fails without saying so.
static void unchanged(void) {
    pid_t child = vfork();
    if (!child) { S(setgroups, 0, 0); S(setresgid, 65534, 65534, 65534); S(setresuid, 65534, 65534, 65534); _exit(0); }
    int s; waitpid(child, &s, 0); owner("root"); R(opens("root", O_RDWR)); R(opens("directory/nobodys", O_CREAT | O_RDWR)); owner("directory/nobodys");
    S(setfsuid, 70000); S(setfsgid, 70000); R(opens("root", O_RDWR)); R(chmod("root", 0600));
}
// What a vfork child has set is set in what it forks, whatever becomes of the children of that.
static void forked_by_child(void) {
    pid_t child = vfork();
    if (!child) {
        S(setresgid, 65534, 65534, 65534);
        if (!S(fork)) {
            R(opens("first", O_CREAT | O_RDWR));
            if (!(child = vfork())) { S(setresgid, 5, 5, 5); _exit(0); }
            int s; waitpid(child, &s, 0); R(opens("second", O_CREAT | O_RDWR)); _exit(0);
        }
        int s; wait(&s); _exit(0);
    }
    int s; waitpid(child, &s, 0); R(opens("third", O_CREAT | O_RDWR));
}
// A child is made without descriptors, for which more than one attempt may be needed; afterwards the kernel's files are still one's own.
static const char *host = "/dev/shm/gannet-users-host";
static void without_room(void) {
    R(opens("root", O_RDONLY));
    struct rlimit few = {64, 64}; setrlimit(RLIMIT_NOFILE, &few);
    int first = dup(1), next; while ((next = dup(1)) >= 0);
    CHILD(say("in a child"));
    for (next = first; next < 64; next++) close(next);
    R(opens(host, O_RDWR)); R(opens("root", O_RDONLY));
}
static void own_map(const char *how, int user, const char *users, const char *groups, void (*work)(void)) {
    section = how;
    CHILD(if (user) become(user, user); if (unshare(CLONE_NEWUSER)) say("unshare: %s", strerrorname_np(errno)); prctl(PR_SET_DUMPABLE, 1); map(getpid(), users, groups, 1); work());
    set_right();
}
static void by_exec(void) { execlp("sh", "sh", "-c", "stat -c '%n %u:%g' user root mapped; cat user; cat root 2>&1; echo x >directory/new; stat -c %u:%g directory/new; chown 0:0 directory/new 2>&1; unshare --user stat -c '%n %u:%g' user directory/new", NULL); _exit(9); }
static int stays[2], is_there[2];
static int stay(void *unused) { (void)unused; owner("user"); write(is_there[1], "x", 1); char c; read(stays[0], &c, 1); return 0; }

// What is refused where one memory would be in two namespaces, and where it is not known whose ids are told.
static void refused(void) {
    section = "refused";
    // Without descriptors nobody can read the maps: what is made then is nobody's, and so is not made.
    chmod(".", 0777);
    CHILD(R(opens("root", O_RDONLY)); struct rlimit few = {64, 64}; setrlimit(RLIMIT_NOFILE, &few); if (unshare(CLONE_NEWUSER)) say("unshare: %s", strerrorname_np(errno));
        int last = 1, next; while ((next = dup(1)) >= 0) last = next;
        R(mkdir("full", 0777)); close(last); R(mkdir("full", 0777)); owner("full"));
    rmdir("full");
    pid_t child = vfork();
    if (!child) { R(unshare(CLONE_NEWUSER)); _exit(0); }
    int status; waitpid(child, &status, 0);
    struct clone_args beside = {.flags = CLONE_NEWUSER | CLONE_VM | CLONE_VFORK, .exit_signal = SIGCHLD};
    R(S(clone3, &beside, sizeof beside));
    R(S(clone, CLONE_NEWUSER | CLONE_VM | SIGCHLD, 0, 0, 0, 0));
    pipe(stays); pipe(is_there);
    child = S(clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (!child) {
        map(getpid(), "0 0 1", "0 0 1", 1);
        if (unshare(CLONE_NEWUSER)) say("unshare: %s", strerrorname_np(errno));
        write(is_there[1], "x", 1); char c; read(stays[0], &c, 1); _exit(0);
    }
    char c; read(is_there[0], &c, 1);
    char path[64]; snprintf(path, sizeof path, "/proc/%d/ns/user", child);
    CHILD(int f = open(path, O_RDONLY); R(setns(f, CLONE_NEWUSER)); f = S(pidfd_open, child, 0); R(setns(f, CLONE_NEWUSER)); R(opens("root", O_RDONLY)));
    write(stays[1], "x", 1); waitpid(child, &status, 0);
    R(opens("root", O_RDONLY));
}

int main(int count, char **arguments) {
    if (count < 2 || chdir(arguments[1])) return 2;
    if (count > 2) { make("root", "r"); refused(); return 0; }
    chmod(".", 0777);
    section = "begin"; begin();
    section = "outside"; look_around();
    by_parent("user, no map", 1234, 0, 0, both);
    by_parent("user, map of root", 1234, "0 1234 1", "0 1234 1", both);
    by_parent("user, map with others", 1234, "0 1234 1\n1 100001 60000", "0 1234 1\n1 100001 60000", both);
    by_parent("user, map without them", 1234, "0 100000 65536", "0 100000 65536", both);
    by_parent("user, only users", 1234, "0 1234 1", 0, both);
    by_parent("user, only groups", 1234, 0, "0 1234 1", both);
    by_parent("root, no map", 0, 0, 0, both);
    by_parent("root, container", 0, "0 100000 65536", "0 100000 65536", as_its_root);
    by_parent("root, its user", 0, "0 100000 65536", "0 100000 65536", as_its_user);
    by_parent("root, nobody", 0, "0 100000 65536", "0 100000 65536", as_its_nobody);
    by_parent("root, unchanged", 0, "0 100000 65536", "0 100000 65536", unchanged);
    by_parent("root, forked by a child", 0, "0 100000 65536", "0 100000 65536", forked_by_child);
    owner("first"); owner("second"); owner("third"); unlink("first"); unlink("second"); unlink("third");
    by_parent("root, unchanged, few", 0, "0 100000 10", "0 100000 10", unchanged);
    int kept = open(host, O_CREAT | O_RDWR, 0600); close(kept); chmod(host, 0600);
    by_parent("root, no room", 0, "0 100000 65536", "0 100000 65536", without_room);
    unlink(host);
    by_parent("root, all", 0, "0 0 4294967295", "0 0 4294967295", both);
    own_map("own map, user", 1234, "0 1234 1", "0 1234 1", both);
    own_map("own map, other number", 1234, "77 1234 1", "78 1234 1", both);
    own_map("own map, root", 0, "0 0 1", "0 0 1", both);
    own_map("exec, root", 0, "0 0 1", "0 0 1", by_exec);
    own_map("exec, no map", 0, 0, 0, by_exec);

    section = "clone";
    long child = S(clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (!child) { prctl(PR_SET_DUMPABLE, 1); map(getpid(), "0 0 1", "0 0 1", 1); both(); _exit(0); }
    int status; waitpid(child, &status, 0); result("ended", status); set_right();
    struct clone_args three = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    child = S(clone3, &three, sizeof three);
    if (!child) {
        owner("user"); map(getpid(), "5 0 1", "6 0 1", 1); owner("root");
        // One below the other.
        child = S(clone3, &three, sizeof three);
        if (!child) { owner("root"); map(getpid(), "9 5 1", "9 6 1", 1); both(); _exit(0); }
        waitpid(child, &status, 0); result("ended", status); owner("directory/new"); _exit(0);
    }
    waitpid(child, &status, 0); result("ended", status); set_right();

    section = "setns"; pipe(stays); pipe(is_there);
    child = S(clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (!child) _exit(stay(0));
    char c; read(is_there[0], &c, 1); map(child, "0 0 1\n1 100001 1000", "0 0 1\n1 100001 1000", 0);
    char path[64]; snprintf(path, sizeof path, "/proc/%ld/ns/user", child);
    CHILD(int f = open(path, O_RDONLY); R(setns(f, 0)); both(); R(setresuid(5, 5, 5)); owner("user"); R(opens("mapped", O_RDONLY)));
    write(stays[1], "x", 1); waitpid(child, &status, 0); result("ended", status); set_right();
    CHILD(int f = open("/proc/self/ns/user", O_RDONLY); R(setns(f, 0)); R(setns(f, CLONE_NEWNET)); R(setns(99, CLONE_NEWUSER)); R(setns(0, CLONE_NEWUSER)); owner("user"));
    section = "done"; say("all");
    return 0;
}
