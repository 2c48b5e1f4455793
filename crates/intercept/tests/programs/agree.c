/* Threads fill holes of a file, make it longer and cut it, while others make maps of it: when all stand still, each map shows what the file holds. */
#include "race.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 16, PAGE = 4096, LENGTH = PAGES * PAGE, WRITERS = 2, MAPPERS = 2, MAPS = 4 };
static int fd;
static unsigned round_of;
static pthread_barrier_t begin, end;
static char *maps[MAPPERS][MAPS];

static void *writes(void *which) {
    long self = (long)which;
    unsigned seed = self + 1;
    for (;;) {
        pthread_barrier_wait(&begin);
        if (ended) return 0;
        for (int i = 0; i < 6; i++) {
            int page = rand_r(&seed) % (PAGES / WRITERS) * WRITERS + self;
            unsigned mark = round_of << 8 | page;
            if (rand_r(&seed) % 4) pwrite(fd, &mark, sizeof mark, (long)page * PAGE + 8 * self);
            else fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (long)page * PAGE, PAGE);
        }
        if (self == 0 && round_of % 3 == 1) ftruncate(fd, rand_r(&seed) % PAGES * PAGE), round_of % 2 ? ftruncate(fd, LENGTH) : 0;
        pthread_barrier_wait(&end);
    }
}

static void *makes(void *which) {
    long self = (long)which;
    for (;;) {
        pthread_barrier_wait(&begin);
        if (ended) return 0;
        for (int i = 0; i < MAPS; i++) {
            maps[self][i] = mmap(0, LENGTH, self && i % 2 ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
            if (self && !(i % 2)) mprotect(maps[self][i] + (i + 1) * PAGE, PAGE, PROT_READ | PROT_WRITE);
        }
        pthread_barrier_wait(&end);
    }
}

static sigjmp_buf back;
static void behind(int signal) { siglongjmp(back, signal); }

int main(int count, char **arguments) {
    double until = now() + (count > 1 ? atof(arguments[1]) : 1);
    long differ = 0, signals = 0, rounds = 0;
    pthread_t threads[WRITERS + MAPPERS];
    pthread_barrier_init(&begin, 0, WRITERS + MAPPERS + 1);
    pthread_barrier_init(&end, 0, WRITERS + MAPPERS + 1);
    signal(SIGBUS, behind);
    for (long i = 0; i < WRITERS + MAPPERS; i++)
        pthread_create(threads + i, 0, i < WRITERS ? writes : makes, (void *)(i < WRITERS ? i : i - WRITERS));
    for (; now() < until; rounds++) {
        fd = open("f", O_RDWR | O_CREAT | O_TRUNC, 0644);
        ftruncate(fd, round_of % 3 == 0 ? PAGE : LENGTH);
        round_of++;
        pthread_barrier_wait(&begin);
        pthread_barrier_wait(&end);
        static char held[LENGTH];
        memset(held, 0, LENGTH);
        long size = pread(fd, held, LENGTH, 0);
        for (int i = 0; i < MAPPERS * MAPS; i++) {
            char *map = maps[i / MAPS][i % MAPS];
            for (int page = 0; page < PAGES; page++) {
                if (sigsetjmp(back, 1)) { signals += (long)page * PAGE < size; continue; }
                volatile char *at = map + page * PAGE;
                unsigned there = *(volatile unsigned *)at;
                if ((long)page * PAGE >= size || memcmp(map + page * PAGE, held + page * PAGE, PAGE)) {
                    differ++;
                    if (differ < 4) fprintf(stderr, "round %ld, map %d, page %d, size %ld: %x\n", rounds, i, page, size, there);
                }
            }
            munmap(map, LENGTH);
        }
        close(fd);
    }
    ended = 1;
    pthread_barrier_wait(&begin);
    for (int i = 0; i < WRITERS + MAPPERS; i++) pthread_join(threads[i], 0);
    fprintf(stderr, "%ld rounds\n", rounds);
    printf("pages that differ: %ld, signals without reason: %ld\n", differ, signals);
    return 0;
}
