/* A map is taken away, and something else put at its address, while another thread fills holes of the file: what was put there stays.
   What a map allows changes while another thread reads it. */
#include "race.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 16, PAGE = 4096, LENGTH = PAGES * PAGE };
static int fd;

static void *fills(void *unused) {
    for (long i = 0; !ended; i++) {
        pwrite(fd, "x", 1, i % PAGES * PAGE);
        if (i % PAGES == PAGES - 1) fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, LENGTH);
    }
    return unused;
}

static double end;
static long wrong;
static void *maps(void *unused) {
    for (int i = 0; now() < end; i++) {
        char *map = mmap(0, LENGTH, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) return perror("mmap"), unused;
        /* Taken away first, or replaced at once by what is made there or comes from elsewhere. */
        int way = i % 3;
        if (way == 0) munmap(map, LENGTH);
        char *other = mmap(way == 1 ? map : 0, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (way == 1 ? MAP_FIXED : 0), -1, 0);
        if (other != MAP_FAILED && way == 2) other = mremap(other, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, map);
        if (other == MAP_FAILED) return perror("mmap of memory"), unused;
        memset(other, 7, LENGTH);
        for (int round = 0; round < 20; round++)
            for (int page = 0; page < PAGES; page++)
                if (other[page * PAGE] != 7) __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
        munmap(other, LENGTH);
    }
    return unused;
}

static volatile char *allowed;
static void *reads(void *unused) {
    long sum = 0;
    while (!ended) for (int page = 0; page < PAGES; page++) sum += allowed[page * PAGE];
    return sum == -1 ? allowed : unused;
}

static void *allows(void *unused) {
    while (!ended) {
        mprotect(allowed, LENGTH, PROT_READ | PROT_WRITE);
        allowed[PAGE + 1] = 1;
        mprotect(allowed + 2 * PAGE, PAGE, PROT_READ);
        mprotect(allowed, LENGTH, PROT_READ);
    }
    return unused;
}

int main(int count, char **arguments) {
    end = now() + (count > 1 ? atof(arguments[1]) : 1);
    fd = open("f", O_RDWR | O_CREAT, 0644);
    ftruncate(fd, LENGTH);
    allowed = mmap(0, LENGTH, PROT_READ, MAP_SHARED, fd, 0);
    if (allowed == MAP_FAILED) return perror("mmap"), 1;
    void *(*works[])(void *) = {maps, maps, fills, reads, allows};
    enum { WORKS = sizeof works / sizeof *works };
    pthread_t threads[WORKS];
    for (int i = 0; i < WORKS; i++) pthread_create(threads + i, 0, works[i], 0);
    for (int i = 0; i < WORKS; i++) {
        pthread_join(threads[i], 0);
        ended = i > 0;
    }
    printf("wrong: %ld\n", wrong);
    return 0;
}
