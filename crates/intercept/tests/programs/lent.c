/* Memory that one thread gets where another has just taken a map of a file away is its own: it can be protected, moved and freed. */
#include "race.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, LENGTH = 8 * PAGE };
static int fd;
static long failed, wrong;

static void *maps(void *unused) {
    while (!ended) {
        char *map = mmap(0, LENGTH, PROT_READ, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED) munmap(map, LENGTH);
    }
    return unused;
}
static void note(const char *what) {
    if (!__atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED)) fprintf(stderr, "%s: %s\n", what, strerror(errno));
}
static void *uses(void *unused) {
    while (!ended) {
        char *memory = mmap(0, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) { note("mmap"); continue; }
        if (mprotect(memory, LENGTH, PROT_READ | PROT_WRITE)) { note("mprotect"); continue; }
        memset(memory, 7, LENGTH);
        char *moved = mremap(memory, LENGTH, 2 * LENGTH, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED) { note("mremap"); continue; }
        for (int i = 0; i < LENGTH; i += PAGE) if (moved[i] != 7) __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
        moved[LENGTH] = 1;
        munmap(moved, 2 * LENGTH);
    }
    return unused;
}
static void *shares(void *unused) {
    while (!ended) {
        char *memory = mmap(0, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) { note("mmap"); continue; }
        memory[0] = 1;
        if (madvise(memory, LENGTH, MADV_REMOVE)) note("madvise");
        if (memory[0]) __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
        munmap(memory, LENGTH);
    }
    return unused;
}
int main(int count, char **arguments) {
    double until = now() + (count > 1 ? atof(arguments[1]) : 1);
    static char bytes[LENGTH];
    memset(bytes, 3, LENGTH);
    int file = open("f", O_RDWR | O_CREAT, 0644);
    write(file, bytes, LENGTH);
    fd = open("f", O_RDONLY);
    void *(*works[])(void *) = {maps, maps, uses, uses, shares};
    enum { WORKS = sizeof works / sizeof *works };
    pthread_t threads[WORKS];
    for (int i = 0; i < WORKS; i++) pthread_create(threads + i, 0, works[i], 0);
    while (now() < until) usleep(10000);
    ended = 1;
    for (int i = 0; i < WORKS; i++) pthread_join(threads[i], 0);
    static char after[LENGTH];
    pread(file, after, LENGTH, 0);
    printf("failed: %ld, wrong: %ld, the file is %s\n", failed, wrong, memcmp(bytes, after, LENGTH) ? "changed" : "as it was");
    return 0;
}
