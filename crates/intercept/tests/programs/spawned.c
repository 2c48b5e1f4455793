/* What a child that shares its parent's memory is told of signals, and sets: its own, not its parent's. Prints "ok" or what was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int caught;
static void handler(int number) { caught = number; }
static int bad;

static void check(int holds, const char *what) {
    if (!holds) { bad = 1; dprintf(1, "%s: errno %d\n", what, errno); }
}

int main(void) {
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART }, old;
    sigaddset(&action.sa_mask, SIGHUP);
    check(sigaction(SIGUSR1, &action, 0) == 0, "set");
    pid_t child = vfork();
    if (child == 0) {
        memset(&old, 1, sizeof old);
        check(sigaction(SIGUSR1, 0, &old) == 0 && old.sa_handler == handler, "the parent's handler");
        check(old.sa_flags & SA_RESTART && sigismember(&old.sa_mask, SIGHUP) == 1, "its flags and mask");
        check(sigaction(SIGUSR2, 0, &old) == 0 && old.sa_handler == SIG_DFL, "none");
        action.sa_handler = SIG_IGN;
        check(sigaction(SIGUSR1, &action, &old) == 0 && old.sa_handler == handler, "ignored");
        check(sigaction(SIGUSR1, 0, &old) == 0 && old.sa_handler == SIG_IGN, "ignored since");
        check(syscall(SYS_rt_sigaction, SIGUSR1, 0, 8, 8) == -1 && errno == EFAULT, "a bad address to be told at");
        check(syscall(SYS_rt_sigaction, SIGUSR1, 8, 0, 8) == -1 && errno == EFAULT, "a bad address of an action");
        check(syscall(SYS_rt_sigaction, 65, 0, 0, 8) == -1 && errno == EINVAL, "no signal");
        check(syscall(SYS_rt_sigaction, SIGUSR1, 0, 0, 4) == -1 && errno == EINVAL, "another size");
        /* The last: by it bad addresses are noticed. */
        check(sigaction(SIGSEGV, &action, 0) == 0 && sigaction(SIGSEGV, 0, &old) == 0 && old.sa_handler == SIG_IGN, "SIGSEGV");
        _exit(0);
    }
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "the child");
    check(sigaction(SIGUSR1, 0, &old) == 0 && old.sa_handler == handler, "the handler behind the child");
    raise(SIGUSR1);
    check(caught == SIGUSR1, "caught");
    check(syscall(SYS_rt_sigaction, SIGUSR1, 8, 0, 8) == -1 && errno == EFAULT, "a bad address in the parent");
    if (!bad) puts("ok");
    return bad;
}
