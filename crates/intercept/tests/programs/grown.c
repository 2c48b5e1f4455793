/* A file that another process makes longer while this one maps it: what is stored where the file reaches is in the file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 3000, ROUNDS = 100 };
static volatile int *round_of;

int main(void) {
    long lost = 0;
    round_of = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (!child) alarm(100);
    for (int round = 1; round <= ROUNDS; round++) {
        if (!child) {
            while (round_of[0] < round) usleep(10);
            int file = open("grown", O_RDWR);
            for (int page = 1; page <= PAGES; page++) ftruncate(file, page * PAGE);
            close(file);
            continue;
        }
        int file = open("grown", O_RDWR | O_CREAT | O_TRUNC, 0600);
        char *map = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), byte;
        if (map == MAP_FAILED) return 1;
        round_of[0] = round;
        for (int page = 0, reached; page < PAGES; page = reached) {
            struct stat status;
            fstat(file, &status);
            reached = status.st_size / PAGE;
            for (; page < reached; page++) map[page * PAGE] = round;
        }
        for (int page = 0; page < PAGES; page++) lost += pread(file, &byte, 1, page * PAGE) != 1 || byte != round;
        munmap(map, PAGES * PAGE), close(file);
    }
    if (!child) return 0;
    waitpid(child, 0, 0);
    printf("lost: %ld\n", lost);
}
