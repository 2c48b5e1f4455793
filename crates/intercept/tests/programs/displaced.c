/* Children come to use a volume while another thread of theirs gives the lowest free numbers to files and closes them, without asking
 * what is there: whatever is opened and closed for the volume in between, nobody waits for ever.
 *
 *   displaced SECONDS */
#define FAILURES 6
#include "race.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int going;

static void *takes(void *unused) {
    int nothing = open("/dev/null", O_RDONLY), lowest = dup(nothing);
    close(lowest);
    for (;; going = 1) {
        dup2(nothing, lowest);
        close(lowest);
    }
    return unused;
}

static void child(void) {
    struct stat status;
    pthread_t taker;
    /* A signal without handler ends it, wherever it waits. */
    alarm(60);
    pthread_create(&taker, 0, takes, 0);
    while (!going);
    _exit(stat("f", &status) || status.st_size != 5);
}

int main(int argc, char **argv) {
    double end = now() + atoi(argv[1]);
    int file = open("f", O_CREAT | O_RDWR, 0600), count = 0;
    if (write(file, "hello", 5) != 5) note(0);
    close(file);
    alarm(atoi(argv[1]) + 120);
    for (; now() < end; count++) {
        int status = 0, pid = fork();
        if (!pid) child();
        if (pid < 0) { note(1); break; }
        if (waitpid(pid, &status, 0) != pid) note(2);
        if (status) { errno = status & 127 ? EINTR : EIO; note(3); }
    }
    long all = 0;
    for (int i = 0; i < FAILURES; i++) all += failed[i];
    if (count < 20) all++;
    fprintf(stderr, "%d children\n", count);
    printf("failed: %ld\n", all);
    return all > 0;
}
