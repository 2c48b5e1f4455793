/* Processes take turns at record locks, one at a time each: nobody waits for anybody who waits for it, and nobody is told so. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 6, FILES = 2 };

static int takes_turns(int rounds) {
    int files[FILES] = {open("a", O_RDWR | O_CREAT, 0600), open("b", O_RDWR | O_CREAT, 0600)};
    for (int i = 0; i < rounds; i++) {
        struct flock lock = {F_WRLCK, SEEK_SET, 0, 10, 0};
        int file = files[i % 5 == 0];
        while (fcntl(file, F_SETLKW, &lock))
            if (errno != EINTR) return printf("round %d: %s\n", i, strerror(errno)), 1;
        lock.l_type = F_UNLCK;
        if (fcntl(file, F_SETLK, &lock)) return perror("F_UNLCK"), 1;
    }
    return 0;
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 10000, status, failed = 0;
    for (int i = 0; i < CHILDREN; i++)
        if (fork() == 0) exit(takes_turns(rounds));
    while (wait(&status) > 0) failed += status != 0;
    printf("failed: %d\n", failed);
    return 0;
}
