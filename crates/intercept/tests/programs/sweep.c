// Every system call with every kind of descriptor, told by its error or that it had none: fixed arguments, then random ones of a seed.
//   sweep DIRECTORY ROUNDS SEED   an empty directory; so many random tries of each call and kind
#include "say.h"
#include <sys/timerfd.h>

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))
#define CALLS 470

// What would end the program, wait, change the machine or other processes, or depends on what else runs.
static const short LEFT_OUT[] = {
    SYS_poll, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_pipe, SYS_select, SYS_shmget, SYS_pause, SYS_nanosleep, SYS_getitimer, SYS_alarm, SYS_setitimer,
    SYS_clone, SYS_fork, SYS_vfork, SYS_execve, SYS_exit, SYS_wait4, SYS_kill, SYS_semget, SYS_msgget, SYS_ptrace, SYS_syslog, SYS_setuid, SYS_setgid, SYS_setpgid, SYS_setsid, SYS_setreuid, SYS_setregid,
    SYS_setgroups, SYS_setresuid, SYS_setresgid, SYS_setfsuid, SYS_setfsgid, SYS_capset, SYS_rt_sigtimedwait, SYS_rt_sigqueueinfo, SYS_rt_sigsuspend, SYS_uselib, SYS_personality, SYS_ustat, SYS_setpriority,
    SYS_sched_setparam, SYS_sched_setscheduler, SYS_sched_rr_get_interval, SYS_mlock, SYS_munlock, SYS_mlockall, SYS_munlockall, SYS_vhangup, SYS_modify_ldt, SYS_pivot_root, SYS__sysctl, SYS_prctl,
    SYS_arch_prctl, SYS_adjtimex, SYS_setrlimit, SYS_chroot, SYS_sync, SYS_acct, SYS_settimeofday, SYS_mount, SYS_umount2, SYS_swapon, SYS_swapoff, SYS_reboot, SYS_sethostname, SYS_setdomainname, SYS_iopl,
    SYS_ioperm, SYS_create_module, SYS_init_module, SYS_delete_module, SYS_get_kernel_syms, SYS_query_module, SYS_quotactl, SYS_nfsservctl, SYS_tkill, SYS_futex, SYS_sched_setaffinity, SYS_sched_getaffinity,
    SYS_set_thread_area, SYS_get_thread_area, SYS_lookup_dcookie, SYS_set_tid_address, SYS_restart_syscall, SYS_clock_settime, SYS_clock_nanosleep, SYS_exit_group, SYS_epoll_wait, SYS_tgkill, SYS_mq_open, SYS_kexec_load, SYS_waitid,
    SYS_add_key, SYS_request_key, SYS_keyctl, SYS_ioprio_set, SYS_migrate_pages, SYS_pselect6, SYS_ppoll, SYS_unshare, SYS_set_robust_list, SYS_get_robust_list, SYS_epoll_pwait, SYS_rt_tgsigqueueinfo, SYS_perf_event_open, SYS_prlimit64,
    SYS_clock_adjtime, SYS_setns, SYS_process_vm_readv, SYS_process_vm_writev, SYS_sched_setattr, SYS_seccomp, SYS_kexec_file_load, SYS_bpf, SYS_execveat, SYS_userfaultfd, SYS_membarrier, SYS_rseq, SYS_pidfd_send_signal,
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_clone3, SYS_close_range, SYS_epoll_pwait2, SYS_quotactl_fd, SYS_landlock_restrict_self, SYS_memfd_secret, SYS_process_mrelease, SYS_futex_waitv,
    // Numbers stand for other programs' segments, queues, semaphores and processes.
    SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_semop, SYS_semctl, SYS_semtimedop, SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_move_pages,
    SYS_mount_setattr, SYS_move_mount, SYS_fspick, SYS_finit_module, SYS_mincore, SYS_munmap, SYS_brk, SYS_times, SYS_gettid, SYS_getcwd,
};
static int is_left_out(int number) {
    for (int i = 0; i < COUNT(LEFT_OUT); i++) if (LEFT_OUT[i] == number) return 1;
    // Numbers without a call; those of futexes, security modules, memory and mounts that this C library has no names for.
    return (number > 334 && number < 424) || (number > 452 && number < 457) || (number > 458 && number < 463) || number == 467;
}

enum { R, W, RW, APPEND, DIRECTORY, UNNAMED, REMOVED, PATH, PATH_DIRECTORY, PATH_LINK, PATH_FIFO, PATH_SOCKET, PATH_DEVICE, PATH_REMOVED, PATH_REMOVED_DIRECTORY, REMOVED_DIRECTORY, CLOSED, KINDS };
static const char *KIND[] = {"r", "w", "rw", "append", "directory", "unnamed", "removed", "path", "path of directory", "path of link", "path of fifo", "path of socket", "path of device", "path of removed", "path of removed directory", "removed directory", "closed"};
static char outside[] = "/tmp/gannet-sweep-XXXXXX", place[4096], memory_[8192], *text = memory_ + 16;

static void furnish(void) {
    chdir(place); make("f", "0123456789abcdef"); make("g", "x"); mkdir("d", 0755); make("d/in", "in"); symlink("f", "link"); mkfifo("fifo", 0600); mknod("socket", S_IFSOCK | 0600, 0); mknod("device", S_IFCHR | 0600, makedev(1, 3));
    memset(memory_, 0, sizeof memory_);
}
static int opened(int kind) {
    int fd = -1;
    switch (kind) {
    case R: return open("f", O_RDONLY);
    case W: return open("f", O_WRONLY);
    case RW: return open("f", O_RDWR);
    case APPEND: return open("f", O_RDWR | O_APPEND);
    case DIRECTORY: return open("d", O_RDONLY);
    case UNNAMED: return open(".", O_TMPFILE | O_RDWR, 0600);
    case REMOVED: make("gone", "gone"); fd = open("gone", O_RDWR); unlink("gone"); return fd;
    case PATH: return open("f", O_PATH);
    case PATH_DIRECTORY: return open("d", O_PATH);
    case PATH_LINK: return open("link", O_PATH | O_NOFOLLOW);
    case PATH_FIFO: return open("fifo", O_PATH);
    case PATH_SOCKET: return open("socket", O_PATH);
    case PATH_DEVICE: return open("device", O_PATH);
    case PATH_REMOVED: make("gone", "gone"); fd = open("gone", O_PATH); unlink("gone"); return fd;
    case PATH_REMOVED_DIRECTORY: mkdir("gone", 0755); fd = open("gone", O_PATH); rmdir("gone"); return fd;
    case REMOVED_DIRECTORY: mkdir("gone", 0755); fd = open("gone", O_RDONLY); rmdir("gone"); return fd;
    default: close(fd = open("f", O_RDONLY)); return fd;
    }
}
static const char *answer(long value) { return value == -1 ? strerrorname_np(errno) ?: "?" : value == 0 ? "0" : "more"; }

static unsigned long long seed;
static unsigned random_below(unsigned bound) { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return (seed >> 11) % bound; }

static void try_call(int kind, int number, int rounds) {
    furnish();
    int ends[2], pair[2], events = epoll_create1(0), counter = eventfd(1, EFD_NONBLOCK), host = memfd_create("host", 0), directory = open(outside, O_RDONLY);
    pipe2(ends, O_NONBLOCK); write(ends[1], "pipe", 4); socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair); write(pair[1], "sock", 4); write(host, "memory", 6); lseek(host, 0, 0);
    for (int round = -6; round < rounds; round++) {
        int fd = opened(kind);
        long pool[] = {0, 1, 2, 8, 4096, -1, AT_FDCWD, (long)text, (long)text, (long)"f", (long)"d", (long)"", (long)"none", (long)"f/x", (long)"link", (long)"security.capability", (long)"user.x", (long)memory_ + sizeof memory_, 0x1000, 0x100, 0x80000, -2147483648L, 0x7fffffffffffffffL,
                       ends[0], ends[1], pair[0], events, counter, host, directory, fd, fd, fd, fd, fd, fd};
        long a[6] = {fd, 0, 0, 0, 0, 0};
        switch (round) {
        case -6: break;
        case -5: a[1] = 8; a[2] = 1; break;
        case -4: a[1] = (long)text; a[2] = 10; break;
        case -3: a[1] = a[2] = a[3] = a[4] = a[5] = -1; break;
        case -2: a[1] = (long)"f"; a[2] = (long)text; a[3] = (long)text; a[4] = 16; break;
        case -1: a[1] = (long)""; a[2] = (long)text; a[3] = 0x1000; a[4] = 0x1000; break;
        default: for (int i = 0; i < 6; i++) a[i] = i == 0 && random_below(2) ? fd : pool[random_below(COUNT(pool))];
        }
        char arguments[200]; int length = 0;
        for (int i = 0; i < 6; i++) {
            long v = a[i];
            const char *name = v == fd && kind != CLOSED ? "FD" : v == (long)text ? "text" : v == (long)memory_ + sizeof memory_ ? "end" : v == ends[0] ? "pipe" : v == ends[1] ? "into pipe" : v == pair[0] ? "socket" : v == events ? "epoll" : v == counter ? "event" : v == host ? "memory" : v == directory ? "outside" : 0;
            for (int p = 9; !name && p < 17; p++) if (v == pool[p]) name = (char *)v;
            length += name ? snprintf(arguments + length, sizeof arguments - length, "%s%s", i ? ", " : "", name) : snprintf(arguments + length, sizeof arguments - length, "%s%ld", i ? ", " : "", v);
        }
        errno = 0;
        long value = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
        const char *told = answer(value);
        // What the next try must find.
        say("%s: call %d (%s): %s", KIND[kind], number, arguments, told);
        if (kind != CLOSED) close(fd);
        memset(memory_, 0, sizeof memory_);
        chdir(place);
    }
}

// Calls that wait, with nothing to wait for.
static void waits(int kind) {
    furnish();
    int fd = opened(kind), events = epoll_create1(0); fd_set set; struct timeval none = {0, 0}; struct timespec now = {0, 0}; struct epoll_event event = {EPOLLIN, {0}};
    struct pollfd polled = {fd, POLLIN | POLLOUT, 0};
#define TELL(call) do { errno = 0; long r_ = (long)(call); say("%s: %s: %s", KIND[kind], #call, answer(r_)); } while (0)
    TELL(poll(&polled, 1, 0)); say("%s: events %x", KIND[kind], polled.revents); TELL(ppoll(&polled, 1, &now, 0));
    FD_ZERO(&set); FD_SET(fd, &set); TELL(select(fd + 1, &set, 0, 0, &none)); FD_ZERO(&set); FD_SET(fd, &set); TELL(select(fd + 1, 0, &set, 0, &none)); FD_ZERO(&set); FD_SET(fd, &set); TELL(pselect(fd + 1, 0, 0, &set, &now, 0));
    TELL(epoll_ctl(events, EPOLL_CTL_ADD, fd, &event)); TELL(epoll_ctl(events, EPOLL_CTL_MOD, fd, &event)); TELL(epoll_ctl(events, EPOLL_CTL_DEL, fd, &event)); TELL(epoll_ctl(fd, EPOLL_CTL_ADD, events, &event)); TELL(epoll_wait(fd, &event, 1, 0));
    for (int command = 0; command < 17; command++) if (command != F_SETLKW && command != F_SETOWN) { errno = 0; long r = fcntl(fd, command, 0); say("%s: fcntl %d: %s", KIND[kind], command, answer(r)); if (command == F_DUPFD && r > 0) close(r); }
    for (int command = 1024; command < 1045; command++) { errno = 0; long r = fcntl(fd, command, text); say("%s: fcntl %d: %s", KIND[kind], command, answer(r)); }
    struct flock lock = {.l_type = F_WRLCK}; TELL(fcntl(fd, F_SETLK, &lock)); TELL(fcntl(fd, F_GETLK, &lock)); TELL(fcntl(fd, F_OFD_SETLK, &lock)); TELL(flock(fd, LOCK_EX | LOCK_NB)); TELL(flock(fd, LOCK_UN)); TELL(flock(fd, 64));
    char room[CMSG_SPACE(sizeof(int))]; struct iovec part = {text, 1}; int pair[2]; socketpair(AF_UNIX, SOCK_DGRAM, 0, pair); struct msghdr message = {0, 0, &part, 1, room, sizeof room, 0}; struct cmsghdr *head = CMSG_FIRSTHDR(&message); head->cmsg_level = SOL_SOCKET; head->cmsg_type = SCM_RIGHTS; head->cmsg_len = CMSG_LEN(sizeof(int)); memcpy(CMSG_DATA(head), &fd, sizeof fd);
    TELL(sendmsg(pair[0], &message, 0)); TELL(recvmsg(pair[1], &message, MSG_DONTWAIT)); int got = -1; if (message.msg_controllen) memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got); say("%s: flags of what was received: %x", KIND[kind], fcntl(got, F_GETFL) & ~O_LARGEFILE); polled.fd = got; TELL(poll(&polled, 1, 0)); say("%s: its events %x", KIND[kind], polled.revents);
    char link[100], name[100]; snprintf(name, sizeof name, "/proc/self/fd/%d", fd); TELL(readlink(name, link, sizeof link)); TELL(open(name, O_RDONLY | O_NONBLOCK)); TELL(open(name, O_PATH)); TELL(chmod(name, 0600)); TELL(linkat(AT_FDCWD, name, AT_FDCWD, "linked", AT_SYMLINK_FOLLOW)); TELL(linkat(fd, "", AT_FDCWD, "linked too", AT_EMPTY_PATH)); TELL(truncate(name, 3)); TELL(setxattr(name, "trusted.x", "1", 1, 0));
    TELL(mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0); TELL(mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0); TELL(mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0); TELL(mmap(0, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0); TELL(mmap(0, -1, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0); TELL(mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 1) == MAP_FAILED ? -1 : 0); TELL(mmap(0, 4096, PROT_READ, 0, fd, 0) == MAP_FAILED ? -1 : 0);
}

int main(int count, char **arguments) {
    snprintf(place, sizeof place, "%s", arguments[1]); int rounds = atoi(arguments[2]); unsigned long long first = strtoull(arguments[3], 0, 10);
    told_to = fcntl(1, F_DUPFD, 900); int nothing = memfd_create("nothing", 0); for (int i = 0; i < 3; i++) dup2(nothing, i); close(nothing);
    // Calls change what they are given: nothing of the machine's is.
    if (!mkdtemp(outside)) return 2;
    section = "sweep"; signal(SIGIO, SIG_IGN); signal(SIGPIPE, SIG_IGN); signal(SIGXFSZ, SIG_IGN); umask(022); if (chdir(place)) return 1;
    for (int kind = 0; kind < KINDS; kind++) for (int number = -1; number < CALLS; number++) {
        if (number >= 0 && is_left_out(number)) continue;
        pid_t child = fork();
        if (!child) {
            struct rlimit none = {0, 0}; setrlimit(RLIMIT_CORE, &none); alarm(60);
            seed = (first * 1000003 + kind * 1009 + number + 2) * 0x9e3779b97f4a7c15ull | 1;
            if (number < 0) waits(kind); else try_call(kind, number, rounds);
            _exit(0);
        }
        int how; waitpid(child, &how, 0);
        if (how) say("%s: call %d ended by %d", KIND[kind], number, WTERMSIG(how));
    }
    char command[100]; snprintf(command, sizeof command, "rm -rf %s", outside); system(command);
    section = "end"; say("done");
    return 0;
}
