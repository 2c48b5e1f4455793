// What the kernel's calls do, told line by line, to be compared between two file systems: name, result or error, effect.
//   conform DIRECTORY      an empty directory, which becomes the working directory
// Lines must not depend on inode numbers, times of day, or what else the machine does.
#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <grp.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#define BAD ((void *)8)
static const char *section = "";
static char long_name[300], long_path[5000];

static void say(const char *form, ...) {
    char text[4096];
    va_list list;
    va_start(list, form);
    int length = snprintf(text, sizeof text, "%s: ", section);
    length += vsnprintf(text + length, sizeof text - length - 1, form, list);
    text[length++] = '\n';
    syscall(SYS_write, 1, text, length);
}
static void result(const char *what, long value) {
    if (value == -1) say("%s = %s", what, strerrorname_np(errno) ?: "?");
    else say("%s = %ld", what, value);
}
// The result, and its class only where the value is of no interest.
#define R(...) result(#__VA_ARGS__, (errno = 0, (long)(__VA_ARGS__)))
#define OK(...) do { errno = 0; long r_ = (long)(__VA_ARGS__); if (r_ == -1) result(#__VA_ARGS__, r_); else say("%s ok", #__VA_ARGS__); } while (0)
#define S(name, ...) syscall(SYS_##name, ##__VA_ARGS__)

static void make(const char *name, const char *content) {
    int file = open(name, O_CREAT | O_TRUNC | O_RDWR, 0644);
    if (file < 0) { say("cannot make %s: %s", name, strerrorname_np(errno)); return; }
    if (write(file, content, strlen(content)) != (ssize_t)strlen(content)) say("cannot fill %s", name);
    close(file);
}
static void show(const char *name) {
    char text[200] = "";
    int file = open(name, O_RDONLY);
    long length = file < 0 ? -1 : read(file, text, 150);
    struct stat status;
    if (file < 0) say("  %s: %s", name, strerrorname_np(errno));
    else {
        fstat(file, &status);
        for (int i = 0; i < length; i++) if (text[i] < 32) text[i] = '_';
        say("  %s: %ld bytes '%s'", name, (long)status.st_size, length > 0 ? text : "");
    }
    if (file >= 0) close(file);
}
static void look(const char *name) {
    struct stat s;
    if (lstat(name, &s)) say("  %s: %s", name, strerrorname_np(errno));
    else say("  %s: mode %o, %ld links, %d:%d, size %ld", name, s.st_mode, S_ISDIR(s.st_mode) ? 0 : (long)s.st_nlink, s.st_uid, s.st_gid, S_ISDIR(s.st_mode) ? 0 : (long)s.st_size);
}

static void kinds(void) {
    make("file", "content");
    mkdir("dir", 0755);
    make("dir/inner", "in");
    symlink("file", "link");
    symlink("dir", "dirlink");
    symlink("none", "dangling");
    symlink("loop2", "loop1");
    symlink("loop1", "loop2");
    mkfifo("fifo", 0600);
    mknod("socket", S_IFSOCK | 0600, 0);
    make("noperm", "x");
    chmod("noperm", 0);
    link("file", "hard");
}
static const char *names[] = {"file", "dir", "link", "dirlink", "dangling", "loop1", "fifo", "socket", "noperm", "none", "file/", "dir/", "link/", "dirlink/", "dangling/", "none/",
    "file/x", "dir/inner", "dir/none", "none/x", "dir/../file", "dir/./inner", "link/x", "loop1/x", ".", "..", "", "dir/.", "dir/..", "./file", "dir//inner", 0};

static void opening(void) {
    section = "open";
    kinds();
    static const struct { int flags; const char *name; } flags[] = {{O_RDONLY, "R"}, {O_WRONLY | O_NONBLOCK, "W"}, {O_RDWR | O_NONBLOCK, "RW"}, {O_RDONLY | O_DIRECTORY, "R DIR"}, {O_RDONLY | O_NOFOLLOW | O_NONBLOCK, "R NOFOLLOW"},
        {O_PATH, "PATH"}, {O_PATH | O_NOFOLLOW, "PATH NOFOLLOW"}, {O_PATH | O_DIRECTORY, "PATH DIR"}, {O_RDWR | O_CREAT | O_NONBLOCK, "RW CREAT"}, {O_RDWR | O_CREAT | O_EXCL, "RW CREAT EXCL"}, {O_WRONLY | O_TRUNC | O_NONBLOCK, "W TRUNC"},
        {O_RDONLY | O_CREAT | O_NONBLOCK, "R CREAT"}, {O_RDONLY | O_CREAT | O_DIRECTORY, "R CREAT DIR"}, {O_RDWR | O_DIRECTORY, "RW DIR"}, {O_RDWR | O_TMPFILE, "TMPFILE RW"}, {O_RDONLY | O_TMPFILE, "TMPFILE R"}, {O_RDONLY | O_NONBLOCK | O_DIRECT, "R DIRECT"},
        {3 | O_NONBLOCK, "3"}, {O_RDONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK, "R CREAT NOFOLLOW"}, {O_RDONLY | O_NOATIME | O_NONBLOCK, "R NOATIME"}, {O_RDONLY | O_SYNC | O_NONBLOCK, "R SYNC"}, {O_WRONLY | O_APPEND | O_NONBLOCK, "W APPEND"}};
    for (unsigned f = 0; f < sizeof flags / sizeof *flags; f++)
        for (int n = 0; names[n]; n++) {
            if (!strncmp(names[n], "fifo", 4) && (flags[f].flags & (O_NONBLOCK | O_PATH | O_DIRECTORY)) == 0) continue;
            errno = 0;
            int file = open(names[n], flags[f].flags, 0640);
            int status = file < 0 ? -1 : fcntl(file, F_GETFL);
            say("%s %s = %s, flags %o", flags[f].name, names[n], file < 0 ? strerrorname_np(errno) : "ok", status == -1 ? 0 : status);
            if (file >= 0) close(file);
            // What was made goes again; what was cut is filled.
            if (flags[f].flags & O_CREAT) { unlink("none"); unlink("dir/none"); }
            if (flags[f].flags & O_TRUNC) { make("file", "content"); make("dir/inner", "in"); }
        }
    R(S(open, BAD, 0)); R(S(openat, AT_FDCWD, BAD, 0)); R(S(open, 0, 0)); R(S(creat, BAD, 0));
    R(open(long_name, O_RDONLY)); R(open(long_path, O_RDONLY)); R(open(long_name, O_CREAT | O_RDWR, 0600));
    R(S(openat, 999, "file", 0)); R(S(openat, -1, "file", 0)); int plain = open("file", O_RDONLY); R(S(openat, plain, "x", 0)); R(S(openat, plain, "", 0)); close(plain);
    struct open_how how = {.flags = O_RDONLY};
    R(S(openat2, AT_FDCWD, "file", &how, 8)); R(S(openat2, AT_FDCWD, "file", BAD, sizeof how)); R(S(openat2, AT_FDCWD, BAD, &how, sizeof how));
    static const struct { long resolve; const char *name; } rules[] = {{RESOLVE_NO_SYMLINKS, "NO_SYMLINKS"}, {RESOLVE_BENEATH, "BENEATH"}, {RESOLVE_IN_ROOT, "IN_ROOT"}, {RESOLVE_NO_MAGICLINKS, "NO_MAGICLINKS"}, {RESOLVE_NO_XDEV, "NO_XDEV"}, {RESOLVE_BENEATH | RESOLVE_IN_ROOT, "both"}, {0x40, "0x40"}, {1ul << 40, "high"}};
    for (unsigned r = 0; r < sizeof rules / sizeof *rules; r++)
        for (int n = 0; names[n]; n++) {
            if (!strcmp(names[n], "..") || !strcmp(names[n], "fifo")) continue;
            struct open_how h = {.flags = O_PATH, .resolve = rules[r].resolve};
            long file = S(openat2, AT_FDCWD, names[n], &h, sizeof h);
            say("openat2 %s %s = %s", rules[r].name, names[n], file < 0 ? strerrorname_np(errno) : "ok");
            if (file >= 0) close(file);
        }
    struct open_how extra[2] = {{.flags = O_RDONLY}};
    long file = S(openat2, AT_FDCWD, "file", extra, sizeof extra); R(file >= 0); if (file >= 0) close(file);
    extra[1].flags = 1; R(S(openat2, AT_FDCWD, "file", extra, sizeof extra)); how.mode = 0600; R(S(openat2, AT_FDCWD, "file", &how, sizeof how));
    how.mode = 0; how.flags = 1ul << 40; R(S(openat2, AT_FDCWD, "file", &how, sizeof how)); how.flags = O_CREAT | O_RDWR; how.mode = 070000; R(S(openat2, AT_FDCWD, "file", &how, sizeof how));
    R(unlink("hard")); show("file");
}

static void path_calls(void) {
    section = "paths";
    struct stat status; struct statx extended; struct statfs space; char text[100];
    for (int n = 0; names[n]; n++) {
        const char *p = names[n];
        say("-- %s", p);
        R(stat(p, &status)); R(lstat(p, &status)); R(fstatat(AT_FDCWD, p, &status, AT_NO_AUTOMOUNT)); R(statx(AT_FDCWD, p, AT_SYMLINK_NOFOLLOW, STATX_ALL, &extended));
        R(access(p, R_OK)); R(access(p, X_OK)); R(faccessat(AT_FDCWD, p, F_OK, AT_SYMLINK_NOFOLLOW)); R(S(faccessat2, AT_FDCWD, p, W_OK, AT_EACCESS)); R(statfs(p, &space) == 0);
        R(readlink(p, text, 100)); R(getxattr(p, "user.none", text, 100)); R(lgetxattr(p, "user.none", text, 100)); R(listxattr(p, 0, 0)); R(removexattr(p, "user.none"));
        R(chmod(p, 0755)); R(chown(p, -1, -1)); R(lchown(p, -1, -1)); R(truncate(p, 7)); R(utimensat(AT_FDCWD, p, 0, 0)); R(utimensat(AT_FDCWD, p, 0, AT_SYMLINK_NOFOLLOW));
        R(fchmodat(AT_FDCWD, p, 0755, 0)); R(S(fchmodat2, AT_FDCWD, p, 0755, AT_SYMLINK_NOFOLLOW));
        if (strcmp(p, "..") && strcmp(p, ".") && strcmp(p, "dir/..")) { R(chdir(p)); if (chdir(getenv("CONFORM_HOME"))) say("lost"); }
        R(mkdir(p, 0700)); R(mknod(p, S_IFREG | 0600, 0)); R(symlink("x", p)); R(link("file", p)); R(link(p, "newlink")); unlink("newlink"); R(rmdir(p) && errno != ENOTEMPTY); R(unlink(p));
        R(rename(p, "moved")); rename("moved", p); R(rename("hard2", p)); R(S(renameat2, AT_FDCWD, p, AT_FDCWD, "file", RENAME_NOREPLACE)); R(S(renameat2, AT_FDCWD, p, AT_FDCWD, "nothing", RENAME_EXCHANGE));
        R(S(name_to_handle_at, AT_FDCWD, p, 0, 0, 0)); R(open(p, O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0);
        // Back to what it was.
        unlink("none"); rmdir("none"); unlink("dir/none"); rmdir("dir/none"); unlink("moved"); rmdir("moved");
        unlink("file"); unlink("link"); unlink("dirlink"); unlink("dangling"); unlink("loop1"); unlink("loop2"); unlink("fifo"); unlink("socket"); unlink("noperm"); unlink("dir/inner"); rmdir("dir"); unlink("dir"); unlink("hard");
        for (int i = 0; i < 40; i++) close(3 + i);
        kinds();
    }
}

static void bad_pointers(void) {
    section = "pointers";
    struct stat status; char text[64]; int file = open("file", O_RDWR), dir = open("dir", O_RDONLY);
    R(S(read, file, BAD, 4)); R(S(read, file, BAD, 0)); R(S(write, file, BAD, 4)); R(S(pread64, file, BAD, 4, 0)); R(S(pwrite64, file, BAD, 4, 0)); R(S(pread64, file, BAD, 4, 100)); R(S(readv, file, BAD, 1)); R(S(writev, file, BAD, 1));
    struct iovec vector[2] = {{text, 3}, {BAD, 4}}; lseek(file, 0, 0); R(S(readv, file, vector, 2)); R(lseek(file, 0, 1)); R(S(writev, file, vector, 2)); R(S(readv, file, vector, 0)); R(S(readv, file, BAD, 0));
    vector[1].iov_len = -1; R(S(readv, file, vector, 2)); R(S(writev, file, vector, 2)); vector[1].iov_len = SSIZE_MAX; R(S(readv, file, vector, 2)); R(S(readv, file, vector, -1)); R(S(readv, file, vector, 1025)); R(S(writev, file, vector, 1025)); R(S(preadv, file, vector, -1, 0, 0));
    R(S(fstat, file, BAD)); R(S(stat, "file", BAD)); R(S(stat, BAD, &status)); R(S(lstat, BAD, &status)); R(S(newfstatat, AT_FDCWD, BAD, &status, 0)); R(S(newfstatat, AT_FDCWD, "file", BAD, 0)); R(S(statx, AT_FDCWD, "file", 0, STATX_ALL, BAD)); R(S(statx, AT_FDCWD, BAD, 0, STATX_ALL, text));
    R(S(access, BAD, 0)); R(S(faccessat, AT_FDCWD, BAD, 0)); R(S(getdents64, dir, BAD, 1000)); R(S(getcwd, BAD, 1000)); R(S(chdir, BAD)); R(S(mkdir, BAD, 0)); R(S(rmdir, BAD)); R(S(unlink, BAD)); R(S(unlinkat, AT_FDCWD, BAD, 0)); R(S(link, BAD, "n")); R(S(link, "file", BAD)); R(S(rename, BAD, "n")); R(S(rename, "file", BAD));
    R(S(symlink, BAD, "n")); R(S(symlink, "n", BAD)); R(S(readlink, BAD, text, 10)); R(S(readlink, "link", BAD, 10)); R(S(chmod, BAD, 0)); R(S(chown, BAD, 0, 0)); R(S(lchown, BAD, 0, 0)); R(S(truncate, BAD, 0)); R(S(statfs, BAD, text)); R(S(statfs, "file", BAD)); R(S(fstatfs, file, BAD));
    R(S(utimensat, AT_FDCWD, BAD, 0, 0)); R(S(utimensat, AT_FDCWD, "file", BAD, 0)); R(S(utimes, "file", BAD)); R(S(utime, "file", BAD)); R(S(futimesat, AT_FDCWD, "file", BAD)); R(S(utimes, BAD, 0)); R(S(mknod, BAD, S_IFREG, 0));
    R(S(setxattr, "file", BAD, "v", 1, 0)); R(S(setxattr, "file", "user.a", BAD, 1, 0)); R(S(getxattr, "file", BAD, text, 10)); R(S(setxattr, "file", "user.a", "v", 1, 0)); R(S(getxattr, "file", "user.a", BAD, 10)); R(S(listxattr, "file", BAD, 100)); R(S(removexattr, "file", BAD)); R(S(removexattr, "file", "user.a")); R(S(fgetxattr, file, BAD, 0, 0));
    R(S(fcntl, file, F_GETLK, BAD)); R(S(fcntl, file, F_SETLK, BAD)); R(S(fcntl, file, F_OFD_SETLK, BAD)); R(S(ioctl, file, FIONREAD, BAD)); R(S(ioctl, file, FIONBIO, BAD)); off_t *bad = BAD; R(S(sendfile, 1, file, bad, 1)); R(S(copy_file_range, file, BAD, file, 0, 1, 0)); R(S(splice, file, BAD, 1, 0, 1, 0));
    R(S(pwritev2, file, BAD, 1, 0, 0, 0)); R(S(mount, BAD, "dir", BAD, 0, 0)); R(S(inotify_add_watch, inotify_init(), BAD, IN_MODIFY)); R(S(bind, socket(AF_UNIX, SOCK_STREAM, 0), BAD, 10)); R(S(execve, BAD, 0, 0)); R(S(select, 5, BAD, 0, 0, 0)); R(S(poll, BAD, 1, 0));
    char *whole = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); munmap(whole + 4096, 4096); memset(whole, 'a', 4096);
    R(S(open, whole + 4000, 0)); R(S(pwrite64, file, whole + 4000, 200, 0)); show("file"); int big = open("big", O_CREAT | O_RDWR, 0600); ftruncate(big, 100000); R(S(pread64, big, whole + 4000, 200, 0)); R(S(pwrite64, big, whole, 8192, 0)); struct stat s; fstat(big, &s); say("big has %ld", (long)s.st_size); char *readonly = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); R(S(pread64, big, readonly, 10, 0)); R(S(pwrite64, big, readonly, 10, 0)); char *hidden = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); R(S(pwrite64, big, hidden, 10, 0));
    for (int i = 3; i < 40; i++) close(i);
    unlink("big"); make("file", "content");
}

static void bytes(void) {
    section = "bytes";
    char text[300]; make("b", "0123456789"); int file = open("b", O_RDWR), reads = open("b", O_RDONLY), writes = open("b", O_WRONLY), path = open("b", O_PATH), dir = open("dir", O_RDONLY), appends = open("b", O_RDWR | O_APPEND);
    int all[] = {reads, writes, path, dir, 999, -1};
    static const char *kind[] = {"reads", "writes", "path", "dir", "999", "-1"};
    struct iovec v = {text, 5}; struct stat st; struct statfs sf; struct flock lock = {F_WRLCK, SEEK_SET, 0, 1, 0};
    for (int i = 0; i < 6; i++) {
        int f = all[i]; say("-- %s", kind[i]);
        R(read(f, text, 0)); R(read(f, text, 2)); R(write(f, "ab", 0)); R(write(f, "ab", 2)); R(pread(f, text, 2, 0)); R(pread(f, text, 2, -1)); R(pwrite(f, "cd", 2, 0)); R(pwrite(f, "cd", 2, -5)); R(pwrite(f, "", 0, -1)); R(readv(f, &v, 1)); R(writev(f, &v, 0)); R(preadv(f, &v, 1, -1)); R(pwritev(f, &v, 0, -1)); R(lseek(f, 0, SEEK_CUR)); R(lseek(f, 1, 9)); R(lseek(f, -1, SEEK_SET)); R(lseek(f, LONG_MAX, SEEK_CUR)); lseek(f, 0, SEEK_SET);
        R(ftruncate(f, 12)); R(ftruncate(f, -1)); R(fsync(f)); R(fdatasync(f)); R(syncfs(f)); R(S(sync_file_range, f, 0, 0, 2)); R(fallocate(f, 0, 0, 20)); R(fallocate(f, 0, 0, 0)); R(fallocate(f, 0, -1, 10)); R(fallocate(f, 99, 0, 10)); R(posix_fadvise(f, 0, 0, POSIX_FADV_DONTNEED)); R(posix_fadvise(f, 0, 0, 77)); R(readahead(f, 0, 100)); R(fstat(f, &st)); R(fstatfs(f, &sf)); R(S(fchmod, f, 0644)); R(S(fchown, f, -1, -1)); R(fchdir(f) && chdir(getenv("CONFORM_HOME"))); chdir(getenv("CONFORM_HOME")); R(S(getdents64, f, text, 0)); R(flock(f, LOCK_SH) == 0 ? flock(f, LOCK_UN) : -1); R(fcntl(f, F_SETLK, &lock)); R(S(fcntl, f, F_GETLK, &lock)); lock.l_type = F_UNLCK; fcntl(f, F_SETLK, &lock); lock = (struct flock){F_WRLCK, SEEK_SET, 0, 1, 0};
        R(fgetxattr(f, "user.x", text, 10)); R(fsetxattr(f, "user.x", "1", 1, 0)); R(flistxattr(f, text, 300) > 0); R(fremovexattr(f, "user.x")); R(futimens(f, 0)); R(fcntl(f, F_GETFL)); R(fcntl(f, F_GETFD)); R(fcntl(f, F_SETFL, O_NONBLOCK)); R(mmap(0, 4096, PROT_READ, MAP_SHARED, f, 0) != MAP_FAILED); R(mmap(0, 4096, PROT_WRITE, MAP_SHARED, f, 0) != MAP_FAILED); R(mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, f, 0) != MAP_FAILED); R(isatty(f)); R(S(linkat, f, "", AT_FDCWD, "blink", AT_EMPTY_PATH)); unlink("blink"); R(fstatat(f, "", &st, AT_EMPTY_PATH)); R(fstatat(f, "inner", &st, 0)); R(S(fchmodat2, f, "", 0644, AT_EMPTY_PATH)); R(fchownat(f, "", -1, -1, AT_EMPTY_PATH)); R(S(faccessat2, f, "", R_OK, AT_EMPTY_PATH)); R(readlinkat(f, "", text, 100)); R(S(utimensat, f, 0, 0, 0)); R(S(utimensat, f, "", 0, AT_EMPTY_PATH));
        R(fcntl(f, F_GETLEASE)); R(fcntl(f, F_GETPIPE_SZ)); R(fcntl(f, F_GET_SEALS)); R(fcntl(f, F_ADD_SEALS, 1)); R(fcntl(f, F_GETOWN)); R(fcntl(f, F_SETOWN, getpid())); R(fcntl(f, F_GETSIG)); R(fcntl(f, 1234)); R(fcntl(f, F_DUPFD, 100000000)); R(fcntl(f, F_DUPFD, -1)); uint64_t hint = 0; R(fcntl(f, F_GET_RW_HINT, &hint)); hint = 2; R(fcntl(f, F_SET_RW_HINT, &hint));
    }
    show("b"); R(ftruncate(file, 10)); R(lseek(file, 5, SEEK_END)); R(write(file, "X", 1)); show("b"); R(lseek(file, 0, SEEK_DATA)); R(lseek(file, 100, SEEK_DATA)); R(lseek(file, 100, SEEK_HOLE)); R(lseek(file, 3, SEEK_HOLE)); R(lseek(file, -3, SEEK_DATA)); R(lseek(file, 1000000, SEEK_SET)); R(read(file, text, 5)); R(pread(file, text, 5, LONG_MAX)); R(pwrite(file, text, 5, LONG_MAX)); R(pwrite(file, text, 5, LONG_MAX - 2)); R(ftruncate(file, LONG_MAX)); ftruncate(file, 16);
    R(write(appends, "tail", 4)); R(lseek(appends, 0, SEEK_CUR)); R(pwrite(appends, "PP", 2, 0)); show("b"); R(fcntl(appends, F_SETFL, 0)); R(pwrite(appends, "QQ", 2, 0)); show("b"); R(fcntl(appends, F_SETFL, O_APPEND | O_SYNC | O_DIRECT | O_NOATIME)); R(fcntl(appends, F_GETFL)); struct iovec w = {"RR", 2};
    R(pwritev2(file, &w, 1, 0, RWF_APPEND)); R(pwritev2(file, &w, 1, -1, RWF_APPEND)); R(pwritev2(file, &w, 1, 0, RWF_DSYNC | RWF_SYNC)); R(preadv2(file, &v, 1, 0, RWF_NOWAIT)); R(preadv2(file, &v, 1, 0, RWF_HIPRI)); R(preadv2(file, &v, 1, 0, RWF_APPEND)); R(preadv2(file, &v, 1, -2, 0)); R(preadv2(file, &v, 1, 0, 0x1000)); R(pwritev2(file, &w, 1, 0, 0x20)); R(pwritev2(file, &w, 1, 0, RWF_NOWAIT)); R(preadv2(file, &v, 0, 0, 0x1000)); show("b");
    struct iovec many[1024]; for (int i = 0; i < 1024; i++) many[i] = (struct iovec){text, 1}; R(readv(reads, many, 1024)); R(pwritev(file, many, 1024, 100));
    for (int mode = 0; mode < 0x80; mode++) { ftruncate(file, 0); pwrite(file, "abcdefgh", 8, 0); errno = 0; int r = fallocate(file, mode, 0, 4096); fstat(file, &st); say("fallocate mode %#x = %s, size %ld", mode, r ? strerrorname_np(errno) : "ok", (long)st.st_size); }
    ftruncate(file, 0); pwrite(file, "abcdefgh", 8, 0);
    struct rlimit limit = {1000, RLIM_INFINITY}, old; getrlimit(RLIMIT_FSIZE, &old); signal(SIGXFSZ, SIG_IGN); setrlimit(RLIMIT_FSIZE, &limit); R(ftruncate(file, 2000)); R(truncate("b", 2000)); R(pwrite(file, "x", 1, 1000)); R(pwrite(file, "xyz", 3, 998)); R(fallocate(file, 0, 0, 5000)); R(fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 5000)); fstat(file, &st); say("size %ld", (long)st.st_size);
    pid_t child = fork(); if (!child) { signal(SIGXFSZ, SIG_DFL); pwrite(file, "x", 1, 5000); _exit(0); } int status; waitpid(child, &status, 0); say("past the limit: signal %d", WIFSIGNALED(status) ? WTERMSIG(status) : 0); child = fork(); if (!child) { signal(SIGXFSZ, SIG_DFL); ftruncate(file, 5000); _exit(0); } waitpid(child, &status, 0); say("cut past the limit: signal %d", WIFSIGNALED(status) ? WTERMSIG(status) : 0); setrlimit(RLIMIT_FSIZE, &old);
    for (int i = 3; i < 40; i++) close(i);
}

static void descriptors(void) {
    section = "descriptors";
    make("d", "0123456789"); int file = open("d", O_RDWR);
    R(file); R(dup(file)); R(dup2(file, 20)); R(dup2(file, file)); R(dup3(file, file, 0)); R(dup3(file, 21, O_CLOEXEC)); R(fcntl(21, F_GETFD)); R(fcntl(20, F_GETFD)); R(dup3(file, 22, 1)); R(dup2(999, 5)); R(dup2(file, -1)); R(dup2(file, 1 << 30)); R(fcntl(file, F_DUPFD, 30)); R(fcntl(file, F_DUPFD_CLOEXEC, 30)); R(fcntl(31, F_GETFD)); R(fcntl(31, F_SETFD, 0)); R(fcntl(31, F_GETFD));
    R(lseek(file, 3, 0)); R(lseek(20, 0, SEEK_CUR)); int other = open("d", O_RDONLY); R(lseek(other, 0, SEEK_CUR)); R(fcntl(file, F_SETFL, O_APPEND)); R(fcntl(20, F_GETFL)); R(fcntl(other, F_GETFL)); R(close_range(30, 40, 0)); R(fcntl(30, F_GETFD)); R(close_range(20, 21, CLOSE_RANGE_CLOEXEC)); R(fcntl(20, F_GETFD)); R(close_range(21, 20, 0)); R(close_range(3, 4, 64)); R(ioctl(20, FIONCLEX)); R(fcntl(20, F_GETFD)); R(ioctl(20, FIOCLEX)); R(fcntl(20, F_GETFD)); int on = 1; R(ioctl(20, FIONBIO, &on)); R(fcntl(20, F_GETFL)); on = 0; R(ioctl(20, FIONBIO, &on)); R(fcntl(20, F_GETFL)); int left = -1; lseek(file, 4, 0); R(ioctl(file, FIONREAD, &left)); R(left); R(ioctl(file, 0x5401, &on)); R(ioctl(file, FIOASYNC, &on)); R(fcntl(file, F_GETFL)); long flags = 0; OK(ioctl(file, FS_IOC_GETFLAGS, &flags)); R(ioctl(file, FIGETBSZ, &left)); R(left); R(ioctl(file, FIBMAP, &left)); R(close(other)); R(close(other)); R(fcntl(file, 1027, dup(file)));
    pid_t child = fork(); int status; if (!child) { lseek(file, 7, 0); close(20); _exit(fcntl(21, F_GETFD) == -1); } waitpid(child, &status, 0); R(status); R(lseek(file, 0, SEEK_CUR)); R(fcntl(20, F_GETFD));
    int pair[2]; socketpair(AF_UNIX, SOCK_STREAM, 0, pair); struct pollfd polls[3] = {{file, POLLIN | POLLOUT, 0}, {pair[0], POLLIN, 0}, {999, POLLIN, 0}}; R(poll(polls, 3, 0)); R(polls[0].revents); R(polls[1].revents); R(polls[2].revents); fd_set set; FD_ZERO(&set); FD_SET(file, &set); FD_SET(pair[0], &set); struct timeval none = {0, 0}; R(select(64, &set, 0, 0, &none)); R(FD_ISSET(file, &set)); FD_ZERO(&set); FD_SET(file, &set); R(select(64, 0, &set, 0, &none)); FD_ZERO(&set); FD_SET(file, &set); R(select(64, 0, 0, &set, &none)); int poller = epoll_create1(0); struct epoll_event event = {EPOLLIN, {0}}; R(epoll_ctl(poller, EPOLL_CTL_ADD, file, &event)); int dir = open("dir", O_RDONLY); R(epoll_ctl(poller, EPOLL_CTL_ADD, dir, &event)); int path = open("d", O_PATH); R(epoll_ctl(poller, EPOLL_CTL_ADD, path, &event)); polls[0].fd = path; R(poll(polls, 1, 0)); R(polls[0].revents); polls[0].fd = dir; R(poll(polls, 1, 0)); R(polls[0].revents);
    char text[64], control[CMSG_SPACE(sizeof(int) * 2)] = {0}; struct iovec v = {text, 1}; struct msghdr message = {0, 0, &v, 1, control, sizeof control, 0}; struct cmsghdr *c = CMSG_FIRSTHDR(&message); c->cmsg_level = SOL_SOCKET; c->cmsg_type = SCM_RIGHTS; c->cmsg_len = CMSG_LEN(sizeof(int) * 2); ((int *)CMSG_DATA(c))[0] = file; ((int *)CMSG_DATA(c))[1] = pair[0]; lseek(file, 2, 0); R(sendmsg(pair[0], &message, 0)); memset(control, 0, sizeof control); message.msg_controllen = sizeof control; R(recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC)); int got = ((int *)CMSG_DATA(CMSG_FIRSTHDR(&message)))[0]; R(got); R(lseek(got, 0, SEEK_CUR)); R(fcntl(got, F_GETFD)); R(read(got, text, 3)); R(lseek(file, 0, SEEK_CUR));
    struct mmsghdr several = {.msg_hdr = message}; c = CMSG_FIRSTHDR(&several.msg_hdr); several.msg_hdr.msg_controllen = sizeof control; c->cmsg_level = SOL_SOCKET; c->cmsg_type = SCM_RIGHTS; c->cmsg_len = CMSG_LEN(sizeof(int) * 2); ((int *)CMSG_DATA(c))[0] = file; ((int *)CMSG_DATA(c))[1] = file; R(sendmmsg(pair[0], &several, 1, 0)); memset(control, 0, sizeof control); several.msg_hdr.msg_controllen = sizeof control; R(recvmmsg(pair[1], &several, 1, 0, 0)); c = CMSG_FIRSTHDR(&several.msg_hdr); got = c ? ((int *)CMSG_DATA(c))[1] : -1; R(pread(got, text, 3, 1)); R(send(file, "x", 1, 0)); R(recv(file, text, 1, 0)); R(getsockname(file, (void *)text, &(socklen_t){60})); R(listen(file, 1)); R(accept(file, 0, 0)); R(shutdown(file, 2)); R(connect(file, (struct sockaddr *)&(struct sockaddr_un){AF_UNIX, "x"}, 5)); R(S(sendmmsg, file, &several, 1, 0)); R(S(timerfd_gettime, file, text)); R(S(signalfd4, file, text, 8, 0)); R(S(epoll_wait, file, text, 1, 0)); R(inotify_rm_watch(file, 1)); R(S(setns, file, 0)); R(S(pidfd_send_signal, file, 0, 0, 0)); R(S(pidfd_getfd, file, 0, 0)); R(S(io_uring_enter, file, 0, 0, 0, 0, 0)); R(S(mq_getsetattr, file, 0, 0)); R(S(fsconfig, file, 0, 0, 0, 0)); R(S(bpf, 99, 0, 0)); R(S(kcmp, getpid(), getpid(), 0, file, dup(file)));
    for (int i = 3; i < 60; i++) close(i);
    struct rlimit limit, old; getrlimit(RLIMIT_NOFILE, &old); limit = old; limit.rlim_cur = 8; setrlimit(RLIMIT_NOFILE, &limit); while ((file = open("d", O_RDONLY)) >= 0); R(file); R(dup(1)); R(open("none", O_RDWR | O_CREAT, 0600)); look("none"); unlink("none"); setrlimit(RLIMIT_NOFILE, &old); for (int i = 3; i < 60; i++) close(i);
    file = open("d", O_RDWR | O_CLOEXEC); int kept = open("d", O_RDONLY); lseek(kept, 4, 0); child = fork(); if (!child) { execl("/bin/sh", "sh", "-c", "(cat <&3) 2>/dev/null; echo $?; cat <&4", (char *)0); _exit(9); } waitpid(child, &status, 0); R(status); for (int i = 3; i < 10; i++) close(i);
}

static int try_lock(int kind, const char *name, int command, short type, long start, long length) { // in another process
    pid_t child = fork();
    if (!child) {
        int file = open(name, O_RDWR); struct flock lock = {type, SEEK_SET, start, length, 0};
        int r = kind == 0 ? flock(file, type == F_WRLCK ? LOCK_EX | LOCK_NB : LOCK_SH | LOCK_NB) : fcntl(file, command, &lock);
        _exit(r == 0 ? 0 : errno);
    }
    int status; waitpid(child, &status, 0); return WEXITSTATUS(status);
}
static volatile int alarms, alarms_wanted, alarm_release;
static void alarmed(int s) { (void)s; if (++alarms == alarms_wanted) write(alarm_release, "x", 1); }
static void locks(void) {
    section = "locks";
    make("l", "0123456789"); int a = open("l", O_RDWR), b = open("l", O_RDWR), r = open("l", O_RDONLY), w = open("l", O_WRONLY);
    R(flock(a, LOCK_SH)); R(flock(b, LOCK_SH | LOCK_NB)); R(flock(b, LOCK_EX | LOCK_NB)); R(flock(a, LOCK_UN)); R(flock(b, LOCK_EX | LOCK_NB)); R(flock(a, LOCK_SH | LOCK_NB)); R(try_lock(0, "l", 0, F_RDLCK, 0, 0)); R(flock(b, LOCK_SH)); R(try_lock(0, "l", 0, F_RDLCK, 0, 0)); R(flock(b, 99)); R(flock(b, LOCK_EX | LOCK_SH)); R(flock(b, 0)); int d = dup(b); close(b); R(try_lock(0, "l", 0, F_WRLCK, 0, 0)); close(d); R(try_lock(0, "l", 0, F_WRLCK, 0, 0)); R(flock(r, LOCK_EX | LOCK_NB)); R(flock(r, LOCK_UN));
    struct flock lock = {F_WRLCK, SEEK_SET, 2, 3, 0}; R(fcntl(a, F_SETLK, &lock)); R(try_lock(1, "l", F_SETLK, F_RDLCK, 4, 1)); R(try_lock(1, "l", F_SETLK, F_RDLCK, 5, 1)); R(try_lock(1, "l", F_SETLK, F_WRLCK, 0, 2)); R(try_lock(1, "l", F_SETLK, F_WRLCK, 0, 0)); R(try_lock(1, "l", F_OFD_SETLK, F_RDLCK, 2, 1)); lock = (struct flock){F_RDLCK, SEEK_SET, 0, 0, 0}; R(fcntl(a, F_GETLK, &lock)); R(lock.l_type);
    pid_t parent = getpid(), child = fork(); if (!child) { int f = open("l", O_RDWR); struct flock q = {F_WRLCK, SEEK_SET, 0, 0, 7}; fcntl(f, F_GETLK, &q); say("child sees type %d whence %d start %ld length %ld by parent %d", q.l_type, q.l_whence, (long)q.l_start, (long)q.l_len, q.l_pid == parent); q = (struct flock){F_RDLCK, SEEK_SET, 9, 1, 7}; fcntl(f, F_GETLK, &q); say("child sees type %d start %ld length %ld pid %d", q.l_type, (long)q.l_start, (long)q.l_len, q.l_pid); q = (struct flock){F_WRLCK, SEEK_SET, 0, 1, 0}; R(fcntl(a, F_SETLK, &q)); _exit(0); } wait(0);
    lock = (struct flock){F_UNLCK, SEEK_SET, 3, 1, 0}; R(fcntl(a, F_SETLK, &lock)); R(try_lock(1, "l", F_SETLK, F_WRLCK, 3, 1)); R(try_lock(1, "l", F_SETLK, F_WRLCK, 2, 1)); R(try_lock(1, "l", F_SETLK, F_WRLCK, 4, 1)); close(open("l", O_RDONLY)); R(try_lock(1, "l", F_SETLK, F_WRLCK, 0, 0));
    lock = (struct flock){F_WRLCK, SEEK_SET, 0, 1, 0}; R(fcntl(r, F_SETLK, &lock)); lock.l_type = F_RDLCK; R(fcntl(w, F_SETLK, &lock)); R(fcntl(r, F_SETLK, &lock)); lock.l_type = 9; R(fcntl(a, F_SETLK, &lock)); lock.l_type = F_UNLCK; R(fcntl(a, F_GETLK, &lock)); lock.l_type = F_WRLCK; lock.l_whence = 7; R(fcntl(a, F_SETLK, &lock)); lock = (struct flock){F_WRLCK, SEEK_SET, -1, 1, 0}; R(fcntl(a, F_SETLK, &lock)); lock = (struct flock){F_WRLCK, SEEK_SET, 5, -3, 0}; R(fcntl(a, F_SETLK, &lock)); R(try_lock(1, "l", F_SETLK, F_WRLCK, 2, 1)); R(try_lock(1, "l", F_SETLK, F_WRLCK, 5, 1)); lock = (struct flock){F_WRLCK, SEEK_SET, 5, -9, 0}; R(fcntl(a, F_SETLK, &lock)); lock = (struct flock){F_WRLCK, SEEK_SET, LONG_MAX, 2, 0}; R(fcntl(a, F_SETLK, &lock)); lseek(a, 4, 0); lock = (struct flock){F_WRLCK, SEEK_CUR, 1, 1, 0}; R(fcntl(a, F_SETLK, &lock)); lock = (struct flock){F_WRLCK, SEEK_END, -2, 1, 0}; R(fcntl(a, F_SETLK, &lock)); R(try_lock(1, "l", F_SETLK, F_WRLCK, 8, 1)); lock = (struct flock){F_UNLCK, SEEK_SET, 0, 0, 0}; R(fcntl(a, F_SETLK, &lock));
    lock = (struct flock){F_WRLCK, SEEK_SET, 0, 5, 1}; R(fcntl(a, F_OFD_SETLK, &lock)); lock.l_pid = 0; R(fcntl(a, F_OFD_SETLK, &lock)); b = open("l", O_RDWR); R(fcntl(b, F_OFD_SETLK, &lock)); R(fcntl(b, F_SETLK, &lock)); R(fcntl(b, F_OFD_GETLK, &lock)); R(lock.l_pid); close(b); lock = (struct flock){F_UNLCK, SEEK_SET, 0, 0, 0}; R(fcntl(a, F_OFD_SETLK, &lock));
    // A deadlock: whoever comes second is refused, and the other gets what it waits for.
    int go[2]; pipe(go); lock = (struct flock){F_WRLCK, SEEK_SET, 0, 1, 0}; fcntl(a, F_SETLK, &lock); child = fork(); if (!child) { int f = open("l", O_RDWR); struct flock q = {F_WRLCK, SEEK_SET, 1, 1, 0}; fcntl(f, F_SETLK, &q); write(go[1], "x", 1); q.l_start = 0; int e = fcntl(f, F_SETLKW, &q); _exit(e == 0 ? 0 : errno); } char x; read(go[0], &x, 1); lock.l_start = 1; int e = fcntl(a, F_SETLKW, &lock) ? errno : 0; lock = (struct flock){F_UNLCK, SEEK_SET, 0, 0, 0}; fcntl(a, F_SETLK, &lock); int status; waitpid(child, &status, 0); say("deadlock: refused %d, granted %d", (e == EDEADLK) + (WEXITSTATUS(status) == EDEADLK), (e == 0) + (WEXITSTATUS(status) == 0));
    child = fork(); if (!child) { int f = open("l", O_RDWR); flock(f, LOCK_EX); write(go[1], "x", 1); usleep(200000); _exit(0); } read(go[0], &x, 1); R(flock(a, LOCK_EX)); waitpid(child, &status, 0); R(flock(a, LOCK_UN));
    // Interrupted, with and without restarting: the holder goes when told to, after an interruption.
    for (int restart = 0; restart < 2; restart++) for (int record = 0; record < 2; record++) {
        int hold[2]; pipe(hold); child = fork(); if (!child) { close(hold[1]); int f = open("l", O_RDWR); struct flock q = {F_WRLCK, SEEK_SET, 0, 0, 0}; record ? fcntl(f, F_SETLK, &q) : flock(f, LOCK_EX); write(go[1], "x", 1); read(hold[0], &x, 1); _exit(0); } read(go[0], &x, 1); close(hold[0]);
        alarms = 0; alarms_wanted = restart ? 5 : 1 << 30; alarm_release = hold[1]; struct sigaction action = {.sa_handler = alarmed, .sa_flags = restart ? SA_RESTART : 0}; sigaction(SIGALRM, &action, 0); struct itimerval often = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}}; setitimer(ITIMER_REAL, &often, 0); lock = (struct flock){F_WRLCK, SEEK_SET, 0, 0, 0}; e = record ? fcntl(a, F_SETLKW, &lock) : flock(a, LOCK_EX); e = e ? errno : 0; setitimer(ITIMER_REAL, &never, 0); say("restart %d: %s = %s", restart, record ? "fcntl" : "flock", e ? strerrorname_np(e) : "ok"); close(hold[1]); while (waitpid(child, &status, 0) < 0) ; if (!e) { lock.l_type = F_UNLCK; fcntl(a, F_SETLK, &lock); flock(a, LOCK_UN); } }
    // Over exec: `cat` has answered, so it runs.
    make("lx", "x"); int to[2], from[2]; pipe(to); pipe(from); child = fork(); if (!child) { int f = open("lx", O_RDWR); struct flock q = {F_WRLCK, SEEK_SET, 0, 1, 0}; fcntl(f, F_SETLK, &q); flock(f, LOCK_EX); dup2(to[0], 0); dup2(from[1], 1); execl("/bin/cat", "cat", (char *)0); _exit(9); } write(to[1], "x", 1); read(from[0], &x, 1); say("a POSIX lock over exec: %s", try_lock(1, "lx", F_SETLK, F_WRLCK, 0, 1) ? "held" : "gone"); say("flock over exec: %s", try_lock(0, "lx", 0, F_WRLCK, 0, 1) ? "held" : "gone"); kill(child, SIGKILL); waitpid(child, &status, 0); say("after the kill: %d %d", try_lock(1, "lx", F_SETLK, F_WRLCK, 0, 1), try_lock(0, "lx", 0, F_WRLCK, 0, 1));
    for (int i = 3; i < 40; i++) close(i);
}

static void maps(void) {
    section = "maps";
    make("m", ""); int file = open("m", O_RDWR); ftruncate(file, 3 * 4096); pwrite(file, "start", 5, 0); int reads = open("m", O_RDONLY), writes = open("m", O_WRONLY), path = open("m", O_PATH), dir = open("dir", O_RDONLY); int all[] = {file, reads, writes, path, dir, 999}; static const char *kind[] = {"file", "reads", "writes", "path", "dir", "999"};
    static const int types[] = {MAP_SHARED, MAP_PRIVATE, MAP_SHARED_VALIDATE, 0, MAP_SHARED | MAP_POPULATE, MAP_PRIVATE | MAP_NORESERVE, MAP_SHARED_VALIDATE | MAP_SYNC, MAP_PRIVATE | MAP_HUGETLB, MAP_SHARED | MAP_LOCKED, MAP_PRIVATE | MAP_GROWSDOWN, MAP_PRIVATE | MAP_DENYWRITE, MAP_SHARED_VALIDATE | 0x4000000};
    for (int k = 0; k < 6; k++) for (unsigned t = 0; t < sizeof types / sizeof *types; t++) for (int p = 0; p < 8; p++) { errno = 0; char *m = mmap(0, 4096, p, types[t], all[k], 0); say("%s type %#x prot %d = %s", kind[k], types[t], p, m == MAP_FAILED ? strerrorname_np(errno) : "ok"); if (m != MAP_FAILED) munmap(m, 4096); }
    R((long)mmap(0, 0, 1, MAP_SHARED, file, 0)); R((long)mmap(0, 4096, 1, MAP_SHARED, file, 5)); R((long)mmap(0, 1ul << 50, 1, MAP_SHARED, file, 0)); R(mmap(0, 4096, 1, MAP_SHARED, file, 1 << 20) != MAP_FAILED); R((long)mmap((void *)5, 4096, 1, MAP_SHARED | MAP_FIXED, file, 0)); R((long)mmap(0, 4096, 1, MAP_SHARED, file, -4096));
    char *m = mmap(0, 3 * 4096, 3, MAP_SHARED, file, 0), *p = mmap(0, 3 * 4096, 3, MAP_PRIVATE, file, 0); char text[64]; memcpy(m + 4096, "second", 6); R(pread(file, text, 6, 4096)); say("%.6s", text); pwrite(file, "THIRD", 5, 8192); say("%.5s %.5s", m + 8192, p + 8192); memcpy(p, "PRIV", 4); say("%.5s %.5s", m, p); pwrite(file, "xx", 2, 0); say("%.5s %.5s", m, p);
    R(msync(m, 4096, MS_SYNC)); R(msync(m, 4096, MS_ASYNC)); R(msync(m, 4096, MS_SYNC | MS_ASYNC)); R(msync(m + 1, 4096, MS_SYNC)); R(msync(m, 4096, 77)); R(msync(m, 0, MS_SYNC)); R(msync(m, 4096, MS_INVALIDATE)); R(madvise(m, 4096, MADV_DONTNEED)); say("%.4s", m); R(madvise(m, 4096, MADV_WILLNEED)); R(madvise(m, 4096, MADV_RANDOM)); R(madvise(m + 1, 4096, MADV_RANDOM)); R(madvise(m, 4096, 999)); R(madvise(p, 4096, MADV_DONTNEED)); say("%.4s", p); unsigned char core[3]; R(mincore(m, 3 * 4096, core)); R(mlock(m, 4096)); R(munlock(m, 4096)); R(mprotect(m, 4096, PROT_READ)); R(mprotect(m, 4096, PROT_READ | PROT_WRITE));
    char *ro = mmap(0, 4096, PROT_READ, MAP_SHARED, reads, 0); R(mprotect(ro, 4096, PROT_WRITE)); R(mprotect(ro, 4096, PROT_READ | PROT_EXEC)); R(munmap(m + 4096, 4096)); R(munmap(m + 4096, 4096)); say("%.5s", m + 8192); R(munmap(m, 1)); R(munmap(m + 1, 4096)); R(munmap(m, 0));
    m = mmap(0, 4096, 3, MAP_SHARED, file, 0); char *n = mremap(m, 4096, 8192, MREMAP_MAYMOVE); R(n != MAP_FAILED); if (n != MAP_FAILED) { say("%.6s", n + 4096); memcpy(n + 4096, "REMAP", 5); pread(file, text, 6, 4096); say("%.6s", text); m = mremap(n, 8192, 4096, 0); R(m == n); char *far = mmap(0, 4096, 0, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); n = mremap(m, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, far); R(n == far); if (n != MAP_FAILED) say("%.4s", n); R((long)mremap(n, 4096, 0, 0)); R((long)mremap(n + 1, 4096, 4096, 0)); R((long)mremap(n, 4096, 8192, 99)); close(file); say("%.4s", n); file = open("m", O_RDWR); unlink("m"); memcpy(n, "gone", 4); pread(file, text, 4, 0); say("%.4s", text); } else n = m;
    pid_t child = fork(); if (!child) { memcpy(n, "kids", 4); _exit(0); } wait(0); say("%.4s", n); ftruncate(file, 5000); m = mmap(0, 8192, 3, MAP_SHARED, file, 0); int zeros = 1; for (int i = 5000; i < 8192; i++) zeros &= !m[i]; R(zeros); memcpy(m + 4990, "0123456789ABCDEF", 16); ftruncate(file, 8192); pread(file, text, 20, 4990); say("%.10s", text);
    R(S(remap_file_pages, m, 4096, 0, 0, 0)); R(S(memfd_create, "x", 0) >= 0); for (int i = 3; i < 60; i++) close(i);
}

static void changing_names(void) {
    section = "names";
    mkdir("n", 0755); if (chdir("n")) return; make("a", "A"); make("b", "B"); mkdir("d", 0755); mkdir("e", 0755); make("e/x", "X"); symlink("a", "s"); link("a", "a2"); mkdir("d/sub", 0755);
    static const char *const pairs[][2] = {{"a", "b"}, {"a", "a"}, {"a", "a2"}, {"a", "d"}, {"d", "a"}, {"d", "e"}, {"e", "d"}, {"d", "d/sub/x"}, {"d/sub", "d"}, {"s", "b"}, {"a", "new/"}, {"d", "new/"}, {"a", "."}, {".", "x"}, {"..", "x"}, {"a/", "x"}, {"d/.", "x"}, {"none", "x"}, {"a", "none/x"}, {"a", ""}, {"", "a"}, {"s/", "x"}, {"d", "d"}, {"a", "s"}, {"d", "s"}, {"a", "d/"}, {"d/", "none2/"}};
    static const unsigned flags[] = {0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT, RENAME_NOREPLACE | RENAME_EXCHANGE, 8, RENAME_WHITEOUT | RENAME_NOREPLACE};
    for (unsigned f = 0; f < 7; f++) for (unsigned i = 0; i < sizeof pairs / sizeof *pairs; i++) { errno = 0; int r = S(renameat2, AT_FDCWD, pairs[i][0], AT_FDCWD, pairs[i][1], flags[f]); say("rename %x '%s' '%s' = %s", flags[f], pairs[i][0], pairs[i][1], r ? strerrorname_np(errno) : "ok");
        if (!r) { static const char *const after[] = {"a", "b", "d", "e", "e/x", "s", "a2", "d/sub", "new", "none2", "x"}; for (int k = 0; k < 11; k++) { struct stat st; if (!lstat(after[k], &st)) say("  %s %o %ld", after[k], st.st_mode & S_IFMT, S_ISDIR(st.st_mode) ? 0 : (long)st.st_nlink); } system("rm -rf a b d e s a2 new none2 x"); make("a", "A"); make("b", "B"); mkdir("d", 0755); mkdir("e", 0755); make("e/x", "X"); symlink("a", "s"); link("a", "a2"); mkdir("d/sub", 0755); } }
    static const char *const targets[] = {"a", "d", "s", "none", "a/", "d/", "none/", "a/x", ".", "..", "", "d/sub/..", "s/", 0};
    for (int i = 0; targets[i]; i++) for (int follow = 0; follow < 4; follow++) { errno = 0; int flag = (follow & 1 ? AT_SYMLINK_FOLLOW : 0) | (follow & 2 ? AT_EMPTY_PATH : 0), r = linkat(AT_FDCWD, targets[i], AT_FDCWD, "L", flag); say("linkat %x '%s' = %s", flag, targets[i], r ? strerrorname_np(errno) : "ok"); if (!r) look("L"); unlink("L"); }
    R(linkat(AT_FDCWD, "a", AT_FDCWD, "L", 0x40)); R(unlinkat(AT_FDCWD, "a", 0x40)); R(unlinkat(AT_FDCWD, "a", AT_REMOVEDIR)); R(unlinkat(AT_FDCWD, "e", AT_REMOVEDIR)); R(unlinkat(AT_FDCWD, "d", 0)); R(unlink("d")); R(rmdir("a")); R(rmdir(".")); R(rmdir("..")); R(rmdir("d/.")); R(rmdir("d/sub/..")); R(rmdir("e")); R(unlink("a/")); R(rmdir("s/")); R(unlink("s/")); R(unlink(long_name)); R(mkdir(long_name, 0755)); R(symlink("t", long_name)); R(symlink("", "es")); R(symlink(long_path, "es")); R(rename("a", long_name)); R(link("a", long_name)); R(mkdir("a", 0755)); R(mkdir("a/x", 0755)); R(mkdir("none/x", 0755)); R(mkdir("", 0755)); R(mkdir("slash/", 0755)); look("slash"); R(mkdir("s", 0755)); R(mkdir(".", 0755));
    static const int modes[] = {S_IFREG | 0644, S_IFDIR | 0755, S_IFLNK | 0777, S_IFIFO | 0644, S_IFSOCK | 0600, S_IFCHR | 0666, S_IFBLK | 0660, 0644, 0170000, 07777, 0150000 | 0600, S_IFREG | S_ISUID | 0755};
    umask(027); for (unsigned i = 0; i < sizeof modes / sizeof *modes; i++) { errno = 0; int r = mknod("k", modes[i], makedev(1, 3)); say("mknod %o = %s", modes[i], r ? strerrorname_np(errno) : "ok"); if (!r) { struct stat st; look("k"); lstat("k", &st); say("  device %d:%d", major(st.st_rdev), minor(st.st_rdev)); } unlink("k"); } R(mkdir("u", 0777)); look("u"); R(mkdir("v", 01777)); look("v"); R(mkdir("w", 06777)); look("w"); close(open("x", O_CREAT, 07777)); look("x"); R(umask(022)); R(S(umask, 07777)); R(umask(022));
    chmod("d", 02755); R(mkdir("d/g", 0755)); look("d/g"); make("d/h", ""); look("d/h"); struct stat st; chown("d", -1, 7); mkdir("d/i", 0755); stat("d/i", &st); R(st.st_gid); make("d/j", ""); stat("d/j", &st); R(st.st_gid); chdir("..");
}

static void attributes(void) {
    section = "attributes";
    make("t", "content"); struct stat s; struct timespec times[2]; int file = open("t", O_RDWR);
    static const long values[][2] = {{0, 0}, {1, 999999999}, {1, 1000000000}, {1, -1}, {-1, 5}, {5, UTIME_NOW}, {5, UTIME_OMIT}, {4294967296, 1}, {-9999999999, 0}, {LONG_MAX, 0}, {LONG_MIN, 0}, {253402300800, 7}};
    for (unsigned i = 0; i < sizeof values / sizeof *values; i++) { struct timespec plain[2] = {{7, 8}, {9, 10}}; utimensat(AT_FDCWD, "t", plain, 0); times[0] = times[1] = (struct timespec){values[i][0], values[i][1]}; times[1].tv_sec += values[i][0] == LONG_MAX ? 0 : 1; errno = 0; int r = utimensat(AT_FDCWD, "t", times, 0); stat("t", &s); int now = values[i][1] == UTIME_NOW; say("utimensat %ld %ld = %s; %ld.%ld %ld.%ld", values[i][0], values[i][1], r ? strerrorname_np(errno) : "ok", now ? 0 : s.st_atim.tv_sec, now ? 0 : s.st_atim.tv_nsec, now ? 0 : s.st_mtim.tv_sec, now ? 0 : s.st_mtim.tv_nsec); }
    struct timeval old[2] = {{1, 999999}, {2, 1000000}}; R(utimes("t", old)); old[1].tv_usec = -1; R(utimes("t", old)); R(S(futimesat, AT_FDCWD, "t", old)); old[1].tv_usec = 5; R(S(futimesat, AT_FDCWD, "t", old)); R(S(futimesat, file, 0, old)); struct utimbuf b = {-5, 6}; R(utime("t", &b)); stat("t", &s); say("%ld %ld", s.st_atim.tv_sec, s.st_mtim.tv_sec); R(utimensat(AT_FDCWD, "t", 0, 99)); R(S(utimensat, AT_FDCWD, 0, 0, 0)); R(S(utimensat, file, 0, 0, AT_SYMLINK_NOFOLLOW));
    static const int modes[] = {0, 0777, 07777, 0100644, 0170000, 020000, 04755, 02755, 01777}; for (unsigned i = 0; i < 9; i++) { R(chmod("t", modes[i])); stat("t", &s); say("%o -> %o", modes[i], s.st_mode); } R(fchmodat(AT_FDCWD, "t", 0644, AT_SYMLINK_NOFOLLOW)); R(S(fchmodat2, AT_FDCWD, "link", 0644, AT_SYMLINK_NOFOLLOW)); R(S(fchmodat2, AT_FDCWD, "t", 0644, 0x40)); R(S(fchownat, AT_FDCWD, "t", 1, 1, 0x40));
    chmod("t", 06755); R(chown("t", 1, 2)); look("t"); chmod("t", 06755); R(chown("t", -1, -1)); look("t"); chmod("t", 06755); pwrite(file, "x", 1, 0); look("t"); chmod("t", 06755); ftruncate(file, 3); look("t"); R(chown("t", 0, 0)); R(lchown("link", 3, 4)); look("link");
    pid_t child = fork(); if (!child) { // without privileges
        setgroups(0, 0); setresgid(65534, 65534, 65534); setresuid(65534, 65534, 65534); R(chmod("t", 0777)); R(chown("t", 65534, -1)); R(utimensat(AT_FDCWD, "t", 0, 0)); R(truncate("t", 1)); R(unlink("t")); R(open("t", O_RDWR)); R(open("t", O_RDONLY) >= 0); R(mkdir("no", 0755)); R(setxattr("t", "user.a", "1", 1, 0)); R(setxattr("t", "trusted.a", "1", 1, 0)); R(getxattr("t", "trusted.a", 0, 0)); R(access("t", W_OK)); R(access("noperm", R_OK)); R(mknod("no", S_IFCHR, 0)); R(open("t", O_RDONLY | O_NOATIME)); R(link("noperm", "no")); R(rename("t", "no")); R(chdir("dir")); R(lchown("link", -1, 65534)); R(S(chroot, "dir")); _exit(0); } wait(0);
    child = fork(); if (!child) { // set ids of files and effective ones
        chmod("t", 0600); setegid(5); seteuid(5); R(open("t", O_RDONLY)); R(access("t", R_OK)); R(faccessat(AT_FDCWD, "t", R_OK, AT_EACCESS)); seteuid(0); setegid(0); R(setfsuid(5)); R(open("t", O_RDONLY)); R(setfsuid(0)); R(open("t", O_RDONLY) >= 0); chmod("dir", 0777); setfsgid(6); setfsuid(5); int f = open("dir/owned", O_CREAT | O_RDWR, 0666); R(f >= 0); fstat(f, &s); say("%d:%d", s.st_uid, s.st_gid); _exit(0); } wait(0);
    struct statx x; for (int m = 0; m < 16; m++) { unsigned mask = m < 12 ? 1u << m : m == 12 ? 0 : m == 13 ? STATX_BASIC_STATS : m == 14 ? STATX_ALL : 1u << 31; memset(&x, 0, sizeof x); errno = 0; int r = statx(AT_FDCWD, "t", 0, mask, &x); say("statx %x = %s, mask has it: %d", mask, r ? strerrorname_np(errno) : "ok", (x.stx_mask & mask & STATX_ALL) == (mask & STATX_ALL)); } R(statx(AT_FDCWD, "t", 0x10000, STATX_ALL, &x)); R(statx(AT_FDCWD, "t", AT_STATX_SYNC_TYPE, STATX_ALL, &x)); R(statx(AT_FDCWD, "t", AT_STATX_FORCE_SYNC, STATX_ALL, &x)); R(statx(file, "", AT_EMPTY_PATH, STATX_ALL, &x)); R(statx(file, "", 0, STATX_ALL, &x)); R(fstatat(AT_FDCWD, "t", &s, 0x10000)); R(fstatat(AT_FDCWD, "", &s, AT_EMPTY_PATH)); R(faccessat(AT_FDCWD, "t", 9, 0)); R(S(faccessat2, AT_FDCWD, "t", 0, 0x40)); R(access("t", -1));
    char text[100]; R(setxattr("t", "user.a", "1", 1, XATTR_REPLACE)); R(setxattr("t", "user.a", "1", 1, XATTR_CREATE)); R(setxattr("t", "user.a", "1", 1, XATTR_CREATE)); R(setxattr("t", "user.a", "22", 2, XATTR_REPLACE)); R(setxattr("t", "user.a", "22", 2, 3)); R(setxattr("t", "user.a", "22", 2, 4)); R(getxattr("t", "user.a", text, 100)); R(getxattr("t", "user.a", text, 1)); R(getxattr("t", "user.a", 0, 0)); R(listxattr("t", text, 3)); R(setxattr("t", "user.", "1", 1, 0)); R(setxattr("t", "", "1", 1, 0)); R(setxattr("t", "user", "1", 1, 0)); R(setxattr("t", "foo.a", "1", 1, 0)); R(getxattr("t", "foo.a", text, 100)); R(setxattr("t", long_name, "1", 1, 0)); R(setxattr("t", "user.big", long_path, 65537, 0)); R(setxattr("t", "user.e", 0, 0, 0)); R(getxattr("t", "user.e", text, 100)); R(setxattr("t", "trusted.t", "1", 1, 0)); R(setxattr("t", "security.s", "1", 1, 0)); R(setxattr("t", "system.s", "1", 1, 0)); R(lsetxattr("link", "user.a", "1", 1, 0)); R(lsetxattr("link", "trusted.a", "1", 1, 0)); R(setxattr("fifo", "user.a", "1", 1, 0)); R(setxattr("dir", "user.a", "1", 1, 0)); R(removexattr("t", "user.a")); R(removexattr("t", "user.a")); R(removexattr("t", "foo.b"));
    struct statvfs v; R(statvfs(".", &v)); R(v.f_namemax); R(v.f_bsize); struct statfs f; R(fstatfs(file, &f)); R(pathconf("t", _PC_NAME_MAX)); R(pathconf("t", _PC_LINK_MAX) > 1000); stat("t", &s); R(s.st_blksize); truncate("t", 0); stat("t", &s); R(s.st_blocks); close(file);
}

struct entry { unsigned long inode; long cookie; unsigned short length; unsigned char type; char name[]; };
static int by_name(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }
static void directories(void) {
    section = "directories";
    mkdir("many", 0755); char name[64]; for (int i = 0; i < 300; i++) { snprintf(name, 64, "many/entry-%d", i); make(name, ""); } symlink("x", "many/link"); mkdir("many/sub", 0755); mkfifo("many/fifo", 0600);
    static const int rooms[] = {100, 300, 500, 1000, 32768, 100000}; for (unsigned r = 0; r < 6; r++) { int d = open("many", O_RDONLY); char *buffer = malloc(rooms[r]), *seen[400]; int count = 0, calls = 0; long n; while ((n = S(getdents64, d, buffer, rooms[r])) > 0) { calls++; for (long at = 0; at < n;) { struct entry *e = (void *)(buffer + at); if (count < 400) { char line[300]; snprintf(line, 300, "%s %d", e->name, e->type); seen[count++] = strdup(line); } at += e->length; } } say("room %d: %ld entries, end %s", rooms[r], (long)count, n ? strerrorname_np(errno) : "0"); qsort(seen, count, sizeof *seen, by_name); if (r == 4) for (int i = 0; i < count; i += 30) say("  %s", seen[i]); close(d); }
    int d = open("many", O_RDONLY); char text[400]; R(S(getdents64, d, text, 10)); R(S(getdents64, d, text, 400) > 0); R(lseek(d, 0, SEEK_SET)); struct entry *e = (void *)text; R(S(getdents64, d, text, 400) > 0); say("first %s", e->name); R(lseek(d, -1, SEEK_SET)); R(lseek(d, 0, SEEK_HOLE)); OK(lseek(d, 0, SEEK_CUR)); R(read(d, text, 10)); R(S(getdents, d, text, 400) > 0); close(d);
    DIR *dir = opendir("many"); long places[400]; char kept[400][32]; int count = 0; struct dirent *entry; while (places[count] = telldir(dir), (entry = readdir(dir))) snprintf(kept[count++], 32, "%s", entry->d_name); int good = 1; for (int i = 0; i < count; i += 17) { seekdir(dir, places[i]); entry = readdir(dir); good &= entry && !strcmp(entry->d_name, kept[i]); } R(good); rewinddir(dir); int again = 0; while (readdir(dir)) again++; R(again == count); rewinddir(dir); for (int i = 0; i < 100; i++) readdir(dir); for (int i = 0; i < 300; i++) { snprintf(name, 64, "many/entry-%d", i); unlink(name); } again = 0; while ((entry = readdir(dir))) again++; say("after removing: at most the rest %d", again < 300); closedir(dir);
    mkdir("gone", 0755); d = open("gone", O_RDONLY); chdir("gone"); rmdir("../gone"); R(S(getdents64, d, text, 400)); R(S(getcwd, text, 400)); R(open("x", O_CREAT | O_RDWR, 0600)); R(open(".", O_RDONLY) >= 0); struct stat s; R(stat(".", &s)); R(s.st_nlink); R(stat("..", &s)); R(mkdir("y", 0755)); R(openat(d, "x", O_CREAT | O_RDWR, 0600)); chdir(getenv("CONFORM_HOME")); close(d);
    R(chdir("file")); R(chdir("noperm")); mkdir("deep", 0755); chdir("deep"); R(S(getcwd, text, 3)); R(S(getcwd, text, 0)); chdir(".."); for (int i = 3; i < 60; i++) close(i); stat("many", &s); R(s.st_nlink); stat("dir", &s); R(s.st_nlink);
}

static void transfers(void) {
    section = "transfers";
    make("from", "abcdefghijklmnopqrstuvwxyz"); make("to", ""); int a = open("from", O_RDWR), b = open("to", O_RDWR), ends[2], pair[2]; pipe(ends); socketpair(AF_UNIX, SOCK_STREAM, 0, pair); char text[100]; off_t at = 3; loff_t in = 2, out = 1;
    R(sendfile(b, a, 0, 5)); show("to"); R(lseek(a, 0, SEEK_CUR)); R(sendfile(b, a, &at, 5)); R(at); show("to"); R(sendfile(ends[1], a, 0, 100)); R(read(ends[0], text, 100)); R(sendfile(pair[0], a, &at, 4)); R(read(pair[1], text, 100)); R(sendfile(b, ends[0], 0, 4)); R(sendfile(b, pair[0], 0, 4)); at = -1; R(sendfile(b, a, &at, 4)); R(sendfile(a, a, 0, 1)); R(sendfile(b, open("dir", O_RDONLY), 0, 4)); int append = open("to", O_WRONLY | O_APPEND); at = 0; R(sendfile(append, a, &at, 2)); R(sendfile(open("to", O_RDONLY), a, &at, 1)); R(sendfile(b, open("from", O_WRONLY), 0, 1)); R(sendfile(b, a, 0, -1) >= -1);
    R(copy_file_range(a, &in, b, &out, 6, 0)); R(in); R(out); show("to"); R(copy_file_range(a, &in, b, &out, 6, 1)); R(copy_file_range(a, 0, append, 0, 6, 0)); in = 0; out = 3; R(copy_file_range(a, &in, a, &out, 6, 0)); R(copy_file_range(a, &in, ends[1], 0, 6, 0)); R(copy_file_range(ends[0], 0, b, 0, 6, 0)); in = 100; R(copy_file_range(a, &in, b, 0, 6, 0)); R(copy_file_range(open("dir", O_RDONLY), 0, b, 0, 1, 0)); R(copy_file_range(open("from", O_WRONLY), 0, b, 0, 1, 0)); in = -1; R(copy_file_range(a, &in, b, 0, 1, 0)); in = 0; R(copy_file_range(a, &in, b, 0, 0, 0));
    lseek(a, 0, 0); R(splice(a, 0, ends[1], 0, 7, 0)); in = 20; R(splice(a, &in, ends[1], 0, 100, 0)); R(in); out = 30; R(splice(ends[0], 0, b, &out, 9, 0)); R(out); show("to"); R(splice(a, 0, b, 0, 4, 0)); R(splice(ends[0], 0, append, 0, 1, 0)); R(splice(a, &in, ends[1], &out, 1, 0)); R(tee(a, ends[1], 4, 0)); R(tee(ends[0], a, 4, 0)); struct iovec v = {text, 4}; R(vmsplice(a, &v, 1, 0)); R(splice(a, 0, ends[1], 0, 0, 0)); R(splice(a, 0, ends[1], 0, 4, 0xff0)); fcntl(ends[0], F_SETFL, O_NONBLOCK); while (read(ends[0], text, 100) > 0); R(splice(ends[0], 0, b, 0, 4, SPLICE_F_NONBLOCK));
    char *big = calloc(1, 300000); for (int i = 0; i < 300000; i++) big[i] = i * 31 >> 3; pwrite(a, big, 300000, 0); at = 0; fcntl(ends[1], F_SETFL, O_NONBLOCK); long sent = sendfile(ends[1], a, &at, 300000); say("a full pipe takes some: %d, offset agrees %d", sent > 0 && sent < 300000, at == sent); in = 0; out = 0; long copied = 0, n; while (copied < 300000 && (n = copy_file_range(a, &in, b, &out, 300000 - copied, 0)) > 0) copied += n; R(copied); char *back = malloc(300000); pread(b, back, 300000, 0); R(memcmp(big, back, 300000)); for (int i = 3; i < 60; i++) close(i);
}

static void others(void) {
    section = "others";
    struct stat s; char text[300]; int file = open("file", O_RDWR), dir = open("dir", O_RDONLY), watch = inotify_init1(0), fan = fanotify_init(FAN_CLASS_NOTIF, 0);
    OK(inotify_add_watch(watch, "file", IN_MODIFY)); OK(fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, "file")); R(inotify_add_watch(watch, "none", IN_MODIFY)); struct { struct file_handle h; char room[128]; } handle; handle.h.handle_bytes = 0; int id; R(name_to_handle_at(AT_FDCWD, "file", &handle.h, &id, 0)); R(mount("none", "file", "tmpfs", 0, 0)); R(mount("none", "none", "tmpfs", 0, 0)); R(mount("none", "file", "nofs", 0, 0)); R(umount("dir")); R(umount("none")); R(S(pivot_root, "dir", "dir")); R(S(acct, "dir")); R(S(swapon, "file", 0)); R(S(swapoff, "file")); R(S(uselib, "file")); R(S(quotactl, 0, 0, 0, 0)); R(S(finit_module, file, "", 0)); R(S(fspick, AT_FDCWD, "file", 99)); R(S(open_tree, AT_FDCWD, "none", 0)); R(S(move_mount, AT_FDCWD, "none", AT_FDCWD, "dir", 0)); R(S(fsync, dir)); R(S(getdents64, file, text, 100)); R(S(userfaultfd, 99)); R(S(memfd_secret, 99)); R(execl("file", "file", (char *)0)); R(execl("dir", "dir", (char *)0)); R(execl("none", "x", (char *)0)); R(execl("link", "x", (char *)0)); R(execl("loop1", "x", (char *)0)); make("script", "#!/nonexistent/interpreter\n"); chmod("script", 0755); R(execl("./script", "x", (char *)0)); make("script", "#!\n"); R(execl("./script", "x", (char *)0)); make("script", "plain text"); R(execl("./script", "x", (char *)0)); make("script", ""); R(execl("./script", "x", (char *)0)); chmod("file", 0755); R(execl("file/x", "x", (char *)0)); R(S(execveat, file, "", 0, 0, 0)); R(S(execveat, file, "", 0, 0, AT_EMPTY_PATH)); R(S(execveat, AT_FDCWD, "link", 0, 0, AT_SYMLINK_NOFOLLOW)); R(S(execveat, AT_FDCWD, "file", 0, 0, 0x40));
    int tmp = open(".", O_TMPFILE | O_RDWR, 0600); R(tmp >= 0); write(tmp, "tmp", 3); fstat(tmp, &s); R(s.st_nlink); snprintf(text, 300, "/proc/self/fd/%d", tmp); R(linkat(AT_FDCWD, text, AT_FDCWD, "named", AT_SYMLINK_FOLLOW)); show("named"); close(tmp); tmp = open(".", O_TMPFILE | O_RDWR | O_EXCL, 0600); snprintf(text, 300, "/proc/self/fd/%d", tmp); R(linkat(AT_FDCWD, text, AT_FDCWD, "named2", AT_SYMLINK_FOLLOW)); R(linkat(tmp, "", AT_FDCWD, "named2", AT_EMPTY_PATH)); close(tmp);
    snprintf(text, 300, "/proc/self/fd/%d", file); char where[300]; long n = readlink(text, where, 299); say("fd names the path: %s", n > 0 ? (where[n] = 0, strrchr(where, '/')) : strerrorname_np(errno)); R(stat(text, &s)); R(lstat(text, &s)); R(S_ISLNK(s.st_mode)); int again = open(text, O_RDONLY); R(again >= 0); R(lseek(again, 0, SEEK_CUR)); R(access(text, R_OK)); R(open(text, O_RDONLY | O_NOFOLLOW)); snprintf(text, 300, "/dev/fd/%d", file); R(open(text, O_RDWR) >= 0); snprintf(text, 300, "/proc/self/fd/%d/inner", dir); R(open(text, O_RDONLY) >= 0); snprintf(text, 300, "/proc/self/fd/%d", dir); n = readlink(text, where, 299); say("dir %s", n > 0 ? (where[n] = 0, strrchr(where, '/')) : "?"); n = readlink("/proc/self/cwd", where, 299); say("cwd is where it is: %d", n > 0 && (where[n] = 0, !strcmp(where, getenv("CONFORM_HOME")))); DIR *fds = opendir("/proc/self/fd"); int count = 0; struct dirent *e; while ((e = readdir(fds))) count += e->d_name[0] != '.' && atoi(e->d_name) < 100; say("descriptors listed: %d", count); closedir(fds);
    struct sockaddr_un address = {AF_UNIX, "sock"}; int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0); unlink("sock"); R(bind(server, (void *)&address, sizeof address)); look("sock"); R(connect(client, (void *)&address, sizeof address)); R(listen(server, 5)); R(connect(client, (void *)&address, sizeof address)); R(bind(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&address, sizeof address)); strcpy(address.sun_path, "file"); R(connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&address, sizeof address)); strcpy(address.sun_path, "none"); R(connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&address, sizeof address)); strcpy(address.sun_path, "none/x"); R(bind(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&address, sizeof address)); R(open("sock", O_RDONLY)); int datagram = socket(AF_UNIX, SOCK_DGRAM, 0), sender = socket(AF_UNIX, SOCK_DGRAM, 0); strcpy(address.sun_path, "dgram"); R(bind(datagram, (void *)&address, sizeof address)); R(sendto(sender, "x", 1, 0, (void *)&address, sizeof address)); R(recv(datagram, text, 10, MSG_DONTWAIT)); struct iovec v = {"y", 1}; struct msghdr m = {&address, sizeof address, &v, 1, 0, 0, 0}; R(sendmsg(sender, &m, 0)); R(recv(datagram, text, 10, MSG_DONTWAIT)); socklen_t room = sizeof address; struct sockaddr_un own; R(getsockname(server, (void *)&own, &room)); say("the socket's name: %s", own.sun_path); room = sizeof own; R(getpeername(client, (void *)&own, &room)); say("the peer's name: %s", own.sun_path);
    unlink("ff"); mkfifo("ff", 0600); R(open("ff", O_WRONLY | O_NONBLOCK)); int r = open("ff", O_RDONLY | O_NONBLOCK), w = open("ff", O_WRONLY | O_NONBLOCK); R(r >= 0 && w >= 0); R(write(w, "through", 7)); R(read(r, text, 100)); R(fstat(r, &s)); say("fifo: type %o mode %o links %ld", s.st_mode & S_IFMT, s.st_mode & 07777, (long)s.st_nlink); R(lseek(r, 0, 0)); struct stat s2; stat("ff", &s2); say("the same inode: %d", s.st_ino == s2.st_ino && s.st_dev == s2.st_dev); link("ff", "ff2"); int w2 = open("ff2", O_WRONLY | O_NONBLOCK); R(write(w2, "second", 6)); R(read(r, text, 100)); mknod("null", S_IFCHR | 0666, makedev(1, 3)); OK(open("null", O_RDWR));
    struct aiocb request = {.aio_fildes = file, .aio_buf = text, .aio_nbytes = 3}; R(aio_read(&request)); while (aio_error(&request) == EINPROGRESS) usleep(100); R(aio_return(&request));
    unsigned long context = 0; R(S(io_setup, 4, &context)); struct { uint64_t data; uint32_t key, flags; uint16_t op; int16_t prio; uint32_t fd; uint64_t buffer, bytes; int64_t offset; uint64_t r2; uint32_t f2, res; } cb = {.data = 77, .op = 0, .fd = file, .buffer = (uint64_t)text, .bytes = 4}, *list[1] = {&cb}; R(S(io_submit, context, 1, list)); uint64_t event[4]; R(S(io_getevents, context, 1, 1, event, 0)); say("data %ld result %ld", (long)event[0], (long)event[2]); cb.op = 1; cb.offset = -1; R(S(io_submit, context, 1, list)); cb.op = 99; R(S(io_submit, context, 1, list)); cb.op = 5; R(S(io_submit, context, 1, list)); cb.fd = 999; R(S(io_submit, context, 1, list)); R(S(io_destroy, context));
    R(S(cachestat, file, 0, 0, 0) == 0); pid_t child = fork(); if (!child) { R(chroot("none")); _exit(0); } wait(0); R(S(close, 999)); R(S(close, -1)); R(S(fchdir, 999)); for (int i = 3; i < 90; i++) close(i);
}

int main(int count, char **arguments) {
    if (count != 2 || chdir(arguments[1])) return 2;
    char home[4096]; getcwd(home, 4096); setenv("CONFORM_HOME", home, 1); signal(SIGPIPE, SIG_IGN); umask(022);
    memset(long_name, 'n', 256); for (int i = 0; i < 4500; i++) long_path[i] = i % 2 ? '/' : 'p';
    opening(); path_calls(); bad_pointers(); bytes(); descriptors(); locks(); maps(); changing_names(); attributes(); directories(); transfers(); others();
    say("done"); return 0;
}
