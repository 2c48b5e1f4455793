/* What a process with several threads must not notice of itself, in the current directory.
 *
 *   together numbers   a child that shares the memory opens a number that a thread of its parent closes meanwhile
 *   together end       threads use files while another ends the process
 *   together nested    a child that shares the memory has one too, and one has its grandparent for a parent
 *
 * Prints "ok" or what was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { char text[200]; int n = snprintf(text, sizeof text, "FAILED %s:%d %s (errno %d)\n", __func__, __LINE__, #x, errno); write(1, text, n); _exit(1); } } while (0)

static atomic_int opened_by_child, closed_by_parent;

static void *opens_and_closes(void *argument) {
    (void)argument;
    while (!opened_by_child) sched_yield();
    /* Whatever is free below the child's number, and then that number. */
    int number;
    do { number = open("parent", O_CREAT | O_RDWR, 0600); CHECK(number >= 0); } while (number < opened_by_child);
    CHECK(number == opened_by_child);
    CHECK(close(number) == 0);
    closed_by_parent = 1;
    return 0;
}

static int child(void *argument) {
    (void)argument;
    int number = open("child", O_CREAT | O_RDWR, 0600);
    if (number < 0) _exit(2);
    opened_by_child = number;
    while (!closed_by_parent) sched_yield();
    char text[6] = {0};
    struct stat status;
    if (write(number, "mine\n", 5) != 5) _exit(3);
    if (pread(number, text, 5, 0) != 5 || strcmp(text, "mine\n")) _exit(4);
    if (fstat(number, &status) || status.st_size != 5) _exit(5);
    if (close(number)) _exit(6);
    _exit(0);
}

static void numbers(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, opens_and_closes, 0) == 0);
    enum { STACK_BYTES = 65536 };
    char *stack = malloc(STACK_BYTES);
    int status = -1, pid = clone(child, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, 0);
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(pthread_join(thread, 0) == 0);
    if (status) printf("the child ended with %x\n", status);
    CHECK(status == 0);
    printf("ok\n");
}

static void *uses(void *argument) {
    (void)argument;
    for (;;) {
        char text[6] = {0};
        struct stat status;
        int file = open("file", O_RDONLY);
        CHECK(file >= 0);
        CHECK(pread(file, text, 5, 0) == 5 && !strcmp(text, "bytes"));
        CHECK(fstat(file, &status) == 0 && status.st_size == 5 && S_ISREG(status.st_mode));
        CHECK(close(file) == 0);
        CHECK(stat("file", &status) == 0 && status.st_size == 5);
    }
    return 0;
}

static int numbers_had[400];

/* What it finds it must have whole, as the kernel's children have. */
static void *forks(void *argument) {
    (void)argument;
    for (;;) {
        int pid = fork(), status = -1;
        CHECK(pid >= 0);
        if (pid == 0) {
            struct stat status;
            for (int i = 0; i < 400; i++) CHECK(fstat(numbers_had[i], &status) == 0 && status.st_size == 5);
            _exit(0);
        }
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    return 0;
}

static void looks(int signal) {
    (void)signal;
    struct stat status;
    CHECK(fstat(numbers_had[0], &status) == 0 && status.st_size == 5);
}

static void end(void) {
    int file = open("file", O_CREAT | O_WRONLY | O_TRUNC, 0600);
    CHECK(file >= 0 && write(file, "bytes", 5) == 5 && close(file) == 0);
    for (int round = 0; round < 150; round++) {
        int pid = fork(), status = -1;
        CHECK(pid >= 0);
        if (pid == 0) {
            /* So that there is something to put away. */
            for (int i = 0; i < 400; i++) CHECK((numbers_had[i] = open("file", O_RDONLY)) >= 0);
            struct sigaction action = {.sa_handler = looks, .sa_flags = SA_RESTART};
            CHECK(sigaction(SIGALRM, &action, 0) == 0);
            struct itimerval often = {{0, 50}, {0, 50}};
            CHECK(setitimer(ITIMER_REAL, &often, 0) == 0);
            pthread_t threads[3];
            for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], 0, i && round % 2 ? forks : uses, 0) == 0);
            for (int i = 0; i < round; i++) usleep(30);
            _exit(7);
        }
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    printf("ok\n");
}

static int writes(void *name) {
    int file = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    if (file < 0 || write(file, "bytes", 5) != 5 || close(file)) _exit(2);
    execl("/bin/true", "true", (char *)0);
    _exit(3);
}

static char stacks[2][65536];

static int has_a_child(void *argument) {
    (void)argument;
    int status = -1, pid = clone(writes, stacks[1] + sizeof stacks[1], CLONE_VM | CLONE_VFORK | SIGCHLD, "grandchild");
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status) _exit(4);
    return writes("child");
}

static void nested(void) {
    struct stat found;
    int status = -1, pid = clone(has_a_child, stacks[0] + sizeof stacks[0], CLONE_VM | CLONE_VFORK | SIGCHLD, 0);
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (status) printf("the child ended with %x\n", status);
    CHECK(status == 0);
    CHECK(stat("child", &found) == 0 && found.st_size == 5 && stat("grandchild", &found) == 0 && found.st_size == 5);
    CHECK((pid = fork()) >= 0);
    if (pid == 0) {
        CHECK(clone(writes, stacks[0] + sizeof stacks[0], CLONE_VM | CLONE_VFORK | CLONE_PARENT | SIGCHLD, "sibling") > 0);
        CHECK(stat("sibling", &found) == 0 && found.st_size == 5);
        _exit(0);
    }
    for (int i = 0; i < 2; i++) CHECK(wait(&status) > 0 && status == 0);
    printf("ok\n");
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (!strcmp(argv[1], "numbers")) numbers(); else if (!strcmp(argv[1], "nested")) nested(); else end();
    return 0;
}
