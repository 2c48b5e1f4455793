/* What a number stands for is replaced (dup2) while other threads use it and fork: each call finds what was there before or what is there then. */
#define FAILURES 16
#include "race.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILES = 4, NUMBER = 100, OTHER = 101 };
static long wrong;
/* The last is the host's, if it is used at all. */
static const char *names[FILES] = {"a", "b", "c", "/dev/shm/gannet-swap-host"};
static long sizes[FILES];
static int kinds;

/* What each file holds is its letter, as often as its size says. */
static void *looks(void *unused) {
    char bytes[64];
    while (!ended) {
        struct stat status;
        if (fstat(NUMBER, &status)) { note(0); continue; }
        if (status.st_size != 1000 && status.st_size != 2000 && status.st_size != 3000 && status.st_size != 4000) __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
        long length = pread(NUMBER, bytes, sizeof bytes, 100);
        if (length != sizeof bytes) { note(1); continue; }
        for (int i = 1; i < length; i++) if (bytes[i] != bytes[0]) { __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED); break; }
        if (lseek(NUMBER, 0, SEEK_CUR) == -1) note(2);
        char *map = mmap(0, 1000, PROT_READ, MAP_SHARED, NUMBER, 0);
        if (map == MAP_FAILED) note(3);
        else munmap(map, 1000);
        if (fcntl(NUMBER, F_GETFL) == -1) note(4);
        int copy = dup(NUMBER);
        if (copy == -1) note(5);
        else {
            if (fstat(copy, &status)) note(6);
            close(copy);
        }
    }
    return unused;
}
/* Records that are appended to a log whose number is moved from file to file come whole to one of them. */
static long written;
static void *logs(void *unused) {
    char record[32];
    memset(record, 'r', sizeof record);
    while (!ended) {
        long length = write(OTHER, record, sizeof record);
        if (length != sizeof record) note(7);
        else __atomic_fetch_add(&written, 1, __ATOMIC_RELAXED);
    }
    return unused;
}
static void *moves(void *unused) {
    unsigned seed = 5;
    int files[FILES];
    for (int i = 0; i < kinds; i++) files[i] = open(names[i], O_RDWR);
    while (!ended) {
        int which = rand_r(&seed) % kinds;
        if (rand_r(&seed) % 2) {
            if (dup2(files[which], NUMBER) != NUMBER) note(8);
        } else {
            int file = open(names[which], O_RDWR);
            if (dup3(file, NUMBER, 0) != NUMBER) note(8);
            close(file);
        }
        char name[64];
        snprintf(name, sizeof name, which == 3 ? "/dev/shm/gannet-swap-log" : "log%d", which);
        int log = open(name, O_WRONLY | O_APPEND | O_CREAT, 0600);
        if (dup2(log, OTHER) != OTHER) note(9);
        close(log);
    }
    return unused;
}
static void *forks(void *unused) {
    while (!ended) {
        pid_t child = fork();
        if (child == 0) {
            struct stat status;
            char byte;
            _exit(fstat(NUMBER, &status) || pread(NUMBER, &byte, 1, 0) != 1);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || status) note(10);
    }
    return unused;
}
int main(int count, char **arguments) {
    double until = now() + (count > 1 ? atof(arguments[1]) : 1);
    kinds = count > 2 ? atoi(arguments[2]) : FILES;
    static char bytes[4000];
    for (int i = 0; i < kinds; i++) {
        sizes[i] = 1000 * (i + 1);
        memset(bytes, 'a' + i, sizes[i]);
        int file = open(names[i], O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (write(file, bytes, sizes[i]) != sizes[i]) return perror("write"), 1;
        if (i == 0) dup2(file, NUMBER);
        close(file);
    }
    int log = open("log0", O_WRONLY | O_APPEND | O_CREAT, 0600);
    dup2(log, OTHER);
    close(log);
    void *(*works[])(void *) = {looks, logs, looks, forks, moves};
    enum { WORKS = sizeof works / sizeof *works };
    pthread_t threads[WORKS];
    for (int i = 0; i < WORKS; i++) pthread_create(threads + i, 0, works[i], 0);
    while (now() < until) usleep(10000);
    ended = 1;
    for (int i = 0; i < WORKS; i++) pthread_join(threads[i], 0);
    long found = 0;
    for (int i = 0; i < FILES; i++) {
        char name[64];
        struct stat status;
        snprintf(name, sizeof name, i == 3 ? "/dev/shm/gannet-swap-log" : "log%d", i);
        if (!stat(name, &status)) found += status.st_size;
        unlink(name);
    }
    if (kinds > 3) unlink(names[3]);
    for (int i = 0; i < 11; i++) if (failed[i]) printf("%d failed: %ld\n", i, failed[i]);
    printf("wrong: %ld, records lost: %ld\n", wrong, written - found / 32);
    return 0;
}
