// A child that is made without its parent's handlers of signals (CLONE_CLEAR_SIGHAND): what it has of them, and what it may do with bad addresses
// and with maps that others make longer.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void handler(int signal) { dprintf(1, "handler of %d\n", signal); }

static void show(int signal) {
    struct sigaction action;
    sigaction(signal, NULL, &action);
    dprintf(1, "%d: %s\n", signal, action.sa_handler == SIG_DFL ? "default" : action.sa_handler == SIG_IGN ? "ignored" : "a handler");
}

int main(void) {
    unsigned long long call[11] = {0x100000000ULL, 0, 0, 0, SIGCHLD};
    int to_child[2], to_parent[2], status = -1;
    char text[8] = {0};
    signal(SIGUSR1, handler);
    signal(SIGUSR2, SIG_IGN);
    signal(SIGSEGV, handler);
    signal(SIGBUS, SIG_IGN);
    int file = open("file", O_CREAT | O_RDWR | O_TRUNC, 0600);
    if (write(file, "hello", 5) != 5 || pipe(to_child) || pipe(to_parent)) return 1;
    int child = syscall(SYS_clone3, call, sizeof call);
    if (child < 0) return 2;
    if (child == 0) {
        show(SIGUSR1), show(SIGUSR2), show(SIGSEGV), show(SIGBUS);
        dprintf(1, "%s\n", pread(file, (void *)8, 5, 0) < 0 ? strerror(errno) : "read");
        dprintf(1, "%s\n", open((char *)16, O_RDONLY) < 0 ? strerror(errno) : "opened");
        char *map = mmap(NULL, 8192, PROT_READ, MAP_SHARED, file, 0);
        dprintf(1, "%.5s\n", map);
        if (write(to_parent[1], "x", 1) != 1 || read(to_child[0], text, 1) != 1) _exit(1);
        dprintf(1, "%c\n", map[4096]);
        signal(SIGUSR1, handler);
        raise(SIGUSR1);
        raise(SIGUSR2);
        if (pread(file, text, 5, 0) == 5) dprintf(1, "%s\n", text);
        raise(SIGSEGV);
        _exit(0);
    }
    close(to_parent[1]);
    if (read(to_parent[0], text, 1) != 1 || ftruncate(file, 8192) || pwrite(file, "G", 1, 4096) != 1) return 3;
    if (write(to_child[1], "x", 1) != 1 || waitpid(child, &status, 0) != child) return 4;
    printf("killed by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    fflush(stdout);
    show(SIGUSR1), show(SIGUSR2), show(SIGSEGV), show(SIGBUS);
    raise(SIGUSR1);
    return 0;
}
