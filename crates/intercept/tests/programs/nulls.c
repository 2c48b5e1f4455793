// No address where a call may be given one, by a process that blocks all signals: nobody looks there. How each child ended is told, and what its
// call said.
//   nulls DIRECTORY
#include "say.h"
#include <sys/prctl.h>
#include <sys/timex.h>

#define CASE(...) do { \
    int how, child = fork(); \
    if (!child) { R(__VA_ARGS__); _exit(0); } \
    waitpid(child, &how, 0); \
    if (how) say("%s: %x", #__VA_ARGS__, how); \
} while (0)

int main(int count, char **arguments) {
    sigset_t all;
    struct stat status;
    struct statx more;
    int pipes[2], ends[2], file, memory;
    char *program[] = {"true", 0};
    if (chdir(arguments[1])) return 1;
    file = open("nulls", O_RDWR | O_CREAT, 0600);
    pipe(pipes);
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    memory = S(memfd_create, "nulls", 0);
    write(memory, "aaaa", 4);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, 0);
    section = "limits";
    CASE(S(prlimit64, 0, RLIMIT_NOFILE, 0, 0)); CASE(S(prlimit64, 0, RLIMIT_FSIZE, 0, 0)); CASE(S(setrlimit, RLIMIT_NOFILE, 0));
    CASE(S(getrlimit, RLIMIT_NOFILE, 0)); CASE(sysconf(_SC_OPEN_MAX) > 0); CASE(getrlimit(RLIMIT_NOFILE, (void *)&more));
    section = "paths";
    CASE(S(newfstatat, file, 0, &status, AT_EMPTY_PATH)); CASE(S(statx, file, 0, AT_EMPTY_PATH, 0xfff, &more)); CASE(S(newfstatat, file, 0, 0, AT_EMPTY_PATH));
    CASE(S(newfstatat, AT_FDCWD, 0, &status, AT_EMPTY_PATH)); CASE(S(newfstatat, AT_FDCWD, 0, &status, 0)); CASE(S(stat, 0, &status)); CASE(stat(0, &status));
    CASE(lstat(0, &status)); CASE(access(0, 0)); CASE(readlink(0, program[0], 4)); CASE(readlink("nulls", 0, 4)); CASE(statx(file, 0, AT_EMPTY_PATH, 0xfff, &more)); CASE(open(0, 0));
    CASE(S(openat2, AT_FDCWD, "nulls", 0, 24)); CASE(statfs("nulls", 0)); CASE(S(name_to_handle_at, file, "", 0, &memory, AT_EMPTY_PATH)); CASE(S(open_by_handle_at, file, 0, 0));
    CASE(getcwd(0, 0) != 0); CASE(S(getcwd, 0, 0)); CASE(mount(0, "nulls", 0, 0, 0)); CASE(mount("none", 0, "tmpfs", 0, 0)); CASE(S(umount2, 0, 0));
    section = "times";
    CASE(S(utimensat, file, 0, 0, 0)); CASE(S(utimensat, AT_FDCWD, "nulls", 0, 0)); CASE(S(utimensat, AT_FDCWD, 0, 0, 0)); CASE(utimes("nulls", 0)); CASE(utime("nulls", 0)); CASE(S(futimesat, AT_FDCWD, "nulls", 0));
    CASE(S(setitimer, ITIMER_REAL, 0, 0)); CASE(select(0, 0, 0, 0, &(struct timeval){0})); CASE(ppoll(0, 0, &(struct timespec){0}, 0)); CASE(poll(0, 0, 0)); CASE(S(pselect6, 0, 0, 0, 0, &(struct timespec){0}, 0));
    section = "data";
    CASE(sendfile(file, memory, 0, 1)); CASE(copy_file_range(file, 0, file, 0, 1, 0)); CASE(splice(memory, 0, pipes[1], 0, 1, 0)); CASE(splice(pipes[0], 0, file, 0, 1, SPLICE_F_NONBLOCK));
    CASE(write(file, 0, 0)); CASE(read(file, 0, 0)); CASE(preadv(file, 0, 0, 0)); CASE(S(fadvise64, file, 0, 0, 0)); CASE(msync(0, 0, MS_SYNC)); CASE(madvise(0, 0, MADV_DONTNEED)); CASE(S(mincore, 0, 0, 0));
    CASE(setxattr("nulls", "user.x", 0, 0, 0)); CASE(getxattr("nulls", "user.x", 0, 0)); CASE(listxattr("nulls", 0, 0) >= 0); CASE(fgetxattr(file, "user.x", 0, 0)); CASE(ioctl(file, FS_IOC_GETFLAGS, 0)); CASE(ioctl(file, 0x5401, 0));
    CASE(fcntl(file, F_GETLK, 0)); CASE(fcntl(file, F_GETFL, 0)); CASE(S(getdents64, file, 0, 0));
    section = "sockets";
    CASE(setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, 0, 0)); CASE(setsockopt(ends[0], SOL_SOCKET, SO_ATTACH_BPF, 0, 4)); CASE(getsockname(ends[0], 0, 0)); CASE(connect(ends[0], 0, 0)); CASE(bind(ends[0], 0, 0));
    CASE(sendmsg(ends[0], 0, 0)); CASE(recvmsg(ends[0], 0, MSG_DONTWAIT)); CASE(accept(ends[0], 0, 0)); CASE(recvfrom(ends[0], 0, 0, MSG_DONTWAIT, 0, 0)); CASE(sendto(ends[0], "x", 1, 0, 0, 0)); CASE(S(sendmmsg, ends[0], 0, 1, 0)); CASE(S(recvmmsg, ends[0], 0, 1, MSG_DONTWAIT, 0));
    section = "processes";
    CASE(prctl(PR_SET_SECCOMP, 2, 0)); CASE(S(seccomp, 1, 0, 0)); CASE(S(rt_sigaction, SIGUSR1, 0, 0, 8)); CASE(S(rt_sigprocmask, 0, 0, 0, 8)); CASE(sigaltstack(0, 0)); CASE(S(clone3, 0, 0)); CASE(S(capset, 0, 0)); CASE(S(setgroups, 0, 0));
    CASE(execve("/bin/true", program, 0)); CASE(execve("/bin/true", 0, 0)); CASE(execve(0, program, 0)); CASE(S(execveat, file, 0, program, 0, AT_EMPTY_PATH)); CASE(S(wait4, -1, 0, WNOHANG, 0)); CASE(S(futex, 0, 1, 1, 0, 0, 0));
    CASE(epoll_ctl(epoll_create1(0), EPOLL_CTL_DEL, ends[0], 0)); CASE(S(epoll_pwait, epoll_create1(0), 0, 1, 0, 0, 8)); CASE(S(io_submit, 0, 1, 0)); CASE(S(io_getevents, 0, 0, 1, 0, 0)); CASE(S(io_setup, 1, 0)); CASE(inotify_add_watch(inotify_init1(0), 0, 1));
    return 0;
}
