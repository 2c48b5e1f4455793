// Maps many pages of a file, one by one and in an order of its own, protects and writes them: what
// finding one among them takes must not grow with their number. Compared is processor time, of few and of eight times as many; what the file
// system does when a map goes is not in it.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096L
#define FEW 2000

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static double seconds(int file, long count) {
    char **maps = malloc(count * sizeof *maps);
    double start = now();
    for (long i = 0; i < count; i++) {
        int protection = i % 2 ? PROT_READ : PROT_READ | PROT_WRITE;
        maps[i] = mmap(NULL, PAGE, protection, MAP_SHARED, file, i * 7919 % count * PAGE);
        if (maps[i] == MAP_FAILED) perror("mmap"), exit(1);
    }
    for (long i = 0; i < count; i++)
        if (mprotect(maps[i], PAGE, PROT_READ) || pwrite(file, "x", 1, i * PAGE) != 1) perror("mprotect"), exit(1);
    double end = now();
    for (long i = 0; i < 50; i++)
        if (ftruncate(file, (count - i) * PAGE)) perror("ftruncate"), exit(1);
    for (long i = 0; i < count; i++)
        if (munmap(maps[i], PAGE)) perror("munmap"), exit(1);
    free(maps);
    return end - start;
}

int main(void) {
    static char page[PAGE];
    double few = 1e9, many = 1e9;
    int file = open("file", O_CREAT | O_RDWR | O_TRUNC, 0600);
    for (int round = 0; round < 3; round++)
        for (int more = 0; more < 2; more++) {
            long count = more ? 8 * FEW : FEW;
            for (long i = 0; i < count; i++)
                if (pwrite(file, page, PAGE, i * PAGE) != PAGE) return 1;
            double time = seconds(file, count);
            if (more && time < many) many = time;
            if (!more && time < few) few = time;
        }
    fprintf(stderr, "%.3f s, %.3f s\n", few, many);
    if (many < 24 * few) puts("in proportion");
    else printf("8 times as many take %.1f times as long\n", many / few);
    return 0;
}
