/* Children that share their parent's memory are killed in the midst of what they do: the parent, and its other threads, go on as if nothing had been.
 *
 *   reaped SEED KILLS */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STACK_BYTES = 65536 };
static volatile int ended, handled, *going;
static int kept;
static volatile long turns[2];

static void handle(int signal) { handled++; }

/* What a child does until it is killed. */
static int work(void *which) {
    long kind = (long)which;
    *going = getpid();
    for (unsigned i = 0;; i++) {
        struct stat status;
        struct sigaction action;
        int file;
        switch (kind) {
        case 0:
            file = open("child", O_CREAT | O_RDWR, 0600);
            if (write(file, "hello", 5) != 5) _exit(1);
            if (fstat(file, &status) || close(file) || rename("child", "renamed") || unlink("renamed")) _exit(2);
            break;
        case 1:
            if (sigaction(1 + i % 30, 0, &action) && errno != EINVAL) _exit(3);
            break;
        case 2: {
            char *map = mmap(0, 8192, PROT_READ, MAP_SHARED, kept, 0);
            if (map == MAP_FAILED || munmap(map, 8192)) _exit(4);
            break;
        }
        default:
            file = dup2(kept, 50);
            if (file != 50 || fcntl(file, F_GETFL) == -1 || close(file)) _exit(5);
        }
    }
}

/* Another thread of the parent, which must not wait for ever. */
static void *beside(void *unused) {
    struct sigaction action;
    while (!ended) {
        int file = open("beside", O_CREAT | O_RDWR, 0600);
        char *map = mmap(0, 4096, PROT_READ, MAP_SHARED, kept, 0);
        if (file < 0 || map == MAP_FAILED || munmap(map, 4096) || close(file)) { perror("beside"); exit(9); }
        sigaction(SIGUSR2, 0, &action);
        turns[0]++;
    }
    return 0;
}

/* Nobody else may be kept from going on when it kills. */
static void *kills(void *seed) {
    unsigned random = (long)seed;
    while (!ended) {
        int child = *going;
        if (!child) { sched_yield(); continue; }
        struct timespec wait = {0, rand_r(&random) % 300000};
        nanosleep(&wait, 0);
        *going = 0;
        kill(child, SIGKILL);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    going = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int killer = fork();
    if (!killer) { kills((void *)(long)atoi(argv[1])); }
    kept = open("kept", O_CREAT | O_RDWR, 0600);
    ftruncate(kept, 16384);
    char *map = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, kept, 0);
    signal(SIGUSR1, handle);
    pthread_t thread;
    if (atoi(argv[3])) pthread_create(&thread, 0, beside, 0);
    char *stack = malloc(STACK_BYTES);
    for (long i = 0; i < atoi(argv[2]); i++) {
        int status, before = handled;
        alarm(20);
        pid_t child = clone(work, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)(i % 4));
        if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) { printf("%ld: ended with %x\n", i, status); break; }
        raise(SIGUSR1);
        if (handled != before + 1) { printf("%ld: no signal\n", i); break; }
        struct stat about;
        char text[6] = "";
        if (fstat(kept, &about) || about.st_size != 16384) { printf("%ld: fstat: %s\n", i, strerror(errno)); break; }
        if (pwrite(kept, "there", 5, 0) != 5 || memcmp(map, "there", 5)) { printf("%ld: the map\n", i); break; }
        int file = open("kept", O_RDONLY);
        if (read(file, text, 5) != 5 || strcmp(text, "there") || close(file)) { printf("%ld: a file: %s\n", i, strerror(errno)); break; }
        long turn = turns[0];
        while (atoi(argv[3]) && turns[0] == turn) sched_yield();
        if (i + 1 == atoi(argv[2])) printf("ok\n");
    }
    ended = 1;
    kill(killer, SIGKILL);
    fflush(stdout);
    _exit(0);
}
