/* A map is taken away, and something else put at its address, while another thread fills holes of the file: what was put there stays. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGES = 16, PAGE = 4096, LENGTH = PAGES * PAGE };
static int fd;
static volatile int ended;

static void *fills(void *unused) {
    for (long i = 0; !ended; i++) {
        pwrite(fd, "x", 1, i % PAGES * PAGE);
        if (i % PAGES == PAGES - 1) fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, LENGTH);
    }
    return unused;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static double end;
static long wrong;
static void *maps(void *unused) {
    for (int i = 0; now() < end; i++) {
        char *map = mmap(0, LENGTH, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) return perror("mmap"), unused;
        /* Taken away first, or replaced at once. */
        if (i % 2) munmap(map, LENGTH);
        char *other = mmap(i % 2 ? 0 : map, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (i % 2 ? 0 : MAP_FIXED), -1, 0);
        if (other == MAP_FAILED) return perror("mmap of memory"), unused;
        memset(other, 7, LENGTH);
        for (int round = 0; round < 20; round++)
            for (int page = 0; page < PAGES; page++)
                if (other[page * PAGE] != 7) __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
        munmap(other, LENGTH);
    }
    return unused;
}

int main(int count, char **arguments) {
    end = now() + (count > 1 ? atof(arguments[1]) : 1);
    fd = open("f", O_RDWR | O_CREAT, 0644);
    ftruncate(fd, LENGTH);
    pthread_t threads[3];
    pthread_create(threads, 0, fills, 0);
    for (int i = 1; i < 3; i++) pthread_create(threads + i, 0, maps, 0);
    for (int i = 1; i < 3; i++) pthread_join(threads[i], 0);
    ended = 1;
    pthread_join(threads[0], 0);
    printf("wrong: %ld\n", wrong);
    return 0;
}
