/* Backtraces from where a thread waits in the kernel, as a profiler's signal handler takes them: they must reach the functions that wait. */
#define _GNU_SOURCE
#include <execinfo.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t found;
extern char __start_waits, __stop_waits;

static void handler(int signal) {
    (void)signal;
    void *frames[64];
    int count = backtrace(frames, 64);
    for (int i = 0; i < count; i++)
        if ((char *)frames[i] >= &__start_waits && (char *)frames[i] < &__stop_waits) found = 1;
}

static int descriptors[2];
#define WAITS __attribute__((noinline, noclone, section("waits")))
WAITS static int wait_read(void) { char c; int r = read(descriptors[0], &c, 1); __asm__ volatile(""); return r; }
WAITS static int wait_poll(void) { struct pollfd p = {descriptors[0], POLLIN, 0}; int r = poll(&p, 1, -1); __asm__ volatile(""); return r; }
WAITS static int wait_receive(void) { char c; struct iovec v = {&c, 1}; struct msghdr m = {0, 0, &v, 1, 0, 0, 0}; int r = recvmsg(descriptors[0], &m, 0); __asm__ volatile(""); return r; }
WAITS static int wait_child(void) { int r = waitid(P_ALL, 0, &(siginfo_t){0}, WEXITED); __asm__ volatile(""); return r; }

int main(void) {
    struct { const char *name; int (*wait)(void); } all[] = {
        {"read", wait_read}, {"poll", wait_poll}, {"recvmsg", wait_receive}, {"waitid", wait_child}};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    sigaction(SIGALRM, &action, 0);
    void *warm[2]; backtrace(warm, 2);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, descriptors)) return 1;
    int child = fork();
    if (child == 0) { pause(); _exit(0); }
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        /* Until the signal meets the thread in the call: it can come before, and so comes again. */
        int met = 0;
        for (int tries = 0; tries < 200 && !met; tries++) { found = 0; ualarm(20000, 20000); all[i].wait(); ualarm(0, 0); met = found; }
        printf("%s %s\n", all[i].name, met ? "seen" : "lost");
    }
    kill(child, SIGKILL);
    return 0;
}
