// A signal that comes while the program waits for a lock in a volume reaches its handler, with what it was sent with: once with a handler that
// takes no information, which the kernel then leaves out, so that what stood on the signal stack before is there instead; once with one that does.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WANTED = 3, STACK_BYTES = 256 * 1024 };
static volatile int signals, wrong, release_lock;
static pid_t sender;

static void came(void) {
    if (++signals == WANTED) (void)!write(release_lock, "x", 1);
}
static void plain(int signal) {
    wrong += signal != SIGUSR1;
    came();
}
static void informed(int signal, siginfo_t *information, void *context) {
    (void)context;
    wrong += signal != SIGUSR1 || information->si_signo != SIGUSR1 || information->si_code != SI_QUEUE ||
             information->si_pid != sender || information->si_value.sival_int != 4711;
    came();
}

static void wait_for_lock(int file, int takes_information) {
    int hold[2], ready[2];
    char byte;
    if (pipe(hold) || pipe(ready)) exit(2);
    pid_t holder = fork();
    if (!holder) {
        struct flock lock = {.l_type = F_WRLCK};
        close(hold[1]);
        int own = open("lock", O_RDWR);
        if (fcntl(own, F_SETLK, &lock) || write(ready[1], "x", 1) != 1) _exit(1);
        _exit(read(hold[0], &byte, 1) != 1);
    }
    if (read(ready[0], &byte, 1) != 1) exit(3);
    signals = wrong = 0;
    release_lock = hold[1];
    struct sigaction action = {.sa_flags = SA_RESTART | SA_ONSTACK};
    if (takes_information) {
        action.sa_flags |= SA_SIGINFO;
        action.sa_sigaction = informed;
    } else {
        action.sa_handler = plain;
    }
    sigaction(SIGUSR1, &action, 0);
    struct sigaction seen;
    sigaction(SIGUSR1, 0, &seen);
    int shown = (seen.sa_flags & ~0x04000000) == action.sa_flags && seen.sa_handler == action.sa_handler;
    pid_t parent = getpid();
    sigset_t user, before;
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    sigprocmask(SIG_BLOCK, &user, &before);
    sender = fork();
    if (!sender) {
        while (getppid() == parent) {
            usleep(20000);
            sigqueue(parent, SIGUSR1, (union sigval){.sival_int = 4711});
        }
        _exit(1);
    }
    sigprocmask(SIG_SETMASK, &before, 0);
    struct flock lock = {.l_type = F_WRLCK};
    int result = fcntl(file, F_SETLKW, &lock), status;
    kill(sender, SIGKILL);
    waitpid(sender, &status, 0);
    waitpid(holder, &status, 0);
    printf("information %d: lock %d, enough signals %d, wrong %d, action as set %d\n", takes_information, result,
           signals >= WANTED, wrong, shown);
    lock.l_type = F_UNLCK;
    fcntl(file, F_SETLK, &lock);
}

int main(void) {
    alarm(300);
    char *stack = malloc(STACK_BYTES);
    int file = open("lock", O_RDWR | O_CREAT, 0600);
    for (int round = 0; round < 2; round++) {
        // No information that a signal can come with looks like this.
        memset(stack, 0x80, STACK_BYTES);
        stack_t alternate = {.ss_sp = stack, .ss_size = STACK_BYTES};
        sigaltstack(&alternate, 0);
        wait_for_lock(file, round);
    }
    return 0;
}
