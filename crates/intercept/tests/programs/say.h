// What the programs that are compared between file systems share: each line tells a call and its result or error.
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
static int told_to = 1;
static char long_name[300], long_path[5000];

static void say(const char *form, ...) {
    char text[4096];
    va_list list;
    va_start(list, form);
    int length = snprintf(text, sizeof text, "%s: ", section);
    length += vsnprintf(text + length, sizeof text - length - 1, form, list);
    text[length++] = '\n';
    syscall(SYS_write, told_to, text, length);
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
