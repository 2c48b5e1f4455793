/*
 * A client of benchmark-turns: random 4 KiB O_DIRECT reads, then writes, of a 16 MiB file by each of several processes; with one
 * process also 64 requests of 1 MiB each way. The files b0, b1, … must be there. Prints a label, operations (or MiB) a second, and the
 * mean and median time of one in microseconds.
 *
 *   random_4k DIRECTORY PROCESSES OPERATIONS
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096
#define BLOCKS 4096
#define LARGE (1 << 20)

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fail(const char *what)
{
    perror(what);
    _exit(1);
}

static int open_direct(const char *directory, int process, size_t size, void **buffer)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/b%d", directory, process);
    int file = open(path, O_RDWR | O_DIRECT);
    if (file < 0 || posix_memalign(buffer, BLOCK, size))
        fail(path);
    memset(*buffer, 1, size);
    return file;
}

static void transfer(int writes, int file, void *buffer, size_t size, off_t offset)
{
    ssize_t count = writes ? pwrite(file, buffer, size, offset) : pread(file, buffer, size, offset);
    if (count != (ssize_t)size)
        fail(writes ? "write" : "read");
}

static void small(const char *directory, int process, int writes, int count, double *times_us)
{
    void *buffer;
    int file = open_direct(directory, process, BLOCK, &buffer);
    unsigned random = process * 77 + 1;
    for (int index = 0; index < count; index++) {
        random = random * 1103515245 + 12345;
        double begin = now_us();
        transfer(writes, file, buffer, BLOCK, (off_t)(random >> 8) % BLOCKS * BLOCK);
        times_us[index] = now_us() - begin;
    }
    _exit(0);
}

int main(int count, char **words)
{
    if (count != 4)
        return fprintf(stderr, "random_4k DIRECTORY PROCESSES OPERATIONS\n"), 2;
    int processes = atoi(words[2]), operations = atoi(words[3]), all = processes * operations, failed = 0, status;
    double *times_us = mmap(NULL, sizeof *times_us * all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int writes = 0; writes < 2; writes++) {
        double begin = now_us(), sum = 0;
        for (int process = 0; process < processes; process++)
            if (!fork())
                small(words[1], process, writes, operations, times_us + process * operations);
        while (wait(&status) > 0)
            failed |= status;
        double elapsed_us = now_us() - begin;
        for (int index = 0; index < all; index++)
            sum += times_us[index];
        qsort(times_us, all, sizeof *times_us, compare);
        printf("%s-4k-%d %.0f %.2f %.2f\n", writes ? "write" : "read", processes, all / elapsed_us * 1e6, sum / all, times_us[all / 2]);
    }
    if (processes == 1) {
        void *buffer;
        int file = open_direct(words[1], 0, LARGE, &buffer);
        for (int writes = 0; writes < 2; writes++) {
            double begin = now_us();
            for (int index = 0; index < 64; index++)
                transfer(writes, file, buffer, LARGE, (off_t)(index % 16) * LARGE);
            double elapsed_us = now_us() - begin;
            printf("%s-1m %.0f %.2f %.2f\n", writes ? "write" : "read", 64 / elapsed_us * 1e6, elapsed_us / 64, elapsed_us / 64);
        }
    }
    return failed != 0;
}
