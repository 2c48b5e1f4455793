// Children that put a filter of system calls on themselves which kills (or refuses) what it does not list, as those who look after strangers do, and
// end, fork, or have threads: none makes a call that it would not make itself. How each ended is told.
//   enclosed DIRECTORY
#include "say.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

enum { MOST = 64 };

static void install(unsigned otherwise, const int *allowed, int count) {
    struct sock_filter code[2 * MOST + 2] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
    int at = 1;
    for (int i = 0; i < count; i++) {
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
    struct sock_fprog program = {at, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) say("no filter: %s", strerrorname_np(errno));
}
static const int few[] = {SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_close, SYS_pread64};
static const int threads[] = {
    SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_close, SYS_clone, SYS_fork, SYS_clone3, SYS_wait4, SYS_futex, SYS_mmap,
    SYS_mprotect, SYS_brk, SYS_madvise, SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_set_robust_list, SYS_rseq, SYS_getrandom, SYS_gettid,
};
#define FEW few, sizeof few / sizeof *few
#define THREADS threads, sizeof threads / sizeof *threads

static void become_nobody(void) {
    if (geteuid()) return;
    S(setgroups, 0, 0);
    S(setresgid, 65534, 65534, 65534);
    S(setresuid, 65534, 65534, 65534);
}
static void *end_at_once(void *what) { return what; }
static void thread(void) {
    pthread_t other;
    if (!pthread_create(&other, 0, end_at_once, 0)) pthread_join(other, 0);
}
static int used = -1;
static void use(void) {
    char bytes[4];
    used = open("enclosed", O_RDWR | O_CREAT, 0666);
    write(used, "abcd", 4);
}
static int use_more(void) {
    char bytes[4];
    return pread(used, bytes, 4, 0) + (write(used, "efgh", 4) == 4 ? 10 : 0) + (close(used) == 0 ? 20 : 0);
}

#define CASE(...) do { \
    int how, child = fork(); \
    if (!child) { __VA_ARGS__; S(exit_group, 99); } \
    waitpid(child, &how, 0); \
    say("%s: %x", #__VA_ARGS__, how); \
} while (0)

int main(int count, char **arguments) {
    unsigned kill = SECCOMP_RET_KILL_PROCESS, refuse = SECCOMP_RET_ERRNO | EPERM;
    if (chdir(arguments[1])) return 1;
    CASE(chdir("/"); install(kill, FEW); _exit(3));
    CASE(install(refuse, FEW); _exit(3));
    CASE(use(); install(kill, FEW); _exit(4));
    CASE(use(); install(refuse, FEW); _exit(4));
    CASE(use(); install(kill, FEW); _exit(use_more()));
    CASE(use(); become_nobody(); install(kill, FEW); _exit(use_more()));
    CASE(become_nobody(); install(kill, FEW); _exit(5));
    CASE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); S(exit, 6));
    CASE(use(); prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); S(exit, 6));
    CASE(use(); flock(used, LOCK_EX); install(kill, FEW); _exit(7));
    // The lock has ended with its owner.
    CASE(use(); _exit(flock(used, LOCK_EX | LOCK_NB) ? 1 : 8));
    CASE(use(); unlink("enclosed"); install(kill, FEW); _exit(9));
    CASE(thread(); install(kill, FEW); _exit(10));
    CASE(install(kill, THREADS); thread(); _exit(11));
    CASE(use(); install(kill, THREADS); int how, child = S(fork); if (!child) _exit(12); S(wait4, child, &how, 0, 0); _exit(how >> 8));
    // Who only asks whether there are filters has none.
    CASE(result("asked", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0)); use(); _exit(13));
    return 0;
}
