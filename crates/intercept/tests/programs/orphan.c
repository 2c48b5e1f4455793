/* Processes are killed while children that share their memory work in the current directory, and a bystander works beside them.
 *
 *   orphan SEED KILLS
 *
 * No call of the bystander may fail. A child's may, with EIO, once its parent is dead. Prints "ok" or what was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK_BYTES = 65536, FILES = 8, IDENTITIES = 50, BYSTANDER = 1 };
#define WORKS(x) do { if (!(x)) { if (errno == EIO && identity != BYSTANDER) return 0; dprintf(1, "%d: %s: errno %d\n", identity, #x, errno); return 1; } } while (0)

/* Makes, fills, renames and removes files that are its own, and adds to one that is everybody's. */
static int work(int identity, int rounds) {
    char first[40], second[40];
    struct stat status;
    for (int i = 0; i < rounds; i++) {
        snprintf(first, sizeof first, "a%d.%d", identity, i % FILES);
        snprintf(second, sizeof second, "b%d.%d", identity, i % FILES);
        int file = open(first, O_CREAT | O_RDWR | O_TRUNC, 0600), log;
        WORKS(file >= 0);
        WORKS(write(file, "hello", 5) == 5);
        WORKS(rename(first, second) == 0);
        WORKS(fstat(file, &status) == 0 && status.st_size == 5);
        WORKS(close(file) == 0);
        WORKS((log = open("log", O_CREAT | O_WRONLY | O_APPEND, 0600)) >= 0);
        WORKS(write(log, "x", 1) == 1);
        WORKS(close(log) == 0);
        WORKS(unlink(second) == 0);
    }
    return 0;
}

static int child(void *identity) { _exit(work((int)(long)identity, 40)); }

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    srand(atoi(argv[1]));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int status, ended, bad = 0, bystander = fork();
    if (bystander == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (work(BYSTANDER, 100) == 0) ;
        _exit(1);
    }
    for (int kill_number = 0; kill_number < atoi(argv[2]); kill_number++) {
        int parent = fork();
        if (parent == 0) {
            char *stack = malloc(STACK_BYTES);
            void *identity = (void *)(long)(BYSTANDER + 1 + kill_number % IDENTITIES);
            for (;;) {
                waitpid(clone(child, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, identity), &status, 0);
                if (status) _exit(9);
            }
        }
        usleep(500 + rand() % 3000);
        kill(parent, SIGKILL);
        while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
            if (ended == bystander || WIFEXITED(status) && WEXITSTATUS(status)) { printf("%s ended with %x\n", ended == bystander ? "the bystander" : "a child", status); bad = 1; }
        }
        if (bad) break;
    }
    kill(bystander, SIGKILL);
    /* Those whose parents are gone come to us; they end by themselves. */
    while (wait(&status) > 0) ;
    if (!bad) printf("ok\n");
    return bad;
}
