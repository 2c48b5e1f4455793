/* Threads take every number one after the other (dup2), those that the interception uses itself among them, while others open files and close ranges around. */
#define FAILURES 10
#include "race.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FROM = 200, TO = 500, TAKERS = 2 };
static int pipes[2], kept;
static struct stat of_pipe;
static pthread_barrier_t together;

/* An open file is always ready; the pipe never is. */
static void *opens(void *unused) {
    while (!ended) {
        int file = open("f", O_RDONLY);
        struct stat status;
        if (file < 0) { note(0); continue; }
        struct pollfd about = {file, POLLIN};
        if (poll(&about, 1, 0) != 1 || about.revents != POLLIN) note(1);
        if (fstat(file, &status) || status.st_size != 5) note(2);
        if (close(file)) note(3);
    }
    return unused;
}
/* Each number is the pipe's once it was made so. */
static void *takes(void *unused) {
    for (int number = FROM; number < TO; number++) {
        pthread_barrier_wait(&together);
        struct stat status;
        if (dup2(pipes[0], number) != number) note(4);
        else if (fstat(number, &status) || status.st_ino != of_pipe.st_ino) note(5);
        if (fcntl(number, F_GETFD) == -1) note(6);
    }
    return unused;
}
static void *closes(void *unused) {
    while (!ended) {
        if (syscall(SYS_close_range, TO, ~0u, 0)) note(7);
        struct stat status;
        if (fstat(kept, &status)) note(8);
    }
    return unused;
}
static int round_of(void) {
    pthread_t threads[8];
    int many = 0;
    pipe(pipes);
    fstat(pipes[0], &of_pipe);
    pthread_barrier_init(&together, 0, TAKERS);
    kept = open("f", O_RDONLY);
    for (int i = 0; i < TAKERS; i++) pthread_create(threads + many++, 0, takes, 0);
    pthread_create(threads + many++, 0, opens, 0);
    pthread_create(threads + many++, 0, closes, 0);
    for (int i = 0; i < TAKERS; i++) pthread_join(threads[i], 0);
    ended = 1;
    for (int i = TAKERS; i < many; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < FAILURES; i++) if (failed[i]) return fprintf(stderr, "%d failed: %ld\n", i, failed[i]), 1;
    return 0;
}
int main(int count, char **arguments) {
    double until = now() + (count > 1 ? atof(arguments[1]) : 1);
    struct rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &limit);
    int file = open("f", O_CREAT | O_RDWR, 0600);
    if (write(file, "hello", 5) != 5) return perror("write"), 1;
    close(file);
    long bad = 0;
    for (int i = 0; now() < until; i++) {
        pid_t child = fork();
        if (child == 0) _exit(round_of());
        int status = 0;
        waitpid(child, &status, 0);
        if (status && bad++ < 3) fprintf(stderr, "round %d: %x\n", i, status);
    }
    printf("bad rounds: %ld\n", bad);
    return 0;
}
