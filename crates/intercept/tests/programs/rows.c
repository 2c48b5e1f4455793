// One try of each row of the table of system calls, told by the row's name, its result or error, and what it did.
//   rows DIRECTORY [volume]   an empty directory; with `volume` also the calls that a volume refuses, which would change the machine elsewhere
#include "say.h"
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <mqueue.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>

enum { SETXATTRAT = 463, GETXATTRAT, LISTXATTRAT, REMOVEXATTRAT, FILE_GETATTR = 468, FILE_SETATTR };

static int file, directory, is_volume;
static char text[5000];
static struct stat status;
static struct iovec part = {text, 4};

// The row's call; behind it, what can be seen of it.
#define ROW(name, call) row(#name, (errno = 0, (long)(call)))
#define CALL(name, ...) ROW(name, S(name, ##__VA_ARGS__))
// A call that makes a descriptor gets the lowest free number, also right behind the close of one of the volume's.
#define MAKES(name, call) do { CLOSED(); long made_ = (errno = 0, (long)(call)); row(#name, made_); if (made_ > 2) close(made_); } while (0)
#define CLOSED() do { int kept_ = open("file", O_RDONLY); close(kept_); } while (0)
// Only where a volume answers.
#define REFUSED(name, call) do { if (is_volume) ROW(name, call); } while (0)

static void row(const char *name, long value) {
    if (value == -1) say("%s = %s", name, strerrorname_np(errno) ?: "?");
    else say("%s = %ld", name, value);
}
static int end_of(long child) {
    int how = -1;
    return child > 0 && waitpid(child, &how, 0) == child ? WIFEXITED(how) ? WEXITSTATUS(how) : 1000 + WTERMSIG(how) : -1;
}
static void *end_thread(void *unused) {
    S(exit, 0);
    return unused;
}
static void noted(int signal) { say("signal %d", signal); }

static void bytes(void) {
    CALL(write, file, "0123456789", 10); CALL(pwrite64, file, "ab", 2, 3); CALL(lseek, file, 1, SEEK_SET); CALL(read, file, text, 3); say("%.3s", text);
    CALL(pread64, file, text, 4, 0); CALL(readv, file, &part, 1); CALL(preadv, file, &part, 1, 0, 0); CALL(preadv2, file, &part, 1, 0, 0, 0);
    CALL(writev, file, &part, 1); CALL(pwritev, file, &part, 1, 20, 0); CALL(pwritev2, file, &part, 1, 30, 0, 0); show("file");
    CALL(ftruncate, file, 100); CALL(truncate, "file", 9000); CALL(fallocate, file, 0, 0, 10000); CALL(fsync, file); CALL(fdatasync, file); CALL(sync_file_range, file, 0, 10, 0); CALL(syncfs, file);
    CALL(readahead, file, 0, 10); CALL(fadvise64, file, 0, 10, POSIX_FADV_RANDOM); look("file");
    int other = open("other", O_CREAT | O_RDWR, 0600), ends[2];
    loff_t from = 0, to = 0;
    ROW(copy_file_range, copy_file_range(file, &from, other, &to, 9, 0)); CALL(sendfile, other, file, &from, 5); show("other");
    CALL(pipe, ends); from = 0; CALL(splice, file, &from, ends[1], 0, 6, 0); say("%ld", (long)read(ends[0], text, 6));
    ROW(tee, tee(file, ends[1], 5, 0)); ROW(vmsplice, vmsplice(file, &part, 1, 0));
    close(ends[0]); close(ends[1]); CLOSED(); CALL(pipe2, ends, O_CLOEXEC); say("%d %d", ends[0], ends[1]); close(ends[0]); close(ends[1]); close(other);
}

static void names(void) {
    struct statx extended; struct statfs space; struct timespec times[2] = {{1, 2}, {3, 4}}; struct timeval slow[2] = {{5, 6}, {7, 8}}; time_t old[2] = {9, 10};
    ROW(mkdir, S(mkdir, "m", 0700)); CALL(mkdirat, AT_FDCWD, "ma", 0700); CALL(mknod, "n", S_IFIFO | 0600, 0); CALL(mknodat, AT_FDCWD, "na", S_IFREG | 0600, 0); CALL(symlink, "file", "s"); CALL(symlinkat, "m", AT_FDCWD, "sa");
    CALL(link, "file", "l"); CALL(linkat, AT_FDCWD, "file", AT_FDCWD, "la", 0); CALL(rename, "l", "l2"); CALL(renameat, AT_FDCWD, "l2", directory, "l"); CALL(renameat2, AT_FDCWD, "la", directory, "l", RENAME_EXCHANGE);
    CALL(readlink, "s", text, 50); CALL(readlinkat, AT_FDCWD, "sa", text, 50); look("n"); look("na"); look("s");
    CALL(stat, "s", &status); CALL(lstat, "s", &status); say("%o", status.st_mode); CALL(fstat, file, &status); CALL(newfstatat, AT_FDCWD, "file", &status, 0); CALL(statx, AT_FDCWD, "file", 0, STATX_ALL, &extended); say("%u links", extended.stx_nlink);
    ROW(statfs, S(statfs, "file", &space)); say("%ld", (long)space.f_namelen); CALL(fstatfs, file, &space);
    CALL(access, "file", W_OK); CALL(faccessat, AT_FDCWD, "none", F_OK); CALL(faccessat2, AT_FDCWD, "file", X_OK, AT_EACCESS);
    CALL(chmod, "file", 0604); CALL(fchmod, file, 0600); CALL(fchmodat, AT_FDCWD, "file", 0640); CALL(fchmodat2, AT_FDCWD, "file", 0640, 0);
    CALL(chown, "file", -1, -1); CALL(fchown, file, -1, -1); CALL(lchown, "s", -1, -1); CALL(fchownat, AT_FDCWD, "s", -1, -1, AT_SYMLINK_NOFOLLOW); look("file");
    CALL(utime, "file", old); stat("file", &status); say("%ld", (long)status.st_mtim.tv_sec); CALL(utimes, "file", slow); CALL(futimesat, AT_FDCWD, "file", slow); stat("file", &status); say("%ld.%ld", (long)status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
    CALL(utimensat, AT_FDCWD, "file", times, 0); stat("file", &status); say("%ld.%ld", (long)status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
    CALL(unlink, "s"); CALL(unlinkat, directory, "sa", 0); CALL(rmdir, "m"); look("m"); CALL(umask, 027); make("masked", ""); look("masked");
    CALL(chdir, "ma"); ROW(getcwd, S(getcwd, text, sizeof text) > 0); say("%s", strrchr(text, '/')); CALL(fchdir, directory); look("file");
    CALL(setxattr, "file", "trusted.t", "1", 1, 0); CALL(lsetxattr, "file", "trusted.t", "22", 2, 0); CALL(fsetxattr, file, "trusted.u", "333", 3, 0);
    CALL(getxattr, "file", "trusted.t", text, 9); CALL(lgetxattr, "file", "trusted.t", text, 9); CALL(fgetxattr, file, "trusted.u", text, 9);
    CALL(listxattr, "file", text, 99); CALL(llistxattr, "file", text, 99); CALL(flistxattr, file, text, 99);
    CALL(removexattr, "file", "trusted.t"); CALL(lremovexattr, "file", "trusted.t"); CALL(fremovexattr, file, "trusted.u");
    CALL(lseek, directory, 0, SEEK_SET); ROW(getdents64, S(getdents64, directory, text, sizeof text) > 0); CALL(lseek, directory, 0, SEEK_SET); ROW(getdents, S(getdents, directory, text, sizeof text) > 0);
    ROW(flock, flock(file, LOCK_EX | LOCK_NB));
}

static void descriptors(void) {
    struct open_how how = {.flags = O_RDONLY}; struct pollfd polled = {file, POLLIN, 0}; fd_set set; struct epoll_event event = {EPOLLIN, {0}}; sigset_t none; struct timespec now = {0, 0};
    MAKES(open, S(open, "file", O_RDONLY)); MAKES(openat, S(openat, directory, "file", O_RDONLY)); MAKES(openat2, S(openat2, directory, "file", &how, sizeof how)); MAKES(creat, S(creat, "made", 0600));
    MAKES(dup, S(dup, file)); MAKES(dup2, S(dup2, file, 40)); MAKES(dup3, S(dup3, file, 41, O_CLOEXEC)); MAKES(fcntl, S(fcntl, file, F_DUPFD_CLOEXEC, 20)); CLOSED(); S(dup2, file, 50); CALL(close, 50); CALL(close_range, 51, 60, 0); ROW(close, S(close, 50));
    MAKES(socket, S(socket, AF_UNIX, SOCK_STREAM, 0)); MAKES(epoll_create, S(epoll_create, 1)); MAKES(epoll_create1, S(epoll_create1, 0)); MAKES(eventfd, S(eventfd, 0)); MAKES(eventfd2, S(eventfd2, 0, 0));
    MAKES(inotify_init, S(inotify_init)); MAKES(inotify_init1, S(inotify_init1, 0)); MAKES(fanotify_init, S(fanotify_init, FAN_CLASS_NOTIF, 0)); MAKES(memfd_create, S(memfd_create, "m", 0)); MAKES(memfd_secret, S(memfd_secret, 0));
    MAKES(timerfd_create, S(timerfd_create, CLOCK_MONOTONIC, 0)); sigemptyset(&none); MAKES(signalfd, S(signalfd, -1, &none, 8)); MAKES(signalfd4, S(signalfd4, -1, &none, 8, 0)); MAKES(userfaultfd, S(userfaultfd, O_CLOEXEC));
    MAKES(pidfd_open, S(pidfd_open, getpid(), 0)); int self = S(pidfd_open, getpid(), 0); CLOSED(); int taken = S(pidfd_getfd, self, 1, 0); say("taken: %d", taken); close(taken); close(self); MAKES(mq_open, S(mq_open, "gannet-none", O_RDONLY, 0, 0)); MAKES(fsopen, S(fsopen, "tmpfs", 0)); MAKES(fsmount, S(fsmount, -1, 0, 0));
    MAKES(bpf, S(bpf, 9999, 0, 0)); MAKES(perf_event_open, S(perf_event_open, 0, 0, -1, -1, 0)); MAKES(seccomp, S(seccomp, 9999, 0, 0)); CALL(prctl, PR_GET_DUMPABLE, 0, 0, 0, 0);
    CLOSED(); CALL(kcmp, getpid(), getpid(), 0, file, file); CLOSED(); CALL(poll, &polled, 1, 0); CALL(ppoll, &polled, 1, &now, 0, 8); FD_ZERO(&set); FD_SET(file, &set); CALL(select, file + 1, &set, 0, 0, &(struct timeval){0, 0}); FD_SET(file, &set); CALL(pselect6, file + 1, &set, 0, 0, &now, 0);
    int poller = epoll_create1(0); CALL(epoll_ctl, poller, EPOLL_CTL_ADD, file, &event); close(poller); CLOSED(); CALL(unshare, CLONE_FILES);
    struct { uint64_t value; uint32_t size, flags; } value = {(uintptr_t)"abc", 3, 0}; ROW(setxattrat, syscall(SETXATTRAT, AT_FDCWD, "file", 0, "trusted.x", &value, 16)); value.value = (uintptr_t)text; ROW(getxattrat, syscall(GETXATTRAT, AT_FDCWD, "file", 0, "trusted.x", &value, 16)); say("%.3s", text); ROW(listxattrat, syscall(LISTXATTRAT, AT_FDCWD, "file", 0, text, 100)); ROW(removexattrat, syscall(REMOVEXATTRAT, AT_FDCWD, "file", 0, "trusted.x"));
    struct { unsigned bytes; int type; char rest[128]; } named = {128, 0, ""}; int mounted; CALL(name_to_handle_at, AT_FDCWD, "file", &named, &mounted, 0); MAKES(open_by_handle_at, S(open_by_handle_at, directory, &named, O_RDONLY)); ROW(kcmp, S(kcmp, getpid(), getpid(), 0, file, directory) > 0);
    // Sockets, in the directory and between.
    struct sockaddr_un address = {AF_UNIX, "sock"}; int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0), pair[2];
    CALL(bind, server, &address, sizeof address); listen(server, 5); CALL(connect, client, &address, sizeof address); MAKES(accept, S(accept, server, 0, 0)); close(client); client = socket(AF_UNIX, SOCK_STREAM, 0); connect(client, (void *)&address, sizeof address); MAKES(accept4, S(accept4, server, 0, 0, 0)); close(client); close(server);
    CLOSED(); CALL(socketpair, AF_UNIX, SOCK_DGRAM, 0, pair); say("%d %d", pair[0], pair[1]);
    char room[CMSG_SPACE(sizeof(int))]; struct mmsghdr message = {{0, 0, &part, 1, room, sizeof room, 0}, 0}; struct cmsghdr *head = CMSG_FIRSTHDR(&message.msg_hdr); head->cmsg_level = SOL_SOCKET; head->cmsg_type = SCM_RIGHTS; head->cmsg_len = CMSG_LEN(sizeof(int)); memcpy(CMSG_DATA(head), &file, sizeof file);
    CALL(sendmsg, pair[0], &message.msg_hdr, 0); CALL(sendmmsg, pair[0], &message, 1, 0);
    for (int times = 0; times < 2; times++) { int got = -1; struct msghdr taken = {0, 0, &part, 1, room, sizeof room, 0}; long length = recvmsg(pair[1], &taken, 0); memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&taken)), sizeof got); say("%ld, at %ld", length, (long)lseek(got, 0, SEEK_CUR)); close(got); }
    close(pair[0]); close(pair[1]);
    CALL(sendto, file, "x", 1, 0, 0, 0); CALL(recvfrom, file, text, 1, 0, 0, 0); CALL(recvmsg, file, &message.msg_hdr, 0); CALL(recvmmsg, file, &message, 1, 0, 0);
    CALL(getsockname, file, text, text); CALL(getpeername, file, text, text); CALL(setsockopt, file, 1, 1, text, 4); CALL(getsockopt, file, 1, 1, text, text); CALL(listen, file, 1); CALL(shutdown, file, 2);
    // Also on a number whose descriptor was just closed.
    int gone = open("file", O_RDONLY); close(gone); CALL(epoll_wait, file, text, 1, 0); ROW(epoll_pwait, S(epoll_pwait, gone, text, 1, 0, 0, 8)); ROW(epoll_pwait2, syscall(441, file, text, 1, &now, 0, 8)); CALL(timerfd_settime, gone, 0, text, 0); gone = open("file", O_RDONLY); close(gone); CALL(timerfd_gettime, gone, text); CALL(inotify_rm_watch, file, 1);
    gone = open("file", O_RDONLY); close(gone); ROW(fsconfig, S(fsconfig, gone, 0, text, 0, 0)); ROW(landlock_add_rule, S(landlock_add_rule, file, 1, text, 0)); CALL(setns, file, 0); ROW(pidfd_send_signal, S(pidfd_send_signal, file, 0, 0, 0));
}

static void memory_and_requests(void) {
    aio_context_t context = 0; struct io_event events[2]; struct iocb request = {.aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (uintptr_t)text, .aio_nbytes = 4}, *list[] = {&request}; struct timespec now = {0, 0};
    char *at = mmap(0, 8192, PROT_READ, MAP_SHARED, file, 0);
    ROW(mmap, at == MAP_FAILED ? -1 : at[0]); CALL(mprotect, at, 8192, PROT_READ | PROT_WRITE); at[0] = 'M'; CALL(msync, at, 8192, MS_SYNC); pread(file, text, 1, 0); say("%c", text[0]);
    char *moved = mremap(at, 8192, 4096, 0); ROW(mremap, moved == at); ROW(madvise, madvise(moved, 4096, MADV_REMOVE)); say("%d", moved[0]); CALL(remap_file_pages, moved, 4096, 0, 1, 0); CALL(pkey_mprotect, moved, 4096, PROT_READ, -1); ROW(process_madvise, S(process_madvise, -1, 0, 0, 999, 0)); CALL(munmap, moved, 4096);
    S(io_setup, 4, &context); CALL(io_submit, context, 1, list); CALL(io_getevents, context, 1, 2, events, &now); say("%ld", (long)events[0].res); S(io_submit, context, 1, list); CALL(io_pgetevents, context, 1, 2, events, &now, 0); say("%ld", (long)events[0].res); CALL(io_destroy, context);
}

static void processes(void) {
    struct clone_args arguments = {.exit_signal = SIGCHLD}; char *none[] = {"script", 0}; pthread_t thread; int script = open("script", O_CREAT | O_WRONLY, 0755); write(script, "#!/bin/sh\nread x < file; exit 7\n", 32); close(script); chmod("script", 0755);
    long child = S(fork); if (!child) S(exit_group, write(file, "f", 1) == 1 ? 3 : 4); ROW(fork, end_of(child)); say("exit_group = above");
    child = S(clone, SIGCHLD, 0, 0, 0, 0); if (!child) _exit(close(file)); ROW(clone, end_of(child)); child = S(clone3, &arguments, sizeof arguments); if (!child) _exit(close(file)); ROW(clone3, end_of(child));
    child = vfork(); if (!child) _exit(close(file)); ROW(vfork, end_of(child)); say("%d", fcntl(file, F_GETFD));
    child = fork(); if (!child) { S(execve, "script", none, none + 1); _exit(99); } ROW(execve, end_of(child)); child = fork(); if (!child) { S(execveat, directory, "script", none, none + 1, 0); _exit(99); } ROW(execveat, end_of(child));
    pthread_create(&thread, 0, end_thread, 0); ROW(exit, pthread_join(thread, 0));
    struct sigaction action = {.sa_handler = noted, .sa_flags = SA_ONSTACK}; stack_t stack = {malloc(65536), 0, 65536}; ROW(sigaltstack, sigaltstack(&stack, 0)); ROW(rt_sigaction, sigaction(SIGUSR1, &action, 0)); kill(getpid(), SIGUSR1);
    struct rlimit limit; getrlimit(RLIMIT_FSIZE, &limit); limit.rlim_cur = 10; signal(SIGXFSZ, SIG_IGN); CALL(setrlimit, RLIMIT_FSIZE, &limit); say("%ld", (long)pwrite(file, "xx", 2, 10)); say("%s", strerrorname_np(errno)); limit.rlim_cur = RLIM_INFINITY; CALL(prlimit64, 0, RLIMIT_FSIZE, &limit, 0); say("%ld", (long)pwrite(file, "xx", 2, 10));
}

static void refused(void) {
    int group = fanotify_init(FAN_CLASS_NOTIF, 0), watch = inotify_init1(0); 
    REFUSED(fanotify_mark, fanotify_mark(group, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, "file")); REFUSED(inotify_add_watch, inotify_add_watch(watch, "file", IN_MODIFY)); close(group); close(watch);
    REFUSED(acct, S(acct, "file")); ROW(cachestat, S(cachestat, file, text, text + 64, 0)); REFUSED(chroot, S(chroot, "ma")); ROW(file_getattr, syscall(FILE_GETATTR, AT_FDCWD, "file", text, 24, 0)); memset(text, 0, 24); text[0] = 0x40; ROW(file_setattr, syscall(FILE_SETATTR, AT_FDCWD, "file", text, 24, 0)); syscall(FILE_GETATTR, AT_FDCWD, "file", text, 24, 0); say("%d", text[0] & 0x40);
    REFUSED(finit_module, S(finit_module, file, "", 0)); REFUSED(fspick, S(fspick, AT_FDCWD, "ma", 0)); REFUSED(io_uring_setup, S(io_uring_setup, 4, text)); REFUSED(ioctl, ioctl(file, TCGETS, text)); REFUSED(landlock_create_ruleset, S(landlock_create_ruleset, 0, 0, 1)); int pidfd = S(pidfd_open, getpid(), 0); REFUSED(pidfd_getfd, S(pidfd_getfd, pidfd, file, 0)); close(pidfd); REFUSED(mount, mount("none", "ma", "tmpfs", 0, 0)); REFUSED(move_mount, S(move_mount, AT_FDCWD, "ma", AT_FDCWD, "ma", 0));
    MAKES(open_tree, S(open_tree, AT_FDCWD, "ma", 0)); REFUSED(open_tree_attr, syscall(467, AT_FDCWD, "ma", 0, 0, 0)); REFUSED(mount_setattr, S(mount_setattr, AT_FDCWD, "ma", 0, text, 32)); REFUSED(quotactl_fd, S(quotactl_fd, file, 0x800007 << 8, 0, text)); REFUSED(pivot_root, S(pivot_root, "ma", "ma")); REFUSED(quotactl, S(quotactl, 0x800007 << 8, "file", 0, text)); REFUSED(swapon, S(swapon, "file", 0)); REFUSED(umount2, S(umount2, "ma", 0)); REFUSED(uselib, S(uselib, "file"));
}

// The file is 0640 of user 1 and group 1; whose it is decides whether it can be opened.
static void tell_opened(void) { int opened = open("theirs", O_RDONLY); say("theirs: %s", opened < 0 ? strerrorname_np(errno) : "opened"); if (opened >= 0) close(opened); }
#define AS(name, ...) do { if (!geteuid() || !is_volume) { long child_ = fork(); if (!child_) { CALL(name, __VA_ARGS__); tell_opened(); _exit(0); } end_of(child_); } } while (0)
static void users(void) {
    make("theirs", ""); chmod("theirs", 0640); chown("theirs", 1, 1); gid_t groups[] = {1}; struct { unsigned version; int pid; } header = {0x20080522, 0}; unsigned sets[6] = {0};
    AS(setuid, 2); AS(setreuid, -1, 1); AS(setresuid, -1, 2, -1); AS(setgid, 2); AS(setregid, 2, 2); AS(setresgid, 1, 1, 1); AS(setgroups, 1, groups); AS(setfsuid, 2); AS(setfsgid, 2); AS(capset, &header, sets);
}

int main(int count, char **arguments) {
    section = "row"; is_volume = count > 2;
    if (chdir(arguments[1])) return 1;
    file = open("file", O_CREAT | O_RDWR, 0644); directory = open(".", O_RDONLY | O_DIRECTORY);
    bytes(); names(); descriptors(); memory_and_requests(); processes(); refused(); users();
    say("done");
    return 0;
}
