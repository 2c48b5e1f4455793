/* One open file under several numbers, come by in all ways there are: it stays, and its lock, until the last of them is closed.
 *
 *   alike [threads]    prints what went too early or stayed too long, and "done" */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char **program;
static const char *way = "";

/* A file without a name, locked by its description; and another open of it, which tells who has the lock. */
static int begin(const char *name, int *other) {
    way = name;
    int file = open("f", O_RDWR | O_CREAT | O_EXCL, 0600);
    *other = open("f", O_RDWR);
    if (file < 0 || *other < 0 || write(file, "some", 4) != 4 || flock(file, LOCK_EX) || unlink("f")) {
        printf("%s: no file: %s\n", way, strerror(errno));
        exit(1);
    }
    return file;
}
static void shut(int file) {
    if (close(file)) printf("%s: close of %d: %s\n", way, file, strerror(errno));
}
static int lives(int file) {
    char bytes[4];
    return pread(file, bytes, 4, 0) == 4 && !memcmp(bytes, "some", 4);
}
/* What was closed first is not the end of it. */
static void is_open(int file, int other) {
    int next = open("next", O_RDWR | O_CREAT, 0600); /* Would get what is free too early. */
    if (!lives(file) || flock(file, LOCK_EX | LOCK_NB)) printf("%s: %d is gone: %s\n", way, file, strerror(errno));
    if (!flock(other, LOCK_EX | LOCK_NB)) printf("%s: the lock of %d is gone\n", way, file), flock(other, LOCK_UN);
    shut(next);
}
static void is_over(int other) {
    if (flock(other, LOCK_EX | LOCK_NB)) printf("%s: the lock stays\n", way);
    shut(other);
}
/* Either is closed first. */
static void pair(const char *name, int (*again)(int)) {
    for (int turn = 0; turn < 2; turn++) {
        int other, file = begin(name, &other), second = again(file);
        if (second < 0) printf("%s: %s\n", way, strerror(errno));
        shut(turn ? second : file);
        is_open(turn ? file : second, other);
        shut(turn ? file : second);
        is_over(other);
    }
}
static int by_dup(int file) { return dup(file); }
static int by_dup2(int file) { return dup2(file, 61); }
static int by_dup3(int file) { return dup3(file, 90, O_CLOEXEC); }
static int by_fcntl(int file) { return fcntl(file, F_DUPFD, 80); }
static int by_fcntl_cloexec(int file) { return fcntl(file, F_DUPFD_CLOEXEC, 3); }
static int onto_another(int file) { return dup2(file, open("next", O_RDWR | O_CREAT, 0600)); }
static int twice(int file) {
    int middle = dup(file), last = dup(middle);
    shut(middle);
    return last;
}
static int by_message(int file) {
    int ends[2], got = -1;
    char byte = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {0, 0, &bytes, 1, room, sizeof room, 0};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &file, sizeof file);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || sendmsg(ends[0], &message, 0) != 1) return -1;
    if (recvmsg(ends[1], &message, 0) != 1) return -1;
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    shut(ends[0]), shut(ends[1]);
    return got;
}
static void ended_well(pid_t child) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status) printf("%s: the child: %x\n", way, status);
}
/* Duplicated before the fork: parent and child close either. */
static void forked(void) {
    int other, file = begin("fork", &other), second = dup(file);
    pid_t child = fork();
    if (child == 0) {
        shut(second);
        is_open(file, other);
        fflush(stdout);
        _exit(0);
    }
    shut(file);
    ended_well(child);
    is_open(second, other);
    shut(second);
    is_over(other);
}
/* Executed with two of it, of which it closes one; what was duplicated in the child only is its own. */
static void spawned(void) {
    int other, file = begin("spawn", &other), second = fcntl(file, F_DUPFD, 100);
    char numbers[3][12];
    snprintf(numbers[0], 12, "%d", file), snprintf(numbers[1], 12, "%d", second), snprintf(numbers[2], 12, "%d", other);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, second, 70);
    posix_spawn_file_actions_adddup2(&actions, other, 71);
    posix_spawn_file_actions_addclose(&actions, second);
    char *arguments[] = {program[0], "inherited", numbers[0], "70", numbers[2], NULL};
    pid_t child;
    if (posix_spawn(&child, program[0], &actions, NULL, arguments, environ)) child = -1;
    ended_well(child);
    shut(file);
    is_open(second, other);
    shut(second);
    is_over(other);
}
/* A vfork child duplicates, and forks: what was its own table is its child's. */
static void forked_by_a_vfork_child(void) {
    int other, file = begin("vfork", &other);
    volatile pid_t grandchild = 0;
    pid_t child = vfork();
    if (child == 0) {
        volatile int second = dup(file);
        grandchild = fork();
        if (grandchild == 0) {
            shut(file);
            is_open(second, other);
            fflush(stdout);
            _exit(0);
        }
        int status;
        if (waitpid(grandchild, &status, 0) != grandchild || status) _exit(7);
        shut(second);
        _exit(lives(file) ? 0 : 8);
    }
    ended_well(child);
    is_open(file, other);
    shut(file);
    is_over(other);
}
/* A map has it, too. */
static void mapped(void) {
    int other, file = begin("map", &other);
    char *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) printf("map: %s\n", strerror(errno));
    int second = dup(file);
    shut(file);
    munmap(map, 4096);
    is_open(second, other);
    map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, second, 0);
    shut(second);
    if (!flock(other, LOCK_EX | LOCK_NB)) printf("map: the lock is gone\n");
    munmap(map, 4096);
    is_over(other);
}
/* Threads duplicate what others close at the time: the one that is left works. */
static int shared_file, turns;
static pthread_barrier_t barrier;
static void *closes(void *unused) {
    for (int i = 0; i < turns; i++) {
        pthread_barrier_wait(&barrier);
        for (int j = i % 64; j > 0; j--) __asm__ volatile("pause");
        shut(shared_file);
        pthread_barrier_wait(&barrier);
    }
    return unused;
}
static void raced(void) {
    pthread_t thread;
    turns = 3000;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, closes, NULL);
    for (int i = 0; i < turns; i++) {
        int other, first = begin("race", &other);
        shared_file = first;
        pthread_barrier_wait(&barrier);
        int second = i % 3 == 0 ? dup(first) : i % 3 == 1 ? fcntl(first, F_DUPFD, 50) : dup2(first, 95);
        pthread_barrier_wait(&barrier);
        /* Not in its place, where it was closed just then: what to the kernel stands for it is empty. */
        struct stat status;
        int is_there = second >= 0 && (fstat(second, &status) || status.st_size);
        if (is_there) is_open(second, other);
        if (second >= 0) shut(second);
        is_over(other);
    }
    pthread_join(thread, NULL);
}
static void *idle(void *unused) { return pause(), unused; }

int main(int count, char **arguments) {
    program = arguments;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count == 5) {
        int file = atoi(arguments[2]), second = atoi(arguments[3]), other = atoi(arguments[4]);
        way = "inherited";
        is_open(file, other);
        shut(file);
        is_open(second, other);
        return 0;
    }
    pthread_t thread;
    if (count > 1) pthread_create(&thread, NULL, idle, NULL);
    pair("dup", by_dup);
    pair("dup2", by_dup2);
    pair("dup3", by_dup3);
    pair("F_DUPFD", by_fcntl);
    pair("F_DUPFD_CLOEXEC", by_fcntl_cloexec);
    pair("onto another", onto_another);
    pair("twice", twice);
    forked();
    spawned();
    forked_by_a_vfork_child();
    mapped();
    if (count > 1) raced();
    pair("message", by_message);
    spawned();
    puts("done");
    return 0;
}
